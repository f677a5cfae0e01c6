//! The protocol of `docs/COMMIT.md`, every interleaving of it, over the real state machine.
//!
//! Savers, collectors and a compactor take their steps in any order; savers may be fenced at any time and wake up
//! later; any of them may stop for ever. A saver sees the log through the state it last read, and its commit is
//! validated against the newest. What is checked in every state that can be reached:
//!
//! - no checkpoint refers to a chunk that is gone;
//! - what a pinned reader has begun to read stays where its own state says that it is;
//! - a fenced session has committed nothing after its fence.
//!
//! Packs are modelled as sets of chunks; `chunk` 0 is what the first checkpoint uses of pack X, chunk 1 is dead there.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, Model, Property};

use stdchk_catalog::conformance::{commit, pack, writer};
use stdchk_catalog::{Op, Owner, Record, SessionEntry, SessionKind, State};
use stdchk_object::{AppName, CheckpointId, Hash, Locator, PackName, PackRef, SessionId};

/// A chunk of a pack.
type Chunk = (PackName, u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Saver {
    /// Not begun.
    Idle,
    /// Opened; it has seen the state then, and knows the packs it may refer to.
    Open {
        chosen: Option<Chunk>,
    },
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Collector {
    Idle,
    /// Listed the packs.
    Listed(BTreeSet<PackName>),
    /// Read a state after that: what is garbage, and how many commits there had been.
    Planned(Vec<PackName>, u64),
    /// Looked what may be swept: files are removed one by one.
    Sweeping(Vec<PackName>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Compactor {
    Idle,
    /// Opened its session and saw which chunks of X are live.
    Planned(BTreeSet<u32>),
    /// Wrote the new pack with them.
    Written(BTreeSet<u32>),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// Opened, and chose the newest checkpoint; these are the places of its chunks by the state it saw then.
    Reading(BTreeSet<Chunk>),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    state: State,
    /// Pack files and the chunks in them.
    files: BTreeMap<PackName, BTreeSet<u32>>,
    /// What the forward of X leads to, by chunk.
    table: BTreeMap<u32, Chunk>,
    /// What each checkpoint refers to, by step.
    references: BTreeMap<u64, BTreeSet<Chunk>>,
    savers: Vec<Saver>,
    collectors: Vec<Collector>,
    compactor: Compactor,
    reader: Reader,
    fenced: BTreeSet<SessionId>,
    dropped: bool,
    broken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Open(usize),
    /// Choose a chunk to share: found through an index that may be stale, or through the parent.
    Choose(usize, Chunk),
    Commit(usize),
    Fence(usize),
    Drop,
    List(usize),
    Plan(usize),
    Condemn(usize),
    LookToSweep(usize),
    RemoveFile(usize),
    CompactPlan,
    CompactWrite,
    CompactPublish,
    /// A reader opens its session and chooses what to read, then ends.
    Read,
    EndRead,
}

struct Protocol {
    savers: usize,
    collectors: usize,
    compaction: bool,
    reader: bool,
}

const READER: SessionId = SessionId(3000);

fn x() -> PackName {
    pack(1000, 0)
}

/// The pack that compaction writes.
fn y() -> PackName {
    pack(2000, 0)
}

fn saver_id(i: usize) -> u64 {
    10 + i as u64
}

fn step_of(i: usize) -> u64 {
    100 + i as u64
}

fn own(i: usize) -> PackName {
    pack(saver_id(i), 0)
}

/// The first checkpoint, which uses chunk 0 of X.
const FIRST: u64 = 1;

fn append(state: &mut State, ops: Vec<Op>) -> bool {
    if ops.iter().any(|op| state.check(op).is_err()) {
        return false;
    }
    let record = Record { number: state.number() + 1, nonce: [0; 16], time_ns: 0, ops };
    state.apply(&record).is_ok()
}

impl World {
    /// Where a chunk is read from, by the newest state.
    fn place(&self, chunk: Chunk) -> Option<Chunk> {
        if self.state.forwards().contains_key(&chunk.0) {
            self.table.get(&chunk.1).copied()
        } else {
            Some(chunk)
        }
    }

    fn readable(&self, chunk: Chunk) -> bool {
        let place = self.place(chunk);
        place.is_some_and(|(pack, chunk)| self.files.get(&pack).is_some_and(|chunks| chunks.contains(&chunk)))
    }

    fn live_steps(&self) -> BTreeSet<u64> {
        self.state.checkpoints().map(|entry| entry.step).collect()
    }

    fn live_chunks(&self) -> BTreeSet<Chunk> {
        let steps = self.live_steps();
        self.references.iter().filter(|(step, _)| steps.contains(step)).flat_map(|(_, c)| c.clone()).collect()
    }

    /// The packs that must stay, as the collector computes them from manifests.
    fn needed(&self) -> BTreeSet<PackName> {
        let mut needed = BTreeSet::new();
        for (pack, _) in self.live_chunks() {
            if self.state.forwards().contains_key(&pack) {
                needed.extend(self.table.values().map(|&(new, _)| new));
            } else {
                needed.insert(pack);
            }
        }
        needed
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut state = State::default();
        assert!(append(&mut state, vec![writer(1000, FIRST)]));
        assert!(append(&mut state, vec![commit(1000, FIRST, &[])]));
        vec![World {
            state,
            files: BTreeMap::from([(x(), BTreeSet::from([0, 1]))]),
            table: BTreeMap::new(),
            references: BTreeMap::from([(FIRST, BTreeSet::from([(x(), 0)]))]),
            savers: vec![Saver::Idle; self.savers],
            collectors: vec![Collector::Idle; self.collectors],
            compactor: Compactor::Idle,
            reader: Reader::Idle,
            fenced: BTreeSet::new(),
            dropped: false,
            broken: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, saver) in world.savers.iter().enumerate() {
            match saver {
                Saver::Idle => actions.push(Action::Open(i)),
                Saver::Open { chosen } => {
                    if chosen.is_none() {
                        // Both chunks of X may be met, the dead one through the index; and those of Y.
                        for chunk in [(x(), 0), (x(), 1), (y(), 0)] {
                            actions.push(Action::Choose(i, chunk));
                        }
                    }
                    actions.push(Action::Commit(i));
                    actions.push(Action::Fence(i));
                }
                Saver::Done => {}
            }
        }
        if !world.dropped {
            actions.push(Action::Drop);
        }
        for (i, collector) in world.collectors.iter().enumerate() {
            match collector {
                Collector::Idle => {
                    actions.push(Action::List(i));
                    actions.push(Action::LookToSweep(i));
                }
                Collector::Listed(_) => actions.push(Action::Plan(i)),
                Collector::Planned(..) => actions.push(Action::Condemn(i)),
                Collector::Sweeping(_) => actions.push(Action::RemoveFile(i)),
            }
        }
        match world.reader {
            Reader::Idle if self.reader => actions.push(Action::Read),
            Reader::Reading(_) => actions.push(Action::EndRead),
            _ => {}
        }
        if self.compaction {
            actions.push(match world.compactor {
                Compactor::Idle => Action::CompactPlan,
                Compactor::Planned(_) => Action::CompactWrite,
                Compactor::Written(_) => Action::CompactPublish,
                Compactor::Done => return,
            });
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Open(i) => {
                if !append(&mut world.state, vec![writer(saver_id(i), step_of(i))]) {
                    return None;
                }
                world.savers[i] = Saver::Open { chosen: None };
            }
            Action::Choose(i, chunk) => {
                // What a saver does: it uses the state right after its session was opened, which is the newest state
                // restricted to what was there then.
                let session = world.state.sessions().get(&SessionId(saver_id(i)))?;
                let opened = session.opened_at;
                let condemned = world.state.condemned().get(&chunk.0).is_some_and(|&at| at <= opened);
                let forwarded = world.state.forwards().get(&chunk.0).is_some_and(|f| f.since <= opened);
                let there = world.files.get(&chunk.0).is_some_and(|chunks| chunks.contains(&chunk.1));
                if condemned || forwarded || !there {
                    return None;
                }
                world.savers[i] = Saver::Open { chosen: Some(chunk) };
            }
            Action::Commit(i) => {
                let Saver::Open { chosen } = world.savers[i].clone() else { return None };
                // Its own pack was written before.
                let mut references = BTreeSet::from([(own(i), 0)]);
                references.extend(chosen);
                let revived = world.state.to_revive(references.iter().map(|chunk| chunk.0));
                let was_fenced = world.fenced.contains(&SessionId(saver_id(i)));
                let done = append(&mut world.state, vec![commit(saver_id(i), step_of(i), &revived)]);
                world.broken |= done && was_fenced;
                if done {
                    world.files.insert(own(i), BTreeSet::from([0]));
                    world.references.insert(step_of(i), references);
                }
                world.savers[i] = Saver::Done;
            }
            Action::Fence(i) => {
                // The saver does not notice; it may still try to commit.
                let id = SessionId(saver_id(i));
                if !append(&mut world.state, vec![Op::Fence(id)]) {
                    return None;
                }
                world.fenced.insert(id);
            }
            Action::Drop => {
                let app = AppName::new("melt").expect("a name");
                let id = CheckpointId { app, step: FIRST, generation: 1 };
                append(&mut world.state, vec![Op::Drop(vec![id])]);
                world.dropped = true;
            }
            Action::List(i) => {
                world.collectors[i] = Collector::Listed(world.files.keys().copied().collect());
            }
            Action::Plan(i) => {
                let Collector::Listed(listed) = &world.collectors[i] else { return None };
                let needed = world.needed();
                let garbage = listed.iter().copied().filter(|pack| {
                    !needed.contains(pack)
                        && !world.state.sessions().contains_key(&pack.session)
                        && !world.state.condemned().contains_key(pack)
                });
                world.collectors[i] = Collector::Planned(garbage.collect(), world.state.commits());
            }
            Action::Condemn(i) => {
                let Collector::Planned(garbage, commits) = world.collectors[i].clone() else { return None };
                world.collectors[i] = Collector::Idle;
                // If anything was committed since, the plan is made again: here, from the beginning.
                if !garbage.is_empty() && world.state.commits() == commits {
                    append(&mut world.state, vec![Op::Condemn(garbage)]);
                }
            }
            Action::LookToSweep(i) => {
                let sweepable = world.state.sweepable();
                if sweepable.is_empty() {
                    return None;
                }
                world.collectors[i] = Collector::Sweeping(sweepable);
            }
            Action::RemoveFile(i) => {
                let Collector::Sweeping(mut left) = world.collectors[i].clone() else { return None };
                match left.pop() {
                    Some(pack) => {
                        world.files.remove(&pack);
                        world.collectors[i] = Collector::Sweeping(left);
                        if world.state.condemned().contains_key(&pack)
                            && world.collectors[i] == Collector::Sweeping(vec![])
                        {
                            append(&mut world.state, vec![Op::Swept(vec![pack])]);
                        }
                    }
                    None => world.collectors[i] = Collector::Idle,
                }
            }
            Action::Read => {
                let entry = SessionEntry {
                    id: READER,
                    kind: SessionKind::Reader,
                    owner: Owner::default(),
                    lease_ms: 1,
                    since_ns: 0,
                };
                append(&mut world.state, vec![Op::Open(entry)]);
                let newest =
                    world.state.checkpoints().max_by_key(|entry| entry.sequence).map(|entry| entry.step);
                let chunks = newest.map(|step| world.references[&step].clone()).unwrap_or_default();
                let places = chunks.into_iter().filter_map(|chunk| world.place(chunk)).collect();
                world.reader = Reader::Reading(places);
            }
            Action::EndRead => {
                append(&mut world.state, vec![Op::End(READER)]);
                world.reader = Reader::Done;
            }
            Action::CompactPlan => {
                let id = SessionId(2000);
                let entry = SessionEntry {
                    id,
                    kind: SessionKind::Upkeep,
                    owner: Owner::default(),
                    lease_ms: 1,
                    since_ns: 0,
                };
                append(&mut world.state, vec![Op::Open(entry)]);
                let live =
                    world.live_chunks().into_iter().filter(|chunk| chunk.0 == x()).map(|chunk| chunk.1);
                world.compactor = Compactor::Planned(live.collect());
            }
            Action::CompactWrite => {
                let Compactor::Planned(live) = world.compactor.clone() else { return None };
                if live.is_empty() || !world.files.contains_key(&x()) {
                    append(&mut world.state, vec![Op::End(SessionId(2000))]);
                    world.compactor = Compactor::Done;
                } else {
                    world.files.insert(y(), live.clone());
                    world.compactor = Compactor::Written(live);
                }
            }
            Action::CompactPublish => {
                let Compactor::Written(moved) = world.compactor.clone() else { return None };
                // Only if nothing more has become live, as the newest state tells.
                let live: BTreeSet<u32> =
                    world.live_chunks().iter().filter(|c| c.0 == x()).map(|c| c.1).collect();
                world.compactor = Compactor::Done;
                if live.is_subset(&moved) {
                    let table =
                        Locator { pack: PackRef { name: y(), root: Hash([0; 32]), length: 1 }, chunk: 9 };
                    if append(&mut world.state, vec![Op::Forward(SessionId(2000), vec![(x(), table)])]) {
                        world.table = moved.iter().map(|&chunk| (chunk, (y(), chunk))).collect();
                    }
                } else {
                    append(&mut world.state, vec![Op::End(SessionId(2000))]);
                }
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("whatever a checkpoint refers to can be read", |_, world: &World| {
                world.live_chunks().into_iter().all(|chunk| world.readable(chunk))
            }),
            Property::always("what a reader has pinned stays", |_, world: &World| match &world.reader {
                Reader::Reading(places) => places
                    .iter()
                    .all(|(pack, chunk)| world.files.get(pack).is_some_and(|chunks| chunks.contains(chunk))),
                _ => true,
            }),
            Property::always("a fenced session does not commit", |_, world: &World| !world.broken),
            Property::sometimes("garbage is removed", |_, world: &World| !world.files.contains_key(&x())),
            Property::sometimes("a condemned pack is revived", |_, world: &World| {
                world.dropped && world.live_chunks().contains(&(x(), 1))
            }),
        ]
    }
}

fn check(protocol: Protocol) -> usize {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
    checker.unique_state_count()
}

#[test]
fn savers_and_two_collectors() {
    assert!(check(Protocol { savers: 2, collectors: 2, compaction: false, reader: false }) > 1000);
}

#[test]
fn a_saver_and_a_collector_beside_compaction() {
    assert!(check(Protocol { savers: 2, collectors: 1, compaction: true, reader: false }) > 1000);
}

#[test]
fn a_reader_beside_collection_and_compaction() {
    assert!(check(Protocol { savers: 1, collectors: 1, compaction: true, reader: true }) > 1000);
}
