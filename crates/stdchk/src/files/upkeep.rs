//! What a mount does by itself: files that are too old go, applications' policies act, and what nobody needs any more is removed from the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_catalog::tree::{Body, Named, Version};
use stdchk_catalog::{Op, SessionKind, State};
use stdchk_engine::Session;
use stdchk_object::{AppName, Kind, Result};

use super::fault::Outcome;
use super::{Files, locked, now, policy};
use crate::naming::by_convention;

/// How often garbage is collected, if anything has changed.
const COLLECTED: Duration = Duration::from_secs(600);
/// The same, if something was removed here.
const COLLECTED_SOON: Duration = Duration::from_secs(60);

/// Less room than this is little, unless it is half of all.
const LITTLE: u64 = 4 << 30;
/// The same, if somebody waits for room; and not before so many times as long has passed as it took.
const CLEARED: Duration = Duration::from_millis(500);
const CLEARED_PART: u32 = 20;

/// When garbage was collected last, and up to which record that was.
pub(super) struct Collected {
    at: Instant,
    number: u64,
    /// Whether something was removed here since.
    pub is_due: bool,
    /// The record after which policies of applications acted last, and when.
    pruned: Option<(u64, Instant)>,
    /// When room was made last for somebody who waited for it, and how long that took.
    cleared: Option<(Instant, Duration)>,
}

impl Default for Collected {
    fn default() -> Collected {
        Collected { at: Instant::now(), number: 0, is_due: false, pruned: None, cleared: None }
    }
}

/// What is to become of a file that has versions which are too old, or too many.
enum Purge {
    /// It goes.
    File,
    /// Only these stay.
    Versions(Vec<Version>),
}

impl Files {
    /// A session that writes files. Where there is no room, what was removed is cleared away first: nobody expects to wait for room that he has just made.
    pub(super) fn open_writer(&self) -> Result<Session> {
        let kind = SessionKind::Writer { app: AppName::files(), step: 0, parts: None };
        let open =
            || Session::open(self.repository.catalog.clone(), kind.clone(), &self.repository.owner(false));
        let is_removed = locked(&self.collected).is_due;
        // What is condemned before it begins can go while it writes.
        if is_removed && self.is_nearly_full() {
            self.clear_away();
        }
        match open() {
            Err(error) if error.kind() == Kind::Full && self.clear_away() => open(),
            opened => opened,
        }
    }

    fn is_nearly_full(&self) -> bool {
        let room = self.repository.room().ok().flatten();
        room.is_some_and(|(all, free)| free < (all / 8).max(LITTLE.min(all / 2)))
    }

    /// Has what nobody needs cleared away where a pack finds no room, before it is put once more.
    pub fn make_room_when_full(self: &Arc<Files>) {
        let files = Arc::downgrade(self);
        self.repository.when_full(move || files.upgrade().is_some_and(|files| files.clear_away()));
    }

    /// Removes what nobody needs, now; whether that was done. It is not what takes most of the time, and no reason not to write.
    fn clear_away(&self) -> bool {
        let begun = Instant::now();
        {
            let mut collected = locked(&self.collected);
            if collected.cleared.is_some_and(|(at, took)| at.elapsed() < CLEARED.max(CLEARED_PART * took)) {
                return false;
            }
            // What is removed from now on may be left over.
            (collected.cleared, collected.is_due) = (Some((begun, Duration::ZERO)), false);
        }
        let mut pin = locked(&self.pin);
        self.let_go();
        *pin = None;
        drop(pin);
        let done = stdchk_upkeep::collect(&self.repository.ground(), false);
        let mut collected = locked(&self.collected);
        collected.is_due |= done.as_ref().map_or(true, |done| !done.waiting.is_empty());
        collected.cleared = Some((Instant::now(), begun.elapsed()));
        if let Err(error) = &done {
            tracing::warn!("no room can be made: {error}");
        }
        done.is_ok()
    }

    /// Has policies act, and removes what nobody needs. One mount of a store does it for all. To be called now and then.
    pub fn keep_up(&self) -> Result<()> {
        let Some(mount) = self.mount_session() else { return Ok(()) };
        let state = self.state()?;
        let is_first = state.first_mount() == Some(mount);
        self.watch_mounts(&state, is_first);
        if !is_first {
            return Ok(());
        }
        // What cannot be purged now can be later, and is no reason to leave the rest.
        if let Err(fault) = self.purge(&state) {
            tracing::warn!("old files cannot be removed: {}", fault.into_error());
        }
        let ground = self.repository.ground();
        let is_old = locked(&self.collected)
            .pruned
            .is_none_or(|(number, at)| number != state.number() || at.elapsed() > COLLECTED_SOON);
        if is_old && state.apps().values().any(|app| app.policy.drops()) {
            match stdchk_upkeep::prune(&ground, None, now()) {
                Ok(done) => locked(&self.collected).is_due |= !done.dropped.is_empty(),
                Err(error) => tracing::warn!("policies of applications cannot act: {error}"),
            }
            locked(&self.collected).pruned = Some((self.newest_state()?.number(), Instant::now()));
        }
        let number = self.newest_state()?.number();
        let is_due = {
            let collected = locked(&self.collected);
            let pause = if collected.is_due { COLLECTED_SOON } else { COLLECTED };
            collected.at.elapsed() > pause && (collected.is_due || collected.number != number)
        };
        if is_due {
            {
                let mut collected = locked(&self.collected);
                (collected.at, collected.number, collected.is_due) = (Instant::now(), number, false);
            }
            let done = stdchk_upkeep::collect(&ground, true)?;
            tracing::debug!("{} packs were removed that nobody needs", done.removed.len());
            let number = self.newest_state()?.number();
            let mut collected = locked(&self.collected);
            // What somebody may still refer to goes next time.
            (collected.number, collected.is_due) = (number, collected.is_due || !done.waiting.is_empty());
        }
        Ok(())
    }

