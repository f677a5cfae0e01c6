//! Reading what is stored, verified.
//!
//! What stays true: no byte leaves the vault that was not checked against a hash which a reference vouches for.
//! What is found damaged is noted, so that the caller can record it.

mod bases;
mod content;
mod extents;
mod gather;
mod lru;
mod runs;
mod trees;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use stdchk_catalog::{ChunkRange, State};
use stdchk_object::forward::ForwardTable;
use stdchk_object::pack::{self, ChunkKind, Footer};
use stdchk_object::{Error, Hash, Kind, Locator, PackName, PackRef, Result};
use stdchk_store::Store;

pub use bases::BaseState;
pub use extents::Span;
use lru::Lru;
pub use runs::Scratch;
pub use trees::LeafAt;

/// References by name: what a part vouches for.
pub type Roots = HashMap<PackName, PackRef>;
/// Chunks found damaged, by pack; `(0, u32::MAX)` is a whole pack.
pub type Damaged = Vec<(PackName, ChunkRange)>;

/// A pack whose footer was verified.
pub struct OpenPack {
    /// How it is referred to.
    pub pack: PackRef,
    /// What it holds.
    pub footer: Footer,
    /// The hashes of its chunks, once somebody needed them.
    hashes: OnceLock<Vec<Hash>>,
    /// All of its bytes, where they came with the footer and are few. Nothing of them was checked but the footer.
    whole: Vec<u8>,
}

impl OpenPack {
    fn hash_bytes(&self) -> usize {
        self.hashes.get().map_or(0, Vec::len) * size_of::<Hash>()
    }
}

/// Packs that are opened at a time.
const AHEAD: usize = 8;
/// Packs that are kept whole when their footers are read.
const WHOLE_MAX: u64 = 16 << 10;

/// Reads packs of one store, as one state of the catalog sees them.
pub struct Vault {
    store: Arc<dyn Store>,
    state: Arc<State>,
    footers: Mutex<Lru<PackName, Arc<OpenPack>>>,
    tables: Mutex<HashMap<PackName, Arc<ForwardTable>>>,
    runs: Mutex<Lru<(PackName, u32), Arc<Vec<u8>>>>,
    damaged: Mutex<Damaged>,
    /// Packs of which it was said that not all copies are whole.
    told: Mutex<HashSet<PackName>>,
    /// Whether packs are opened without the hashes of their chunks, since few will be needed.
    needs_few_hashes: AtomicBool,
}

impl Vault {
    /// A reader that keeps about `memory` bytes of footers and runs at hand.
    pub fn new(store: Arc<dyn Store>, state: Arc<State>, memory: usize) -> Vault {
        Vault {
            store,
            state,
            footers: Mutex::new(Lru::new(memory / 2)),
            tables: Mutex::new(HashMap::new()),
            runs: Mutex::new(Lru::new(memory / 2)),
            damaged: Mutex::new(Vec::new()),
            told: Mutex::default(),
            needs_few_hashes: AtomicBool::new(false),
        }
    }

    /// From now on packs are opened without the hashes of their chunks, which are read when they are needed: by those who know by tags what they need not
    /// read. Of a large member the hashes are a good part of all that a save reads.
    pub fn expect_few_hashes(&self) {
        self.needs_few_hashes.store(true, Ordering::Relaxed);
    }

    /// The store that it reads.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The state that it reads by.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// What was found damaged since the last time this was asked.
    pub fn take_damaged(&self) -> Damaged {
        std::mem::take(&mut *locked(&self.damaged))
    }

