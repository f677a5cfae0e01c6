//! The state in memory, and the order of decisions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Decide, Op, Record, State, random};
use stdchk_object::{Error, Kind, Result, SessionId};
use stdchk_store_dir::fs::Fs;

use crate::files::Files;

/// Records after which a snapshot is made.
const SNAPSHOT_EVERY: u64 = 4096;
/// Records that are kept in memory, for those who were here a little while ago.
const RECENT_MAX: usize = 4096;

/// A catalog in the memory of one process, and in a log that only this process writes.
pub struct LogCatalog {
    fs: Arc<dyn Fs>,
    place: String,
    inner: Mutex<Inner>,
    /// Whoever writes holds these, and not the state.
    files: Mutex<Files>,
    turn_ended: Condvar,
    beats: Mutex<HashMap<SessionId, Instant>>,
    begun: Instant,
    snapshot_every: u64,
}

struct Inner {
    /// Where all decisions so far lead to.
    state: Arc<State>,
    /// Changes whenever what others were shown may not be so any more.
    boot: u64,
    /// The newest records, as encoded.
    recent: VecDeque<Arc<[u8]>>,
    /// Records that the next turn writes.
    pending: Vec<Arc<[u8]>>,
    /// Records up to these were written, and are durable; up to this one somebody waits for durability.
    written: u64,
    durable: u64,
    wanted: u64,
    snapshot: u64,
    /// Whether somebody is writing.
    is_turn: bool,
    /// The boot that ended because a write failed, and how that failed.
    failure: Option<(u64, String)>,
    /// Whether what is in memory may be more than what is on the medium, which could not be read since.
    is_broken: bool,
    /// Whether what was read since has to be written anew.
    is_doubtful: bool,
}

/// What somebody lacks who knows the records up to some number.
pub struct Tail {
    /// Of whose records it is.
    pub boot: u64,
    /// A state to begin with, where what he knows is of no use.
    pub snapshot: Option<Vec<u8>>,
    /// The records after that, as encoded.
    pub records: Vec<Arc<[u8]>>,
}

/// What became of a decision.
pub struct Submitted {
    /// Whether it is part of the log. Otherwise others were faster, and it has to be made again.
    pub accepted: bool,
    /// What came since the state that it was made upon, itself included.
    pub tail: Tail,
}

impl LogCatalog {
    /// The catalog in a folder of files, of which this process must be the only user. `place` names it in messages.
    pub fn open(fs: Arc<dyn Fs>, place: &str) -> Result<LogCatalog> {
        let (files, state) = Files::open(fs.clone(), place)?;
        Ok(LogCatalog {
            fs,
            place: place.to_owned(),
            inner: Mutex::new(Inner::new(state)?),
            files: Mutex::new(files),
            turn_ended: Condvar::new(),
            beats: Mutex::default(),
            begun: Instant::now(),
            snapshot_every: SNAPSHOT_EVERY,
        })
    }

    /// Makes snapshots after so many records: a shorter log, for more work.
    pub fn snapshot_every(self, records: u64) -> LogCatalog {
        LogCatalog { snapshot_every: records.max(1), ..self }
    }

