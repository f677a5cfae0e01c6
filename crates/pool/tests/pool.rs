//! A pool in one process: everything but the command line.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stdchk::{AppName, Codec, Coding, Preference, Repository, SaveOptions, Spec};
use stdchk_catalog::{Catalog, Class, Medium, Member, Op, PoolOp, conformance};
use stdchk_catalog_log::{HeardSigns, LogCatalog};
use stdchk_kit::generate::pack;
use stdchk_kit::{Random, SimFs};
use stdchk_object::{Item, Kind, PackName, Result, SessionId};
use stdchk_pool::{
    Benefactor, Bulk, Key, Lend, LentMemory, ManagerService, Peer, PoolCatalog, PoolObjects, PoolStore,
    Protection, Server, Shelf, Source, Usage,
};
use stdchk_store::{Objects, Store};
use stdchk_store_dir::DirStore;

struct Pool {
    key: Key,
    fs: Arc<SimFs>,
    manager: Option<Server>,
    address: String,
    service: Arc<ManagerService>,
    /// Of those who join.
    move_rate: Option<u64>,
}

fn manage(fs: &Arc<SimFs>, key: &Key, address: &str) -> (Server, Arc<ManagerService>, Arc<LogCatalog>) {
    let catalog = Arc::new(LogCatalog::open(fs.clone(), "manager").unwrap());
    let objects = DirStore::on(fs.clone(), "manager".into(), "test".into());
    objects.prepare().unwrap();
    let half = Duration::from_secs(1);
    let signs = Box::new(HeardSigns::new(half));
    let service = Arc::new(ManagerService::new(catalog.clone(), Arc::new(objects), signs, half));
    let server = Server::serve(TcpListener::bind(address).unwrap(), key.clone(), service.clone()).unwrap();
    (server, service, catalog)
}

impl Pool {
    fn found(replicas: u8) -> Pool {
        Pool::found_as(Class { replicas, ..Class::default() })
    }

    /// One that keeps packs in shards.
    fn in_shards(code: &str) -> Pool {
        Pool::found_as(Class { code: code.parse().ok(), ..Class::default() })
    }

    fn found_as(class: Class) -> Pool {
        let (fs, key) = (Arc::new(SimFs::new()), Key::random(Protection::Plain).unwrap());
        let (server, service, catalog) = manage(&fs, &key, "127.0.0.1:0");
        catalog.append(true, &mut |_| Ok(vec![Op::Pool(PoolOp::Found(class, 7))])).unwrap();
        let address = server.address().to_string();
        Pool { key, fs, manager: Some(server), address, service, move_rate: None }
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::new(Peer::new(&self.address, self.key.clone()))
    }

    fn catalog(&self) -> Arc<PoolCatalog> {
        Arc::new(PoolCatalog::new(self.peer()))
    }

    fn store(&self) -> PoolStore {
        PoolStore::open(self.catalog(), self.key.clone()).unwrap()
    }

