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
/// How long others may take for their share before it is done for them, and how long a checkpoint may wait for the one who is to look after
/// it.
const PATIENCE: Duration = Duration::from_secs(10);
const OTHERS_PATIENCE: Duration = Duration::from_secs(60);
/// For how long a round begins with further checkpoints.
const ROUND: Duration = Duration::from_secs(10);

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
    /// The record that chose it: what is done counts for that choice only.
    since: u64,
    /// Packs that are known to be there.
    there: Mutex<HashSet<PackName>>,
    /// Packs that this one has put there: the others are not known to be durable.
    own: Mutex<HashSet<PackName>>,
    /// Since when checkpoints are waited for, by their places in commit order, of which this one has done its share.
    waiting: HashMap<u64, Instant>,
    /// What the names here were like when those there were made to follow last.
    followed: Option<Shape>,
}

/// What changes where the names there have to follow: commits and forwards, checkpoints, forwards, the newest condemnation, what has
/// arrived and is not named.
type Shape = (u64, usize, usize, u64, Option<u64>);

fn shape_of(state: &State) -> Shape {
    let condemned = state.condemned().values().copied().max().unwrap_or(0);
    let counts = (state.checkpoints().count(), state.forwards().len());
    (state.commits(), counts.0, counts.1, condemned, state.drain().unnamed())
}

/// The packs that a checkpoint needs: names and lengths.
type Packs = BTreeMap<PackName, u64>;

impl Drainer {
    /// To that place, which record `since` chose.
    pub fn new(target: Target, since: u64) -> Drainer {
        Drainer {
            target,
            since,
            there: Mutex::default(),
            own: Mutex::default(),
            waiting: HashMap::new(),
            followed: None,
        }
    }

    fn there(&self) -> MutexGuard<'_, HashSet<PackName>> {
        self.there.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Copies this one's share of what has not arrived, for some time, and names what has. Checkpoints that cannot be read are left for later.
    pub fn round(&mut self, ground: &Ground, share: &Share, is_ending: &AtomicBool) -> Result<Drained> {
        let mut done = Drained::default();
        let state = ground.catalog.state()?;
        self.waiting.retain(|sequence, _| state.checkpoints().any(|entry| entry.sequence == *sequence));
        let since = self.since;
        if state.drain().to().is_none() || state.drain().since() != since {
            return Ok(done);
        }
        let mut arrived = Vec::new();
        // What has arrived is named also where something went wrong after it.
        let copied = match state.checkpoints().any(|entry| self.is_todo(&state, entry, share)) {
            true => self.copy_some(ground, share, is_ending, &mut arrived, &mut done),
            false => Ok(()),
        };
        if !arrived.is_empty() {
            ground.catalog.append(true, &mut |state| {
                let there = state.checkpoints().filter(|entry| arrived.contains(&entry.sequence));
                let sequences: Vec<u64> = there.map(|entry| entry.sequence).collect();
                let is_over = state.drain().to().is_none() || state.drain().since() != since;
                let nothing = is_over || sequences.is_empty();
                Ok(if nothing { Vec::new() } else { vec![Op::Drain(DrainOp::Copied { since, sequences })] })
            })?;
        }
        let shape = shape_of(&*ground.catalog.state()?);
        if !arrived.is_empty() || (share.tidies && self.followed != Some(shape)) {
            let is_done = self.name(ground, since, is_ending, &mut done)?;
            self.followed = is_done.then_some(shape);
        }
        copied.map(|()| done)
    }

    /// Whether there is something to do about a checkpoint now: it has not arrived, and this one has not done its share, or is to see to the
    /// rest, or those who are do not.
    fn is_todo(&self, state: &State, entry: &CheckpointEntry, share: &Share) -> bool {
        let is_late = |since: &Instant| since.elapsed() > OTHERS_PATIENCE;
        !state.drain().is_copied(entry)
            && ((share.leads)(&entry.id()) || self.waiting.get(&entry.sequence).is_none_or(is_late))
    }

