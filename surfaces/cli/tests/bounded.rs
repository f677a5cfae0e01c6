//! Memory stays within bounds whatever the input, and a large repository costs a small save little.
//!
//! `make test` runs a sample; with STDCHK_TEST_LONG it is 8 GiB of input and ten million chunks.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// What a save, restore or verify may hold at most, with the default budget of 256 MiB.
const PEAK_MIB_MAX: u64 = 400;

fn long() -> bool {
    std::env::var_os("STDCHK_TEST_LONG").is_some()
}

fn stdchk(store: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    command.env("STDCHK_STORE", store).args(args);
    command
}

/// A number from a file of the child in /proc.
fn proc_number(child: &Child, file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

struct Measured {
    peak_mib: u64,
    read_bytes: u64,
    time: Duration,
}

/// Waits for a child, looking at it all the while.
fn watch(mut child: Child) -> Measured {
    let begun = Instant::now();
    let (mut peak, mut read) = (0, 0);
    let status = loop {
        peak = peak.max(proc_number(&child, "status", "VmHWM:").unwrap_or(0));
        read = read.max(proc_number(&child, "io", "rchar:").unwrap_or(0));
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_micros(300)),
        }
    };
    assert!(status.success(), "{status}");
    Measured { peak_mib: peak / 1024, read_bytes: read, time: begun.elapsed() }
}

/// Pipes `mib` of noise, no page of it twice, into a save.
fn save_noise(store: &Path, mib: u64, step: u64, args: &[&str]) -> Measured {
    let step = step.to_string();
    let mut args: Vec<&str> = args.to_vec();
    args.extend(["save", "big", "-", "--step", &step]);
    let mut command = stdchk(store, &args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary starts");
    let mut input = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut block = vec![0u8; MIB as usize];
        for _ in 0..mib {
            for eight in block.chunks_exact_mut(8) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                eight.copy_from_slice(&x.to_le_bytes());
            }
            input.write_all(&block).expect("the save reads its input");
        }
    });
    let measured = watch(child);
    writer.join().expect("the writer ends");
    measured
}

#[test]
fn memory_stays_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("store");
    let mib = if long() { 8192 } else { 1024 };
    let saved = save_noise(&store, mib, 1, &["--quiet"]);
    assert!(saved.peak_mib < PEAK_MIB_MAX, "a save of {mib} MiB took {} MiB", saved.peak_mib);
    let target = dir.path().join("restored");
    let target = target.to_str().expect("text");
    for args in [&["restore", "big", "--to", target][..], &["verify"], &["gc"]] {
        let child = stdchk(&store, args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        let peak = watch(child).peak_mib;
        assert!(peak < PEAK_MIB_MAX, "{args:?} took {peak} MiB");
    }
    let smaller = dir.path().join("smaller");
    let saved = save_noise(&smaller, 256, 1, &["--memory", "64MiB", "--quiet"]);
    assert!(saved.peak_mib < 128, "with a budget of 64 MiB a save took {} MiB", saved.peak_mib);
}

#[test]
fn a_large_repository_costs_a_small_save_little() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("store");
    // Pages of 512 bytes: two chunks for each KiB.
    let mib = if long() { 5120 } else { 256 };
    let options = ["--quiet", "--chunking", "page:512", "--durability", "staged"];
    let (before, after) = options.split_at(1);
    let mut args: Vec<&str> = before.to_vec();
    args.extend(["save", "big", "-", "--step", "1"]);
    args.extend(after);
    let mut child =
        stdchk(&store, &args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut x = 1u64;
    let mut block = vec![0u8; MIB as usize];
    for _ in 0..mib {
        for eight in block.chunks_exact_mut(8) {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            eight.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes());
        }
        input.write_all(&block).expect("the save reads its input");
    }
    drop(input);
    watch(child);
    let index: u64 = std::fs::read_dir(store.join("index"))
        .expect("an index")
        .map(|entry| entry.expect("an entry").metadata().expect("metadata").len())
        .sum();

    let child = stdchk(&store, &["list"]).stdout(Stdio::null()).spawn().expect("starts");
    let listed = watch(child);
    assert!(listed.time < Duration::from_secs(1), "listing took {:?}", listed.time);

    std::fs::write(dir.path().join("small"), vec![7u8; 100_000]).expect("a file");
    let small = dir.path().join("small");
    let args = ["save", "other", small.to_str().expect("text"), "--step", "1"];
    let child = stdchk(&store, &args).stdout(Stdio::null()).spawn().expect("starts");
    let saved = watch(child);
    assert!(saved.time < Duration::from_secs(2), "a small save took {:?}", saved.time);
    assert!(
        saved.read_bytes < 2 * MIB + index / 10,
        "{} bytes read, the index has {index}",
        saved.read_bytes
    );
}
