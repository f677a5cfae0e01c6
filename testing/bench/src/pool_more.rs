//! More of pools: the paper's throughput over the stripe width, repair, and how soon a reader has its first byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use stdchk::{Repository, Spec, pool};
use stdchk_kit::{Random, generate};

use crate::pool::Pool;
use crate::timing::Figures;
use crate::{Bench, remove};

/// What the paper's figures 3 to 5 show (stdchk, section V): throughput that the application sees (until its save returns, while copies
/// are still made), and that the store achieves (until everything is as safe as was promised), over the stripe width; with checkpoints that
/// share nothing, that are the same, and that are as a program leaves them, one page in ten changed.
pub fn stripe(bench: &Bench) {
    let mib = bench.mib.min(512);
    println!(
        "Throughput over the stripe width, {mib} MiB, two copies, eight benefactors, MB/s, medians of {}\n",
        bench.rounds
    );
    println!(
        "| stripe | observed: different | identical | a tenth changed | achieved: different | identical | a tenth changed |"
    );
    println!("|---|---|---|---|---|---|---|");
    let file = bench.path("state");
    for width in ["1", "2", "4", "6", "8"] {
        let pool = Pool::start_as_class(bench, &["--replicas", "2", "--stripe", width], 8);
        let (mut figures, mut step) = (Figures::default(), 0);
        for round in 0..=bench.rounds {
            let mut random = Random::new(round as u64);
            let image = random.bytes(mib << 20);
            let mut changed = image.clone();
            generate::touch_pages(&mut changed, 10, &mut random);
            for (series, image) in [("different", &image), ("identical", &image), ("changed", &changed)] {
                std::fs::write(&file, image).expect("room for the input");
                step += 1;
                let observed = pool.save("bench", step, &file, "staged");
                let begun = Instant::now();
                pool.run(&["wait", &format!("bench@{step}"), "--for", "replicated"]).go();
                let achieved = observed + begun.elapsed().as_secs_f64();
                // The first round warms up memory that was never touched.
                if round > 0 {
                    figures.add(&format!("observed {series}"), observed);
                    figures.add(&format!("achieved {series}"), achieved);
                }
            }
            pool.clear();
        }
        let rate = |name: &str| (mib << 20) as f64 / 1e6 / figures.median(name).expect("it was measured");
        let rates: Vec<String> = ["observed", "achieved"]
            .iter()
            .flat_map(|what| ["different", "identical", "changed"].map(|series| format!("{what} {series}")))
            .map(|name| format!("{:.0}", rate(&name)))
            .collect();
        println!("| {width} | {} |", rates.join(" | "));
    }
    println!();
    std::fs::remove_file(&file).expect("it was made");
}

