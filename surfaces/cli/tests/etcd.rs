//! Pools whose names are in a real cluster of etcd: without managers, and with several.

mod pools;

use std::time::Duration;

use pools::{Pool, Process};
use stdchk_kit::EtcdCluster;

fn saves(pool: &Pool, step: u64) {
    let saved = pool.save(step).output();
    assert!(saved.status.success(), "{step}: {}", String::from_utf8_lossy(&saved.stderr));
}

/// Any one of etcd's members is killed and started again in the middle of saves, and benefactors are, with nobody to look after them
/// but each other.
#[test]
fn a_pool_needs_no_manager() {
    let mut cluster = EtcdCluster::start(3);
    let pool = Pool::in_etcd(&["--replicas", "2"], cluster.url("prod"));
    let mut lenders = pool.lenders(4);
    saves(&pool, 1);
    for step in 2..=4u64 {
        let member = step as usize % 3;
        let save = pool.save(step);
        std::thread::sleep(Duration::from_millis(step * 17));
        cluster.kill(member);
        let saved = save.output();
        assert!(saved.status.success(), "{step}: {}", String::from_utf8_lossy(&saved.stderr));
        assert_eq!(pool.check_all(), (1..=step).collect::<Vec<_>>(), "with two of three");
        cluster.start_member(member);
        cluster.wait();
    }
    // The first of those who look after the others is killed, too, sooner or later.
    for step in 5..=8u64 {
        let save = pool.save(step);
        std::thread::sleep(Duration::from_millis(step * 11));
        lenders.remove(0).kill();
        let saved = save.output();
        if !saved.status.success() {
            // It was the only one that had a pack by then: that is said, and the save can be made again.
            let said = String::from_utf8_lossy(&saved.stderr);
            assert!(said.contains("cannot ask"), "{step}: {said}");
            let again = pool.save(step).output();
            assert!(again.status.success(), "{step}: {}", String::from_utf8_lossy(&again.stderr));
        }
        lenders.push(pool.join(step as usize * 10, &["--memory", "512MiB"]));
        // It is found to be lost, and all copies are made again.
        let gone = || pool.succeed(&["pool", "status", "--json"]).matches("\"benefactor\"").count() == 4;
        let begun = std::time::Instant::now();
        while !gone() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", pool.succeed(&["pool", "status"]));
            std::thread::sleep(Duration::from_millis(100));
        }
        pool.settle();
    }
    assert_eq!(pool.check_all(), (1..=8).collect::<Vec<_>>());
    pool.succeed(&["verify"]);
    pool.succeed(&["policy", "melt", "--keep-last", "2"]);
    pool.succeed(&["prune", "melt"]);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert_eq!(pool.check_all(), [7, 8]);
    // All who lend go, and with them what they lent.
    assert!(lenders.remove(0).end(), "it gives everything away");
    pool.settle();
    assert_eq!(pool.check_all(), [7, 8]);
}

/// Two managers keep the same names: savers go on with the other one when theirs is killed.
#[test]
fn managers_take_over_from_each_other() {
    let cluster = EtcdCluster::start(1);
    let mut pool = Pool::in_etcd(&["--replicas", "2"], cluster.url("two/managers"));
    let mut managers = vec![pool.manage_etcd(), pool.manage_etcd()];
    let direct = std::mem::take(&mut pool.place);
    pool.place = format!("pool://{},{}", managers[0].address(), managers[1].address());
    let _lenders = pool.lenders(3);
    saves(&pool, 1);
    let save = pool.save(2);
    std::thread::sleep(Duration::from_millis(30));
    managers.remove(0).kill();
    let saved = save.output();
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    saves(&pool, 3);
    assert_eq!(pool.check_all(), [1, 2, 3]);
    managers.drain(..).for_each(Process::kill);
    // Who asks etcd needs neither.
    pool.place = direct;
    saves(&pool, 4);
    assert_eq!(pool.check_all(), [1, 2, 3, 4]);
}

#[test]
fn whoever_has_another_key_learns_nothing() {
    let cluster = EtcdCluster::start(1);
    let pool = Pool::in_etcd(&[], cluster.url("prod"));
    let _lender = pool.lenders(1);
    saves(&pool, 1);
    let key = pool.path("other");
    pool.succeed(&["pool", "key", key.to_str().expect("text")]);
    for args in [&["list"][..], &["pool", "status"], &["restore", "melt", "--to", "/nowhere"]] {
        let output = pool.command().env("STDCHK_POOL_KEY", &key).args(args).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("was not written with this pool's key"), "{said}");
    }
    let none =
        pool.command().env("STDCHK_STORE", cluster.url("none")).arg("list").output().expect("it starts");
    assert!(String::from_utf8_lossy(&none.stderr).contains("there is no pool at etcd://"));
}
