//! Files that several mounts write together (`docs/MOUNT.md`, One file, many writers): every interleaving of it, over the real state machine.
//!
//! Mounts join, add layers, leave, come back, and die, in any order; whoever joined may be fenced at any time, dead or not. Who leaves last plans a version of the
//! layers that he sees, and appends it later, if it is still all there is. What is checked in every state that can be reached:
//!
//! - a version has every layer that was added under its session, and no session has two versions;
//! - what was given up, because somebody who wrote it was fenced, becomes no version;
//! - a file is written under one session at most, and that is open exactly as long as somebody is joined to it;
//! - a name leads to a file of no versions only as long as it is written.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, Model, Property};

use stdchk_catalog::conformance::{commit, file, open, part};
use stdchk_catalog::tree::Version;
use stdchk_catalog::{CheckpointEntry, Op, Record, SessionKind, State};
use stdchk_object::{AppName, SessionId};

const FILE: u64 = 77;
/// How often a mount may open the file, and how many layers it may add.
const OPENS: u32 = 2;
const LAYERS: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Mount {
    Closed,
    /// It has the file open, under a session, with one of its own.
    Joined {
        of: SessionId,
        id: SessionId,
    },
    /// It is the last one, and makes a version of so many layers.
    Publishing {
        of: SessionId,
        id: SessionId,
        known: usize,
    },
    Dead {
        id: SessionId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    state: State,
    mounts: Vec<Mount>,
    /// How often each has opened it, and added a layer.
    opens: Vec<u32>,
    layers: Vec<u32>,
    /// The layers of each session, by who added them and which of his it was.
    laid: BTreeMap<SessionId, Vec<(usize, u32)>>,
    given_up: BTreeSet<SessionId>,
    /// The sessions that ended in a version, with its layers.
    versions: BTreeMap<SessionId, Vec<(usize, u32)>>,
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Open(usize),
    Lay(usize),
    Leave(usize),
    Publish(usize),
    Die(usize),
    /// Whoever joined is taken for dead, rightly or not.
    Fence(SessionId),
}

struct Together {
    mounts: usize,
}

fn append(state: &mut State, ops: Vec<Op>) -> bool {
    let mut next = state.clone();
    let record = Record { number: state.number() + 1, nonce: [0; 16], time_ns: 0, ops };
    let done = next.apply(&record).is_ok();
    if done {
        *state = next;
    }
    done
}

fn version_of(of: SessionId) -> CheckpointEntry {
    let Op::Commit(_, entry, _) = commit(of.0, FILE, &[]) else { unreachable!("it is a commit") };
    CheckpointEntry { app: AppName::files(), ..*entry }
}

impl World {
    fn parts(&self, of: SessionId) -> usize {
        self.state.sessions().get(&of).map_or(0, |session| session.parts.len())
    }

    fn has(&self, id: SessionId) -> bool {
        self.state.sessions().contains_key(&id)
    }

    fn open(&mut self, mount: usize) -> bool {
        let number = |sort: u64| SessionId(sort + 10 * mount as u64 + u64::from(self.opens[mount]));
        let (first, id) = (number(100), number(200));
        let of = self.state.shared(FILE).unwrap_or(first);
        let mut ops = Vec::new();
        if of == first {
            ops.push(open(first.0, SessionKind::Shared { file: FILE, base: None }));
        }
        ops.push(open(id.0, SessionKind::Join(of)));
        if self.state.tree().get(FILE).is_none() {
            ops.push(file(FILE, Vec::new()));
        }
        self.opens[mount] += 1;
        self.mounts[mount] = Mount::Joined { of, id };
        append(&mut self.state, ops)
    }

    fn lay(&mut self, mount: usize, (of, id): (SessionId, SessionId)) {
        if !self.has(id) {
            // It hears that it was given up.
            self.mounts[mount] = Mount::Closed;
            return;
        }
        self.layers[mount] += 1;
        let number = 10 * mount as u32 + self.layers[mount];
        if append(&mut self.state, vec![Op::AddPart(of, part(of.0, number), false)]) {
            self.laid.entry(of).or_default().push((mount, self.layers[mount]));
        }
    }

    fn leave(&mut self, mount: usize, (of, id): (SessionId, SessionId)) {
        if !self.has(id) {
            self.mounts[mount] = Mount::Closed;
            return;
        }
        let others = self.state.joined(of).count() > 1;
        // A new file is one even if nobody has written to it.
        let is_new = self.state.tree().get(FILE).is_some_and(|named| named.node.is_unwritten());
        if others || (self.parts(of) == 0 && !is_new) {
            self.is_broken |= !append(&mut self.state, vec![Op::End(id)]);
            self.mounts[mount] = Mount::Closed;
        } else {
            self.mounts[mount] = Mount::Publishing { of, id, known: self.parts(of) };
        }
    }

    fn publish(&mut self, mount: usize, (of, id): (SessionId, SessionId), known: usize) {
        if !self.has(id) {
            self.mounts[mount] = Mount::Closed;
            return;
        }
        if self.parts(of) != known || self.state.joined(of).count() > 1 {
            self.mounts[mount] = Mount::Joined { of, id };
            return;
        }
        let files = self.state.apps().get(&AppName::files());
        let newest = files.and_then(|app| app.checkpoints.of_step(FILE).last().map(|entry| entry.generation));
        let version = Version { step: FILE, generation: newest.unwrap_or(0) + 1 };
        let older = self.state.tree().get(FILE).map_or(Vec::new(), |named| named.node.versions().to_vec());
        let publish = Op::Publish(of, vec![version_of(of)], Vec::new());
        let name = file(FILE, older.into_iter().chain([version]).collect());
        self.mounts[mount] = Mount::Closed;
        if !append(&mut self.state, vec![publish, name]) {
            self.is_broken = true;
            return;
        }
        let layers = self.laid.get(&of).cloned().unwrap_or_default();
        self.is_broken |= self.given_up.contains(&of);
        self.is_broken |= self.versions.insert(of, layers[..known].to_vec()).is_some();
    }

    fn fence(&mut self, id: SessionId) -> bool {
        let Some(open) = self.state.sessions().get(&id) else { return false };
        let SessionKind::Join(of) = open.entry.kind else { return false };
        self.given_up.insert(of);
        append(&mut self.state, vec![Op::Fence(id)])
    }
}

impl Model for Together {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            state: State::default(),
            mounts: vec![Mount::Closed; self.mounts],
            opens: vec![0; self.mounts],
            layers: vec![0; self.mounts],
            laid: BTreeMap::new(),
            given_up: BTreeSet::new(),
            versions: BTreeMap::new(),
            is_broken: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, mount) in world.mounts.iter().enumerate() {
            match mount {
                Mount::Closed if world.opens[i] < OPENS => actions.push(Action::Open(i)),
                Mount::Closed => {}
                Mount::Joined { id, .. } => {
                    if world.layers[i] < LAYERS {
                        actions.push(Action::Lay(i));
                    }
                    actions.extend([Action::Leave(i), Action::Die(i), Action::Fence(*id)]);
                }
                Mount::Publishing { id, .. } => {
                    actions.extend([Action::Publish(i), Action::Die(i), Action::Fence(*id)]);
                }
                Mount::Dead { id } => actions.push(Action::Fence(*id)),
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        let joined = |i: usize| match last.mounts[i] {
            Mount::Joined { of, id } | Mount::Publishing { of, id, .. } => Some((of, id)),
            _ => None,
        };
        match action {
            Action::Open(i) => {
                if !world.open(i) {
                    world.is_broken = true;
                }
            }
            Action::Lay(i) => world.lay(i, joined(i)?),
            Action::Leave(i) => world.leave(i, joined(i)?),
            Action::Publish(i) => {
                let Mount::Publishing { known, .. } = last.mounts[i] else { return None };
                world.publish(i, joined(i)?, known);
            }
            Action::Die(i) => world.mounts[i] = Mount::Dead { id: joined(i)?.1 },
            Action::Fence(id) => {
                if !world.fence(id) {
                    return None;
                }
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes that must not, and what must goes", |_, world: &World| {
                !world.is_broken
            }),
            Property::always("a version has all layers of its session", |_, world: &World| {
                let all = |of| world.laid.get(of).cloned().unwrap_or_default();
                world.versions.iter().all(|(of, layers)| *layers == all(of))
            }),
            Property::always("a file is written under one session, by somebody", |_, world: &World| {
                let kinds = || world.state.sessions().values().map(|open| &open.entry.kind);
                let shared = kinds().filter(|kind| kind.shared_file().is_some()).count();
                let joined = world.state.shared(FILE).map_or(0, |of| world.state.joined(of).count());
                shared <= 1 && joined + shared == kinds().count() && (shared == 1) == (joined > 0)
            }),
            Property::always(
                "a name leads to a file of no versions while it is written",
                |_, world: &World| {
                    let named = world.state.tree().get(FILE);
                    named.is_none_or(|named| !named.node.is_unwritten() || world.state.shared(FILE).is_some())
                },
            ),
            Property::sometimes("layers of several become a version", |_, world: &World| {
                world.versions.values().any(|layers| layers.iter().any(|(mount, _)| *mount != layers[0].0))
            }),
            Property::sometimes("one comes while the last one publishes", |_, world: &World| {
                let publishes = |mount: &Mount| matches!(mount, Mount::Publishing { .. });
                let has_joined = |mount: &Mount| matches!(mount, Mount::Joined { .. });
                world.mounts.iter().any(publishes) && world.mounts.iter().any(has_joined)
            }),
            Property::sometimes("what was written is given up", |_, world: &World| {
                world.given_up.iter().any(|of| world.laid.contains_key(of))
            }),
        ]
    }
}

fn check(mounts: usize) -> usize {
    let checker = Together { mounts }.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
    checker.unique_state_count()
}

#[test]
fn two_mounts_write_one_file() {
    assert!(check(2) > 1000);
}