    fn note(&self, pack: PackName, chunks: ChunkRange, error: Error) -> Error {
        // A full disk or a denied permission says nothing about the bytes.
        if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) {
            locked(&self.damaged).push((pack, chunks));
            return error.with_kind(Kind::Corrupt);
        }
        error
    }

    /// Reads some bytes of a pack from a certain copy; the first may be at hand.
    fn read_bytes(&self, open: &OpenPack, copy: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        match open.whole.get(from..from.saturating_add(buffer.len())).filter(|_| copy == 0) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => self.store.read_copy(open.pack.name, copy, offset, buffer)?,
        }
        Ok(())
    }

    /// Opens a pack that is referred to.
    pub fn open(&self, pack: &PackRef) -> Result<Arc<OpenPack>> {
        if let Some(open) = locked(&self.footers).get(&pack.name) {
            if open.pack == *pack {
                return Ok(open);
            }
            let text = format!("pack {}: it is not the pack that was referred to", pack.name);
            return Err(Error::corrupt(text));
        }
        self.read_footer(pack.name, pack.length, Some(pack))
            .map_err(|error| self.note(pack.name, (0, u32::MAX), error))
    }

    /// Opens packs, several at a time, so that whoever opens them one by one finds them at hand: they may be far away. What cannot be opened is
    /// left for him to find out.
    pub fn open_ahead(&self, packs: &[PackRef]) {
        let missing: Vec<&PackRef> =
            packs.iter().filter(|pack| locked(&self.footers).get(&pack.name).is_none()).collect();
        if missing.len() < 2 {
            return;
        }
        let next = AtomicUsize::new(0);
        let open = || {
            while let Some(pack) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _ = self.read_footer_of(pack.name, 0, pack.length, Some(pack));
            }
        };
        std::thread::scope(|scope| {
            (1..AHEAD.min(missing.len())).for_each(|_| _ = scope.spawn(open));
            open();
        });
    }

    /// Opens a pack that is known by name only; its own root must match its contents.
    pub fn open_named(&self, name: PackName) -> Result<Arc<OpenPack>> {
        if let Some(open) = locked(&self.footers).get(&name) {
            return Ok(open);
        }
        let length = self.store.length(name)?;
        self.read_footer(name, length, None)
    }

    /// Reads from one copy after the other, until one is what it should be. What is wrong with the first is told where none is.
    fn try_copies<T>(&self, name: PackName, mut read: impl FnMut(u32) -> Result<T>) -> Result<T> {
        let first = match read(0) {
            Err(error) if error.kind() == Kind::Corrupt => error,
            done => return done,
        };
        for copy in 1..self.store.copies() {
            if let Ok(done) = read(copy) {
                // Once for each pack: there may be thousands of reads of it.
                match locked(&self.told).insert(name) {
                    true => tracing::warn!("{first}; another copy is whole"),
                    false => tracing::debug!("{first}; another copy is whole"),
                }
                self.store.mend(name);
                return Ok(done);
            }
        }
        // Of several copies none alone may be right; or somebody else may have had it mended meanwhile.
        self.store.mend(name);
        if self.store.copies() > 1 { read(0).map_err(|_| first) } else { Err(first) }
    }

    /// Checks the length of a pack and its first bytes, which nothing else needs.
    pub fn check_ends(&self, pack: &PackRef) -> Result<()> {
        let name = pack.name;
        if self.store.length(name)? != pack.length {
            return Err(Error::corrupt(format!(
                "pack {name}: its length is not the one that was referred to"
            )));
        }
        self.try_copies(name, |copy| {
            let mut header = [0; pack::HEADER_BYTES];
            self.store.read_copy(name, copy, 0, &mut header)?;
            pack::check_header(name, &header)
        })
    }

    fn read_footer(&self, name: PackName, length: u64, expected: Option<&PackRef>) -> Result<Arc<OpenPack>> {
        self.try_copies(name, |copy| self.read_footer_of(name, copy, length, expected))
    }

    fn read_footer_of(
        &self,
        name: PackName,
        copy: u32,
        length: u64,
        expected: Option<&PackRef>,
    ) -> Result<Arc<OpenPack>> {
        let bad = |why: &str| Error::corrupt(format!("pack {name}: {why}"));
        if length < (pack::HEADER_BYTES + pack::TRAILER_BYTES) as u64 {
            return Err(bad("it is too short to be a pack"));
        }
        let needs_few = self.needs_few_hashes.load(Ordering::Relaxed);
        let tail_len = match needs_few && length > WHOLE_MAX {
            true => pack::footer_length(length),
            false => pack::tail_length(length),
        };
        let mut tail = vec![0; tail_len as usize];
        self.store.read_copy(name, copy, length - tail_len, &mut tail)?;
        let trailer = pack::Trailer::decode(name, length, &tail[tail.len() - pack::TRAILER_BYTES..])?;
        let wanted = trailer.end_len() + if needs_few { 0 } else { trailer.hashes_len as usize };
        if wanted > tail.len() {
            tail = vec![0; wanted];
            self.store.read_copy(name, copy, length - wanted as u64, &mut tail)?;
        }
        let (before, end) = tail.split_at(tail.len() - trailer.end_len());
        let (pack, footer) = match expected {
            Some(pack) => (*pack, pack::open_footer(pack, end)?),
            None => pack::open_footer_unreferenced(name, length, end)?,
        };
        let hashes = OnceLock::new();
        // They came with the footer where that is short.
        if let Some(start) = before.len().checked_sub(trailer.hashes_len as usize) {
            let _ = hashes.set(checked_hashes(name, &footer, &before[start..])?);
        }
        let whole = if tail.len() as u64 == length && length <= WHOLE_MAX { tail } else { Vec::new() };
        let open = Arc::new(OpenPack { pack, footer, hashes, whole });
        let bytes = open.footer.memory_bytes() + open.hash_bytes() + open.whole.len();
        locked(&self.footers).put(name, open.clone(), bytes);
        Ok(open)
    }

    /// The hashes of all chunks of a pack, in order.
    pub fn hashes<'o>(&self, open: &'o OpenPack) -> Result<&'o [Hash]> {
        if let Some(hashes) = open.hashes.get() {
            return Ok(hashes);
        }
        let (name, range) = (open.pack.name, open.footer.hashes_range());
        let read = self.try_copies(name, |copy| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.read_bytes(open, copy, range.start, &mut bytes)?;
            checked_hashes(name, &open.footer, &bytes)
        });
        let hashes = read.map_err(|error| self.note(name, (0, u32::MAX), error))?;
        if open.hashes.set(hashes).is_ok() {
            locked(&self.footers).grow(name, open.hash_bytes());
        }
        self.hashes(open)
    }

    /// The hash of a chunk that a pack has.
    pub fn hash(&self, open: &OpenPack, chunk: u32) -> Result<Hash> {
        let missing = || Error::corrupt(format!("pack {} has no chunk {chunk}", open.pack.name));
        self.hashes(open)?.get(chunk as usize).copied().ok_or_else(missing)
    }

    /// Where a chunk lies now: the pack, the chunk there, and for how many chunks from it on the answer holds.
    pub fn resolve(&self, roots: &Roots, name: PackName, chunk: u32) -> Result<(Arc<OpenPack>, u32, u32)> {
        if self.state.forwards().contains_key(&name) {
            // Its table says which pack it is now; no reference of the part does.
            return self.resolve_pack(&PackRef::to_itself(name), chunk);
        }
        let pack = roots.get(&name).ok_or_else(|| {
            Error::corrupt(format!("pack {name} is named by a tree, but not among the part's references"))
        })?;
        self.resolve_pack(pack, chunk)
    }

    /// The same for a chunk of a pack of which the reference is at hand.
    pub fn resolve_pack(&self, pack: &PackRef, chunk: u32) -> Result<(Arc<OpenPack>, u32, u32)> {
        let name = pack.name;
        if let Some(forward) = self.state.forwards().get(&name) {
            let table = self.table(name, &forward.table)?;
            let Some((pack, chunk, count)) = table.lookup(chunk) else {
                let text = format!("chunk {chunk} of pack {name} was not kept when the pack was compacted");
                return Err(Error::corrupt(text));
            };
            return Ok((self.open(pack)?, chunk, count));
        }
        let open = self.open(pack)?;
        let count = open.footer.chunk_count().saturating_sub(chunk);
        Ok((open, chunk, count))
    }

    /// The table that says where the chunks of a compacted pack went.
    pub fn table(&self, old: PackName, at: &Locator) -> Result<Arc<ForwardTable>> {
        if let Some(table) = locked(&self.tables).get(&old) {
            return Ok(table.clone());
        }
        let open = self.open(&at.pack)?;
        let bytes = self.chunk(&open, at.chunk, ChunkKind::Forward)?;
        let table = Arc::new(ForwardTable::decode(&bytes)?);
        if table.old != old {
            return Err(Error::corrupt(format!("the forward table of pack {old} is that of {}", table.old)));
        }
        locked(&self.tables).insert(old, table.clone());
        Ok(table)
    }

    /// Whether a chunk is known to be damaged.
    pub fn is_damaged(&self, pack: PackName, chunk: u32) -> bool {
        self.any_damaged(pack, chunk, chunk + 1)
    }

    /// Whether any of the chunks `from..to` is.
    pub fn any_damaged(&self, pack: PackName, from: u32, to: u32) -> bool {
        let ranges = self.state.damaged().get(&pack);
        ranges.is_some_and(|ranges| ranges.iter().any(|&(first, end)| first < to && from < end))
    }
}

