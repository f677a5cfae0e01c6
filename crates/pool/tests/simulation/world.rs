//! Processes and the network between them, all on one thread. Whatever happens follows from a seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stdchk_catalog::{Catalog, State};
use stdchk_catalog::{Class, Medium, Member, Op, PoolOp};
use stdchk_catalog_log::{HeardSigns, LogCatalog, clock};
use stdchk_kit::{Random, SimFs};
use stdchk_object::{Error, Kind, PackName, Result};
use stdchk_pool::{
    Key, Lend, LentDisk, LentMemory, ManagerService, Network, Peer, PoolCatalog, Protection, Service, Shelf,
    Station,
};
use stdchk_store_dir::DirStore;

pub const MANAGER: &str = "manager";
pub const CLIENT: &str = "client";
/// Half of how long nothing may be heard of a benefactor.
const HALF_PATIENCE: Duration = Duration::from_secs(2);
const CAPACITY: u64 = 1 << 30;
/// What they lend at least, and at most that much more, where they are soon full.
const TIGHT: u64 = 300_000;
/// How deep events may happen within events.
const DEPTH_MAX: usize = 3;

/// What a benefactor lends, and what is left of it when its process is gone.
enum Lent {
    Memory,
    Disk(Arc<SimFs>),
}

/// A benefactor, running or not.
pub struct Node {
    pub id: u64,
    pub address: String,
    lent: Lent,
    pub shelf: Arc<dyn Shelf>,
    capacity: u64,
    /// While it runs.
    pub station: Option<Rc<Station>>,
}

/// The one who keeps the names, running or not.
struct Manager {
    fs: Arc<SimFs>,
    running: Option<(Arc<LogCatalog>, Arc<ManagerService>)>,
}

/// All processes, and what is between them.
pub struct World {
    pub random: RefCell<Random>,
    key: Key,
    manager: RefCell<Manager>,
    pub nodes: RefCell<BTreeMap<String, Node>>,
    /// Who acts, and on whose question, and so on.
    acting: RefCell<Vec<String>>,
    /// Pairs that do not reach each other.
    cuts: RefCell<BTreeSet<(String, String)>>,
    /// One question or answer in so many gets lost; 0 for none.
    pub loss: Cell<u64>,
    /// Whether others act while a question is on its way.
    pub mingles: Cell<bool>,
    /// The client is gone after so many questions more.
    pub client_ends: Cell<Option<u64>>,
    next_id: Cell<u64>,
    /// Whether benefactors lend so little that they are soon full.
    pub is_tight: Cell<bool>,
    /// Everything that was asked and that happened: the same for the same seed.
    pub trace: RefCell<Vec<String>>,
    /// Whether it is told while it happens.
    pub is_loud: Cell<bool>,
}

fn pair(one: &str, other: &str) -> (String, String) {
    (one.min(other).to_owned(), one.max(other).to_owned())
}

fn lost(why: &str) -> Error {
    Error::new(Kind::Io, why.to_owned())
}

impl World {
    pub fn new(seed: u64, class: Class, is_tight: bool) -> Rc<World> {
        let manager = Manager { fs: Arc::new(SimFs::new()), running: None };
        let world = Rc::new(World {
            random: RefCell::new(Random::new(seed)),
            key: Key::random(Protection::Plain).unwrap(),
            manager: RefCell::new(manager),
            nodes: RefCell::default(),
            acting: RefCell::default(),
            cuts: RefCell::default(),
            loss: Cell::new(0),
            mingles: Cell::new(true),
            client_ends: Cell::new(None),
            next_id: Cell::new(1),
            is_tight: Cell::new(is_tight),
            trace: RefCell::default(),
            is_loud: Cell::new(false),
        });
        world.start_manager();
        let found = |_: &State| Ok(vec![Op::Pool(PoolOp::Found(class, 7))]);
        world.names().append(true, &mut { found }).unwrap();
        world
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().below(limit)
    }

    pub fn one_in(&self, n: u64) -> bool {
        self.random.borrow_mut().one_in(n)
    }

