//! Garbage collection, as `docs/COMMIT.md` states it: fence, condemn, sweep.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use stdchk_catalog::{Op, OpenSession, SessionKind, State};
use stdchk_engine::Index;
use stdchk_object::{Error, Kind, PackName, Result, SessionId};

use crate::Ground;
use crate::compact::{self, Compaction};
use crate::live::Live;

/// Packs named in one record at most, so that records stay small.
const PACKS_PER_RECORD: usize = 4096;
/// How often the plan is made again because others committed meanwhile.
const RETRIES_MAX: u32 = 20;

/// A session that has been silent for too long, or whose process is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The session.
    pub session: SessionId,
    /// What it was doing, for people.
    pub what: String,
    /// Why it is suspected, for people.
    pub why: String,
}

/// What a collection does, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    /// Sessions that are fenced.
    pub fenced: Vec<Suspect>,
    /// Packs that nothing refers to any more.
    pub condemned: Vec<(PackName, u64)>,
    /// Packs whose files are removed.
    pub removed: Vec<(PackName, u64)>,
    /// Packs that must wait, because a session older than their condemnation is still open.
    pub waiting: Vec<(PackName, u64)>,
    /// Packs that are rewritten because much of them is dead.
    pub compacted: Vec<Compaction>,
    /// Packs that checkpoints refer to, and their bytes.
    pub live: (u64, u64),
}

impl GcPlan {
    /// Bytes that are freed.
    pub fn removed_bytes(&self) -> u64 {
        self.removed.iter().map(|&(_, bytes)| bytes).sum()
    }
}

/// Says what [`collect`] would do now.
pub fn plan_gc(ground: &Ground) -> Result<GcPlan> {
    let packs = list(ground)?;
    let state = ground.catalog.state()?;
    let fenced = suspects(ground, &state)?;
    let mut live = Live::remembered(ground);
    live.follow(ground, &state)?;
    let needed = live.needed(ground, &state)?;
    let gone: HashSet<SessionId> = fenced.iter().map(|suspect| suspect.session).collect();
    let still_open =
        |name: &PackName| state.sessions().contains_key(&name.session) && !gone.contains(&name.session);
    let garbage: Vec<(PackName, u64)> = packs
        .iter()
        .filter(|(name, _)| !needed.contains_key(name) && !still_open(name))
        .map(|(&name, &bytes)| (name, bytes))
        .collect();
    let oldest = state
        .sessions()
        .iter()
        .filter(|(id, _)| !gone.contains(id))
        .map(|(_, session)| session.opened_at)
        .min()
        .unwrap_or(u64::MAX);
    // What is condemned now is condemned after every session that is open.
    let waits = |name: &PackName| state.condemned().get(name).map_or(oldest != u64::MAX, |&at| at >= oldest);
    let (waiting, removed) = garbage.iter().partition(|(name, _)| waits(name));
    Ok(GcPlan {
        compacted: compact::plan(ground, &state, &packs, &mut live).unwrap_or_else(not_compacted),
        live: live_sum(&packs, &needed),
        condemned: garbage.into_iter().filter(|(name, _)| !state.condemned().contains_key(name)).collect(),
        fenced,
        removed,
        waiting,
    })
}

/// Fences what is dead, compacts what is mostly dead, condemns what nothing refers to, and removes what may go.
pub fn collect(ground: &Ground, compaction: bool) -> Result<GcPlan> {
    let collected = collect_all(ground, compaction);
    // What was given up to get here is kept again for the next time.
    if let Err(error) = ground.objects.keep_room() {
        tracing::debug!("no room is kept for a collection on a full disk: {error}");
    }
    let (done, live) = collected?;
    live.remember(ground);
    Ok(done)
}

