//! Files by name: what a mount does, without the kernel.

use std::path::Path;
use std::sync::Arc;

use stdchk::files::{Attributes, Fault, Files, ROOT_NUMBER, Special, Writing};
use stdchk::{Durability, Repository, SaveOptions, Spec, collect};
use stdchk_kit::{Random, SimFs};

fn files_on(fs: &Arc<SimFs>) -> Files {
    let repository = Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open");
    // A small budget, so that what is kept in memory has to go often.
    Files::open(repository, SaveOptions { memory: 64 << 20, ..SaveOptions::default() }, false).expect("files")
}

fn new() -> Attributes {
    Attributes { mode: Some(0o644), ..Attributes::default() }
}

fn write(files: &Files, name: &str, bytes: &[u8]) -> Result<u64, Fault> {
    let writing = match files.find(ROOT_NUMBER, name) {
        Ok(entry) => files.open_to_write(entry.number)?,
        Err(_) => files.create(ROOT_NUMBER, name, &new())?,
    };
    writing.set_len(files, 0)?;
    writing.write_at(files, 0, bytes)?;
    files.close_writer(&writing)?;
    Ok(files.find(ROOT_NUMBER, name)?.number)
}

fn read(files: &Files, name: &str) -> Result<Vec<u8>, Fault> {
    let entry = files.find(ROOT_NUMBER, name)?;
    let opened = files.open_to_read(entry.number)?;
    let mut bytes = vec![0; entry.len as usize];
    if let Some(opened) = &opened {
        assert_eq!(opened.len(), entry.len);
        opened.read_at(0, &mut bytes)?;
    }
    files.close_reader(entry.number);
    Ok(bytes)
}

/// One file, written, read, cut, closed and opened again in any order, against bytes in memory.
#[test]
fn a_file_is_what_was_done_to_it() {
    let seeds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 200 } else { 12 };
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let (fs, mut model) = (Arc::new(SimFs::new()), Vec::<u8>::new());
        let files = files_on(&fs);
        let mut writing = Some(files.create(ROOT_NUMBER, "f", &new()).expect("new"));
        let far = if seed % 3 == 0 { 40 << 20 } else { 3 << 20 };
        for step in 0..60 {
            let open: &Arc<Writing> = match &writing {
                Some(open) => open,
                None => {
                    let number = files.find(ROOT_NUMBER, "f").expect("it is there").number;
                    writing.insert(files.open_to_write(number).expect("open"))
                }
            };
            let at = match random.below(3) {
                0 => model.len() as u64,
                1 => random.below(far),
                _ => random.below(model.len() as u64 + 1),
            };
            let long = if random.one_in(6) { 6 << 20 } else { 9000 };
            let len = 1 + random.below(long) as usize;
            match random.below(12) {
                0..=5 => {
                    let bytes = random.bytes(len);
                    open.write_at(&files, at, &bytes).expect("write");
                    let end = at as usize + len;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                6 => {
                    let len = random.below(far);
                    open.set_len(&files, len).expect("cut");
                    model.resize(len as usize, 0);
                }
                7 => {
                    open.punch(&files, at..at + len as u64).expect("zeros");
                    let end = (at as usize + len).min(model.len());
                    if (at as usize) < end {
                        model[at as usize..end].fill(0);
                    }
                }
                8 => open.sync(&files).expect("sync"),
                9 | 10 => {
                    let read = open.read_at(&files, at, len).expect("read");
                    let end = (at as usize + len).min(model.len());
                    assert!(read == model[(at as usize).min(end)..end], "seed {seed}, step {step}");
                }
                _ => {
                    files.close_writer(open).expect("close");
                    writing = None;
                    assert!(read(&files, "f").expect("read") == model, "seed {seed}, step {step}");
                }
            }
            if let Some(open) = &writing {
                assert_eq!(open.len(), model.len() as u64);
            }
        }
        if let Some(open) = writing {
            files.close_writer(&open).expect("close");
        }
        assert!(read(&files, "f").expect("read") == model, "seed {seed}");
        // Another process reads the same.
        assert!(read(&files_on(&fs), "f").expect("read") == model, "seed {seed}");
    }
}

