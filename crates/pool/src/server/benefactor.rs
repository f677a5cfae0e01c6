//! Lending: a shelf that others put packs on and read from.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Member, Op, PoolOp, State};
use stdchk_erasure::{Layout, TAIL_BYTES, is_whole};
use stdchk_object::pack::{PACK_BYTES_MAX, check_whole};
use stdchk_object::wire::Writer;
use stdchk_object::{Error, Item, Kind, PackName, Result};

use super::keeper::Keeper;
use super::limits::Gate;
use super::serve::{Incoming, Refusal, Reply, Server, Service};
use super::soft::SoftObjects;
use super::traffic::{Meter, Traffic};
use crate::client::Peer;
use crate::shelf::Shelf;
use crate::wire::{Key, Offered, Question, Report};

/// Packs that one answer lists.
const LIST_MAX: usize = 65_536;
/// Shards that one answer lists.
const LIST_SHARDS_MAX: usize = 256;
/// How often a benefactor says that it is alive while nobody hears it, and how soon it notices that it is to end.
const EVERY: Duration = Duration::from_millis(500);
/// Memory for copies that are checked, and how long others wait for some of it.
const COPIES: u64 = 512 << 20;
const TURN: Duration = Duration::from_secs(8);

/// What is lent, and to which pool.
pub struct Lend {
    /// What is lent.
    pub shelf: Arc<dyn Shelf>,
    /// As whom.
    pub member: Member,
    /// The names of the pool.
    pub catalog: Arc<dyn Catalog>,
    /// To whom it says that it is alive.
    pub manager: Arc<Peer>,
    /// The key of the pool.
    pub key: Key,
    /// Bytes in a second that are given away at most where nobody waits for that, if there is a limit.
    pub move_rate: Option<u64>,
}

/// A benefactor without threads and connections of its own: what it answers, and what it does by itself.
pub struct Station {
    keeper: Arc<Keeper>,
    service: Arc<BenefactorService>,
    watcher: Watcher,
}

impl Station {
    /// Joins the pool.
    pub fn join(lend: &Lend) -> Result<Station> {
        // One that comes back to its folder is a member already; but what it was doing before may never have been done.
        let join = |_: &State| Ok(vec![Op::Pool(PoolOp::Join(lend.member.clone()))]);
        let joined = lend.catalog.append(true, &mut { join })?;
        let keeper = Keeper::new(lend, joined.pool());
        let objects = SoftObjects::new(lend.member.capacity);
        let service = BenefactorService {
            keeper: keeper.clone(),
            catalog: lend.catalog.clone(),
            objects,
            copies: Gate::new(COPIES),
            arriving: Mutex::default(),
        };
        let watcher = Watcher {
            keeper: keeper.clone(),
            member: lend.member.clone(),
            pool: joined.pool().id(),
            catalog: lend.catalog.clone(),
            manager: lend.manager.clone(),
            is_ending: AtomicBool::default(),
            is_away: AtomicBool::default(),
            seen: Mutex::default(),
            meter: None,
        };
        Ok(Station { keeper, service: Arc::new(service), watcher })
    }

    /// What answers the questions of others.
    pub fn service(&self) -> Arc<dyn Service> {
        self.service.clone()
    }

    /// Does one thing for the packs that it holds, if there is something to do.
    pub fn keep(&self) {
        self.keeper.step();
    }

    /// Looks what the pool is like, and says how it is.
    pub fn watch(&self) {
        self.watcher.watch_once();
    }

    /// How it is.
    pub fn report(&self) -> Report {
        self.keeper.report()
    }

    /// Whether the pool has put it out for good: then it lends for nobody.
    pub fn is_evicted(&self) -> bool {
        self.keeper.is_evicted() && !self.is_away()
    }

    /// Whether it does not lend for now, because it said so itself.
    pub fn is_away(&self) -> bool {
        self.watcher.is_away.load(Ordering::Relaxed)
    }