    fn join(&self, id: u64, shelf: Arc<dyn Shelf>, domain: &str) -> Benefactor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let capacity = shelf.usage().capacity;
        let member = Member { id, address, domain: domain.into(), medium: Medium::Memory, capacity };
        let lend = Lend {
            shelf,
            member,
            catalog: self.catalog(),
            manager: self.peer(),
            key: self.key.clone(),
            move_rate: self.move_rate,
        };
        Benefactor::join(lend, listener).unwrap()
    }

    fn lenders(&self, count: u64) -> Vec<Benefactor> {
        (1..=count)
            .map(|id| self.join(id, Arc::new(LentMemory::new(256 << 20)), &format!("host{id}")))
            .collect()
    }

    /// Waits until somebody who is gone is no member any more.
    fn wait_lost(&self, id: u64) {
        let catalog = self.catalog();
        wait("who is gone is lost", || {
            self.service.evict_silent(None).unwrap();
            !catalog.state().unwrap().pool().members().contains_key(&id)
        });
    }

    /// Waits until everything lies where the newest epoch wants it.
    fn wait_settled(&self) {
        let catalog = self.catalog();
        wait("the pool settles", || {
            let state = catalog.state().unwrap();
            state.pool().settled() == state.pool().epoch()
        });
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: it does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn name(number: u32) -> PackName {
    PackName { session: SessionId(0xabcd), writer: 1, number }
}

fn packs(count: u32) -> Vec<(PackName, Vec<u8>)> {
    let mut random = Random::new(7);
    let mut one = |number| pack(name(number), &random.bytes(200_000 + number as usize));
    (0..count).map(|number| (name(number), one(number))).collect()
}

fn read(store: &PoolStore, name: PackName) -> stdchk_object::Result<Vec<u8>> {
    let mut bytes = vec![0; store.length(name)? as usize];
    store.read(name, 0, &mut bytes)?;
    Ok(bytes)
}

fn check_all(store: &PoolStore, packs: &[(PackName, Vec<u8>)]) {
    for (name, bytes) in packs {
        assert!(read(store, *name).unwrap() == *bytes, "{name}");
    }
}

#[test]
fn it_keeps_the_contracts() {
    let pool = Pool::found(1);
    let _lenders = pool.lenders(3);
    stdchk_store::conformance::store(&pool.store());
    let pool = Pool::in_shards("4+2");
    let _lenders = pool.lenders(8);
    stdchk_store::conformance::store(&pool.store());
    // The suites of catalogs begin with nothing at all.
    let key = Key::random(Protection::Plain).unwrap();
    let (server, ..) = manage(&Arc::new(SimFs::new()), &key, "127.0.0.1:0");
    let catalog =
        |server: &Server| PoolCatalog::new(Arc::new(Peer::new(&server.address().to_string(), key.clone())));
    conformance::catalog(&catalog(&server));
    let (server, ..) = manage(&Arc::new(SimFs::new()), &key, "127.0.0.1:0");
    let handles: Vec<PoolCatalog> = (0..4).map(|_| catalog(&server)).collect();
    let handles: Vec<&dyn Catalog> = handles.iter().map(|handle| handle as &dyn Catalog).collect();
    conformance::at_once(&handles, 100);
}

#[test]
fn objects_are_kept_for_those_who_know_the_key() {
    let pool = Pool::found(1);
    let objects = || PoolObjects::new(pool.peer(), Arc::new(pool.store()));
    assert!(objects().create("stdchk", b"first", true).unwrap());
    assert!(!objects().create("stdchk", b"second", true).unwrap());
    objects().replace("named", &vec![9; 3 << 20], true).unwrap();
    assert_eq!(objects().get("stdchk").unwrap().unwrap(), b"first");
    assert_eq!(objects().get_range("named", 5, 4).unwrap().unwrap(), [9; 4]);
    objects().delete(&["named".into()]).unwrap();
    assert_eq!(objects().get("named").unwrap(), None);
    for bad in ["log/0000000000000001", "../key", "index/../../etc", "beats/1", "index/"] {
        assert_eq!(objects().get(bad).unwrap_err().kind(), Kind::Invalid, "{bad}");
    }
    let stranger = Arc::new(Peer::new(&pool.address, Key::random(Protection::Plain).unwrap()));
    let stranger = PoolObjects::new(stranger, Arc::new(pool.store()));
    assert_eq!(stranger.get("named").unwrap_err().kind(), Kind::Denied);
}

/// The fingerprint index lies with benefactors: one who goes takes along what it had of it, and nothing else is lost.
#[test]
fn the_index_is_spread_over_benefactors() {
    let pool = Pool::found(1);
    let objects = || PoolObjects::new(pool.peer(), Arc::new(pool.store()));
    assert!(
        objects().replace("index/00", b"nobody", false).is_err()
            && objects().names("index").unwrap().is_empty()
    );
    let mut lenders = pool.lenders(3);
    let name = |at: u8| format!("index/{at:02x}");
    (0..60).for_each(|at| objects().replace(&name(at), &[at; 1000], false).unwrap());
    let (mine, there) = (objects(), |objects: &PoolObjects| objects.names("index").unwrap().len());
    assert_eq!(there(&mine), 60);
    for at in 0..60 {
        assert_eq!(objects().get_range(&name(at), 998, 10).unwrap().unwrap(), [at; 2]);
        assert_eq!(mine.get(&name(at)).unwrap().unwrap(), [at; 1000]);
    }
    // One more comes, and what is with others is found all the same.
    lenders.push(pool.join(4, Arc::new(LentMemory::new(256 << 20)), "host4"));
    assert!((0..60).all(|at| objects().get(&name(at)).unwrap().is_some()));
    drop(lenders.remove(0));
    let left = (0..60).filter(|&at| objects().get(&name(at)).unwrap().is_some()).count();
    assert!((20..60).contains(&left) && there(&objects()) == left, "{left}");
    mine.delete(&(0..60).map(name).collect::<Vec<_>>()).unwrap();
    assert_eq!(there(&objects()), 0);
}

#[test]
fn copies_outlive_whoever_is_lost_and_are_made_again() {
    let pool = Pool::found(2);
    let mut lenders = pool.lenders(4);
    let store = pool.store();
    let packs = packs(40);
    for (name, bytes) in &packs {
        store.put(*name, &[&bytes[..1000], &bytes[1000..]]).unwrap();
    }
    let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
    store.sync(&names).unwrap();
    let held = |lenders: &[Benefactor]| lenders.iter().map(|lender| lender.report().packs).sum::<u64>();
    assert_eq!(held(&lenders), 80, "two of each");
    // One after the other is lost, without a word.
    for gone in [1, 2] {
        lenders.remove(0);
        check_all(&store, &packs);
        pool.wait_lost(gone);
        pool.wait_settled();
        assert_eq!(held(&lenders), 80);
        check_all(&store, &packs);
    }
    // With one there cannot be two copies.
    lenders.remove(0);
    let (name, bytes) = (name(999), pack(name(999), &[5; 100_000]));
    pool.wait_lost(3);
    store.put(name, &[&bytes]).unwrap();
    assert!(store.sync(&[name]).unwrap_err().to_string().contains("1 of 2 copies"));
    check_all(&store, &packs);
}

fn held(lenders: &[Benefactor]) -> u64 {
    lenders.iter().map(|lender| lender.report().packs).sum()
}

/// Packs as shards: of eight benefactors any two are lost, and two of the others then, and every shard is made again each time.
#[test]
fn shards_outlive_whoever_is_lost_and_are_made_again() {
    let pool = Pool::in_shards("4+2");
    let mut lenders = pool.lenders(8);
    let store = pool.store();
    let packs = packs(30);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[&bytes[..1000], &bytes[1000..]]).unwrap());
    check_all(&store, &packs);
    let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
    store.sync(&names).unwrap();
    wait("packs are only shards", || held(&lenders) == 180);
    check_all(&pool.store(), &packs);
    for gone in [[3, 7], [1, 8]] {
        // At once, and without a word.
        lenders.retain(|lender| !gone.contains(&lender.report().member));
        check_all(&store, &packs);
        check_all(&pool.store(), &packs);
        gone.iter().for_each(|&id| pool.wait_lost(id));
        if lenders.len() >= 6 {
            pool.wait_settled();
            assert_eq!(held(&lenders), 180, "six of each");
        }
        // Four cannot make it as safe as was promised, but have all shards again.
        wait("all shards are there", || names.iter().all(|&name| store.is_sound(name).unwrap()));
        check_all(&pool.store(), &packs);
    }
    assert!(store.sync(&names).is_err(), "six shards with four benefactors are not safe");
    // With four left, two have two shards of a pack each; no more than one of these may be lost.
    drop(lenders.remove(0));
    check_all(&pool.store(), &packs);
    let mut listed = Vec::new();
    store.list(&mut |name, len| listed.push((name, len as usize))).unwrap();
    assert_eq!(listed, packs.iter().map(|(name, bytes)| (*name, bytes.len())).collect::<Vec<_>>());
    store.remove(&names).unwrap();
    assert_eq!(held(&lenders), 0);
}

