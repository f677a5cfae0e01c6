//! A pool in one process: everything but the command line.

mod misbehaving;
mod shards;

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

/// Two who save at once into a pool that has room for one: whoever said first what comes finds it kept, the other one hears so with his first pack that does
/// not fit.
#[test]
fn room_is_kept_for_whoever_said_first_what_comes() {
    let pool = Pool::found(1);
    const LEN: u64 = 4 << 20;
    // Not the same for each: where one has too little, others keep more.
    let lend = |id: u64, len: u64| pool.join(id, Arc::new(LentMemory::new(len)), &format!("host{id}"));
    let benefactors = [lend(1, 5 * LEN), lend(2, 8 * LEN), lend(3, 12 * LEN)];
    let named = |session: u64, number: u32| PackName { session: SessionId(session), writer: 1, number };
    let expected = |session: u64, count: u32| (0..count).map(move |number| (named(session, number), LEN));
    let (first, second) = (pool.store(), pool.store());
    let kept = || benefactors.iter().map(|one| one.report().kept).sum::<u64>();
    first.expect(SessionId(1), 1, &expected(1, 20).collect::<Vec<_>>());
    assert_eq!(kept(), 20 * LEN);
    // Not enough for the other one: what there is left is not kept from anybody.
    second.expect(SessionId(2), 1, &expected(2, 10).collect::<Vec<_>>());
    assert_eq!(kept(), 20 * LEN);
    let bytes = vec![7; LEN as usize];
    (0..5).for_each(|number| second.put(named(2, number), &[&bytes]).expect("there is more than is kept"));
    let refused = second.put(named(2, 5), &[&bytes]).unwrap_err();
    assert!(refused.kind() == Kind::Full && refused.to_string().contains("kept for others"), "{refused}");
    // Somebody who says nothing of what comes finds it full, too.
    assert_eq!(pool.store().put(named(3, 0), &[&bytes]).unwrap_err().kind(), Kind::Full);
    (0..18).for_each(|number| first.put(named(1, number), &[&bytes]).expect("it is kept"));
    assert_eq!(kept(), 2 * LEN);
    // What is kept stays where more is not to be had.
    first.expect(SessionId(1), 1, &expected(1, 40).collect::<Vec<_>>());
    assert_eq!(kept(), 2 * LEN);
    first.expect(SessionId(1), 1, &[]);
    assert_eq!(kept(), 0);
    // It refused the other one a moment ago, and is asked all the same when nobody else has room.
    (5..7).for_each(|number| second.put(named(2, number), &[&bytes]).expect("it was given back"));
}

/// A pool that is full owes copies, and asks again and again whether there is room for them; but nothing is sent to be refused.
fn nothing_is_sent_to_who_is_full(pool: &Pool, small: Vec<Benefactor>, large: Benefactor) {
    let store = pool.store();
    let names: Vec<PackName> =
        (0..24).map(|number| PackName { session: SessionId(1), writer: 1, number }).collect();
    let put = |&name| store.put(name, &[&pack(name, &[name.number as u8; 1 << 20])]).expect("room for one");
    names.iter().for_each(put);
    // By the number of that question on the wire.
    let offers = || -> u64 {
        let questions = small.iter().flat_map(|one| one.traffic().questions().collect::<Vec<_>>());
        questions.filter(|(kind, _)| *kind == 11).map(|(_, count)| count).sum()
    };
    let came = || small.iter().map(|one| one.traffic().bytes().0).sum::<u64>();
    let is_full = |one: &Benefactor| one.report().capacity - one.report().used < (1 << 19);
    wait("all is full", || small.iter().all(is_full) && large.report().behind > 0);
    wait("nothing comes", || {
        let before = came();
        std::thread::sleep(Duration::from_millis(300));
        came() == before
    });
    let (before, asked) = (came(), offers());
    let again = 40 * small.len() as u64;
    wait("what is owed is offered", || offers() >= asked + again);
    assert_eq!(came(), before);
    assert!(large.report().behind > 0, "copies are owed");
    let refused = store.sync(&names).expect_err("all is full");
    assert!(refused.kind() == Kind::Full && refused.to_string().contains("let more join"), "{refused}");
    // Room comes, and is used.
    let lend = |id: u64| pool.join(id, Arc::new(LentMemory::new(64 << 20)), &format!("host{id}"));
    let _more: Vec<Benefactor> = (11..14).map(lend).collect();
    pool.wait_settled();
    store.sync(&names).expect("all is safe");
}

#[test]
fn no_copies_are_sent_to_who_is_full() {
    let pool = Pool::found(2);
    let large = pool.join(1, Arc::new(LentMemory::new(64 << 20)), "host1");
    let small = pool.join(2, Arc::new(LentMemory::new(68 << 16)), "host2");
    nothing_is_sent_to_who_is_full(&pool, vec![small], large);
}

#[test]
fn no_shards_are_sent_to_who_is_full() {
    let pool = Pool::in_shards("2+1");
    let large = pool.join(1, Arc::new(LentMemory::new(64 << 20)), "host1");
    let lend = |id: u64| pool.join(id, Arc::new(LentMemory::new(68 << 16)), &format!("host{id}"));
    nothing_is_sent_to_who_is_full(&pool, vec![lend(2), lend(3)], large);
}

/// Several who ask for room at the same moment, where there is enough for one of them: they do not all give up.
#[test]
fn of_those_who_ask_at_once_one_has_room_kept() {
    let pool = Pool::found(1);
    const LEN: u64 = 1 << 20;
    let lend = |id: u64, len: u64| pool.join(id, Arc::new(LentMemory::new(len)), &format!("host{id}"));
    let benefactors: Vec<_> = (1..=6).map(|id| lend(id, (4 + id) * LEN)).collect();
    let kept = || benefactors.iter().map(|one| one.report().kept).sum::<u64>();
    let savers: Vec<_> = (0..3).map(|_| pool.store()).collect();
    for round in 0..8 {
        let begin = std::sync::Barrier::new(savers.len());
        let packs = |saver: usize| -> Vec<_> {
            let session = SessionId(round * 10 + saver as u64);
            (0..25).map(|number| (PackName { session, writer: 1, number }, LEN)).collect()
        };
        std::thread::scope(|scope| {
            for (number, saver) in savers.iter().enumerate() {
                let (packs, begin) = (packs(number), &begin);
                scope.spawn(move || {
                    begin.wait();
                    saver.expect(packs[0].0.session, 1, &packs);
                });
            }
        });
        assert_eq!(kept(), 25 * LEN, "round {round}");
        let give_back =
            |(number, saver): (usize, &PoolStore)| saver.expect(packs(number)[0].0.session, 1, &[]);
        savers.iter().enumerate().for_each(give_back);
        assert_eq!(kept(), 0);
    }
}

/// Shards need room at each of those who will have one.
#[test]
fn room_is_kept_for_shards() {
    let pool = Pool::in_shards("2+1");
    let benefactors = pool.lenders(3);
    let (store, len) = (pool.store(), 8 << 20);
    store.expect(SessionId(1), 1, &[(name(0), len), (name(1), len)]);
    assert!(benefactors.iter().all(|one| one.report().kept == len));
    store.expect(SessionId(1), 1, &[]);
    assert!(benefactors.iter().all(|one| one.report().kept == 0));
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
