//! Bugs that were found, each as the smallest story that shows it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk::{
    AppName, Body, Chunking, ChunkingChoice, Coding, Durability, Kind, Look, Policy, Preference, Repository,
    SCRIPT_LEASE, SaveOptions, Spec,
};
use stdchk_kit::{Random, SimFs, generate};

fn repository() -> (Arc<SimFs>, Repository) {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    (fs, repository)
}

fn open(fs: &Arc<SimFs>) -> Repository {
    Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open")
}

fn app() -> AppName {
    AppName::new("melt").expect("a name")
}

fn options() -> SaveOptions {
    SaveOptions { memory: 64 << 20, ..SaveOptions::default() }
}

fn save(repository: &Repository, step: u64, bytes: &[u8], options: SaveOptions) {
    let mut save = repository.save(&app(), step, options).expect("save");
    save.add_bytes("state", bytes).expect("add");
    save.commit().expect("commit");
}

fn read(repository: &Repository, step: u64) -> stdchk::Result<Vec<u8>> {
    let reading = repository.read()?;
    let spec = Spec::parse(&format!("melt@{step}"))?;
    let entry = spec.find(&reading.state)?[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry)?;
    let mut bytes = Vec::new();
    checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
    Ok(bytes)
}

/// Fails the test where something waits for ever.
fn within(time: Duration, what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    wait.recv_timeout(time).unwrap_or_else(|_| panic!("{what}: it hangs, or failed"));
}

#[test]
fn many_small_members_do_not_drain_the_buffers() {
    within(Duration::from_secs(60), "500 small members", || {
        let (_, repository) = repository();
        let mut save = repository.save(&app(), 1, options()).expect("save");
        let mut random = Random::new(1);
        for i in 0..500 {
            save.add_bytes(&format!("m{i}"), &random.bytes(300 + i)).expect("add");
        }
        assert_eq!(save.commit().expect("commit").entry.member_count, 500);
    });
}

#[test]
fn a_few_new_pages_in_each_unit_do_not_drain_the_buffers() {
    for chunking in [ChunkingChoice::Auto, ChunkingChoice::Fixed(Chunking::Cdc(8192))] {
        within(Duration::from_secs(120), "little new in much", move || {
            let (_, repository) = repository();
            let mut image = Random::new(2).bytes(48 << 20);
            let mut options = options();
            options.coding = Some(Preference::Fixed(Coding::NONE, 1));
            options.chunking = Some(chunking);
            save(&repository, 1, &image, options.clone());
            image.chunks_mut(4 << 20).for_each(|unit| unit[..4096].fill(3));
            // Another name, so that there is no parent at the same place, and all is found by hash.
            let mut other = repository.save(&app(), 2, options.clone()).expect("save");
            other.add_bytes("other", &image).expect("add");
            other.commit().expect("commit");
            let repeated: Vec<u8> = Random::new(3).bytes(64 << 10).repeat(640);
            save(&repository, 3, &repeated, options);
            assert!(read(&repository, 3).expect("read") == repeated);
        });
    }
}

#[test]
fn large_chunks_want_a_budget_that_holds_them() {
    let (_, repository) = repository();
    let mut options = options();
    options.chunking = Some(ChunkingChoice::Fixed(Chunking::Page(16 << 20)));
    assert_eq!(repository.save(&app(), 1, options.clone()).err().expect("too small").kind(), Kind::Invalid);
    options.memory = 256 << 20;
    let image = Random::new(4).bytes(40 << 20);
    save(&repository, 1, &image, options);
    // A later save with a small budget does not inherit what it cannot hold.
    save(&repository, 2, &image, self::options());
    assert!(read(&repository, 2).expect("read") == image);
}

#[test]
fn damaged_nodes_are_not_shared() {
    let (fs, repository) = repository();
    let mut image = Random::new(5).bytes(600 << 10);
    save(&repository, 1, &image, options());
    generate::touch_pages(&mut image, 40, &mut Random::new(6));
    save(&repository, 2, &image, options());
    // The nodes of step 2 lie in the pack that holds its manifest.
    let state = repository.state().expect("state");
    let manifest = state.checkpoints().find(|entry| entry.step == 2).expect("there").manifest.pack.name;
    let path = fs.files().into_keys().find(|path| path.ends_with(&manifest.to_string())).expect("a file");
    let mut bytes = fs.files()[&path].clone();
    bytes[40..60].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs.overwrite(&path, bytes);
    let repository = open(&fs);
    assert!(read(&repository, 2).is_err(), "the damage is where it was meant to be");
    save(&repository, 3, &image, options());
    assert!(read(&repository, 3).expect("what is saved can be read") == image);
    // Garbage collection goes on beside a damaged tree.
    stdchk::collect(&repository.ground(), true).expect("gc");
    assert!(read(&repository, 3).expect("and still") == image);
}

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

