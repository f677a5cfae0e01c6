//! What a user can set about a save.

use stdchk_codec::{Cutter, Prefer, Preference};
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
    /// Whether packs are synced as they are written.
    pub durable: bool,
    /// How many restores come to a save: for the choice of a coding, which both wait for.
    pub restarts: f64,
    /// Whether packs are named so that they lie close to here, where the store has such places.
    pub local_first: bool,
}

/// The default budget.
pub const MEMORY: usize = 256 << 20;
/// The smallest budget that works.
pub const MEMORY_MIN: usize = 64 << 20;

impl Default for Options {
    fn default() -> Options {
        Options {
            chunking: ChunkingChoice::Auto,
            coding: Preference::Auto(Prefer::default()),
            memory: MEMORY,
            durable: true,
            restarts: 0.0,
            local_first: false,
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
        let least = self.memory_min();
        if least > self.memory {
            let text = format!("chunks of that size need a memory budget of {} MiB", least >> 20);
            return Err(Error::invalid(text));
        }
        Ok(())
    }

    /// The smallest budget that works with chunks of that size.
    pub fn memory_min(&self) -> usize {
        (self.unit() * BUFFERS_MIN * 2).max(MEMORY_MIN)
    }

    /// What the pipeline reads at once: more than usual where single chunks are that long.
    pub(crate) fn unit(&self) -> usize {
        match self.chunking {
            ChunkingChoice::Auto => UNIT,
            ChunkingChoice::Fixed(chunking) => unit_for(chunking),
        }
    }

    /// Buffers of [`Options::unit`] bytes that the pipeline may hold: half of the budget. The rest is for compressed
    /// runs on their way out, fingerprints, footers and decompressed runs.
    pub(crate) fn buffer_count(&self) -> usize {
        (self.memory / 2 / self.unit()).max(BUFFERS_MIN)
    }

    /// Buffers, at least half full, that the pack which is being filled may keep. Packs on their way out give theirs back by themselves.
    pub(crate) fn buffers_kept(&self) -> usize {
        (2 * self.pack_bytes()).div_ceil(self.unit()) + 1
    }

    /// Units that may be under way: together with the pack that is being filled they leave one buffer free, so that
    /// whoever takes one never waits for itself.
    pub(crate) fn window(&self, workers: usize) -> usize {
        (self.buffer_count() - self.buffers_kept() - 1).clamp(1, 2 * workers + 2)
    }

    /// Raw bytes at which a pack is cut. A pack that is being filled holds its buffers, so a few must fit.
    pub(crate) fn pack_bytes(&self) -> usize {
        (self.buffer_count() * self.unit() / 6).clamp(4 << 20, 16 << 20)
    }

    /// The same for a writer's `count`th pack, from 0 on. The first ones are small, so that the store is not idle while they are filled.
    pub(crate) fn pack_bytes_of(&self, count: u32) -> u64 {
        (self.pack_bytes() as u64).min((4 << 20) << count.min(10))
    }

    /// Fingerprints kept at hand.
    pub(crate) fn known_bytes(&self) -> usize {
        self.memory / 8
    }

    /// Packs that may wait to be written.
    pub(crate) const PACKS_QUEUED: usize = 8;
}

/// Fewer buffers would not keep the pipeline going.
const BUFFERS_MIN: usize = 8;

/// What must be read at once for a chunking.
pub(crate) fn unit_for(chunking: Chunking) -> usize {
    match chunking {
        Chunking::Page(size) => UNIT.max(size as usize),
        Chunking::Cdc(average) => UNIT.max(8 * average as usize),
    }
}

/// What the pipeline reads at once.
pub(crate) const UNIT: usize = 4 << 20;
/// Raw bytes of a run.
pub(crate) const RUN_BYTES: usize = 256 << 10;
