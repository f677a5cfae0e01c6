//! Keeping the names for a pool that has no other catalog.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Leaver, Op, Pool, PoolOp, State};
use stdchk_catalog_log::clock;
use stdchk_catalog_log::{LogCatalog, Signs, Tail, Upon};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Kind, Result};
use stdchk_store::Objects;

use super::serve::{Incoming, Refusal, Reply, Service};
use crate::shelf::Bulk;
use crate::wire::{Question, Report};

/// The longest object.
const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// What a pool's members may keep here.
const OBJECTS: [&str; 2] = ["named", "stdchk"];

/// A catalog and a folder of small objects, for others.
pub struct ManagerService {
    catalog: Arc<LogCatalog>,
    objects: Arc<dyn Objects>,
    /// What benefactors say of themselves.
    signs: Box<dyn Signs>,
    /// Since when no sign of a benefactor is there.
    missed: Mutex<HashMap<u64, Instant>>,
    /// Benefactors that said that they hold nothing, and with which epoch they were done.
    done: Mutex<HashMap<u64, u64>>,
    /// How long nothing may be heard of a benefactor before it counts as lost, beside the time for which a sign lasts.
    grace: Duration,
}

/// How often a benefactor says that it is alive; where there are many, how much later for each. And how often at least, by a pool that has very little
/// patience.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_EACH: Duration = Duration::from_micros(500);
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Records and snapshots, as they lie in memory.
struct Records(Vec<Arc<[u8]>>);

impl Bulk for Records {
    fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(|record| &**record).collect()
    }
}

fn tail_reply(mut writer: Writer, tail: Tail) -> Reply {
    writer.u64(tail.boot);
    writer.u8(u8::from(tail.snapshot.is_some()));
    let records: Vec<Arc<[u8]>> = tail.snapshot.map(Arc::from).into_iter().chain(tail.records).collect();
    writer.varint(records.len() as u64);
    records.iter().for_each(|record| writer.varint(record.len() as u64));
    Reply { body: writer.into_bytes(), bulk: Some(Box::new(Records(records))) }
}

impl ManagerService {
    /// Serves `catalog` and `objects`. A benefactor is lost when its sign is too old, and then is not there for `grace`.
    pub fn new(
        catalog: Arc<LogCatalog>,
        objects: Arc<dyn Objects>,
        signs: Box<dyn Signs>,
        grace: Duration,
    ) -> ManagerService {
        ManagerService { catalog, objects, signs, missed: Mutex::default(), done: Mutex::default(), grace }
    }

