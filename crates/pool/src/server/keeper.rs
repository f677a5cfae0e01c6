//! Seeing to it that packs lie where they belong, and as often as was promised.
//!
//! There is one way for all that: [`Keeper::secure`] goes down the order of a pack and gives it to whoever should have it and has not.
//! It serves the copies of what was just put, the repair after somebody was lost, and the moves after somebody came. Nobody looks after
//! the whole: each looks after what it holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::Pool;
use stdchk_object::{Error, Item, Kind, PackName, Result};

use crate::client::{Failure, View};
use crate::shelf::Shelf;
use crate::wire::{Key, Question, Report};

/// Packs that are looked at with one listing.
const BATCH: usize = 1024;
/// How long nothing must have been put before copies are made that nobody waits for: savers come first. And how long they may be
/// put off by that.
const YIELD: Duration = Duration::from_millis(400);
const YIELD_MAX: Duration = Duration::from_secs(3);
/// How long it is remembered that a pack was removed: longer than anything that was under way then.
const REMOVED: Duration = Duration::from_secs(180);
/// How long nothing is tried again that just failed.
const REST: Duration = Duration::from_millis(500);

/// Calls what it is given with the bytes of something.
pub(super) type Give<'g> = dyn FnMut(&dyn Fn(&[&[u8]]) -> std::result::Result<(), Failure>) -> Result<std::result::Result<(), Failure>>
    + 'g;

/// Looks after the packs of one benefactor.
pub struct Keeper {
    pub(super) id: u64,
    pub(super) shelf: Arc<dyn Shelf>,
    key: Key,
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
    /// What is being secured at this moment.
    at_work: HashSet<PackName>,
    /// What was removed, and when.
    removed: HashMap<PackName, Instant>,
    /// The epoch by which everything here was seen to.
    settled: u64,
    /// How far the round through everything has come.
    round: Option<Round>,
    /// Whether a round is on its way, and whether another one must follow it.
    is_walking: bool,
    again: bool,
    /// Packs that this round has still to look at.
    behind: u64,
}

/// A walk through all that is held, for an epoch.
#[derive(Clone, Copy)]
struct Round {
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
    /// Begins to look after a shelf.
    pub fn start(id: u64, shelf: Arc<dyn Shelf>, pool: &Pool, key: Key) -> Result<Arc<Keeper>> {
        let view = Arc::new(View::new(pool, None, &key));
        let inner = Inner {
            view,
            fresh: VecDeque::new(),
            last_put: Instant::now(),
            last_walk: Instant::now(),
            at_work: HashSet::new(),
            removed: HashMap::new(),
            settled: 0,
            round: None,
            is_walking: false,
            again: false,
            behind: 0,
        };
        let keeper = Arc::new(Keeper {
            id,
            shelf,
            key,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            is_ending: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
        });
        keeper.locked().begin_round(keeper.shelf.usage().packs);
        for thread in 0..2 {
            let keeper = keeper.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("stdchk-keep-{thread}"))
                .spawn(move || keeper.work());
            spawned.map_err(|error| Error::io("cannot look after packs", error))?;
        }
        Ok(keeper)
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

    /// What is known of the pool.
    pub(super) fn view(&self) -> Arc<View> {
        self.locked().view.clone()
    }

    /// Removes all that is here of packs. What is under way of them must not come back: their names are never used again.
    pub fn forget(&self, names: &[PackName]) -> Result<()> {
        let mut inner = self.locked();
        inner.removed.retain(|_, since| since.elapsed() < REMOVED);
        inner.removed.extend(names.iter().map(|&name| (name, Instant::now())));
        drop(inner);
        names.iter().try_for_each(|&name| self.shelf.remove(&self.shelf.items_of(name)?))
    }

    /// Whether a pack was removed a moment ago.
    pub fn is_removed(&self, name: PackName) -> bool {
        self.locked().removed.contains_key(&name)
    }

