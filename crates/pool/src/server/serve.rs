//! Listening, and one thread for each connection.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use stdchk_object::wire::Writer;
use stdchk_object::{Error, Kind, Result};

use super::limits::{Client, Clients, Stranger, Strangers};
use super::traffic::Traffic;
use crate::shelf::{Bulk, Source};
use crate::wire::{
    ANSWER, BUSY, Channel, Key, Question, REFUSAL, STALE, STILL, TcpLink, encode_refusal, listen,
};

/// Connections at a time. Each costs a thread that mostly sleeps.
const CONNECTIONS_MAX: usize = 4096;
/// The part of all connections that one machine may have.
const CLIENT_PART: usize = 4;
/// The part of that for those who have not shown yet that they know the key; each has a second file.
const STRANGERS_PART: usize = 8;
/// How long whoever cannot be served may take to ask something.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
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
        let places = Arc::new(Places::new(connections_max()));
        let accept = move || accept_all(&listener, &key, &service, &ending, &counts, &places);
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

/// Connections that leave a process enough files, also for strangers.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES);
    let most = usize::try_from(files).unwrap_or(usize::MAX);
    (most / 5 * 4).clamp(16, CONNECTIONS_MAX)
}

/// The places for connections.
struct Places {
    most: usize,
    /// Of those who know the key.
    taken: Arc<AtomicUsize>,
    clients: Arc<Clients>,
    strangers: Arc<Strangers>,
}

impl Places {
    fn new(most: usize) -> Places {
        let strangers = Strangers::new(most / STRANGERS_PART);
        Places { most, taken: Arc::default(), clients: Arc::default(), strangers }
    }

    /// A place for somebody who knows the key.
    fn take(&self, from: IpAddr) -> Option<(Place, Client)> {
        let place = Place::take(&self.taken, self.most)?;
        Some((place, self.clients.enter(from, (self.most / CLIENT_PART).max(1))?))
    }

    /// One for somebody who may not.
    fn meet(&self, stream: &TcpStream, from: IpAddr) -> std::io::Result<Stranger> {
        let other = stream.try_clone()?;
        let send_away = move || _ = other.shutdown(Shutdown::Both);
        Ok(self.strangers.enter(from, Box::new(send_away)))
    }
}

fn accept_all(
    listener: &TcpListener,
    key: &Key,
    service: &Arc<dyn Service>,
    is_ending: &Arc<AtomicBool>,
    traffic: &Arc<Traffic>,
    places: &Arc<Places>,
) {
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
        let stranger = match places.meet(&stream, from.ip()) {
            Ok(stranger) => stranger,
            Err(error) => {
                tracing::warn!("{from} is turned away: {error}");
                continue;
            }
        };
        let (key, service, ending) = (key.clone(), service.clone(), is_ending.clone());
        let (traffic, places) = (traffic.clone(), places.clone());
        let talk = move || {
            let talked = greet(stream, &key, stranger).and_then(|mut channel| {
                let Some(_place) = places.take(from.ip()) else { return send_away(&mut channel) };
                talk(&mut channel, from, &*service, &ending, &traffic)
            });
            if let Err(error) = talked {
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

/// Makes of a stranger one who knows the key.
fn greet(stream: TcpStream, key: &Key, stranger: Stranger) -> Result<Channel> {
    let link = TcpLink::new(stream).map_err(|error| Error::io("a connection cannot be used", error))?;
    let channel = Channel::accept(Box::new(link), key);
    drop(stranger);
    channel
}

/// Says to whoever asks something that there is no place for him.
fn send_away(channel: &mut Channel) -> Result<()> {
    tracing::warn!("somebody is sent away: there are too many connections");
    if let Some(frame) = channel.receive(Some(BUSY_PATIENCE))? {
        if frame.bulk > 0 {
            channel.skip_bulk()?;
            channel.finish()?;
        }
        channel.send(BUSY, &[], &[])?;
    }
    Ok(())
}

/// Answers what comes over one connection.
fn talk(
    channel: &mut Channel,
    from: SocketAddr,
    service: &dyn Service,
    is_ending: &AtomicBool,
    traffic: &Traffic,
) -> Result<()> {
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
                answer_slowly(service, question, channel)?
            }
            question => answer_with_bulk(service, question, frame.bulk, channel)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Failure, Peer};
    use crate::wire::Protection;

    struct Nobody;

    impl Service for Nobody {
        fn answer(&self, _: Question, _: &mut Incoming) -> std::result::Result<Reply, Refusal> {
            Ok(Reply::of(|w| w.u64(7)))
        }
    }

    /// Serves with so many places, of which a quarter is for each machine.
    fn serve(most: usize, key: &Key) -> String {
        let (listener, address) = Server::bind("127.0.0.1:0").unwrap();
        let (key, places) = (key.clone(), Arc::new(Places::new(most)));
        std::thread::spawn(move || {
            let service: Arc<dyn Service> = Arc::new(Nobody);
            accept_all(&listener, &key, &service, &Arc::default(), &Arc::default(), &places);
        });
        address.to_string()
    }

    #[test]
    fn for_whom_there_is_no_place_hears_that() {
        let key = Key::random(Protection::Plain).unwrap();
        let address = serve(4, &key);
        let first = Peer::new(&address, key.clone());
        let asked = first.ask(&Question::Who, &[]).unwrap();
        assert_eq!(asked.body, 7u64.to_le_bytes());
        let second = Peer::new(&address, key);
        let put = Question::Create { name: "named".into(), durable: false };
        match second.try_ask(&put, &[&[1; 100_000]], None) {
            Err(Failure::Lost(error)) => assert!(error.to_string().contains("no place"), "{error}"),
            _ => panic!("there are more places than there should be"),
        }
        drop(first);
        let begun = std::time::Instant::now();
        while second.ask(&Question::Who, &[]).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "a place that was given up stays taken");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Who says nothing keeps nobody out.
    #[test]
    fn strangers_make_room() {
        let key = Key::random(Protection::Plain).unwrap();
        let address = serve(64, &key);
        let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
        for _ in 0..10 {
            Peer::new(&address, key.clone()).ask(&Question::Who, &[]).unwrap();
        }
        drop(silent);
    }
}
