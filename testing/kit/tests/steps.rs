//! Files of a step that become a checkpoint, without the kernel.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use stdchk::files::{Attributes, Files, NODES, Outcome, ROOT_NUMBER};
use stdchk::{Repository, SaveOptions, Spec};
use stdchk_kit::{Fault, SimFs};

fn repository_on(fs: &Arc<SimFs>) -> Repository {
    Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open")
}

fn files_on(fs: &Arc<SimFs>) -> Files {
    let options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    Files::open(repository_on(fs), options, false).expect("files")
}

/// Longer than what is known of names may be old.
fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

/// A mount with a directory in which two nodes write a step.
fn melt() -> (Arc<SimFs>, Files, u64) {
    let fs = Arc::new(SimFs::new());
    let files = files_on(&fs);
    let directory = files.make_directory(ROOT_NUMBER, "run", &Attributes::default()).expect("new").number;
    files.set_note(directory, NODES, Some(b"2"), None).expect("note");
    (fs, files, directory)
}

fn write(files: &Files, directory: u64, name: &str) -> Outcome<()> {
    let writing = match files.find(directory, name) {
        Ok(entry) => files.open_to_write(entry.number)?,
        Err(_) => {
            files.create(directory, name, &Attributes { mode: Some(0o644), ..Attributes::default() })?
        }
    };
    writing.write_at(files, 0, name.as_bytes())?;
    files.close_writer(&writing)
}

fn write_step(files: &Files, directory: u64, step: u64) -> Outcome<()> {
    (0..2).try_for_each(|node| write(files, directory, &format!("melt.N{node}.T{step}")))
}

/// The checkpoints of the steps, in commit order.
fn checkpoints(repository: &Repository) -> Vec<String> {
    let state = repository.state().expect("state");
    let Ok(mut found) = Spec::parse("melt").expect("a name").find(&state) else { return Vec::new() };
    found.reverse();
    found.into_iter().map(|entry| entry.id().to_string()).collect()
}

fn has_version(repository: &Repository, directory: u64, name: &str) -> bool {
    let state = repository.state().expect("state");
    state.tree().find(directory, name).is_some_and(|node| !node.versions().is_empty())
}

fn forget(files: &Files, name: &str) {
    let state = files.repository().state().expect("state");
    let ids: Vec<_> =
        Spec::parse(name).expect("a name").find(&state).expect("there").iter().map(|e| e.id()).collect();
    files.repository().forget(&ids).expect("forgotten");
}

/// Wherever the process of a mount ends, a step whose files have versions is complete when it is there again.
#[test]
fn a_step_is_complete_whenever_the_mount_died() {
    let (fs, files, directory) = melt();
    drop(files);
    let counted = Arc::new(fs.fork());
    let files = files_on(&counted);
    let before = counted.steps();
    write_step(&files, directory, 7).expect("written");
    let steps = counted.steps() - before;
    let mut left = 0;
    for step in 1..=steps {
        let dying = Arc::new(fs.fork());
        let files = files_on(&dying);
        dying.plan(dying.steps() + step, Fault::Stop);
        let told = write_step(&files, directory, 7);
        let there = Arc::new(dying.fork());
        std::mem::forget(files);
        let repository = repository_on(&there);
        let all_closed =
            ["melt.N0.T7", "melt.N1.T7"].iter().all(|name| has_version(&repository, directory, name));
        left += usize::from(all_closed && checkpoints(&repository).is_empty());
        let files = files_on(&there);
        let found = checkpoints(files.repository());
        assert_eq!(found == ["melt@7"], all_closed, "{step} of {steps}: {found:?}");
        assert!(all_closed || told.is_err(), "{step} of {steps}");
    }
    assert!(left > 2, "it was never left to the next mount");
}

/// Makes each step fail once that closing the last file of a step takes: what `later` does on another mount, or on the same one, makes it complete if
/// the file has its version and the list of files was not made.
fn when_the_list_fails(later: impl Fn(Files, &Files)) {
    let (fs, files, directory) = melt();
    write(&files, directory, "melt.N0.T1").expect("written");
    drop(files);
    let mut left = 0;
    for step in 1.. {
        let fs = Arc::new(fs.fork());
        let (files, other) = (files_on(&fs), files_on(&fs));
        other.keep_up().expect("it knows this one");
        let before = fs.steps();
        fs.plan(before + step, Fault::Error(ErrorKind::StorageFull));
        let told = write(&files, directory, "melt.N1.T1");
        if fs.steps() < before + step {
            told.expect("nothing failed");
            break;
        }
        let has_version = has_version(other.repository(), directory, "melt.N1.T1");
        if has_version && checkpoints(files.repository()).is_empty() {
            left += 1;
            assert!(told.is_err(), "{step}");
            later(files, &other);
            assert_eq!(checkpoints(other.repository()), ["melt@1"], "{step}");
        }
    }
    assert!(left > 2, "it never failed");
}

