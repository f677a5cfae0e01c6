//! A pool of several machines on one thread, with the code that is also run by many: benefactors crash, lose power, come back, come
//! anew, leave, and step back and lend again; the manager loses power; the network loses questions and answers, and falls apart; time jumps; savers die.
//!
//! What must hold: who is told that something is committed finds it again; wrong bytes never come out; nothing that was as safe as the
//! pool promises is lost while no more machines are lost at once than that allows; and when the trouble is over, all is as safe again. In one story of four
//! benefactors lend so little that they are soon full: then whoever had room kept for all that comes gets it, and of what is kept nothing is left in the end.
//!
//! `STDCHK_SEED=n cargo test -p stdchk-pool --test simulation` replays one seed; `STDCHK_SEEDS=n` tries so many.

mod saver;
mod world;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stdchk_catalog::{Catalog, Class, Op, PoolOp};
use stdchk_catalog_log::clock::{self, Simulation};
use stdchk_object::{Item, PackName, Result};
use stdchk_pool::{PoolCatalog, PoolStore, Simulated};
use stdchk_store::Store;

use saver::Saver;
use world::{CLIENT, MANAGER, Node, World};

/// Seeds that are tried, unless the environment says otherwise.
const SEEDS: u64 = 2000;
/// What happens in a story.
const EVENTS: usize = 60;
const NODES_MAX: usize = 8;
/// Rounds in which everything must come to rest.
const REST_MAX: usize = 400;
/// And after which somebody lends more where everything is full.
const WAIT_FOR_ROOM: usize = 10;

/// A checkpoint that a saver was told is committed.
struct Saved {
    session: u64,
    packs: Vec<(PackName, Vec<u8>)>,
}

struct Story {
    world: Rc<World>,
    class: Class,
    saved: Vec<Saved>,
    next_session: u64,
    /// Machines that were lost since everything was as safe as it should be.
    hurt: usize,
}

fn classes() -> [Class; 5] {
    let copies = |replicas| Class { replicas, ..Class::default() };
    let shards = |code: &str| Class { code: code.parse().ok(), ..Class::default() };
    [copies(2), copies(3), Class { stripe: 3, ..copies(2) }, shards("2+1"), shards("3+2")]
}

impl Story {
    /// So many machines may be lost at once.
    fn tolerance(&self) -> usize {
        self.class.code.map_or(usize::from(self.class.replicas) - 1, |code| usize::from(code.parity()))
    }

    /// As many as a pack needs.
    fn needed(&self) -> usize {
        self.class.code.map_or(usize::from(self.class.replicas), |code| usize::from(code.count()))
    }

    fn store(&self, catalog: &Arc<PoolCatalog>) -> Result<PoolStore> {
        PoolStore::open(catalog.clone(), self.world.key())
    }

    fn new_session(&mut self) -> u64 {
        self.next_session += 1;
        self.world.below(1 << 40) << 20 | self.next_session
    }

    /// Saves some packs under one name, as a saver does.
    fn save(&mut self) {
        let world = self.world.clone();
        let session = self.new_session();
        // Some say first what comes, and some of these what was not needed of it.
        let (says_ahead, gives_back) = (world.one_in(2), world.one_in(2));
        let work = || -> Result<Saver> {
            let saver = Saver::begin(&world, session)?;
            if says_ahead {
                saver.say_ahead(true);
            }
            saver.put_all()?;
            if gives_back {
                saver.give_back();
            }
            saver.commit()?;
            Ok(saver)
        };
        let done = world.act(CLIENT, work);
        self.note(done);
    }

