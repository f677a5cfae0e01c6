//! The catalog that a manager keeps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_catalog::{Catalog, Decide, Record, State};
use stdchk_object::wire::Reader;
use stdchk_object::{Error, Kind, Result, SessionId};

use super::Peer;
use super::peer::Answer;
use crate::wire::Question;

/// How often a decision is made again because others were faster.
const RETRIES_MAX: u32 = 10_000;

/// A catalog that somebody else keeps, and what is known of it here.
pub struct PoolCatalog {
    manager: Arc<Peer>,
    known: Mutex<Known>,
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
        let answer = self.manager.ask(&question, &[])?;
        let mut reader = Reader::new(&answer.body, "the manager's answer");
        known.take(&mut reader, &answer)?;
        reader.finish()
    }
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
        let mut known = self.known();
        if known.boot == 0 {
            self.catch_up(&mut known)?;
        }
        for _ in 0..RETRIES_MAX {
            let decided = decide(&known.state).and_then(|ops| {
                ops.iter().try_for_each(|op| known.state.check(op))?;
                Ok(ops)
            });
            // What is known here may be old: an error counts only when it comes from the newest state.
            let (ops, failed) = match decided {
                Ok(ops) => (ops, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            let nothing = ops.is_empty();
            let (boot, number) = (known.boot, known.state.number());
            let question = Question::Append { boot, number, durable, ops };
            let answer = self.manager.ask(&question, &[])?;
            let mut reader = Reader::new(&answer.body, "the manager's answer");
            let accepted = reader.u8()? == 1;
            known.take(&mut reader, &answer)?;
            reader.finish()?;
            match failed {
                _ if !accepted => {}
                Some(error) => return Err(error),
                None => {
                    debug_assert!(nothing || known.state.number() > number);
                    return Ok(known.state.clone());
                }
            }
        }
        Err(Error::new(Kind::Conflict, "others were faster too many times; try again"))
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
