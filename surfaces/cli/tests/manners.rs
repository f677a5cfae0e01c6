//! How the program behaves at its edges: flags that are wrong, output that nobody takes, quiet.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn stdchk(store: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    command.env("STDCHK_STORE", store).args(args);
    command
}

fn run(store: &Path, args: &[&str]) -> Output {
    stdchk(store, args).stdin(Stdio::null()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn flags_that_are_wrong_are_told_as_json_too() {
    let dir = tempfile::tempdir().expect("a folder");
    for args in [
        &["--json", "list", "--nonsense"][..],
        &["save", "--json"],
        &["--json", "policy", "a", "--keep-last", "x"],
    ] {
        let refused = run(dir.path(), args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        let told: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON");
        assert_eq!(told["error"]["kind"], "invalid", "{args:?}");
        assert!(told["error"]["message"].as_str().is_some_and(|message| message.len() > 10), "{args:?}");
        assert!(!refused.stderr.is_empty(), "{args:?}: and for people");
    }
}

#[test]
fn a_session_that_nobody_was_told_of_is_not_left_open() {
    let dir = tempfile::tempdir().expect("a folder");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let begun = stdchk(dir.path(), &["begin", "melt", "--step", "1"]).stdout(full).output().expect("starts");
    assert_eq!(begun.status.code(), Some(1), "{}", text(&begun.stderr));
    assert!(text(&begun.stderr).contains("cannot write to standard output"));
    let sessions = run(dir.path(), &["--json", "sessions"]);
    assert_eq!(text(&sessions.stdout), "");
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("store");
    let file = dir.path().join("state");
    std::fs::write(&file, vec![7; 4 << 20]).expect("a file");
    assert!(run(&store, &["save", "melt", file.to_str().expect("text"), "--step", "1"]).status.success());
    let mut cat = stdchk(&store, &["cat", "melt:state"]).stdout(Stdio::piped()).spawn().expect("starts");
    drop(cat.stdout.take());
    let status = cat.wait().expect("ends");
    assert!(status.success() || status.code() == Some(141), "{status}");
}

#[test]
fn quiet_says_nothing_of_success_and_everything_that_was_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("store");
    let file = dir.path().join("state");
    std::fs::write(&file, b"a state").expect("a file");
    let (file, to) = (file.to_str().expect("text"), dir.path().join("to"));
    for args in [
        &["-q", "save", "melt", file, "--step", "1"][..],
        &["-q", "save", "melt", file, "--step", "2"],
        &["-q", "restore", "melt", "--to", to.to_str().expect("text")],
        &["-q", "policy", "melt", "--keep-last", "2"],
        &["-q", "forget", "melt@1"],
        &["-q", "gc"],
    ] {
        let done = run(&store, args);
        assert!(done.status.success(), "{args:?}");
        assert_eq!((text(&done.stdout), text(&done.stderr)), ("", ""), "{args:?}");
    }
    assert_eq!(text(&run(&store, &["-q", "latest", "melt"]).stdout), "2\n");
    assert!(text(&run(&store, &["-q", "list"]).stdout).contains("melt"));
    let missing = run(&store, &["-q", "show", "melt@7"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(!missing.stderr.is_empty(), "errors are told");
}
