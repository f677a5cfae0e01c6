//! Room that writers have kept for them before they need it (docs/POOL.md, Reservations).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stdchk_object::PackName;
use stdchk_object::wire::Reader;

use super::View;
use crate::shelf::WriterId;
use crate::wire::Question;

/// How often places are looked for again because some have less room than was asked for.
const ROUNDS: u32 = 3;
/// Of no more benefactors room is asked at a time: what falls to others is small.
const ASKED_MAX: usize = 64;

/// Who keeps room for the writers of this process.
#[derive(Default)]
pub struct Ahead(Mutex<HashMap<WriterId, BTreeSet<u64>>>);

impl Ahead {
    fn locked(&self) -> MutexGuard<'_, HashMap<WriterId, BTreeSet<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has room kept where these packs will go, and nowhere else. Where there is not enough for all of them, none is: it might be enough for others.
    pub fn keep(&self, view: &View, writer: WriterId, packs: &[(PackName, u64)]) {
        let mut keepers = self.locked().remove(&writer).unwrap_or_default();
        let plan = negotiated(view, writer, packs, &mut keepers).unwrap_or_default();
        keepers.retain(|id| view.knows(*id) && !plan.contains_key(id));
        keepers.into_iter().for_each(|id| _ = reserve(view, id, writer, 0));
        if !plan.is_empty() {
            self.locked().insert(writer, plan.into_keys().collect());
        }
    }
}

/// Has room kept, and looks for other places as long as there are some where some have too little. All who were asked are added to `keepers`.
fn negotiated(
    view: &View,
    writer: WriterId,
    packs: &[(PackName, u64)],
    keepers: &mut BTreeSet<u64>,
) -> Option<BTreeMap<u64, u64>> {
    let (mut short, mut kept) = (HashMap::new(), BTreeMap::new());
    for _ in 0..ROUNDS {
        let plan = placed(view, packs, &short)?;
        // All ask in the same order, so that of two who want the same room one is first everywhere.
        for (&id, &bytes) in plan.iter().filter(|(id, bytes)| kept.get(*id) != Some(*bytes)) {
            keepers.insert(id);
            let room = reserve(view, id, writer, bytes);
            if room < bytes {
                short.insert(id, room);
            }
        }
        kept = plan;
        if kept.iter().all(|(id, bytes)| short.get(id).is_none_or(|room| bytes <= room)) {
            return Some(kept);
        }
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

/// How much of what is asked for somebody keeps; nothing if nothing is heard of him.
fn reserve(view: &View, id: u64, (session, writer): WriterId, bytes: u64) -> u64 {
    let peer = view.peer(id);
    if peer.is_suspected() {
        return 0;
    }
    let question = Question::Reserve { session, writer, bytes };
    match peer.try_ask(&question, &[], None) {
        Ok(answer) => Reader::new(&answer.body, "room").u64().unwrap_or(0).min(bytes),
        Err(failure) => {
            tracing::debug!("no room is kept: {}", failure.into_error(peer.address()));
            0
        }
    }
}
