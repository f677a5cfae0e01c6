//! Another process, and the connections to it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog_log::clock;
use stdchk_object::error::Context;
use stdchk_object::wire::Reader;
use stdchk_object::{Error, Item, Kind, Result};

use super::pace::{Pace, Watch};
use super::simulation::{Network, network};
use crate::server::{Refusal, Service, answer_here};
use crate::wire::{
    ANSWER, BUSY, Channel, Frame, Key, Offered, Question, REFUSAL, Report, STALE, STILL, connect,
    decode_refusal,
};

/// Connections that are kept for the next question.
const IDLE_MAX: usize = 16;
/// How long making a connection may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long nothing may be heard while an answer is waited for, and how long it may take where others have to be waited for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
const LONG_PATIENCE: Duration = Duration::from_secs(120);
/// How long somebody who could not be reached is not tried again, where there are others to ask.
const SUSPICION: Duration = Duration::from_secs(2);
/// How long somebody who was much slower than others is asked after them.
const SLOWNESS: Duration = Duration::from_secs(30);
/// How long somebody who has no room is asked after others.
const FULLNESS: Duration = Duration::from_secs(1);

/// Another process of the pool.
pub struct Peer {
    address: String,
    /// Where it may be, several for managers that keep the same names; and which of these answered last.
    ways: Vec<String>,
    current: AtomicUsize,
    /// Itself, where it is in this process.
    service: Option<Arc<dyn Service>>,
    /// Who it must be, where that matters: another one may listen there by now.
    member: Option<u64>,
    key: Key,
    idle: Mutex<Vec<Channel>>,
    suspected: Mutex<Option<Instant>>,
    /// How fast everybody is, where packs are exchanged; and since when this one is known to be slower.
    pace: Option<Arc<Pace>>,
    slow: Mutex<Option<Instant>>,
    /// Since when it has no room.
    full: Mutex<Option<Instant>>,
    /// It may be as slow as it likes until it has shown that it is not.
    is_borne: AtomicBool,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    /// Its body.
    pub body: Vec<u8>,
    /// Its bulk, where it was not received elsewhere.
    pub bulk: Vec<u8>,
}

/// Why there is no answer.
pub enum Failure {
    /// The other side knows a newer epoch.
    Stale(u64),
    /// It refused.
    Refused(Error),
    /// It could not be reached, or does not speak as it should.
    Lost(Error),
}

impl Failure {
    /// As an error about somebody.
    pub fn into_error(self, address: &str) -> Error {
        match self {
            Failure::Stale(epoch) => {
                let text = format!("{address} knows epoch {epoch}, which is newer");
                Error::new(Kind::Conflict, text)
            }
            Failure::Refused(error) => error.within(address.to_owned()),
            Failure::Lost(error) => error.within(format!("cannot ask {address}")),
        }
    }
}

impl Peer {
    /// A process that listens at `address`, or at one of several with commas between them.
    pub fn new(address: &str, key: Key) -> Peer {
        Peer {
            address: address.to_owned(),
            ways: address.split(',').map(str::to_owned).collect(),
            current: AtomicUsize::new(0),
            service: None,
            member: None,
            key,
            idle: Mutex::default(),
            suspected: Mutex::default(),
            pace: None,
            slow: Mutex::default(),
            full: Mutex::default(),
            is_borne: AtomicBool::new(false),
        }
    }

    /// One that this process is to itself; `place` names it in messages.
    pub fn here(place: &str, service: Arc<dyn Service>, key: Key) -> Peer {
        Peer { service: Some(service), ..Peer::new(place, key) }
    }

