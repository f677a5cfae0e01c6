//! The state in memory, and the order of decisions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stdchk_catalog::{Catalog, Decide, Op, Record, State, random};
use stdchk_object::{Error, Kind, Result, SessionId};
use stdchk_store_dir::fs::Fs;

use crate::files::Files;
use crate::journal::{Journal, Limits, Newer};
use crate::signs::{HeardSigns, Signs};

/// Records after which a snapshot is made.
const SNAPSHOT_EVERY: u64 = 4096;
/// Records that are kept in memory, for those who were here a little while ago.
const RECENT_MAX: usize = 4096;
/// How often a decision is made again because others were faster.
const RETRIES_MAX: u32 = 10_000;

/// A catalog in the memory of one process, and in a log that this process writes: alone, or with others who do the same.
pub struct LogCatalog {
    inner: Mutex<Inner>,
    /// Whoever writes holds this, and not the state.
    journal: Mutex<Box<dyn Journal>>,
    turn_ended: Condvar,
    beats: Box<dyn Signs>,
    limits: Limits,
    is_shared: bool,
    snapshot_every: u64,
}

struct Inner {
    /// Where all that was written leads to.
    state: Arc<State>,
    /// Where all decisions so far lead to.
    decided: State,
    /// Changes whenever what others were shown may not be so any more.
    boot: u64,
    /// The newest records that were written, as encoded.
    recent: VecDeque<Arc<[u8]>>,
    /// Records that the next turn writes.
    pending: Vec<Pending>,
    /// The newest record that may matter to savers: what they decided upon an earlier state has to be decided anew.
    barrier: u64,
    /// Records up to this one are durable; up to this one somebody waits for durability.
    durable: u64,
    wanted: u64,
    snapshot: u64,
    /// Whether somebody is writing; turns that have begun; the newest turn that has gone well.
    is_turn: bool,
    turns: u64,
    done: u64,
    /// The newest turn that has failed, and how.
    failed: (u64, String),
    /// How often everything was read anew.
    readings: u64,
    /// Whether what is in memory may be more than what is on the medium, which could not be read since.
    is_broken: bool,
    /// Whether what was read since has to be written anew.
    is_doubtful: bool,
}

/// A record on its way, and what became of it.
struct Pending {
    record: Record,
    sealed: Arc<[u8]>,
    fate: Arc<AtomicU8>,
}

const UNDECIDED: u8 = 0;
const WRITTEN: u8 = 1;
/// Others were faster.
const DROPPED: u8 = 2;
/// Nobody knows.
const FAILED: u8 = 3;

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

/// Upon what something was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upon {
    /// The boot, and the newest record that was known.
    pub boot: u64,
    /// See there.
    pub number: u64,
    /// Whether it stays right whatever savers do meanwhile; see [`Catalog::append_as_saver`].
    pub as_saver: bool,
}

/// What savers do to a state that other savers need not know.
fn is_savers(op: &Op) -> bool {
    matches!(
        op,
        Op::Open(_) | Op::AddPart(..) | Op::Commit(..) | Op::End(_) | Op::Restarted(..) | Op::Drain(_)
    )
}

impl LogCatalog {
    /// The catalog in a folder of files, of which this process must be the only user. `place` names it in messages.
    pub fn open(fs: Arc<dyn Fs>, place: &str) -> Result<LogCatalog> {
        LogCatalog::on(Box::new(Files::of(fs, place)), Box::new(HeardSigns::new(Duration::MAX)))
    }

    /// The catalog in a journal.
    pub fn on(mut journal: Box<dyn Journal>, beats: Box<dyn Signs>) -> Result<LogCatalog> {
        let state = journal.read()?;
        let shared = journal.shared();
        Ok(LogCatalog {
            inner: Mutex::new(Inner::new(state, shared)?),
            limits: journal.limits(),
            journal: Mutex::new(journal),
            turn_ended: Condvar::new(),
            beats,
            is_shared: shared.is_some(),
            snapshot_every: SNAPSHOT_EVERY,
        })
    }

    /// Makes snapshots after so many records: a shorter log, for more work.
    pub fn snapshot_every(self, records: u64) -> LogCatalog {
        LogCatalog { snapshot_every: records.max(1), ..self }
    }