/// More records than are kept, so that the first ones were trimmed.
fn long_log() -> (Arc<SimFs>, Vec<u8>) {
    let (fs, repository) = repository();
    let image = Random::new(10).bytes(20_000);
    for step in 1..=700 {
        save(&repository, step, &image, options());
    }
    let first = fs.files().into_keys().find(|path| path.starts_with("log/")).expect("records");
    assert!(first.as_str() > "log/0000000000000001", "the first records were trimmed");
    (fs, image)
}

#[test]
fn a_lost_or_old_mark_does_not_lose_the_log() {
    let (fs, image) = long_log();
    let mark = fs.files()["mark"].clone();

    let lost = Arc::new(fs.fork());
    lost.remove("mark");
    let repository = open(&lost);
    assert!(read(&repository, 700).expect("the state is found by listing") == image);
    let reading = repository.read().expect("read");
    assert!(
        !repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean(),
        "verify says that it is missing"
    );
    drop(reading);
    stdchk::collect(&repository.ground(), true).expect("gc");
    assert!(read(&repository, 700).expect("gc removed nothing that is needed") == image);

    // A mark that was set back names a snapshot that is gone.
    let regressed = Arc::new(fs.fork());
    let (early, repository) = self::repository();
    for step in 1..=130 {
        save(&repository, step, &image, options());
    }
    drop(repository);
    let old = early.files()["mark"].clone();
    assert_ne!(old, mark);
    regressed.overwrite("mark", old);
    let repository = open(&regressed);
    assert!(read(&repository, 700).expect("an old mark is seen through") == image);
    save(&repository, 701, &image, options());

    // Without snapshots and first records nothing may pass for an empty repository.
    let gutted = Arc::new(fs.fork());
    for path in fs.files().keys().filter(|path| path.starts_with("snapshots/") || *path == "mark") {
        gutted.remove(path);
    }
    let repository = Repository::open_or_create_on(gutted, Path::new("sim")).expect("open");
    assert_eq!(repository.state().expect_err("the state is lost").kind(), Kind::Corrupt);
}

#[test]
fn a_session_lives_while_a_part_is_added() {
    let (fs, repository) = repository();
    let session = repository.begin(&app(), 1, None, Duration::from_millis(800)).expect("begin");
    let mut part = repository.add(session, options()).expect("add");
    part.add_stream("state", &mut &b"x"[..], &|_| {}).expect("stream");
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        fs.pass(Duration::from_millis(300));
        assert!(stdchk::collect(&repository.ground(), false).expect("gc").fenced.is_empty());
    }
    part.finish().expect("finish");
    repository.commit(session, "").expect("commit");
}

#[test]
fn what_cannot_be_restored_is_not_saved() {
    let (_, repository) = repository();
    let mut save = repository.save(&app(), 1, options()).expect("save");
    save.add_bytes("a", b"1").expect("add");
    save.add_bytes("a/b", b"2").expect("add");
    assert_eq!(save.commit().expect_err("a is no directory").kind(), Kind::Invalid);

    // Ranks may be in each other's way: then each gets a folder.
    let session = repository.begin(&app(), 2, None, SCRIPT_LEASE).expect("begin");
    for (rank, name) in ["out", "out/x"].into_iter().enumerate() {
        let mut part = repository.add(session, SaveOptions { rank: rank as u32, ..options() }).expect("add");
        part.add_stream(name, &mut &[rank as u8; 10][..], &|_| {}).expect("stream");
        part.finish().expect("finish");
    }
    repository.commit(session, "").expect("commit");
    let reading = repository.read().expect("read");
    let entry = Spec::parse("melt@2").expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    let dir = tempfile::tempdir().expect("a folder");
    checkpoint.restore_to(&dir.path().join("to"), false, &|_| {}).expect("restore");
    assert_eq!(std::fs::read(dir.path().join("to/rank-1/out/x")).expect("a file"), [1; 10]);
}

