//! Listening, and one thread for each connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use stdchk_object::wire::Writer;
use stdchk_object::{Error, Kind, Result};

use super::limits::Clients;
use super::traffic::Traffic;
use crate::shelf::{Bulk, Source};
use crate::wire::{ANSWER, Channel, Key, Question, REFUSAL, STALE, STILL, TcpLink, encode_refusal, listen};

/// Connections at a time. Each costs a thread that mostly sleeps.
const CONNECTIONS_MAX: usize = 4096;
/// The part of all connections that one machine may have.
const CLIENT_PART: usize = 4;
/// Connections at a time of those who have not shown yet that they know the key.
const STRANGERS_MAX: usize = 512;
/// Files that a process may have open besides connections.
const OTHER_FILES: u64 = 256;
/// How often whoever waits for an answer hears that it is being worked on.
const STILL_EVERY: Duration = Duration::from_secs(2);
/// A thread that serves needs little of it.
const STACK_BYTES: usize = 256 << 10;
/// Whoever answers questions.
pub trait Service: Send + Sync {
    /// Answers one; what comes with it must be taken from `incoming`, or is passed over.
    fn answer(&self, question: Question, incoming: &mut Incoming) -> std::result::Result<Reply, Refusal>;
}

/// An answer.
#[derive(Default)]
pub struct Reply {
    /// Its body.
    pub body: Vec<u8>,
    /// Its bulk.
    pub bulk: Option<Box<dyn Bulk>>,
}

impl Reply {
    /// One that is only a body.
    pub fn of(write: impl FnOnce(&mut Writer)) -> Reply {
        let mut writer = Writer::new();
        write(&mut writer);
        Reply { body: writer.into_bytes(), bulk: None }
    }
}

/// Why a question is not answered.
pub enum Refusal {
    /// The asker must learn of this epoch first.
    Stale(u64),
    /// It cannot be done.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}

/// Where the bulk of a question comes from.
trait Feed {
    fn receive_bulk(&mut self, buffer: &mut [u8]) -> Result<()>;
    /// All of it has come; only now it may be believed.
    fn finish(&mut self) -> Result<()>;
}

impl Feed for Channel {
    fn receive_bulk(&mut self, buffer: &mut [u8]) -> Result<()> {
        Channel::receive_bulk(self, buffer)
    }

    fn finish(&mut self) -> Result<()> {
        Channel::finish(self)
    }
}

/// Of the same process.
impl Feed for &[u8] {
    fn receive_bulk(&mut self, buffer: &mut [u8]) -> Result<()> {
        let short = || Error::corrupt("a question with less bulk than it should have");
        let (now, rest) = self.split_at_checked(buffer.len()).ok_or_else(short)?;
        buffer.copy_from_slice(now);
        *self = rest;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Has a question of the same process answered.
pub(crate) fn answer_here(
    service: &dyn Service,
    question: Question,
    bulk: &[u8],
) -> std::result::Result<Reply, Refusal> {
    let (mut feed, len) = (bulk, bulk.len() as u64);
    service.answer(
        question,
        &mut Incoming { feed: &mut feed, len, left: len, is_finished: len == 0, is_lost: false },
    )
}

/// What comes with a question.
pub struct Incoming<'c> {
    feed: &'c mut dyn Feed,
    /// Bytes of it.
    pub len: u64,
    left: u64,
    /// Whether the code of the frame was received.
    is_finished: bool,
    /// Whether the connection is of no more use.
    is_lost: bool,
}

impl Incoming<'_> {
    /// All of it, if that is no more than so many bytes.
    pub fn object(&mut self, most: u64) -> Result<Vec<u8>> {
        if self.len > most {
            return Err(Error::invalid(format!("an object of {} bytes is too long", self.len)));
        }
        const STEP: u64 = 1 << 20;
        let mut bytes = Vec::new();
        while self.left > 0 {
            let start = bytes.len();
            bytes.resize(start + self.left.min(STEP) as usize, 0);
            self.fill(&mut bytes[start..])?;
        }
        self.finish()?;
        Ok(bytes)
    }
}

impl Source for Incoming<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let filled = self.feed.receive_bulk(buffer);
        self.left = self.left.saturating_sub(buffer.len() as u64);
        self.is_lost |= filled.is_err();
        filled
    }

    fn finish(&mut self) -> Result<()> {
        if self.is_finished {
            return Ok(());
        }
        if self.left > 0 {
            return Err(Error::corrupt("a frame with more bulk than it should have"));
        }
        let finished = self.feed.finish();
        self.is_finished = true;
        self.is_lost |= finished.is_err();
        finished
    }
}

/// A process that listens.
pub struct Server {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    traffic: Arc<Traffic>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, a host and a port; port 0 is any that is free. Questions are answered as soon as
    /// [`Server::serve`] says by whom.
    pub fn bind(address: &str) -> Result<(TcpListener, SocketAddr)> {
        listen(address)
    }

