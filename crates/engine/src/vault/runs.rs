//! Reading chunks out of runs.

use std::sync::Arc;

use stdchk_codec::{Press, delta};
use stdchk_object::hash::Domain;
use stdchk_object::pack::{ChunkKind, Run};
use stdchk_object::{Error, Hash, Kind, Result};

use super::{OpenPack, Vault, locked};

/// What a reader keeps between reads: a decompressor and room.
#[derive(Default)]
pub struct Scratch {
    press: Press,
    pub(super) bytes: Vec<u8>,
}

impl Vault {
    /// One chunk, which must be of that kind.
    pub fn chunk(&self, open: &OpenPack, chunk: u32, kind: ChunkKind) -> Result<Vec<u8>> {
        let index = self.run_index(open, chunk, kind)?;
        let run = &open.footer.runs()[index];
        let (start, len) = (run.chunk_start(chunk) as usize, run.chunk_len(chunk) as usize);
        if !run.coding.is_none() {
            let raw = self.run(open, index, &mut Scratch::default())?;
            return Ok(raw[start..start + len].to_vec());
        }
        let mut bytes = vec![0; len];
        self.read_plain(open, run, chunk, chunk + 1, &mut bytes)?;
        Ok(bytes)
    }

    /// The run that holds a chunk, which must be of that kind.
    pub fn run_index(&self, open: &OpenPack, chunk: u32, kind: ChunkKind) -> Result<usize> {
        let name = open.pack.name;
        let index = open.footer.run_index(chunk).ok_or_else(|| {
            Error::corrupt(format!("pack {name} has no chunk {chunk}, which is referred to"))
        })?;
        if open.footer.runs()[index].kind != kind {
            return Err(Error::corrupt(format!("chunk {chunk} of pack {name} is not of the kind expected")));
        }
        Ok(index)
    }

    /// Reads chunks `from..to` of a run that is stored as it is; `bytes` is exactly as long as they are.
    pub fn read_plain(&self, open: &OpenPack, run: &Run, from: u32, to: u32, bytes: &mut [u8]) -> Result<()> {
        let name = open.pack.name;
        let hashes = self.hashes(open)?;
        let offset = run.offset + u64::from(run.chunk_start(from));
        let mut bad = Vec::new();
        let read = self.try_copies(name, |copy| {
            self.read_bytes(open, copy, offset, bytes)?;
            let these = bad_chunks(hashes, run, from, to, bytes);
            let read = these.first().map_or(Ok(()), |&chunk| Err(damaged(open, chunk)));
            if copy == 0 {
                bad = these;
            }
            read
        });
        let Err(error) = read else { return Ok(()) };
        if bad.is_empty() {
            return Err(self.note(name, (from, to), error));
        }
        let notes = bad.into_iter().map(|chunk| self.note(name, (chunk, chunk + 1), damaged(open, chunk)));
        // All are noted; the first is told.
        notes.reduce(|first, _| first).map_or(Ok(()), Err)
    }

    /// A whole run, decompressed.
    pub fn run(&self, open: &OpenPack, index: usize, scratch: &mut Scratch) -> Result<Arc<Vec<u8>>> {
        let key = (open.pack.name, index as u32);
        if let Some(raw) = locked(&self.runs).get(&key) {
            return Ok(raw);
        }
        let run = &open.footer.runs()[index];
        let own_fault = |error| self.note(open.pack.name, (run.first_chunk, run.end_chunk()), error);
        let base = match run.coding.delta {
            // What is wrong with the base was noted where it lies.
            true => Some(self.base_of_run(open, run, scratch)?.ok_or_else(|| own_fault(misfit(open, run)))?),
            false => None,
        };
        let raw = self
            .try_copies(open.pack.name, |copy| self.decompress(open, copy, run, base.as_deref(), scratch));
        let raw = raw.map_err(own_fault)?;
        let raw = Arc::new(raw);
        locked(&self.runs).put(key, raw.clone(), raw.len());
        Ok(raw)
    }

