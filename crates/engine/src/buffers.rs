//! A fixed number of buffers: whoever wants one waits until there is one. This is what bounds the pipeline.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex};

use crate::vault::locked;

/// The buffers.
#[derive(Clone)]
pub struct Buffers(Arc<Supply>);

struct Supply {
    /// The one given back last is taken first: most of it is still in the processor's cache.
    free: Mutex<Vec<Vec<u8>>>,
    given_back: Condvar,
    /// Memory of loose buffers that are gone, to be used again: memory that was never touched is slow to get.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// Loose buffers whose memory is kept.
const SPARE_MAX: usize = 16;

impl Buffers {
    /// `count` buffers; their memory is taken when they are first used.
    pub fn new(count: usize) -> Buffers {
        let free = Mutex::new(vec![Vec::new(); count]);
        Buffers(Arc::new(Supply { free, given_back: Condvar::new(), spare: Mutex::default() }))
    }

    /// A buffer without bytes; waits for one to be given back.
    pub fn take(&self) -> Buffer {
        let mut free = locked(&self.0.free);
        let bytes = loop {
            match free.pop() {
                Some(bytes) => break bytes,
                None => free = self.0.given_back.wait(free).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        };
        Buffer { bytes, len: 0, loose: false, supply: self.0.clone() }
    }
}

/// A buffer that returns when it is dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    loose: bool,
    supply: Arc<Supply>,
}

impl Buffer {
    /// Makes it so long, with whatever is in it.
    pub fn set_len(&mut self, len: usize) {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        self.len = len;
    }

    /// Adds bytes at its end. Memory that is not needed is never touched.
    pub fn append(&mut self, bytes: &[u8]) {
        let (over, beyond) = bytes.split_at(bytes.len().min(self.bytes.len() - self.len));
        self.bytes[self.len..self.len + over.len()].copy_from_slice(over);
        self.bytes.extend_from_slice(beyond);
        self.len += bytes.len();
    }

    /// The same bytes, and room for few more, in a loose buffer: one that nobody waits for.
    pub fn loosen(self) -> Buffer {
        let fits = |spare: &Vec<u8>| (self.len..=self.len * 2).contains(&spare.capacity());
        let mut spare = locked(&self.supply.spare);
        let at = spare.iter().position(fits);
        let mut bytes = at.map(|at| spare.swap_remove(at)).unwrap_or_default();
        drop(spare);
        bytes.clear();
        bytes.extend_from_slice(&self);
        Buffer { bytes, len: self.len, loose: true, supply: self.supply.clone() }
    }

    /// Whether nobody waits for it.
    pub fn is_loose(&self) -> bool {
        self.loose
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
        let bytes = std::mem::take(&mut self.bytes);
        if self.loose {
            let mut spare = locked(&self.supply.spare);
            if spare.len() < SPARE_MAX {
                spare.push(bytes);
            }
        } else {
            locked(&self.supply.free).push(bytes);
            self.supply.given_back.notify_one();
        }
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
