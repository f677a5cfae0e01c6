//! What a benefactor does by itself: copies of what was just put, and rounds through everything that it holds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use stdchk_catalog_log::clock;
use stdchk_object::{Error, Item, Kind, Result};

use super::giving::GIVEN;
use super::{Inner, Keeper};
use crate::client::View;

/// Packs that are looked at with one listing.
const BATCH: usize = 1024;
/// How long nothing must have been put before copies are made that nobody waits for: savers come first. And how long they may be
/// put off by that.
const YIELD: Duration = Duration::from_millis(400);
const YIELD_MAX: Duration = Duration::from_secs(3);
/// How long nothing is tried again that just failed; and how long at most, when it fails again and again and nothing changes.
pub(super) const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(4);

/// A walk through all that is held, for an epoch.
#[derive(Clone, Copy)]
pub(super) struct Round {
    number: u64,
    epoch: u64,
    pub(super) after: Option<Item>,
    /// Whether everything so far was as it should be.
    pub(super) is_whole: bool,
}

/// What a thread of the keeper does next.
enum Work {
    Copy(Item),
    Walk(Round, Arc<View>),
    Nothing,
}

impl Keeper {
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
    pub(super) fn walk(&self, mut round: Round, view: &View) {
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
    pub(super) fn give_up(&self, epoch: u64, item: Item) {
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

impl Inner {
    pub(super) fn begin_round(&mut self, packs: u64) {
        self.behind = packs;
        self.is_walking = true;
        self.rounds += 1;
        let (number, epoch) = (self.rounds, self.view.current().number);
        self.round = Some(Round { number, epoch, after: None, is_whole: true });
    }
}
