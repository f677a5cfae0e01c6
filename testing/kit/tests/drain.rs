//! Draining from one directory to another: stopped, failing or without power at every step it goes on where it was; what has arrived can be
//! restored from there alone, also after compaction and collection here.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stdchk::files::{Attributes, Files, ROOT_NUMBER};
use stdchk::{AppName, DrainOp, Drainer, Op, Repository, SaveOptions, Share, Target, Tiered};
use stdchk_catalog_objects::ObjectCatalog;
use stdchk_kit::{Fault, Random, SimFs, generate};
use stdchk_store_dir::DirStore;

fn open(fs: &Arc<SimFs>) -> Repository {
    Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open")
}

fn target(fs: &Arc<SimFs>) -> stdchk::Result<Target> {
    // As another process each time.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = Arc::new(DirStore::on(fs.clone(), "safe".into(), tag));
    dir.prepare()?;
    Ok(Target { store: dir.clone(), catalog: Arc::new(ObjectCatalog::new(dir)) })
}

fn save(repository: &Repository, step: u64, state: &[u8]) {
    let mut save =
        repository.save(&AppName::new("melt").expect("name"), step, SaveOptions::default()).expect("save");
    save.add_bytes("state", state).expect("add");
    save.commit().expect("commit");
}

fn states(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let mut image = generate::process_image(300_000, &mut random);
    let next = |_| {
        let state = image.clone();
        generate::touch_pages(&mut image, 30, &mut random);
        state
    };
    (0..count).map(next).collect()
}

fn drain_from(fs: &Arc<SimFs>) -> Repository {
    let repository = open(fs);
    let to = Op::Drain(DrainOp::To("safe".into()));
    repository.ground().catalog.append(true, &mut |_| Ok(vec![to.clone()])).expect("append");
    repository
}

/// How many checkpoints are said to be drained.
fn drained(repository: &Repository) -> usize {
    let state = repository.state().expect("state");
    state.checkpoints().filter(|entry| state.drain().is_drained(entry)).count()
}

fn round(from: &Repository, to: &Arc<SimFs>) -> stdchk::Result<stdchk::Drained> {
    let since = from.state()?.drain().since();
    Drainer::new(target(to)?, since).round(&from.ground(), &Share::ALL, &AtomicBool::new(false))
}

