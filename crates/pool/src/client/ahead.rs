//! Room that writers have kept for them before they need it (docs/POOL.md, Reservations).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stdchk_catalog_log::clock;
use stdchk_object::PackName;
use stdchk_object::wire::Reader;

use super::View;
use crate::shelf::{Wish, WriterId};
use crate::wire::Question;

/// How often places are looked for again because somebody has less room than was asked for, and the pause before that.
const ROUNDS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(20);
/// How often a writer that has nothing tries in all, and up to so many pauses lie between.
const TRIES: u32 = 4;
const PAUSES: u64 = 16;
/// Of no more benefactors room is asked at a time: what falls to others is small.
const ASKED_MAX: usize = 64;

/// Who keeps room for the writers of this process.
#[derive(Default)]
pub struct Ahead(Mutex<HashMap<WriterId, BTreeSet<u64>>>);

impl Ahead {
    fn locked(&self) -> MutexGuard<'_, HashMap<WriterId, BTreeSet<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has room kept where these packs will go. Where there is not enough for all of them, nothing is, or what was before: it might be enough for others.
    /// Of several who ask at the same moment all may find too little, since each has some of it: then they try again, not all after the same time.
    pub fn keep(&self, view: &View, writer: WriterId, packs: &[(PackName, u64)]) {
        for attempt in 0..TRIES {
            if attempt > 0 {
                clock::sleep(PAUSE * pauses(writer, attempt));
            }
            if self.keep_or_give_back(view, writer, packs) || packs.is_empty() {
                break;
            }
        }
    }

    /// Whether room is kept now.
    fn keep_or_give_back(&self, view: &View, writer: WriterId, packs: &[(PackName, u64)]) -> bool {
        let before = self.locked().remove(&writer).unwrap_or_default();
        let mut asked = BTreeSet::new();
        let plan = negotiated(view, writer, packs, &mut asked);
        // Only now that all is there may some keep less than before.
        if let Some(plan) = plan.as_ref().filter(|_| !before.is_empty()) {
            plan.iter().for_each(|(&id, &bytes)| _ = reserve(view, id, writer, exactly(bytes)));
        }
        let all: BTreeSet<u64> = before.union(&asked).copied().collect();
        let keepers = match plan {
            Some(plan) => plan.into_keys().collect(),
            None if !before.is_empty() => all.clone(),
            None => BTreeSet::new(),
        };
        let not_needed = all.difference(&keepers).filter(|id| view.knows(**id));
        not_needed.for_each(|&id| _ = reserve(view, id, writer, exactly(0)));
        let is_kept = !keepers.is_empty();
        if is_kept {
            self.locked().insert(writer, keepers);
        }
        is_kept
    }
}

/// After how many pauses a writer tries again: mostly not as many as others wait.
fn pauses((session, writer): WriterId, attempt: u32) -> u32 {
    let mixed =
        (session.0 ^ u64::from(writer) << 32 ^ u64::from(attempt)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 + ((mixed >> 32) % PAUSES) as u32
}

/// Has room kept, and looks for other places as long as there are some where some have too little. All who keep some are added to `asked`.
fn negotiated(
    view: &View,
    writer: WriterId,
    packs: &[(PackName, u64)],
    asked: &mut BTreeSet<u64>,
) -> Option<BTreeMap<u64, u64>> {
    let (mut short, mut kept) = (HashMap::new(), BTreeMap::new());
    for _ in 0..ROUNDS {
        let plan = placed(view, packs, &short)?;
        // All ask in the same order, and whoever comes to somebody who has too little goes no further: so of two who want the same room one is
        // mostly first everywhere.
        let lacking =
            plan.iter().filter(|(id, bytes)| kept.get(*id) != Some(*bytes)).find_map(|(&id, &bytes)| {
                let room = reserve(view, id, writer, Wish { at_least: true, ..exactly(bytes) });
                if room < bytes {
                    return Some((id, room));
                }
                asked.insert(id);
                None
            });
        let Some((id, room)) = lacking else { return Some(plan) };
        kept.extend(plan.range(..id).map(|(&id, &bytes)| (id, bytes)));
        short.insert(id, room);
        // He who came first has what he wants then.
        clock::sleep(PAUSE);
    }
    None
}

/// How much goes to whom, where some have no more room than that; nothing if there is none for some pack.
fn placed(view: &View, packs: &[(PackName, u64)], short: &HashMap<u64, u64>) -> Option<BTreeMap<u64, u64>> {
    let mut placed = BTreeMap::<u64, u64>::new();
    for &(name, len) in packs {
        if placed.len() >= ASKED_MAX {
            break;
        }
        let len = view.class.code.map_or(len, |code| len.div_ceil(code.data().into()));
        let has_room = |id: u64| {
            let all = placed.get(&id).unwrap_or(&0) + len;
            short.get(&id).is_none_or(|&room| all <= room)
        };
        let takers: Vec<u64> = match view.class.code {
            None => view.takers(name, has_room),
            Some(code) => {
                view.shard_takers(name, code.count(), |_, id| has_room(id)).into_iter().flatten().collect()
            }
        };
        if takers.is_empty() {
            return None;
        }
        takers.into_iter().for_each(|id| *placed.entry(id).or_default() += len);
    }
    Some(placed)
}

fn exactly(bytes: u64) -> Wish {
    Wish { bytes, of_shards: false, at_least: false }
}

/// Whether somebody keeps what is asked for: then as much is said, and else how much there would be. Nothing if nothing is heard of him.
fn reserve(view: &View, id: u64, (session, writer): WriterId, wish: Wish) -> u64 {
    let peer = view.peer(id);
    if peer.is_suspected() {
        return 0;
    }
    let wish = Wish { of_shards: view.class.code.is_some(), ..wish };
    match peer.try_ask(&Question::Reserve { session, writer, wish }, &[], None) {
        Ok(answer) => Reader::new(&answer.body, "room").u64().unwrap_or(0).min(wish.bytes),
        Err(failure) => {
            tracing::debug!("no room is kept: {}", failure.into_error(peer.address()));
            0
        }
    }
}