    /// The benefactor of that identity, which listens at `address`, and is compared with the others of the same pace.
    pub fn of_member(member: u64, address: &str, key: Key, pace: Arc<Pace>) -> Peer {
        Peer { member: Some(member), pace: Some(pace), ..Peer::new(address, key) }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn suspected(&self) -> MutexGuard<'_, Option<Instant>> {
        self.suspected.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn slow(&self) -> MutexGuard<'_, Option<Instant>> {
        self.slow.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether it could not be reached a moment ago, or is slow.
    pub fn is_suspected(&self) -> bool {
        self.suspected().is_some_and(|since| clock::since(since) < SUSPICION) || self.is_slow()
    }

    /// Whether it had no room a moment ago. Packs are not sent for nothing.
    pub fn is_full(&self) -> bool {
        self.full().is_some_and(|since| clock::since(since) < FULLNESS)
    }

    fn full(&self) -> MutexGuard<'_, Option<Instant>> {
        self.full.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether others were much faster a while ago.
    pub fn is_slow(&self) -> bool {
        self.slow().is_some_and(|since| clock::since(since) < SLOWNESS)
    }

    /// There is nobody else: it may take as long as it must.
    pub fn bear(&self) {
        *self.slow() = None;
        self.is_borne.store(true, Ordering::Relaxed);
    }

    fn connect(&self) -> Result<Channel> {
        let mut tries = self.ways.len();
        loop {
            let at = self.current.load(Ordering::Relaxed);
            match self.connect_to(&self.ways[at % self.ways.len()]) {
                Err(error) if error.kind() == Kind::Io && tries > 1 => {
                    tries -= 1;
                    let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
                }
                connected => return connected,
            }
        }
    }

    fn connect_to(&self, address: &str) -> Result<Channel> {
        let mut channel = Channel::begin(Box::new(connect(address, PATIENCE)?), &self.key)?;
        let Some(member) = self.member else { return Ok(channel) };
        let (kind, body) = Question::Who.encode();
        channel.send(kind, &body, &[])?;
        let answer = channel.receive(Some(ANSWER_PATIENCE))?;
        if answer.as_ref().is_some_and(|frame| frame.kind == BUSY) {
            return Err(busy());
        }
        if answer.is_some_and(|frame| frame.kind == ANSWER && frame.body == member.to_le_bytes()) {
            return Ok(channel);
        }
        Err(Error::new(Kind::Io, format!("{} is not benefactor {member:016x} any more", self.address)))
    }

    /// Asks, and receives the bulk of the answer into `buffers`, if there are any.
    pub fn try_ask(
        &self,
        question: &Question,
        bulk: &[&[u8]],
        buffers: Option<&mut [&mut [u8]]>,
    ) -> std::result::Result<Answer, Failure> {
        if let Some(service) = &self.service {
            return ask_here(&**service, question, bulk, buffers);
        }
        let asked = match network() {
            Some(network) => self.ask_simulated(&*network, question, bulk, buffers),
            None => self.exchange(question, bulk, buffers),
        };
        let is_lost = matches!(asked, Err(Failure::Lost(_)));
        *self.suspected() = is_lost.then(clock::now);
        if is_lost {
            // The others end where this one did.
            self.idle().clear();
        }
        if matches!(question, Question::Put { .. }) {
            let is_full = matches!(&asked, Err(Failure::Refused(error)) if error.kind() == Kind::Full);
            *self.full() = is_full.then(clock::now);
        }
        asked
    }

    /// Looks how long a pack takes that somebody else might bring, or take, faster. A shard has to go where it belongs.
    fn watch(&self, question: &Question) -> Watch<'_> {
        let is_pack = match question {
            Question::Read { .. } => true,
            Question::Put { item, .. } => item.shard.is_none(),
            _ => false,
        };
        let may_end = !self.is_borne.load(Ordering::Relaxed);
        Watch::begin(self.pace.as_deref().filter(|_| is_pack), may_end)
    }

    /// A transfer is over, and went as it should; or it did not, and another one is to be asked.
    fn judge(&self, watch: Watch, failure: Option<&Failure>) {
        if matches!(failure, Some(Failure::Lost(_))) && watch.is_over() {
            tracing::debug!("{} is slow", self.address);
            *self.slow() = Some(clock::now());
        }
        if watch.done(failure.is_none()) {
            *self.slow() = None;
            self.is_borne.store(false, Ordering::Relaxed);
        }
    }

