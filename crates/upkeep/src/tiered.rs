//! A store that has safe storage behind it: packs are put to the first, and read from the other one where the first has them no more.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, State};
use stdchk_engine::Vault;
use stdchk_object::pack::check_whole;
use stdchk_object::{Error, Kind, PackName, Result, SessionId};
use stdchk_store::Store;

use crate::drain::{Target, follow, packs_of_table};

/// Memory for reading the tables of compacted packs.
const MEMORY: usize = 16 << 20;
/// How long a pack that the first does not have is not looked for there again.
const GONE: Duration = Duration::from_secs(10);

/// Opens the place to which is drained.
pub type OpenTarget = dyn Fn(&str) -> Result<Target> + Send + Sync;

/// What is kept, and where it is drained to, if it is.
pub struct Tiered {
    first: Arc<dyn Store>,
    catalog: Arc<dyn Catalog>,
    open: Box<OpenTarget>,
    safe: Mutex<Option<(String, Target)>>,
    /// Packs that the first did not have a moment ago, and safe storage has.
    gone: Mutex<HashMap<PackName, Instant>>,
}

impl Tiered {
    /// What `first` has, and what the place has that `catalog` names.
    pub fn new(first: Arc<dyn Store>, catalog: Arc<dyn Catalog>, open: Box<OpenTarget>) -> Tiered {
        Tiered { first, catalog, open, safe: Mutex::default(), gone: Mutex::default() }
    }

    /// The place to which is drained now.
    fn safe(&self, state: &State) -> Result<Option<Target>> {
        let Some(place) = state.drain().to() else { return Ok(None) };
        let mut safe = self.safe.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((known, target)) = &*safe
            && known == place
        {
            return Ok(Some(target.clone()));
        }
        let target = (self.open)(place)?;
        *safe = Some((place.to_owned(), target.clone()));
        Ok(Some(target))
    }

    fn gone(&self) -> MutexGuard<'_, HashMap<PackName, Instant>> {
        self.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads from the first, or from where was drained to if that fails; looking for what is not there takes long, and is not done for
    /// each read.
    fn either<T>(&self, name: PackName, mut with: impl FnMut(&dyn Store) -> Result<T>) -> Result<T> {
        let is_gone = self.gone().get(&name).is_some_and(|since| since.elapsed() < GONE);
        if is_gone && let Ok(Some(target)) = self.catalog.state().and_then(|state| self.safe(&state)) {
            return with(&*target.store).or_else(|_| with(&*self.first));
        }
        let failure = match with(&*self.first) {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let done = self.or_safe(failure, with)?;
        self.gone().insert(name, Instant::now());
        Ok(done)
    }

    /// Tries the place to which is drained, where the first has failed; if that fails, too, the first failure is told.
    fn or_safe<T>(&self, failure: Error, with: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        if !matches!(failure.kind(), Kind::NotFound | Kind::Corrupt | Kind::Io) {
            return Err(failure);
        }
        let safe = self.catalog.state().and_then(|state| self.safe(&state));
        match safe {
            Ok(Some(target)) => with(&*target.store).map_err(|_| failure),
            Ok(None) => Err(failure),
            Err(error) => {
                tracing::warn!("what was drained cannot be asked: {error}");
                Err(failure)
            }
        }
    }

    /// Removes packs from where they were drained to. One stays while the names there are older than its condemnation, or do not know yet where
    /// compaction has put its chunks; the next collection finds it again.
    fn remove_safe(&self, names: &[PackName]) -> Result<()> {
        let state = self.catalog.state()?;
        let Some(target) = self.safe(&state)? else { return Ok(()) };
        let vault = Vault::new(self.first.clone(), state.clone(), MEMORY);
        let has = |name, len| target.store.length(name).is_ok_and(|there| there == len);
        follow(&state, &vault, &target, has)?;
        let there = target.catalog.state()?;
        let followed = there.drain().source().map_or(0, |(_, number)| number);
        let kept = forwarded_there(&state, &there, &target)?;
        let same = |name: &PackName| {
            let table = |state: &State| state.forwards().get(name).map(|forward| forward.table);
            table(&state) == table(&there)
        };
        let may_go = |name: &&PackName| {
            state.condemned().get(name).is_none_or(|&number| number <= followed)
                && !kept.contains(name)
                && same(name)
        };
        target.store.remove(&names.iter().filter(may_go).copied().collect::<Vec<_>>())
    }
}

/// The packs that are needed there by forwards which are not those of here: compaction has gone on, and what it made is not there yet.
fn forwarded_there(state: &State, there: &Arc<State>, target: &Target) -> Result<HashSet<PackName>> {
    let vault = Vault::new(target.store.clone(), there.clone(), MEMORY);
    let mut kept = HashSet::new();
    for (name, forward) in there.forwards() {
        if state.forwards().get(name).is_none_or(|here| here.table != forward.table) {
            kept.insert(*name);
            kept.extend(packs_of_table(&vault, *name, &forward.table)?.into_keys());
        }
    }
    Ok(kept)
}

impl Store for Tiered {
    /// Through the cache, whatever comes next: it is read again to be drained.
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.first.put(name, pieces)
    }

