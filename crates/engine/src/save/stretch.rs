//! The bytes of a stretch while it is looked at: all of them in their places, or, where most of them are known already,
//! only those that are not, one after the other. Then what is known never leaves the processor's cache.

use std::ops::Range;
use std::sync::Arc;

use stdchk_object::Result;

use crate::buffers::Buffer;

/// Reads the bytes at an offset of the stretch.
type ReadAt<'r> = dyn FnMut(usize, &mut [u8]) -> Result<()> + 'r;

/// Where bytes are that are not in the buffer.
enum From<'r> {
    /// All are in the buffer.
    Nowhere,
    /// To be read into it, each to its place.
    Read(&'r mut ReadAt<'r>),
    /// To be read into the room; those that are kept go into the buffer.
    Passing(&'r mut ReadAt<'r>, &'r mut Vec<u8>),
    /// In memory that does not change meanwhile; those that are kept go into the buffer.
    Memory(&'r [u8]),
}

pub struct Stretch<'r> {
    len: usize,
    buffer: Buffer,
    from: From<'r>,
}

impl<'r> Stretch<'r> {
    /// A stretch that is in the buffer.
    pub fn there(buffer: Buffer) -> Stretch<'r> {
        Stretch { len: buffer.len(), buffer, from: From::Nowhere }
    }

    /// A stretch of `len` bytes that is read as it is looked at. With `room` only what is kept goes into the buffer.
    pub fn to_be_read(
        mut buffer: Buffer,
        len: usize,
        room: Option<&'r mut Vec<u8>>,
        read: &'r mut ReadAt<'r>,
    ) -> Stretch<'r> {
        buffer.set_len(if room.is_some() { 0 } else { len });
        let from = match room {
            Some(room) => From::Passing(read, room),
            None => From::Read(read),
        };
        Stretch { len, buffer, from }
    }

    /// A stretch that is looked at where it lies. Only what is kept goes into the buffer.
    pub fn in_memory(mut buffer: Buffer, bytes: &'r [u8]) -> Stretch<'r> {
        buffer.set_len(0);
        Stretch { len: bytes.len(), buffer, from: From::Memory(bytes) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The next bytes that are looked at, and where to add those of them that are kept, unless they are kept anyway.
    pub fn next(&mut self, at: usize, len: usize) -> Result<(&[u8], Option<&mut Buffer>)> {
        let to = at + len;
        match &mut self.from {
            From::Nowhere => Ok((&self.buffer[at..to], None)),
            From::Read(read) => {
                read(at, &mut self.buffer[at..to])?;
                Ok((&self.buffer[at..to], None))
            }
            From::Passing(read, room) => {
                if room.len() < len {
                    room.resize(len, 0);
                }
                read(at, &mut room[..len])?;
                Ok((&room[..len], Some(&mut self.buffer)))
            }
            From::Memory(bytes) => Ok((&bytes[at..to], Some(&mut self.buffer))),
        }
    }

    /// What is in the buffer so far.
    pub fn kept(&self) -> &[u8] {
        &self.buffer
    }

    /// Whether only what is new is kept.
    pub fn is_packed(&self) -> bool {
        matches!(self.from, From::Passing(..) | From::Memory(_))
    }

    /// Whether nothing has to be read for a look at its bytes.
    pub fn lies_in_memory(&self) -> bool {
        matches!(self.from, From::Memory(_))
    }

    /// All was read that is not packed: whoever looks again sees the same bytes.
    pub fn end_reading(&mut self) {
        if !self.is_packed() {
            self.from = From::Nowhere;
        }
    }

    /// Reads all its bytes anew, and keeps all of them from then on. What was seen of it before does not count any more: it may
    /// have changed since.
    pub fn unpack(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.from, From::Nowhere) {
            From::Passing(read, _) => {
                self.buffer.set_len(self.len);
                read(0, &mut self.buffer)?;
            }
            From::Memory(bytes) => {
                self.buffer.set_len(0);
                self.buffer.append(bytes);
            }
            all_there => self.from = all_there,
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
        if !self.is_packed() {
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