    /// Whether the pool has put this benefactor out.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// The pool has put this benefactor out.
    pub fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
    }

    /// Ends all work.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let _inner = self.locked();
        self.changed.notify_all();
    }

    /// How this benefactor is.
    pub fn report(&self) -> Report {
        let usage = self.shelf.usage();
        let inner = self.locked();
        let behind = inner.behind + inner.fresh.len() as u64 + inner.at_work.len() as u64;
        let (capacity, used, packs) = (usage.capacity, usage.used, usage.packs);
        Report { member: self.id, settled: inner.settled, capacity, used, packs, behind }
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
            inner.begin_round(self.shelf.usage().packs);
            self.changed.notify_all();
        }
    }

    /// Something is being put.
    pub fn put_begins(&self) {
        self.locked().last_put = Instant::now();
    }

    /// Has a pack copied to those who should have it, too.
    pub fn copy_soon(&self, item: Item) {
        let mut inner = self.locked();
        inner.last_put = Instant::now();
        if inner.view.class.replicas > 1 || inner.view.class.code.is_some() {
            inner.fresh.push_back((item, Instant::now()));
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
        let mut inner = self.locked();
        // Whoever is at it already does it for all; but he may have begun with an older epoch.
        while !inner.at_work.insert(name) {
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
        let takers = view.takers(name, |id| {
            id == self.id || self.give_to(view, id, name.into()).map_err(|error| failures.push(error)).is_ok()
        });
        let stays = view.members().any(|(id, _)| id == self.id);
        // Who leaves is done when all who can have it do.
        let most = if stays { usize::MAX } else { view.current().members.len().max(1) };
        let wanted = usize::from(view.class.replicas).min(most);
        if takers.len() >= wanted {
            return Ok(stays && (takers.contains(&self.id) || takers != view.takers(name, |_| true)));
        }
        // Being here counts, too, for as long as there is nobody better; but not with one that leaves.
        let here = usize::from(stays && !takers.contains(&self.id) && self.shelf.length(name.into()).is_ok());
        if takers.len() + here >= wanted {
            return Ok(true);
        }
        let text = format!("pack {name} has {} of {wanted} copies", takers.len() + here);
        Err(match failures.into_iter().next() {
            Some(error) => error.within(text),
            None => Error::new(Kind::Io, format!("{text}: the pool has too few benefactors")),
        })
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
        let mut is_late = false;
        loop {
            let replaces = match peer.try_ask(&Question::Length { epoch, item }, &[], None) {
                Ok(answer) if answer.body.starts_with(&length.to_le_bytes()) => return Ok(()),
                Ok(_) => true,
                Err(Failure::Refused(error)) if error.kind() == Kind::NotFound => false,
                Err(failure) => return Err(failed(failure)),
            };
            let question = Question::Put { epoch, item, replaces, is_copy: true };
            match with(&|pieces| peer.try_ask(&question, pieces, None).map(drop))? {
                Ok(_) => return Ok(()),
                // Another one has given it meanwhile; whether that is synced is asked again.
                Err(Failure::Refused(error)) if error.kind() == Kind::Exists && !is_late => is_late = true,
                Err(failure @ Failure::Stale(_)) => return Err(failed(failure)),
                // Whatever it lacks, it is not the pack that it was to get.
                Err(failure) => return Err(failed(failure).with_kind(Kind::Io)),
            }
        }
    }

    fn work(&self) {
        while !self.is_ending.load(Ordering::Relaxed) {
            match self.next_work() {
                Work::Copy(item) => self.copy(item),
                Work::Walk(round, view) => self.walk(round, &view),
                Work::Nothing => {}
            }
        }
    }

    /// What to do next: what was just put comes first. All of it waits while more is being put, for a while.
    fn next_work(&self) -> Work {
        let mut inner = self.locked();
        let quiet = inner.last_put.elapsed();
        let is_overdue = inner.round.is_some() && inner.last_walk.elapsed() > YIELD_MAX;
        let is_pressing =
            is_overdue || inner.fresh.front().is_some_and(|(_, since)| since.elapsed() > YIELD_MAX);
        if quiet < YIELD && !is_pressing {
            drop(self.changed.wait_timeout(inner, YIELD - quiet));
            return Work::Nothing;
        }
        if !is_overdue && let Some((item, _)) = inner.fresh.pop_front() {
            return Work::Copy(item);
        }
        if let Some(round) = inner.round.take() {
            inner.last_walk = Instant::now();
            return Work::Walk(round, inner.view.clone());
        }
        drop(self.changed.wait_timeout(inner, REST));
        Work::Nothing
    }

    fn copy(&self, item: Item) {
        // Of copies none is given up but in a round.
        let done = match item.shard.is_none() && self.locked().view.class.code.is_some() {
            true => self.settle(item),
            false => self.secure(item).map(drop),
        };
        match done {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => {
                tracing::debug!("{error}");
                self.rest();
                // The next round finds it again; one that is on its way is not begun anew for that.
                let mut inner = self.locked();
                match inner.is_walking {
                    true => inner.again = true,
                    false => inner.begin_round(self.shelf.usage().packs),
                }
            }
        }
    }

    fn rest(&self) {
        let inner = self.locked();
        if !self.is_ending.load(Ordering::Relaxed) {
            drop(self.changed.wait_timeout(inner, REST));
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
                self.rest();
                return self.go_on(round);
            }
        };
        for &(item, _) in &packs {
            if self.is_ending.load(Ordering::Relaxed) || self.epoch() != round.epoch {
                return;
            }
            match self.secure(item) {
                Ok(true) => {}
                Ok(false) => self.give_up(round.epoch, item),
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    tracing::debug!("{error}");
                    round.is_whole = false;
                }
            }
            let mut inner = self.locked();
            inner.behind = inner.behind.saturating_sub(1);
        }
        match packs.last() {
            Some(&(last, _)) => {
                round.after = Some(last);
                self.go_on(round);
            }
            None if round.is_whole => {
                let mut inner = self.locked();
                inner.settled = inner.settled.max(round.epoch);
                (inner.behind, inner.is_walking) = (0, false);
                if std::mem::take(&mut inner.again) {
                    inner.begin_round(self.shelf.usage().packs);
                }
            }
            None => {
                self.rest();
                self.locked().behind = self.shelf.usage().packs;
                self.go_on(Round { after: None, is_whole: true, ..round });
            }
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

    fn go_on(&self, round: Round) {
        let mut inner = self.locked();
        if inner.view.current().number == round.epoch && inner.round.is_none() {
            inner.round = Some(round);
            self.changed.notify_one();
        }
    }
}

impl Inner {
    fn begin_round(&mut self, packs: u64) {
        self.behind = packs;
        self.is_walking = true;
        self.round = Some(Round { epoch: self.view.current().number, after: None, is_whole: true });
    }
}
