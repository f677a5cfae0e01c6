//! Full disks, and making room.

use std::sync::Arc;

use stdchk::{Kind, Policy, SCRIPT_LEASE};
use stdchk_kit::{Random, SimFs, generate};

use crate::{app, open, options, read, repository, save};

/// Who cannot free space on a full disk can do nothing there at all.
#[test]
fn a_disk_that_is_full_to_the_last_block_can_be_freed() {
    let (fs, repository) = repository();
    let mut random = Random::new(3);
    let states: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(300_000)).collect();
    for (step, state) in states.iter().enumerate() {
        save(&repository, step as u64, state, options());
    }
    for round in 0..2 {
        fs.limit_room(0);
        let mut refused = repository.save(&app(), 9, options()).err();
        refused = refused.filter(|error| error.kind() == Kind::Full);
        assert!(refused.is_some(), "round {round}: a save finds no room");
        assert!(read(&repository, 3).expect("what is there can be read") == states[3]);
        let policy = Policy { keep_last: Some(3 - round), ..Policy::default() };
        repository.set_policy(&app(), &policy).expect("a policy");
        let dropped = stdchk::prune(&repository.ground(), None, 0).expect("prune").dropped;
        assert_eq!(dropped.len(), 1, "round {round}");
        let freed = stdchk::collect(&repository.ground(), true).expect("collect").removed_bytes();
        assert!(freed > 300_000, "round {round}");
        assert!(fs.files().contains_key("ballast"), "round {round}: room is kept again");
    }
    save(&repository, 10, &states[0][..200_000], options());
    assert!(read(&repository, 10).expect("read") == states[0][..200_000]);
}

/// Several compact the same packs while others save and read: forwards of one must not lead into what another moved.
#[test]
fn several_compact_at_once() {
    let rounds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 60 } else { 6 };
    for seed in 0..rounds {
        let fs = Arc::new(SimFs::new());
        let mut random = Random::new(seed);
        let mut image = random.bytes(100 * 4096);
        let mut expected = Vec::new();
        for step in 0..6 {
            save(&open(&fs), step, &image, options());
            expected.push(image.clone());
            generate::touch_pages(&mut image, 60, &mut random);
        }
        let keep = Policy { keep_last: Some(3), ..Policy::default() };
        open(&fs).set_policy(&app(), &keep).expect("policy");
        stdchk::prune(&open(&fs).ground(), None, 0).expect("prune");
        let compacted: usize = std::thread::scope(|scope| {
            let saver = scope.spawn(|| save(&open(&fs), 6, &image, options()));
            let collect = || stdchk::collect(&open(&fs).ground(), true).expect("collect").compacted.len();
            let collectors: Vec<_> = (0..3).map(|_| scope.spawn(collect)).collect();
            for _ in 0..3 {
                assert!(read(&open(&fs), 4).expect("readers go on") == expected[4], "seed {seed}");
            }
            saver.join().expect("the saver ends");
            collectors.into_iter().map(|collector| collector.join().expect("a collector ends")).sum()
        });
        // The saver may have taken every forward back; then the packs are compacted after it.
        let later: usize = (0..3)
            .map(|_| stdchk::collect(&open(&fs).ground(), true).expect("collect").compacted.len())
            .sum();
        assert!(compacted + later > 0, "seed {seed}: nothing was compacted");
        for step in 3..6 {
            assert!(read(&open(&fs), step).expect("read") == expected[step as usize], "seed {seed}");
        }
        assert!(read(&open(&fs), 6).expect("read") == image, "seed {seed}");
        let repository = open(&fs);
        let reading = repository.read().expect("read");
        assert!(repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean(), "seed {seed}");
    }
}

/// What was kept for hard times lasts through more than one deed, and through whatever others do in between.
#[test]
fn a_full_disk_can_be_freed_in_several_steps() {
    let (fs, repository) = repository();
    for step in 0..3 {
        save(&repository, step, &Random::new(step).bytes(300_000), options());
    }
    let session = repository.begin(&app(), 9, None, SCRIPT_LEASE).expect("begin");
    let mut part = repository.add(session, options()).expect("add");
    part.add_stream("state", &mut &Random::new(7).bytes(200_000)[..], &|_| {}).expect("add");
    part.finish().expect("finish");
    fs.limit_room(0);
    repository
        .forget(&[repository.state().expect("state").checkpoints().next().expect("one").id()])
        .expect("forget");
    // Readers take what little room there is for their own records.
    for _ in 0..40 {
        read(&repository, 2).expect("read");
    }
    repository.abort(session).expect("abort");
    let freed = stdchk::collect(&repository.ground(), true).expect("collect").removed_bytes();
    assert!(freed > 500_000, "{freed}");
    assert_eq!(fs.files()["ballast"].len(), 256 << 10, "room is kept again");
}