#[test]
fn a_restore_does_not_follow_links_out_of_its_target() {
    let dir = tempfile::tempdir().expect("a folder");
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).expect("a folder");
    let input = dir.path().join("input");
    std::fs::create_dir_all(input.join("d/sub")).expect("a folder");
    std::fs::write(input.join("d/sub/f"), b"x").expect("a file");
    let (_, repository) = repository();
    let mut save = repository.save(&app(), 1, options()).expect("save");
    save.add_paths(std::slice::from_ref(&input), &|_| {}).expect("add");
    save.commit().expect("commit");
    let reading = repository.read().expect("read");
    let entry = reading.state.checkpoints().next().expect("there").clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    assert!(checkpoint.members.iter().any(|m| m.member.body == Body::Dir));
    // A link where a directory should go, left there by somebody.
    let target = dir.path().join("target");
    std::fs::create_dir_all(target.join("input")).expect("a folder");
    std::os::unix::fs::symlink(&outside, target.join("input/d")).expect("a link");
    assert!(checkpoint.restore_to(&target, true, &|_| {}).is_err());
    assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 0, "nothing was made through the link");
    // Nothing is replaced where something cannot be.
    let blocked = dir.path().join("blocked");
    std::fs::create_dir_all(blocked.join("input/d/sub/f")).expect("a folder");
    std::fs::write(blocked.join("input/d/keep"), b"old").expect("a file");
    assert!(checkpoint.restore_to(&blocked, true, &|_| {}).is_err());
    assert_eq!(std::fs::read(blocked.join("input/d/keep")).expect("a file"), b"old");
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

#[test]
fn a_rank_that_tries_again_replaces_its_part() {
    let (_, repository) = repository();
    let session = repository.begin(&app(), 1, Some(1), SCRIPT_LEASE).expect("begin");
    let add = |replace: bool, bytes: &[u8]| {
        let mut part = repository.add(session, SaveOptions { replace, ..options() }).expect("add");
        part.add_stream("state", &mut { bytes }, &|_| {}).expect("stream");
        part.finish()
    };
    add(false, b"first").expect("the first");
    assert_eq!(add(false, b"again").expect_err("not by accident").kind(), Kind::Exists);
    add(true, b"second").expect("replaced");
    repository.commit(session, "").expect("commit");
    assert_eq!(read(&repository, 1).expect("read"), b"second");
}

/// Copies and object stores drop empty folders; scripts must not be told that there is no checkpoint.
#[test]
fn missing_folders_and_a_missing_record_do_not_hide_checkpoints() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = dir.path().join("store");
    let text = place.to_str().expect("text");
    let repository = Repository::open_or_create(text).expect("create");
    save(&repository, 1, b"state", options());
    for folder in ["beats", "tmp", "index", "snapshots"] {
        std::fs::remove_dir_all(place.join(folder)).expect("removed");
        let repository = Repository::open(text).expect("open");
        assert_eq!(read(&repository, 1).expect("read"), b"state", "without {folder}");
        stdchk::collect(&repository.ground(), true).expect("gc");
    }
    std::fs::remove_file(place.join("stdchk")).expect("removed");
    assert_eq!(Repository::open(text).err().expect("broken").kind(), Kind::Corrupt);
    let repository = Repository::open_or_create(text).expect("made again");
    assert_eq!(read(&repository, 1).expect("read"), b"state");
}

#[test]
fn a_stopped_restore_is_cleaned_up_by_the_next_and_never_saved() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let (_, repository) = repository();
    save(&repository, 1, b"state", options());
    let reading = repository.read().expect("read");
    let entry = reading.state.checkpoints().next().expect("there").clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    let target = dir.path().join("target");
    let stale = target.join(".stdchk-restore-0123456789abcdef");
    std::fs::create_dir_all(&stale).expect("a folder");
    std::fs::write(stale.join("0"), b"half").expect("a file");

    let mut other = repository.save(&app(), 2, options()).expect("save");
    std::fs::write(target.join("f"), b"x").expect("a file");
    other.add_paths(std::slice::from_ref(&target), &|_| {}).expect("add");
    assert_eq!(other.commit().expect("commit").entry.member_count, 2, "the folder and one file");

    checkpoint.restore_to(&target, true, &|_| {}).expect("restore");
    assert!(!stale.exists());
    let mode = std::fs::metadata(target.join("state")).expect("restored").permissions().mode();
    assert_eq!(mode & 0o077, 0, "what came through a pipe is nobody else's to read");
}

