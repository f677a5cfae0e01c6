//! What is saved from, and restored to, a tree of files.

use stdchk::{Body, Kind, Repository, SCRIPT_LEASE, SaveOptions, Spec};

use crate::{app, options, repository, save};

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