#[test]
fn shards_move_when_members_come_and_go() {
    let pool = Pool::in_shards("2+1");
    let mut lenders = pool.lenders(3);
    let store = pool.store();
    let packs = packs(40);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
    store.sync(&names).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = pool.store();
            while !is_over.load(Ordering::Relaxed) {
                check_all(&store, &packs);
            }
        });
        for id in 4..7 {
            lenders.push(pool.join(id, Arc::new(LentMemory::new(256 << 20)), &format!("host{id}")));
            pool.wait_settled();
            assert!(lenders.last().unwrap().report().packs > 5, "it takes its share");
            if id % 2 == 0 {
                lenders.remove(0).leave(Duration::from_secs(20)).unwrap();
                pool.wait_settled();
            }
            assert_eq!(held(&lenders), 120, "three of each");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check_all(&pool.store(), &packs);
}

/// What is staged is there, wherever its shards are being made at this moment.
#[test]
fn what_was_put_can_be_read_while_it_becomes_shards() {
    let pool = Pool::in_shards("3+2");
    let _lenders = pool.lenders(6);
    let (store, other) = (pool.store(), pool.store());
    for (name, bytes) in packs(40) {
        store.put(name, &[&bytes]).unwrap();
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| store.sync(&[name]));
            for _ in 0..3 {
                assert!(read(&other, name).unwrap() == bytes);
            }
            sync.join().unwrap().unwrap();
        });
        assert!(read(&other, name).unwrap() == bytes && store.is_sound(name).unwrap());
    }
}

