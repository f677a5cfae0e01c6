//! Threads that do what they are given, each with tools of its own, and answers that can be waited for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use stdchk_codec::Press;
use stdchk_object::{Error, Kind, Result};

/// What a thread keeps from job to job.
#[derive(Default)]
pub struct Tools {
    /// Compressors.
    pub press: Press,
    /// Room for bytes that are needed for a moment; it stays in the processor's cache.
    pub room: Vec<u8>,
}

type Job = Box<dyn FnOnce(&mut Tools) + Send>;

/// A fixed number of threads. Jobs are taken in the order in which they were given.
pub struct Workers {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// An answer that comes later.
pub struct Answer<T>(Receiver<Result<T>>);

impl<T> Answer<T> {
    /// An answer that is there already.
    pub fn ready(value: T) -> Answer<T> {
        let (reply, answer) = bounded(1);
        reply.send(Ok(value)).expect("there is room for one");
        Answer(answer)
    }

    /// Waits for it.
    pub fn wait(self) -> Result<T> {
        self.0.recv().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a worker thread died")))
    }
}

impl Workers {
    /// `count` threads, at least one.
    pub fn new(count: usize, name: &str) -> Workers {
        let (jobs, queue) = unbounded::<Job>();
        let spawn = |i: usize| {
            let queue = queue.clone();
            let work = move || {
                let mut tools = Tools::default();
                queue.iter().for_each(|job| job(&mut tools));
            };
            std::thread::Builder::new().name(format!("{name}-{i}")).spawn(work)
        };
        let threads = (0..count.max(1)).filter_map(|i| spawn(i).ok()).collect();
        Workers { jobs: Some(jobs), threads }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Has something done. A panic in it becomes an error; the thread goes on.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Tools) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let (reply, answer) = bounded(1);
        let job: Job = Box::new(move |tools| {
            let done = catch_unwind(AssertUnwindSafe(|| job(tools)));
            let panicked = |_| Err(Error::new(Kind::Io, "a worker thread panicked; this is a bug in stdchk"));
            let _ = reply.send(done.unwrap_or_else(panicked));
        });
        if let Some(jobs) = &self.jobs {
            // Without any thread the job is dropped here, and its answer is the error that nobody answered.
            let _ = jobs.send(job);
        }
        Answer(answer)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs = None;
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}
