//! A fixed number of buffers: whoever wants one waits until there is one. This is what bounds the pipeline.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The buffers.
#[derive(Clone)]
pub struct Buffers(Arc<Supply>);

struct Supply {
    /// The one given back last is taken first: most of it is still in the processor's cache.
    free: Mutex<Vec<Vec<u8>>>,
    given_back: Condvar,
}

impl Supply {
    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // A list of buffers is whole after every statement.
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Buffers {
    /// `count` buffers; their memory is taken when they are first used.
    pub fn new(count: usize) -> Buffers {
        let free = Mutex::new(vec![Vec::new(); count]);
        Buffers(Arc::new(Supply { free, given_back: Condvar::new() }))
    }

    /// A buffer of `len` bytes with whatever is in it; waits for one to be given back.
    pub fn take(&self, len: usize) -> Buffer {
        let mut free = self.0.free();
        let mut bytes = loop {
            match free.pop() {
                Some(bytes) => break bytes,
                None => free = self.0.given_back.wait(free).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        };
        drop(free);
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        Buffer { bytes, len, supply: self.0.clone() }
    }
}

/// A buffer that returns when it is dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    supply: Arc<Supply>,
}

impl Buffer {
    /// Makes it shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.supply.free().push(std::mem::take(&mut self.bytes));
        self.supply.given_back.notify_one();
    }
}

/// Bytes that several owners read: a part of a shared buffer, or a vector of their own.
pub enum Bytes {
    /// A range of a buffer.
    Shared(Arc<Buffer>, std::ops::Range<usize>),
    /// Gathered from several places.
    Own(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Shared(buffer, range) => &buffer[range.clone()],
            Bytes::Own(bytes) => bytes,
        }
    }
}
