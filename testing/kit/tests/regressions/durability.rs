//! Power cuts, staged checkpoints, and what may be built upon them.

use stdchk::{Durability, Kind, Look, Policy, Repository, SCRIPT_LEASE, SaveOptions, Spec};
use stdchk_kit::Random;

use crate::{app, open, options, read, repository, save};

/// A repository whose machine has started again after step 1 was staged, and the bytes of that step.
fn staged_before_a_power_cut(seed: u64) -> (Repository, Vec<u8>) {
    let (fs, repository) = repository();
    let image = Random::new(7).bytes(300 << 10);
    let mut staged = options();
    staged.durability = Durability::Staged;
    save(&repository, 1, &image, staged);
    drop(repository);
    fs.power_cut(&mut Random::new(seed));
    let mut repository = open(&fs);
    repository.set_boot([9; 16]);
    (repository, image)
}

fn saves_whole(repository: &Repository, image: &[u8], seed: u64) {
    save(repository, 2, image, options());
    let whole = read(repository, 2).is_ok_and(|bytes| bytes == image);
    assert!(whole, "seed {seed}: step 2 rests on what is gone");
}

#[test]
fn a_durable_save_does_not_rest_on_what_a_power_cut_took() {
    for seed in 0..20 {
        let (repository, image) = staged_before_a_power_cut(seed);
        let reading = repository.read().expect("read");
        let spec = Spec::parse("melt").expect("spec");
        // A quick look is enough: what was staged in another boot is read in full before it is offered.
        let offered = repository.newest_whole(&reading, &spec, Look::Quick).ok().and_then(|(found, _)| found);
        assert!(offered.is_none() || read(&repository, 1).is_ok_and(|bytes| bytes == image), "seed {seed}");
        drop(reading);
        saves_whole(&repository, &image, seed);
    }
}

#[test]
fn what_was_staged_in_another_boot_is_no_parent() {
    for seed in 0..20 {
        let (repository, image) = staged_before_a_power_cut(seed);
        saves_whole(&repository, &image, seed);
    }
}

#[test]
fn staged_packs_are_not_listed_for_others() {
    let (fs, repository) = repository();
    let mut staged = options();
    staged.durability = Durability::Staged;
    save(&repository, 1, &Random::new(8).bytes(300 << 10), staged);
    assert!(!fs.files().keys().any(|path| path.starts_with("index/")));
}

#[test]
fn prune_keeps_the_newest_that_is_whole_and_durable() {
    let (fs, repository) = repository();
    let mut random = Random::new(9);
    let image = random.bytes(200 << 10);
    save(&repository, 1, &image, options());
    save(&repository, 2, &random.bytes(200 << 10), options());
    let policy = Policy { keep_last: Some(1), ..Policy::default() };
    repository.set_policy(&app(), &policy).expect("policy");
    let state = repository.state().expect("state");
    let newest = state.checkpoints().find(|entry| entry.step == 2).expect("there").manifest.pack.name;
    let path = fs.files().into_keys().find(|path| path.ends_with(&newest.to_string())).expect("a file");
    fs.remove(&path);
    let repository = open(&fs);
    let plan = stdchk::prune(&repository.ground(), None, stdchk::now_ns()).expect("prune");
    assert!(plan.dropped.is_empty(), "{plan:?}");
    assert!(read(&repository, 1).expect("the whole one is kept") == image);

    let (_, repository) = self::repository();
    repository.set_policy(&app(), &policy).expect("policy");
    save(&repository, 1, &image, options());
    let mut staged = options();
    staged.durability = Durability::Staged;
    save(&repository, 2, &image, staged);
    let plan = stdchk::prune(&repository.ground(), None, stdchk::now_ns()).expect("prune");
    assert!(plan.dropped.is_empty(), "a staged one does not replace a durable one: {plan:?}");
    save(&repository, 3, &image, options());
    let plan = stdchk::prune(&repository.ground(), None, stdchk::now_ns()).expect("prune");
    assert_eq!(plan.dropped.len(), 2);
}

/// A part that a machine only staged is not made trustworthy by another machine's commit.
#[test]
fn staged_parts_keep_the_boot_that_added_them() {
    let (fs, mut adder) = repository();
    adder.set_boot([5; 16]);
    let image = Random::new(12).bytes(200 << 10);
    let session = adder.begin(&app(), 1, None, SCRIPT_LEASE).expect("begin");
    let staged = SaveOptions { durability: Durability::Staged, ..options() };
    let mut part = adder.add(session, staged).expect("add");
    part.add_stream("state", &mut &image[..], &|_| {}).expect("stream");
    part.finish().expect("finish");
    fs.power_cut(&mut Random::new(2));

    let mut committer = open(&fs);
    committer.set_boot([6; 16]);
    match committer.commit(session, "") {
        // The power cut took the session, the part from the log, or its head.
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Fenced | Kind::Corrupt | Kind::Invalid), "{error}")
        }
        Ok(saved) => assert_eq!(saved.entry.boot, [5; 16]),
    }
    save(&committer, 2, &image, options());
    assert!(read(&committer, 2).is_ok_and(|bytes| bytes == image));

    // Parts that several machines staged can be relied upon by none.
    let session = committer.begin(&app(), 3, None, SCRIPT_LEASE).expect("begin");
    for (rank, boot) in [[6; 16], [7; 16]].into_iter().enumerate() {
        committer.set_boot(boot);
        let options = SaveOptions { rank: rank as u32, durability: Durability::Staged, ..options() };
        let mut part = committer.add(session, options).expect("add");
        part.add_stream("state", &mut &image[..], &|_| {}).expect("stream");
        part.finish().expect("finish");
    }
    assert_eq!(committer.commit(session, "").expect("commit").entry.boot, [0; 16]);
}