#[test]
fn a_step_is_complete_when_the_store_can_be_written_again() {
    when_the_list_fails(|files, _| files.tidy());
}

#[test]
fn a_step_is_complete_when_another_mount_is_gone() {
    when_the_list_fails(|files, other| {
        drop(files);
        wait();
        other.keep_up().expect("it sees that this one is gone");
        other.tidy();
    });
}

/// What was dropped does not come back because its files are still there, also not the newest step, or all.
#[test]
fn what_was_forgotten_stays_so() {
    let (fs, files, directory) = melt();
    for step in 1..=4 {
        write_step(&files, directory, step).expect("written");
    }
    assert_eq!(checkpoints(files.repository()), ["melt@1", "melt@2", "melt@3", "melt@4"]);
    forget(&files, "melt@2");
    forget(&files, "melt@4");
    let files = files_on(&fs);
    assert_eq!(checkpoints(files.repository()), ["melt@1", "melt@3"]);
    // A file that one node writes again does not make a step of what the other one wrote before.
    write(&files, directory, "melt.N1.T4").expect("written");
    assert_eq!(checkpoints(files.repository()), ["melt@1", "melt@3"]);
    write(&files, directory, "melt.N0.T4").expect("written");
    assert_eq!(checkpoints(files.repository()), ["melt@1", "melt@3", "melt@4"]);
    forget(&files, "melt");
    let files = files_on(&fs);
    assert_eq!(checkpoints(files.repository()), [""; 0]);
    // Unless somebody says that it counts.
    files.complete_all(directory).expect("said");
    assert_eq!(checkpoints(files.repository()), ["melt@1", "melt@2", "melt@3", "melt@4"]);
}

/// Steps of which the later one is complete first are both complete.
#[test]
fn steps_may_overtake_each_other() {
    let (_fs, files, directory) = melt();
    write(&files, directory, "melt.N0.T1").expect("written");
    write_step(&files, directory, 2).expect("written");
    write(&files, directory, "melt.N1.T1").expect("written");
    assert_eq!(checkpoints(files.repository()), ["melt@2", "melt@1"]);
}

/// Programs write a file under another name, and rename it.
#[test]
fn the_last_rename_completes_a_step() {
    let (_fs, files, directory) = melt();
    for generation in 1..=2 {
        for node in 0..2 {
            write(&files, directory, "new").expect("written");
            let name = format!("melt.N{node}.T5");
            files.rename((directory, "new"), (directory, &name), false).expect("renamed");
            assert_eq!(checkpoints(files.repository()).len(), generation - 1 + node, "{generation}");
        }
    }
    assert_eq!(checkpoints(files.repository()), ["melt@5", "melt@5.2"]);
}

/// How many nodes there are may be said when their files are there already.
#[test]
fn steps_are_complete_when_the_note_says_so() {
    let (_fs, files, directory) = melt();
    files.set_note(directory, NODES, Some(b"3"), None).expect("note");
    write_step(&files, directory, 1).expect("written");
    assert_eq!(checkpoints(files.repository()), [""; 0]);
    files.set_note(directory, NODES, Some(b"2"), None).expect("note");
    files.tidy();
    assert_eq!(checkpoints(files.repository()), ["melt@1"]);
}

/// A step whose list cannot be made does not keep others waiting, nor is it tried all the time.
#[test]
fn a_step_that_cannot_be_complete_stays_alone() {
    let (fs, files, directory) = melt();
    files.set_note(directory, NODES, Some(b"3"), None).expect("note");
    let packs = |fs: &SimFs| -> BTreeSet<String> {
        fs.files().into_keys().filter(|path| path.starts_with("packs/")).collect()
    };
    let before = packs(&fs);
    write_step(&files, directory, 1).expect("written");
    let lost: Vec<String> = packs(&fs).difference(&before).cloned().collect();
    assert!(!lost.is_empty());
    write_step(&files, directory, 2).expect("written");
    drop(files);
    lost.iter().for_each(|path| fs.remove(path));
    let files = files_on(&fs);
    files.set_note(directory, NODES, Some(b"2"), None).expect("note");
    files.tidy();
    assert_eq!(checkpoints(files.repository()), ["melt@2"]);
    // It was tried just now.
    let steps = fs.steps();
    files.tidy();
    assert_eq!(fs.steps(), steps);
    write_step(&files, directory, 3).expect("written");
    assert_eq!(checkpoints(files.repository()), ["melt@2", "melt@3"]);
}
