//! The catalog that a manager keeps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_catalog::{Catalog, Decide, Op, Record, State};
use stdchk_catalog_log::clock;
use stdchk_object::wire::Reader;
use stdchk_object::{Error, Kind, Result, SessionId};

use super::Peer;
use super::peer::{Answer, Failure};
use crate::wire::Question;

/// How long a manager that cannot be reached is waited for, and between two tries.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// How often a decision is made again because others were faster.
const RETRIES_MAX: u32 = 10_000;
/// How often it is tried again after the log could not be written.
const FAILURES_MAX: u32 = 2;

/// A catalog that somebody else keeps, and what is known of it here.
pub struct PoolCatalog {
    manager: Arc<Peer>,
    known: Mutex<Known>,
}

/// How something is to be appended.
#[derive(Clone, Copy)]
struct How {
    as_saver: bool,
    durable: bool,
}

#[derive(Default)]
struct Known {
    boot: u64,
    state: Arc<State>,
}

impl PoolCatalog {
    /// The catalog of a manager.
    pub fn new(manager: Arc<Peer>) -> PoolCatalog {
        PoolCatalog { manager, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn catch_up(&self, known: &mut Known) -> Result<()> {
        let question = Question::Tail { boot: known.boot, number: known.state.number() };
        // One who never answered is more likely not there at all.
        let patience = if known.boot == 0 { Duration::ZERO } else { PATIENCE };
        let answer = self.patiently(patience, || self.manager.try_ask(&question, &[], None))?;
        let mut reader = Reader::new(&answer.body, "the manager's answer");
        known.take(&mut reader, &answer)?;
        reader.finish()
    }

    /// Asks again for a while where the manager cannot be reached: it may be starting again.
    fn patiently(
        &self,
        patience: Duration,
        ask: impl Fn() -> std::result::Result<Answer, Failure>,
    ) -> Result<Answer> {
        let begun = clock::now();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(Failure::Lost(error)) if error.kind() == Kind::Io && clock::since(begun) < patience => {
                    tracing::debug!("the manager does not answer: {error}");
                    clock::sleep(PAUSE);
                }
                Err(failure) => return Err(failure.into_error(self.manager.address())),
            }
        }
    }

    /// Appends what was decided; `None` where nobody knows whether that was done.
    fn submit(&self, known: &mut Known, ops: Vec<Op>, how: How) -> Result<Option<bool>> {
        let (boot, number, How { as_saver, durable }) = (known.boot, known.state.number(), how);
        let question = Question::Append { boot, number, as_saver, durable, ops };
        let answer = match self.manager.try_ask(&question, &[], None) {
            Ok(answer) => answer,
            Err(Failure::Lost(error)) if error.kind() == Kind::Io => {
                tracing::debug!("the manager does not answer: {error}");
                return Ok(None);
            }
            Err(failure) => return Err(failure.into_error(self.manager.address())),
        };
        let mut reader = Reader::new(&answer.body, "the manager's answer");
        let accepted = reader.u8()? == 1;
        known.take(&mut reader, &answer)?;
        reader.finish()?;
        Ok(Some(accepted))
    }