/// What was written is what the version before had, moved by some bytes; what lies behind that was not touched, and has not moved.
#[test]
fn what_was_not_written_stays_where_it_is() {
    let fs = Arc::new(SimFs::new());
    let repository = Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open");
    let save = SaveOptions { memory: 256 << 20, ..SaveOptions::default() };
    let files = Files::open(repository, save, false).expect("files");
    let mut bytes = Random::new(9).bytes(40 << 20);
    write(&files, "f", &bytes).expect("write");
    let (moved, by) = (24 << 20, 100);
    let shifted = [&bytes[moved - by..moved], &bytes[..moved - by]].concat();
    let writing = files.open_to_write(files.find(ROOT_NUMBER, "f").expect("it").number).expect("open");
    writing.write_at(&files, 0, &shifted).expect("write");
    files.close_writer(&writing).expect("close");
    bytes[..moved].copy_from_slice(&shifted);
    assert!(read(&files, "f").expect("read") == bytes);
}

#[test]
fn nobody_sees_a_file_before_it_is_closed() {
    let fs = Arc::new(SimFs::new());
    let (here, there) = (files_on(&fs), files_on(&fs));
    write(&here, "f", b"one").expect("write");
    wait();
    let writing = here.open_to_write(here.find(ROOT_NUMBER, "f").expect("it").number).expect("open");
    writing.write_at(&here, 0, b"two, longer").expect("write");
    let new = here.create(ROOT_NUMBER, "g", &new()).expect("new");
    new.write_at(&here, 0, b"g").expect("write");
    wait();
    assert_eq!(read(&there, "f").expect("read"), b"one");
    // Its name is known, or nobody could write it together with them, but there is nothing to be read.
    let named = there.find(ROOT_NUMBER, "g").expect("its name").number;
    assert!(matches!(there.open_to_read(named), Err(Fault::Unwritten)));
    assert_eq!(there.list(ROOT_NUMBER, "", 10).expect("list").len(), 1);
    // Those who write it see what they write, and what is opened to be read is what was there before.
    assert_eq!(here.find(ROOT_NUMBER, "f").expect("it").len, 11);
    let opened = here.open_to_read(writing.number).expect("open").expect("a version");
    assert_eq!(opened.len(), 3);
    assert_eq!(writing.read_at(&here, 0, 100).expect("read"), b"two, longer");
    here.close_writer(&writing).expect("close");
    here.close_writer(&new).expect("close");
    wait();
    assert_eq!(read(&there, "f").expect("read"), b"two, longer");
    assert_eq!(read(&there, "g").expect("read"), b"g");
    // What was opened before is what it was.
    let mut bytes = [0; 3];
    opened.read_at(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"one");
}

/// Longer than what is known of names may be old.
fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

#[test]
fn who_goes_on_writing_after_a_version_was_made_makes_it_anew() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let writing = files.create(ROOT_NUMBER, "log", &new()).expect("new");
    for line in 0..5u64 {
        writing.write_at(&files, line * 2, &[b'0' + line as u8, b'\n']).expect("write");
        files.flush(&writing, 1).expect("flush");
        assert_eq!(read(&files, "log").expect("read").len() as u64, line * 2 + 2);
    }
    files.close_writer(&writing).expect("close");
    assert_eq!(read(&files, "log").expect("read"), b"0\n1\n2\n3\n4\n");
    let state = files.repository().state().expect("state");
    assert_eq!(state.checkpoints().count(), 1, "one version, not five");
}

#[test]
fn renaming_over_a_file_makes_a_version_of_it() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    for round in 0..3u8 {
        write(&files, "restart.tmp", &[round; 5000]).expect("write");
        files.rename((ROOT_NUMBER, "restart.tmp"), (ROOT_NUMBER, "restart"), false).expect("rename");
        assert!(matches!(files.find(ROOT_NUMBER, "restart.tmp"), Err(Fault::Missing)));
        assert_eq!(read(&files, "restart").expect("read"), [round; 5000]);
    }
    let state = files.repository().state().expect("state");
    assert_eq!(state.checkpoints().count(), 3, "all versions are there");
    // Before it is closed, too.
    let writing = files.create(ROOT_NUMBER, "new.tmp", &new()).expect("new");
    writing.write_at(&files, 0, b"newest").expect("write");
    files.rename((ROOT_NUMBER, "new.tmp"), (ROOT_NUMBER, "restart"), false).expect("rename");
    files.close_writer(&writing).expect("close");
    assert_eq!(read(&files, "restart").expect("read"), b"newest");
    assert_eq!(files.repository().state().expect("state").checkpoints().count(), 4);
    assert!(matches!(files.rename((ROOT_NUMBER, "nothing"), (ROOT_NUMBER, "x"), false), Err(Fault::Missing)));
    files.remove(ROOT_NUMBER, "restart").expect("remove");
    assert_eq!(files.repository().state().expect("state").checkpoints().count(), 0);
}

