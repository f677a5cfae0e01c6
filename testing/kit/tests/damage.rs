//! Every stored byte matters: a repository with any byte flipped, any file missing, cut short or grown gives the right
//! bytes or a clear error, `verify` finds it, and the newest whole checkpoint is offered.

use std::path::Path;
use std::sync::Arc;

use stdchk::{AppName, Codec, Coding, Kind, Look, Preference, Repository, SaveOptions, Spec};
use stdchk_kit::{Fault, Random, SimFs, generate};

fn open(fs: &Arc<SimFs>) -> stdchk::Result<Repository> {
    Repository::open_or_create_on(fs.clone(), Path::new("sim"))
}

fn states() -> Vec<Vec<u8>> {
    let mut random = Random::new(11);
    let mut image = generate::process_image(90_000, &mut random);
    let mut states = Vec::new();
    for _ in 0..3 {
        states.push(image.clone());
        generate::touch_pages(&mut image, 30, &mut random);
    }
    // The last one is stored as differences.
    image.copy_from_slice(&states[2]);
    generate::drift(&mut image, 50, &mut random);
    states.push(image);
    states
}

fn repository() -> Arc<SimFs> {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs).expect("create");
    let mut options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    for (step, state) in states().iter().enumerate() {
        let app = AppName::new("melt").expect("name");
        if step == 3 {
            options.coding = Some(Preference::Fixed(Coding::new(Codec::Zstd, 8).of_delta(), 1));
        }
        let mut save = repository.save(&app, step as u64, options.clone()).expect("save");
        save.add_bytes("state", state).expect("add");
        save.commit().expect("commit");
    }
    let reading = repository.read().expect("read");
    let newest = reading.state.checkpoints().last().expect("four").clone();
    let newest = repository.checkpoint(&reading, &newest).expect("open");
    let codecs = newest.codecs(newest.member("state", None).expect("there")).expect("codecs");
    assert!(codecs.iter().any(|codec| codec.starts_with("delta+")), "{codecs:?}");
    fs
}

/// Reads every checkpoint. Whatever is given must be right; what is not given must be an error about bytes.
/// Returns the newest step that is offered as whole, and whether verify found anything.
fn examine(fs: &Arc<SimFs>, states: &[Vec<u8>], what: &str) -> (Option<u64>, bool) {
    let repository = match open(fs) {
        Ok(repository) => repository,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{what}: {error}");
            return (None, true);
        }
    };
    let reading = match repository.read() {
        Ok(reading) => reading,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{what}: {error}");
            return (None, true);
        }
    };
    for entry in reading.state.checkpoints() {
        let read = repository.checkpoint(&reading, entry).and_then(|checkpoint| {
            let mut bytes = Vec::new();
            checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
            Ok(bytes)
        });
        match read {
            Ok(bytes) => {
                assert!(bytes == states[entry.step as usize], "{what}: wrong bytes of step {}", entry.step)
            }
            Err(error) => {
                let text = error.to_string();
                // A flipped version number is a version that nobody knows.
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{what}: {text}");
                assert!(text.contains("melt@") && text.contains("pack "), "{what}: says too little: {text}");
            }
        }
    }
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    let found =
        !report.is_clean() || !report.index.is_empty() || !repository.strangers().expect("list").is_empty();
    let spec = Spec::parse("melt").expect("spec");
    let deep = repository.newest_whole(&reading, &spec, Look::Deep).expect("latest");
    drop(reading);
    // What verify found is on record, so that the quick look offers the same.
    let reading = repository.read().expect("read again");
    let quick = repository.newest_whole(&reading, &spec, Look::Quick).expect("latest");
    let steps = (deep.0.map(|entry| entry.step), quick.0.map(|entry| entry.step));
    assert_eq!(steps.0, steps.1, "{what}: a quick and a deep look differ");
    (steps.0, found)
}

/// The expected newest whole checkpoint is read off the reports themselves: it must restore, and newer ones must not.
fn check(fs: &Arc<SimFs>, states: &[Vec<u8>], must_be_found: bool, what: &str) {
    let (newest, found) = examine(fs, states, what);
    assert!(found || !must_be_found, "{what}: verify did not find it");
    if let Some(step) = newest {
        let repository = open(fs).expect("opened before");
        let reading = repository.read().expect("read before");
        for entry in reading.state.checkpoints().filter(|entry| entry.step >= step) {
            let readable = repository.checkpoint(&reading, entry).and_then(|checkpoint| {
                checkpoint.write_to(checkpoint.member("state", None)?, &mut std::io::sink(), &|_| {})
            });
            assert!(
                readable.is_ok() || entry.step > step,
                "{what}: step {} is offered but cannot be read",
                entry.step
            );
        }
    }
}