    fn locked(&self) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if inner.is_broken {
            let mut files = self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let (reopened, state) = Files::open(self.fs.clone(), &self.place)?;
            let failure = inner.failure.take();
            *files = reopened;
            *inner = Inner { failure, is_doubtful: true, ..Inner::new(state)? };
        }
        Ok(inner)
    }

    /// The same for those who want to append. After a failure what could not be written or synced may be read all the same, from the system's
    /// memory: before anything is built upon it, it is written anew.
    fn locked_to_append(&self) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.locked()?;
        if inner.is_doubtful {
            let mut files = self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            files.snapshot(&inner.state)?;
            inner.is_doubtful = false;
        }
        Ok(inner)
    }

    /// What somebody lacks who knows the records up to `number` of `boot`.
    pub fn tail(&self, boot: u64, number: u64) -> Result<Tail> {
        let inner = self.locked()?;
        Ok(self.written(inner, false)?.tail(boot, number))
    }

    /// Appends what was decided upon the record `number` of `boot`, if that is still the newest.
    pub fn submit(&self, boot: u64, number: u64, ops: Vec<Op>, durable: bool) -> Result<Submitted> {
        // Who asks for durability is told of what is written anew, too.
        let mut inner = if ops.is_empty() && !durable { self.locked()? } else { self.locked_to_append()? };
        let accepted = (inner.boot, inner.state.number()) == (boot, number);
        if accepted {
            inner.append(ops)?;
        }
        let inner = self.written(inner, durable && accepted)?;
        Ok(Submitted { accepted, tail: inner.tail(boot, number) })
    }

    /// Waits until all that was decided until now is written, or durable; does it, if nobody else is at it.
    fn written<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        durable: bool,
    ) -> Result<MutexGuard<'a, Inner>> {
        let (boot, number) = (inner.boot, inner.state.number());
        if durable {
            inner.wanted = inner.wanted.max(number);
        }
        loop {
            if inner.boot != boot || inner.is_broken {
                let ended = inner.failure.as_ref().filter(|(ended, _)| *ended == boot);
                let why = ended.map_or("an earlier write failed", |(_, why)| why.as_str());
                return Err(Error::new(Kind::Io, format!("the catalog's log could not be written: {why}")));
            }
            if number <= if durable { inner.durable } else { inner.written } {
                return Ok(inner);
            }
            inner = if inner.is_turn {
                self.turn_ended.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner())
            } else {
                self.take_turn(inner)
            };
        }
    }

    /// Writes all that is pending, and makes it durable if anybody waits for that.
    fn take_turn<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        inner.is_turn = true;
        let records = std::mem::take(&mut inner.pending);
        let target = inner.state.number();
        let sync = inner.wanted > inner.durable;
        let snapshot = (target >= inner.snapshot + self.snapshot_every).then(|| inner.state.clone());
        drop(inner);
        let mut files = self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let done = files.append(&records).and_then(|()| if sync { files.sync() } else { Ok(()) });
        if let (Ok(()), Some(state)) = (&done, &snapshot)
            && let Err(error) = files.snapshot(state)
        {
            // The log stands without it; the next one gets another chance.
            tracing::warn!("the catalog's snapshot {} was not made: {error}", state.number());
        }
        drop(files);
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        inner.is_turn = false;
        match done {
            Ok(()) => {
                inner.written = target;
                inner.durable = if sync { target } else { inner.durable };
                inner.snapshot = if snapshot.is_some() { target } else { inner.snapshot };
            }
            Err(error) => {
                inner.failure = Some((inner.boot, error.to_string()));
                inner.is_broken = true;
            }
        }
        self.turn_ended.notify_all();
        inner
    }

    /// The newest state, by reference to what is in memory.
    fn with_state<T>(&self, look: impl FnOnce(&Arc<State>) -> T) -> Result<T> {
        let inner = self.locked()?;
        Ok(look(&self.written(inner, false)?.state))
    }

    fn beats(&self) -> MutexGuard<'_, HashMap<SessionId, Instant>> {
        self.beats.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    fn new(state: State) -> Result<Inner> {
        let number = state.number();
        Ok(Inner {
            state: Arc::new(state),
            boot: u64::from_le_bytes(random()?),
            recent: VecDeque::new(),
            pending: Vec::new(),
            written: number,
            durable: number,
            wanted: number,
            snapshot: number,
            is_turn: false,
            failure: None,
            is_broken: false,
            is_doubtful: false,
        })
    }

    /// Makes the next record.
    fn append(&mut self, ops: Vec<Op>) -> Result<()> {
        if ops.is_empty() {
            return Ok(());
        }
        ops.iter().try_for_each(|op| self.state.check(op))?;
        let number = self.state.number() + 1;
        let record = Record::new(number, ops)?;
        let sealed: Arc<[u8]> = record.encode().into();
        Arc::make_mut(&mut self.state).apply(&record)?;
        self.pending.push(sealed.clone());
        self.recent.push_back(sealed);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn tail(&self, boot: u64, number: u64) -> Tail {
        let newest = self.state.number();
        let missing = newest.checked_sub(number).and_then(|missing| usize::try_from(missing).ok());
        match missing.filter(|&missing| boot == self.boot && missing <= self.recent.len()) {
            Some(missing) => {
                let records = self.recent.iter().skip(self.recent.len() - missing).cloned().collect();
                Tail { boot, snapshot: None, records }
            }
            None => Tail { boot: self.boot, snapshot: Some(self.state.encode()), records: Vec::new() },
        }
    }
}

impl Catalog for LogCatalog {
    fn state(&self) -> Result<Arc<State>> {
        self.with_state(Arc::clone)
    }

    fn append(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        let mut inner = self.locked_to_append()?;
        let ops = decide(&inner.state)?;
        let nothing = ops.is_empty();
        inner.append(ops)?;
        Ok(self.written(inner, durable && !nothing)?.state.clone())
    }

    fn beat(&self, session: SessionId) -> Result<()> {
        self.beats().insert(session, Instant::now());
        Ok(())
    }

    /// After a start everybody counts as just heard of: nobody could say that he is alive while there was nobody to hear it.
    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>> {
        let open: Vec<SessionId> = self.with_state(|state| state.sessions().keys().copied().collect())?;
        let unheard = open.into_iter().map(|session| (session, self.begun.elapsed()));
        let beats = self.beats();
        let heard = beats.iter().map(|(session, beat)| (*session, beat.elapsed()));
        Ok(unheard.chain(heard).collect())
    }

    fn verify(&self) -> Result<Vec<String>> {
        drop(self.written(self.locked()?, false)?);
        self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).check()
    }

    fn forget_beats(&self, sessions: &[SessionId]) -> Result<()> {
        let mut beats = self.beats();
        sessions.iter().for_each(|session| _ = beats.remove(session));
        Ok(())
    }
}