/// What is there can be read from there alone; the steps.
fn check_alone(fs: &Arc<SimFs>, states: &[Vec<u8>], what: &str) -> Vec<u64> {
    let repository = open(&Arc::new(fs.fork()));
    let reading = repository.read().expect("read");
    let mut steps = Vec::new();
    for entry in reading.state.checkpoints() {
        let checkpoint = repository.checkpoint(&reading, entry).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut bytes = Vec::new();
        let member = checkpoint.member("state", None).expect("there");
        checkpoint.write_to(member, &mut bytes, &|_| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(bytes == states[entry.step as usize], "{what}: wrong bytes of {}", entry.id());
        steps.push(entry.step);
    }
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    assert!(report.is_clean(), "{what}: {report:?}");
    steps
}

#[test]
fn a_drain_can_stop_anywhere() {
    let (from, states) = (Arc::new(SimFs::new()), states(3));
    let repository = drain_from(&from);
    (0..3).for_each(|step| save(&repository, step as u64, &states[step]));
    let counted = Arc::new(SimFs::new());
    target(&counted).expect("prepared");
    let prepared = Arc::new(counted.fork());
    let done = round(&repository, &counted).expect("works");
    assert_eq!((done.checkpoints.len(), done.failed), (3, 0));
    assert_eq!(check_alone(&counted, &states, "all"), [0, 1, 2]);
    assert_eq!(round(&repository, &counted).expect("again"), stdchk::Drained::default(), "nothing is left");
    for step in 1..=counted.steps() {
        for fault in [Fault::Stop, Fault::Errors(std::io::ErrorKind::StorageFull)] {
            let (here, there) = (Arc::new(from.fork()), Arc::new(prepared.fork()));
            let what = format!("{fault:?} at step {step}");
            // As it was before anything was drained.
            let repository = open(&here);
            let again = Op::Drain(DrainOp::Stop);
            repository.ground().catalog.append(true, &mut |_| Ok(vec![again.clone()])).expect("append");
            let repository = drain_from(&here);
            there.plan(step, fault);
            let _ = round(&repository, &there);
            there.power_cut(&mut Random::new(step));
            let said = drained(&repository);
            let is_there = check_alone(&there, &states, &what);
            assert!(is_there.len() >= said, "{what}: {said} are said to be there, of which {is_there:?} are");
            round(&repository, &there).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(check_alone(&there, &states, &what), [0, 1, 2], "{what}");
            assert_eq!(drained(&repository), 3, "{what}");
        }
    }
}

/// Checkpoints come and go here, packs are compacted and collected, and there nothing is missing and nothing is left over.
#[test]
fn what_is_drained_follows() {
    let (from, to, states) = (Arc::new(SimFs::new()), Arc::new(SimFs::new()), states(12));
    let repository = drain_from(&from);
    let safe = target(&to).expect("prepared");
    let mut ground = repository.ground();
    let opens = safe.clone();
    let store = ground.store.clone();
    ground.store = Arc::new(Tiered::new(store, ground.catalog.clone(), Box::new(move |_| Ok(opens.clone()))));
    let since = repository.state().expect("state").drain().since();
    let mut drainer = Drainer::new(safe, since);
    let mut kept = Vec::new();
    let mut compacted = 0;
    for (step, state) in states.iter().enumerate() {
        save(&repository, step as u64, state);
        kept.push(step as u64);
        drainer.round(&ground, &Share::ALL, &AtomicBool::new(false)).expect("round");
        if step % 3 == 2 {
            // Old ones go, so that little of their packs is needed.
            let gone: Vec<_> = kept.drain(..2).collect();
            let state = repository.state().expect("state");
            let ids: Vec<_> =
                state.checkpoints().filter(|e| gone.contains(&e.step)).map(|e| e.id()).collect();
            repository.forget(&ids).expect("forget");
        }
        compacted += stdchk::collect(&ground, true).expect("collect").compacted.len();
        assert_eq!(check_alone(&to, &states, &format!("step {step}")), kept, "step {step}");
    }
    assert!(compacted > 0, "something was compacted");
    for _ in 0..3 {
        drainer.round(&ground, &Share::ALL, &AtomicBool::new(false)).expect("round");
        stdchk::collect(&ground, true).expect("collect");
    }
    let packs = |fs: &SimFs| fs.files().into_keys().filter(|path| path.starts_with("packs/")).count();
    assert_eq!(packs(&to), packs(&from), "the same packs are here and there");
    // What is lost here is read from there, and comes back.
    let lost: Vec<String> = from.files().into_keys().filter(|path| path.starts_with("packs/")).collect();
    lost.iter().for_each(|path| from.remove(path));
    let state = ground.catalog.state().expect("state");
    let report = stdchk::verify(&ground, &state, None, false, &|_, _| {}).expect("verify");
    assert!(report.damage.is_empty(), "{report:?}");
}

/// The names of files, and what they lead to, are where their versions were drained to.
#[test]
fn files_are_drained_with_their_names() {
    let (from, to) = (Arc::new(SimFs::new()), Arc::new(SimFs::new()));
    let repository = drain_from(&from);
    let save = SaveOptions::default();
    let files = Files::open(drain_from(&from), save.clone(), false).expect("files");
    let attributes = Attributes { mode: Some(0o750), ..Attributes::default() };
    let write = |parent, name: &str, bytes: &[u8]| {
        let writing = match files.find(parent, name) {
            Ok(entry) => files.open_to_write(entry.number).expect("open"),
            Err(_) => files.create(parent, name, &attributes).expect("new"),
        };
        writing.write_at(&files, 0, bytes).expect("write");
        files.close_writer(&writing).expect("close");
    };
    let read = |files: &Files, parent, name: &str| {
        let number = files.find(parent, name).expect("it is there").number;
        let opened = files.open_to_read(number).expect("open").expect("a version");
        let mut bytes = vec![0; opened.len() as usize];
        opened.read_at(0, &mut bytes).expect("read");
        bytes
    };
    let alone = || {
        let there = open(&Arc::new(to.fork()));
        Files::open(there, save.clone(), true).expect("files")
    };
    let directory = files.make_directory(ROOT_NUMBER, "melt", &attributes).expect("new").number;
    write(directory, "restart", b"one");
    write(directory, "restart", b"two");
    round(&repository, &to).expect("round");
    let there = alone();
    let found = there.find(ROOT_NUMBER, "melt").expect("drained");
    assert_eq!((found.number, found.mode), (directory, 0o750));
    assert_eq!(read(&there, directory, "restart"), b"two");
    assert_eq!(
        there.versions(there.find(directory, "restart").expect("it").number).expect("versions").len(),
        2
    );
    // Names change, and nothing else does.
    files.rename((directory, "restart"), (ROOT_NUMBER, "moved"), true).expect("rename");
    files.remove_directory(ROOT_NUMBER, "melt").expect("remove");
    round(&repository, &to).expect("round");
    let there = alone();
    assert_eq!(read(&there, ROOT_NUMBER, "moved"), b"two");
    assert!(there.find(ROOT_NUMBER, "melt").is_err());
}

fn set(repository: &Repository, op: DrainOp) {
    let op = Op::Drain(op);
    repository.ground().catalog.append(true, &mut |_| Ok(vec![op.clone()])).expect("append");
}

/// A checkpoint is not the one that had its name before.
#[test]
fn a_step_that_is_saved_again_is_drained_again() {
    let (from, to, states) = (Arc::new(SimFs::new()), Arc::new(SimFs::new()), states(2));
    let repository = drain_from(&from);
    save(&repository, 0, &states[0]);
    round(&repository, &to).expect("round");
    let id = repository.state().expect("state").checkpoints().next().expect("one").id();
    repository.forget(std::slice::from_ref(&id)).expect("forget");
    save(&repository, 0, &states[1]);
    assert_eq!(repository.state().expect("state").checkpoints().next().expect("one").id(), id);
    assert_eq!(drained(&repository), 0);
    round(&repository, &to).expect("round");
    assert_eq!(drained(&repository), 1);
    assert_eq!(check_alone(&to, &states[1..], "the newer one"), [0]);
}

/// Elsewhere, and back: what is there stays named, and what was done for one place counts for no other.
#[test]
fn a_drain_may_be_stopped_and_led_elsewhere_and_back() {
    let (from, states) = (Arc::new(SimFs::new()), states(4));
    let places = [Arc::new(SimFs::new()), Arc::new(SimFs::new())];
    let repository = drain_from(&from);
    for step in 0..4 {
        save(&repository, step as u64, &states[step]);
        let place = &places[step % 2];
        set(&repository, DrainOp::To(format!("place {}", step % 2)));
        assert_eq!(drained(&repository), 0, "nothing counts that is elsewhere");
        let late = DrainOp::Copied { since: 1, sequences: vec![1, 2, 3, 4] };
        assert!(
            repository.ground().catalog.append(true, &mut |_| Ok(vec![Op::Drain(late.clone())])).is_err()
        );
        round(&repository, place).expect("round");
        assert_eq!(drained(&repository), step + 1);
        let all: Vec<u64> = (0..=step as u64).collect();
        assert_eq!(check_alone(place, &states, "all are there"), all);
        set(&repository, DrainOp::Stop);
        round(&repository, place).expect("nothing to do");
        assert_eq!(check_alone(place, &states, "all stay"), all);
    }
}