#[test]
fn directories_are_as_one_expects() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let a = files.make_directory(ROOT_NUMBER, "a", &new()).expect("new").number;
    let b = files.make_directory(a, "b", &new()).expect("new").number;
    files.make_link(b, "link", "../x", &new()).expect("new");
    assert!(matches!(files.make_directory(ROOT_NUMBER, "a", &new()), Err(Fault::Exists)));
    assert!(matches!(files.remove_directory(ROOT_NUMBER, "a"), Err(Fault::NotEmpty)));
    assert!(matches!(files.remove(ROOT_NUMBER, "a"), Err(Fault::IsDirectory)));
    assert!(matches!(files.remove_directory(b, "link"), Err(Fault::NotDirectory)));
    assert!(matches!(files.rename((ROOT_NUMBER, "a"), (b, "c"), false), Err(Fault::Invalid)));
    assert!(matches!(files.create(b, "a/b", &new()), Err(Fault::Invalid)));
    files.rename((a, "b"), (ROOT_NUMBER, "moved"), false).expect("rename");
    assert_eq!(files.target(files.find(b, "link").expect("it").number).expect("a link"), "../x");
    assert_eq!(files.parent(b).expect("a parent"), ROOT_NUMBER);
    let names = |directory| -> Vec<String> {
        files.list(directory, "", 100).expect("a list").into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(ROOT_NUMBER), ["a", "moved"]);
    let new = files.create(a, "new", &new()).expect("new");
    assert_eq!(names(a), ["new"]);
    assert!(matches!(files.remove_directory(ROOT_NUMBER, "a"), Err(Fault::NotEmpty)));
    files.remove(a, "new").expect("remove");
    files.close_writer(&new).expect("close");
    assert_eq!(names(a), [""; 0]);
    files.remove_directory(ROOT_NUMBER, "a").expect("remove");
    assert_eq!(names(ROOT_NUMBER), ["moved"]);
    files.set_note(b, "user.x", Some(b"y"), None).expect("note");
    assert_eq!(files.notes(b).expect("notes"), [("user.x".to_owned(), b"y".to_vec())]);
}

/// Rewriting a little of a large file stores a little, and reads nothing of the rest.
#[test]
fn cost_follows_change() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let mut bytes = Random::new(5).bytes(32 << 20);
    write(&files, "big", &bytes).expect("write");
    let number = files.find(ROOT_NUMBER, "big").expect("it").number;
    let writing = files.open_to_write(number).expect("open");
    for place in [0, 10_000_000, 20_000_001] {
        bytes[place..place + 100].fill(7);
        writing.write_at(&files, place as u64, &[7; 100]).expect("write");
    }
    files.close_writer(&writing).expect("close");
    assert!(read(&files, "big").expect("read") == bytes);
    let state = files.repository().state().expect("state");
    let newest = state.checkpoints().max_by_key(|entry| entry.sequence).expect("a version");
    assert_eq!(newest.tally.new, 3 * 4096, "three pages");
    assert!(newest.written < 64 << 10, "{}", newest.written);
}

/// Staged, so that there is no index: what is found is found beside the version before.
#[test]
fn what_is_written_anew_is_compared_with_what_was_cut_off() {
    let repository = Repository::open_or_create_on(Arc::new(SimFs::new()), Path::new("sim")).expect("open");
    let options = SaveOptions { durability: Durability::Staged, ..SaveOptions::default() };
    let files = Files::open(repository, options, false).expect("files");
    let mut bytes = Random::new(8).bytes(9 << 20);
    write(&files, "f", &bytes).expect("write");
    for (page, length) in [(1, 9 << 20), (2000, 8 << 20), (700, 9 << 20)] {
        bytes.resize(length, 7);
        bytes[page * 4096] ^= 1;
        write(&files, "f", &bytes).expect("write");
        assert!(read(&files, "f").expect("read") == bytes);
        let state = files.repository().state().expect("state");
        let newest = state.checkpoints().max_by_key(|entry| entry.sequence).expect("a version");
        assert!(newest.written < 64 << 10, "{} of {length}", newest.written);
    }
}

