//! Pools that keep packs in shards.

use super::misbehaving::Liar;
use super::*;

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
    let liar = || Arc::new(Liar::new(256 << 20));
    let liars = [liar(), liar()];
    let _liars = [pool.join(8, liars[0].clone(), "liar"), pool.join(9, liars[1].clone(), "liar too")];
    let repository = Repository::open_pool(&format!("pool://{}", pool.address), pool.key.clone()).unwrap();
    let image = Random::new(4).bytes(20 << 20);
    let mut save = repository.save(&AppName::new("melt").unwrap(), 1, SaveOptions::default()).unwrap();
    save.add_bytes("state", &image).unwrap();
    save.commit().unwrap();
    liars.iter().for_each(|liar| liar.lies.store(true, Ordering::Relaxed));
    let reading = repository.read().unwrap();
    let entry = Spec::parse("melt").unwrap().find(&reading.state).unwrap()[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).unwrap();
    let mut bytes = Vec::new();
    checkpoint.write_to(checkpoint.member("state", None).unwrap(), &mut bytes, &|_| {}).unwrap();
    assert!(bytes == image, "the wrong bytes never come out");
    let report = repository.verify(&reading, None, &|_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
}
