//! Seeing to it that packs lie where they belong, and as often as was promised.
//!
//! There is one way for all that: [`Keeper::secure`] goes down the order of a pack and gives it to whoever should have it and has not.
//! It serves the copies of what was just put, the repair after somebody was lost, and the moves after somebody came. Nobody looks after
//! the whole: each looks after what it holds.

mod giving;
mod rounds;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::Pool;
use stdchk_catalog_log::clock;
use stdchk_object::{Error, Item, Kind, PackName, Result};

use super::benefactor::Lend;
use super::limits::Rate;
use crate::client::View;
use crate::shelf::{Shelf, Usage};
use crate::wire::{Key, Load, Report};

use rounds::{REST, Round};

/// How long it is remembered that a pack was removed: longer than anything that was under way then.
const REMOVED: Duration = Duration::from_secs(180);
/// How long a shard that was made again is not made again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long others have to make what is missing of a pack.
const OTHERS: Duration = Duration::from_secs(5);

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

#[cfg(test)]
mod tests;
