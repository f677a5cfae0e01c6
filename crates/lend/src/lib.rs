//! Memory of a caller that threads may read for as long as the call lasts. Threads that live longer than a call take nothing that is borrowed;
//! what is lent here looks to them as if it were theirs, and the call does not end before the last of them has given it back.
#![deny(unsafe_code)]

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that are lent. Clones go to other threads; all must be dropped before the call can end in which they were lent.
#[derive(Clone)]
pub struct Lent(Arc<Loan>);

/// Does `work` with `bytes`, and waits until nobody has any of them, also where `work` panics. If it keeps some, this never ends.
pub fn lend<R>(bytes: &[u8], work: impl FnOnce(Lent) -> R) -> R {
    let returned = Arc::<Returned>::default();
    // Dropped last, whatever happens: that is what keeps `bytes` borrowed until the loan is over.
    let _all = Waiting(returned.clone());
    work(Lent(Arc::new(Loan { bytes: island::Bytes::of(bytes), returned })))
}

struct Loan {
    bytes: island::Bytes,
    returned: Arc<Returned>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        *self.returned.lock() = true;
        self.returned.changed.notify_all();
    }
}

/// Whether a loan is over.
#[derive(Default)]
struct Returned {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Returned {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Waiting(Arc<Returned>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let waited = self.0.changed.wait_while(self.0.lock(), |is_over| !*is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes.get()
    }
}

#[allow(unsafe_code)]
mod island {
    /// Bytes of which whoever has this says how long they live.
    pub struct Bytes(*const [u8]);

    // SAFETY: they are only ever read, as `&[u8]`, which may go to any thread.
    unsafe impl Send for Bytes {}
    // SAFETY: as above.
    unsafe impl Sync for Bytes {}

    impl Bytes {
        /// To be had by a `Loan` only.
        pub fn of(bytes: &[u8]) -> Bytes {
            Bytes(bytes)
        }

        pub fn get(&self) -> &[u8] {
            // SAFETY: a `Loan` has this, `lend` made it of bytes that it borrows, and does not return or unwind before the loan was dropped.
            unsafe { &*self.0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_threads_read_is_there_until_they_have_read_it() {
        let mut readers = Vec::new();
        let mut bytes: Vec<u8> = (0..100).collect();
        let half = lend(&bytes, |lent| {
            for _ in 0..3 {
                let lent = lent.clone();
                readers.push(thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    lent.iter().map(|&byte| u32::from(byte)).sum::<u32>()
                }));
            }
            lent.len() / 2
        });
        // They need not have ended, but have nothing any more.
        bytes.fill(0);
        drop(bytes);
        assert_eq!(half, 50);
        assert!(readers.into_iter().all(|reader| reader.join().expect("it sums") == 4950));
    }

    #[test]
    fn a_panic_waits_too() {
        static WAS_READ: AtomicBool = AtomicBool::new(false);
        let bytes = vec![7; 10];
        let ended = catch_unwind(AssertUnwindSafe(|| {
            lend(&bytes, |lent| {
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    WAS_READ.store(lent[9] == 7, Ordering::Relaxed);
                });
                panic!("as planned");
            })
        }));
        assert!(ended.is_err());
        assert!(WAS_READ.load(Ordering::Relaxed));
    }

    #[test]
    fn nothing_can_be_lent() {
        assert!(lend(&[], |lent| lent.is_empty()));
    }
}