/// Files whose bytes mean something: of heartbeats only the change counts, of ballast only the room.
fn meaningful(fs: &SimFs) -> impl Iterator<Item = (String, Vec<u8>)> {
    fs.files().into_iter().filter(|(path, _)| !path.starts_with("beats/") && path != "ballast")
}

fn stride(len: usize) -> usize {
    let tries = if std::env::var_os("STDCHK_TEST_LONG").is_some() { usize::MAX } else { 150 };
    len.div_ceil(tries).max(1)
}

#[test]
fn every_flipped_byte_is_found_or_harmless() {
    let (whole, states) = (repository(), states());
    let mut random = Random::new(2);
    for (path, bytes) in meaningful(&whole) {
        for at in (0..bytes.len()).step_by(stride(bytes.len())) {
            let mut torn = bytes.clone();
            torn[at] ^= 1 << random.below(8);
            let fs = Arc::new(whole.fork());
            fs.overwrite(&path, torn);
            check(&fs, &states, true, &format!("byte {at} of {path} flipped"));
        }
    }
}

#[test]
fn missing_short_long_and_extra_files_are_found() {
    let (whole, states) = (repository(), states());
    for (path, bytes) in meaningful(&whole) {
        let variants: [(&str, Option<Vec<u8>>); 5] = [
            ("removed", None),
            ("emptied", Some(Vec::new())),
            ("cut short", Some(bytes[..bytes.len() - 1].to_vec())),
            ("halved", Some(bytes[..bytes.len() / 2].to_vec())),
            ("grown", Some([&bytes[..], b"x"].concat())),
        ];
        for (how, variant) in variants {
            let fs = Arc::new(whole.fork());
            match variant {
                Some(bytes) => fs.overwrite(&path, bytes),
                None => fs.remove(&path),
            }
            // A log that ends earlier is a log that ends earlier; an index or mark that is gone costs only time; and a
            // repository without its own record is an empty one.
            let must = how != "removed" || path.starts_with("packs/") || path == "log/0000000000000003";
            check(&fs, &states, must, &format!("{path} {how}"));
        }
    }
    let fs = Arc::new(whole.fork());
    fs.overwrite("packs/extra", b"stray".to_vec());
    check(&fs, &states, true, "an extra file");
}

/// Damages the largest pack; its path, and the bytes that it had.
fn damage_largest(fs: &SimFs) -> (String, Vec<u8>) {
    let (path, bytes) = fs
        .files()
        .into_iter()
        .filter(|(path, _)| path.starts_with("packs/"))
        .max_by_key(|(_, bytes)| bytes.len())
        .expect("a pack");
    let mut torn = bytes.clone();
    torn[5000..5100].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs.overwrite(&path, torn);
    (path, bytes)
}

fn save_again(repository: &Repository, states: &[Vec<u8>]) {
    for (step, state) in states.iter().enumerate() {
        let app = AppName::new("again").expect("name");
        let mut save = repository.save(&app, step as u64, SaveOptions::default()).expect("save");
        save.add_bytes("state", state).expect("add");
        save.commit().expect("commit");
    }
}

fn verify_and_repair(fs: &Arc<SimFs>) -> stdchk::Result<stdchk::Repaired> {
    let repository = open(fs)?;
    let reading = repository.read()?;
    let report = repository.verify(&reading, None, &|_, _| {})?;
    stdchk::repair(&repository.ground(), &reading.state, &report)
}

