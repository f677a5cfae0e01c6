//! One file, written by several mounts: without the kernel.

use std::path::Path;
use std::sync::Arc;

use stdchk::files::{Attributes, Fault, Files, ROOT_NUMBER, Writing};
use stdchk::{Repository, SaveOptions, collect};
use stdchk_catalog::SessionKind;
use stdchk_kit::{Random, SimFs};

fn files_on(fs: &Arc<SimFs>) -> Files {
    let repository = Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open");
    Files::open(repository, SaveOptions { memory: 64 << 20, ..SaveOptions::default() }, false).expect("files")
}

/// So many mounts that know of each other.
fn mounts(fs: &Arc<SimFs>, count: usize) -> Vec<Files> {
    let mounts = (0..count).map(|_| files_on(fs)).collect();
    wait();
    mounts
}

/// Longer than what is known of names may be old.
fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

fn new() -> Attributes {
    Attributes { mode: Some(0o644), ..Attributes::default() }
}

fn open(files: &Files, name: &str) -> Arc<Writing> {
    let number = files.find(ROOT_NUMBER, name).expect("it is there").number;
    files.open_to_write(number).expect("open")
}

/// What a reader on a mount gets.
fn read(files: &Files, name: &str) -> Vec<u8> {
    let entry = files.find(ROOT_NUMBER, name).expect("it is there");
    let opened = files.open_to_read(entry.number).expect("open");
    let mut bytes = vec![0; opened.as_ref().map_or(0, |opened| opened.len() as usize)];
    if let Some(opened) = &opened {
        opened.read_at(0, &mut bytes).expect("read");
    }
    files.close_reader(entry.number);
    bytes
}

#[test]
fn the_last_mount_that_closes_a_file_makes_the_version() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 3);
    let [a, b, c] = &mounts[..] else { unreachable!() };
    let first = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    assert!(matches!(b.create(ROOT_NUMBER, "f", &new()), Err(Fault::Exists)));
    // Who writes it finds it at once; who reads has nothing to read yet, and lists do not show it.
    let second = open(b, "f");
    wait();
    let number = c.find(ROOT_NUMBER, "f").expect("its name").number;
    assert!(matches!(c.open_to_read(number), Err(Fault::Unwritten)));
    assert!(c.list(ROOT_NUMBER, "", 10).expect("list").is_empty());
    first.write_at(a, 0, b"aaaa").expect("write");
    second.write_at(b, 4, b"bbbb").expect("write");
    assert_eq!(second.read_at(b, 0, 8).expect("read"), b"\0\0\0\0bbbb");
    first.sync(a).expect("sync");
    assert_eq!(second.read_at(b, 0, 8).expect("read"), b"aaaabbbb");
    assert_eq!(first.len(), 4, "b has not synced yet");
    a.close_writer(&first).expect("close");
    wait();
    assert!(c.list(ROOT_NUMBER, "", 10).expect("list").is_empty(), "b writes still");
    b.close_writer(&second).expect("close");
    wait();
    assert_eq!(read(c, "f"), b"aaaabbbb");
    assert_eq!(c.versions(number).expect("versions").len(), 1);
    // Nothing that it needs is garbage.
    drop(mounts);
    let files = files_on(&fs);
    collect(&files.repository().ground(), true).expect("collect");
    assert_eq!(read(&files, "f"), b"aaaabbbb");
}

#[test]
fn what_is_opened_and_not_written_makes_no_version() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let writing = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    a.close_writer(&writing).expect("close");
    // A new file is one even if it is empty.
    assert_eq!(read(b, "f"), b"");
    let writing = open(b, "f");
    b.close_writer(&writing).expect("close");
    assert_eq!(b.versions(writing.number).expect("versions").len(), 1);
    // Removed while it is written, it is gone, and closing it is no error.
    let writing = open(b, "f");
    writing.write_at(b, 0, b"x").expect("write");
    a.remove(ROOT_NUMBER, "f").expect("remove");
    b.close_writer(&writing).expect("close");
    wait();
    assert!(matches!(a.find(ROOT_NUMBER, "f"), Err(Fault::Missing)));
    let left = a.repository().state().expect("state");
    let is_at_work = |kind: &SessionKind| !matches!(kind, SessionKind::Mount | SessionKind::Reader);
    assert_eq!(left.sessions().values().filter(|open| is_at_work(&open.entry.kind)).count(), 0);
}

