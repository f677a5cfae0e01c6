//! What a user can set about a save.

use stdchk_codec::{Cutter, Preference};
use stdchk_object::member::Chunking;
use stdchk_object::pack::CHUNK_BYTES_MAX;
use stdchk_object::{Error, Result};

/// How members are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkingChoice {
    /// Look at the data.
    Auto,
    /// Always this.
    Fixed(Chunking),
}

impl ChunkingChoice {
    /// Checks sizes.
    pub fn check(self) -> Result<ChunkingChoice> {
        match self {
            ChunkingChoice::Fixed(Chunking::Page(size))
                if !size.is_power_of_two() || !(512..=CHUNK_BYTES_MAX as u32).contains(&size) =>
            {
                let text = format!("page:{size}: a page must be a power of two from 512 bytes to 16 MiB");
                Err(Error::invalid(text))
            }
            ChunkingChoice::Fixed(Chunking::Cdc(size)) => Cutter::new(size).map(|_| self),
            choice => Ok(choice),
        }
    }
}

/// What a user can set about a save.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How members are cut into chunks.
    pub chunking: ChunkingChoice,
    /// How runs are compressed.
    pub coding: Preference,
    /// Bytes of memory to use, about.
    pub memory: usize,
    /// Threads that hash and compress.
    pub threads: usize,
    /// Whether packs are synced as they are written.
    pub durable: bool,
}

/// The default budget.
pub const MEMORY: usize = 256 << 20;
/// The smallest budget that works.
pub const MEMORY_MIN: usize = 64 << 20;

impl Default for Options {
    fn default() -> Options {
        Options {
            chunking: ChunkingChoice::Auto,
            coding: Preference::Auto,
            memory: MEMORY,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            durable: true,
        }
    }
}

impl Options {
    /// Checks everything.
    pub fn check(&self) -> Result<()> {
        self.chunking.check()?;
        if self.memory < MEMORY_MIN {
            let text = format!("a memory budget of {} bytes is too small; 64 MiB is the least", self.memory);
            return Err(Error::invalid(text));
        }
        Ok(())
    }

    /// Buffers of [`UNIT`] bytes that the pipeline may hold: half of the budget. The rest is for compressed
    /// runs on their way out, fingerprints, footers and decompressed runs.
    pub(crate) fn buffer_count(&self) -> usize {
        (self.memory / 2 / UNIT).max(8)
    }

    /// Raw bytes at which a pack is cut. A pack that is being filled holds its buffers, so a few must fit.
    pub(crate) fn pack_bytes(&self) -> usize {
        (self.buffer_count() * UNIT / 6).clamp(4 << 20, 16 << 20)
    }

    /// Fingerprints kept at hand.
    pub(crate) fn known_bytes(&self) -> usize {
        self.memory / 8
    }

    /// Packs that may wait to be written.
    pub(crate) const PACKS_QUEUED: usize = 2;
}

/// What the pipeline reads at once.
pub(crate) const UNIT: usize = 4 << 20;
/// Raw bytes of a run.
pub(crate) const RUN_BYTES: usize = 256 << 10;