    fn journal(&self) -> MutexGuard<'_, Box<dyn Journal>> {
        self.journal.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn locked(&self) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if inner.is_broken {
            let fresh = Inner::new(self.journal().read()?, None)?;
            let failed = std::mem::take(&mut inner.failed);
            let (turns, done, readings) = (inner.turns, inner.done, inner.readings + 1);
            *inner = Inner { turns, done, failed, readings, is_doubtful: true, ..fresh };
        }
        Ok(inner)
    }

    /// The same for those who want to append. After a failure what could not be written or synced may be read all the same, from the system's
    /// memory: before anything is built upon it, it is written anew.
    fn locked_to_append(&self) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.locked()?;
        if inner.is_doubtful {
            self.journal().snapshot(&inner.state)?;
            inner.is_doubtful = false;
        }
        Ok(inner)
    }

    /// What somebody lacks who knows the records up to `number` of `boot`.
    pub fn tail(&self, boot: u64, number: u64) -> Result<Tail> {
        let inner = self.locked()?;
        Ok(self.caught_up(inner, false)?.tail(boot, number))
    }

    /// Appends what was decided upon some state, if that is still the newest, or what came since does not matter.
    pub fn submit(&self, upon: Upon, ops: Vec<Op>, durable: bool) -> Result<Submitted> {
        // Who asks for durability is told of what is written anew, too.
        let is_write = durable || !ops.is_empty();
        let mut inner = if is_write { self.locked_to_append()? } else { self.locked()? };
        let mut accepted = false;
        if ops.is_empty() {
            let (boot, number) = (inner.boot, inner.decided.number());
            if durable {
                inner.wanted = number;
            }
            inner = self.caught_up(inner, durable)?;
            accepted = (boot, number) == (upon.boot, upon.number) && inner.state.number() == number;
        }
        while !accepted && !ops.is_empty() && inner.allows(upon, &ops)? {
            let (number, fate) = inner.append(ops.clone())?;
            (inner, accepted) = self.written(inner, number, &fate, durable)?;
            if !upon.as_saver {
                break;
            }
        }
        if !accepted {
            inner = self.caught_up(inner, false)?;
        }
        Ok(Submitted { accepted, tail: inner.tail(upon.boot, upon.number) })
    }

    /// Waits until somebody's record is written, or durable; says whether it is part of the log.
    fn written<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        number: u64,
        fate: &AtomicU8,
        durable: bool,
    ) -> Result<(MutexGuard<'a, Inner>, bool)> {
        let readings = inner.readings;
        if durable {
            inner.wanted = inner.wanted.max(number);
        }
        loop {
            let is_lost = inner.readings != readings || inner.is_broken;
            match fate.load(Ordering::Relaxed) {
                DROPPED => return Ok((inner, false)),
                FAILED => return Err(inner.failure()),
                WRITTEN if !durable || inner.durable >= number && !is_lost => return Ok((inner, true)),
                _ if is_lost => return Err(inner.failure()),
                _ => inner = self.next_turn(inner),
            }
        }
    }

    /// Waits until all that was decided until now, here and by others, is written, or durable.
    fn caught_up<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        durable: bool,
    ) -> Result<MutexGuard<'a, Inner>> {
        let (readings, number, turn) = (inner.readings, inner.decided.number(), inner.turns + 1);
        loop {
            if inner.readings != readings || inner.is_broken || self.is_shared && inner.failed.0 >= turn {
                return Err(inner.failure());
            }
            let reached = if durable { inner.durable } else { inner.state.number() };
            // What others write is found by a turn that begins only now.
            if if self.is_shared { inner.done >= turn } else { reached >= number } {
                return Ok(inner);
            }
            inner = self.next_turn(inner);
        }
    }

    /// Waits for the turn that somebody takes, or takes one.
    fn next_turn<'a>(&'a self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        if inner.is_turn {
            self.turn_ended.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner())
        } else {
            self.take_turn(inner)
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Writes all that is pending, and makes it durable if anybody waits for that; or finds what others have written.
    fn take_turn<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        inner.is_turn = true;
        inner.turns += 1;
        let most = self.limits.of(inner.pending.iter().map(|pending| pending.sealed.len()));
        let most = most.min(inner.pending.len());
        let records: Vec<Pending> = inner.pending.drain(..most).collect();
        let (known, sync) = (inner.state.number(), inner.wanted > inner.durable);
        drop(inner);
        let done = self.write(known, &records, sync);
        let mut inner = self.inner();
        let done = done.and_then(|newer| match newer {
            None => inner.take_written(&records, sync || self.is_shared).map(|()| self.note_beats(&records)),
            Some(newer) => inner.take_newer(newer, &records),
        });
        match done {
            Ok(()) => inner.done = inner.turns,
            Err(error) => inner.fail(error, &records, self.is_shared),
        }
        let is_due = inner.state.number() >= inner.snapshot + self.snapshot_every;
        if is_due && !inner.is_broken {
            let state = inner.state.clone();
            drop(inner);
            // The log stands without it; the next one gets another chance.
            if let Err(error) = self.journal().snapshot(&state) {
                tracing::warn!("the catalog's snapshot {} was not made: {error}", state.number());
            }
            inner = self.inner();
            inner.snapshot = state.number();
        }
        inner.is_turn = false;
        self.turn_ended.notify_all();
        inner
    }

    /// Hands records to the journal that follow record `known`. What others have written, where that comes first.
    fn write(&self, known: u64, records: &[Pending], sync: bool) -> Result<Option<Newer>> {
        let mut journal = self.journal();
        let sealed: Vec<Arc<[u8]>> = records.iter().map(|pending| pending.sealed.clone()).collect();
        let appended = !sealed.is_empty() && journal.append(known + 1, &sealed)?;
        if !appended && (self.is_shared || !sealed.is_empty()) {
            return journal.newer(known).map(Some);
        }
        if sync {
            journal.sync()?;
        }
        Ok(None)
    }

    /// Sessions that are opened are alive, and those that have ended matter no more.
    fn note_beats(&self, records: &[Pending]) {
        for op in records.iter().flat_map(|pending| &pending.record.ops) {
            match op {
                Op::Open(entry) => self.beats.begins(entry.id.0),
                Op::Commit(session, ..)
                | Op::Publish(session, ..)
                | Op::End(session)
                | Op::Fence(session)
                | Op::Forward(session, _) => {
                    self.beats.ends(session.0);
                }
                _ => {}
            }
        }
    }

    /// The newest state, by reference to what is in memory.
    fn newest(&self) -> Result<Arc<State>> {
        Ok(self.caught_up(self.locked()?, false)?.state.clone())
    }
}

