//! Pools of hosts of which some cannot be reached, are slow, are full, or come back with what they had.

mod pools;

use std::time::{Duration, Instant};

use pools::{Pool, Process, exit_code};
use stdchk_kit::Hosts;

/// What a save may take where somebody cannot be reached.
const PATIENCE: Duration = Duration::from_secs(60);

fn saved(save: Process) -> bool {
    let begun = Instant::now();
    let saved = save.output();
    let said = String::from_utf8_lossy(&saved.stderr).into_owned();
    assert!(saved.status.success() || said.contains("stdchk: "), "a clear error: {said}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    saved.status.success()
}

/// Less than it takes to give one pack to the slow one, and much less than to get it back.
const SLOW: Duration = Duration::from_secs(25);

/// Waits until so many members are heard.
fn until_heard(pool: &Pool, members: usize) {
    let begun = Instant::now();
    loop {
        let status = pool.succeed(&["pool", "status", "--json"]);
        let silent = status.matches("\"state\":\"silent\"").count();
        if silent == 0 && status.matches("\"benefactor\":").count() == members {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{members} wanted: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn lenders(pool: &Pool, hosts: usize, lend: impl Fn(usize) -> Vec<String>) -> Vec<Process> {
    let join = |host| {
        let lend = lend(host);
        pool.join_on(host, &lend.iter().map(String::as_str).collect::<Vec<_>>())
    };
    (1..=hosts).map(join).collect()
}

fn memory(_: usize) -> Vec<String> {
    ["--memory", "512MiB"].map(str::to_owned).into()
}

/// Each lends a folder.
fn folders(pool: &Pool) -> impl Fn(usize) -> Vec<String> {
    let dir = pool.dir.path().to_owned();
    move |host| {
        let folder = dir.join(format!("lent{host}")).to_str().expect("text").to_owned();
        ["--disk", &folder, "--size", "1GiB"].map(str::to_owned).into()
    }
}

#[test]
fn who_is_cut_off_is_done_without_and_comes_back_with_old_data() {
    let pool = Pool::start_on(Hosts::new(4), &["--replicas", "2"]);
    let hosts = pool.hosts.as_ref().expect("hosts");
    let _lenders = lenders(&pool, 4, folders(&pool));
    assert!(saved(pool.save(1)));
    // In the middle of a save; and then for so long that it is lost.
    let save = pool.save(2);
    std::thread::sleep(Duration::from_millis(40));
    hosts.cut(1);
    let second = saved(save);
    until_heard(&pool, 3);
    pool.settle();
    assert!(saved(pool.save(3)));
    let expected: &[u64] = if second { &[1, 2, 3] } else { &[1, 3] };
    assert_eq!(pool.check_all(), expected);
    // While it is away things are forgotten, and cleared away, of which it knows nothing.
    pool.succeed(&["forget", "melt@1"]);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    hosts.mend(1);
    until_heard(&pool, 4);
    pool.settle();
    assert_eq!(pool.check_all(), expected[1..]);
    pool.succeed(&["verify"]);
    // What it brought is not needed, and goes.
    pool.succeed(&["forget", "melt", "--all"]);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    let begun = Instant::now();
    loop {
        let status = pool.succeed(&["pool", "status", "--json"]);
        if status.matches("\"packs\":0").count() == 4 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "packs that nobody needs: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A benefactor that should see to copies, and says nothing any more, is not waited for as long as copies may take.
#[test]
fn who_falls_silent_while_it_makes_packs_safe_is_given_up() {
    let pool = Pool::start(&["--replicas", "2"]);
    let folder = pool.path("lent");
    let folder_text = folder.to_str().expect("text");
    let keeper = pool.join(1, &["--disk", folder_text, "--size", "1GiB"]);
    let taker = pool.join(2, &["--memory", "512MiB"]);
    taker.signal("-STOP");
    let save = pool.save(1);
    let begun = Instant::now();
    // All has come, and cannot be copied: whoever saves waits for this one.
    while bytes_below(&folder) < 24 << 20 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    keeper.signal("-STOP");
    assert!(!saved(save), "nobody has it");
    [&keeper, &taker].into_iter().for_each(|lender| lender.signal("-CONT"));
    assert!(saved(pool.save(2)));
    assert_eq!(pool.check_all(), [2]);
}

#[test]
fn two_benefactors_that_do_not_hear_each_other() {
    let pool = Pool::start_on(Hosts::new(4), &["--replicas", "2"]);
    let hosts = pool.hosts.as_ref().expect("hosts");
    let _lenders = lenders(&pool, 4, memory);
    if !hosts.part(1, 2) {
        eprintln!("not tested: network namespaces are not allowed here");
        return;
    }
    for step in 1..=3 {
        assert!(saved(pool.save(step)));
    }
    assert_eq!(pool.check_all(), [1, 2, 3]);
    pool.succeed(&["verify"]);
}

#[test]
fn who_cannot_reach_the_manager_is_told_so_and_may_try_again() {
    let pool = Pool::start_on(Hosts::new(4), &["--replicas", "2"]);
    let hosts = pool.hosts.as_ref().expect("hosts");
    let _lenders = lenders(&pool, 3, memory);
    let from_afar = |step: u64| {
        std::fs::write(pool.path("state.bin"), pools::state(step)).expect("a file");
        let mut command = pool.command_on(4);
        command.args(["save", "melt", "--step", &step.to_string()]).arg(pool.path("state.bin"));
        let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
        let process = Process { child: child.expect("the binary starts"), said: String::new() };
        hosts.runs(4, process.child.id());
        process
    };
    assert!(saved(from_afar(1)));
    for after in [20, 90, 150] {
        let save = from_afar(2);
        std::thread::sleep(Duration::from_millis(after));
        hosts.cut(4);
        std::thread::sleep(Duration::from_secs(2));
        hosts.mend(4);
        let committed = saved(save);
        let listed = pool.check_all();
        // Whoever was told that it is there can rely on it.
        assert!(listed == [1, 2] || !committed && listed == [1], "{committed} {listed:?}");
        if listed.len() == 2 {
            pool.succeed(&["forget", "melt@2"]);
        }
    }
    assert!(saved(from_afar(3)));
    assert_eq!(pool.check_all(), [1, 3]);
}

/// Both where hosts have networks of their own, and where only the way to one is slow.
fn slow_hosts(count: usize) -> [Hosts; 2] {
    [Hosts::new(count), Hosts::on_loopback(count)]
}

/// Slows the first host down; of two ways one always works.
fn slow(pool: &Pool, bytes: u64) -> bool {
    let hosts = pool.hosts.as_ref().expect("hosts");
    let is_slow = hosts.slow(1, bytes);
    assert!(is_slow || hosts.are_apart());
    is_slow
}

#[test]
fn a_slow_benefactor_holds_nobody_up_for_long() {
    for hosts in slow_hosts(5) {
        let pool = Pool::start_on(hosts, &["--replicas", "2"]);
        let _lenders = lenders(&pool, 5, memory);
        if !slow(&pool, 256 << 10) {
            eprintln!("tested with a proxy only: this kernel cannot slow a network down");
            continue;
        }
        for step in 1..=3 {
            let begun = Instant::now();
            assert!(saved(pool.save(step)));
            assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
        }
        assert_eq!(pool.check_all(), [1, 2, 3]);
    }
}

#[test]
fn nobody_is_faster_than_the_slow_one_who_is_alone() {
    for hosts in slow_hosts(1) {
        let pool = Pool::start_on(hosts, &[]);
        let _lenders = lenders(&pool, 1, memory);
        if !slow(&pool, 768 << 10) {
            eprintln!("tested with a proxy only: this kernel cannot slow a network down");
            continue;
        }
        let part = &pools::state(1)[..6 << 20];
        let file = pool.path("part.bin");
        std::fs::write(&file, part).expect("a file");
        let begun = Instant::now();
        pool.succeed(&["save", "melt", "--step", "1", file.to_str().expect("text")]);
        assert!(begun.elapsed() > Duration::from_secs(3), "it is slow: {:?}", begun.elapsed());
        assert!(pool.run(&["cat", "melt@1:part.bin"]).stdout == part);
    }
}

#[test]
fn who_is_full_sooner_than_was_said_is_passed_over() {
    let pool = Pool::start_on(Hosts::new(4), &["--replicas", "2"]);
    // Less room than is lent: somebody else uses some of it.
    let small = pool.path("lent1");
    std::fs::create_dir(&small).expect("a folder");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=40m", "stdchk-test"])
        .arg(&small)
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("not tested: nothing can be mounted here");
        return;
    }
    let _mount = Mounted(small.clone());
    std::fs::create_dir(small.join("lost+found")).expect("a folder");
    std::fs::write(small.join("lost+found/others"), vec![1; 16 << 20]).expect("room");
    let folders = folders(&pool);
    let some = |host: usize| {
        let mut lend = folders(host);
        if host == 1 {
            *lend.last_mut().expect("a size") = "36MiB".to_owned();
        }
        lend
    };
    let _lenders = lenders(&pool, 4, some);
    for step in 1..=8 {
        let process = pool.save(step * 5);
        let output = process.output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(pool.check_all().len(), 8);
    pool.succeed(&["verify"]);
    // Room that comes back is used again.
    pool.succeed(&["forget", "melt", "--all"]);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert!(saved(pool.save(100)));
    assert_eq!(pool.check_all(), [100]);
    let left = || std::fs::read_dir(&small).expect("a folder").flatten().count();
    assert!(left() < 100);
}

/// Bytes that lie with each host, from 1 on, that lends a folder.
fn lent(pool: &Pool, hosts: usize) -> Vec<u64> {
    (1..=hosts).map(|host| bytes_below(&pool.path(&format!("lent{host}")))).collect()
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    pools::files_below(folder).iter().map(|file| std::fs::metadata(file).map_or(0, |meta| meta.len())).sum()
}

#[test]
fn what_is_new_stays_on_the_machine_where_that_is_wanted() {
    let mut pool = Pool::start_on(Hosts::new(4), &["--replicas", "2", "--stripe", "2"]);
    if !pool.hosts.as_ref().expect("hosts").are_apart() {
        eprintln!("not tested: network namespaces are not allowed here");
        return;
    }
    let mut lenders = lenders(&pool, 4, folders(&pool));
    std::fs::write(pool.path("state.bin"), pools::state(7)).expect("a file");
    let state = pool.path("state.bin").to_str().expect("text").to_owned();
    for (step, host) in [(1, 2), (2, 4)] {
        let before = lent(&pool, 4)[host - 1];
        let app = format!("melt{step}");
        let args = ["save", &app, "--step", "1", "--local-first", "--durability", "staged", &state];
        let mut command = pool.command_on(host);
        let saved = command.args(args).output().expect("the binary starts");
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
        let after = lent(&pool, 4);
        // What the first save left is found, and not saved again.
        let wanted = if step == 1 { 24 << 20 } else { 0 };
        assert!(after[host - 1] >= before + wanted, "host {host}: {after:?}");
        if step == 1 {
            pool.settle();
            let copied = lent(&pool, 4);
            assert!(copied.iter().sum::<u64>() >= 48 << 20, "copies go to others: {copied:?}");
        }
    }
    // The machine dies, and what was on it is elsewhere.
    lenders.remove(1).kill();
    pool.hosts.as_mut().expect("hosts").cut(2);
    let read = pool.run(&["cat", "melt1@1:state.bin"]);
    assert!(read.status.success() && read.stdout == pools::state(7));
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Flips a bit of every pack that a host holds; whether it holds any.
fn rot(pool: &Pool, host: usize) -> bool {
    let mut flipped = 0;
    for path in pools::files_below(&pool.path(&format!("lent{host}"))) {
        let mut bytes = std::fs::read(&path).expect("a file");
        if bytes.len() > 1 << 20 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(&path, bytes).expect("a file");
            flipped += 1;
        }
    }
    flipped > 0
}

/// Also that of copies which nobody reads as long as others are there.
#[test]
fn rot_of_any_copy_is_found() {
    let pool = Pool::start_on(Hosts::new(3), &["--replicas", "3"]);
    let mut there = lenders(&pool, 3, folders(&pool));
    assert!(saved(pool.save(1)));
    pool.settle();
    for host in 1..=3 {
        drop(there);
        assert!(rot(&pool, host), "everybody has a copy");
        there = lenders(&pool, 3, folders(&pool));
        assert_eq!(exit_code(&pool.run(&["verify"])), 3, "host {host}");
        pool.succeed(&["verify", "--repair"]);
        assert_eq!(exit_code(&pool.run(&["verify"])), 0, "host {host}");
    }
}

#[test]
fn flipped_bits_never_come_out_and_are_mended() {
    let pool = Pool::start_on(Hosts::new(3), &["--replicas", "2"]);
    let lenders = lenders(&pool, 3, folders(&pool));
    assert!(saved(pool.save(1)));
    drop(lenders);
    // While it sleeps; the one that has most, since chance may give some nothing.
    let lent = lent(&pool, 3);
    let most = (1..=3).max_by_key(|host| lent[host - 1]).expect("three of them");
    assert!(rot(&pool, most), "it holds some");
    let _lenders = self::lenders(&pool, 3, folders(&pool));
    assert_eq!(pool.check_all(), [1]);
    pool.succeed(&["verify", "--repair"]);
    assert_eq!(exit_code(&pool.run(&["verify"])), 0);
    assert_eq!(pool.check_all(), [1]);
}