    /// Says that it does not lend for now, and gives away what it holds. What nobody else takes stays. One that somebody else has put out of the pool is not
    /// away for now, but for good.
    pub fn step_back(&self) -> Result<()> {
        let (id, mut was_there) = (self.watcher.member.id, false);
        let left = self.watcher.catalog.append(true, &mut |state| {
            let there = state.pool().members().contains_key(&id);
            was_there |= there;
            Ok(if there { vec![Op::Pool(PoolOp::Leave(id))] } else { Vec::new() })
        });
        // Also where it is not known whether it was recorded.
        if was_there {
            self.watcher.is_away.store(true, Ordering::Relaxed);
        }
        self.keeper.take_epoch(left?.pool());
        Ok(())
    }

    /// Lends again, with what is left of what it held, if it has stepped back.
    pub fn come_back(&self) -> Result<()> {
        if !self.watcher.is_away.load(Ordering::Relaxed) {
            return Ok(());
        }
        let member = &self.watcher.member;
        let joined = self.watcher.catalog.append(true, &mut |state| {
            let there = state.pool().members().get(&member.id) == Some(member);
            Ok(if there { Vec::new() } else { vec![Op::Pool(PoolOp::Join(member.clone()))] })
        })?;
        self.watcher.is_away.store(false, Ordering::Relaxed);
        self.keeper.readmit(joined.pool());
        Ok(())
    }
}

/// A benefactor at work. Dropped, it is gone without a word, as after a crash; [`Benefactor::leave`] gives away first.
pub struct Benefactor {
    station: Arc<Station>,
    server: Option<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Benefactor {
    /// Joins the pool and serves at `listener`.
    pub fn join(lend: Lend, listener: std::net::TcpListener) -> Result<Benefactor> {
        let mut station = Station::join(&lend)?;
        station.keeper.start()?;
        let server = Server::serve(listener, lend.key, station.service())?;
        station.watcher.meter = Some(Mutex::new(Meter::new(server.traffic())));
        let station = Arc::new(station);
        let watching = station.clone();
        let thread =
            std::thread::Builder::new().name("stdchk-watch".into()).spawn(move || watching.watcher.watch());
        let thread = thread.map_err(|error| Error::io("cannot watch the pool", error))?;
        Ok(Benefactor { station, server: Some(server), thread: Some(thread) })
    }

    /// How it is.
    pub fn report(&self) -> Report {
        self.station.report()
    }

    /// Says how it is, also elsewhere.
    pub fn reporter(&self) -> impl Fn() -> Report + Send + use<> {
        let keeper = self.station.keeper.clone();
        move || keeper.report()
    }

    /// What went through it.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.server.as_ref().map(Server::traffic).unwrap_or_default()
    }

    /// Whether the pool has put it out for good: then it lends for nobody.
    pub fn is_evicted(&self) -> bool {
        self.station.is_evicted()
    }

    /// Packs that it still holds although the pool has put it out.
    pub fn packs_to_give(&self) -> u64 {
        if self.station.keeper.is_member() { 0 } else { self.report().packs }
    }

    /// Says that it does not lend for now, and gives away what it holds: [`Station::step_back`].
    pub fn step_back(&self) -> Result<()> {
        self.station.step_back()
    }

    /// Lends again: [`Station::come_back`].
    pub fn come_back(&self) -> Result<()> {
        self.station.come_back()
    }

    /// Says that it does not lend any more, gives away what it holds, for so long at most, and ends.
    pub fn leave(mut self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        // Whoever keeps the names may be starting again at this moment.
        while let Err(error) = self.step_back() {
            if begun.elapsed() >= patience {
                return Err(error);
            }
            std::thread::sleep(EVERY.min(patience));
        }
        while self.report().packs > 0 && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        let behind = self.report().packs;
        if behind == 0 {
            let Station { keeper, watcher, .. } = &*self.station;
            keeper.evict();
            say_last(&watcher.manager, keeper);
        }
        self.end();
        match behind {
            0 => Ok(()),
            packs => {
                let text = format!(
                    "{packs} packs could not be given to others; those that nobody else has are lost"
                );
                Err(Error::new(Kind::Io, text))
            }
        }
    }