impl Inner {
    fn new(state: State, shared: Option<u64>) -> Result<Inner> {
        let number = state.number();
        Ok(Inner {
            decided: state.clone(),
            state: Arc::new(state),
            boot: shared.map_or_else(|| random().map(u64::from_le_bytes), Ok)?,
            recent: VecDeque::new(),
            pending: Vec::new(),
            barrier: number,
            durable: number,
            wanted: number,
            snapshot: number,
            is_turn: false,
            turns: 0,
            done: 0,
            failed: (0, String::new()),
            readings: 0,
            is_broken: false,
            is_doubtful: false,
        })
    }

    /// Whether something may be the next record, by what it was decided upon. It is an error where that was the newest state, which forbids
    /// it.
    fn allows(&self, upon: Upon, ops: &[Op]) -> Result<bool> {
        let newest = self.decided.number();
        let may_follow = ops.iter().try_for_each(|op| self.decided.check(op));
        if (self.boot, newest) == (upon.boot, upon.number) {
            return may_follow.map(|()| true);
        }
        let is_near = self.boot == upon.boot && (self.barrier..=newest).contains(&upon.number);
        Ok(upon.as_saver && is_near && may_follow.is_ok())
    }

    /// Makes the next record, which was found to be allowed.
    fn append(&mut self, ops: Vec<Op>) -> Result<(u64, Arc<AtomicU8>)> {
        let number = self.decided.number() + 1;
        let record = Record::new(number, ops)?;
        self.decided.apply(&record)?;
        self.note_barrier(&record);
        let (sealed, fate) = (record.encode().into(), Arc::new(AtomicU8::new(UNDECIDED)));
        self.pending.push(Pending { record, sealed, fate: fate.clone() });
        Ok((number, fate))
    }