    /// Something happens.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        let what = what();
        if self.is_loud.get() {
            eprintln!("{what}");
        }
        self.trace.borrow_mut().push(what);
    }

    /// Has somebody do something.
    pub fn act<T>(&self, who: &str, what: impl FnOnce() -> T) -> T {
        self.acting.borrow_mut().push(who.to_owned());
        let done = what();
        self.acting.borrow_mut().pop();
        done
    }

    pub fn peer(&self) -> Arc<Peer> {
        Arc::new(Peer::new(MANAGER, self.key.clone()))
    }

    pub fn catalog(&self) -> Arc<PoolCatalog> {
        Arc::new(PoolCatalog::new(self.peer()))
    }

    pub fn key(&self) -> Key {
        self.key.clone()
    }

    /// The names themselves, which no network hides; the manager must be running.
    pub fn names(&self) -> Arc<LogCatalog> {
        self.manager.borrow().running.as_ref().expect("it runs").0.clone()
    }

    pub fn is_managed(&self) -> bool {
        self.manager.borrow().running.is_some()
    }

    pub fn start_manager(&self) {
        let mut manager = self.manager.borrow_mut();
        let catalog = Arc::new(LogCatalog::open(manager.fs.clone(), MANAGER).expect("its log is whole"));
        let objects = DirStore::on(manager.fs.clone(), MANAGER.into(), "sim".into());
        objects.prepare().unwrap();
        let signs = Box::new(HeardSigns::new(HALF_PATIENCE));
        let service = ManagerService::new(catalog.clone(), Arc::new(objects), signs, HALF_PATIENCE);
        manager.running = Some((catalog, Arc::new(service)));
    }

    /// The manager's machine loses power.
    pub fn stop_manager(&self) {
        self.tell(|| "the manager loses power".to_owned());
        let mut manager = self.manager.borrow_mut();
        manager.running = None;
        manager.fs.power_cut(&mut self.random.borrow_mut());
    }

    /// The manager looks who was silent for too long; after a long time it knows that it was asleep itself.
    pub fn evict_silent(&self, has_slept: bool) -> Vec<u64> {
        let service = self.manager.borrow().running.as_ref().map(|(_, service)| service.clone());
        let Some(service) = service else { return Vec::new() };
        if has_slept {
            service.forgive_silence();
        }
        let lost = service.evict_silent(None).unwrap();
        if !lost.is_empty() {
            self.tell(|| format!("lost: {lost:?}"));
        }
        lost
    }

    /// One more benefactor, with memory or a disk; it runs when it has joined.
    pub fn add_node(&self, on_disk: bool) -> String {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let address = format!("node{id}");
        let lent = if on_disk { Lent::Disk(Arc::new(SimFs::new())) } else { Lent::Memory };
        let capacity = if self.is_tight.get() { TIGHT + self.below(TIGHT) } else { CAPACITY };
        let shelf: Arc<dyn Shelf> = Arc::new(LentMemory::new(capacity));
        let node = Node { id, address: address.clone(), lent, shelf, capacity, station: None };
        self.nodes.borrow_mut().insert(address.clone(), node);
        self.start_node(&address);
        address
    }

    /// Starts one that does not run, with what is left of what it had.
    pub fn start_node(&self, address: &str) {
        let member = {
            let mut nodes = self.nodes.borrow_mut();
            let node = nodes.get_mut(address).expect("a node");
            if let Lent::Disk(fs) = &node.lent {
                node.shelf = Arc::new(LentDisk::open(fs.clone(), address, node.capacity).unwrap());
            }
            let medium = if matches!(node.lent, Lent::Disk(_)) { Medium::Disk } else { Medium::Memory };
            let (address, domain) = (node.address.clone(), node.address.clone());
            Member { id: node.id, address, domain, medium, capacity: node.capacity }
        };
        let shelf = self.nodes.borrow()[address].shelf.clone();
        let (catalog, manager) = (self.catalog(), self.peer());
        let lend = Lend { shelf, member, catalog, manager, key: self.key(), move_rate: None };
        let joined = self.act(address, || Station::join(&lend));
        self.tell(|| {
            format!("{address} joins: {:?}", joined.as_ref().map(|_| ()).map_err(ToString::to_string))
        });
        let mut nodes = self.nodes.borrow_mut();
        // Who cannot join tries again later.
        nodes.get_mut(address).expect("a node").station = joined.ok().map(Rc::new);
    }

    /// A benefactor's machine loses power: what was in memory is gone for ever, and it does not come back.
    pub fn stop_node(&self, address: &str) {
        self.tell(|| format!("{address} loses power"));
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.get_mut(address).expect("a node");
        node.station = None;
        let stays = match &node.lent {
            Lent::Disk(fs) => {
                fs.power_cut(&mut self.random.borrow_mut());
                true
            }
            Lent::Memory => false,
        };
        if !stays {
            nodes.remove(address);
        }
    }

    /// A process ends for good.
    pub fn remove_node(&self, address: &str) {
        self.tell(|| format!("{address} ends"));
        self.nodes.borrow_mut().remove(address);
    }

    /// Benefactors that run and do nothing at this moment.
    pub fn idle(&self) -> Vec<String> {
        let acting = self.acting.borrow();
        let nodes = self.nodes.borrow();
        let idle = nodes.values().filter(|node| node.station.is_some() && !acting.contains(&node.address));
        idle.map(|node| node.address.clone()).collect()
    }

    /// Who has what of a pack.
    pub fn holders(&self, name: PackName) -> Vec<String> {
        let nodes = self.nodes.borrow();
        let items = nodes.values().flat_map(|node| {
            let items = node.shelf.items_of(name).unwrap_or_default().into_iter();
            items.map(|item| {
                format!("{}: {}", node.address, item.shard.map_or("all".into(), |at| at.to_string()))
            })
        });
        items.collect()
    }

    /// Bytes of room that are kept for packs to come.
    pub fn kept(&self) -> u64 {
        self.nodes.borrow().values().map(|node| node.shelf.usage().kept).sum()
    }

    /// Whether everybody reaches everybody.
    pub fn is_calm(&self) -> bool {
        self.loss.get() == 0 && self.cuts.borrow().is_empty() && self.client_ends.get().is_none()
    }

    pub fn stopped(&self) -> Vec<String> {
        let nodes = self.nodes.borrow();
        nodes.values().filter(|node| node.station.is_none()).map(|node| node.address.clone()).collect()
    }

    /// Somebody who has nothing else to do looks after packs, or what the pool is like.
    pub fn stir(&self) {
        let idle = self.idle();
        if idle.is_empty() {
            return;
        }
        let who = &idle[self.below(idle.len() as u64) as usize];
        let station = self.nodes.borrow()[who].station.clone().expect("it runs");
        if self.one_in(3) {
            self.act(who, || station.watch());
        } else {
            self.act(who, || station.keep());
        }
    }

    /// All look what the pool is like, and do some of what is to be done.
    pub fn stir_all(&self) {
        for who in self.idle() {
            let Some(station) = self.nodes.borrow().get(&who).and_then(|node| node.station.clone()) else {
                continue;
            };
            self.act(&who, || station.watch());
            (0..8).for_each(|_| self.act(&who, || station.keep()));
        }
    }

    pub fn cut(&self, one: &str, other: &str) {
        self.tell(|| format!("{one} and {other} do not reach each other"));
        self.cuts.borrow_mut().insert(pair(one, other));
    }

    pub fn heal(&self) {
        self.tell(|| "all reach each other".to_owned());
        self.cuts.borrow_mut().clear();
        self.loss.set(0);
    }

    fn is_lost(&self) -> bool {
        self.loss.get() > 0 && self.one_in(self.loss.get())
    }

    /// Whether somebody still is there to send or to hear.
    fn is_there(&self, who: &str) -> bool {
        match who {
            MANAGER => self.is_managed(),
            CLIENT => self.client_ends.get() != Some(0),
            _ => true,
        }
    }

    fn service_of(&self, to: &str, member: Option<u64>) -> Option<Arc<dyn Service>> {
        if to == MANAGER {
            let manager = self.manager.borrow();
            return manager.running.as_ref().map(|(_, service)| service.clone() as Arc<dyn Service>);
        }
        let nodes = self.nodes.borrow();
        let node = nodes.get(to).filter(|node| member.is_none_or(|member| member == node.id))?;
        node.station.as_ref().map(|station| station.service())
    }
}

