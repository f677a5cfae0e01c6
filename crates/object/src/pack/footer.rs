//! What a pack says about itself: its runs, the lengths of its chunks, and what their hashes are.

use std::ops::Range;

use super::{ChunkKind, Coding, HASH_BYTES, HEADER_BYTES};
use crate::hash::plain;
use crate::{Hash, PackRef};

/// One run: whole chunks that were compressed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What its chunks are.
    pub kind: ChunkKind,
    /// How it is stored.
    pub coding: Coding,
    /// Where it lies in the pack.
    pub offset: u64,
    /// Its length in the pack.
    pub stored_len: u32,
    /// Its length before compression: the sum of its chunks.
    pub raw_len: u32,
    /// The index of its first chunk in the pack.
    pub first_chunk: u32,
    /// How many chunks it has.
    pub chunk_count: u32,
    /// Half of the hash of the stored bytes, where a codec or filter was used.
    pub stored_hash: Option<[u8; 16]>,
    pub(crate) lengths: Lengths,
    /// What a delta was subtracted from, for all its chunks in order; empty where it is none.
    pub(crate) base: Vec<BaseSlot>,
}

/// Chunks of a run, and what they were subtracted from: as many chunks of the same lengths together, side by side in a pack, from the
/// given one on; or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseSpan {
    /// The pack, and its first chunk that counts.
    pub at: Option<(PackRef, u32)>,
    /// How many chunks.
    pub count: u32,
}

/// The same with the pack as an index into the footer's list, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseSlot {
    pub slot: u32,
    pub first: u32,
    pub count: u32,
}

/// The lengths of a run's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// Every chunk but the last has the first length; the last has the second.
    Uniform(u32, u32),
    /// `starts[i]` is where chunk i begins in the raw run; one more at the end.
    Listed(Vec<u32>),
}

impl Run {
    /// Where chunk `index` (counted through the pack) begins in the raw run.
    pub fn chunk_start(&self, index: u32) -> u32 {
        let i = index - self.first_chunk;
        match &self.lengths {
            Lengths::Uniform(each, _) => i * each,
            Lengths::Listed(starts) => starts[i as usize],
        }
    }

    /// The length of chunk `index` (counted through the pack).
    pub fn chunk_len(&self, index: u32) -> u32 {
        let i = index - self.first_chunk;
        match &self.lengths {
            Lengths::Uniform(each, last) => {
                if i + 1 == self.chunk_count {
                    *last
                } else {
                    *each
                }
            }
            Lengths::Listed(starts) => starts[i as usize + 1] - starts[i as usize],
        }
    }

    /// Of chunks `from..end` those that it takes to have `wanted` bytes, or all: one past the last, and how many bytes they have.
    pub fn chunks_for(&self, from: u32, end: u32, wanted: u64) -> (u32, u64) {
        let start = self.chunk_start(from);
        let bytes_to = |last: u32| u64::from(self.chunk_start(last) + self.chunk_len(last) - start);
        let (mut low, mut high) = (from, end);
        while low < high {
            let middle = low + (high - low) / 2;
            if bytes_to(middle) < wanted { low = middle + 1 } else { high = middle }
        }
        let to = (low + 1).min(end);
        (to, if to > from { bytes_to(to - 1) } else { 0 })
    }

    /// One past its last chunk.
    pub fn end_chunk(&self) -> u32 {
        self.first_chunk + self.chunk_count
    }
}

/// The verified table of contents of a pack. The hashes of its chunks lie before it, and are read only by those who need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub(crate) bases: Vec<PackRef>,
    pub(crate) runs: Vec<Run>,
    /// The plain hash of all the hashes.
    pub(crate) seal: Hash,
}

impl Footer {
    /// The packs that deltas in this pack were subtracted from. Whoever refers to such a delta refers to its bases, too.
    pub fn bases(&self) -> &[PackRef] {
        &self.bases
    }

    /// What the chunks of a run were subtracted from, in order.
    pub fn base_of<'f>(&'f self, run: &'f Run) -> impl Iterator<Item = BaseSpan> + 'f {
        run.base.iter().map(|base| BaseSpan {
            at: (base.slot as usize).checked_sub(1).map(|slot| (self.bases[slot], base.first)),
            count: base.count,
        })
    }

    /// What a chunk was subtracted from.
    pub fn base_of_chunk(&self, chunk: u32) -> Option<(PackRef, u32)> {
        let run = self.run_of(chunk).filter(|run| run.coding.delta)?;
        let mut left = chunk - run.first_chunk;
        let span = self.base_of(run).find(|span| {
            let here = left < span.count;
            if !here {
                left -= span.count;
            }
            here
        })?;
        span.at.map(|(pack, first)| (pack, first + left))
    }

    /// The runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Where the hashes of all chunks lie in the pack: behind the last run.
    pub fn hashes_range(&self) -> Range<u64> {
        let start =
            self.runs.last().map_or(HEADER_BYTES as u64, |run| run.offset + u64::from(run.stored_len));
        start..start + u64::from(self.chunk_count()) * HASH_BYTES as u64
    }

    /// The hashes of all chunks in order, if these bytes are those that this footer vouches for.
    pub fn open_hashes(&self, bytes: &[u8]) -> Option<Vec<Hash>> {
        let (hashes, rest) = bytes.as_chunks();
        let fit = hashes.len() == self.chunk_count() as usize && rest.is_empty() && plain(bytes) == self.seal;
        fit.then(|| hashes.iter().copied().map(Hash).collect())
    }

    /// How many chunks the pack has.
    pub fn chunk_count(&self) -> u32 {
        self.runs.last().map_or(0, Run::end_chunk)
    }

    /// The index of the run that holds a chunk.
    pub fn run_index(&self, chunk: u32) -> Option<usize> {
        let after = self.runs.partition_point(|run| run.first_chunk <= chunk);
        let index = after.checked_sub(1)?;
        (chunk < self.runs[index].end_chunk()).then_some(index)
    }

    /// The run that holds a chunk.
    pub fn run_of(&self, chunk: u32) -> Option<&Run> {
        self.run_index(chunk).map(|index| &self.runs[index])
    }

    /// Bytes that this table takes in memory, for budgets.
    pub fn memory_bytes(&self) -> usize {
        let listed = |run: &Run| match &run.lengths {
            Lengths::Uniform(..) => 0,
            Lengths::Listed(starts) => starts.len() * 4,
        };
        let bases = self.bases.len() * size_of::<PackRef>();
        let of_run = |run: &Run| size_of::<Run>() + listed(run) + run.base.len() * size_of::<BaseSlot>();
        bases + self.runs.iter().map(of_run).sum::<usize>()
    }
}