    fn note_barrier(&mut self, record: &Record) {
        if !record.ops.iter().all(is_savers) {
            self.barrier = self.barrier.max(record.number);
        }
    }

    /// Takes one record into the state that is shown.
    fn show(&mut self, record: &Record, sealed: Arc<[u8]>) -> Result<()> {
        Arc::make_mut(&mut self.state).apply(record)?;
        self.recent.push_back(sealed);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn take_written(&mut self, records: &[Pending], is_durable: bool) -> Result<()> {
        for pending in records {
            self.show(&pending.record, pending.sealed.clone())?;
            pending.fate.store(WRITTEN, Ordering::Relaxed);
        }
        if is_durable {
            self.durable = self.state.number();
        }
        Ok(())
    }

    /// Takes in what others have written; what was to be written here comes too late, if there is any.
    fn take_newer(&mut self, newer: Newer, records: &[Pending]) -> Result<()> {
        match newer {
            Newer::Records(newer) if newer.is_empty() && records.is_empty() => return Ok(()),
            Newer::Records(newer) => {
                for sealed in newer {
                    let record = Record::decode(self.state.number() + 1, &sealed)?;
                    self.note_barrier(&record);
                    self.show(&record, sealed)?;
                }
            }
            Newer::State(state) => {
                (self.barrier, self.snapshot) = (state.number(), state.number());
                self.state = Arc::new(*state);
                self.recent.clear();
            }
        }
        self.durable = self.state.number();
        self.drop_pending(records, DROPPED);
        Ok(())
    }

    fn drop_pending(&mut self, records: &[Pending], fate: u8) {
        let later = std::mem::take(&mut self.pending);
        records.iter().chain(&later).for_each(|pending| pending.fate.store(fate, Ordering::Relaxed));
        self.decided = (*self.state).clone();
    }

    /// Nobody knows what became of the records; where others write too, the next turn finds it.
    fn fail(&mut self, error: Error, records: &[Pending], is_shared: bool) {
        self.failed = (self.turns, error.to_string());
        self.drop_pending(records, FAILED);
        self.is_broken = !is_shared;
    }

    fn failure(&self) -> Error {
        let why = if self.failed.1.is_empty() { "an earlier write failed" } else { &self.failed.1 };
        Error::new(Kind::Io, format!("the catalog's log could not be written: {why}"))
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
        self.newest()
    }

    fn append(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        let mut inner = self.locked_to_append()?;
        for _ in 0..RETRIES_MAX {
            if self.is_shared {
                inner = self.caught_up(inner, false)?;
            }
            let ops = decide(&inner.decided)?;
            if ops.is_empty() {
                return Ok(self.caught_up(inner, false)?.state.clone());
            }
            ops.iter().try_for_each(|op| inner.decided.check(op))?;
            let (number, fate) = inner.append(ops)?;
            let (then, accepted) = self.written(inner, number, &fate, durable)?;
            if accepted {
                return Ok(then.state.clone());
            }
            inner = then;
        }
        Err(Error::new(Kind::Conflict, "others were faster too many times; try again"))
    }

    fn beat(&self, session: SessionId) -> Result<()> {
        self.beats.say(session.0, &[])
    }

    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>> {
        let state = self.newest()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unheard = state.sessions().iter().map(|(&id, session)| {
            let since = Duration::from_nanos(session.entry.since_ns.try_into().unwrap_or(0));
            (id, self.beats.unheard(now.saturating_sub(since)))
        });
        let heard = self.beats.ages()?.into_iter().map(|(id, age)| (SessionId(id), age));
        Ok(unheard.chain(heard).collect())
    }

    fn verify(&self) -> Result<Vec<String>> {
        drop(self.caught_up(self.locked()?, false)?);
        self.journal().check()
    }

    fn forget_beats(&self, sessions: &[SessionId]) -> Result<()> {
        self.beats.forget(&sessions.iter().map(|session| session.0).collect::<Vec<u64>>())
    }
}