impl Network for World {
    fn begin(&self, to: &str, member: Option<u64>) -> Result<Arc<dyn Service>> {
        clock::sleep(Duration::from_millis(1));
        let from = self.acting.borrow().last().cloned().expect("somebody asks");
        self.trace.borrow_mut().push(format!("{from} {to}"));
        if from == CLIENT {
            let left = self.client_ends.get().map(|left| left.saturating_sub(1));
            self.client_ends.set(left);
        }
        // Those who ask for names may hold what their own services need to answer others.
        let depth = self.acting.borrow().len();
        // Ever more rarely, or what happens within what happens would have no end.
        if to != MANAGER && self.mingles.get() && depth < DEPTH_MAX && self.one_in(1 << (3 * depth)) {
            self.stir();
        }
        if !self.is_there(&from) {
            return Err(lost("the one who asks is gone"));
        }
        if self.cuts.borrow().contains(&pair(&from, to)) || self.is_lost() {
            clock::sleep(Duration::from_millis(200));
            return Err(lost("it does not get there"));
        }
        let service = self.service_of(to, member).ok_or_else(|| lost("nobody is there"))?;
        self.acting.borrow_mut().push(to.to_owned());
        Ok(service)
    }

    fn end(&self) -> Result<()> {
        let to = self.acting.borrow_mut().pop().expect("somebody has answered");
        let from = self.acting.borrow().last().cloned().expect("somebody has asked");
        if self.is_lost() || !self.is_there(&from) || !self.is_there(&to) {
            return Err(lost("the answer does not come back"));
        }
        Ok(())
    }
}