/// Two of six give other bytes than they were given, with sums that fit.
#[test]
fn two_who_lie_about_shards_are_found_out() {
    let pool = Pool::in_shards("4+2");
    let _honest = pool.lenders(4);
    let liar = || Arc::new(Liar(LentMemory::new(256 << 20), AtomicBool::new(false), AtomicBool::new(false)));
    let liars = [liar(), liar()];
    let _liars = [pool.join(8, liars[0].clone(), "liar"), pool.join(9, liars[1].clone(), "liar too")];
    let repository = Repository::open_pool(&format!("pool://{}", pool.address), pool.key.clone()).unwrap();
    let image = Random::new(4).bytes(20 << 20);
    let mut save = repository.save(&AppName::new("melt").unwrap(), 1, SaveOptions::default()).unwrap();
    save.add_bytes("state", &image).unwrap();
    save.commit().unwrap();
    liars.iter().for_each(|liar| liar.1.store(true, Ordering::Relaxed));
    let reading = repository.read().unwrap();
    let entry = Spec::parse("melt").unwrap().find(&reading.state).unwrap()[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).unwrap();
    let mut bytes = Vec::new();
    checkpoint.write_to(checkpoint.member("state", None).unwrap(), &mut bytes, &|_| {}).unwrap();
    assert!(bytes == image, "the wrong bytes never come out");
    let report = repository.verify(&reading, None, &|_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
}

#[test]
fn who_comes_takes_its_share_and_who_leaves_gives_it_back() {
    let pool = Pool::found(1);
    let mut lenders = pool.lenders(2);
    let store = pool.store();
    let packs = packs(60);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    let third = pool.join(3, Arc::new(LentMemory::new(256 << 20)), "host3");
    pool.wait_settled();
    let held =
        |lenders: &[Benefactor]| lenders.iter().map(|lender| lender.report().packs).collect::<Vec<_>>();
    let share = third.report().packs;
    assert!((5..40).contains(&share), "{share} of 60");
    assert_eq!(held(&lenders).iter().sum::<u64>() + share, 60, "one of each");
    check_all(&store, &packs);
    lenders.push(third);
    lenders.remove(0).leave(Duration::from_secs(20)).unwrap();
    check_all(&store, &packs);
    pool.wait_settled();
    check_all(&pool.store(), &packs);
    assert_eq!(held(&lenders).iter().sum::<u64>(), 60);
}

#[test]
fn a_rate_holds_up_moves_and_neither_savers_nor_whoever_leaves() {
    const RATE: u64 = 150_000;
    let pool = Pool { move_rate: Some(RATE), ..Pool::found(2) };
    let mut lenders = pool.lenders(3);
    let store = pool.store();
    let packs = packs(20);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    let begun = Instant::now();
    store.sync(&packs.iter().map(|(name, _)| *name).collect::<Vec<_>>()).unwrap();
    let synced = begun.elapsed();
    let bytes: u64 = lenders.iter().map(|lender| lender.report().used).sum();
    // What was just put is looked at once more, and not as a part of what follows.
    wait("nothing is left to do", || lenders.iter().all(|lender| lender.report().behind == 0));
    let begun = Instant::now();
    lenders.push(pool.join(4, Arc::new(LentMemory::new(256 << 20)), "host4"));
    pool.wait_settled();
    let took = begun.elapsed();
    let moved = lenders[3].report().packs * 200_000;
    // Three give, and each has saved up a second.
    let least = Duration::from_secs_f64((moved as f64 / (3 * RATE) as f64 - 1.0).max(0.0));
    let said = format!("{moved} of {bytes} bytes in {took:?}; synced in {synced:?}");
    assert!(moved > 4 * RATE && took >= least, "{said}");
    check_all(&store, &packs);
    let begun = Instant::now();
    lenders.remove(0).leave(Duration::from_secs(20)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    check_all(&store, &packs);
}

#[test]
fn full_benefactors_are_passed_over() {
    let pool = Pool::found(1);
    let _small = pool.join(1, Arc::new(LentMemory::new(1 << 20)), "a");
    let large = pool.join(2, Arc::new(LentMemory::new(64 << 20)), "b");
    let store = pool.store();
    let packs = packs(40);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    check_all(&store, &packs);
    assert!(large.report().packs > 30);
    let huge = vec![1; 80 << 20];
    assert_eq!(store.put(name(77), &[&huge]).unwrap_err().kind(), Kind::Full);
}

/// Those who are put out because nothing was heard of them come back by themselves, and nothing is lost.
#[test]
fn who_was_lost_by_mistake_comes_back() {
    let pool = Pool::found(1);
    let lenders = pool.lenders(3);
    let store = pool.store();
    let packs = packs(20);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    pool.wait_settled();
    let catalog = pool.catalog();
    let lose = |ids: &[u64]| {
        let lost = ids.iter().map(|id| Op::Pool(PoolOp::Lose(*id))).collect::<Vec<_>>();
        catalog.append(true, &mut |_| Ok(lost.clone())).unwrap();
    };
    lose(&[1, 2, 3]);
    wait("all come back", || catalog.state().unwrap().pool().members().len() == 3);
    pool.wait_settled();
    check_all(&store, &packs);
    lose(&[2]);
    wait("it comes back", || catalog.state().unwrap().pool().members().len() == 3);
    pool.wait_settled();
    check_all(&store, &packs);
    assert_eq!(lenders.iter().map(|lender| lender.report().packs).sum::<u64>(), 20);
}

/// While packs move, those who read see none of it.
#[test]
fn readers_do_not_notice_that_packs_move() {
    let pool = Pool::found(1);
    let mut lenders = pool.lenders(2);
    let store = pool.store();
    let packs = packs(60);
    packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let store = pool.store();
                while !is_over.load(Ordering::Relaxed) {
                    check_all(&store, &packs);
                }
            });
        }
        for id in 3..8 {
            lenders.push(pool.join(id, Arc::new(LentMemory::new(256 << 20)), &format!("host{id}")));
            if id % 2 == 0 {
                lenders.remove(0).leave(Duration::from_secs(20)).unwrap();
            }
            pool.wait_settled();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check_all(&store, &packs);
}