fn collect_all(ground: &Ground, compaction: bool) -> Result<(GcPlan, Live)> {
    // Listing takes as long as reading the log and the note. What the list is compared with is read after it.
    let (packs, fenced, mut live) = std::thread::scope(|scope| {
        let listing = scope.spawn(|| list(ground));
        let (fenced, live) = (fence(ground), Live::remembered(ground));
        let panicked = |_| Err(Error::new(Kind::Io, "listing the packs panicked; this is a bug"));
        (listing.join().unwrap_or_else(panicked), fenced, live)
    });
    let (mut packs, mut done) = (packs?, GcPlan { fenced: fenced?, ..GcPlan::default() });
    if compaction {
        let state = ground.catalog.state()?;
        live.follow(ground, &state)?;
        // What cannot be compacted must not stop what can be collected.
        match compact::compact(ground, &state, &packs, &mut live) {
            Ok(compacted) => done.compacted = compacted,
            Err(error) => done.compacted = not_compacted(error),
        }
    }
    if !done.compacted.is_empty() {
        packs = list(ground)?;
    }
    condemn(ground, &mut live, &packs, &mut done)?;
    sweep(ground, &mut live, &packs, &mut done)?;
    tidy(ground, &mut live, &done)?;
    Ok((done, live))
}

/// Another collector may have been faster; what is damaged is told by `verify`.
fn not_compacted(error: Error) -> Vec<Compaction> {
    tracing::info!("nothing was compacted: {error}");
    Vec::new()
}

fn list(ground: &Ground) -> Result<BTreeMap<PackName, u64>> {
    let mut packs = BTreeMap::new();
    ground.store.list(&mut |name, bytes| _ = packs.insert(name, bytes))?;
    Ok(packs)
}

fn live_sum(packs: &BTreeMap<PackName, u64>, needed: &BTreeMap<PackName, u64>) -> (u64, u64) {
    let bytes = needed.keys().filter_map(|name| packs.get(name)).sum();
    (needed.len() as u64, bytes)
}

fn suspects(ground: &Ground, state: &State) -> Result<Vec<Suspect>> {
    if state.sessions().is_empty() {
        return Ok(Vec::new());
    }
    let ages = ground.catalog.beat_ages()?;
    let suspect = |session: &OpenSession| {
        let entry = &session.entry;
        let why = if (ground.is_gone)(&entry.owner) {
            format!("its process {} on {} is gone", entry.owner.pid, entry.owner.host)
        } else {
            // A session that was opened gave a sign of life before; one whose file is missing gave it long ago.
            let age = ages.get(&entry.id);
            if age.is_some_and(|age| age.as_millis() <= u128::from(entry.lease_ms)) {
                return None;
            }
            let silent = age.map_or("ever".to_owned(), |age| format!("{} s", age.as_secs()));
            format!("it has been silent for {silent}, longer than its lease of {} s", entry.lease_ms / 1000)
        };
        let what = match &entry.kind {
            SessionKind::Reader => "reading".to_owned(),
            SessionKind::Upkeep => "upkeep".to_owned(),
            SessionKind::Writer { app, step, .. } => format!("saving {app}@{step}"),
            SessionKind::Mount => "a mount".to_owned(),
            SessionKind::Shared { file, .. } => format!("file {file:016x} of several mounts"),
            SessionKind::Join(of) => format!("writing a file with others, session {of}"),
        };
        Some(Suspect { session: entry.id, what, why })
    };
    Ok(state.sessions().values().filter_map(suspect).collect())
}

/// Ends sessions whose processes are gone, or have been silent for too long.
pub fn fence(ground: &Ground) -> Result<Vec<Suspect>> {
    let state = ground.catalog.state()?;
    let suspects = suspects(ground, &state)?;
    let mut fenced = Vec::new();
    for suspect in suspects {
        let session = suspect.session;
        let mut fenced_here = false;
        ground.catalog.append(true, &mut |state| {
            fenced_here = state.sessions().contains_key(&session);
            Ok(if fenced_here { vec![Op::Fence(session)] } else { Vec::new() })
        })?;
        if fenced_here {
            fenced.push(suspect);
        }
    }
    Ok(fenced)
}