    fn missed(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.missed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes how a benefactor is. When all say that they are done with an epoch it is settled.
    fn take_report(&self, report: Report) -> Result<Arc<State>> {
        let state = self.catalog.state();
        if state.as_ref().is_ok_and(|state| !state.pool().belongs(report.member)) {
            let text = format!("benefactor {:016x} does not belong to the pool any more", report.member);
            return Err(Error::new(Kind::Fenced, text));
        }
        if let Ok(state) = &state {
            self.note_done(state.pool(), [&report]);
        }
        // That it was heard counts also while the log cannot be read or written.
        let mut said = Writer::new();
        report.encode(&mut said);
        self.signs.say(report.member, &said.into_bytes())?;
        let state = state?;
        match report.settled > state.pool().settled() {
            true => self.settle(state),
            false => Ok(state),
        }
    }

    /// How long each of so many benefactors may be silent until it should say again that it is alive.
    pub fn pause(&self, members: usize) -> Duration {
        let most = (self.grace / 4).max(PAUSE_MIN);
        (PAUSE_EACH * u32::try_from(members).unwrap_or(u32::MAX)).max(PAUSE).min(most)
    }

    /// The newest epoch with which all say that they are done: all who lend, and those who have left and still give away. Nobody waits for those who are
    /// lost.
    fn settle(&self, state: Arc<State>) -> Result<Arc<State>> {
        let reports = self.reports()?;
        let pool = state.pool();
        let settled = |id: &u64| reports.get(id).map_or(0, |report| report.settled);
        let done = self.expected(pool).iter().map(settled).min().unwrap_or(0);
        if done <= pool.settled() {
            return Ok(state);
        }
        self.catalog.append(false, &mut |state| {
            let newer = done > state.pool().settled() && done <= state.pool().epoch();
            Ok(if newer { vec![Op::Pool(PoolOp::Settle(done))] } else { Vec::new() })
        })
    }

    /// What those said last who are there.
    fn reports(&self) -> Result<HashMap<u64, Report>> {
        Ok(decoded(&self.signs.present()?))
    }

    /// Whether somebody was not there for too long. One of whom nothing was heard since this process began has all its time before it.
    fn is_silent(&self, member: u64, is_there: bool) -> bool {
        let mut missed = self.missed();
        if is_there {
            missed.remove(&member);
            return false;
        }
        clock::since(*missed.entry(member).or_insert_with(clock::now)) > self.grace
    }

    /// Remembers who of those that leave have given everything away: they may end, and nobody waits for them.
    fn note_done<'r>(&self, pool: &Pool, reports: impl IntoIterator<Item = &'r Report>) {
        let mut done = self.done();
        done.retain(|&id, _| pool.belongs(id));
        // Of members it says nothing, and there may be thousands without packs.
        let has_left = |report: &&Report| !pool.members().contains_key(&report.member);
        let empty = reports.into_iter().filter(has_left).filter(|report| report.packs == 0);
        done.extend(empty.map(|report| (report.member, report.settled)));
    }

    fn done(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.done.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Who should be heard: those who lend, and those who have left and have not given everything away.
    fn expected(&self, pool: &Pool) -> BTreeSet<u64> {
        let done = self.done();
        let is_done = |leaver: &Leaver| done.get(&leaver.member.id).is_some_and(|&with| with >= leaver.epoch);
        let giving = pool.leavers().filter(|leaver| leaver.gives && !is_done(leaver));
        pool.members().keys().copied().chain(giving.map(|leaver| leaver.member.id)).collect()
    }

    /// Gives everybody all patience again: this process itself could not hear anybody for a while.
    pub fn forgive_silence(&self) {
        self.signs.forgive();
        self.missed().clear();
    }

    /// Takes those out of the pool who were not heard of for too long. As one of the benefactors, `member`, only while it is the first
    /// of those who are there: one of them is enough.
    pub fn evict_silent(&self, member: Option<u64>) -> Result<Vec<u64>> {
        let (state, present) = (self.catalog.state()?, self.signs.present()?);
        self.note_done(state.pool(), decoded(&present).values());
        let first = present.keys().copied().find(|&id| state.pool().belongs(id));
        if member.is_some() && first != member {
            self.missed().clear();
            return Ok(Vec::new());
        }
        self.missed().retain(|&id, _| state.pool().belongs(id));
        let expected = self.expected(state.pool()).into_iter();
        let silent: Vec<u64> = expected.filter(|id| self.is_silent(*id, present.contains_key(id))).collect();
        for &member in &silent {
            self.catalog.append(true, &mut |state| {
                let is_expected = self.expected(state.pool()).contains(&member);
                Ok(if is_expected { vec![Op::Pool(PoolOp::Lose(member))] } else { Vec::new() })
            })?;
        }
        // What was said by those who do not belong any more would stay for ever.
        let strangers: Vec<u64> = present.into_keys().filter(|&id| !state.pool().belongs(id)).collect();
        self.signs.forget(&strangers)?;
        Ok(silent)
    }
}

/// What is said by those who are there.
fn decoded(said: &BTreeMap<u64, Vec<u8>>) -> HashMap<u64, Report> {
    let report =
        |(&id, said): (&u64, &Vec<u8>)| Some((id, Report::decode(&mut Reader::new(said, "a report")).ok()?));
    said.iter().filter_map(report).collect()
}

fn check_object(name: &str) -> Result<()> {
    if OBJECTS.contains(&name) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name:?} is no name of an object that managers keep")))
}