/// How long a pool of eight takes until everything is as safe again after as many were lost at once as it may lose, and how many bytes
/// go over the network for that, against those that have to.
pub fn repair(bench: &Bench) {
    let mib = bench.mib.min(512);
    println!("Repair of {mib} MiB with eight benefactors after a loss, medians of {}\n", bench.rounds);
    println!(
        "| pool | lost at once | seconds | bytes that went, over those that were lost | least that is possible |"
    );
    println!("|---|---|---|---|---|");
    // Copies: each lost byte is sent once. Shards: each that is made again needs K others, or the lost ones of a pack together do.
    for (class, lost, least) in [
        (["--replicas", "2"], 1, "1"),
        (["--replicas", "3"], 2, "1"),
        (["--erasure", "4+2"], 2, "2.5 (four read and two sent, for two)"),
    ] {
        let mut figures = Figures::default();
        for round in 0..bench.rounds {
            let mut pool = Pool::start_as_class(bench, &class, 8);
            let file = bench.path("state");
            std::fs::write(&file, Random::new(round as u64).bytes(mib << 20)).expect("room for the input");
            pool.save("bench", 1, &file, "replicated");
            pool.run(&["pool", "wait"]).go();
            let gone: Vec<(String, String)> = pool.benefactors.drain(..lost).collect();
            let held: u64 =
                gone.iter().map(|(metrics, _)| metric(metrics, "stdchk_used_bytes{medium=\"memory\"}")).sum();
            let came = |pool: &Pool| -> u64 {
                let came = |(metrics, _): &(String, String)| {
                    metric(metrics, "stdchk_received_bytes_total{medium=\"memory\"}")
                        + metric(metrics, "stdchk_sent_bytes_total{medium=\"memory\"}")
                };
                pool.benefactors.iter().map(came).sum()
            };
            let before = came(&pool);
            for process in &mut pool.processes[1..=lost] {
                process.kill().expect("it runs");
                process.wait().expect("it ends");
            }
            let begun = Instant::now();
            // Somebody says so; else the pool waits for its patience first.
            gone.iter().for_each(|(_, id)| _ = pool.run(&["pool", "evict", id]).go());
            pool.run(&["pool", "wait"]).go();
            figures.add("seconds", begun.elapsed().as_secs_f64());
            figures.add("ratio", (came(&pool) - before) as f64 / held as f64);
            std::fs::remove_file(&file).expect("it was made");
        }
        let median = |name| figures.median(name).expect("it was measured");
        println!(
            "| {} {} | {lost} of 8 | {:.2} | {:.2} | {least} |",
            class[0],
            class[1],
            median("seconds"),
            median("ratio")
        );
    }
    println!();
}

/// What a process says of itself.
fn metric(at: &str, name: &str) -> u64 {
    find_metric(at, name).unwrap_or_else(|| panic!("{name} is missing"))
}

fn find_metric(at: &str, name: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("it listens");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|number| number.parse().expect("a number"))
}

/// What TLS costs: two pools side by side, one with it and one whose frames are authenticated only.
pub fn tls(bench: &Bench) {
    let mib = bench.mib.min(512);
    println!("TLS: {mib} MiB that do not compress, four benefactors that lend memory, staged\n");
    let class = ["--replicas", "1"];
    let pools =
        [("plain", Pool::start_as_class(bench, &class, 4)), ("TLS", Pool::start_encrypted(bench, &class, 4))];
    let (mut figures, file, to) = (Figures::default(), bench.path("state"), bench.path("restored"));
    for round in 0..bench.rounds {
        std::fs::write(&file, Random::new(round as u64).bytes(mib << 20)).expect("room for the input");
        for (name, pool) in &pools {
            figures.add(&format!("save, {name}"), pool.save("bench", round, &file, "staged"));
            let to_text = to.to_str().expect("a path that is text");
            let restored = pool.run(&["restore", "bench", "--to", to_text]).go();
            figures.add(&format!("restore, {name}"), restored);
            remove(&to);
            pool.clear();
        }
    }
    figures.print("seconds");
    println!("| ratio | |\n|---|---|");
    for what in ["save", "restore"] {
        let median = |mode: &str| figures.median(&format!("{what}, {mode}")).expect("it was measured");
        let ratio = median("TLS") / median("plain");
        println!("| {what} within TLS, against authenticated frames | {ratio:.2} |");
    }
    println!();
}