#[test]
fn a_mount_that_dies_takes_what_others_wrote_along() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let kept = a.create(ROOT_NUMBER, "kept", &new()).expect("new");
    kept.write_at(a, 0, b"old").expect("write");
    a.close_writer(&kept).expect("close");
    for name in ["kept", "new"] {
        let ours = match a.find(ROOT_NUMBER, name) {
            Ok(entry) => a.open_to_write(entry.number).expect("open"),
            Err(_) => a.create(ROOT_NUMBER, name, &new()).expect("new"),
        };
        let theirs = open(b, name);
        ours.write_at(a, 0, b"aa").expect("write");
        theirs.write_at(b, 2, b"bb").expect("write");
        ours.sync(a).expect("sync");
        theirs.abandon("a process was killed");
        assert!(ours.sync(a).is_err(), "{name}");
        assert!(a.close_writer(&ours).is_err(), "{name}");
        let _ = b.close_writer(&theirs);
    }
    wait();
    for files in &mounts {
        assert_eq!(read(files, "kept"), b"old");
        assert!(matches!(files.find(ROOT_NUMBER, "new"), Err(Fault::Missing)));
    }
}

/// Who only opens and closes a file, again and again, takes nothing along of what others write and close meanwhile.
#[test]
fn nothing_is_lost_that_was_closed() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let writing = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    a.close_writer(&writing).expect("close");
    let slots = 60u8;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let writing = open(a, "f");
                    a.close_writer(&writing).expect("close");
                }
            });
        }
        for slot in 0..slots {
            let writing = open(b, "f");
            writing.write_at(b, u64::from(slot), &[slot + 1]).expect("write");
            b.close_writer(&writing).expect("close");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    wait();
    let expected: Vec<u8> = (1..=slots).collect();
    assert_eq!(read(a, "f"), expected);
}

/// What is written is above what was there when it began to be written, for all.
#[test]
fn a_file_that_takes_the_place_of_another_one_has_nothing_of_it() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let old = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    old.write_at(a, 0, b"old old old").expect("write");
    a.close_writer(&old).expect("close");
    let ours = a.create(ROOT_NUMBER, "tmp", &new()).expect("new");
    ours.write_at(a, 0, b"new").expect("write");
    ours.sync(a).expect("sync");
    a.rename((ROOT_NUMBER, "tmp"), (ROOT_NUMBER, "f"), false).expect("rename");
    wait();
    let theirs = open(b, "f");
    a.close_writer(&ours).expect("close");
    b.close_writer(&theirs).expect("close");
    wait();
    assert_eq!(read(a, "f"), b"new");
}

/// Who cannot read what lies below takes no part: others would leave to him what he cannot make a version of.
#[test]
fn who_cannot_read_what_is_below_does_not_take_part() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let first = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    first.write_at(a, 0, &[1; 50_000]).expect("write");
    a.close_writer(&first).expect("close");
    // B has closed it, but somebody got it from him.
    let theirs = open(b, "f");
    b.flush(&theirs, 1).expect("flush");
    let packs = || fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/"));
    let before: Vec<String> = packs().map(|(path, _)| path).collect();
    let second = open(a, "f");
    second.write_at(a, 0, &[2; 50_000]).expect("write");
    a.close_writer(&second).expect("close");
    let of_second: Vec<(String, Vec<u8>)> = packs().filter(|(path, _)| !before.contains(path)).collect();
    let third = open(a, "f");
    third.write_at(a, 10, &[3; 10]).expect("write");
    third.sync(a).expect("sync");
    for (path, bytes) in &of_second {
        fs.overwrite(path, vec![0; bytes.len()]);
    }
    assert!(theirs.write_at(b, 0, b"x").is_err());
    of_second.into_iter().for_each(|(path, bytes)| fs.overwrite(&path, bytes));
    a.close_writer(&third).expect("close");
    let _ = b.close_writer(&theirs);
    wait();
    let mut expected = vec![2; 50_000];
    expected[10..20].fill(3);
    assert!(read(a, "f") == expected);
}

#[test]
fn lengths_and_times_are_as_somebody_said() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let [a, b] = &mounts[..] else { unreachable!() };
    let ours = a.create(ROOT_NUMBER, "f", &new()).expect("new");
    let theirs = open(b, "f");
    theirs.write_at(b, 0, &[7; 100]).expect("write");
    theirs.sync(b).expect("sync");
    // What is there already is not cut off by who wants room for less.
    ours.grow(a, 50).expect("room");
    assert_eq!(ours.len(), 100);
    ours.grow(a, 120).expect("room");
    theirs.write_at(b, 150, b"x").expect("write");
    b.close_writer(&theirs).expect("close");
    let time = Attributes { modified_ns: Some(1_000_000_000), ..Attributes::default() };
    a.set(ours.number, &time).expect("set");
    a.close_writer(&ours).expect("close");
    wait();
    let entry = b.find(ROOT_NUMBER, "f").expect("it is there");
    assert_eq!((entry.len, entry.modified_ns), (151, 1_000_000_000));
    // Without a word it is when it was written.
    let again = open(b, "f");
    again.write_at(b, 0, b"y").expect("write");
    b.close_writer(&again).expect("close");
    assert!(b.find(ROOT_NUMBER, "f").expect("it is there").modified_ns > 1_000_000_000);
}

