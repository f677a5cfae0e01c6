//! What a pack says about itself: its runs, and the lengths and hashes of its chunks.

use crate::Hash;
use crate::pack::{ChunkKind, Coding};

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

    /// One past its last chunk.
    pub fn end_chunk(&self) -> u32 {
        self.first_chunk + self.chunk_count
    }
}

/// The verified table of contents of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub(crate) runs: Vec<Run>,
    pub(crate) hashes: Vec<Hash>,
}

impl Footer {
    /// The runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The hashes of all chunks in order.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// How many chunks the pack has.
    pub fn chunk_count(&self) -> u32 {
        self.hashes.len() as u32
    }

    /// The hash of a chunk.
    pub fn hash(&self, chunk: u32) -> Option<&Hash> {
        self.hashes.get(chunk as usize)
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
        self.hashes.len() * 32 + self.runs.iter().map(|run| size_of::<Run>() + listed(run)).sum::<usize>()
    }
}
