//! Pools on loopback: one saver and several benefactors share the machine, as does the limit that is measured beside them.

use std::io::{BufRead, BufReader};
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stdchk::{AppName, Durability, Memory, Repository, Save, SaveOptions, pool};
use stdchk_kit::{EtcdCluster, Random, generate};

use crate::timing::{Figures, Run, command_exists, processor_seconds, sync_all};
use crate::{Bench, remove};

/// Threads that commit small checkpoints, and for how long.
const COMMITTERS: usize = 16;
const COMMITTING: Duration = Duration::from_secs(5);
/// Processes that commit one each.
const PROCESSES: usize = 200;
/// Savers at a time.
const SAVERS: usize = 16;

/// The processes of a pool, ended with it.
pub struct Pool<'b> {
    bench: &'b Bench,
    pub dir: PathBuf,
    /// How it is found.
    pub place: String,
    /// The manager, where there is one, and the benefactors.
    pub processes: Vec<Child>,
    /// Where each benefactor says how it is, and who it is.
    pub benefactors: Vec<(String, String)>,
    /// Where the manager says how it is, if there is one.
    pub manager: Option<String>,
}

/// Who keeps the names of a pool.
#[derive(Clone, Copy)]
enum Names<'n> {
    Manager,
    /// A manager, which keeps them in etcd.
    Both(&'n str),
    /// Nobody but etcd.
    Etcd(&'n str),
}

impl<'b> Pool<'b> {
    pub fn start(bench: &'b Bench, class: [&str; 2], benefactors: usize) -> Pool<'b> {
        Pool::start_as(bench, class, benefactors, Names::Manager)
    }

    /// One with a manager, and any promise.
    pub fn start_as_class(bench: &'b Bench, class: &[&str], benefactors: usize) -> Pool<'b> {
        Pool::start_with(bench, class, benefactors, Names::Manager, true)
    }

    /// One whose members talk within TLS.
    pub fn start_encrypted(bench: &'b Bench, class: &[&str], benefactors: usize) -> Pool<'b> {
        Pool::start_with(bench, class, benefactors, Names::Manager, false)
    }

    fn start_as(bench: &'b Bench, class: [&str; 2], benefactors: usize, names: Names) -> Pool<'b> {
        Pool::start_with(bench, &class, benefactors, names, true)
    }

    fn start_with(
        bench: &'b Bench,
        class: &[&str],
        benefactors: usize,
        names: Names,
        is_plain: bool,
    ) -> Pool<'b> {
        let dir = bench.path(if is_plain { "pool" } else { "pool-tls" });
        std::fs::create_dir(&dir).expect("a folder for a pool");
        let mut pool = Pool {
            bench,
            dir,
            place: String::new(),
            processes: Vec::new(),
            benefactors: Vec::new(),
            manager: None,
        };
        let key = pool.path("key");
        let plain: &[&str] = if is_plain { &["--plain"] } else { &[] };
        pool.run(&[&["pool", "key", &key], plain].concat()).go();
        let state = pool.path("state");
        let start = [&["pool", "start"], class].concat();
        let listen = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        pool.place = match names {
            Names::Manager => pool.manager(&[&start[..], &listen, &["--state", &state]].concat()),
            Names::Both(place) => pool.manager(&[&start[..], &listen, &["--catalog", place]].concat()),
            Names::Etcd(place) => {
                pool.run(&[&start[..], &["--catalog", place]].concat()).go();
                place.to_owned()
            }
        };
        for benefactor in 0..benefactors {
            let domain = format!("host={benefactor}");
            let place = pool.place.clone();
            let join =
                ["pool", "join", &place, "--memory", "4GiB", "--domain", &domain, "--metrics", "127.0.0.1:0"];
            let said = pool.spawn(&join);
            pool.benefactors.push((word(&said, "metrics"), word(&said, "benefactor")));
        }
        pool
    }

    /// Starts a manager, where there is a folder; the pool's address.
    fn manager(&mut self, args: &[&str]) -> String {
        let said = self.spawn(args);
        self.manager = Some(word(&said, "metrics"));
        format!("pool://{}", word(&said, "listen"))
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("a path that is text").to_owned()
    }

    pub fn run(&self, args: &[&str]) -> Run {
        let mut run = Run::new(&self.bench.stdchk);
        run.env("STDCHK_STORE", &self.place).env("STDCHK_POOL_KEY", self.dir.join("key"));
        run.args(&["-q"]).args(args);
        run
    }

    /// Starts a process; what it says first.
    fn spawn(&mut self, args: &[&str]) -> String {
        let mut command = Command::new(&self.bench.stdchk);
        command.args(args).arg("--json").env("STDCHK_POOL_KEY", self.dir.join("key"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("stdchk starts");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says where it listens");
        self.processes.push(child);
        said
    }

    pub fn save(&self, app: &str, step: usize, file: &Path, durability: &str) -> f64 {
        let (step, file) = (step.to_string(), file.to_str().expect("a path that is text"));
        sync_all();
        self.run(&["save", app, "--step", &step, file, "--durability", durability]).go()
    }

    pub fn clear(&self) {
        self.run(&["forget", "--all", "bench"]).go();
        for _ in 0..2 {
            self.run(&["gc"]).go();
        }
    }

    /// Seconds of processor time that the benefactors took.
    fn seconds_of_benefactors(&self) -> f64 {
        // The manager is the first.
        let benefactors = self.processes.iter().skip(1);
        benefactors.map(|process| processor_seconds(&process.id().to_string(), false)).sum()
    }
}

/// Seconds of processor time that all took who were started, and have ended.
fn seconds_of_children() -> f64 {
    processor_seconds("self", true)
}

/// What a process says of something, as JSON.
fn word(said: &str, name: &str) -> String {
    let behind = said.split(&format!("\"{name}\":\"")).nth(1).unwrap_or_else(|| panic!("{name}: {said}"));
    behind.split('"').next().expect("its end").to_owned()
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        remove(&self.dir);
    }
}

/// Bytes a second over one stream on loopback, as iperf3 has it, and seconds of processor time of both sides for a byte.
fn loopback() -> (f64, f64) {
    let before = seconds_of_children();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a port")
        .port()
        .to_string();
    let mut server = Command::new("iperf3");
    let server = server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = server.expect("iperf3 starts");
    std::thread::sleep(std::time::Duration::from_millis(200));
    let client = Command::new("iperf3").args(["-c", "127.0.0.1", "-p", &port, "-t", "2", "--json"]).output();
    let text = String::from_utf8(client.expect("iperf3 runs").stdout).expect("JSON");
    let _ = server.wait();
    let received = text.split("\"sum_received\"").nth(1).expect("iperf3 says what was received");
    let number = |name: &str| {
        let text = received.split(&format!("\"{name}\":")).nth(1).expect("it says so");
        let number = text.split([',', '\n', '}']).next().expect("a number");
        number.trim().parse::<f64>().expect("a number")
    };
    (number("bits_per_second") / 8.0, (seconds_of_children() - before) / number("bytes"))
}

/// Saves to four benefactors and back, and what the application sees of copies.
pub fn measure(bench: &Bench) {
    if !command_exists("iperf3") {
        return println!("no pools: iperf3 is needed for their limit\n");
    }
    println!(
        "## A pool on loopback: {} MiB that do not compress, four benefactors that lend memory\n",
        bench.mib
    );
    let file = bench.path("state");
    let mut image = Random::new(5).bytes(bench.mib << 20);
    let mut figures = Figures::default();
    let bytes = (bench.mib << 20) as f64;
    let (mut benefactors, mut saver, mut streams) = (0.0, 0.0, 0.0);
    for round in 0..bench.rounds {
        let (speed, seconds) = loopback();
        figures.add("one stream of iperf3", bytes / speed);
        streams += seconds * bytes;
        for replicas in [1, 2] {
            let pool = Pool::start(bench, ["--replicas", &replicas.to_string()], 4);
            std::fs::write(&file, &image).expect("room for the input");
            // Memory that was never touched would be measured otherwise.
            pool.save("bench", 1, &file, "staged");
            pool.clear();
            let before = (pool.seconds_of_benefactors(), seconds_of_children());
            let name =
                |what: &str| format!("{what}, {replicas} {}", if replicas == 1 { "copy" } else { "copies" });
            figures.add(&name("first save, staged"), pool.save("bench", 2, &file, "staged"));
            if replicas == 1 {
                benefactors += pool.seconds_of_benefactors() - before.0;
                saver += seconds_of_children() - before.1;
                let mut next = image.clone();
                generate::touch_pages(&mut next, 10, &mut Random::new(round as u64));
                std::fs::write(&file, &next).expect("room for the input");
                figures.add("next save, staged", pool.save("bench", 3, &file, "staged"));
                let to = bench.path("restored");
                let mut restore = pool.run(&[]);
                restore.args(&["restore", "bench@2", "--to", to.to_str().expect("a path that is text")]);
                restore.go();
                assert!(std::fs::read(to.join("state")).expect("restored") == image, "wrong bytes");
                remove(&to);
                sync_all();
                figures.add("restore", restore.go());
                remove(&to);
            }
            pool.clear();
            if replicas == 1 {
                from_memory(&pool, round, &image, &mut figures);
                pool.clear();
            }
            if replicas == 2 {
                figures.add("first save, replicated, 2 copies", pool.save("bench", 4, &file, "replicated"));
            }
        }
        shards(bench, &mut figures, &file, &image);
        image[..8].copy_from_slice(&(round as u64).to_le_bytes());
    }
    figures.print("seconds");
    let line = |what: &str, ratio: f64, wanted: &str| println!("| {what} | {ratio:.2} | {wanted} |");
    println!("| ratio | | wanted |\n|---|---|---|");
    line(
        "first save, staged, against one stream of iperf3",
        figures.ratio("one stream of iperf3", "first save, staged, 1 copy"),
        "0.2",
    );
    line("restore, against the same", figures.ratio("one stream of iperf3", "restore"), "0.2");
    line(
        "next save, 10 % changed, against the first",
        figures.ratio("first save, staged, 1 copy", "next save, staged"),
        "5",
    );
    line(
        "the same by a program that saves its memory",
        figures.ratio("first save, from memory", "next save, from memory"),
        "5",
    );
    match figures.median("first save, from watched memory") {
        None => println!("| the same where the kernel watches its memory | this kernel does not | 5 |"),
        Some(first) => line(
            "the same where the kernel watches its memory",
            first / figures.median("next save, from watched memory").expect("saved as often"),
            "5",
        ),
    }
    line(
        "time of two copies, staged, against one",
        figures.ratio("first save, staged, 2 copies", "first save, staged, 1 copy"),
        "at most 1.25",
    );
    line(
        "time of shards 3+1, replicated, against two copies",
        figures.ratio("first save, replicated, 3+1", "first save, replicated, 2 copies"),
        "",
    );
    line("restore from shards, against from one copy", figures.ratio("restore", "restore, 3+1"), "");
    line("the same, one benefactor of four lost", figures.ratio("restore", "restore, 3+1, one is lost"), "");
    let per_gb = |seconds: f64| seconds / bench.rounds as f64 / (bytes / 1e9);
    println!(
        "\nProcessor seconds for a GB that is saved: {:.2} of the saver, {:.2} of all benefactors; iperf3 takes {:.2} for a GB, both sides\n",
        per_gb(saver),
        per_gb(benefactors),
        per_gb(streams)
    );
    together(bench);
    remove(&file);
}

/// How long a program computes between its saves, at least: until nobody is busy with the one before any more.
const COMPUTES: Duration = Duration::from_millis(300);

/// The saves of a program that has its state in memory, and a way to the pool; and of one whose memory the kernel watches.
fn from_memory(pool: &Pool, round: usize, image: &[u8], figures: &mut Figures) {
    let key = pool::Key::read(&pool.dir.join("key")).expect("a key");
    let repository = Repository::open_pool(&pool.place, key).expect("a pool");
    let mut plain = image.to_vec();
    let add = |save: &mut Save, state: &mut Vec<u8>| save.add_bytes("state", state);
    saves_of(&repository, "memory", round, &mut plain, figures, add);
    drop(plain);
    pool.clear();
    let mut watched = Memory::zeroed(image.len()).expect("memory");
    watched.copy_from_slice(image);
    if !watched.is_watched() {
        return;
    }
    let add = |save: &mut Save, state: &mut Memory| save.add_memory("state", state);
    saves_of(&repository, "watched memory", round, &mut watched, figures, add);
}

/// A first save of a state, and a next one when a tenth of it has changed.
fn saves_of<State: DerefMut<Target = [u8]>>(
    repository: &Repository,
    what: &str,
    round: usize,
    state: &mut State,
    figures: &mut Figures,
    add: impl Fn(&mut Save, &mut State) -> stdchk::Result<()>,
) {
    let app = AppName::new("bench").expect("a name");
    let options = SaveOptions { durability: Durability::Staged, ..SaveOptions::default() };
    for (step, which) in [(1, "first"), (2, "next")] {
        std::thread::sleep(COMPUTES);
        let begun = Instant::now();
        let mut save = repository.save(&app, step, options.clone()).expect("a save");
        add(&mut save, state).expect("room");
        save.commit().expect("a commit");
        figures.add(&format!("{which} save, from {what}"), begun.elapsed().as_secs_f64());
        if step == 1 {
            let begun = Instant::now();
            generate::touch_pages(state, 10, &mut Random::new(round as u64));
            figures.add(&format!("the program writes to a tenth of {what}"), begun.elapsed().as_secs_f64());
        }
    }
}

/// The same by shards of which one may be lost, among the same four.
fn shards(bench: &Bench, figures: &mut Figures, file: &std::path::Path, image: &[u8]) {
    std::fs::write(file, image).expect("room for the input");
    let mut pool = Pool::start(bench, ["--erasure", "3+1"], 4);
    pool.save("bench", 1, file, "staged");
    pool.clear();
    figures.add("first save, staged, 3+1", pool.save("bench", 2, file, "staged"));
    pool.clear();
    figures.add("first save, replicated, 3+1", pool.save("bench", 3, file, "replicated"));
    pool.run(&["pool", "wait"]).go();
    let to = bench.path("restored");
    let mut restored = |pool: &Pool, name: &str| {
        let mut restore = pool.run(&[]);
        restore.args(&["restore", "bench@3", "--to", to.to_str().expect("a path that is text")]);
        // As from copies: nobody is timed with the first touch of memory.
        restore.go();
        remove(&to);
        sync_all();
        figures.add(name, restore.go());
        assert!(std::fs::read(to.join("state")).expect("restored") == image, "wrong bytes");
        remove(&to);
    };
    restored(&pool, "restore, 3+1");
    let lost = pool.processes.last_mut().expect("a benefactor");
    lost.kill().expect("it runs");
    lost.wait().expect("it ends");
    restored(&pool, "restore, 3+1, one is lost");
}

/// Small checkpoints, as many as go in a while: by threads of one process that each keep their connections, and by processes; with names
/// kept by one manager, by one that has them in etcd, and by nobody but etcd.
pub fn commits(bench: &Bench) {
    println!(
        "| small checkpoints a second | wanted | {COMMITTERS} threads of one process | a process for each, four at a time |"
    );
    println!("|---|---|---|---|");
    let row = |names: Names, what: &str, wanted: &str| {
        let pool = Pool::start_as(bench, ["--replicas", "1"], 2, names);
        let (threads, processes) = (commits_of_threads(&pool), commits_of_processes(&pool));
        println!("| {what} | {wanted} | {threads:.0} | {processes:.0} |");
    };
    row(Names::Manager, "one manager", "2000");
    if command_exists("etcd") {
        let cluster = EtcdCluster::start(3);
        row(
            Names::Both(&cluster.url("both")),
            "one manager, names in etcd (three members on this disk)",
            "300",
        );
        row(Names::Etcd(&cluster.url("etcd")), "no manager, names in etcd", "300");
    }
    println!();
}

fn commits_of_threads(pool: &Pool) -> f64 {
    let key = pool::Key::read(&pool.dir.join("key")).expect("a key");
    let begun = Instant::now();
    // Each thread has a way of its own to the pool, as a process would.
    let saved: usize = std::thread::scope(|scope| {
        let savers: Vec<_> = (0..COMMITTERS)
            .map(|saver| {
                let (url, key) = (&pool.place, key.clone());
                scope.spawn(move || {
                    let repository = Repository::open_pool(url, key).expect("a pool");
                    let app = AppName::new(&format!("app{saver}")).expect("a name");
                    let options = SaveOptions { durability: Durability::Staged, ..SaveOptions::default() };
                    let mut steps = 0;
                    while begun.elapsed() < COMMITTING {
                        let mut save = repository.save(&app, steps, options.clone()).expect("a save");
                        save.add_bytes("state", b"a little state").expect("room");
                        save.commit().expect("a commit");
                        steps += 1;
                    }
                    steps as usize
                })
            })
            .collect();
        savers.into_iter().map(|saver| saver.join().expect("a saver")).sum()
    });
    saved as f64 / begun.elapsed().as_secs_f64()
}

fn commits_of_processes(pool: &Pool) -> f64 {
    let file = pool.bench.path("small");
    std::fs::write(&file, b"a little state").expect("room for the input");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for saver in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for step in 0..PROCESSES / 4 {
                    let (app, step) = (format!("proc{saver}"), step.to_string());
                    pool.run(&["save", &app, "--step", &step, "--durability", "staged"])
                        .args(&[file.to_str().expect("a path that is text")])
                        .go();
                }
            });
        }
    });
    PROCESSES as f64 / begun.elapsed().as_secs_f64()
}

