//! What programs have open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fuser::FileHandle;
use stdchk::files::{Entry, Opened, Progress, Writing};

/// Something that is open.
pub enum Handle {
    /// A version, to be read; none of an empty file.
    Read { number: u64, opened: Option<Arc<Opened>>, progress: Progress },
    /// A version that is not the newest.
    Version { opened: Arc<Opened>, progress: Progress },
    /// A file that has no version yet, to be read by somebody else than those who write it.
    Watch { writing: Arc<Writing> },
    /// A file to be written.
    Write {
        writing: Arc<Writing>,
        /// The process that opened it, and whether that has closed it.
        opener: u32,
        is_closed: AtomicBool,
        /// Whether all that is written goes to the end.
        appends: bool,
        /// Whether it may be read, too, and so be mapped to be written.
        may_map: bool,
    },
    /// The word that the steps of a directory are complete: what is written there is nothing.
    Complete { directory: u64, writing: Arc<Writing> },
    /// The names of a directory, as they were when they were first asked for.
    Directory { number: u64, names: Mutex<Option<Arc<Vec<(String, Entry)>>>> },
}

/// All of them.
#[derive(Default)]
pub struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Handle>>>,
}

impl Handles {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes one in; its number.
    pub fn add(&self, handle: Handle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open().insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// The one of a number.
    pub fn get(&self, handle: FileHandle) -> Option<Arc<Handle>> {
        self.open().get(&handle.0).cloned()
    }

    /// Whether a file is open to be written, but not by that process, and nobody can have mapped it to be written.
    pub fn is_written_by_others(&self, number: u64, process: u32) -> bool {
        let mut is_written = false;
        for handle in self.open().values() {
            if let Handle::Write { writing, opener, may_map, .. } = &**handle
                && writing.number == number
            {
                if *may_map || *opener == process || *opener == 0 {
                    return false;
                }
                is_written = true;
            }
        }
        is_written
    }

    /// What somebody writes of a file who may have mapped it to write it.
    pub fn mapped(&self, number: u64) -> Option<Arc<Writing>> {
        self.open().values().find_map(|handle| match &**handle {
            Handle::Write { writing, may_map: true, .. } if writing.number == number => Some(writing.clone()),
            _ => None,
        })
    }

    /// Notes that a process has closed a file that it opened to write it; how many of those who did have closed it thereby. That handles
    /// are let go is heard later.
    pub fn close(&self, of: &Arc<Writing>, by: u32) -> u32 {
        let mut closed = 0;
        for handle in self.open().values() {
            if let Handle::Write { writing, opener, is_closed, .. } = &**handle
                && Arc::ptr_eq(writing, of)
                && *opener == by
            {
                closed += u32::from(!is_closed.swap(true, Ordering::Relaxed));
            }
        }
        closed
    }

    /// Lets one go.
    pub fn remove(&self, handle: FileHandle) -> Option<Arc<Handle>> {
        self.open().remove(&handle.0)
    }
}