    fn exchange(
        &self,
        question: &Question,
        bulk: &[&[u8]],
        buffers: Option<&mut [&mut [u8]]>,
    ) -> std::result::Result<Answer, Failure> {
        let mut watch = self.watch(question);
        let asked = self.exchange_watched(question, bulk, buffers, &mut watch);
        self.judge(watch, asked.as_ref().err());
        asked
    }

    fn exchange_watched(
        &self,
        question: &Question,
        bulk: &[&[u8]],
        buffers: Option<&mut [&mut [u8]]>,
        watch: &mut Watch,
    ) -> std::result::Result<Answer, Failure> {
        let (kind, body) = question.encode();
        let _span = question.span(kind, "asked", &self.address).entered();
        let is_silent = Cell::new(false);
        let say = |channel: &mut Channel, watch: &mut Watch| {
            watch.restart();
            channel.send_watched(kind, &body, bulk, &mut |bytes| watch.moved(bytes))?;
            match question.takes_long() {
                false => channel.receive(Some(watch.left(ANSWER_PATIENCE))),
                true => receive_long(channel, &is_silent),
            }
        };
        // A connection that was kept may have ended since. What has been asked already is asked again only where that does no harm.
        let kept = self.idle().pop().and_then(|mut channel| channel.is_open().then_some(channel));
        let resumed = match kept {
            None => None,
            Some(mut channel) => match say(&mut channel, watch) {
                Ok(Some(frame)) => Some((channel, frame)),
                // Others may see to the copies; whoever fell silent at that is not waited for once more.
                Err(error) if watch.is_over() || is_silent.get() => return Err(Failure::Lost(error)),
                _ if question.may_repeat() => None,
                Ok(None) => return Err(Failure::Lost(ended())),
                Err(error) => return Err(Failure::Lost(error)),
            },
        };
        let (mut channel, frame) = match resumed {
            Some(resumed) => resumed,
            None => {
                let mut channel = self.connect().map_err(Failure::Lost)?;
                let said = say(&mut channel, watch).and_then(|frame| frame.ok_or_else(ended));
                (channel, said.map_err(Failure::Lost)?)
            }
        };
        let answer = read_answer(&mut channel, frame, buffers, watch)?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(channel);
        }
        drop(idle);
        answer
    }

    fn ask_simulated(
        &self,
        network: &dyn Network,
        question: &Question,
        bulk: &[&[u8]],
        buffers: Option<&mut [&mut [u8]]>,
    ) -> std::result::Result<Answer, Failure> {
        let service = network.begin(&self.address, self.member).map_err(Failure::Lost)?;
        let answered = ask_here(&*service, question, bulk, buffers);
        network.end().map_err(Failure::Lost)?;
        answered
    }

    /// Asks whoever must answer.
    pub fn ask(&self, question: &Question, bulk: &[&[u8]]) -> Result<Answer> {
        self.try_ask(question, bulk, None).map_err(|failure| failure.into_error(&self.address))
    }

    /// Says what it may have, and hears whether it wants that.
    pub fn offer(&self, epoch: u64, item: Item, len: u64) -> std::result::Result<Offered, Failure> {
        let answer = self.try_ask(&Question::Offer { epoch, item, len }, &[], None)?;
        let mut reader = Reader::new(&answer.body, "answer");
        let offered = Offered::decode(&mut reader).and_then(|offered| reader.finish().map(|()| offered));
        offered.map_err(Failure::Lost)
    }

    /// Asks a manager what was heard of the benefactors, and how long ago.
    pub fn reports(&self) -> Result<Vec<(Report, Duration)>> {
        let one = |r: &mut Reader| Ok((Report::decode(r)?, Duration::from_millis(r.varint()?)));
        self.ask_for(&Question::Reports, |r| (0..r.count(17)?).map(|_| one(r)).collect())
    }

    /// Asks, and reads the body of the answer.
    pub fn ask_for<T>(&self, question: &Question, read: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let answer = self.ask(question, &[])?;
        let mut reader = Reader::new(&answer.body, "answer");
        let value = read(&mut reader).and_then(|value| reader.finish().map(|()| value));
        value.context(|| format!("{} answers what cannot be understood", self.address))
    }
}

