//! Seeing to it that packs lie where they belong, and as often as was promised.
//!
//! There is one way for all that: [`Keeper::secure`] goes down the order of a pack and gives it to whoever should have it and has not.
//! It serves the copies of what was just put, the repair after somebody was lost, and the moves after somebody came. Nobody looks after
//! the whole: each looks after what it holds.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::Pool;
use stdchk_catalog_log::clock;
use stdchk_object::{Error, Item, Kind, PackName, Result};

use super::benefactor::Lend;
use super::limits::Rate;
use crate::client::{Failure, View};
use crate::shelf::{Shelf, Usage};
use crate::wire::{Key, Load, Offered, Question, Report};

/// Packs that are looked at with one listing.
const BATCH: usize = 1024;
/// How long nothing must have been put before copies are made that nobody waits for: savers come first. And how long they may be
/// put off by that.
const YIELD: Duration = Duration::from_millis(400);
const YIELD_MAX: Duration = Duration::from_secs(3);
/// How long it is remembered that a pack was removed: longer than anything that was under way then.
const REMOVED: Duration = Duration::from_secs(180);
/// How long a shard that was made again is not made again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long, and how often, somebody is waited for who gives the same to the same.
const GIVING_WAIT: Duration = Duration::from_millis(10);
const GIVING_WAITS: u32 = 200;
/// How long others have to make what is missing of a pack.
const OTHERS: Duration = Duration::from_secs(5);
/// How long nothing is tried again that just failed; and how long at most, when it fails again and again and nothing changes.
const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(4);

/// Calls what it is given with the bytes of something.
pub(super) type Give<'g> = dyn FnMut(&dyn Fn(&[&[u8]]) -> std::result::Result<(), Failure>) -> Result<std::result::Result<(), Failure>>
    + 'g;

thread_local! {
    /// Bytes that this thread has given to others.
    static GIVEN: Cell<u64> = const { Cell::new(0) };
}

/// Looks after the packs of one benefactor.
pub struct Keeper {
    pub(super) id: u64,
    pub(super) shelf: Arc<dyn Shelf>,
    key: Key,
    /// At which rounds give away.
    rate: Option<Rate>,
    inner: Mutex<Inner>,
    changed: Condvar,
    is_ending: AtomicBool,
    is_evicted: AtomicBool,
}

struct Inner {
    view: Arc<View>,
    /// What was put and has to be copied, and since when.
    fresh: VecDeque<(Item, Instant)>,
    /// When something was put last, and when a round went on last.
    last_put: Instant,
    last_walk: Instant,
    /// What is being secured at this moment, and how many threads have taken something of what is fresh.
    at_work: HashSet<PackName>,
    copying: usize,
    /// What was removed, and when.
    removed: HashMap<PackName, Instant>,
    /// Shards that were made again, or could not be, and when.
    made_again: HashMap<Item, Instant>,
    /// Packs of which others should make the shards that are missing, and since when, in this epoch.
    left_to_others: HashMap<PackName, Instant>,
    /// The epoch by which everything here was seen to.
    settled: u64,
    /// How far the round through everything has come, and how many rounds have begun: only the newest counts.
    round: Option<Round>,
    rounds: u64,
    /// Whether a round is on its way, and whether another one must follow it.
    is_walking: bool,
    again: bool,
    /// Packs that this round has still to look at.
    behind: u64,
    /// How long to wait after a round that was not whole.
    rest: Duration,
    /// Who had no room since a round through everything began, and for how many bytes: one question tells enough for all packs.
    full: HashMap<u64, u64>,
}

/// A walk through all that is held, for an epoch.
#[derive(Clone, Copy)]
struct Round {
    number: u64,
    epoch: u64,
    after: Option<Item>,
    /// Whether everything so far was as it should be.
    is_whole: bool,
}

/// What a thread of the keeper does next.
enum Work {
    Copy(Item),
    Walk(Round, Arc<View>),
    Nothing,
}

impl Keeper {
    /// Looks after a shelf, by [`Keeper::step`].
    pub fn new(lend: &Lend, pool: &Pool) -> Arc<Keeper> {
        let rate = lend.move_rate.map(Rate::new);
        Keeper::of_shelf(lend.member.id, lend.shelf.clone(), lend.key.clone(), rate, pool)
    }