/// What is removed is cleared away, what is there stays, and what is open can be read to its end.
#[test]
fn garbage_goes_and_what_is_open_stays() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let bytes = Random::new(9).bytes(3 << 20);
    write(&files, "kept", &bytes).expect("write");
    write(&files, "gone", &Random::new(10).bytes(3 << 20)).expect("write");
    let number = files.find(ROOT_NUMBER, "gone").expect("it").number;
    let opened = files.open_to_read(number).expect("open").expect("a version");
    files.remove(ROOT_NUMBER, "gone").expect("remove");
    assert_eq!(files.entry(number).expect("it is open").links, 0);
    let gc = |files: &Files| {
        let ground = files.repository().ground();
        (0..3).for_each(|_| drop(collect(&ground, true).expect("gc")));
    };
    gc(&files);
    let mut read_back = vec![0; 3 << 20];
    opened.read_at(0, &mut read_back).expect("it is pinned");
    assert!(read_back == Random::new(10).bytes(3 << 20));
    drop(opened);
    files.close_reader(number);
    drop(files);
    let files = files_on(&fs);
    gc(&files);
    assert!(read(&files, "kept").expect("read") == bytes);
    let report = stdchk::verify(
        &files.repository().ground(),
        &files.repository().state().expect("state"),
        None,
        true,
        &|_, _| {},
    );
    assert!(report.expect("verified").checkpoints.iter().all(|report| report.health.is_whole()));
    // Nobody can ask for the versions as if they were an application's.
    assert!(Spec::parse(".files").is_err());
}

#[test]
fn two_who_make_the_same_file_make_two_versions() {
    let fs = Arc::new(SimFs::new());
    let (one, two) = (files_on(&fs), files_on(&fs));
    let (first, second) = (
        one.create(ROOT_NUMBER, "f", &new()).expect("new"),
        two.create(ROOT_NUMBER, "f", &new()).expect("new"),
    );
    first.write_at(&one, 0, b"first").expect("write");
    second.write_at(&two, 0, b"second").expect("write");
    one.close_writer(&first).expect("close");
    two.close_writer(&second).expect("close");
    wait();
    assert_eq!(read(&one, "f").expect("read"), b"second");
    assert_eq!(one.repository().state().expect("state").checkpoints().count(), 2);
    // Removed elsewhere while it is written: nothing comes back.
    let writing = one.open_to_write(one.find(ROOT_NUMBER, "f").expect("it").number).expect("open");
    writing.write_at(&one, 0, b"third").expect("write");
    wait();
    two.remove(ROOT_NUMBER, "f").expect("remove");
    one.close_writer(&writing).expect("nobody wants it");
    wait();
    assert!(matches!(one.find(ROOT_NUMBER, "f"), Err(Fault::Missing)));
}

#[test]
fn who_comes_later_makes_another_version_and_who_goes_on_the_same() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let count = || files.repository().state().expect("state").checkpoints().count();
    let first = files.create(ROOT_NUMBER, "f", &new()).expect("new");
    first.write_at(&files, 0, b"one").expect("write");
    files.flush(&first, 1).expect("flush");
    // The next one opens it before the first is let go.
    let second = files.open_to_write(first.number).expect("open");
    files.close_writer(&first).expect("close");
    second.set_len(&files, 0).expect("cut");
    second.append(&files, b"two").expect("write");
    files.close_writer(&second).expect("close");
    assert_eq!((read(&files, "f").expect("read"), count()), (b"two".to_vec(), 2));
    // A new file that is renamed over one before it is closed, and written on after that.
    let new_one = files.create(ROOT_NUMBER, "g", &new()).expect("new");
    new_one.append(&files, b"three").expect("write");
    files.rename((ROOT_NUMBER, "g"), (ROOT_NUMBER, "f"), false).expect("rename");
    files.flush(&new_one, 1).expect("flush");
    new_one.append(&files, b" and more").expect("write");
    files.close_writer(&new_one).expect("close");
    assert_eq!((read(&files, "f").expect("read"), count()), (b"three and more".to_vec(), 3));
    // One that hides another is removed with it.
    let hiding = files.create(ROOT_NUMBER, "h", &new()).expect("new");
    files.rename((ROOT_NUMBER, "h"), (ROOT_NUMBER, "f"), false).expect("rename");
    files.remove(ROOT_NUMBER, "f").expect("remove");
    files.close_writer(&hiding).expect("close");
    assert!(matches!(files.find(ROOT_NUMBER, "f"), Err(Fault::Missing)));
    assert_eq!(count(), 0);
}