/// Asks somebody in this process.
fn ask_here(
    service: &dyn Service,
    question: &Question,
    bulk: &[&[u8]],
    buffers: Option<&mut [&mut [u8]]>,
) -> std::result::Result<Answer, Failure> {
    let reply = answer_here(service, question.clone(), &bulk.concat()).map_err(|refusal| match refusal {
        Refusal::Stale(epoch) => Failure::Stale(epoch),
        Refusal::Failed(error) => Failure::Refused(error),
    })?;
    let mut bulk = reply.bulk.map(|bulk| bulk.slices().concat()).unwrap_or_default();
    if let Some(buffers) = buffers {
        let mut rest = &bulk[..];
        for buffer in buffers {
            let short = || Failure::Lost(Error::corrupt("an answer that is too short"));
            let (now, after) = rest.split_at_checked(buffer.len()).ok_or_else(short)?;
            buffer.copy_from_slice(now);
            rest = after;
        }
        bulk.clear();
    }
    Ok(Answer { body: reply.body, bulk })
}

/// Waits for an answer that takes long, as long as it is heard that it is being worked on; or says that nothing was heard any more.
fn receive_long(channel: &mut Channel, is_silent: &Cell<bool>) -> Result<Option<Frame>> {
    let begun = Instant::now();
    loop {
        let heard = Instant::now();
        let received = channel.receive(Some(ANSWER_PATIENCE));
        is_silent.set(received.is_err() && heard.elapsed() >= ANSWER_PATIENCE);
        let frame = received?;
        if frame.as_ref().is_none_or(|frame| frame.kind != STILL || frame.bulk > 0) {
            return Ok(frame);
        }
        if begun.elapsed() > LONG_PATIENCE {
            let text = format!("the other side has worked on an answer for {} s", LONG_PATIENCE.as_secs());
            return Err(Error::new(Kind::Io, text));
        }
    }
}

fn busy() -> Error {
    Error::new(Kind::Io, "the other side has no place for another connection at the moment")
}

fn ended() -> Error {
    Error::new(Kind::Io, "the other side has ended")
}

/// Takes an answer in. The outer failure ends the connection, the inner one does not.
fn read_answer(
    channel: &mut Channel,
    frame: Frame,
    buffers: Option<&mut [&mut [u8]]>,
    watch: &mut Watch,
) -> std::result::Result<std::result::Result<Answer, Failure>, Failure> {
    let mut bulk = Vec::new();
    let receive = || -> Result<()> {
        let wanted = buffers.as_ref().filter(|_| frame.kind == ANSWER);
        let wanted = wanted.map(|buffers| buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>());
        if wanted.is_some_and(|wanted| wanted != frame.bulk) {
            return Err(Error::corrupt("an answer of another length than was asked for"));
        }
        if frame.bulk == 0 {
            return Ok(());
        }
        match buffers {
            Some(buffers) if frame.kind == ANSWER => {
                for buffer in buffers.iter_mut() {
                    channel.receive_bulk_watched(buffer, &mut |bytes| watch.moved(bytes))?;
                }
            }
            _ => {
                const STEP: u64 = 1 << 20;
                while (bulk.len() as u64) < frame.bulk {
                    let start = bulk.len();
                    bulk.resize((start as u64 + STEP).min(frame.bulk) as usize, 0);
                    channel.receive_bulk_watched(&mut bulk[start..], &mut |bytes| watch.moved(bytes))?;
                }
            }
        }
        channel.finish()
    };
    receive().map_err(Failure::Lost)?;
    Ok(match frame.kind {
        ANSWER => Ok(Answer { body: frame.body, bulk }),
        REFUSAL => Err(Failure::Refused(decode_refusal(&frame.body))),
        STALE => {
            let epoch = Reader::new(&frame.body, "answer").varint().map_err(Failure::Lost)?;
            Err(Failure::Stale(epoch))
        }
        BUSY => return Err(Failure::Lost(busy())),
        other => return Err(Failure::Lost(Error::corrupt(format!("an answer of the kind {other}")))),
    })
}
