//! Packs in the making: runs that are filled, compressed, and at last written.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use stdchk_codec::{Advisor, Choice, Prefer, Preference, Press, try_codings};
use stdchk_object::hash::Domain;
use stdchk_object::member::Coded;
use stdchk_object::pack::{self, CHUNK_BYTES_MAX, ChunkKind, Codec, Coding, FooterBuilder};
use stdchk_object::{Error, Hash, PackName, PackRef, Result};
use stdchk_store::Store;

use super::account;
use super::meter::Meter;
use super::{ChunkBytes, append};
use crate::buffers::{Buffer, Bytes};
use crate::vault::locked;
use crate::workers::{Answer, Workers};

/// Raw bytes of a run of metadata.
const META_RUN_BYTES: usize = 128 << 10;
/// How metadata is compressed: it is small and read often.
const META_CODING: Choice = Choice { coding: Coding { codec: Codec::Zstd, planes: 0 }, level: 3 };

/// A run that is being filled.
struct OpenRun {
    kind: ChunkKind,
    bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
}

/// A run as it will lie in the pack.
pub struct StoredRun {
    kind: ChunkKind,
    choice: Choice,
    /// Seconds that compressing it took.
    seconds: f32,
    bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
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

/// What runs are coded with.
#[derive(Clone)]
pub struct Coder {
    pub workers: Arc<Workers>,
    /// Of the member that is being written.
    pub advisor: Arc<Mutex<Advisor>>,
    pub meter: Arc<Meter>,
}

impl Coder {
    /// For a save.
    pub fn for_save(workers: Arc<Workers>, preference: Preference) -> Coder {
        let meter = Arc::new(Meter::new(workers.count()));
        Coder { workers, advisor: Arc::new(Mutex::new(Advisor::new(preference))), meter }
    }

    /// For what nobody waits for: as if there were always little to store.
    pub fn at_leisure(workers: Arc<Workers>) -> Coder {
        Coder::for_save(workers, Preference::Auto(Prefer::default()))
    }

    /// Begins with the next member; `before` says how its last version was coded.
    pub fn begin_member(&mut self, preference: Preference, before: Option<&Coded>) {
        let mut advisor = Advisor::new(preference);
        before.into_iter().for_each(|coded| advisor.remember(account::trials(coded)));
        self.advisor = Arc::new(Mutex::new(advisor));
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

    /// Adds a chunk; the index of the run that it went into.
    pub fn push(
        &mut self,
        kind: ChunkKind,
        hash: Hash,
        chunk: ChunkBytes,
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
        let full = |run: &OpenRun| run.kind != kind || run.bytes.len() + len as usize > run_bytes;
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
                ChunkBytes::Copied(..) => Bytes::Own(chunk.bytes().to_vec()),
            };
            self.open = Some(OpenRun { kind, bytes, chunks: Vec::new() });
        }
        self.open.as_mut().expect("opened above").chunks.push((len, hash));
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
            _ => self.open = Some(OpenRun { kind, bytes: Bytes::Own(bytes), chunks: Vec::new() }),
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
            let (advisor, meter) = (coder.advisor.clone(), coder.meter.clone());
            self.runs.push(coder.workers.ask(move |tools| compress(run, &mut tools.press, &advisor, &meter)));
        }
    }

    /// No chunk comes any more: what is left is to wait for the runs and write them.
    pub fn close(mut self, coder: &Coder) -> ClosedPack {
        self.close_run(coder);
        ClosedPack { name: self.name, runs: self.runs, meter: coder.meter.clone() }
    }

    /// Waits for the runs so far; what each cost.
    pub fn settle(&mut self, coder: &Coder) -> Result<Vec<RunCost>> {
        self.close_run(coder);
        let runs: Result<Vec<StoredRun>> = self.runs.drain(..).map(Answer::wait).collect();
        let runs = runs?;
        let costs = runs.iter().map(StoredRun::cost).collect();
        self.runs = runs.into_iter().map(Answer::ready).collect();
        Ok(costs)
    }
}

/// A pack whose chunks are all there.
pub struct ClosedPack {
    name: PackName,
    runs: Vec<Answer<StoredRun>>,
    meter: Arc<Meter>,
}

impl ClosedPack {
    /// Writes the pack and, if asked, makes it durable.
    pub fn write(self, store: &dyn Store, durable: bool) -> Result<SealedPack> {
        let runs = self.runs.into_iter().map(Answer::wait).collect::<Result<Vec<StoredRun>>>()?;
        let mut builder = FooterBuilder::new(self.name);
        for run in &runs {
            builder.push(run.kind, run.choice.coding, &[&run.bytes], &run.chunks);
        }
        let sealed = builder.seal();
        let header = pack::header(self.name);
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(runs.len() + 2);
        pieces.push(&header);
        pieces.extend(runs.iter().map(|run| &*run.bytes));
        pieces.push(&sealed.bytes);
        let storing = self.meter.storing();
        let costs = runs.iter().map(StoredRun::cost).collect();
        store.put(self.name, &pieces)?;
        // Whoever waits for the buffers need not wait for the disk.
        drop(runs);
        if durable {
            store.sync(&[self.name])?;
        }
        self.meter.stored(storing, sealed.pack.length);
        Ok(SealedPack { pack: sealed.pack, runs: costs })
    }
}

fn compress(run: OpenRun, press: &mut Press, advisor: &Mutex<Advisor>, meter: &Meter) -> Result<StoredRun> {
    let OpenRun { kind, bytes, chunks } = run;
    let choice = if kind == ChunkKind::Data { choose(&bytes, press, advisor, meter)? } else { META_CODING };
    let raw = |bytes, chunks, seconds| StoredRun { kind, choice: Choice::NONE, seconds, bytes, chunks };
    if choice.coding.is_none() {
        return Ok(raw(bytes, chunks, 0.0));
    }
    let begun = Instant::now();
    let packed = press.compress(choice.coding, choice.level, &bytes, Advisor::limit(bytes.len()))?;
    let packed = packed.map(<[u8]>::to_vec);
    let seconds = begun.elapsed().as_secs_f32();
    if kind == ChunkKind::Data {
        locked(advisor).learn(choice, packed.is_some(), f64::from(seconds) / bytes.len() as f64);
    }
    Ok(match packed {
        Some(packed) => StoredRun { kind, choice, seconds, bytes: Bytes::Own(packed), chunks },
        None => raw(bytes, chunks, seconds),
    })
}

fn choose(bytes: &[u8], press: &mut Press, advisor: &Mutex<Advisor>, meter: &Meter) -> Result<Choice> {
    let mut advisor = locked(advisor);
    if let Some(prefer) = advisor.wants_trial() {
        let begun = Instant::now();
        advisor.tried(try_codings(prefer, press, bytes, &|| begun.elapsed().as_secs_f64())?);
    }
    Ok(advisor.choose(&meter.pace()))
}

/// The hash under which a chunk of data is known.
pub fn data_hash(bytes: &[u8]) -> Hash {
    Domain::Data.hash(bytes)
}