/// Several mounts do anything to one file, in any order, against bytes in memory: what each has synced is what all see.
#[test]
fn a_file_of_several_is_what_was_done_to_it() {
    let seeds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 100 } else { 6 };
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let fs = Arc::new(SimFs::new());
        let mounts = mounts(&fs, 3);
        let mut synced = Vec::<u8>::new();
        for round in 0..4 {
            let mut all: Vec<(&Files, Arc<Writing>, Vec<(usize, Vec<u8>)>)> = Vec::new();
            for (which, files) in mounts.iter().enumerate() {
                let writing = match (round, which) {
                    (0, 0) => files.create(ROOT_NUMBER, "f", &new()).expect("new"),
                    _ => open(files, "f"),
                };
                all.push((files, writing, Vec::new()));
            }
            let far = if seed % 2 == 0 { 5 << 20 } else { 20_000 };
            for step in 0..25 {
                let which = random.below(3) as usize;
                let (files, writing, unsynced) = &mut all[which];
                let at = random.below(far) as usize;
                let bytes = random.below(40_000) as usize;
                let bytes = random.bytes(1 + bytes);
                match random.below(8) {
                    0..=3 => {
                        writing.write_at(files, at as u64, &bytes).expect("write");
                        unsynced.push((at, bytes));
                    }
                    4 => {
                        writing.set_len(files, at as u64).expect("cut");
                        // What was not synced is, since a cut is a sync.
                        let was = writing.len() as usize;
                        assert_eq!(was, at);
                        put(&mut synced, unsynced);
                        synced.resize(at, 0);
                    }
                    5 => {
                        writing.sync(files).expect("sync");
                        put(&mut synced, unsynced);
                    }
                    _ => {
                        let mut seen = synced.clone();
                        put(&mut seen, &mut unsynced.clone());
                        let read = writing.read_at(files, 0, seen.len() + 10).expect("read");
                        assert!(read == seen, "seed {seed}, round {round}, step {step}");
                    }
                }
            }
            while !all.is_empty() {
                let (files, writing, mut unsynced) = all.remove(random.below(all.len() as u64) as usize);
                files.close_writer(&writing).expect("close");
                put(&mut synced, &mut unsynced);
            }
            wait();
            for files in &mounts {
                assert!(read(files, "f") == synced, "seed {seed}, round {round}");
            }
        }
        let files = files_on(&fs);
        collect(&files.repository().ground(), true).expect("collect");
        assert!(read(&files, "f") == synced, "seed {seed}");
    }
}

/// Has bytes written over others.
fn put(bytes: &mut Vec<u8>, written: &mut Vec<(usize, Vec<u8>)>) {
    for (at, new) in written.drain(..) {
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}

/// What lies in one layer alone is referred to: only its tree is new.
#[test]
fn what_several_wrote_is_not_stored_twice() {
    let fs = Arc::new(SimFs::new());
    let mounts = mounts(&fs, 2);
    let mut random = Random::new(1);
    let halves: Vec<Vec<u8>> = (0..2).map(|_| random.bytes(8 << 20)).collect();
    let all: Vec<Arc<Writing>> =
        vec![mounts[0].create(ROOT_NUMBER, "f", &new()).expect("new"), open(&mounts[1], "f")];
    // Every other stretch is theirs, neither of pages nor of leaves.
    let stretch = 300_000;
    for (which, writing) in all.iter().enumerate() {
        for (piece, bytes) in halves[which].chunks(stretch).enumerate() {
            let at = (2 * piece + which) * stretch;
            writing.write_at(&mounts[which], at as u64, bytes).expect("write");
        }
        mounts[which].close_writer(writing).expect("close");
    }
    wait();
    let version = mounts[0].versions(all[0].number).expect("versions").pop().expect("one");
    let written = version.written;
    assert!(written < (16 << 20) + (1 << 20), "{written} bytes for {}", version.bytes);
    assert!(version.tally.shared > version.bytes * 9 / 10, "{:?}", version.tally);
    let read = read(&mounts[1], "f");
    for (which, half) in halves.iter().enumerate() {
        for (piece, bytes) in half.chunks(stretch).enumerate() {
            let at = (2 * piece + which) * stretch;
            assert!(&read[at..at + bytes.len()] == bytes, "{which} {piece}");
        }
    }
}