    /// A run from its stored bytes, and if it is a delta, from what it was subtracted from.
    fn decompress(
        &self,
        open: &OpenPack,
        copy: u32,
        run: &Run,
        base: Option<&[u8]>,
        scratch: &mut Scratch,
    ) -> Result<Vec<u8>> {
        let name = open.pack.name;
        scratch.bytes.resize(run.stored_len as usize, 0);
        self.read_bytes(open, copy, run.offset, &mut scratch.bytes)?;
        let stored = run.stored_hash;
        if stored.is_some_and(|hash| Domain::StoredRun.hash(&scratch.bytes).half() != hash) {
            let text = format!("pack {name}: chunks {}..{} are damaged", run.first_chunk, run.end_chunk());
            return Err(Error::corrupt(text));
        }
        let mut raw = Vec::new();
        scratch.press.decompress(run.coding, &scratch.bytes, run.raw_len as usize, &mut raw)?;
        if let Some(base) = base {
            delta::add(run.coding.width(), &mut raw, base);
        }
        let bad = bad_chunks(self.hashes(open)?, run, run.first_chunk, run.end_chunk(), &raw);
        bad.first().map_or(Ok(raw), |&chunk| Err(damaged(open, chunk)))
    }
}

fn damaged(open: &OpenPack, chunk: u32) -> Error {
    Error::corrupt(format!("pack {}: chunk {chunk} is damaged", open.pack.name))
}

/// Those of the chunks `from..to`, which lie one after the other in `bytes`, that are not what they should be.
fn bad_chunks(hashes: &[Hash], run: &Run, from: u32, to: u32, bytes: &[u8]) -> Vec<u32> {
    let mut rest = bytes;
    let pieces = (from..to).map(|chunk| {
        let (head, tail) = rest.split_at(run.chunk_len(chunk) as usize);
        rest = tail;
        head
    });
    let (mut chunk, mut bad) = (from, Vec::new());
    run.kind.domain().hash_each(pieces, |hash| {
        if hashes.get(chunk as usize) != Some(&hash) {
            bad.push(chunk);
        }
        chunk += 1;
    });
    bad
}

fn misfit(open: &OpenPack, run: &Run) -> Error {
    let (name, from, to) = (open.pack.name, run.first_chunk, run.end_chunk());
    Error::corrupt(format!("pack {name}: chunks {from}..{to} do not fit what they were subtracted from"))
}

impl Vault {
    /// Whether a run that is not stored as it is can be brought back, as far as that is its own affair: a base that cannot be read is
    /// damage where the base lies, and is found there.
    fn check_compressed(&self, open: &OpenPack, run: &Run, scratch: &mut Scratch) -> Result<bool> {
        let base = match run.coding.delta.then(|| self.base_of_run(open, run, scratch)).transpose() {
            Ok(Some(None)) => return Ok(false),
            Ok(base) => base.flatten(),
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::Unsupported) => {
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let read = self
            .try_copies(open.pack.name, |copy| self.decompress(open, copy, run, base.as_deref(), scratch));
        match read {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::Corrupt => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads every run of a pack; the ranges of chunks that are damaged, as exactly as the runs allow.
    pub fn check_runs(&self, open: &OpenPack) -> Result<Vec<(u32, u32)>> {
        let mut scratch = Scratch::default();
        let mut damaged: Vec<(u32, u32)> = Vec::new();
        for run in open.footer.runs() {
            if !run.coding.is_none() {
                if !self.check_compressed(open, run, &mut scratch)? {
                    damaged.push((run.first_chunk, run.end_chunk()));
                }
                continue;
            }
            scratch.bytes.resize(run.stored_len as usize, 0);
            match self.store.read(open.pack.name, run.offset, &mut scratch.bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Corrupt => {
                    damaged.push((run.first_chunk, run.end_chunk()));
                    continue;
                }
                Err(error) => return Err(error),
            }
            let bad = bad_chunks(self.hashes(open)?, run, run.first_chunk, run.end_chunk(), &scratch.bytes);
            let (from, to) = (run.first_chunk, run.end_chunk());
            if !bad.is_empty() && self.read_plain(open, run, from, to, &mut scratch.bytes).is_ok() {
                // Another copy is whole, and takes the place of this one.
                continue;
            }
            damaged.extend(bad.into_iter().map(|chunk| (chunk, chunk + 1)));
        }
        damaged.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        Ok(damaged)
    }
}
