//! The real binary on a real file system: many processes at once, and processes killed at any moment.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn stdchk(store: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    command.env("STDCHK_STORE", store).env_remove("STDCHK_LOG").args(["--memory", "64MiB"]);
    command
}

fn run(store: &Path, args: &[&str]) -> Output {
    stdchk(store).args(args).output().expect("the binary starts")
}

fn succeed(store: &Path, args: &[&str]) -> String {
    let output = run(store, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Bytes that depend on the seed and share pages with those of other seeds, as versions of one state do.
fn state(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(400_000);
    for page in 0..100u64 {
        let version = if (page * 7 + seed).is_multiple_of(5) { seed } else { 0 };
        let mut x = (page << 20) ^ (version << 3) ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..512 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            bytes.extend_from_slice(&x.to_le_bytes());
        }
    }
    bytes
}

fn long() -> bool {
    std::env::var_os("STDCHK_TEST_LONG").is_some()
}

/// Every checkpoint that is listed reads back as the state of its step.
fn check_all(store: &Path) -> usize {
    let mut count = 0;
    for line in succeed(store, &["list", "--json"]).lines() {
        let app = line.split('"').nth(3).expect("the application's name").to_owned();
        for line in succeed(store, &["list", &app, "--json"]).lines() {
            let field = |name: &str| {
                let rest = line.split(&format!("\"{name}\":")).nth(1).expect("a field");
                rest.trim_start_matches('"').split(['"', ',']).next().expect("a value").to_owned()
            };
            let step: u64 = field("step").parse().expect("a step");
            let output = run(store, &["cat", &format!("{}:state", field("checkpoint"))]);
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == state(step), "{line}: wrong bytes");
            count += 1;
        }
    }
    count
}

/// Nothing is left that nothing needs.
fn check_clean(store: &Path) {
    succeed(store, &["gc"]);
    succeed(store, &["gc"]);
    let gc = succeed(store, &["gc", "--json"]);
    assert!(gc.contains("\"waiting\":{\"packs\":0,"), "{gc}");
    let live: u64 =
        gc.split("\"live\":{\"packs\":").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let mut packs = 0;
    for folder in std::fs::read_dir(store.join("packs")).unwrap() {
        packs += std::fs::read_dir(folder.unwrap().path()).unwrap().count() as u64;
    }
    assert_eq!(packs, live, "packs are left that nothing needs");
    let index = std::fs::read_dir(store.join("index")).unwrap();
    let index: u64 = index.map(|segment| segment.unwrap().metadata().unwrap().len()).sum();
    assert!(index < 1 << 20, "the fingerprint index has grown to {index} bytes");
    let sessions = succeed(store, &["sessions", "--json"]);
    assert_eq!(sessions, "", "sessions are left open");
    let verify = run(store, &["verify"]);
    assert!(verify.status.success(), "{}", String::from_utf8_lossy(&verify.stdout));
}

#[test]
fn sixteen_processes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, files) = (dir.path().join("store"), dir.path().join("files"));
    std::fs::create_dir(&files).unwrap();
    let time = Duration::from_secs(if long() { 60 } else { 10 });
    let until = Instant::now() + time;
    let (store, files) = (&store, &files);
    let work = |worker: u64| {
        let mut round = 0u64;
        while Instant::now() < until {
            round += 1;
            let step = worker * 1000 + round;
            let app = format!("app{}", worker % 4);
            match worker {
                0..10 => {
                    let folder = files.join(format!("{worker}"));
                    std::fs::create_dir_all(&folder).unwrap();
                    std::fs::write(folder.join("state"), state(step)).unwrap();
                    let output = stdchk(store)
                        .current_dir(&folder)
                        .args(["save", &app, "state", "--step", &step.to_string()])
                        .output()
                        .unwrap();
                    assert!(output.status.success(), "save: {}", String::from_utf8_lossy(&output.stderr));
                }
                10..12 => {
                    let to = files.join(format!("restored-{worker}-{round}"));
                    let output = run(store, &["restore", &app, "--to", to.to_str().unwrap(), "--json"]);
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    if output.status.success() {
                        let step: u64 = text
                            .split("\"step\":")
                            .nth(1)
                            .unwrap()
                            .split(',')
                            .next()
                            .unwrap()
                            .parse()
                            .unwrap();
                        assert!(
                            std::fs::read(to.join("state")).unwrap() == state(step),
                            "wrong bytes restored"
                        );
                    } else {
                        // Before the first save of that application.
                        assert_eq!(output.status.code(), Some(4), "{text}");
                    }
                    let _ = std::fs::remove_dir_all(&to);
                }
                12 => {
                    for i in 0..4 {
                        let policy = run(store, &["policy", &format!("app{i}"), "--keep-last", "3"]);
                        assert!(policy.status.success(), "{}", String::from_utf8_lossy(&policy.stderr));
                    }
                    let prune = run(store, &["prune"]);
                    assert!(prune.status.success(), "{}", String::from_utf8_lossy(&prune.stderr));
                }
                _ => {
                    let gc = run(store, &["gc"]);
                    let text = String::from_utf8_lossy(&gc.stderr).into_owned();
                    // A compaction may give up where others commit all the time; it says so, and nothing is lost.
                    let fine = gc.status.success() || matches!(gc.status.code(), Some(4 | 8));
                    assert!(fine, "gc: {text}");
                }
            }
        }
    };
    std::thread::scope(|scope| (0..16).for_each(|worker| _ = scope.spawn(move || work(worker))));
    let count = check_all(store);
    assert!(count > 0);
    succeed(store, &["prune"]);
    check_clean(store);
    check_all(store);
}

fn spawn(store: &Path, folder: &Path, args: &[&str]) -> std::process::Child {
    stdchk(store)
        .current_dir(folder)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts")
}

#[test]
fn killed_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let (store, folder): (PathBuf, PathBuf) = (dir.path().join("store"), dir.path().join("files"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("state"), state(1)).unwrap();
    let begun = Instant::now();
    let status = spawn(&store, &folder, &["save", "melt", "state", "--step", "1"]).wait().unwrap();
    assert!(status.success());
    let usual = begun.elapsed();
    succeed(&store, &["policy", "melt", "--keep-last", "4"]);
    let rounds = if long() { 500 } else { 60 };
    let mut reported = vec![1u64];
    for round in 2..rounds {
        std::fs::write(folder.join("state"), state(round)).unwrap();
        let step = round.to_string();
        let mut save = spawn(&store, &folder, &["save", "melt", "state", "--step", &step]);
        let mut gc = spawn(&store, &folder, if round % 3 == 0 { &["prune"] } else { &["gc"] });
        // Moments spread over the usual time of a save and a little beyond.
        std::thread::sleep(usual.mul_f64((round * 37 % 120) as f64 / 100.0));
        if round % 4 != 0 {
            let _ = gc.kill();
        }
        let _ = save.kill();
        if save.wait().unwrap().success() {
            reported.push(round);
        }
        let _ = gc.wait();
        let newest: u64 = succeed(&store, &["latest", "melt"]).trim().parse().unwrap();
        let last = *reported.last().unwrap();
        assert!(newest >= last, "step {last} was reported as saved, and {newest} is the newest");
        if newest > last {
            // Committed, and killed before it could say so.
            reported.push(newest);
        }
    }
    check_all(&store);
    check_clean(&store);
    check_all(&store);
}