/// A benefactor that from some moment on gives other bytes than it was given, with sums that fit; or takes one pack, and is long silent.
struct Liar(LentMemory, AtomicBool, AtomicBool);

impl Shelf for Liar {
    fn take(&self, item: Item, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()> {
        let taken = self.0.take(item, len, replaces, source);
        if self.2.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(4));
        }
        taken
    }

    fn give(&self, item: Item, offset: u64, len: u64) -> Result<Box<dyn Bulk>> {
        let mut bytes = self.0.give(item, offset, len)?.slices().concat();
        let lies = self.1.load(Ordering::Relaxed);
        bytes.iter_mut().step_by(100).for_each(|byte| *byte ^= u8::from(lies));
        Ok(Box::new(bytes))
    }

    fn length(&self, item: Item) -> Result<u64> {
        self.0.length(item)
    }

    fn sync(&self, items: &[Item]) -> Result<()> {
        self.0.sync(items)
    }

    fn list(&self, after: Option<Item>, most: usize) -> Result<Vec<(Item, u64)>> {
        self.0.list(after, most)
    }

    fn remove(&self, items: &[Item]) -> Result<()> {
        self.0.remove(items)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

/// Others refuse what was removed, and nobody waits for that.
#[test]
fn who_comes_back_with_what_was_removed_holds_nobody_up() {
    for pool in [Pool::found(2), Pool::in_shards("2+1")] {
        let shelf = Arc::new(LentMemory::new(256 << 20));
        let first = pool.join(1, shelf.clone(), "host1");
        let _others: Vec<Benefactor> = (2..5)
            .map(|id| pool.join(id, Arc::new(LentMemory::new(256 << 20)), &format!("host{id}")))
            .collect();
        let (store, packs) = (pool.store(), packs(20));
        let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
        packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
        store.sync(&names).unwrap();
        pool.wait_settled();
        drop(first);
        pool.wait_lost(1);
        pool.wait_settled();
        store.remove(&names).unwrap();
        let held = shelf.usage().packs;
        let first = pool.join(1, shelf, "host1");
        pool.wait_settled();
        assert!(held > 0 && first.report().packs > 0, "it still has what was removed: {held}");
        // The next collection finds it.
        store.remove(&names).unwrap();
        assert_eq!(first.report().packs, 0);
    }
}

/// Nobody else takes the pack, so it is put again where it was put before; and is there.
#[test]
fn an_answer_that_was_not_waited_for_is_no_refusal() {
    let pool = Pool::found(1);
    let shelf = Arc::new(Liar(LentMemory::new(256 << 20), AtomicBool::new(false), AtomicBool::new(false)));
    let _lender = pool.join(1, shelf.clone(), "host1");
    let (store, mut random) = (pool.store(), Random::new(9));
    let packs: Vec<(PackName, Vec<u8>)> =
        (0..5).map(|number| (name(number), pack(name(number), &random.bytes(1 << 20)))).collect();
    // From these it is known how fast it is.
    packs[..4].iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    shelf.2.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    store.put(packs[4].0, &[&packs[4].1]).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "it was waited for");
    check_all(&store, &packs);
    assert_eq!(store.put(packs[4].0, &[&packs[4].1]).unwrap_err().kind(), Kind::Exists);
}

