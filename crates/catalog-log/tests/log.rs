//! The log through its public door: the contract, crashes, failures and damage.

use std::sync::Arc;

use stdchk_catalog::{Catalog, Op, conformance};
use stdchk_catalog_log::{LogCatalog, Upon};
use stdchk_kit::{Fault, Random, SimFs};
use stdchk_object::{Kind, SessionId};

fn open(fs: &Arc<SimFs>) -> stdchk_object::Result<LogCatalog> {
    LogCatalog::open(fs.clone(), "sim")
}

/// Opens and ends a session, as two records.
fn two_records(catalog: &LogCatalog, id: u64, durable: bool) -> stdchk_object::Result<()> {
    catalog.append(durable, &mut |_| Ok(vec![conformance::writer(id, 1)]))?;
    catalog.append(durable, &mut |_| Ok(vec![Op::End(SessionId(id))])).map(drop)
}

#[test]
fn it_passes_the_conformance_suite() {
    conformance::catalog(&open(&Arc::new(SimFs::new())).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(stdchk_store_dir::RealFs::new(dir.path()));
    let catalog = LogCatalog::open(fs.clone(), "dir").unwrap();
    conformance::at_once(&[&catalog as &dyn Catalog; 6], 150);
    let state = catalog.state().unwrap();
    drop(catalog);
    assert_eq!(*LogCatalog::open(fs, "dir").unwrap().state().unwrap(), *state);
}

#[test]
fn snapshots_keep_the_log_short() {
    let fs = Arc::new(SimFs::new());
    let catalog = open(&fs).unwrap();
    (0..8000).for_each(|id| two_records(&catalog, id, id % 100 == 0).unwrap());
    assert_eq!(catalog.verify().unwrap(), Vec::<String>::new());
    let files: Vec<String> = fs.files().into_keys().collect();
    assert_eq!(files.iter().filter(|path| path.starts_with("snapshots/")).count(), 2, "{files:?}");
    assert!(files.iter().filter(|path| path.starts_with("log/")).count() <= 3, "{files:?}");
    let state = catalog.state().unwrap();
    assert_eq!(*open(&fs).unwrap().state().unwrap(), *state);
    // The newest snapshot may be damaged: the one before and the log lead to the same.
    let newest = files.iter().rfind(|path| path.starts_with("snapshots/")).unwrap();
    fs.overwrite(newest, b"rubbish".to_vec());
    assert_eq!(*open(&fs).unwrap().state().unwrap(), *state);
}

/// At every step the machine stops: what was said to be durable is there again, and what is there is what was decided, up to some
/// record.
#[test]
fn a_power_cut_takes_only_what_was_not_durable() {
    let steps = {
        let fs = Arc::new(SimFs::new());
        story(&fs);
        fs.steps()
    };
    for step in 1..=steps {
        for seed in 0..4 {
            let fs = Arc::new(SimFs::new());
            fs.plan(step, Fault::Stop);
            let (durable, decided) = story(&fs);
            fs.power_cut(&mut Random::new(seed));
            let catalog = open(&fs).unwrap_or_else(|error| panic!("step {step}, seed {seed}: {error}"));
            let number = catalog.state().unwrap().number();
            assert!(
                (durable..=decided).contains(&number),
                "step {step}, seed {seed}: {number} of {durable} to {decided}"
            );
            two_records(&catalog, 77, true).unwrap();
            drop(catalog);
            assert_eq!(open(&fs).unwrap().state().unwrap().number(), number + 2);
        }
    }
}

/// Some records, of which every third pair is to be durable: up to which record they were said to be, and how many there were.
fn story(fs: &Arc<SimFs>) -> (u64, u64) {
    let Ok(catalog) = open(fs) else { return (0, 0) };
    let catalog = catalog.snapshot_every(5);
    let (mut durable, mut decided) = (0, 0);
    for id in 0..12 {
        let sync = id % 3 == 2;
        // What was tried last may be there although it was not said so.
        decided += 2;
        if two_records(&catalog, id, sync).is_err() {
            break;
        }
        durable = if sync { decided } else { durable };
    }
    (durable, decided)
}

/// At every step the file system fails once, and the power is cut later: what was said to be durable is there again.
#[test]
fn a_failure_takes_nothing_that_was_durable() {
    let commits = |fs: &Arc<SimFs>| -> Vec<u64> {
        let Ok(catalog) = open(fs) else { return Vec::new() };
        let catalog = catalog.snapshot_every(5);
        let commit = |id: u64| -> stdchk_object::Result<()> {
            catalog.append(false, &mut |_| Ok(vec![conformance::writer(id, id)]))?;
            catalog.append(true, &mut |_| Ok(vec![conformance::commit(id, id, &[])])).map(drop)
        };
        (1..14).filter(|&id| commit(id).is_ok()).collect()
    };
    let steps = {
        let fs = Arc::new(SimFs::new());
        assert_eq!(commits(&fs).len(), 13);
        fs.steps()
    };
    for step in 1..=steps {
        for seed in 0..3 {
            let fs = Arc::new(SimFs::new());
            fs.plan(step, Fault::Error(std::io::ErrorKind::Other));
            let said = commits(&fs);
            fs.power_cut(&mut Random::new(seed));
            let catalog = open(&fs).unwrap_or_else(|error| panic!("step {step}, seed {seed}: {error}"));
            let state = catalog.state().unwrap();
            let there: Vec<u64> = state.checkpoints().map(|entry| entry.step).collect();
            assert!(
                said.iter().all(|id| there.contains(id)),
                "step {step}, seed {seed}: {said:?}, {there:?}"
            );
        }
    }
}

#[test]
fn after_a_failure_to_write_the_state_is_what_is_on_the_medium() {
    let fs = Arc::new(SimFs::new());
    let catalog = open(&fs).unwrap();
    two_records(&catalog, 1, true).unwrap();
    let before = catalog.tail(0, 0).unwrap();
    fs.limit_room(0);
    let mut failed = 0;
    for id in 2..200 {
        failed += u32::from(two_records(&catalog, id, true).is_err());
    }
    assert!(failed > 0, "the disk is full");
    fs.limit_room(1 << 30);
    let state = catalog.state().unwrap();
    assert_eq!(*open(&fs).unwrap().state().unwrap(), *state);
    two_records(&catalog, 500, true).unwrap();
    assert_eq!(catalog.state().unwrap().number(), state.number() + 2);
    let after = catalog.tail(before.boot, 2).unwrap();
    assert_ne!(after.boot, before.boot, "those who were shown more begin anew");
    assert!(after.snapshot.is_some());
}

#[test]
fn decisions_upon_an_old_state_are_made_again() {
    let catalog = open(&Arc::new(SimFs::new())).unwrap();
    let boot = catalog.tail(0, 0).unwrap().boot;
    let upon = |number| Upon { boot, number, as_saver: false };
    let first = catalog.submit(upon(0), vec![conformance::writer(1, 1)], true).unwrap();
    assert!(first.accepted && first.tail.records.len() == 1);
    let late = catalog.submit(upon(0), vec![conformance::writer(2, 1)], true).unwrap();
    assert!(!late.accepted && late.tail.records.len() == 1 && late.tail.snapshot.is_none());
    let wrong = catalog.submit(upon(1), vec![conformance::writer(1, 1)], true);
    assert_eq!(wrong.err().expect("open already").kind(), Kind::Conflict);
    let other = Upon { boot: boot ^ 1, ..upon(1) };
    let stranger = catalog.submit(other, vec![conformance::writer(2, 1)], true).unwrap();
    assert!(!stranger.accepted && stranger.tail.snapshot.is_some());
}

#[test]
fn savers_need_not_know_what_other_savers_do() {
    let catalog = open(&Arc::new(SimFs::new())).unwrap();
    let boot = catalog.tail(0, 0).unwrap().boot;
    let upon = |number| Upon { boot, number, as_saver: true };
    let submit = |number, op| catalog.submit(upon(number), vec![op], true).unwrap().accepted;
    assert!(submit(0, conformance::writer(1, 1)) && submit(0, conformance::writer(2, 2)));
    assert!(!submit(0, conformance::writer(2, 2)), "what is not allowed any more is to be decided anew");
    assert!(submit(1, conformance::commit(1, 1, &[])) && submit(0, conformance::writer(3, 3)));
    // What is condemned has to be known to who commits.
    catalog.append(true, &mut |_| Ok(vec![Op::Condemn(vec![conformance::pack(9, 0)])])).unwrap();
    assert!(!submit(4, conformance::commit(2, 2, &[])) && submit(5, conformance::commit(2, 2, &[])));
    assert!(submit(5, conformance::commit(3, 3, &[])), "the newest that matters is known");
    assert!(!submit(99, conformance::writer(4, 4)), "a state that is not there");
    // After a start nobody knows what came when.
    assert_eq!(catalog.state().unwrap().commits(), 3);
}

#[test]
fn damage_is_not_taken_for_the_end() {
    let fs = Arc::new(SimFs::new());
    let catalog = open(&fs).unwrap();
    (0..20).for_each(|id| two_records(&catalog, id, true).unwrap());
    drop(catalog);
    let (path, whole) = fs.files().into_iter().find(|(path, _)| path.starts_with("log/")).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(11) {
        let mut torn = whole.clone();
        torn[at] ^= 1;
        fs.overwrite(&path, torn);
        match open(&fs) {
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                refused += 1;
            }
            // How many bytes were durable is not part of a record; and behind the last there is nobody to prove anything.
            Ok(catalog) => assert!(catalog.state().unwrap().number() >= 38),
        }
    }
    assert!(refused > whole.len() / 11 / 2);
}