    /// Several begin, say what comes, and put it only then.
    fn save_at_once(&mut self) {
        let world = self.world.clone();
        let is_calm = self.is_settled() && world.is_calm();
        let mingles = world.mingles.replace(!is_calm);
        let begin = |session| world.act(CLIENT, || Saver::begin(&world, session)).ok();
        let sessions: Vec<u64> = (0..2 + world.below(3)).map(|_| self.new_session()).collect();
        let savers: Vec<Saver> = sessions.into_iter().filter_map(begin).collect();
        // Of shards there is a pack that is whole for a moment, for which no room is kept.
        let can_rely = is_calm && self.class.code.is_none();
        let rely = |saver: &Saver| {
            let before = world.kept();
            world.act(CLIENT, || saver.say_ahead(false));
            can_rely && world.kept() == before + saver.wish() * u64::from(self.class.replicas)
        };
        let can_rely: Vec<bool> = savers.iter().map(rely).collect();
        for (saver, can_rely) in savers.into_iter().zip(can_rely) {
            let done = world.act(CLIENT, || {
                let put = saver.put_all();
                assert!(put.is_ok() || !can_rely, "room was kept: {}", put.unwrap_err());
                put?;
                saver.give_back();
                saver.commit()?;
                Ok(saver)
            });
            self.note(done);
        }
        world.mingles.set(mingles);
    }

    /// What is committed must be there from now on.
    fn note(&mut self, done: Result<Saver>) {
        let world = &self.world;
        match done {
            Ok(Saver { session, packs, .. }) => {
                let with = |name: &PackName| format!("\n  {name} is with {:?}", world.holders(*name));
                world.tell(|| {
                    format!("saved {}", packs.iter().map(|(name, _)| with(name)).collect::<String>())
                });
                if world.client_ends.get() != Some(0) {
                    self.saved.push(Saved { session, packs });
                }
            }
            Err(error) => world.tell(|| format!("not saved: {error}")),
        }
    }

    /// Reads a checkpoint: where that is possible at all at this moment, it is what was saved.
    fn read(&self) {
        if self.saved.is_empty() {
            return;
        }
        let saved = &self.saved[self.world.below(self.saved.len() as u64) as usize];
        let work = || -> Result<()> {
            let store = self.store(&self.world.catalog())?;
            for (name, bytes) in &saved.packs {
                let mut buffer = vec![0; bytes.len()];
                store.read(*name, 0, &mut buffer)?;
                assert!(buffer == *bytes, "wrong bytes of {name}");
            }
            Ok(())
        };
        let _ = self.world.act(CLIENT, work);
    }

    /// Members that run, and stay.
    fn lending(&self) -> usize {
        if !self.world.is_managed() {
            return 0;
        }
        let state = self.world.names().state().unwrap();
        let nodes = self.world.nodes.borrow();
        let running = nodes.values().filter(|node| node.station.is_some());
        running.filter(|node| state.pool().members().contains_key(&node.id)).count()
    }

    /// Nobody is missing who is a member, and all lies where it belongs.
    fn is_settled(&self) -> bool {
        if !self.world.is_managed() {
            return false;
        }
        let state = self.world.names().state().unwrap();
        let nodes = self.world.nodes.borrow();
        let is_there = |id: &u64| nodes.values().any(|node| node.id == *id && node.station.is_some());
        let pool = state.pool();
        pool.settled() == pool.epoch() && pool.members().keys().all(is_there)
    }

    /// A machine loses power, if that may be borne.
    fn lose_one(&mut self) {
        let idle = self.world.idle();
        if self.hurt >= self.tolerance() || self.lending() <= self.needed() {
            return;
        }
        self.hurt += 1;
        self.world.stop_node(&idle[self.world.below(idle.len() as u64) as usize]);
    }

    /// Has one give away what it holds, and go.
    fn leave(&mut self) {
        let idle = self.world.idle();
        if !self.world.is_managed() || self.lending() <= self.needed() {
            return;
        }
        let who = &idle[self.world.below(idle.len() as u64) as usize];
        let id = self.world.nodes.borrow()[who].id;
        self.world.tell(|| format!("{who} is to leave"));
        let _ = self.world.names().append(true, &mut |state| {
            let there = state.pool().members().contains_key(&id);
            Ok(if there { vec![Op::Pool(PoolOp::Leave(id))] } else { Vec::new() })
        });
    }

    /// Somebody's machine is wanted back by its owner; or it is free again.
    fn step_back(&self) {
        let world = &self.world;
        let idle = world.idle();
        if idle.is_empty() {
            return;
        }
        let who = &idle[world.below(idle.len() as u64) as usize];
        let station = world.nodes.borrow()[who].station.clone();
        let Some(station) = station else { return };
        let (what, done) = match station.is_away() {
            true => ("lends again", world.act(who, || station.come_back())),
            false if self.lending() > self.needed() => ("steps back", world.act(who, || station.step_back())),
            false => return,
        };
        world.tell(|| format!("{who} {what}: {:?}", done.map_err(|error| error.to_string())));
    }