fn checked_hashes(name: PackName, footer: &Footer, bytes: &[u8]) -> Result<Vec<Hash>> {
    let damaged = || Error::corrupt(format!("pack {name}: the hashes of its chunks are damaged"));
    footer.open_hashes(bytes).ok_or_else(damaged)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Caches and notes are whole after every statement, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use stdchk_object::SessionId;
    use stdchk_object::hash::Domain;
    use stdchk_object::pack::{Coding, FooterBuilder, header};
    use stdchk_store::MemoryStore;

    use super::*;

    const CHUNKS: u32 = 2000;

    /// A pack of short chunks whose hashes are more than what is read of its end at first.
    fn stored() -> (Arc<MemoryStore>, PackRef, Vec<u8>) {
        let name = PackName { session: SessionId(1), writer: 2, number: 3 };
        let data: Vec<u8> = (0..CHUNKS).flat_map(u32::to_le_bytes).collect();
        let chunks: Vec<_> = data.chunks(4).map(|chunk| (4, Domain::Data.hash(chunk))).collect();
        let mut builder = FooterBuilder::new(name);
        builder.push(ChunkKind::Data, Coding::NONE, &[&data], &chunks, &[]);
        let sealed = builder.seal();
        let bytes = [&header(name)[..], &data, &sealed.bytes].concat();
        let store = Arc::new(MemoryStore::new());
        store.put(name, &[&bytes]).unwrap();
        (store, sealed.pack, bytes)
    }

    fn vault(store: &Arc<MemoryStore>) -> Vault {
        Vault::new(store.clone(), Arc::new(State::default()), 1 << 20)
    }

    #[test]
    fn hashes_are_read_when_they_are_needed() {
        let (store, pack, _) = stored();
        let vault = vault(&store);
        vault.expect_few_hashes();
        let open = vault.open(&pack).unwrap();
        assert!(open.hashes.get().is_none() && open.footer.chunk_count() == CHUNKS);
        assert_eq!(vault.chunk(&open, 700, ChunkKind::Data).unwrap(), 700u32.to_le_bytes());
        assert_eq!(vault.hash(&open, 9).unwrap(), Domain::Data.hash(&9u32.to_le_bytes()));
        assert!(vault.hash(&open, CHUNKS).is_err());
        assert!(vault.open(&pack).unwrap().hashes.get().is_some());
    }

    #[test]
    fn hashes_that_are_damaged_are_found_by_whoever_needs_them() {
        let (store, pack, mut bytes) = stored();
        bytes[32 + 4 * CHUNKS as usize] ^= 1;
        store.replace(pack.name, &[&bytes]).unwrap();
        assert!(vault(&store).open(&pack).is_err());
        let vault = vault(&store);
        vault.expect_few_hashes();
        let open = vault.open(&pack).unwrap();
        let error = vault.chunk(&open, 700, ChunkKind::Data).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("hashes"), "{error}");
        assert_eq!(vault.take_damaged(), [(pack.name, (0, u32::MAX))]);
    }
}