/// Condemns garbage. The packs are listed before the state is read: see `docs/COMMIT.md`.
fn condemn(
    ground: &Ground,
    live: &mut Live,
    packs: &BTreeMap<PackName, u64>,
    done: &mut GcPlan,
) -> Result<()> {
    let mut todo: Option<Vec<PackName>> = None;
    for _ in 0..RETRIES_MAX {
        let state = ground.catalog.state()?;
        live.follow(ground, &state)?;
        let needed = live.needed(ground, &state)?;
        done.live = live_sum(packs, &needed);
        let garbage = |name: &PackName| {
            !needed.contains_key(name)
                && !state.sessions().contains_key(&name.session)
                && !state.condemned().contains_key(name)
        };
        // What was no garbage when the packs were listed against the first state is none in this collection:
        // a session may have begun after the listing.
        let names: Vec<PackName> = match &todo {
            None => packs.keys().copied().filter(garbage).collect(),
            Some(first) => first.iter().copied().filter(garbage).collect(),
        };
        let Some(batch) = names.chunks(PACKS_PER_RECORD).next().map(<[PackName]>::to_vec) else {
            return Ok(());
        };
        todo = Some(names);
        let commits = state.commits();
        let mut condemned = false;
        ground.catalog.append(true, &mut |state| {
            condemned = state.commits() == commits;
            Ok(if condemned { vec![Op::Condemn(batch.clone())] } else { Vec::new() })
        })?;
        if condemned {
            done.condemned.extend(batch.iter().map(|name| (*name, packs[name])));
        }
    }
    // Others commit so often that no moment was found; what is left goes next time.
    Ok(())
}

/// Removes condemned packs that no session can refer to any more.
fn sweep(ground: &Ground, live: &mut Live, packs: &BTreeMap<PackName, u64>, done: &mut GcPlan) -> Result<()> {
    let state = ground.catalog.state()?;
    live.follow(ground, &state)?;
    let needed = live.needed(ground, &state)?;
    let bytes = |name: &PackName| packs.get(name).copied().unwrap_or(0);
    let sweepable = state.sweepable();
    // The last look. That a condemned pack is referred to cannot happen by the rules; it costs little to be sure.
    if let Some(name) = sweepable.iter().find(|name| needed.contains_key(name)) {
        let text = format!(
            "pack {name} is condemned although a checkpoint refers to it; nothing was removed. This is a bug"
        );
        return Err(Error::new(Kind::Corrupt, text));
    }
    for batch in sweepable.chunks(PACKS_PER_RECORD) {
        ground.store.remove(batch)?;
        let batch = batch.to_vec();
        ground.catalog.append(true, &mut |state| {
            let left: Vec<PackName> =
                batch.iter().copied().filter(|name| state.condemned().contains_key(name)).collect();
            Ok(if left.is_empty() { Vec::new() } else { vec![Op::Swept(left)] })
        })?;
        done.removed.extend(batch.iter().map(|name| (*name, bytes(name))));
    }
    let swept: HashSet<PackName> = sweepable.into_iter().collect();
    let waiting = state.condemned().keys().filter(|name| !swept.contains(name));
    done.waiting = waiting.map(|name| (*name, bytes(name))).collect();
    Ok(())
}

/// Forgets what is of no use any more: forwards, heartbeats, index entries of removed packs.
fn tidy(ground: &Ground, live: &mut Live, done: &GcPlan) -> Result<()> {
    let state: Arc<State> = ground.catalog.state()?;
    let commits = state.commits();
    live.follow(ground, &state)?;
    let named = live.named();
    let unused: Vec<PackName> =
        state.forwards().keys().copied().filter(|name| !named.contains_key(name)).collect();
    if !unused.is_empty() {
        // Only if nothing was committed since `live` was made; otherwise they wait for the next collection.
        ground.catalog.append(true, &mut |state| {
            Ok(if state.commits() == commits { vec![Op::Unforward(unused.clone())] } else { Vec::new() })
        })?;
    }
    let silent: Vec<SessionId> = ground
        .catalog
        .beat_ages()?
        .into_iter()
        // A heartbeat is written before its session is opened: a fresh one may belong to a session to come.
        .filter(|(id, age)| !state.sessions().contains_key(id) && age.as_secs() > 3600)
        .map(|(id, _)| id)
        .collect();
    ground.catalog.forget_beats(&silent)?;
    let torn = Index::verify(&*ground.objects)?;
    if !torn.is_empty() {
        ground.objects.delete(&torn)?;
    }
    if !done.removed.is_empty() {
        let gone: HashSet<PackName> = done.removed.iter().map(|&(name, _)| name).collect();
        // The index is a cache: that it still names what is gone costs a look, until a later collection removes something.
        if let Err(error) = Index::open(ground.objects.clone()).and_then(|index| index.merge(&gone)) {
            tracing::info!("the fingerprint index was not tidied: {error}");
        }
    }
    Ok(())
}
