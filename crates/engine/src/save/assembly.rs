//! Packs in the making: runs that are filled, compressed, and at last written.

use std::sync::{Arc, Mutex};

use stdchk_codec::{Advisor, Press};
use stdchk_object::hash::Domain;
use stdchk_object::pack::{self, CHUNK_BYTES_MAX, ChunkKind, Codec, Coding, FooterBuilder};
use stdchk_object::{Error, Hash, PackName, PackRef, Result};
use stdchk_store::Store;

use super::{ChunkBytes, append};
use crate::buffers::{Buffer, Bytes};
use crate::workers::{Answer, Workers};

/// Raw bytes of a run of metadata.
const META_RUN_BYTES: usize = 128 << 10;
/// How metadata is compressed: it is small and read often.
const META_CODING: (Coding, i32) = (Coding { codec: Codec::Zstd, planes: 0 }, 3);

/// A run that is being filled.
struct OpenRun {
    kind: ChunkKind,
    bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
}

/// A run as it will lie in the pack.
pub struct StoredRun {
    kind: ChunkKind,
    coding: Coding,
    bytes: Bytes,
    chunks: Vec<(u32, Hash)>,
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
    /// Stored and raw length of each run. The footer itself is not kept: a large save has many.
    pub runs: Vec<(u32, u32)>,
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
        workers: &Workers,
        advisor: &Arc<Mutex<Advisor>>,
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
            self.close_run(workers, advisor);
        }
        let rest = match &mut self.open {
            Some(run) => append(&mut run.bytes, chunk).err(),
            None => Some(chunk),
        };
        if let Some(chunk) = rest {
            self.close_run(workers, advisor);
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
    pub fn push_meta(
        &mut self,
        kind: ChunkKind,
        bytes: Vec<u8>,
        workers: &Workers,
        advisor: &Arc<Mutex<Advisor>>,
    ) -> Result<(PackName, u32)> {
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
            self.close_run(workers, advisor);
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

    fn close_run(&mut self, workers: &Workers, advisor: &Arc<Mutex<Advisor>>) {
        if let Some(run) = self.open.take() {
            let advisor = advisor.clone();
            self.runs.push(workers.ask(move |tools| compress(run, &mut tools.press, &advisor)));
        }
    }

    /// No chunk comes any more: what is left is to wait for the runs and write them.
    pub fn close(mut self, workers: &Workers, advisor: &Arc<Mutex<Advisor>>) -> ClosedPack {
        self.close_run(workers, advisor);
        ClosedPack { name: self.name, runs: self.runs }
    }

    /// Waits for the runs so far; the stored and the raw length of each.
    pub fn settle(&mut self, workers: &Workers, advisor: &Arc<Mutex<Advisor>>) -> Result<Vec<(u64, u64)>> {
        self.close_run(workers, advisor);
        let runs: Result<Vec<StoredRun>> = self.runs.drain(..).map(Answer::wait).collect();
        let runs = runs?;
        let raw = |run: &StoredRun| run.chunks.iter().map(|&(len, _)| u64::from(len)).sum();
        let lengths = runs.iter().map(|run| (run.bytes.len() as u64, raw(run))).collect();
        self.runs = runs.into_iter().map(Answer::ready).collect();
        Ok(lengths)
    }
}

/// A pack whose chunks are all there.
pub struct ClosedPack {
    name: PackName,
    runs: Vec<Answer<StoredRun>>,
}

impl ClosedPack {
    /// Writes the pack and, if asked, makes it durable.
    pub fn write(self, store: &dyn Store, durable: bool) -> Result<SealedPack> {
        let runs = self.runs.into_iter().map(Answer::wait).collect::<Result<Vec<StoredRun>>>()?;
        let mut builder = FooterBuilder::new(self.name);
        for run in &runs {
            builder.push(run.kind, run.coding, &[&run.bytes], &run.chunks);
        }
        let sealed = builder.seal();
        let header = pack::header(self.name);
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(runs.len() + 2);
        pieces.push(&header);
        pieces.extend(runs.iter().map(|run| &*run.bytes));
        pieces.push(&sealed.bytes);
        store.put(self.name, &pieces)?;
        // Whoever waits for the buffers need not wait for the disk.
        drop(runs);
        if durable {
            store.sync(&[self.name])?;
        }
        let runs = sealed.footer.runs().iter().map(|run| (run.stored_len, run.raw_len)).collect();
        Ok(SealedPack { pack: sealed.pack, runs })
    }
}

fn compress(run: OpenRun, press: &mut Press, advisor: &Mutex<Advisor>) -> Result<StoredRun> {
    let OpenRun { kind, bytes, chunks } = run;
    let (coding, level) = if kind == ChunkKind::Data {
        advisor.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).advise(press, &bytes)?
    } else {
        META_CODING
    };
    if coding.is_none() {
        return Ok(StoredRun { kind, coding, bytes, chunks });
    }
    let mut out = Vec::new();
    let kept = press.compress(coding, level, &bytes, Advisor::limit(bytes.len()), &mut out)?;
    if kind == ChunkKind::Data {
        advisor.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).learn(kept);
    }
    if !kept {
        return Ok(StoredRun { kind, coding: Coding::NONE, bytes, chunks });
    }
    out.shrink_to_fit();
    Ok(StoredRun { kind, coding, bytes: Bytes::Own(out), chunks })
}

/// The hash under which a chunk of data is known.
pub fn data_hash(bytes: &[u8]) -> Hash {
    Domain::Data.hash(bytes)
}
