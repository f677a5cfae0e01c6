//! The bytes of a stretch while it is looked at: all of them in their places, or, where most of them are known already,
//! only those that are not, one after the other. Then what is known never leaves the processor's cache.

use std::ops::Range;
use std::sync::Arc;

use stdchk_object::Result;

use crate::buffers::Buffer;

/// Reads the bytes at an offset of the stretch.
type ReadAt<'r> = dyn FnMut(usize, &mut [u8]) -> Result<()> + 'r;

pub struct Stretch<'r> {
    len: usize,
    buffer: Buffer,
    /// How to read what is not in the buffer yet.
    read: Option<&'r mut ReadAt<'r>>,
    /// Where bytes are read that may not have to be kept.
    room: Option<&'r mut Vec<u8>>,
}

impl<'r> Stretch<'r> {
    /// A stretch that is in the buffer.
    pub fn there(buffer: Buffer) -> Stretch<'r> {
        Stretch { len: buffer.len(), buffer, read: None, room: None }
    }

    /// A stretch of `len` bytes that is read as it is looked at. With `room` only what is kept goes into the buffer.
    pub fn to_be_read(
        mut buffer: Buffer,
        len: usize,
        room: Option<&'r mut Vec<u8>>,
        read: &'r mut ReadAt<'r>,
    ) -> Stretch<'r> {
        buffer.set_len(if room.is_some() { 0 } else { len });
        Stretch { len, buffer, read: Some(read), room }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The next bytes that are looked at, and where to add those of them that are kept, unless they are kept anyway.
    pub fn next(&mut self, at: usize, len: usize) -> Result<(&[u8], Option<&mut Buffer>)> {
        let to = at + len;
        match (&mut self.read, &mut self.room) {
            (None, _) => Ok((&self.buffer[at..to], None)),
            (Some(read), None) => {
                read(at, &mut self.buffer[at..to])?;
                Ok((&self.buffer[at..to], None))
            }
            (Some(read), Some(room)) => {
                if room.len() < len {
                    room.resize(len, 0);
                }
                read(at, &mut room[..len])?;
                Ok((&room[..len], Some(&mut self.buffer)))
            }
        }
    }

    /// Whether only what is new is kept.
    pub fn is_packed(&self) -> bool {
        self.room.is_some()
    }

    /// All was read that is not packed: whoever looks again sees the same bytes.
    pub fn end_reading(&mut self) {
        if !self.is_packed() {
            self.read = None;
        }
    }

    /// Reads all its bytes anew, and keeps all of them from then on. What was seen of it before does not count any more: it may
    /// have changed since.
    pub fn unpack(&mut self) -> Result<()> {
        if let (Some(read), Some(_)) = (self.read.take(), self.room.take()) {
            self.buffer.set_len(self.len);
            read(0, &mut self.buffer)?;
        }
        Ok(())
    }

    /// All its bytes, if it is not packed and was looked at.
    pub fn whole(&self) -> &[u8] {
        debug_assert!(!self.is_packed());
        &self.buffer
    }

    /// What is kept: the bytes of these ranges, one after the other. Where that is little, it does not hold up the supply
    /// of buffers.
    pub fn keep(mut self, ranges: impl Iterator<Item = Range<usize>>) -> Arc<Buffer> {
        if self.room.is_none() {
            let mut end = 0;
            for range in ranges {
                let len = range.len();
                if end < range.start {
                    self.buffer.copy_within(range, end);
                }
                end += len;
            }
            self.buffer.set_len(end);
        }
        let little = self.buffer.len() * 2 < self.len;
        Arc::new(if little { self.buffer.loosen() } else { self.buffer })
    }
}
