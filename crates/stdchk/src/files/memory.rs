//! The memory that all files share which are being written (`docs/MOUNT.md`, Memory). What stays true: who stores waits for nobody but those
//! who store, too, so that it comes to an end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::locked;

/// The parts of the budget that streams have, those who store what was kept, and what is kept.
const STREAMS_PART: usize = 2;
const STORING_PART: usize = 4;
const KEPT_PART: usize = 2;
/// The part that one file may have of it alone.
const ALONE_PART: usize = 4;
/// What is not worth being stored by itself, as long as that can be avoided.
const SHARE_MIN: usize = 256 << 10;
/// What may be read along with what is new.
const BESIDE: usize = 8 << 20;
/// What it takes to store next to nothing.
const STORING_MIN: usize = 1 << 20;

/// The budget.
pub(super) struct Memory {
    all: usize,
    /// What the engine needs for as much as there may be.
    engine: usize,
    used: Mutex<Used>,
    given_back: Condvar,
}

#[derive(Default)]
struct Used {
    streams: usize,
    storing: usize,
    kept: usize,
    /// Files of which something is kept.
    files: usize,
}

impl Memory {
    /// One of so many bytes, of which the engine needs so many for one file.
    pub fn new(all: usize, engine: usize) -> Arc<Memory> {
        Arc::new(Memory { all, engine, used: Mutex::default(), given_back: Condvar::new() })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        locked(&self.used)
    }

    /// What a stream needs, if there is so much: there is for one.
    pub fn stream(self: &Arc<Memory>) -> Option<Loan> {
        let mut used = self.used();
        let fits = used.streams == 0 || used.streams + self.engine <= self.all / STREAMS_PART;
        fits.then(|| {
            used.streams += self.engine;
            Loan { memory: self.clone(), bytes: self.engine, is_stream: true }
        })
    }

    /// What storing a file of `len` bytes needs of which so many are new; waits until there is so much.
    pub fn to_store(self: &Arc<Memory>, len: u64, new: usize) -> Loan {
        let read = usize::try_from(len).unwrap_or(usize::MAX).min(new.saturating_add(BESIDE));
        let bytes = read.saturating_mul(2).saturating_add(STORING_MIN).min(self.engine);
        let most = (self.all / STORING_PART).max(self.engine);
        let mut used = self.used();
        while used.storing + bytes > most {
            used = self.given_back.wait(used).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        used.storing += bytes;
        Loan { memory: self.clone(), bytes, is_stream: false }
    }

    /// Where one file notes what is kept of it.
    pub fn keep(self: &Arc<Memory>) -> Kept {
        Kept { memory: self.clone(), bytes: 0 }
    }
}

/// Memory that is given back when it is dropped.
pub(super) struct Loan {
    memory: Arc<Memory>,
    bytes: usize,
    is_stream: bool,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut used = self.memory.used();
        match self.is_stream {
            true => used.streams -= self.bytes,
            false => used.storing -= self.bytes,
        }
        self.memory.given_back.notify_all();
    }
}

/// Bytes of one file that are kept in memory until they are stored.
pub(super) struct Kept {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Kept {
    /// Notes how many there are by now; whether they are to be stored: there are too many of all files, and this one has its share of them.
    pub fn note(&mut self, bytes: usize) -> bool {
        let all = self.memory.all;
        let mut used = self.memory.used();
        used.files = used.files + usize::from(self.bytes == 0) - usize::from(bytes == 0);
        used.kept = used.kept - self.bytes + bytes;
        self.bytes = bytes;
        let most = all / KEPT_PART;
        let share = (most / used.files.max(1)).max(SHARE_MIN);
        bytes > all / ALONE_PART || (used.kept > most && bytes >= share)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn streams_have_half_and_there_is_always_one() {
        let memory = Memory::new(256 * MIB, 64 * MIB);
        let first = memory.stream().expect("there is one");
        let _second = memory.stream().expect("there are two");
        assert!(memory.stream().is_none());
        drop(first);
        assert!(memory.stream().is_some());
        let little = Memory::new(64 * MIB, 64 * MIB);
        let _only = little.stream().expect("there is one");
        assert!(little.stream().is_none());
    }

    #[test]
    fn who_stores_waits_for_who_does() {
        let memory = Memory::new(64 * MIB, 64 * MIB);
        let _stream = memory.stream();
        let large = memory.to_store(u64::MAX, usize::MAX);
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = memory.clone();
        let waiter = std::thread::spawn(move || {
            let _small = other.to_store(0, 0);
            sender.send(()).expect("somebody listens");
        });
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        drop(large);
        receiver.recv().expect("its turn comes");
        waiter.join().expect("it ends");
        // Small ones do not wait for each other.
        let _many: Vec<Loan> = (0..64).map(|_| memory.to_store(0, 0)).collect();
    }

    #[test]
    fn what_is_kept_stays_within_the_budget_however_many_files_there_are() {
        for files in [1, 2, 7, 64, 200] {
            let memory = Memory::new(64 * MIB, 64 * MIB);
            let mut all: Vec<(Kept, usize)> = (0..files).map(|_| (memory.keep(), 0)).collect();
            let (mut most, mut stored) = (0, 0);
            for step in 0..files * 400 {
                let (kept, bytes) = &mut all[step * 31 % files];
                *bytes += MIB / 16;
                if kept.note(*bytes) {
                    *bytes = 0;
                    stored += 1;
                    assert!(!kept.note(0));
                }
                most = most.max(memory.used().kept);
            }
            assert!(most <= 64 * MIB / KEPT_PART + files * SHARE_MIN.min(MIB / 16), "{files}: {most}");
            assert!(stored > 0 && stored <= files * 400 / 4 + 1, "{files}: {stored}");
            drop(all);
            let used = memory.used();
            assert_eq!((used.kept, used.files), (0, 0));
        }
    }
}
