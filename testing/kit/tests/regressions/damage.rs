//! What is damaged, missing or changes under the hand.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk::{Coding, Kind, Preference, Repository, Spec};
use stdchk_kit::{Random, SimFs, generate};

use crate::{app, open, options, read, repository, save};

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