    /// Removes files, and versions of files, that are older or more than what is noted of them. In each directory stays what was written last, with all of
    /// the same step.
    fn purge(&self, state: &State) -> Outcome<()> {
        let mut last: BTreeMap<u64, &Named> = BTreeMap::new();
        let written = |named: &Named| newest_ns(state, named);
        let files = || state.tree().names().filter(|named| !named.node.versions().is_empty());
        let nodes = state.tree().names().map(|named| &named.node).chain(state.tree().root());
        if !nodes.into_iter().any(|node| node.notes.iter().any(|(name, _)| name == policy::POLICY)) {
            return Ok(());
        }
        for named in files() {
            let newest = last.entry(named.parent).or_insert(named);
            if written(named) > written(newest) {
                *newest = named;
            }
        }
        for named in files() {
            // Who writes it makes it new.
            let number = named.node.number;
            if state.shared(number).is_some() || self.writing(number).is_some() {
                continue;
            }
            let kept = policy::kept(state, &named.node, named.parent);
            if kept.age.is_none() && named.node.versions().len() <= kept.most {
                continue;
            }
            let oldest_ns = kept.age.map_or(i64::MIN, |age| {
                now().saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX))
            });
            let is_last = last.get(&named.parent).is_some_and(|last| is_of_same_step(last, named));
            if let Some(purge) = dropped(state, named, kept.most, oldest_ns, is_last) {
                self.carry_out(named, &purge)?;
                locked(&self.collected).is_due = true;
            }
        }
        Ok(())
    }

    /// Unless the file has changed since it was looked at.
    fn carry_out(&self, old: &Named, purge: &Purge) -> Outcome<()> {
        self.change(|state| {
            let number = old.node.number;
            if state.shared(number).is_some() || self.is_written(number) {
                return Ok((Vec::new(), ()));
            }
            let same = state
                .tree()
                .get(old.node.number)
                .filter(|there| there.node.versions() == old.node.versions());
            let Some(there) = same else { return Ok((Vec::new(), ())) };
            let op = match purge {
                Purge::File => Op::Unname(there.parent, there.name.clone(), now()),
                Purge::Versions(left) => {
                    let mut named = there.clone();
                    named.node.body = Body::File(left.clone());
                    Op::Name(Box::new(named))
                }
            };
            Ok((vec![op], ()))
        })?;
        match purge {
            Purge::File => self.keep_place(old),
            Purge::Versions(_) => Ok(()),
        }
    }

    /// Who has opened a file to write it while it was removed because of its age makes it anew.
    fn keep_place(&self, removed: &Named) -> Outcome<()> {
        let number = removed.node.number;
        let Some(writing) = self.writing(number) else { return Ok(()) };
        let mut inner = self.settled(&writing)?;
        if inner.place.is_none() && !inner.is_removed && inner.published.is_none() && inner.joined.is_none() {
            let place = (removed.parent, removed.name.clone());
            self.table().names.insert(place.clone(), number);
            inner.place = Some(place);
        }
        Ok(())
    }
}

/// When the newest version of a file was made.
fn newest_ns(state: &State, named: &Named) -> i64 {
    super::newest(state, &named.node).and_then(|version| made_ns(state, version)).unwrap_or(i64::MAX)
}

fn made_ns(state: &State, version: Version) -> Option<i64> {
    state.checkpoint(&version.id()).map(|entry| entry.created_ns)
}

/// Whether a file is another one, or of the same step of the same application.
fn is_of_same_step(one: &Named, other: &Named) -> bool {
    let step = |named: &Named| by_convention(&named.name).ok().map(|name| (name.app, name.step));
    one.node.number == other.node.number || step(one).is_some_and(|one| step(other) == Some(one))
}

/// What is to become of a file of which so many versions may stay, and no older ones.
fn dropped(state: &State, named: &Named, most: usize, oldest_ns: i64, is_last: bool) -> Option<Purge> {
    let versions = named.node.versions();
    let (newest, older) = versions.split_last()?;
    let is_young = |version: &&Version| made_ns(state, **version).is_none_or(|made_ns| made_ns >= oldest_ns);
    if !is_last && !is_young(&newest) {
        return Some(Purge::File);
    }
    let surplus = versions.len().saturating_sub(most).min(older.len());
    let left: Vec<Version> = older[surplus..].iter().filter(is_young).chain([newest]).copied().collect();
    (left.len() < versions.len()).then_some(Purge::Versions(left))
}