    fn end(&mut self) {
        self.station.watcher.is_ending.store(true, Ordering::Relaxed);
        self.station.keeper.end();
        self.server = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Benefactor {
    fn drop(&mut self) {
        self.end();
    }
}

/// Looks now and then what the pool is like, and says how this benefactor is.
struct Watcher {
    keeper: Arc<Keeper>,
    member: Member,
    pool: u64,
    catalog: Arc<dyn Catalog>,
    manager: Arc<Peer>,
    is_ending: AtomicBool,
    /// It does not lend for now, because it said so itself.
    is_away: AtomicBool,
    /// Which pool was looked at last, where nothing is to be done about it.
    seen: Mutex<Option<Seen>>,
    /// What it has to do, where it serves.
    meter: Option<Mutex<Meter>>,
}

/// What tells one state of a pool from another, as far as benefactors care.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    pool: u64,
    epoch: u64,
    settled: u64,
}

/// Says how a benefactor is; what the pool is like, and for how many milliseconds nothing need be said.
fn say(manager: &Peer, report: Report) -> Result<(Seen, u64)> {
    manager.ask_for(&Question::Alive(report), |r| {
        Ok((Seen { pool: r.u64()?, epoch: r.varint()?, settled: r.varint()? }, r.varint()?))
    })
}

/// The last word of one that has given everything away: nobody need wait for it, or wonder what became of what it had.
fn say_last(manager: &Peer, keeper: &Keeper) {
    if let Err(error) = say(manager, keeper.report()) {
        tracing::debug!("nobody hears that this benefactor is done: {error}");
    }
}

impl Watcher {
    fn watch(&self) {
        while !self.is_ending.load(Ordering::Relaxed) {
            let (begun, pause) = (Instant::now(), self.watch_once());
            self.keeper.shelf().get_ahead();
            while begun.elapsed() < pause && !self.is_ending.load(Ordering::Relaxed) {
                std::thread::sleep((EVERY / 5).min(pause.saturating_sub(begun.elapsed())));
            }
        }
    }

    /// How long to wait until the next time.
    fn watch_once(&self) -> Duration {
        let meter = self.meter.as_ref().map(|meter| meter.lock().unwrap_or_else(PoisonError::into_inner));
        let load = meter.map(|mut meter| meter.load()).unwrap_or_default();
        let said = say(&self.manager, Report { load, ..self.keeper.report() });
        // Whoever was lost is not heard; that is seen in the names.
        let (now, pause) = match said {
            Ok((seen, pause)) => (Some(seen), Duration::from_millis(pause)),
            Err(error) => {
                tracing::debug!("nobody hears that this benefactor is alive: {error}");
                (None, EVERY)
            }
        };
        let is_known = now.is_some() && now == *self.seen();
        if !is_known && let Err(error) = self.look() {
            tracing::debug!("the pool's names cannot be read: {error}");
        }
        self.keeper.shelf().tidy();
        pause
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes in what the pool is like, and comes back to it after having been lost.
    fn look(&self) -> Result<()> {
        *self.seen() = None;
        let state = self.catalog.state()?;
        let pool = state.pool();
        if pool.id() != self.pool {
            // Its packs are not that pool's: nobody may be told there that they are needed no more.
            let text = format!("{} keeps another pool now", self.manager.address());
            return Err(Error::new(Kind::Conflict, text));
        }
        let is_away = self.is_away.load(Ordering::Relaxed);
        if pool.is_lost(self.member.id) && !is_away {
            tracing::warn!("the pool had lost this benefactor, which joins again");
            let join = |_: &State| {
                // It may step back at this very moment.
                let stays = !self.is_away.load(Ordering::Relaxed);
                Ok(Vec::from_iter(stays.then(|| Op::Pool(PoolOp::Join(self.member.clone())))))
            };
            self.keeper.take_epoch(self.catalog.append(true, &mut { join })?.pool());
            return Ok(());
        }
        self.keeper.take_epoch(pool);
        let belongs = pool.members().contains_key(&self.member.id);
        if !belongs && self.keeper.report().packs == 0 {
            self.keeper.evict();
            say_last(&self.manager, &self.keeper);
        }
        // Whoever does not belong looks again and again whether it is done.
        *self.seen() =
            belongs.then(|| Seen { pool: pool.id(), epoch: pool.epoch(), settled: pool.settled() });
        Ok(())
    }
}

struct BenefactorService {
    keeper: Arc<Keeper>,
    catalog: Arc<dyn Catalog>,
    objects: SoftObjects,
    /// Memory for copies that have to be checked.
    copies: Gate,
    /// What others are giving to this one.
    arriving: Mutex<HashSet<Item>>,
}

/// Something that another one is giving, for as long as he is.
struct Arriving<'s> {
    all: &'s Mutex<HashSet<Item>>,
    item: Item,
    is_first: bool,
}

impl Arriving<'_> {
    fn begin(all: &Mutex<HashSet<Item>>, item: Item) -> Arriving<'_> {
        let is_first = all.lock().unwrap_or_else(PoisonError::into_inner).insert(item);
        Arriving { all, item, is_first }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if self.is_first {
            self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.item);
        }
    }
}