/// A repair that fails or is cut off at any of its steps has hurt nothing, and the next one gets through.
#[test]
fn a_repair_can_stop_anywhere() {
    let (scene, states) = (repository(), states());
    let (path, sealed) = damage_largest(&scene);
    let repository = open(&scene).expect("open");
    let reading = repository.read().expect("read");
    assert!(!repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean());
    drop(reading);
    save_again(&repository, &states);
    let counted = Arc::new(scene.fork());
    assert_eq!(verify_and_repair(&counted).expect("works").mended.len(), 1);
    let eio = || std::io::Error::from_raw_os_error(5).kind();
    for step in 1..=counted.steps() {
        for fault in [Fault::Stop, Fault::Error(eio()), Fault::Errors(std::io::ErrorKind::StorageFull)] {
            let fs = Arc::new(scene.fork());
            fs.plan(step, fault);
            let _ = verify_and_repair(&fs);
            fs.power_cut(&mut Random::new(step));
            let what = format!("{fault:?} at step {step}");
            let done = verify_and_repair(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(done.lost.is_empty(), "{what}");
            assert!(fs.files()[&path] == sealed, "{what}: mended to the very bytes that were sealed");
            let repository = open(&fs).expect("open");
            let reading = repository.read().expect("read");
            assert!(repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean(), "{what}");
        }
    }
}

#[test]
fn repair_mends_from_copies_that_a_later_save_brings() {
    let (fs, states) = (repository(), states());
    let (path, bytes) = damage_largest(&fs);
    let repository = open(&fs).expect("open");
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    assert!(!report.is_clean());
    let done = stdchk::repair(&repository.ground(), &reading.state, &report).expect("repair");
    assert_eq!((done.mended.len(), done.lost.len()), (0, 1), "there is no copy yet");
    drop(reading);

    // The same bytes saved again are stored again, because what is damaged is not shared.
    save_again(&repository, &states);
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    let hurt =
        |app: &str| report.checkpoints.iter().any(|r| r.id.app.as_str() == app && !r.health.is_whole());
    assert!(hurt("melt") && !hurt("again"));
    let done = stdchk::repair(&repository.ground(), &reading.state, &report).expect("repair");
    assert_eq!((done.mended.len(), done.lost.len()), (1, 0));
    assert!(fs.files()[&path] == bytes, "mended to the very bytes that were sealed");
    drop(reading);
    let reading = repository.read().expect("read");
    assert!(repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean());
    assert!(reading.state.damaged().is_empty() || repository.state().expect("state").damaged().is_empty());
}

/// Pages of several versions lie scattered, and are read and checked many at once: what is wrong must still be known
/// for just the chunks that it concerns.
#[test]
fn a_scattered_version_says_exactly_which_chunks_are_hurt() {
    let fs = Arc::new(SimFs::new());
    let mut random = Random::new(5);
    let mut image = random.bytes(600 * 4096);
    let mut versions = Vec::new();
    for step in 0..4 {
        let repository = open(&fs).expect("open");
        let mut save = repository
            .save(&AppName::new("melt").expect("name"), step, SaveOptions::default())
            .expect("save");
        save.add_bytes("state", &image).expect("add");
        save.commit().expect("commit");
        versions.push(image.clone());
        generate::touch_pages(&mut image, 20, &mut random);
    }
    let packs: Vec<(String, Vec<u8>)> =
        fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/")).collect();
    let mut hurt = 0;
    for _ in 0..40 {
        let (path, bytes) = &packs[random.below(packs.len() as u64) as usize];
        let at = random.below(bytes.len() as u64) as usize;
        let fs = Arc::new(fs.fork());
        let mut torn = bytes.clone();
        torn[at] ^= 0x10;
        fs.overwrite(path, torn);
        let repository = open(&fs).expect("open");
        let reading = repository.read().expect("read");
        let entry = reading.state.checkpoints().last().expect("the newest").clone();
        let target = tempfile::tempdir().expect("a folder");
        let restored = repository
            .checkpoint(&reading, &entry)
            .and_then(|checkpoint| checkpoint.restore_to(target.path(), false, &|_| {}));
        match restored {
            Ok(_) => assert!(std::fs::read(target.path().join("state")).expect("there") == versions[3]),
            Err(error) => {
                hurt += 1;
                let state = repository.state().expect("state");
                let damaged: Vec<_> = state.damaged().values().flatten().collect();
                assert_eq!(damaged.len(), 1, "{error}: {damaged:?}");
                let one_chunk = damaged[0].1 - damaged[0].0 == 1;
                assert!(one_chunk || *damaged[0] == (0, u32::MAX), "{error}: {damaged:?}");
            }
        }
    }
    assert!(hurt > 5, "few of the flips were met");
}
