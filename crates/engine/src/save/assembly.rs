//! Packs in the making: runs that are filled, compressed, and at last written.

use std::sync::Arc;

use stdchk_codec::Choice;
use stdchk_object::hash::Domain;
use stdchk_object::pack::{self, CHUNK_BYTES_MAX, ChunkKind, FooterBuilder};
use stdchk_object::{Error, Hash, PackName, PackRef, Result};
use stdchk_store::Store;

use super::base::Base;
use super::coder::Coder;
use super::meter::Meter;
use super::{ChunkBytes, append};
use crate::buffers::{Buffer, Bytes};
use crate::workers::Answer;

/// Raw bytes of a run of metadata.
const META_RUN_BYTES: usize = 128 << 10;

/// A run that is being filled.
pub struct OpenRun {
    pub kind: ChunkKind,
    pub bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
    pub base: Base,
}

impl OpenRun {
    /// As it will be stored, `packed`.
    pub fn stored(self, choice: Choice, seconds: f32, packed: Vec<u8>) -> StoredRun {
        let OpenRun { kind, chunks, base, .. } = self;
        let base = if choice.coding.delta { base } else { Base::default() };
        StoredRun { kind, choice, seconds, bytes: Bytes::Own(packed), chunks, base }
    }

    /// As it is.
    pub fn stored_raw(self, seconds: f32) -> StoredRun {
        let OpenRun { kind, bytes, chunks, .. } = self;
        StoredRun { kind, choice: Choice::NONE, seconds, bytes, chunks, base: Base::default() }
    }
}

/// A run as it will lie in the pack.
pub struct StoredRun {
    kind: ChunkKind,
    choice: Choice,
    /// Seconds that compressing it took.
    seconds: f32,
    bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
    /// If it is a delta.
    base: Base,
}

/// What a run cost.
#[derive(Clone, Copy)]
pub struct RunCost {
    pub choice: Choice,
    pub stored: u32,
    pub raw: u32,
    pub seconds: f32,
}

impl StoredRun {
    fn cost(&self) -> RunCost {
        let raw = self.chunks.iter().map(|&(len, _)| len).sum();
        RunCost { choice: self.choice, stored: self.bytes.len() as u32, raw, seconds: self.seconds }
    }
}

/// A pack in the making.
pub struct Assembly {
    pub name: PackName,
    /// Its index among the known packs.
    pub index: u32,
    runs: Vec<Answer<StoredRun>>,
    open: Option<OpenRun>,
    chunk_count: u32,
    raw_bytes: u64,
    /// How many buffers its runs keep, and the one kept last: chunks come in the order of the buffers.
    kept: usize,
    kept_last: Option<Arc<Buffer>>,
}

/// A pack that was written.
pub struct SealedPack {
    pub pack: PackRef,
    /// What each run cost. The footer itself is not kept: a large save has many.
    pub runs: Vec<RunCost>,
    /// Packs that deltas were subtracted from, with the bytes of each.
    pub bases: Vec<(PackRef, u64)>,
}

impl Assembly {
    pub fn new(name: PackName, index: u32) -> Assembly {
        Assembly {
            name,
            index,
            runs: Vec::new(),
            open: None,
            chunk_count: 0,
            raw_bytes: 0,
            kept: 0,
            kept_last: None,
        }
    }

    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    pub fn buffers_kept(&self) -> usize {
        self.kept
    }

    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Adds a chunk of data, which may be stored as a difference to `base`; the index of the run that it went into.
    pub fn push(
        &mut self,
        hash: Hash,
        chunk: ChunkBytes,
        base: Option<(PackRef, u32)>,
        run_bytes: usize,
        coder: &Coder,
    ) -> usize {
        let len = chunk.len() as u32;
        if let ChunkBytes::Kept(buffer, _) = &chunk
            && !buffer.is_loose()
            && !self.kept_last.as_ref().is_some_and(|last| Arc::ptr_eq(last, buffer))
        {
            self.kept += 1;
            self.kept_last = Some(buffer.clone());
        }
        let full = |run: &OpenRun| run.kind != ChunkKind::Data || run.bytes.len() + len as usize > run_bytes;
        if self.open.as_ref().is_some_and(full) {
            self.close_run(coder);
        }
        let rest = match &mut self.open {
            Some(run) => append(&mut run.bytes, chunk).err(),
            None => Some(chunk),
        };
        if let Some(chunk) = rest {
            self.close_run(coder);
            let bytes = match chunk {
                ChunkBytes::Kept(buffer, range) => Bytes::Shared(buffer, range),
                ChunkBytes::Copied(..) => {
                    // All at once: most such runs are filled to the end.
                    let mut bytes = Vec::with_capacity(run_bytes.max(chunk.len()));
                    bytes.extend_from_slice(chunk.bytes());
                    Bytes::Own(bytes)
                }
            };
            self.open =
                Some(OpenRun { kind: ChunkKind::Data, bytes, chunks: Vec::new(), base: Base::default() });
        }
        let run = self.open.as_mut().expect("opened above");
        run.chunks.push((len, hash));
        run.base.push(base, len);
        self.count(len);
        self.runs.len()
    }