    fn of_shelf(id: u64, shelf: Arc<dyn Shelf>, key: Key, rate: Option<Rate>, pool: &Pool) -> Arc<Keeper> {
        let view = Arc::new(View::new(pool, None, &key));
        let inner = Inner {
            view,
            fresh: VecDeque::new(),
            last_put: clock::now(),
            last_walk: clock::now(),
            at_work: HashSet::new(),
            copying: 0,
            removed: HashMap::new(),
            made_again: HashMap::new(),
            left_to_others: HashMap::new(),
            settled: 0,
            round: None,
            rounds: 0,
            is_walking: false,
            again: false,
            behind: 0,
            rest: REST,
            full: HashMap::new(),
        };
        let keeper = Arc::new(Keeper {
            id,
            shelf,
            key,
            rate,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            is_ending: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
        });
        keeper.locked().begin_round(keeper.shelf.usage().packs);
        keeper
    }

    /// Has threads do what is to be done.
    pub fn start(self: &Arc<Keeper>) -> Result<()> {
        for thread in 0..2 {
            let keeper = self.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("stdchk-keep-{thread}"))
                .spawn(move || keeper.work());
            spawned.map_err(|error| Error::io("cannot look after packs", error))?;
        }
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whose packs these are.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it looks after.
    pub fn shelf(&self) -> &dyn Shelf {
        &*self.shelf
    }

    /// The epoch that is known here.
    pub fn epoch(&self) -> u64 {
        self.locked().view.current().number
    }

    /// Whether this benefactor belongs to the current epoch.
    pub fn is_member(&self) -> bool {
        self.locked().view.members().any(|(id, _)| id == self.id)
    }

    /// What is known of the pool.
    pub(super) fn view(&self) -> Arc<View> {
        self.locked().view.clone()
    }

    /// Removes all that is here of packs. What is under way of them must not come back: their names are never used again.
    pub fn forget(&self, names: &[PackName]) -> Result<()> {
        let mut inner = self.locked();
        inner.removed.retain(|_, since| clock::since(*since) < REMOVED);
        inner.removed.extend(names.iter().map(|&name| (name, clock::now())));
        drop(inner);
        names.iter().try_for_each(|&name| self.shelf.remove(&self.shelf.items_of(name)?))
    }

    /// Whether a shard may be made again: not where that was tried a moment ago. It may be with somebody who is not reached from here, and
    /// is given up again by whoever reaches him.
    pub(super) fn may_make_again(&self, item: Item) -> bool {
        let mut inner = self.locked();
        inner.made_again.retain(|_, since| clock::since(*since) < AGAIN);
        if inner.made_again.contains_key(&item) {
            return false;
        }
        inner.made_again.insert(item, clock::now());
        true
    }

    /// A shard was not made again after all, since there was no room.
    pub(super) fn was_not_made(&self, item: Item) {
        self.locked().made_again.remove(&item);
    }

    /// Whether another one may be waited for who should make what is missing of a pack: for a while, since he may not know, or not be able to.
    pub(super) fn may_leave_to_others(&self, name: PackName) -> bool {
        let mut inner = self.locked();
        clock::since(*inner.left_to_others.entry(name).or_insert_with(clock::now)) < OTHERS
    }

    /// Whether a pack was removed a moment ago.
    pub fn is_removed(&self, name: PackName) -> bool {
        self.locked().removed.contains_key(&name)
    }