#[test]
fn who_opens_a_file_before_it_is_published_has_it_published() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let one = files.create(ROOT_NUMBER, "f", &new()).expect("new");
    one.append(&files, b"whole").expect("write");
    let other = files.open_to_write(one.number).expect("open");
    other.set_len(&files, 0).expect("cut");
    // The one has closed it, the other one has not: what there is is his, and not whole.
    files.flush(&one, 1).expect("flush");
    files.end_writer(&one, true).expect("close");
    assert!(files.repository().state().expect("state").checkpoints().next().is_none());
    other.append(&files, b"new").expect("write");
    files.flush(&other, 1).expect("flush");
    files.end_writer(&other, true).expect("close");
    assert_eq!(read(&files, "f").expect("read"), b"new");
    assert_eq!(files.repository().state().expect("state").checkpoints().count(), 1);
}

#[test]
fn a_new_file_gets_the_place_that_it_is_moved_to_before_it_is_closed() {
    let fs = Arc::new(SimFs::new());
    for len in [10, 200_000] {
        let files = files_on(&fs);
        let bytes = Random::new(len).bytes(len as usize);
        for there in ["link", "file", "pipe"] {
            match there {
                "link" => drop(files.make_link(ROOT_NUMBER, there, "nowhere", &new())),
                "pipe" => drop(files.make_special(ROOT_NUMBER, there, (Special::Fifo, 0), &new())),
                _ => drop(write(&files, there, b"before")),
            }
            let old = files.find(ROOT_NUMBER, there).expect("it").number;
            let secret = Attributes { mode: Some(0o600), ..new() };
            let writing = files.create(ROOT_NUMBER, "tmp", &secret).expect("new");
            writing.append(&files, &bytes).expect("write");
            files.rename((ROOT_NUMBER, "tmp"), (ROOT_NUMBER, there), false).expect("rename");
            files.close_writer(&writing).expect("close");
            files.gather().expect("all is stored");
            let entry = files.find(ROOT_NUMBER, there).expect("it");
            assert_eq!((entry.mode, entry.number), (0o600, writing.number), "{there}");
            assert!(read(&files, there).expect("read") == bytes, "{there}");
            assert!(matches!(files.entry(old), Err(Fault::Missing)), "{there}");
            files.remove(ROOT_NUMBER, there).expect("remove");
        }
    }
    assert!(files_on(&fs).repository().state().expect("state").checkpoints().next().is_none());
}

#[test]
fn damage_that_a_reader_meets_is_known_from_then_on() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let bytes = Random::new(6).bytes(3 << 20);
    write(&files, "f", &bytes).expect("write");
    let packs = fs.files().into_iter().filter(|(path, _)| path.contains("packs/"));
    let (path, mut pack) = packs.max_by_key(|(_, bytes)| bytes.len()).expect("a pack");
    pack[1 << 20] ^= 1;
    fs.overwrite(&path, pack);
    read(&files, "f").expect_err("it is damaged");
    files.tidy();
    assert!(!files.repository().state().expect("state").damaged().is_empty());
    // What is written in its place is stored, though the same bytes are known.
    write(&files, "f", &bytes).expect("write");
    assert!(read(&files, "f").expect("read") == bytes);
}