    /// Adds a chunk of metadata; its place.
    pub fn push_meta(&mut self, kind: ChunkKind, bytes: Vec<u8>, coder: &Coder) -> Result<(PackName, u32)> {
        let place = (self.name, self.chunk_count);
        let len = bytes.len();
        if len > CHUNK_BYTES_MAX {
            let text = format!(
                "{kind:?} of {len} bytes is longer than a chunk may be ({CHUNK_BYTES_MAX}): save in several parts"
            );
            return Err(Error::invalid(text));
        }
        let hash = kind.domain().hash(&bytes);
        let full = |run: &OpenRun| run.kind != kind || run.bytes.len() + len > META_RUN_BYTES;
        if self.open.as_ref().is_some_and(full) {
            self.close_run(coder);
        }
        match &mut self.open {
            Some(OpenRun { bytes: Bytes::Own(run), .. }) => run.extend_from_slice(&bytes),
            _ => {
                let (bytes, base) = (Bytes::Own(bytes), Base::default());
                self.open = Some(OpenRun { kind, bytes, chunks: Vec::new(), base });
            }
        }
        self.open.as_mut().expect("opened above").chunks.push((len as u32, hash));
        self.count(len as u32);
        Ok(place)
    }

    fn count(&mut self, len: u32) {
        self.chunk_count += 1;
        self.raw_bytes += u64::from(len);
    }

    fn close_run(&mut self, coder: &Coder) {
        if let Some(run) = self.open.take() {
            self.runs.push(coder.ask(run));
        }
    }

    /// No chunk comes any more: what is left is to wait for the runs and write them.
    pub fn close(mut self, coder: &Coder) -> ClosedPack {
        self.close_run(coder);
        ClosedPack { name: self.name, runs: self.runs, meter: coder.meter.clone() }
    }

    /// Waits for the runs so far; what each cost, and what deltas among them were subtracted from.
    pub fn settle(&mut self, coder: &Coder) -> Result<(Vec<RunCost>, Vec<(PackRef, u64)>)> {
        self.close_run(coder);
        let runs: Result<Vec<StoredRun>> = self.runs.drain(..).map(Answer::wait).collect();
        let runs = runs?;
        let costs = runs.iter().map(StoredRun::cost).collect();
        let bases = bases_of(&runs);
        self.runs = runs.into_iter().map(Answer::ready).collect();
        Ok((costs, bases))
    }
}

/// A pack whose chunks are all there.
pub struct ClosedPack {
    name: PackName,
    runs: Vec<Answer<StoredRun>>,
    meter: Arc<Meter>,
}

impl ClosedPack {
    /// Writes the pack and, if asked, makes it durable. What it was made of takes a while to be given back, which nobody need wait for.
    pub fn write(self, store: &dyn Store, durable: bool) -> Result<(SealedPack, Vec<StoredRun>)> {
        let mut runs = self.runs.into_iter().map(Answer::wait).collect::<Result<Vec<StoredRun>>>()?;
        let mut builder = FooterBuilder::new(self.name);
        for run in &runs {
            builder.push(run.kind, run.choice.coding, &[&run.bytes], &run.chunks, run.base.spans());
        }
        let sealed = builder.seal();
        let header = pack::header(self.name);
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(runs.len() + 2);
        pieces.push(&header);
        pieces.extend(runs.iter().map(|run| &*run.bytes));
        pieces.push(&sealed.bytes);
        let storing = self.meter.storing();
        let (costs, bases) = (runs.iter().map(StoredRun::cost).collect(), bases_of(&runs));
        if durable {
            store.put_past_cache(self.name, &pieces)?;
        } else {
            store.put(self.name, &pieces)?;
        }
        if durable {
            // Whoever waits for the buffers need not wait for the sync.
            runs.clear();
            store.sync(&[self.name])?;
        }
        self.meter.stored(storing, sealed.pack.length);
        Ok((SealedPack { pack: sealed.pack, runs: costs, bases }, runs))
    }
}

fn bases_of(runs: &[StoredRun]) -> Vec<(PackRef, u64)> {
    let mut bases: Vec<(PackRef, u64)> = Vec::new();
    for (pack, bytes) in runs.iter().flat_map(|run| run.base.packs()) {
        match bases.iter_mut().rfind(|(known, _)| *known == pack) {
            Some((_, total)) => *total += bytes,
            None => bases.push((pack, bytes)),
        }
    }
    bases
}

/// The hash under which a chunk of data is known.
pub fn data_hash(bytes: &[u8]) -> Hash {
    Domain::Data.hash(bytes)
}