    /// Whether the pool has put this benefactor out.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// The pool has put this benefactor out, and it has nothing left: it is done with every epoch.
    pub fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        let mut inner = self.locked();
        inner.settled = inner.view.current().number;
    }

    /// The pool has taken it in again.
    pub fn readmit(&self, pool: &Pool) {
        self.is_evicted.store(false, Ordering::Relaxed);
        self.take_epoch(pool);
        // A round for that epoch may have ended while this benefactor was out.
        self.locked().begin_round(self.shelf.usage().packs);
        self.changed.notify_all();
    }

    /// Ends all work.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let _inner = self.locked();
        self.changed.notify_all();
    }

    /// How this benefactor is; of its load nothing is known here.
    pub fn report(&self) -> Report {
        let usage = self.shelf.usage();
        let inner = self.locked();
        // Nothing is to be done only when a round is over, and was whole.
        let in_round = inner.behind.max(u64::from(inner.is_walking));
        let behind = in_round + (inner.fresh.len() + inner.at_work.len().max(inner.copying)) as u64;
        let Usage { capacity, used, packs, kept } = usage;
        let (settled, load) = (inner.settled, Load::default());
        Report { member: self.id, settled, capacity, used, kept, packs, behind, load }
    }

    /// Takes in what the pool is like. A new epoch begins a new round.
    pub fn take_epoch(&self, pool: &Pool) {
        let mut inner = self.locked();
        let (epoch, settled) = (pool.epoch(), pool.settled());
        let known = (inner.view.current().number, inner.view.epochs.last().map_or(0, |epoch| epoch.number));
        if (epoch, settled) == known || epoch < known.0 {
            return;
        }
        inner.view = Arc::new(View::new(pool, Some(&inner.view), &self.key));
        if epoch != known.0 {
            inner.left_to_others.clear();
            inner.rest = REST;
            inner.begin_round(self.shelf.usage().packs);
            self.changed.notify_all();
        }
    }

    /// Something is being put.
    pub fn put_begins(&self) {
        self.locked().last_put = clock::now();
    }

    /// Has a pack copied to those who should have it, too.
    pub fn copy_soon(&self, item: Item) {
        let mut inner = self.locked();
        inner.last_put = clock::now();
        if inner.view.class.replicas > 1 || inner.view.class.code.is_some() {
            inner.fresh.push_back((item, clock::now()));
            self.changed.notify_one();
        }
    }

    /// Somebody waits for copies: all are asked again for whom there was no room.
    pub(super) fn ask_again(&self) {
        self.locked().full.clear();
    }

    /// Secures, and gives up what need not stay.
    pub fn settle(&self, item: Item) -> Result<()> {
        let epoch = self.epoch();
        if !self.secure(item)? {
            self.give_up(epoch, item);
        }
        Ok(())
    }

    /// Gives a pack to those who should have it and have not; whether it must stay here. An error where there are fewer copies than were
    /// promised.
    ///
    /// It may go only when all those have it whom the order names if nobody refuses, and who all know the epoch by which it is named: these
    /// never give it up themselves. So it cannot be that two give it up at once, each because the other one has it.
    pub fn secure(&self, item: Item) -> Result<bool> {
        let name = item.pack;
        let _span = tracing::debug_span!("secure", pack = %item, session = %name.session).entered();
        let mut inner = self.locked();
        // Whoever is at it already does it for all; but he may have begun with an older epoch.
        while !inner.at_work.insert(name) {
            if clock::is_simulated() {
                return Err(Error::new(Kind::Conflict, format!("pack {name} is being seen to")));
            }
            inner = self.changed.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let view = inner.view.clone();
        drop(inner);
        let secured = match (item.shard, view.class.code) {
            (None, None) => self.secure_copies(&view, name),
            (None, Some(code)) => self.spread(&view, name, code),
            (Some(index), _) => self.secure_shard(&view, name, index),
        };
        self.locked().at_work.remove(&name);
        self.changed.notify_all();
        secured
    }

    fn secure_copies(&self, view: &View, name: PackName) -> Result<bool> {
        let mut failures = Vec::new();
        let give = |failures: &mut Vec<Error>| {
            let mut give_to =
                |id| self.give_to(view, id, name.into()).map_err(|error| failures.push(error)).is_ok();
            view.takers(name, |id| id == self.id || give_to(id))
        };
        let stays = view.members().any(|(id, _)| id == self.id);
        // Who leaves is done when all who can have it do.
        let most = if stays { usize::MAX } else { view.current().members.len().max(1) };
        let wanted = usize::from(view.class.replicas).min(most);
        let mut takers = give(&mut failures);
        if takers.len() < wanted && view.members().any(|(_, peer)| peer.is_slow()) {
            view.members().for_each(|(_, peer)| peer.bear());
            failures.clear();
            takers = give(&mut failures);
        }
        if takers.len() >= wanted {
            return Ok(stays && (takers.contains(&self.id) || takers != view.takers(name, |_| true)));
        }
        // Being here counts, too, for as long as there is nobody better; but not with one that leaves.
        let here = usize::from(stays && !takers.contains(&self.id) && self.shelf.length(name.into()).is_ok());
        if takers.len() + here >= wanted {
            return Ok(true);
        }
        let text = format!("pack {name} has {} of {wanted} copies", takers.len() + here);
        Err(short_of(text, failures))
    }

    /// Sees to it that another one has what is here, too: whole, and synced.
    pub(super) fn give_to(&self, view: &View, id: u64, item: Item) -> Result<()> {
        let length = self.shelf.length(item)?;
        self.give_bytes(view, id, item, length, &mut |put| {
            let bulk = self.shelf.give(item, 0, length)?;
            Ok(put(&bulk.slices()))
        })
    }

    /// The same of bytes that `with` has; it is asked for them only where they are missing.
    pub(super) fn give_bytes(
        &self,
        view: &View,
        id: u64,
        item: Item,
        length: u64,
        with: &mut Give,
    ) -> Result<()> {
        let peer = view.peer(id);
        let failed = |failure: Failure| failure.into_error(peer.address());
        let epoch = view.current().number;
        let (mut is_late, mut waits) = (false, 0);
        loop {
            let replaces = match self.offer(view, id, item, length) {
                Ok(Offered::There) => return Ok(()),
                Ok(offered) => offered == Offered::Replaces,
                // Another one is giving it at this moment; in a simulation he cannot go on while he is waited for.
                Err(Failure::Refused(error)) if error.kind() == Kind::Conflict => {
                    if waits < GIVING_WAITS && !clock::is_simulated() {
                        waits += 1;
                        clock::sleep(GIVING_WAIT);
                        continue;
                    }
                    false
                }
                Err(failure) => return Err(failed(failure)),
            };
            if item.shard.is_none() && peer.is_slow() {
                return Err(Error::new(Kind::Io, format!("{} was slow a while ago", peer.address())));
            }
            let question = Question::Put { epoch, item, replaces, is_copy: true };
            match with(&|pieces| peer.try_ask(&question, pieces, None).map(drop))? {
                Ok(_) => {
                    GIVEN.set(GIVEN.get() + length);
                    self.locked().rest = REST;
                    return Ok(());
                }
                // Another one has given it meanwhile; whether that is synced is asked again.
                Err(Failure::Refused(error)) if error.kind() == Kind::Exists && !is_late => is_late = true,
                Err(failure @ Failure::Stale(_)) => return Err(failed(failure)),
                Err(Failure::Refused(error)) if matches!(error.kind(), Kind::Fenced | Kind::Full) => {
                    return Err(error.within(peer.address().to_owned()));
                }
                // Whatever it lacks, it is not the pack that it was to get.
                Err(failure) => return Err(failed(failure).with_kind(Kind::Io)),
            }
        }
    }

    /// Asks another one whether something is wanted.
    pub(super) fn offer(
        &self,
        view: &View,
        id: u64,
        item: Item,
        length: u64,
    ) -> std::result::Result<Offered, Failure> {
        if self.locked().full.get(&id).is_some_and(|&refused| refused <= length) {
            return Err(Failure::Refused(Error::new(Kind::Full, "there was no room a moment ago")));
        }
        let offered = view.peer(id).offer(view.current().number, item, length);
        if matches!(&offered, Err(Failure::Refused(error)) if error.kind() == Kind::Full) {
            self.locked().note_full(id, length);
        }
        offered
    }

    fn work(&self) {
        while !self.is_ending.load(Ordering::Relaxed) {
            self.step();
        }
    }

    /// Does one thing of those that are to be done, or waits a little for one.
    pub fn step(&self) {
        match self.next_work() {
            Work::Copy(item) => {
                self.copy(item);
                self.locked().copying -= 1;
            }
            Work::Walk(round, view) => self.walk(round, &view),
            Work::Nothing => {}
        }
    }

    /// Waits for something to change. In a simulation it is looked at again later.
    fn pause(&self, inner: MutexGuard<Inner>, most: Duration) {
        if !clock::is_simulated() {
            drop(self.changed.wait_timeout(inner, most));
        }
    }

    /// What to do next: what was just put comes first. All of it waits while more is being put, for a while.
    fn next_work(&self) -> Work {
        let mut inner = self.locked();
        let quiet = clock::since(inner.last_put);
        let is_overdue = inner.round.is_some() && clock::since(inner.last_walk) > YIELD_MAX;
        let is_pressing =
            is_overdue || inner.fresh.front().is_some_and(|(_, since)| clock::since(*since) > YIELD_MAX);
        if quiet < YIELD && !is_pressing {
            self.pause(inner, YIELD - quiet);
            return Work::Nothing;
        }
        if !is_overdue && let Some((item, _)) = inner.fresh.pop_front() {
            inner.copying += 1;
            return Work::Copy(item);
        }
        if let Some(round) = inner.round.take() {
            inner.last_walk = clock::now();
            return Work::Walk(round, inner.view.clone());
        }
        self.pause(inner, REST);
        Work::Nothing
    }

    fn copy(&self, item: Item) {
        // Of copies none is given up but in a round.
        let is_coded = self.locked().view.class.code.is_some();
        let done = if is_coded { self.settle(item) } else { self.secure(item).map(drop) };
        match done {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                tracing::debug!("{error}");
                self.rest(REST);
                // The next round finds it again; one that is on its way is not begun anew for that.
                let mut inner = self.locked();
                match inner.is_walking {
                    true => inner.again = true,
                    false => inner.begin_round(self.shelf.usage().packs),
                }
            }
        }
    }

    /// Waits until a round may give away more. Whoever ends is not kept, nor is a round that is over.
    fn keep_rate(&self, mut inner: MutexGuard<Inner>, epoch: u64) {
        let Some(rate) = self.rate.as_ref().filter(|_| !clock::is_simulated()) else { return };
        loop {
            let wait = rate.wait();
            // Whoever leaves has no time for that.
            let stays = inner.view.members().any(|(id, _)| id == self.id);
            let is_over = inner.view.current().number != epoch;
            if wait.is_zero() || !stays || is_over || self.is_ending.load(Ordering::Relaxed) {
                return;
            }
            let waited = self.changed.wait_timeout(inner, wait);
            inner = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn rest(&self, most: Duration) {
        let inner = self.locked();
        if !self.is_ending.load(Ordering::Relaxed) {
            self.pause(inner, most);
        }
    }

    /// Goes on with a round: one batch.
    fn walk(&self, mut round: Round, view: &View) {
        if self.is_evicted() || round.epoch != view.current().number {
            return;
        }
        let packs = match self.shelf.list(round.after, BATCH) {
            Ok(packs) => packs,
            Err(error) => {
                tracing::warn!("what is held cannot be listed: {error}");
                self.rest(REST);
                return self.go_on(round);
            }
        };
        for &(item, _) in &packs {
            if self.is_ending.load(Ordering::Relaxed) || self.epoch() != round.epoch {
                return;
            }
            let given = GIVEN.get();
            let secured = self.secure(item);
            if let Some(rate) = &self.rate {
                rate.count(GIVEN.get() - given);
            }
            let is_done = match secured {
                Ok(stays) => {
                    if !stays {
                        self.give_up(round.epoch, item);
                    }
                    true
                }
                Err(error) if is_gone(&error) => true,
                Err(error) => {
                    tracing::debug!("{error}");
                    round.is_whole = false;
                    false
                }
            };
            let mut inner = self.locked();
            if inner.rounds == round.number {
                inner.behind = inner.behind.saturating_sub(u64::from(is_done));
            }
            self.keep_rate(inner, round.epoch);
        }
        match packs.last() {
            Some(&(last, _)) => {
                round.after = Some(last);
                self.go_on(round);
            }
            None if round.is_whole => self.end_round(round),
            None => {
                let mut inner = self.locked();
                let rest = inner.rest;
                inner.rest = (rest * 2).min(REST_MAX);
                drop(inner);
                self.rest(rest);
                self.go_on(Round { after: None, is_whole: true, ..round });
            }
        }
    }

    /// Everything was as it should be.
    fn end_round(&self, round: Round) {
        let mut inner = self.locked();
        if inner.rounds != round.number {
            return;
        }
        inner.settled = inner.settled.max(round.epoch);
        (inner.behind, inner.is_walking) = (0, false);
        if std::mem::take(&mut inner.again) {
            inner.begin_round(self.shelf.usage().packs);
        }
    }

    /// Removes what others have, unless there is a newer epoch, by which they may have been told so no more.
    fn give_up(&self, epoch: u64, item: Item) {
        let inner = self.locked();
        if inner.view.current().number == epoch
            && let Err(error) = self.shelf.remove(&[item])
        {
            tracing::debug!("{error}");
        }
    }

    /// Another thread, or this one later, does what is left of a round, unless a newer one has begun meanwhile.
    fn go_on(&self, round: Round) {
        let mut inner = self.locked();
        if inner.rounds != round.number {
            return;
        }
        if round.after.is_none() {
            inner.behind = self.shelf.usage().packs;
            inner.full.clear();
        }
        inner.round = Some(round);
        self.changed.notify_one();
    }
}

/// Whether there is nothing to be done about a pack: it is not here any more; or it was removed while this benefactor was not there to hear of it, and the
/// next collection finds it here.
fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Fenced)
}

/// Why there are too few of something: because it was removed, or whatever was said first.
pub(super) fn short_of(text: String, failures: Vec<Error>) -> Error {
    let of = |kind: Kind| failures.iter().position(|error| error.kind() == kind);
    let telling = of(Kind::Fenced).or_else(|| of(Kind::Full)).unwrap_or(0);
    match failures.into_iter().nth(telling) {
        Some(error) => error.within(text),
        None => Error::new(Kind::Io, format!("{text}: the pool has too few benefactors")),
    }
}

impl Inner {
    /// Somebody has no room for so many bytes.
    fn note_full(&mut self, id: u64, length: u64) {
        let least = self.full.entry(id).or_insert(length);
        *least = length.min(*least);
    }

    fn begin_round(&mut self, packs: u64) {
        self.behind = packs;
        self.full.clear();
        self.is_walking = true;
        self.rounds += 1;
        let (number, epoch) = (self.rounds, self.view.current().number);
        self.round = Some(Round { number, epoch, after: None, is_whole: true });
    }
}

#[cfg(test)]
mod tests;
