//! Threads that do what they are given, each with tools of its own, and answers that can be waited for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use stdchk_codec::Press;
use stdchk_object::{Error, Kind, Result};

use crate::buffers::Spares;

/// What a thread keeps from job to job.
#[derive(Default)]
pub struct Tools {
    /// Compressors.
    pub press: Press,
    /// Room for bytes that are needed for a moment; it stays in the processor's cache.
    pub room: Vec<u8>,
}

type Job = Box<dyn FnOnce(&mut Tools) + Send>;

/// Threads, no more than a certain number, each begun when there is more to do than those before it can. Jobs are taken in the order in
/// which they were given.
pub struct Workers {
    name: String,
    most: usize,
    jobs: Option<Sender<Job>>,
    queue: Receiver<Job>,
    /// Jobs that were given and are not done.
    open: Arc<AtomicUsize>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    spares: Spares,
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
    /// At most `count` threads, at least one.
    pub fn new(count: usize, name: &str) -> Workers {
        let (jobs, queue) = unbounded::<Job>();
        let (open, threads) = (Arc::default(), Mutex::default());
        let spares = Spares::default();
        Workers { name: name.to_owned(), most: count.max(1), jobs: Some(jobs), queue, open, threads, spares }
    }

    /// How many threads there are at most.
    pub fn count(&self) -> usize {
        self.most
    }

    /// Memory that one save with these threads leaves to the next.
    pub fn spares(&self) -> Spares {
        self.spares.clone()
    }

    /// Begins another thread, if those that there are have enough to do.
    fn begin_thread(&self, open: usize) {
        let mut threads = self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let number = threads.len();
        if number >= self.most.min(open) {
            return;
        }
        let (queue, open) = (self.queue.clone(), self.open.clone());
        let work = move || {
            let mut tools = Tools::default();
            for job in queue {
                job(&mut tools);
                open.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name(format!("{}-{number}", self.name)).spawn(work);
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) if number == 0 => tracing::error!("no thread can be begun: {error}"),
            // The others do it.
            Err(_) => {}
        }
    }

    /// Has something done. A panic in it becomes an error; the thread goes on.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Tools) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.ask_leaving(move |tools| Ok((job(tools)?, ())))
    }

    /// The same, where something is left that takes a while to drop: whoever waits has the answer before.
    pub fn ask_leaving<T: Send + 'static, L: 'static>(
        &self,
        job: impl FnOnce(&mut Tools) -> Result<(T, L)> + Send + 'static,
    ) -> Answer<T> {
        let (reply, answer) = bounded(1);
        let job: Job = Box::new(move |tools| {
            let panicked = |_| Err(Error::new(Kind::Io, "a worker thread panicked; this is a bug in stdchk"));
            match catch_unwind(AssertUnwindSafe(|| job(tools))).unwrap_or_else(panicked) {
                Ok((done, left)) => {
                    let _ = reply.send(Ok(done));
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(left)));
                }
                Err(error) => _ = reply.send(Err(error)),
            }
        });
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.begin_thread(open);
        let has_threads = !self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_empty();
        if let Some(jobs) = self.jobs.as_ref().filter(|_| has_threads) {
            // Without any thread the job is dropped, and its answer is the error that nobody answered.
            let _ = jobs.send(job);
        }
        Answer(answer)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs = None;
        let threads = self.threads.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        threads.drain(..).for_each(|thread| _ = thread.join());
    }
}