#[test]
fn one_who_lies_is_found_out_and_another_one_is_believed() {
    let pool = Pool::found(2);
    let _honest = pool.lenders(2);
    let repository = Repository::open_pool(&format!("pool://{}", pool.address), pool.key.clone()).unwrap();
    let image = Random::new(4).bytes(30 << 20);
    let save = |step: u64, coding: Option<Preference>| {
        let options = SaveOptions { coding, memory: 64 << 20, ..SaveOptions::default() };
        let mut save = repository.save(&AppName::new("melt").unwrap(), step, options).unwrap();
        save.add_bytes("state", &image[step as usize..]).unwrap();
        save.commit().unwrap();
    };
    let read = |step: u64| -> Result<Vec<u8>> {
        let reading = repository.read()?;
        let entry = Spec::parse(&format!("melt@{step}"))?.find(&reading.state)?[0].clone();
        let checkpoint = repository.checkpoint(&reading, &entry)?;
        let mut bytes = Vec::new();
        checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
        Ok(bytes)
    };
    save(1, None);
    save(2, Some(Preference::Fixed(Coding::new(Codec::Zstd, 0), 1)));
    let shelf = Arc::new(Liar(LentMemory::new(256 << 20), AtomicBool::new(false), AtomicBool::new(false)));
    let liar = pool.join(9, shelf.clone(), "liar");
    pool.wait_settled();
    shelf.1.store(true, Ordering::Relaxed);
    assert!(liar.report().packs > 0);
    for step in [1, 2, 1] {
        assert!(read(step).unwrap() == image[step as usize..]);
    }
    let reading = repository.read().unwrap();
    let state = reading.state.clone();
    assert!(state.damaged().is_empty(), "what another one has whole is not damaged");
    let report = repository.verify(&reading, None, &|_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// An address at which another one listens by now is nobody's.
#[test]
fn a_member_is_who_it_says() {
    let pool = Pool::found(2);
    let first = pool.join(1, Arc::new(LentMemory::new(64 << 20)), "a");
    // Somebody claims to be a second one at the very same place.
    let state = pool.catalog().state().unwrap();
    let twin = Member { id: 2, domain: "b".into(), ..state.pool().members()[&1].clone() };
    pool.catalog().append(true, &mut |_| Ok(vec![Op::Pool(PoolOp::Join(twin.clone()))])).unwrap();
    let store = pool.store();
    store.put(name(1), &[&pack(name(1), b"bytes")]).unwrap();
    assert!(store.sync(&[name(1)]).unwrap_err().to_string().contains("1 of 2 copies"));
    assert_eq!(first.report().packs, 1);
}

#[test]
fn the_manager_may_go_and_come_back() {
    let mut pool = Pool::found(2);
    let lenders = pool.lenders(3);
    let (catalog, store) = (pool.catalog(), pool.store());
    let packs = packs(10);
    pool.wait_settled();
    catalog.append(true, &mut |_| Ok(vec![conformance::writer(1, 5)])).unwrap();
    let before = catalog.state().unwrap();
    packs[..5].iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    drop(pool.manager.take());
    // The manager is on no way of the data.
    packs[5..].iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    check_all(&store, &packs);
    // Who wants to commit waits for a while.
    let after = std::thread::scope(|scope| {
        let commit = scope.spawn(|| catalog.append(true, &mut |_| Ok(vec![conformance::commit(1, 5, &[])])));
        std::thread::sleep(Duration::from_millis(300));
        let (server, service, _) = manage(&pool.fs, &pool.key, &pool.address);
        (pool.manager, pool.service) = (Some(server), service);
        commit.join().unwrap().unwrap()
    });
    assert_eq!((after.commits(), before.commits()), (1, 0));
    assert_eq!(after.pool().members().len(), 3);
    let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
    store.sync(&names).unwrap();
    assert_eq!(lenders.iter().map(|lender| lender.report().packs).sum::<u64>(), 20);
}
