//! A fixed number of buffers: whoever wants one waits until there is one. This is what bounds the pipeline.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

/// The buffers.
#[derive(Clone)]
pub struct Buffers {
    free: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
}

impl Buffers {
    /// `count` buffers; their memory is taken when they are first used.
    pub fn new(count: usize) -> Buffers {
        let (back, free) = bounded(count);
        for _ in 0..count {
            back.send(Vec::new()).expect("the channel holds all of them");
        }
        Buffers { free, back }
    }

    /// A buffer of `len` bytes with whatever is in it; waits for one to be given back.
    pub fn take(&self, len: usize) -> Buffer {
        let mut bytes = self.free.recv().expect("this struct holds a sender, so the channel stays open");
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        Buffer { bytes, len, back: self.back.clone() }
    }
}

/// A buffer that returns when it is dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    back: Sender<Vec<u8>>,
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
        let _ = self.back.send(std::mem::take(&mut self.bytes));
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
