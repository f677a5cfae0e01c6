//! Writing the bytes of one member: pieces in order, joined into extents, built into a tree.

use stdchk_object::member::Tally;
use stdchk_object::tree::{Blob, Extent, Piece, TreeBuilder};
use stdchk_object::{Error, Hash, PackName, PackRef, Result};

use super::unit::{Page, Unit, is_zero};
use super::{ChunkBytes, PartWriter};
use crate::known::Place;

/// A blob in the making.
pub struct BlobWriter {
    tree: TreeBuilder,
    tail: Tail,
    pub tally: Tally,
    first: bool,
}

/// The extent that may still grow.
#[derive(Default)]
struct Tail {
    extent: Option<Extent>,
    /// How many bytes of each of its chunks it has.
    lengths: Vec<u32>,
    /// Where in the last of them it ends, if that is not its end.
    within: Option<u32>,
    hole: u64,
}

/// Bytes of a chunk.
struct Bytes {
    chunk: u32,
    /// Bytes of the chunk before them.
    skip: u32,
    len: u32,
    /// Whether the chunk ends with them.
    is_end: bool,
}

/// An extent is handed on before it has more chunks than this, so that memory stays bounded.
const TAIL_CHUNKS_MAX: usize = 1 << 16;

impl BlobWriter {
    pub fn new(leaf_shift: u8) -> BlobWriter {
        BlobWriter {
            tree: TreeBuilder::new(leaf_shift),
            tail: Tail::default(),
            tally: Tally::default(),
            first: true,
        }
    }

    pub fn hole(&mut self, part: &mut PartWriter, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.end_extent(part)?;
        self.tail.hole += len;
        self.tally.zero += len;
        Ok(())
    }

    fn chunk(&mut self, part: &mut PartWriter, pack: PackName, chunk: u32, len: u32) -> Result<()> {
        self.span(part, pack, Bytes { chunk, skip: 0, len, is_end: true })
    }

    fn span(&mut self, part: &mut PartWriter, pack: PackName, bytes: Bytes) -> Result<()> {
        self.end_hole(part)?;
        let Bytes { chunk, skip, len, is_end } = bytes;
        let count = self.tail.lengths.len();
        let within = self.tail.within;
        let goes_on = |extent: &Extent| {
            let next = extent.chunk + count as u32 - u32::from(within.is_some());
            extent.pack == pack && next == chunk && within.unwrap_or(0) == skip && count < TAIL_CHUNKS_MAX
        };
        if !self.tail.extent.as_ref().is_some_and(goes_on) {
            self.end_extent(part)?;
            self.tail.extent = Some(Extent { pack, chunk, skip, len: 0 });
        }
        let extent = self.tail.extent.as_mut().expect("set above");
        extent.len += u64::from(len);
        match self.tail.lengths.last_mut().filter(|_| self.tail.within.is_some()) {
            Some(last) => *last += len,
            None => self.tail.lengths.push(len),
        }
        self.tail.within = (!is_end).then_some(skip + len);
        Ok(())
    }

    fn end_hole(&mut self, part: &mut PartWriter) -> Result<()> {
        match std::mem::take(&mut self.tail.hole) {
            0 => Ok(()),
            len => {
                let never = |_: &Extent, _: u64| Err(Error::corrupt("a hole has no chunks"));
                self.tree.push(Piece::Hole(len), part, &never)
            }
        }
    }

    fn end_extent(&mut self, part: &mut PartWriter) -> Result<()> {
        let Some(extent) = self.tail.extent.take() else { return Ok(()) };
        let lengths = std::mem::take(&mut self.tail.lengths);
        self.tail.within = None;
        part.refer_chunks(extent.pack, extent.chunk, lengths.len() as u32, extent.len);
        // Splits come in order, so what was passed need not be summed again.
        let passed = std::cell::Cell::new((0usize, 0u64));
        let chunk_at = |rest: &Extent, bytes: u64| {
            let target = extent.len - rest.len + bytes;
            let (mut index, mut start) = passed.get();
            while start + u64::from(lengths[index]) <= target {
                start += u64::from(lengths[index]);
                index += 1;
            }
            passed.set((index, start));
            let skip = if index == 0 { extent.skip } else { 0 };
            Ok((extent.chunk + index as u32, (target - start) as u32 + skip))
        };
        self.tree.push(Piece::Data(extent), part, &chunk_at)
    }