    /// All who have stepped back lend again.
    fn come_back(&self) {
        let world = &self.world;
        for who in world.idle() {
            let station = world.nodes.borrow()[&who].station.clone();
            if let Some(station) = station.filter(|station| station.is_away()) {
                let _ = world.act(&who, || station.come_back());
            }
        }
    }

    /// Those who were put out, and have nothing left, go, as their processes do.
    fn see_off(&self) {
        let nodes = self.world.nodes.borrow();
        let is_done = |node: &&Node| node.station.as_ref().is_some_and(|station| station.is_evicted());
        let gone: Vec<String> = nodes.values().filter(is_done).map(|node| node.address.clone()).collect();
        drop(nodes);
        gone.iter().for_each(|address| self.world.remove_node(address));
    }

    fn event(&mut self) {
        let world = self.world.clone();
        clock::sleep(Duration::from_millis(world.below(400)));
        match world.below(25) {
            0..4 => self.save(),
            4 | 5 if world.one_in(2) => self.save_at_once(),
            4 | 5 => self.save(),
            6..9 => self.read(),
            9 => {
                // A saver dies in the middle.
                world.client_ends.set(Some(1 + world.below(20)));
                self.save();
                world.client_ends.set(None);
            }
            10 | 11 => self.lose_one(),
            12 => world.stopped().first().into_iter().for_each(|address| {
                world.start_node(address);
            }),
            13 if world.nodes.borrow().len() < NODES_MAX => {
                world.add_node(world.one_in(2));
            }
            14 => self.leave(),
            15 if world.is_managed() => world.stop_manager(),
            15 | 16 if !world.is_managed() => world.start_manager(),
            17 => {
                let mut all: Vec<String> = world.nodes.borrow().keys().cloned().collect();
                all.extend([MANAGER.to_owned(), CLIENT.to_owned()]);
                let one = |world: &World| all[world.below(all.len() as u64) as usize].clone();
                world.cut(&one(&world), &one(&world));
            }
            18 => world.loss.set(5 + world.below(40)),
            19 => world.heal(),
            20 => {
                clock::sleep(Duration::from_secs(world.below(100)));
                world.evict_silent(true);
            }
            21 => _ = world.evict_silent(false),
            22 => self.step_back(),
            _ => world.stir_all(),
        }
        self.check_names();
        if self.hurt > 0 && self.is_settled() {
            world.tell(|| "all is as safe again".to_owned());
            self.hurt = 0;
        }
        self.see_off();
    }

    /// What was said to be committed is there, once.
    fn check_names(&self) {
        if !self.world.is_managed() {
            return;
        }
        let state = self.world.names().state().unwrap();
        for saved in &self.saved {
            let there = state.checkpoints().filter(|entry| entry.step == saved.session).count();
            assert_eq!(there, 1, "checkpoint {:x}", saved.session);
        }
    }

    /// The trouble is over: those who can come back do, and everything comes to rest.
    fn come_to_rest(&mut self) {
        let world = self.world.clone();
        world.heal();
        if !world.is_managed() {
            world.start_manager();
        }
        for round in 0..REST_MAX {
            // Where nobody has room, what was lost cannot be made again, and who is to leave stays.
            if round == WAIT_FOR_ROOM && world.is_tight.replace(false) {
                (0..self.needed()).for_each(|_| drop(world.add_node(false)));
            }
            world.stopped().iter().for_each(|address| world.start_node(address));
            if self.lending() < self.needed() {
                world.add_node(false);
            }
            clock::sleep(Duration::from_millis(500));
            world.stir_all();
            world.evict_silent(false);
            self.come_back();
            self.see_off();
            if self.is_settled() && world.stopped().is_empty() {
                return;
            }
        }
        let state = world.names().state().unwrap();
        let nodes = world.nodes.borrow();
        let reports: Vec<String> = nodes
            .values()
            .map(|node| {
                format!("\n{} {:?}", node.address, node.station.as_ref().map(|station| station.report()))
            })
            .collect();
        panic!("epoch {} does not settle: {:?}{}", state.pool().epoch(), state.pool(), reports.concat());
    }