#[test]
fn an_open_file_outlives_its_name_until_the_last_one_closes_it() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let bytes = Random::new(4).bytes(5 << 20);
    write(&files, "f", &bytes).expect("write");
    let number = files.find(ROOT_NUMBER, "f").expect("it").number;
    let (one, other) =
        (files.open_to_write(number).expect("open"), files.open_to_write(number).expect("open"));
    one.append(&files, b"more").expect("write");
    files.remove(ROOT_NUMBER, "f").expect("remove");
    files.flush(&one, 1).expect("flush");
    files.close_writer(&one).expect("close");
    assert_eq!(other.len(), bytes.len() as u64 + 4);
    assert!(other.read_at(&files, 0, bytes.len()).expect("read") == bytes);
    assert_eq!(other.read_at(&files, bytes.len() as u64, 10).expect("read"), b"more");
    files.close_writer(&other).expect("close");
    assert!(matches!(files.find(ROOT_NUMBER, "f"), Err(Fault::Missing)));
}

#[test]
fn what_could_not_be_stored_is_said_and_never_replaced_by_zeros() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let good = Random::new(8).bytes(9 << 20);
    write(&files, "f", &good).expect("write");
    let number = files.find(ROOT_NUMBER, "f").expect("it").number;
    // At each step of storing and publishing: two have it open, one closes it and hears of the failure.
    let used: u64 = fs.files().values().map(|bytes| bytes.len() as u64).sum();
    for room in [1u64 << 20, 5 << 20, 8 << 20, (9 << 20) + 3000, (9 << 20) + 200_000] {
        fs.limit_room(used + room);
        let (one, other) =
            (files.open_to_write(number).expect("open"), files.open_to_write(number).expect("open"));
        let wrote = one
            .set_len(&files, 0)
            .and_then(|()| one.append(&files, &Random::new(room).bytes(9 << 20)))
            .and_then(|()| files.flush(&one, 2));
        let closed = files.close_writer(&one);
        fs.limit_room(u64::MAX);
        let went_on = other.write_at(&files, 100 << 20, b"far").and_then(|()| files.close_writer(&other));
        match wrote.is_ok() {
            true => closed.expect("all is there"),
            false => {
                assert!(went_on.is_err(), "who goes on hears of it");
                assert!(read(&files, "f").expect("read") == good, "the version before is there");
            }
        }
        // The next one starts anew.
        write(&files, "f", &good).expect("write");
    }
}

#[test]
fn strange_places_are_no_harm() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let writing = files.create(ROOT_NUMBER, "f", &new()).expect("new");
    writing.write_at(&files, 10, b"x").expect("write");
    for wants_hole in [false, true] {
        assert_eq!(writing.seek(&files, 12, wants_hole).expect("past the end"), 11);
        assert_eq!(writing.seek(&files, u64::MAX, wants_hole).expect("past the end"), 11);
    }
    assert!(matches!(writing.write_at(&files, u64::MAX - 1, b"abc"), Err(Fault::TooLong)));
    assert!(matches!(writing.set_len(&files, 1 << 60), Err(Fault::TooLong)));
    writing.set_len(&files, 1 << 44).expect("mostly nothing");
    writing.write_at(&files, (1 << 44) - 3, b"end").expect("write");
    files.close_writer(&writing).expect("close");
    let opened = files.open_to_read(writing.number).expect("open").expect("a version");
    let mut end = [0; 5];
    opened.read_at((1 << 44) - 5, &mut end).expect("read");
    assert_eq!(&end, b"\0\0end");
    files.close_reader(writing.number);
    let again = files.open_to_write(writing.number).expect("open");
    again.punch(&files, 0..1 << 44).expect("zeros");
}

#[test]
fn a_power_cut_takes_nothing_that_was_closed() {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    write(&files, "a", &[1; 100_000]).expect("write");
    let open = files.create(ROOT_NUMBER, "b", &new()).expect("new");
    open.write_at(&files, 0, &[2; 100_000]).expect("write");
    open.sync(&files).expect("sync");
    let after = Arc::new(fs.fork());
    after.power_cut(&mut Random::new(3));
    let files = files_on(&after);
    assert_eq!(read(&files, "a").expect("read"), [1; 100_000]);
    assert!(matches!(files.find(ROOT_NUMBER, "b"), Err(Fault::Missing)));
    assert_eq!(SaveOptions::default().durability, Durability::Local);
}