    /// Copies packs of checkpoints that have not arrived, oldest first, while a session keeps them from going away. It is not kept
    /// for long, since nothing can be collected meanwhile.
    fn copy_some(
        &mut self,
        ground: &Ground,
        share: &Share,
        is_ending: &AtomicBool,
        arrived: &mut Vec<u64>,
        done: &mut Drained,
    ) -> Result<()> {
        let begun = Instant::now();
        let session = Session::open(ground.catalog.clone(), SessionKind::Reader, &ground.owner)?;
        let state = session.state().clone();
        let vault = ground.vault(&state);
        let mut entries: Vec<_> =
            state.checkpoints().filter(|entry| self.is_todo(&state, entry, share)).collect();
        entries.sort_by_key(|entry| entry.sequence);
        for entry in entries {
            if is_ending.load(Ordering::Relaxed) || begun.elapsed() > ROUND {
                break;
            }
            match self.copy_one(ground, &vault, entry, share, is_ending, done) {
                Ok(true) => {
                    arrived.push(entry.sequence);
                    done.checkpoints.push(entry.id());
                }
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
        let waited = self.waiting.entry(entry.sequence).or_insert_with(Instant::now).elapsed();
        let leads = (share.leads)(&entry.id()) || waited > OTHERS_PATIENCE;
        if !leads || is_ending.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut missing = Vec::new();
        for (&name, &len) in &packs {
            if !self.is_there(name, len)? {
                missing.push((name, len));
            }
        }
        if !missing.is_empty() {
            if waited < PATIENCE {
                return Ok(false);
            }
            self.copy(ground, missing, is_ending, done)?;
        }
        if is_ending.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.sync(packs.keys().copied())?;
        Ok(true)
    }

    /// Makes packs durable there that others have put: their names may not be so yet.
    fn sync(&self, names: impl Iterator<Item = PackName>) -> Result<()> {
        let own = self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let others: Vec<PackName> = names.filter(|name| !own.contains(name)).collect();
        drop(own);
        self.target.store.sync(&others).map_err(about_target)?;
        self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(others);
        Ok(())
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
                    self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(name);
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

    /// Makes the names there follow ours, and notes here how far they do; whether all that has arrived is named.
    fn name(&self, ground: &Ground, since: u64, is_ending: &AtomicBool, done: &mut Drained) -> Result<bool> {
        let session = Session::open(ground.catalog.clone(), SessionKind::Reader, &ground.owner)?;
        // What is followed must not be taken back by a power cut: whatever is durable is so with all before it.
        ground.catalog.append(true, &mut |_| Ok(Vec::new()))?;
        let state = session.state().clone();
        if state.drain().to().is_none() || state.drain().since() != since {
            return Ok(false);
        }
        let vault = ground.vault(&state);
        self.copy_changes(ground, &state, &vault, is_ending, done)?;
        let has = |name, len| self.is_there(name, len).unwrap_or(false);
        let Some(followed) = follow(&state, &vault, &self.target, has)? else { return Ok(false) };
        ground.catalog.append(true, &mut |state| {
            let is_over = state.drain().to().is_none() || state.drain().since() != since;
            let nothing = is_over || state.drain().unnamed().is_none();
            let number = followed;
            Ok(if nothing { Vec::new() } else { vec![Op::Drain(DrainOp::Mirrored { since, number })] })
        })?;
        Ok(true)
    }

    /// Copies what compaction has made of packs that are there, or has taken back, and what checkpoints need that have arrived and are not named.
    fn copy_changes(
        &self,
        ground: &Ground,
        state: &Arc<State>,
        vault: &Vault,
        is_ending: &AtomicBool,
        done: &mut Drained,
    ) -> Result<()> {
        let there = self.target.catalog.state()?;
        let is_known = |name, table| there.forwards().get(name).is_some_and(|known| known.table == table);
        let new = state.forwards().iter().filter(|(name, forward)| !is_known(name, forward.table));
        let mut wanted: Vec<Result<Packs>> =
            new.map(|(name, forward)| packs_of_table(vault, *name, &forward.table)).collect();
        let back = there.forwards().keys().filter(|name| !state.forwards().contains_key(name));
        wanted.extend(back.map(|&name| Ok(Packs::from([(name, ground.store.length(name)?)]))));
        let unnamed =
            |entry: &&CheckpointEntry| state.drain().is_copied(entry) && !state.drain().is_drained(entry);
        wanted.extend(state.checkpoints().filter(unnamed).map(|entry| packs_of(vault, entry)));
        for packs in wanted {
            let copied = packs.and_then(|packs| {
                self.copy(ground, packs.iter().map(|(name, len)| (*name, *len)).collect(), is_ending, done)?;
                self.sync(packs.into_keys())
            });
            match copied {
                // One that is lost must not keep the others from being named.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {
                    tracing::debug!("what compaction has made cannot be drained: {error}");
                }
                done => done?,
            }
        }
        Ok(())
    }
}

/// Makes the names there follow a state, as far as packs are there. The record up to which they do, if all that has arrived is named.
pub(crate) fn follow(
    state: &State,
    vault: &Vault,
    target: &Target,
    is_there: impl Fn(PackName, u64) -> bool,
) -> Result<Option<u64>> {
    let all_there =
        |packs: Result<Packs>| packs.is_ok_and(|packs| packs.iter().all(|(&name, &len)| is_there(name, len)));
    let leads = |name: PackName, table: &Locator| all_there(packs_of_table(vault, name, table));
    let has = |entry: &CheckpointEntry| all_there(packs_of(vault, entry));
    // Where it is not there any more nor here, nothing names it.
    let may_end = |name: PackName| target.store.length(name).is_ok() || vault.store().length(name).is_err();
    let id = state.pool().id();
    let newest_condemned = state.condemned().values().copied().max();
    let there = target.catalog.append(true, &mut |there| {
        let known = there.drain().source();
        if known.is_some_and(|(source, _)| source != id) {
            return Err(Error::new(Kind::Conflict, "another pool drains to there"));
        }
        if known.is_none() && there.number() > 0 {
            return Err(Error::new(Kind::Conflict, "what was drained was made a repository of its own"));
        }
        let followed = known.map(|(_, number)| number);
        let Some(mirror) = state.mirror_to(there, id, has, leads, may_end) else { return Ok(Vec::new()) };
        // The number goes on where somebody waits for it: packs to be removed, and checkpoints that have arrived.
        let waited_for = newest_condemned.max(state.drain().unnamed());
        if mirror.is_idle() && waited_for <= followed && known.is_some() {
            return Ok(Vec::new());
        }
        Ok(vec![Op::Drain(DrainOp::Mirror(Box::new(mirror)))])
    })?;
    let followed = there.drain().source().map(|(_, number)| number);
    // One who follows what is newer, or what a power cut took back, says nothing about this state.
    Ok(followed.filter(|&number| number <= state.number() && state.is_named_in(&there)))
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
pub(crate) fn packs_of_table(vault: &Vault, old: PackName, at: &Locator) -> Result<Packs> {
    let table = vault.table(old, at)?;
    let new = table.packs.iter().chain([&at.pack]);
    Ok(new.map(|pack| (pack.name, pack.length)).collect())
}
