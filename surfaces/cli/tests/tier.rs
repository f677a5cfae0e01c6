//! Safe storage behind a pool of real processes: a directory, and a bucket of a server that speaks S3.

mod pools;

use std::process::Command;
use std::time::Duration;

use pools::{Pool, Process, exit_code, state};
use stdchk_kit::S3Server;

/// The same commands on what a pool was drained to, with no pool.
fn safe(pool: &Pool, place: &str, args: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    command.env("STDCHK_STORE", place).env_remove("STDCHK_POOL_KEY").env_remove("STDCHK_LOG");
    command.envs(pool.environment.iter().map(|(name, value)| (name, value)));
    command.args(args).output().expect("the binary starts")
}

fn succeed(pool: &Pool, place: &str, args: &[&str]) -> Vec<u8> {
    let output = safe(pool, place, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Everything is killed again and again while it drains; it all arrives, and can be read from the pool, from a mix, and from there alone.
fn drains(mut pool: Pool, place: &str) {
    let mut lenders = pool.lenders(3);
    pool.succeed(&["pool", "tier", "--drain", place]);
    for step in 1..=3 {
        let saved = pool.save(step).output();
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    }
    let folders: Vec<String> =
        (0..3).map(|at| pool.path(&format!("lent{at}")).to_str().expect("text").to_owned()).collect();
    lenders.extend(
        folders
            .iter()
            .enumerate()
            .map(|(at, folder)| pool.join(10 + at, &["--disk", folder, "--size", "1GiB"])),
    );
    lenders.drain(..3).for_each(|lender| assert!(lender.end(), "it gives everything to the folders"));
    // All are killed in the middle of it, and come back with what they had.
    for pause in [300, 900] {
        std::thread::sleep(Duration::from_millis(pause));
        lenders.drain(..).for_each(Process::kill);
        pool.manager.take().expect("a manager").kill();
        pool.manage();
        lenders.extend(
            folders
                .iter()
                .enumerate()
                .map(|(at, folder)| pool.join(10 + at, &["--disk", folder, "--size", "1GiB"])),
        );
    }
    for step in 1..=3 {
        pool.succeed(&["wait", &format!("melt@{step}"), "--for", "drained", "--patience", "60s"]);
    }
    let saved = pool.run(&[
        "save",
        "other",
        pool.path("state.bin").to_str().expect("text"),
        "--step",
        "1",
        "--durability",
        "drained",
    ]);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    assert!(pool.succeed(&["pool", "tier"]).contains("4 of 4 checkpoints drained"));
    assert!(pool.succeed(&["list", "melt", "--json"]).contains("\"durability\":\"drained\""));
    assert_eq!(pool.check_all(), [1, 2, 3]);
    // From there alone, as long as there is a pool it cannot be written.
    for step in 1..=3 {
        assert!(succeed(&pool, place, &["cat", &format!("melt@{step}:state.bin")]) == state(step));
    }
    succeed(&pool, place, &["verify"]);
    assert_eq!(exit_code(&safe(&pool, place, &["forget", "melt@1"])), 10);
    // What is dropped in the pool is dropped there.
    pool.succeed(&["forget", "melt@1"]);
    let is_gone = |_| {
        pool.succeed(&["gc"]);
        let verified = String::from_utf8(succeed(&pool, place, &["verify", "--json"])).expect("text");
        std::thread::sleep(Duration::from_millis(100));
        verified.contains("\"unreferenced_packs\":0")
    };
    // Collecting waits for sessions that were open before, such as those of benefactors who drain.
    assert!((0..50).any(is_gone), "what was dropped stays there");
    assert_eq!(exit_code(&safe(&pool, place, &["show", "melt@1"])), 4);
    // A mix: of three who have one copy of each pack, one is lost.
    lenders.remove(0).kill();
    assert_eq!(pool.check_all(), [2, 3]);
    lenders.drain(..).for_each(Process::kill);
    assert_eq!(pool.check_all(), [2, 3], "all benefactors are lost");
    pool.manager.take().expect("a manager").kill();
    for step in 2..=3 {
        assert!(succeed(&pool, place, &["cat", &format!("melt@{step}:state.bin")]) == state(step));
    }
    succeed(&pool, place, &["pool", "tier", "--release", place]);
    let file = pool.path("state.bin");
    succeed(&pool, place, &["save", "melt", file.to_str().expect("text"), "--step", "9"]);
    succeed(&pool, place, &["gc"]);
    succeed(&pool, place, &["verify"]);
}

#[test]
fn a_pool_is_drained_to_a_directory() {
    let pool = Pool::start(&[]);
    let place = pool.path("safe").to_str().expect("text").to_owned();
    drains(pool, &place);
}

#[test]
fn a_pool_is_drained_to_a_bucket() {
    let server = S3Server::start();
    let pool = Pool::start_in(&["--erasure", "1+1"], server.environment().into());
    drains(pool, &server.url("lab/safe"));
}

#[test]
fn a_bucket_is_a_repository() {
    let server = S3Server::start();
    let pool = Pool::start_in(&[], server.environment().into());
    let place = server.url("plain");
    assert_eq!(exit_code(&safe(&pool, &place, &["list"])), 4, "there is none yet");
    let file = pool.path("state.bin");
    for step in 1..=2 {
        std::fs::write(&file, state(step)).expect("a file");
        succeed(&pool, &place, &["save", "melt", file.to_str().expect("text"), "--step", &step.to_string()]);
    }
    for step in 1..=2 {
        assert!(succeed(&pool, &place, &["cat", &format!("melt@{step}:state.bin")]) == state(step));
    }
    succeed(&pool, &place, &["forget", "melt@1"]);
    succeed(&pool, &place, &["gc"]);
    succeed(&pool, &place, &["verify"]);
    // A pool is not drained to what holds something else.
    let refused = pool.run(&["pool", "tier", "--drain", &place]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a repository of its own"));
}

#[test]
fn another_place_has_nothing_at_first() {
    let pool = Pool::start(&[]);
    let _lenders = pool.lenders(1);
    let place = |name: &str| pool.path(name).to_str().expect("text").to_owned();
    let level = || pool.succeed(&["list", "melt", "--json"]);
    pool.succeed(&["pool", "tier", "--drain", &place("one")]);
    assert!(pool.save(1).output().status.success());
    pool.succeed(&["wait", "melt", "--for", "drained", "--patience", "60s"]);
    // The same place again is no other one.
    pool.succeed(&["pool", "tier", "--drain", &place("one")]);
    assert!(level().contains("\"durability\":\"drained\""));
    // What drains looks for a new place now and then: at first it has nothing.
    pool.succeed(&["pool", "tier", "--drain", &place("two")]);
    if !pool.succeed(&["pool", "tier"]).starts_with("1 of 1") {
        assert!(level().contains("\"durability\":\"replicated\""));
    }
    pool.succeed(&["wait", "melt", "--for", "drained", "--patience", "60s"]);
    assert!(level().contains("\"durability\":\"drained\""));
}
