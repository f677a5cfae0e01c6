//! The catalog over objects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_catalog::{Catalog, Decide, Op, Record, State, random};
use stdchk_object::{Error, Kind, Result, SessionId};
use stdchk_store::Objects;

use crate::log::{self, SNAPSHOT_EVERY, record_name};

/// How often an append is tried again because others were faster.
const RETRIES_MAX: u32 = 10_000;

/// A catalog kept as objects.
pub struct ObjectCatalog {
    objects: Arc<dyn Objects>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: Arc<State>,
    /// Records up to this one are known to survive a power cut.
    durable: u64,
}

impl ObjectCatalog {
    /// The catalog among `objects`; none there is an empty one.
    pub fn new(objects: Arc<dyn Objects>) -> ObjectCatalog {
        ObjectCatalog { objects, inner: Mutex::new(Inner { state: Arc::default(), durable: 0 }) }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves a state that was valid: it only ever changes by whole records.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts a record at its place in the log; says `false` if another one took it.
    fn put(&self, record: &Record, durable: bool, inner: &mut Inner) -> Result<bool> {
        if inner.durable + 1 < record.number {
            // A power cut must not take the record before this one and leave this one.
            self.objects.sync_folder("log")?;
            inner.durable = record.number - 1;
        }
        let name = record_name(record.number);
        if !self.create(&name, record, durable, &inner.state)? {
            return Ok(false);
        }
        // A writer that was late may have put it where trimmed records had been.
        if !log::has_predecessor(&*self.objects, record.number)? {
            self.objects.delete(&[name])?;
            return Ok(false);
        }
        if durable {
            inner.durable = record.number;
        }
        Ok(true)
    }

    /// As long as room that was kept is given up nobody begins anything: otherwise each save that fails would take some of it, by the record that ends it,
    /// until nothing can be removed any more.
    fn check_room(&self) -> Result<()> {
        if self.objects.keeps_room()? {
            return Ok(());
        }
        self.objects.keep_room()?;
        match self.objects.keeps_room()? {
            true => Ok(()),
            false => {
                Err(Error::new(Kind::Full, "the store is full: what is left is kept for removing something"))
            }
        }
    }

    /// Creates the object of a record. Where there is no space, room that was kept is given up for a record that leads
    /// to more.
    fn create(&self, name: &str, record: &Record, durable: bool, state: &State) -> Result<bool> {
        let bytes = record.encode();
        let frees = record.ops.iter().all(|op| state.frees(op));
        if record.ops.iter().any(|op| matches!(op, Op::Open(_)) && !state.frees(op)) {
            self.check_room()?;
        }
        loop {
            match self.objects.create(name, &bytes, durable) {
                Err(error) if error.kind() == Kind::Full && frees => {
                    // Others may take what was given up, but not for ever: there is only so much.
                    if !self.objects.give_room(bytes.len() as u64)? {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

impl Catalog for ObjectCatalog {
    fn state(&self) -> Result<Arc<State>> {
        let mut inner = self.locked();
        log::catch_up(&*self.objects, Arc::make_mut(&mut inner.state))?;
        Ok(inner.state.clone())
    }

    fn append(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        let mut inner = self.locked();
        for retry in 0..RETRIES_MAX {
            log::catch_up(&*self.objects, Arc::make_mut(&mut inner.state))?;
            let ops = decide(&inner.state)?;
            if ops.is_empty() {
                return Ok(inner.state.clone());
            }
            ops.iter().try_for_each(|op| inner.state.check(op))?;
            let record = Record::new(inner.state.number() + 1, ops)?;
            // What cannot be applied must not be there for others to find.
            let mut next = State::clone(&inner.state);
            next.apply(&record)?;
            if !self.put(&record, durable, &mut inner)? {
                pause(retry)?;
                continue;
            }
            inner.state = Arc::new(next);
            if record.number.is_multiple_of(SNAPSHOT_EVERY) {
                // The record stands whatever becomes of the snapshot; the next one gets another chance.
                if let Err(error) = log::snapshot(&*self.objects, &inner.state) {
                    tracing::warn!("the catalog's snapshot {} was not made: {error}", record.number);
                }
            }
            return Ok(inner.state.clone());
        }
        Err(Error::new(Kind::Conflict, "others were faster too many times; try again"))
    }

    fn verify(&self) -> Result<Vec<String>> {
        let mut problems = log::check_all(&*self.objects)?;
        // What is in memory proves nothing about what is stored.
        if let Err(error) = log::catch_up(&*self.objects, &mut State::default()) {
            problems.push(error.to_string());
        }
        Ok(problems)
    }

    fn beat(&self, session: SessionId) -> Result<()> {
        self.objects.replace(&format!("beats/{session}"), b"", false)
    }

    /// Its first heartbeat: a session of which there is none counts as silent.
    fn begins(&self, session: SessionId) -> Result<()> {
        self.beat(session)
    }

    fn ended(&self, session: SessionId) -> Result<()> {
        self.forget_beats(&[session])
    }

    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>> {
        let ages = self.objects.ages("beats")?;
        Ok(ages.into_iter().filter_map(|(name, age)| Some((name.parse().ok()?, age))).collect())
    }

    fn forget_beats(&self, sessions: &[SessionId]) -> Result<()> {
        let names: Vec<String> = sessions.iter().map(|session| format!("beats/{session}")).collect();
        self.objects.delete(&names)
    }
}

/// Waits a little, a random while that grows, so that many who lost the same race do not meet again.
fn pause(retry: u32) -> Result<()> {
    let [dice] = random::<1>()?;
    let limit_us = 50u64 << retry.min(7);
    std::thread::sleep(Duration::from_micros(limit_us * u64::from(dice) / 256));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_catalog::{Op, conformance};
    use stdchk_store::MemoryStore;
    use stdchk_store_dir::DirStore;

    #[test]
    fn passes_the_conformance_suite() {
        let objects = Arc::new(MemoryStore::new());
        conformance::catalog(&ObjectCatalog::new(objects.clone()));
        // A second handle reads the same.
        assert_eq!(ObjectCatalog::new(objects.clone()).state().unwrap().commits(), 3);
    }

    #[test]
    fn many_at_once_make_one_order() {
        let dir = tempfile::tempdir().unwrap();
        let handles: Vec<ObjectCatalog> = (0..6)
            .map(|i| {
                let store = DirStore::open(dir.path(), format!("test{i}"));
                store.prepare().unwrap();
                ObjectCatalog::new(Arc::new(store))
            })
            .collect();
        let handles: Vec<&dyn Catalog> = handles.iter().map(|handle| handle as &dyn Catalog).collect();
        conformance::at_once(&handles, 150);
        let left = std::fs::read_dir(dir.path().join("snapshots")).unwrap().count();
        assert!((1..=3).contains(&left), "{left} snapshots");
    }

    #[test]
    fn a_late_writer_does_not_slip_into_trimmed_records() {
        let objects = Arc::new(MemoryStore::new());
        let late = ObjectCatalog::new(objects.clone());
        late.state().unwrap();
        let busy = ObjectCatalog::new(objects.clone());
        for i in 0..1400u64 {
            busy.append(true, &mut |_| Ok(vec![conformance::writer(i, 1)])).unwrap();
            busy.append(true, &mut |_| Ok(vec![Op::End(SessionId(i))])).unwrap();
        }
        assert!(objects.get(&record_name(1)).unwrap().is_none(), "the first records were trimmed");
        // `late` believes in an empty log, and record 1 is free.
        late.append(true, &mut |_| Ok(vec![conformance::writer(9999, 1)])).unwrap();
        let state = busy.state().unwrap();
        assert_eq!(state.number(), 2801);
        assert!(state.sessions().contains_key(&SessionId(9999)));
    }

    #[test]
    fn a_damaged_mark_or_snapshot_is_survived() {
        let objects = Arc::new(MemoryStore::new());
        let catalog = ObjectCatalog::new(objects.clone());
        for i in 0..300u64 {
            catalog.append(true, &mut |_| Ok(vec![conformance::writer(i, 1)])).unwrap();
            catalog.append(true, &mut |_| Ok(vec![Op::End(SessionId(i))])).unwrap();
        }
        let whole = catalog.state().unwrap();
        objects.replace("mark", b"rubbish", true).unwrap();
        assert_eq!(*ObjectCatalog::new(objects.clone()).state().unwrap(), *whole);
        objects.replace("snapshots/0000000000000512", b"rubbish", true).unwrap();
        assert_eq!(*ObjectCatalog::new(objects).state().unwrap(), *whole);
    }
}