    /// Everything is there, and as safe as was promised.
    fn check_all(&self) {
        self.check_names();
        // What was put last is copied when nothing has been put for a while.
        clock::sleep(Duration::from_secs(5));
        (0..4).for_each(|_| self.world.stir_all());
        self.world.mingles.set(false);
        let members = self.world.idle().len();
        let work = || {
            let store = self.store(&self.world.catalog()).unwrap();
            for (name, bytes) in self.saved.iter().flat_map(|saved| &saved.packs) {
                let mut buffer = vec![0; bytes.len()];
                store.read(*name, 0, &mut buffer).unwrap_or_else(|error| panic!("{name} is lost: {error}"));
                assert!(buffer == *bytes, "wrong bytes of {name}");
                if self.class.code.is_some() {
                    assert!(
                        store.is_sound(*name).unwrap(),
                        "{name} lacks shards: {:?}",
                        self.world.holders(*name)
                    );
                    continue;
                }
                let nodes = self.world.nodes.borrow();
                let holders =
                    nodes.values().filter(|node| node.shelf.length(Item::from(*name)).is_ok()).count();
                let wanted = usize::from(self.class.replicas).min(members);
                assert!(holders >= wanted, "{name} has {holders} of {wanted} copies");
            }
        };
        self.world.act(CLIENT, work);
    }

    /// Nothing is counted that is not there.
    fn clear_all(&self) {
        clock::sleep(Duration::from_secs(30));
        assert_eq!(self.world.kept(), 0, "nobody needs room");
        for node in self.world.nodes.borrow().values() {
            let items = node.shelf.list(None, usize::MAX).unwrap();
            node.shelf.remove(&items.into_iter().map(|(item, _)| item).collect::<Vec<_>>()).unwrap();
            assert_eq!(node.shelf.usage().used, 0, "{} is empty", node.address);
        }
    }
}

/// One story; what was asked in it.
fn tell(seed: u64) -> Vec<String> {
    let _time = Simulation::begin();
    let count = classes().len() as u64;
    let class = classes()[(seed % count) as usize];
    let world = World::new(seed, class, (seed / count).is_multiple_of(4));
    let _network = Simulated::begin(world.clone());
    world.is_loud.set(number("STDCHK_SEED").is_some());
    let mut story = Story { world: world.clone(), class, saved: Vec::new(), next_session: 0, hurt: 0 };
    for _ in 0..story.needed() + 1 + world.below(3) as usize {
        world.add_node(world.one_in(3));
    }
    (0..3).for_each(|_| world.stir_all());
    for _ in 0..EVENTS {
        story.event();
    }
    story.come_to_rest();
    story.check_all();
    story.clear_all();
    std::mem::take(&mut *world.trace.borrow_mut())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn stories_end_well() {
    if let Some(seed) = number("STDCHK_SEED") {
        tell(seed);
        return;
    }
    let seeds = number("STDCHK_SEEDS").unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let tellers = (0..threads).map(|thread| {
            scope.spawn(move || {
                let mine = (0..seeds).filter(move |seed| seed % threads == thread);
                mine.filter(|&seed| std::panic::catch_unwind(|| tell(seed)).is_err()).collect::<Vec<u64>>()
            })
        });
        let tellers: Vec<_> = tellers.collect();
        tellers.into_iter().flat_map(|teller| teller.join().expect("its seeds")).collect()
    });
    assert!(
        failed.is_empty(),
        "{} of {seeds} seeds fail: {:?}",
        failed.len(),
        &failed[..failed.len().min(20)]
    );
}

#[test]
fn a_seed_tells_the_same_story_again() {
    for seed in 0..10 {
        let (one, other) = (tell(seed), tell(seed));
        assert!(one.len() > 100, "much happens");
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        assert_eq!((differs, one.len()), (None, other.len()), "seed {seed}");
    }
}