impl BenefactorService {
    /// Refuses who knows an older epoch; learns of a newer one.
    fn check_epoch(&self, epoch: u64) -> std::result::Result<(), Refusal> {
        if epoch > self.keeper.epoch() {
            self.keeper.take_epoch(self.catalog.state()?.pool());
        }
        let known = self.keeper.epoch();
        if epoch < known { Err(Refusal::Stale(known)) } else { Ok(()) }
    }

    /// Takes a copy from another benefactor, who may not have what it was given: nobody sees it, and it takes the place of nothing,
    /// before every byte was checked.
    fn take_copy(
        &self,
        epoch: u64,
        item: Item,
        replaces: bool,
        incoming: &mut Incoming,
    ) -> std::result::Result<(), Refusal> {
        let _turn = match incoming.len {
            0..=PACK_BYTES_MAX => self.copies.take(incoming.len, TURN)?,
            _ => return Err(Error::invalid("what is given is longer than a pack may be").into()),
        };
        let _arriving = Arriving::begin(&self.arriving, item);
        let bytes = incoming.object(PACK_BYTES_MAX)?;
        check_item(item, &bytes)?;
        let shelf = self.keeper.shelf();
        if replaces && self.inspect(item).is_ok() {
            return Err(Error::new(Kind::Exists, format!("pack {item} is here, and whole")).into());
        }
        if self.keeper.epoch() != epoch {
            return Err(Refusal::Stale(self.keeper.epoch()));
        }
        shelf.take(item, bytes.len() as u64, replaces, &mut &bytes[..])?;
        shelf.sync(&[item])?;
        self.check_there(item)?;
        // While it was written the pool may have changed, and the round for that be over.
        if self.keeper.epoch() != epoch {
            self.keeper.copy_soon(item);
        }
        // Two shards with one benefactor are lost together: another one that is here should go.
        if item.shard.is_some() {
            let others = shelf.items_of(item.pack)?;
            others.into_iter().filter(|other| *other != item).for_each(|other| self.keeper.copy_soon(other));
        }
        Ok(())
    }

    /// What was removed while it came is not there.
    fn check_there(&self, item: Item) -> Result<()> {
        let checked = self.check_not_removed(item);
        if checked.is_err() {
            self.keeper.shelf().remove(&[item])?;
        }
        checked
    }

    fn check_not_removed(&self, item: Item) -> Result<()> {
        match self.keeper.is_removed(item.pack) {
            true => Err(Error::new(Kind::Fenced, format!("pack {} was removed", item.pack))),
            false => Ok(()),
        }
    }

