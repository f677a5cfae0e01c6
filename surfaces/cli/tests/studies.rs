//! Studies that do not get to their end, and those nobody listens to.

use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_study_that_is_interrupted_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["one", "two"] {
        std::fs::File::create(path(name)).and_then(|file| file.set_len(16 << 30)).expect("a file");
    }
    std::fs::create_dir(path("scratch")).expect("a folder");
    let saved = || std::fs::read_dir(path("scratch")).expect("a folder").count();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
        command.args(["study", "similarity", "--limit", "16GiB", "--scratch"]).arg(path("scratch"));
        command.args([path("one"), path("two")]).stdout(Stdio::null());
        let mut study = command.spawn().expect("stdchk starts");
        while saved() == 0 {
            assert_eq!(study.try_wait().expect("its state"), None, "it was over before it was stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = study.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().expect("kill runs").success());
        assert_eq!(study.wait().expect("it ends").code(), Some(code));
        assert_eq!(saved(), 0);
    }
}

#[test]
fn who_does_not_listen_to_messages_still_gets_data() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("state"), vec![7; 100_000]).expect("a file");
    let script = format!(
        "exec 3> >(true); sleep 0.2; {} study compression state --write-policy melt 2>&3; echo $?",
        env!("CARGO_BIN_EXE_stdchk")
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(folder.path()).env("STDCHK_STORE", folder.path().join("store"));
    let out = String::from_utf8(shell.output().expect("bash runs").stdout).expect("text");
    assert!(out.starts_with("COMPRESSOR") && out.ends_with("\n0\n"), "{out}");
}
