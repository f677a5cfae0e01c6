//! Extents as chunks: which ones, where, and their bytes.

use std::ops::Range;
use std::sync::Arc;

use stdchk_object::pack::{ChunkKind, Run};
use stdchk_object::tree::Extent;
use stdchk_object::{Error, PackName, Result};

use super::{OpenPack, Roots, Scratch, Vault};

/// Chunks of one run that an extent, or a part of it, consists of.
pub struct Span {
    /// The pack.
    pub open: Arc<OpenPack>,
    /// The run's index in it.
    pub run: usize,
    /// The first chunk.
    pub from: u32,
    /// One past the last chunk.
    pub to: u32,
    /// Bytes of the first chunk that do not belong.
    pub skip: u32,
    /// Bytes that belong.
    pub len: u64,
}

impl Span {
    /// The run.
    pub fn run(&self) -> &Run {
        &self.open.footer.runs()[self.run]
    }

    /// The chunks that have `len` of its bytes from `offset` on.
    pub(super) fn narrowed(self, offset: u64, len: u64) -> Span {
        let run = self.run();
        let start = u64::from(run.chunk_start(self.from)) + u64::from(self.skip) + offset;
        let (mut from, mut to) = (self.from, self.to);
        while u64::from(run.chunk_start(from) + run.chunk_len(from)) <= start {
            from += 1;
        }
        while to > from + 1 && u64::from(run.chunk_start(to - 1)) >= start + len {
            to -= 1;
        }
        let skip = (start - u64::from(run.chunk_start(from))) as u32;
        Span { from, to, skip, len, ..self }
    }

    /// Where it is stored: chunks that are compressed come with all of their run.
    pub(super) fn stored(&self) -> (PackName, Range<u64>) {
        let run = self.run();
        let (start, len) = match run.coding.is_none() {
            true => (run.offset + u64::from(run.chunk_start(self.from)), self.chunk_bytes()),
            false => (run.offset, u64::from(run.stored_len)),
        };
        (self.open.pack.name, start..start + len)
    }

    /// Bytes of its chunks.
    fn chunk_bytes(&self) -> u64 {
        let (run, last) = (self.run(), self.to - 1);
        u64::from(run.chunk_start(last) + run.chunk_len(last) - run.chunk_start(self.from))
    }
}

impl Vault {
    /// Calls `each` for the spans of an extent, in order.
    pub fn spans(
        &self,
        roots: &Roots,
        extent: &Extent,
        mut each: impl FnMut(Span) -> Result<()>,
    ) -> Result<()> {
        let (mut chunk, mut skip, mut left) = (extent.chunk, extent.skip, extent.len);
        while left > 0 {
            let (open, from, count) = self.resolve(roots, extent.pack, chunk)?;
            let run_index = self.run_index(&open, from, ChunkKind::Data)?;
            let run = &open.footer.runs()[run_index];
            let end = run.end_chunk().min(from.saturating_add(count));
            let wanted = u64::from(skip) + left;
            let (to, bytes) = run.chunks_for(from, end, wanted);
            if skip >= run.chunk_len(from) || bytes == 0 {
                let text = format!("an extent of pack {} skips more than its first chunk", extent.pack);
                return Err(Error::corrupt(text));
            }
            let len = (bytes - u64::from(skip)).min(left);
            each(Span { open, run: run_index, from, to, skip, len })?;
            chunk += to - from;
            left -= len;
            skip = 0;
        }
        Ok(())
    }

    pub(super) fn read_span(&self, span: &Span, target: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let run = span.run();
        let start = run.chunk_start(span.from) as usize;
        let skip = span.skip as usize;
        if !run.coding.is_none() {
            let raw = self.run(&span.open, span.run, scratch)?;
            target.copy_from_slice(&raw[start + skip..start + skip + target.len()]);
            return Ok(());
        }
        let whole = span.chunk_bytes() as usize;
        if whole == target.len() {
            return self.read_plain(&span.open, run, span.from, span.to, target);
        }
        // Only whole chunks can be checked: the first and the last are read whole though only a part is wanted.
        let mut bytes = vec![0; whole];
        self.read_plain(&span.open, run, span.from, span.to, &mut bytes)?;
        target.copy_from_slice(&bytes[skip..skip + target.len()]);
        Ok(())
    }
}