    /// A chunk that the parent does not have at this place: found elsewhere, or stored, perhaps as a difference to `base`.
    pub fn other(
        &mut self,
        part: &mut PartWriter,
        hash: Hash,
        bytes: ChunkBytes,
        base: Option<(PackRef, u32)>,
    ) -> Result<()> {
        let len = bytes.len() as u32;
        let first = std::mem::take(&mut self.first);
        let place = match part.known.find(&hash, len) {
            Some(place) => {
                self.tally.shared += u64::from(len);
                place
            }
            None => {
                self.tally.new += u64::from(len);
                part.store_data(hash, bytes, base, first)?
            }
        };
        self.place(part, place, len)
    }

    fn place(&mut self, part: &mut PartWriter, place: Place, len: u32) -> Result<()> {
        let pack = part.known.pack(place);
        self.chunk(part, pack, place.chunk, len)
    }

    /// Looks up what may lie elsewhere in the repository, before any of it is stored.
    pub fn consult(&self, part: &mut PartWriter, hashes: impl Iterator<Item = (Hash, u32)>) {
        if part.index.is_none() {
            return;
        }
        let mut first = self.first;
        for (hash, len) in hashes {
            if (std::mem::take(&mut first) || crate::index::is_sampled(&hash))
                && part.known.find(&hash, len).is_none()
            {
                part.consult_index(&hash);
            }
        }
    }

    /// Takes a stretch that was looked at.
    pub fn unit(&mut self, part: &mut PartWriter, unit: Unit) -> Result<()> {
        let others = unit.cuts.iter().filter_map(|cut| match cut.what {
            Page::Other(hash) => Some((hash, cut.len)),
            _ => None,
        });
        if others.clone().next().is_some() {
            part.load_parent();
        }
        self.consult(part, others);
        unit.leaf.into_iter().for_each(|node| part.know_node(node));
        let keep = part.may_keep(&unit.buffer);
        let (mut start, mut known) = (0, None);
        for cut in &unit.cuts {
            match cut.what {
                Page::Zero => self.hole(part, u64::from(cut.len))?,
                Page::Same(pack, chunk) => {
                    let open = &unit.packs[pack as usize];
                    if known.replace(pack) != Some(pack) {
                        part.know_pack(open);
                    }
                    self.first = false;
                    self.tally.shared += u64::from(cut.len);
                    self.chunk(part, open.pack.name, chunk, cut.len)?;
                }
                Page::Spans(first, count) => {
                    self.first = false;
                    self.tally.shared += u64::from(cut.len);
                    for span in &unit.spans[first as usize..][..count as usize] {
                        let open = &unit.packs[span.slot as usize];
                        if known.replace(span.slot) != Some(span.slot) {
                            part.know_pack(open);
                        }
                        let chunk_len = open.footer.run_of(span.chunk).map(|run| run.chunk_len(span.chunk));
                        let is_end = chunk_len == Some(span.skip + span.len);
                        let bytes = Bytes { chunk: span.chunk, skip: span.skip, len: span.len, is_end };
                        self.span(part, open.pack.name, bytes)?;
                    }
                }
                Page::Other(hash) => {
                    let range = start..start + cut.len as usize;
                    start = range.end;
                    let buffer = unit.buffer.clone();
                    let bytes = if keep {
                        ChunkBytes::Kept(buffer, range)
                    } else {
                        ChunkBytes::Copied(buffer, range)
                    };
                    let base = unit.base_of(&part.vault, cut);
                    self.other(part, hash, bytes, base)?;
                }
            }
        }
        Ok(())
    }

    /// Takes content-defined chunks that lie one after the other in a buffer.
    pub fn chunks(
        &mut self,
        part: &mut PartWriter,
        buffer: std::sync::Arc<crate::buffers::Buffer>,
        chunks: &[(u32, Hash)],
    ) -> Result<()> {
        part.load_parent();
        self.consult(part, chunks.iter().map(|&(len, hash)| (hash, len)));
        let keep =
            part.may_keep(&buffer) && chunks.iter().all(|&(len, hash)| part.known.find(&hash, len).is_none());
        let mut start = 0;
        for &(len, hash) in chunks {
            let range = start..start + len as usize;
            start = range.end;
            if is_zero(&buffer[range.clone()]) {
                self.hole(part, u64::from(len))?;
                continue;
            }
            let buffer = buffer.clone();
            let bytes =
                if keep { ChunkBytes::Kept(buffer, range) } else { ChunkBytes::Copied(buffer, range) };
            self.other(part, hash, bytes, None)?;
        }
        Ok(())
    }

    pub fn finish(mut self, part: &mut PartWriter) -> Result<(Blob, Tally)> {
        self.end_hole(part)?;
        self.end_extent(part)?;
        Ok((self.tree.finish(part)?, self.tally))
    }
}