/// An answer of yes or no.
pub(super) fn flag(flag: bool) -> Reply {
    Reply::of(|w| w.u8(u8::from(flag)))
}

impl Service for ManagerService {
    fn answer(&self, question: Question, incoming: &mut Incoming) -> std::result::Result<Reply, Refusal> {
        let done = |()| Reply::default();
        let catalog = &*self.catalog;
        let reply = match question {
            Question::Tail { boot, number } => tail_reply(Writer::new(), catalog.tail(boot, number)?),
            Question::Append { boot, number, as_saver, durable, ops } => {
                let submitted = catalog.submit(Upon { boot, number, as_saver }, ops, durable)?;
                let mut writer = Writer::new();
                writer.u8(u8::from(submitted.accepted));
                tail_reply(writer, submitted.tail)
            }
            Question::Beat { session } => catalog.beat(session).map(done)?,
            Question::BeatAges => {
                let ages = catalog.beat_ages()?;
                Reply::of(|w| {
                    w.varint(ages.len() as u64);
                    for (session, age) in ages {
                        w.u64(session.0);
                        w.varint(age.as_millis() as u64);
                    }
                })
            }
            Question::ForgetBeats { sessions } => catalog.forget_beats(&sessions).map(done)?,
            Question::Check => {
                let problems = catalog.verify()?;
                Reply::of(|w| {
                    w.varint(problems.len() as u64);
                    problems.iter().for_each(|problem| w.string(problem));
                })
            }
            Question::Alive(report) => {
                let state = self.take_report(report)?;
                let pool = state.pool();
                Reply::of(|w| {
                    w.u64(pool.id());
                    w.varint(pool.epoch());
                    w.varint(pool.settled());
                    w.varint(self.pause(pool.members().len()).as_millis() as u64);
                })
            }
            Question::Reports => {
                let (reports, ages) = (self.reports()?, self.signs.ages()?);
                Reply::of(|w| {
                    w.varint(reports.len() as u64);
                    for (id, report) in reports {
                        report.encode(w);
                        w.varint(ages.get(&id).map_or(0, |age| age.as_millis() as u64));
                    }
                })
            }
            Question::Create { name, durable } => {
                check_object(&name)?;
                flag(self.objects.create(&name, &incoming.object(OBJECT_BYTES_MAX)?, durable)?)
            }
            Question::Replace { name, durable } => {
                check_object(&name)?;
                self.objects.replace(&name, &incoming.object(OBJECT_BYTES_MAX)?, durable).map(done)?
            }
            Question::Get { name, offset, len } => {
                check_object(&name)?;
                let bytes = match (offset, len) {
                    (0, u64::MAX) => self.objects.get(&name)?,
                    _ => self.objects.get_range(&name, offset, usize::try_from(len).unwrap_or(usize::MAX))?,
                };
                let is_there = flag(bytes.is_some());
                Reply { bulk: bytes.map(|bytes| Box::new(bytes) as Box<dyn Bulk>), ..is_there }
            }
            Question::Delete { names } => {
                names.iter().try_for_each(|name| check_object(name))?;
                self.objects.delete(&names).map(done)?
            }
            Question::Put { .. }
            | Question::Sync { .. }
            | Question::Who
            | Question::Length { .. }
            | Question::Offer { .. }
            | Question::Read { .. }
            | Question::List { .. }
            | Question::Remove { .. }
            | Question::Names { .. }
            | Question::Inspect { .. }
            | Question::Reserve { .. }
            | Question::Drop { .. } => {
                return Err(Error::new(Kind::Unsupported, "a manager keeps no packs").into());
            }
        };
        Ok(reply)
    }
}