#[test]
fn the_repository_is_not_restored_into_or_saved() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = dir.path().join("store");
    let repository = Repository::open_or_create(place.to_str().expect("text")).expect("create");
    save(&repository, 1, b"state", options());
    let reading = repository.read().expect("read");
    let entry = reading.state.checkpoints().next().expect("there").clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    for inside in ["", "packs", "new/deep"] {
        let error = checkpoint.restore_to(&place.join(inside), true, &|_| {}).expect_err("inside");
        assert_eq!(error.kind(), Kind::Invalid);
    }
    let mut other = repository.save(&app(), 2, options()).expect("save");
    assert_eq!(other.add_paths(&[place.join("packs")], &|_| {}).expect_err("inside").kind(), Kind::Invalid);
}

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

/// Exports a checkpoint and imports it elsewhere; the export.
fn carried(from: &Repository, to: &Repository, step: u64) -> Vec<u8> {
    let reading = from.read().expect("read");
    let entry =
        Spec::parse(&format!("melt@{step}")).expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = from.checkpoint(&reading, &entry).expect("open");
    let mut export = Vec::new();
    checkpoint.export(&mut export, &|_| {}).expect("export");
    let mut input = &export[..];
    let import = stdchk::Import::open(&mut input).expect("an export");
    import.save_into(to, &app(), step, options(), &|_| {}).expect("import");
    export
}

#[test]
fn exports_of_long_pages_can_be_imported() {
    let (_, from) = repository();
    let (_, to) = repository();
    let mut options = options();
    options.chunking = Some(ChunkingChoice::Fixed(Chunking::Page(16 << 20)));
    options.memory = 256 << 20;
    let image = Random::new(8).bytes(17 << 20);
    save(&from, 1, &image, options);
    carried(&from, &to, 1);
    assert!(read(&to, 1).expect("read") == image);
}

#[test]
fn holes_are_exported_as_holes() {
    let (_, from) = repository();
    let (_, to) = repository();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state");
    let sparse = std::fs::File::create(&file).expect("a file");
    sparse.set_len(300 << 20).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"something", 200 << 20).expect("bytes");
    let mut save = from.save(&app(), 1, options()).expect("save");
    save.add_paths(std::slice::from_ref(&file), &|_| {}).expect("add");
    save.commit().expect("commit");
    assert!(carried(&from, &to, 1).len() < 5000);
    assert!(read(&to, 1).expect("read") == std::fs::read(file).expect("read"));
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

/// A stretch of which little is new is read once more where the parent's place is looked for: what was hashed must be what is stored, even if
/// the file changes in between and its time does not tell.
#[test]
fn what_changes_while_it_is_read_is_stored_as_it_was_hashed() {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_, repository) = repository();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let mut random = Random::new(1);
    let mut image = random.bytes(4 << 20);
    let mut options = options();
    options.coding = Some(Preference::Fixed(Coding::NONE, 1));
    let save_file = |step: u64| {
        let mut save = repository.save(&app(), step, options.clone())?;
        save.add_paths(&[folder.path().to_owned()], &|_| {})?;
        save.commit().map(drop)
    };
    std::fs::write(&path, &image).expect("write");
    save_file(1).expect("save");
    random.fill(&mut image[2 << 20..]);
    std::fs::write(&path, &image).expect("write");
    let time = std::fs::metadata(&path).expect("there").modified().expect("a time");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().write(true).open(&path).expect("open");
            let mut byte = 0u8;
            while !stop.load(Ordering::Relaxed) {
                byte ^= 1;
                // As a program does that has the file mapped.
                file.write_all_at(&[byte], 3 << 20).expect("write");
                file.set_modified(time).expect("time");
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for step in 2..30 {
            if save_file(step).is_ok() {
                let reading = repository.read().expect("read");
                let entry =
                    Spec::parse("melt").expect("spec").find(&reading.state).expect("there")[0].clone();
                let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
                for member in checkpoint.members.iter().filter(|member| member.member.bytes() > 0) {
                    checkpoint
                        .write_to(member, &mut std::io::sink(), &|_| {})
                        .expect("what was saved can be read");
                }
                drop(reading);
                repository.forget(&[entry.id()]).expect("forget");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