    fn keeps_room(&self) -> bool {
        self.first.keeps_room()
    }

    fn expect(&self, session: SessionId, writer: u32, packs: &[(PackName, u64)]) {
        self.first.expect(session, writer, packs);
    }

    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.first.replace(name, pieces)
    }

    /// What is in safe storage is safer than the first makes it.
    fn sync(&self, names: &[PackName]) -> Result<()> {
        match self.first.sync(names) {
            Ok(()) => Ok(()),
            Err(failure) => {
                let each = |name| {
                    let synced = self.first.sync(&[name]);
                    synced.or_else(|failure| self.or_safe(failure, |safe| safe.sync(&[name])))
                };
                if names.len() == 1 {
                    return self.or_safe(failure, |safe| safe.sync(names));
                }
                names.iter().copied().try_for_each(each)
            }
        }
    }

    fn length(&self, name: PackName) -> Result<u64> {
        self.either(name, |store| store.length(name))
    }

    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        self.either(name, |store| store.read_into(name, offset, buffers))
    }

    fn will_read(&self, name: PackName, range: Range<u64>) {
        self.first.will_read(name, range);
    }

    fn near(&self) -> u32 {
        self.first.near()
    }

    fn copies(&self) -> u32 {
        self.first.copies() + 1
    }

    /// The last copy is the one in safe storage.
    fn read_copy(&self, name: PackName, copy: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if copy == 0 {
            return self.read(name, offset, buffer);
        }
        if copy < self.first.copies() {
            return self.first.read_copy(name, copy, offset, buffer);
        }
        let missing = Error::new(Kind::NotFound, format!("there is no other copy of pack {name}"));
        self.or_safe(missing, |safe| safe.read(name, offset, buffer))
    }

    fn mend(&self, name: PackName) {
        self.first.mend(name);
    }

    fn is_sound(&self, name: PackName) -> Result<bool> {
        self.first.is_sound(name)
    }

    /// What the first has lost comes back from safe storage.
    fn heal(&self, name: PackName) -> Result<()> {
        let healed = self.first.heal(name);
        if self.first.is_sound(name).unwrap_or(false) {
            return healed;
        }
        let missing = Error::new(Kind::NotFound, format!("pack {name} is nowhere"));
        let whole = self.or_safe(missing, |safe| {
            let mut bytes = vec![0; safe.length(name)? as usize];
            safe.read(name, 0, &mut bytes)?;
            check_whole(name, &bytes).map(|()| bytes)
        });
        match whole {
            Ok(bytes) => self.first.replace(name, &[&bytes]).and_then(|()| self.first.sync(&[name])),
            Err(_) => healed,
        }
    }

    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
        let mut listed = HashSet::new();
        self.first.list(&mut |name, len| {
            listed.insert(name);
            each(name, len);
        })?;
        let safe = self.safe(&*self.catalog.state()?).and_then(|target| {
            let others = &mut |name, len| {
                if !listed.contains(&name) {
                    each(name, len);
                }
            };
            target.map_or(Ok(()), |target| target.store.list(others))
        });
        // What is not seen now is found by a later collection; until then the first must not fill up.
        if let Err(error) = safe {
            tracing::warn!("what was drained cannot be listed: {error}");
        }
        Ok(())
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        self.first.remove(names)?;
        if let Err(error) = self.remove_safe(names) {
            tracing::warn!("packs stay where they were drained to until a later collection: {error}");
        }
        Ok(())
    }
}