/// What a checkpoint asks of the manager, by the size of the pool; and what everybody asks all the time.
pub fn questions(bench: &Bench) {
    const SAVES: u64 = 40;
    println!(
        "Questions to the manager, pools of two copies, {SAVES} checkpoints of 64 MiB by a process each\n"
    );
    println!(
        "| benefactors | for a checkpoint | of these append | read the log | beat and the like | each second, for a benefactor |"
    );
    println!("|---|---|---|---|---|---|");
    let file = bench.path("state");
    for count in [2, 8, 32] {
        let pool = Pool::start_as_class(bench, &["--replicas", "2"], count);
        let manager = pool.manager.clone().expect("a manager");
        let asked = || {
            QUESTIONS.map(|(word, _)| {
                metric_or_0(&manager, &format!("stdchk_questions_total{{question=\"{word}\"}}"))
            })
        };
        std::thread::sleep(Duration::from_secs(1));
        let (begun, before) = (Instant::now(), asked());
        std::thread::sleep(Duration::from_secs(5));
        let idle = difference(&asked(), &before).map(|count| count / begun.elapsed().as_secs_f64());
        let (mut took, mut during) = (0.0, [0.0; QUESTIONS.len()]);
        for step in 0..SAVES {
            std::fs::write(&file, Random::new(step).bytes(64 << 20)).expect("room for the input");
            let (begun, before) = (Instant::now(), asked());
            pool.save("bench", step as usize, &file, "replicated");
            took += begun.elapsed().as_secs_f64();
            during.iter_mut().zip(difference(&asked(), &before)).for_each(|(sum, more)| *sum += more);
            if step % 10 == 9 {
                pool.clear();
            }
        }
        let mut of = [0.0; 3];
        for (at, (_, kind)) in QUESTIONS.iter().enumerate() {
            of[*kind] += (during[at] - idle[at] * took).max(0.0) / SAVES as f64;
        }
        let background = idle.iter().sum::<f64>() / count as f64;
        println!(
            "| {count} | {:.1} | {:.1} | {:.1} | {:.1} | {background:.1} |",
            of.iter().sum::<f64>(),
            of[0],
            of[1],
            of[2]
        );
    }
    println!();
}

/// What a manager is asked: to append, to tell what is new, or anything else.
const QUESTIONS: [(&str, usize); 11] = [
    ("append", 0),
    ("tail", 1),
    ("beat", 2),
    ("beat_ages", 2),
    ("forget_beats", 2),
    ("alive", 2),
    ("get", 2),
    ("names", 2),
    ("create", 2),
    ("replace", 2),
    ("delete", 2),
];

fn difference(after: &[u64; QUESTIONS.len()], before: &[u64; QUESTIONS.len()]) -> [f64; QUESTIONS.len()] {
    std::array::from_fn(|at| (after[at] - before[at]) as f64)
}

/// What a process says of itself; nothing of what it was never asked.
fn metric_or_0(at: &str, name: &str) -> u64 {
    find_metric(at, name).unwrap_or(0)
}

/// Notes when it was first written to.
struct First(Option<Instant>);

impl Write for First {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.get_or_insert_with(Instant::now);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// From the wish to read the newest checkpoint to the first byte of a member, over connections that are there.
pub fn first_byte(bench: &Bench) {
    let mib = bench.mib.min(256);
    let pool = Pool::start(bench, ["--replicas", "2"], 4);
    let file = bench.path("state");
    std::fs::write(&file, Random::new(3).bytes(mib << 20)).expect("room for the input");
    pool.save("bench", 1, &file, "replicated");
    let key = pool::Key::read(&pool.dir.join("key")).expect("a key");
    let repository = Repository::open_pool(&pool.place, key).expect("a pool");
    let mut figures = Figures::default();
    for _ in 0..20 {
        let begun = Instant::now();
        let reading = repository.read().expect("a reading");
        let spec = Spec::parse("bench@1").expect("a name");
        let (found, _) = repository.newest_whole(&reading, &spec, stdchk::Look::Quick).expect("it is there");
        let checkpoint = repository.checkpoint(&reading, &found.expect("it is whole")).expect("a checkpoint");
        let mut first = First(None);
        let member = checkpoint.member("state", None).expect("a member");
        checkpoint.write_to(member, &mut first, &|_| {}).expect("its bytes");
        let took = first.0.expect("it has bytes").duration_since(begun);
        figures.add("first byte of a member", Duration::as_secs_f64(&took) * 1e3);
    }
    figures.print("milliseconds (wanted: 10)");
    std::fs::remove_file(&file).expect("it was made");
}