    /// Reads something and checks every byte of it; its length.
    fn inspect(&self, item: Item) -> Result<u64> {
        let shelf = self.keeper.shelf();
        let length = shelf.length(item)?;
        check_item(item, &shelf.give(item, 0, length)?.slices().concat())?;
        Ok(length)
    }

    /// Takes a pack from a saver.
    fn take_new(
        &self,
        epoch: u64,
        item: Item,
        replaces: bool,
        incoming: &mut Incoming,
    ) -> std::result::Result<(), Refusal> {
        if item.shard.is_some() {
            return Err(Error::invalid("savers put packs, not shards").into());
        }
        let shelf = self.keeper.shelf();
        self.keeper.put_begins();
        shelf.take(item, incoming.len, replaces, incoming)?;
        self.check_there(item)?;
        // While it came the pool may have changed, and the round for that be over.
        if self.keeper.epoch() != epoch {
            if !replaces {
                shelf.remove(&[item])?;
            }
            return Err(Refusal::Stale(self.keeper.epoch()));
        }
        self.keeper.copy_soon(item);
        Ok(())
    }

    /// Makes packs as safe as the pool promises, of which there is something here.
    fn make_safe(&self, names: &[PackName]) -> Result<()> {
        let shelf = self.keeper.shelf();
        let items = names.iter().map(|&name| {
            let items = shelf.items_of(name)?;
            let first = items.first().copied();
            first.ok_or_else(|| Error::new(Kind::NotFound, format!("nothing of pack {name} is here")))
        });
        let items = items.collect::<Result<Vec<Item>>>()?;
        shelf.sync(&items)?;
        items.iter().try_for_each(|&item| match item.shard {
            None => self.keeper.settle(item),
            Some(index) => self.keeper.secure_all(item.pack, index),
        })
    }

    /// Whoever is about to give something waits, and sees whether that is needed, while another one is giving it.
    fn check_not_coming(&self, item: Item) -> Result<()> {
        match self.arriving.lock().unwrap_or_else(PoisonError::into_inner).contains(&item) {
            true => Err(Error::new(Kind::Conflict, format!("another one is giving {item}"))),
            false => Ok(()),
        }
    }

    /// Whether something is wanted that another one has.
    fn consider(&self, epoch: u64, item: Item, len: u64) -> std::result::Result<Offered, Refusal> {
        self.check_epoch(epoch)?;
        let shelf = self.keeper.shelf();
        let offered = match shelf.length(item) {
            Ok(length) if length == len => {
                shelf.sync(&[item])?;
                return Ok(Offered::There);
            }
            Ok(_) => Offered::Replaces,
            Err(_) => {
                self.check_not_coming(item)?;
                Offered::Wanted
            }
        };
        self.check_lending()?;
        self.check_not_removed(item)?;
        shelf.check_room(item, len)?;
        Ok(offered)
    }

    fn check_lending(&self) -> Result<()> {
        match self.keeper.is_evicted() {
            true => Err(Error::new(Kind::Io, "this benefactor does not lend any more")),
            false => Ok(()),
        }
    }

    /// How long something is, and of a shard its tail.
    fn length(&self, epoch: u64, item: Item) -> std::result::Result<Reply, Refusal> {
        let shelf = self.keeper.shelf();
        // Whoever is about to give it may wait and see whether that is needed.
        let length = shelf.length(item).or_else(|error| {
            if epoch > 0 {
                self.check_not_coming(item)?
            }
            Err(error)
        })?;
        let tail = item.shard.map(|_| tail_of(shelf, item, length)).transpose()?;
        if epoch > 0 {
            self.check_epoch(epoch)?;
            shelf.sync(&[item])?;
        }
        Ok(Reply::of(|w| {
            w.u64(length);
            w.raw(&tail.unwrap_or_default());
        }))
    }

