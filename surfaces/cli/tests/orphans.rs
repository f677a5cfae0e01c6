//! Savers that are killed at every step leave nothing behind.

mod pools;

use std::process::{Command, Stdio};

use pools::{Pool, Process, state};

/// A save that is killed when one of its threads sends for the n-th time; whether it got through before.
fn killed_at(pool: &Pool, step: u64, sending: usize) -> bool {
    std::fs::write(pool.path("state.bin"), &state(step)[..3 << 20]).expect("a file");
    let save = pool.command();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=writev,sendto", "-o", "/dev/null", "-e"]);
    command.arg(format!("inject=writev,sendto:signal=KILL:when={sending}"));
    command.arg(save.get_program());
    command.envs(save.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["save", "melt", "--step", &step.to_string()]).arg(pool.path("state.bin"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("strace starts").success()
}

fn can_trace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Packs with each of the benefactors.
fn packs(lenders: &[Process]) -> Vec<u64> {
    lenders.iter().map(|lender| lender.metric("stdchk_packs{medium=\"memory\"}")).collect()
}

fn orphans(class: &'static [&'static str]) {
    if !can_trace() {
        eprintln!("not tested: strace does not work here");
        return;
    }
    let pool = Pool::start(class);
    let lend = ["--memory", "512MiB", "--metrics", "127.0.0.1:0"];
    let lenders: Vec<Process> = (0..4).map(|domain| pool.join(domain, &lend)).collect();
    let mut committed = Vec::new();
    let (mut sending, mut left) = (1, 0);
    loop {
        let step = sending as u64;
        let done = killed_at(&pool, step, sending);
        left = packs(&lenders).iter().sum::<u64>().max(left);
        let listed = pool.run(&["list", "melt", "--json"]);
        let name = format!("\"step\":{step},");
        let is_there = String::from_utf8_lossy(&listed.stdout).contains(&name);
        assert!(is_there || !done, "step {step} was committed, and is not there");
        if is_there {
            let output = pool.run(&["cat", &format!("melt@{step}:state.bin")]);
            assert!(output.stdout == state(step)[..3 << 20], "step {step}: wrong bytes");
            committed.push(step);
        }
        if done {
            break;
        }
        sending += 1;
        assert!(sending < 200, "a save sends as often as that?");
    }
    eprintln!("killed at {} places; committed all the same: {committed:?}", sending - 1);
    assert!(sending > 8 && left > 0, "killed at {sending} places, with {left} packs at most");
    // What the committed ones need stays, and nothing else; then nothing at all.
    let collect = |_| drop(pool.succeed(&["gc"]));
    (0..3).for_each(collect);
    pool.succeed(&["verify"]);
    for step in &committed {
        let output = pool.run(&["cat", &format!("melt@{step}:state.bin")]);
        assert!(output.stdout == state(*step)[..3 << 20], "step {step}: wrong bytes");
    }
    pool.succeed(&["forget", "melt", "--all"]);
    (0..3).for_each(collect);
    assert_eq!(packs(&lenders), [0; 4], "packs that nobody needs");
}

#[test]
fn a_saver_that_is_killed_at_any_step_leaves_nothing() {
    orphans(&["--replicas", "2"]);
}

#[test]
fn nor_does_one_where_packs_become_shards() {
    orphans(&["--erasure", "2+1"]);
}