    fn append_how(&self, how: How, decide: &mut Decide) -> Result<Arc<State>> {
        let mut known = self.known();
        if known.boot == 0 {
            self.catch_up(&mut known)?;
        }
        // What may have been done although no answer came; it may also be done only later, on its way still.
        let mut doubtful: Vec<Vec<Op>> = Vec::new();
        let mut failures = 0;
        for _ in 0..RETRIES_MAX {
            if doubtful.iter().any(|ops| are_done(ops, &known.state)) {
                return self.confirm(&mut known, how.durable);
            }
            let decided = decide(&known.state).and_then(|ops| {
                ops.iter().try_for_each(|op| known.state.check(op))?;
                Ok(ops)
            });
            // What is known here may be old: an error counts only when it comes from the newest state.
            let (ops, failed) = match decided {
                Ok(ops) => (ops, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            let submitted = match self.submit(&mut known, ops.clone(), how) {
                // Whoever keeps the log may not know himself whether it was written.
                Err(error) if error.kind() == Kind::Io && failures < FAILURES_MAX => {
                    failures += 1;
                    None
                }
                submitted => submitted?,
            };
            match submitted {
                Some(false) => {}
                Some(true) => return failed.map_or_else(|| Ok(known.state.clone()), Err),
                None => {
                    self.catch_up(&mut known)?;
                    doubtful.push(ops);
                }
            }
        }
        Err(Error::new(Kind::Conflict, "others were faster too many times; try again"))
    }

    /// Makes sure that what was found to be done is as durable as it must be: whatever is durable is so with all before it.
    fn confirm(&self, known: &mut Known, durable: bool) -> Result<Arc<State>> {
        let begun = clock::now();
        while durable && self.submit(known, Vec::new(), How { as_saver: false, durable })? != Some(true) {
            if clock::since(begun) > PATIENCE {
                return Err(Error::new(Kind::Io, format!("{} does not answer", self.manager.address())));
            }
            clock::sleep(PAUSE);
        }
        Ok(known.state.clone())
    }
}

/// Whether a state is one in which these operations have been carried out, as far as their traces tell: what was opened is open, and what was
/// committed is there. What leaves no trace of its own is done again without harm.
fn are_done(ops: &[Op], state: &State) -> bool {
    let is_done = |op: &Op| match op {
        Op::Open(entry) => state.sessions().contains_key(&entry.id),
        Op::Commit(_, entry, _) => state.apps().get(&entry.app).is_some_and(|app| {
            app.checkpoints.of_step(entry.step).any(|there| there.manifest == entry.manifest)
        }),
        Op::AddPart(session, part, _) => state
            .sessions()
            .get(session)
            .is_some_and(|session| session.parts.iter().any(|there| there.head == part.head)),
        Op::Publish(_, entries, _) => entries.iter().all(|entry| {
            let files = state.apps().get(&entry.app);
            files.is_some_and(|files| {
                files.checkpoints.of_step(entry.step).any(|there| there.manifest == entry.manifest)
            })
        }),
        Op::Name(named) => state.tree().get(named.node.number) == Some(&**named),
        Op::Unname(parent, name, _) => state.tree().find(*parent, name).is_none(),
        Op::End(session) | Op::Fence(session) => !state.sessions().contains_key(session),
        Op::Forward(_, tables) => tables
            .iter()
            .all(|(pack, table)| state.forwards().get(pack).is_some_and(|forward| forward.table == *table)),
        _ => false,
    };
    !ops.is_empty() && ops.iter().all(is_done)
}

impl Known {
    /// Takes in what came since: `u64 boot, u8 whether a snapshot comes first, varint count, each varint length` of what is in the
    /// bulk.
    fn take(&mut self, reader: &mut Reader, answer: &Answer) -> Result<()> {
        let boot = reader.u64()?;
        let begins_anew = reader.u8()? == 1;
        let lengths = (0..reader.count(1)?).map(|_| reader.varint()).collect::<Result<Vec<u64>>>()?;
        let mut rest = &answer.bulk[..];
        for (at, &len) in lengths.iter().enumerate() {
            let len = usize::try_from(len).ok().filter(|&len| len <= rest.len());
            let (bytes, after) = rest.split_at(len.ok_or_else(|| reader.corrupt("ends too early"))?);
            rest = after;
            if at == 0 && begins_anew {
                self.state = Arc::new(State::decode(State::number_of(bytes)?, bytes)?);
            } else {
                let state = Arc::make_mut(&mut self.state);
                let record = Record::decode(state.number() + 1, bytes)?;
                state.apply(&record)?;
            }
        }
        self.boot = boot;
        Ok(())
    }
}

impl Catalog for PoolCatalog {
    fn state(&self) -> Result<Arc<State>> {
        let mut known = self.known();
        self.catch_up(&mut known)?;
        Ok(known.state.clone())
    }

    fn append(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        self.append_how(How { as_saver: false, durable }, decide)
    }

    fn append_as_saver(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        self.append_how(How { as_saver: true, durable }, decide)
    }

    fn beat(&self, session: SessionId) -> Result<()> {
        self.manager.ask(&Question::Beat { session }, &[]).map(drop)
    }

    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>> {
        self.manager.ask_for(&Question::BeatAges, |r| {
            (0..r.count(9)?).map(|_| Ok((SessionId(r.u64()?), Duration::from_millis(r.varint()?)))).collect()
        })
    }

    fn verify(&self) -> Result<Vec<String>> {
        self.manager
            .ask_for(&Question::Check, |r| (0..r.count(1)?).map(|_| r.string().map(str::to_owned)).collect())
    }

    fn forget_beats(&self, sessions: &[SessionId]) -> Result<()> {
        self.manager.ask(&Question::ForgetBeats { sessions: sessions.to_vec() }, &[]).map(drop)
    }
}