    /// What is here, and how long the packs are.
    fn list(&self, after: Option<Item>) -> Result<Reply> {
        let shelf = self.keeper.shelf();
        let mut packs = shelf.list(after, LIST_MAX)?;
        // Each shard is looked into for the length of its pack.
        let shards = packs.iter().enumerate().filter(|(_, (item, _))| item.shard.is_some());
        if let Some((end, _)) = shards.map(|(at, item)| (at, *item)).nth(LIST_SHARDS_MAX) {
            packs.truncate(end);
        }
        let pack_len = |&(item, len): &(Item, u64)| -> u64 {
            let layout = || Layout::of_tail(item.pack, &tail_of(shelf, item, len).ok()?, len).ok();
            item.shard.and_then(|_| layout()).map_or(len, |(layout, _)| layout.pack_len())
        };
        Ok(Reply::of(|w: &mut Writer| {
            w.varint(packs.len() as u64);
            for pack in &packs {
                pack.0.encode(w);
                w.varint(pack_len(pack));
            }
        }))
    }
}

/// The end of a shard.
fn tail_of(shelf: &dyn Shelf, item: Item, len: u64) -> Result<Vec<u8>> {
    let at = len.checked_sub(TAIL_BYTES as u64);
    let at = at.ok_or_else(|| Error::corrupt(format!("shard {item} is too short")))?;
    Ok(shelf.give(item, at, TAIL_BYTES as u64)?.slices().concat())
}

/// Whether bytes are those of a pack, by the hashes in it, or of a shard, by its sums.
fn check_item(item: Item, bytes: &[u8]) -> Result<()> {
    let Some(index) = item.shard else { return check_whole(item.pack, bytes) };
    let tail = bytes.split_last_chunk::<TAIL_BYTES>().map_or(&[][..], |(_, tail)| tail);
    let (layout, _) = Layout::of_tail(item.pack, tail, bytes.len() as u64)?;
    match is_whole(item.pack, &layout, index, bytes) {
        true => Ok(()),
        false => Err(Error::corrupt(format!("shard {item} is damaged"))),
    }
}

impl Service for BenefactorService {
    fn answer(&self, question: Question, incoming: &mut Incoming) -> std::result::Result<Reply, Refusal> {
        let shelf = self.keeper.shelf();
        Ok(match question {
            Question::Put { epoch, item, replaces, is_copy } => {
                self.check_epoch(epoch)?;
                self.check_lending()?;
                match is_copy {
                    true => self.take_copy(epoch, item, replaces, incoming)?,
                    false => self.take_new(epoch, item, replaces, incoming)?,
                }
                Reply::default()
            }
            Question::Sync { epoch, names } => {
                self.check_epoch(epoch)?;
                self.make_safe(&names)?;
                Reply::default()
            }
            Question::Length { epoch, item } => self.length(epoch, item)?,
            Question::Offer { epoch, item, len } => {
                let offered = self.consider(epoch, item, len)?;
                Reply::of(|w| offered.encode(w))
            }
            Question::Who => Reply::of(|w| w.u64(self.keeper.id())),
            Question::Read { item, offset, len } => {
                Reply { bulk: Some(shelf.give(item, offset, len)?), ..Reply::default() }
            }
            Question::List { after } => self.list(after)?,
            Question::Remove { names } => {
                self.keeper.forget(&names)?;
                Reply::default()
            }
            Question::Drop { item } => {
                shelf.remove(&[item])?;
                Reply::default()
            }
            Question::Inspect { item } => {
                let _turn = self.copies.take(shelf.length(item)?, TURN)?;
                let length = self.inspect(item)?;
                Reply::of(|w| w.u64(length))
            }
            Question::Reserve { session, writer, wish } => {
                let keep = || shelf.keep_room((session, writer), wish);
                let room = if self.keeper.is_evicted() { 0 } else { keep() };
                Reply::of(|w| w.u64(room))
            }
            other => self.objects.answer(other, incoming)?,
        })
    }
}
