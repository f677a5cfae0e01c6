//! Memory that is watched, and what it was when it was saved or restored (docs/CAPTURE.md).

use std::ops::{Deref, DerefMut};

use stdchk_engine::{PartWriter, Past, Stretch};
use stdchk_object::{Error, Kind, Result};

use crate::checkpoint::{Members, RankedMember};

/// Bytes of which the kernel remembers where they were written to, so that a save looks at nothing else. They begin at a page, and are used like any `&mut [u8]`.
///
/// It is private memory of this process; a child after a `fork` has a copy of its own, all of which counts as written. Devices that were given the address of it before a save must
/// not write to it after (RDMA, registered buffers): the kernel does not see that.
#[derive(Debug)]
pub struct Memory {
    bytes: stdchk_capture::Memory,
    past: Past,
}

impl Memory {
    /// So many zeros. Fails with [`Kind::Full`] where the machine does not give that much.
    pub fn zeroed(len: usize) -> Result<Memory> {
        let bytes = stdchk_capture::Memory::zeroed(len).map_err(|error| {
            Error::io(format!("cannot get {len} bytes of memory"), error).with_kind(Kind::Full)
        })?;
        Ok(Memory { bytes, past: Past::new(len, stdchk_capture::page_bytes()) })
    }

    /// Whether the kernel remembers where it was written to, as of the last save of it. If not, saves find out by looking at all of it.
    pub fn is_watched(&self) -> bool {
        self.bytes.is_watched()
    }

    /// Adds it as a member.
    pub(crate) fn add_to(&mut self, part: &mut PartWriter, name: &str) -> Result<()> {
        self.ask();
        part.add_watched(name, &self.bytes, &mut self.past)
    }

    /// Asks where it was written to since this was asked last.
    fn ask(&mut self) {
        self.bytes.written(&mut |range| self.past.wrote(range));
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Members<'_> {
    /// A member's bytes in memory of their own, all verified. The next save of it knows what it was.
    pub fn memory(&self, member: &RankedMember) -> Result<Memory> {
        let blob = &self.content(member)?.blob;
        let len = usize::try_from(blob.len).map_err(|_| {
            Error::new(Kind::Full, format!("{} bytes are more than can be addressed", blob.len))
        })?;
        let mut memory = Memory::zeroed(len)?;
        let mut at = 0;
        self.read_stretches(member, &mut |stretch| {
            at += match stretch {
                Stretch::Data(bytes) => {
                    memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
                Stretch::Zeros(len) => len as usize,
            };
            Ok(())
        })?;
        memory.ask();
        memory.past.is_now(blob);
        Ok(memory)
    }
}