    /// Serves those who connect and know the key, until it is dropped.
    pub fn serve(listener: TcpListener, key: Key, service: Arc<dyn Service>) -> Result<Server> {
        let cannot = |error| Error::io("cannot serve", error);
        let address = listener.local_addr().map_err(cannot)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = is_ending.clone();
        let traffic = Arc::new(Traffic::default());
        let counts = traffic.clone();
        let accept = move || accept_all(&listener, &key, &service, &ending, &counts);
        let thread =
            std::thread::Builder::new().name("stdchk-accept".into()).spawn(accept).map_err(cannot)?;
        Ok(Server { address, is_ending, traffic, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What went through it.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // Wakes the one that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One of a limited number, for as long as it is kept.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>, most: usize) -> Option<Place> {
        let place = Place(count.clone());
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections that leave a process enough files.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES);
    usize::try_from(files).unwrap_or(usize::MAX).clamp(16, CONNECTIONS_MAX)
}

fn accept_all(
    listener: &TcpListener,
    key: &Key,
    service: &Arc<dyn Service>,
    is_ending: &Arc<AtomicBool>,
    traffic: &Arc<Traffic>,
) {
    let (connections, strangers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients = Arc::new(Clients::default());
    let most = connections_max();
    loop {
        let accepted = listener.accept();
        if is_ending.load(Ordering::Relaxed) {
            return;
        }
        let Ok((stream, from)) = accepted else {
            // Most likely too many files are open; some will be closed.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let places = (
            Place::take(&connections, most),
            Place::take(&strangers, STRANGERS_MAX),
            clients.enter(from.ip(), (most / CLIENT_PART).max(1)),
        );
        let (Some(place), Some(stranger), Some(client)) = places else {
            tracing::warn!("{from} is turned away: there are too many connections");
            continue;
        };
        let (key, service, ending) = (key.clone(), service.clone(), is_ending.clone());
        let traffic = traffic.clone();
        let talk = move || {
            let _places = (place, client);
            if let Err(error) = talk(stream, &key, &*service, (&ending, &traffic), stranger) {
                tracing::debug!("{from}: {error}");
            }
        };
        let spawned =
            std::thread::Builder::new().name("stdchk-serve".into()).stack_size(STACK_BYTES).spawn(talk);
        if let Err(error) = spawned {
            tracing::warn!("{from} is turned away: {error}");
        }
    }
}

/// Has a question without bulk answered, and says meanwhile that this goes on: who hears nothing may take the whole machine for lost.
fn answer_slowly(
    service: &dyn Service,
    question: Question,
    channel: &mut Channel,
) -> Result<std::result::Result<Reply, Refusal>> {
    std::thread::scope(|scope| {
        let (done, answered) = sync_channel(1);
        let span = tracing::Span::current();
        let asked = question.clone();
        let answer = move || span.in_scope(|| _ = done.send(answer_here(service, asked, &[])));
        let worker = std::thread::Builder::new().stack_size(STACK_BYTES);
        if worker.spawn_scoped(scope, answer).is_err() {
            // No thread can be had: then nothing is said meanwhile.
            return Ok(answer_here(service, question, &[]));
        }
        loop {
            match answered.recv_timeout(STILL_EVERY) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => channel.send(STILL, &[], &[])?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Kind::Io, "a question could not be answered"));
                }
            }
        }
    })
}

/// Has a question answered with which bulk may come, and takes all of that from the channel, whatever the answer is.
fn answer_with_bulk(
    service: &dyn Service,
    question: Result<Question>,
    bulk: u64,
    channel: &mut Channel,
) -> Result<std::result::Result<Reply, Refusal>> {
    let mut incoming =
        Incoming { len: bulk, left: bulk, is_finished: bulk == 0, is_lost: false, feed: channel };
    let answered = match question {
        // Those that take bulk do nothing before all of it has come, and with it the code of the frame. Nobody else may do anything
        // upon a frame of which nothing is proven.
        Ok(question) if question.takes_bulk() || bulk == 0 => service.answer(question, &mut incoming),
        Ok(_) => Err(Error::invalid("bytes that nobody asked for").into()),
        Err(error) => Err(error.into()),
    };
    let (is_finished, is_lost) = (incoming.is_finished, incoming.is_lost);
    if is_lost {
        return Err(Error::new(Kind::Io, "what came with a question is not what was sent"));
    }
    if !is_finished {
        channel.skip_bulk()?;
        channel.finish()?;
    }
    Ok(answered)
}

/// Answers what comes over one connection.
fn talk(
    stream: TcpStream,
    key: &Key,
    service: &dyn Service,
    (is_ending, traffic): (&AtomicBool, &Traffic),
    stranger: Place,
) -> Result<()> {
    let from = stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |from| from.to_string());
    let link = TcpLink::new(stream).map_err(|error| Error::io("a connection cannot be used", error))?;
    let mut channel = Channel::accept(Box::new(link), key)?;
    drop(stranger);
    while let Some(frame) = channel.receive(None)? {
        if is_ending.load(Ordering::Relaxed) {
            return Ok(());
        }
        traffic.asked(frame.kind, frame.bulk);
        let question = Question::decode(frame.kind, &frame.body);
        let span = question.as_ref().map(|question| question.span(frame.kind, "answered", &from));
        let _span = span.map(tracing::Span::entered);
        let answered = match question {
            Ok(question) if question.takes_long() && frame.bulk == 0 => {
                answer_slowly(service, question, &mut channel)?
            }
            question => answer_with_bulk(service, question, frame.bulk, &mut channel)?,
        };
        if answered.is_err() {
            traffic.refused();
        }
        match answered {
            Ok(reply) => {
                let slices = reply.bulk.as_ref().map(|bulk| bulk.slices()).unwrap_or_default();
                traffic.answered(slices.iter().map(|slice| slice.len() as u64).sum());
                channel.send(ANSWER, &reply.body, &slices)?;
            }
            Err(Refusal::Stale(epoch)) => {
                channel.send(STALE, &Reply::of(|w| w.varint(epoch)).body, &[])?;
            }
            Err(Refusal::Failed(error)) => channel.send(REFUSAL, &encode_refusal(&error), &[])?,
        }
    }
    Ok(())
}
