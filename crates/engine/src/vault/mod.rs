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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stdchk_catalog::{ChunkRange, State};
use stdchk_object::forward::ForwardTable;
use stdchk_object::pack::{self, ChunkKind, Footer};
use stdchk_object::{Error, Kind, Locator, PackName, PackRef, Result};
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
    /// All of its bytes, where they came with the footer and are few. Nothing of them was checked but the footer.
    whole: Vec<u8>,
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
        }
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
        let tail_len = pack::tail_length(length);
        let mut tail = vec![0; tail_len as usize];
        self.store.read_copy(name, copy, length - tail_len, &mut tail)?;
        let trailer = pack::Trailer::decode(name, length, &tail[tail.len() - pack::TRAILER_BYTES..])?;
        let end_len = trailer.footer_len as usize + pack::TRAILER_BYTES;
        let end = if end_len <= tail.len() {
            &tail[tail.len() - end_len..]
        } else {
            tail = vec![0; end_len];
            self.store.read_copy(name, copy, trailer.footer_offset, &mut tail)?;
            &tail[..]
        };
        let (pack, footer) = match expected {
            Some(pack) => (*pack, pack::open_footer(pack, end)?),
            None => pack::open_footer_unreferenced(name, length, end)?,
        };
        let whole = if tail.len() as u64 == length && length <= WHOLE_MAX { tail } else { Vec::new() };
        let open = Arc::new(OpenPack { pack, footer, whole });
        let bytes = open.footer.memory_bytes() + open.whole.len();
        locked(&self.footers).put(name, open.clone(), bytes);
        Ok(open)
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

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Caches and notes are whole after every statement, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
