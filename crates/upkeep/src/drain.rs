//! Draining: committed checkpoints are copied to safe storage, pack by pack under the same names, and named there by a catalog that follows
//! this one. Many may do it at once, each its share.
//!
//! What stays true: a checkpoint is named there only when all its packs are there, and synced; and a pack goes from there only when the
//! catalog there is as new as its condemnation here, so that nothing there refers to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, CheckpointEntry, DrainOp, Op, SessionKind, State};
use stdchk_engine::{Session, Vault, View};
use stdchk_object::pack::check_whole;
use stdchk_object::{CheckpointId, Error, Kind, Locator, PackName, Result};
use stdchk_store::Store;

use crate::Ground;

/// Packs that are copied at the same time.
const AT_ONCE: usize = 4;
/// How long others may take for their share before it is done for them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Safe storage: packs, and the names that follow ours.
#[derive(Clone)]
pub struct Target {
    /// The packs.
    pub store: Arc<dyn Store>,
    /// The names.
    pub catalog: Arc<dyn Catalog>,
}

/// Who does what, where several drain.
pub struct Share<'s> {
    /// Whether a pack is this one's to copy.
    pub copies: &'s (dyn Fn(PackName) -> bool + Sync),
    /// Whether a checkpoint is this one's to look after.
    pub leads: &'s dyn Fn(&CheckpointId) -> bool,
    /// Whether it also sees to it that what was dropped here is dropped there.
    pub tidies: bool,
}

impl Share<'_> {
    /// Everything.
    pub const ALL: Share<'static> = Share { copies: &|_| true, leads: &|_| true, tidies: true };
}

/// What a round of draining did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Packs that were copied, and their bytes.
    pub packs: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Checkpoints that have arrived.
    pub checkpoints: Vec<CheckpointId>,
    /// Those that were to be copied and could not be read.
    pub failed: usize,
}

/// Drains to one place, round after round.
pub struct Drainer {
    target: Target,
    /// Packs that are known to be there.
    there: Mutex<HashSet<PackName>>,
    /// Since when the rest of a checkpoint is waited for.
    waiting: HashMap<CheckpointId, Instant>,
    /// What the names here were like when those there were made to follow last.
    followed: Option<Shape>,
}

/// What changes where the names there have to follow: commits and forwards, checkpoints, forwards, the newest condemnation.
type Shape = (u64, usize, usize, u64);

fn shape_of(state: &State) -> Shape {
    let condemned = state.condemned().values().copied().max().unwrap_or(0);
    (state.commits(), state.checkpoints().count(), state.forwards().len(), condemned)
}

/// The packs that a checkpoint needs: names and lengths.
type Packs = BTreeMap<PackName, u64>;

impl Drainer {
    /// To that place.
    pub fn new(target: Target) -> Drainer {
        Drainer { target, there: Mutex::default(), waiting: HashMap::new(), followed: None }
    }

    fn there(&self) -> MutexGuard<'_, HashSet<PackName>> {
        self.there.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Copies this one's share of what has not arrived, and names what has. Checkpoints that cannot be read are left for later.
    pub fn round(&mut self, ground: &Ground, share: &Share, is_ending: &AtomicBool) -> Result<Drained> {
        let mut done = Drained::default();
        let state = ground.catalog.state()?;
        let is_new = |entry: &CheckpointEntry| !state.drain().is_copied(&entry.id());
        if state.checkpoints().any(is_new) {
            self.copy_all(ground, share, is_ending, &mut done)?;
        }
        let named = done.checkpoints.clone();
        if !named.is_empty() {
            ground.catalog.append(true, &mut |state| {
                let there = |id: &&CheckpointId| state.checkpoint(id).is_some();
                let ids: Vec<CheckpointId> = named.iter().filter(there).cloned().collect();
                Ok(if ids.is_empty() { Vec::new() } else { vec![Op::Drain(DrainOp::Copied(ids))] })
            })?;
        }
        let shape = shape_of(&state);
        if !named.is_empty() || (share.tidies && self.followed != Some(shape)) {
            self.name(ground, share, is_ending, &mut done)?;
            self.followed = Some(shape);
        }
        Ok(done)
    }