/// Sixteen savers at once against one.
fn together(bench: &Bench) {
    let pool = Pool::start(bench, ["--replicas", "1"], 4);
    let mib = (bench.mib / SAVERS / 2).max(1);
    let files: Vec<PathBuf> = (0..SAVERS).map(|saver| bench.path(&format!("rank{saver}"))).collect();
    for (saver, file) in files.iter().enumerate() {
        std::fs::write(file, Random::new(saver as u64 + 100).bytes(mib << 20)).expect("room for the input");
    }
    let mut figures = Figures::default();
    for round in 0..bench.rounds {
        for file in &files {
            figures.add("alone", pool.save(&format!("bench{round}"), 1, file, "staged"));
        }
        sync_all();
        let begun = Instant::now();
        let times: Vec<f64> = std::thread::scope(|scope| {
            let savers: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(saver, file)| {
                    let pool = &pool;
                    scope.spawn(move || {
                        let mut run = pool.run(&["save", &format!("at-once{round}-{saver}"), "--step", "1"]);
                        run.args(&["--parent", "none", "--durability", "staged", "--chunking", "page:8192"]);
                        run.args(&[file.to_str().expect("text")]).go()
                    })
                })
                .collect();
            savers.into_iter().map(|saver| saver.join().expect("a saver")).collect()
        });
        figures.add("all at once", begun.elapsed().as_secs_f64());
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        for app in (0..SAVERS).map(|saver| format!("at-once{round}-{saver}")).chain([format!("bench{round}")])
        {
            pool.run(&["forget", "--all", &app]).go();
        }
        for _ in 0..2 {
            pool.run(&["gc"]).go();
        }
        figures.add("slowest against mean", times.iter().copied().fold(0.0, f64::max) / mean);
    }
    figures.print("seconds");
    let aggregate = figures.median("alone").expect("measured") * SAVERS as f64
        / figures.median("all at once").expect("measured");
    println!("Aggregate of {SAVERS} savers against one: {aggregate:.2} (wanted: 0.9)\n");
    files.iter().for_each(|file| remove(file));
}