    /// Copies packs of checkpoints that have not arrived, oldest first, while a session keeps them from going away.
    fn copy_all(
        &mut self,
        ground: &Ground,
        share: &Share,
        is_ending: &AtomicBool,
        done: &mut Drained,
    ) -> Result<()> {
        let session = Session::open(ground.catalog.clone(), SessionKind::Reader, &ground.owner)?;
        let state = session.state().clone();
        let vault = ground.vault(&state);
        let mut entries: Vec<_> =
            state.checkpoints().filter(|entry| !state.drain().is_copied(&entry.id())).collect();
        entries.sort_by_key(|entry| entry.sequence);
        self.waiting.retain(|id, _| state.checkpoint(id).is_some());
        for entry in entries {
            if is_ending.load(Ordering::Relaxed) {
                break;
            }
            match self.copy_one(ground, &vault, entry, share, is_ending, done) {
                Ok(true) => done.checkpoints.push(entry.id()),
                Ok(false) => {}
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {
                    tracing::warn!("{} cannot be drained: {error}", entry.id());
                    done.failed += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies this one's share of a checkpoint, and the rest if others do not; whether all of it is there, and it is this one's to say
    /// so.
    fn copy_one(
        &mut self,
        ground: &Ground,
        vault: &Vault,
        entry: &CheckpointEntry,
        share: &Share,
        is_ending: &AtomicBool,
        done: &mut Drained,
    ) -> Result<bool> {
        let packs = packs_of(vault, entry)?;
        let mine = packs.iter().filter(|(name, _)| (share.copies)(**name));
        self.copy(ground, mine.map(|(name, len)| (*name, *len)).collect(), is_ending, done)?;
        if !(share.leads)(&entry.id()) || is_ending.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut missing = Vec::new();
        for (&name, &len) in &packs {
            if !self.is_there(name, len)? {
                missing.push((name, len));
            }
        }
        if !missing.is_empty() {
            let since = *self.waiting.entry(entry.id()).or_insert_with(Instant::now);
            if since.elapsed() < PATIENCE {
                return Ok(false);
            }
            self.copy(ground, missing, is_ending, done)?;
        }
        self.waiting.remove(&entry.id());
        Ok(!is_ending.load(Ordering::Relaxed))
    }

    /// Whether a pack is there, whole: it gets its name only when it is.
    fn is_there(&self, name: PackName, len: u64) -> Result<bool> {
        if self.there().contains(&name) {
            return Ok(true);
        }
        match self.target.store.length(name) {
            Ok(there) if there == len => {
                self.there().insert(name);
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies packs that are not there yet, several at once.
    fn copy(
        &self,
        ground: &Ground,
        packs: Vec<(PackName, u64)>,
        is_ending: &AtomicBool,
        done: &mut Drained,
    ) -> Result<()> {
        let (todo, copied) = (Mutex::new(packs.into_iter()), Mutex::new(Vec::new()));
        let next = || todo.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        let work = || -> Result<()> {
            while let Some((name, len)) = next()
                && !is_ending.load(Ordering::Relaxed)
            {
                if !self.is_there(name, len)? {
                    let bytes = read_whole(&*ground.store, name, len)?;
                    // It has its name there only when it is whole, and durable.
                    self.target.store.replace(name, &[&bytes]).map_err(about_target)?;
                    self.there().insert(name);
                    copied.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(len);
                }
            }
            Ok(())
        };
        let panicked = |_| Err(Error::new(Kind::Io, "copying a pack panicked; this is a bug"));
        let ended = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect::<Vec<_>>()
        });
        let copied = copied.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        (done.packs, done.bytes) =
            (done.packs + copied.len() as u64, done.bytes + copied.iter().sum::<u64>());
        ended.into_iter().collect()
    }

    /// Makes the names there follow ours, and notes here how far they do.
    fn name(&self, ground: &Ground, share: &Share, is_ending: &AtomicBool, done: &mut Drained) -> Result<()> {
        let session = Session::open(ground.catalog.clone(), SessionKind::Reader, &ground.owner)?;
        let state = session.state().clone();
        if share.tidies {
            self.copy_forwards(ground, &state, is_ending, done)?;
        }
        let vault = ground.vault(&state);
        let followed =
            follow(&state, &vault, &self.target, |name, len| self.is_there(name, len).unwrap_or(false))?;
        let Some(followed) = followed else { return Ok(()) };
        let is_news = |state: &State| {
            state
                .checkpoints()
                .any(|entry| state.drain().is_copied(&entry.id()) && !state.drain().is_drained(&entry.id()))
        };
        ground.catalog.append(true, &mut |state| {
            Ok(if is_news(state) { vec![Op::Drain(DrainOp::Mirrored(followed))] } else { Vec::new() })
        })?;
        Ok(())
    }

    /// Copies what compaction has made of packs that are there.
    fn copy_forwards(
        &self,
        ground: &Ground,
        state: &Arc<State>,
        is_ending: &AtomicBool,
        done: &mut Drained,
    ) -> Result<()> {
        let there = self.target.catalog.state()?;
        let vault = ground.vault(state);
        let is_known = |name, table| there.forwards().get(name).is_some_and(|known| known.table == table);
        for (name, forward) in
            state.forwards().iter().filter(|(name, forward)| !is_known(name, forward.table))
        {
            let packs = packs_of_table(&vault, *name, &forward.table)?;
            self.copy(ground, packs.into_iter().collect(), is_ending, done)?;
        }
        Ok(())
    }
}

/// Makes the names there follow a state, as far as packs are there; the record up to which they do.
pub(crate) fn follow(
    state: &State,
    vault: &Vault,
    target: &Target,
    is_there: impl Fn(PackName, u64) -> bool,
) -> Result<Option<u64>> {
    let leads = |name: PackName, table: &Locator| {
        let packs = packs_of_table(vault, name, table);
        packs.is_ok_and(|packs| packs.iter().all(|(name, len)| is_there(*name, *len)))
    };
    let id = state.pool().id();
    let mut followed = None;
    target.catalog.append(true, &mut |there| {
        let known = there.drain().source();
        if known.is_some_and(|(source, _)| source != id) {
            return Err(Error::new(Kind::Conflict, "another pool drains to there"));
        }
        if known.is_none() && there.number() > 0 {
            return Err(Error::new(Kind::Conflict, "what was drained was made a repository of its own"));
        }
        followed = known.map(|(_, number)| number);
        let Some(mirror) = state.mirror_to(there, id, leads) else { return Ok(Vec::new()) };
        // Packs that go from there wait for the number to pass their condemnation.
        let waited_for = state.condemned().values().copied().max();
        if mirror.is_idle() && waited_for <= followed && known.is_some() {
            return Ok(Vec::new());
        }
        followed = Some(mirror.source.1);
        Ok(vec![Op::Drain(DrainOp::Mirror(Box::new(mirror)))])
    })?;
    Ok(followed)
}

/// What is wrong there says nothing about the checkpoint.
fn about_target(error: Error) -> Error {
    let kind = if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) { Kind::Io } else { error.kind() };
    error.with_kind(kind)
}

/// Makes all that a checkpoint needs as durable as the store can.
pub fn make_durable(ground: &Ground, state: &Arc<State>, entry: &CheckpointEntry) -> Result<()> {
    let packs = packs_of(&ground.vault(state), entry)?;
    ground.store.sync(&packs.into_keys().collect::<Vec<_>>())
}

/// Reads a pack that is whole, from whichever copy is.
fn read_whole(store: &dyn Store, name: PackName, len: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::corrupt("a pack is too long"))?];
    let mut first = None;
    for copy in 0..store.copies().max(1) {
        let read = store.read_copy(name, copy, 0, &mut bytes).and_then(|()| check_whole(name, &bytes));
        match read {
            Ok(()) => return Ok(bytes),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| Error::new(Kind::NotFound, format!("pack {name} is nowhere"))))
}

/// The packs that a checkpoint needs, with what compaction has made of them.
fn packs_of(vault: &Vault, entry: &CheckpointEntry) -> Result<Packs> {
    let view = View::open(vault, &entry.manifest)?;
    let mut packs = Packs::from([(entry.manifest.pack.name, entry.manifest.pack.length)]);
    for (part, at) in view.parts.iter().zip(&view.manifest.parts) {
        let home = at.pack.resolved(&entry.manifest.pack);
        packs.insert(home.name, home.length);
        for (pack, _) in part.references() {
            match vault.state().forwards().get(&pack.name) {
                None => _ = packs.insert(pack.name, pack.length),
                Some(forward) => packs.extend(packs_of_table(vault, pack.name, &forward.table)?),
            }
        }
    }
    Ok(packs)
}

/// The packs to which a forward leads, and the one that has its table.
fn packs_of_table(vault: &Vault, old: PackName, at: &Locator) -> Result<Packs> {
    let table = vault.table(old, at)?;
    let new = table.packs.iter().chain([&at.pack]);
    Ok(new.map(|pack| (pack.name, pack.length)).collect())
}
