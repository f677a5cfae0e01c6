//! What a mount costs: against a file system that throws everything away, `dd`, the page cache, and files without a mount.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stdchk_kit::{Random, generate};

use crate::cache::warm;
use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove};

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";
/// Small files of a round, and names that are listed.
const FILES: usize = 2000;
const NAMES: usize = 100_000;

/// A mount of a store, or the one that throws everything away; unmounted at its end.
struct Mounted {
    root: PathBuf,
    /// The process that answers, if it is ours.
    server: Option<Child>,
}

impl Mounted {
    fn store(bench: &Bench, store: &Path, durability: &str) -> Mounted {
        let root = bench.path("mnt");
        fs::create_dir_all(&root).expect("a directory");
        let mut run = Run::new(&bench.stdchk);
        run.env("STDCHK_STORE", store).args(&["-q", "mount", root.to_str().expect("text")]);
        run.args(&["--durability", durability, "--log", bench.path("log").to_str().expect("text")]).go();
        Mounted { root, server: None }
    }

    fn discard(bench: &Bench) -> Mounted {
        let root = bench.path("discard");
        fs::create_dir_all(&root).expect("a directory");
        let me = std::env::current_exe().expect("a program has a path");
        let server = Run::new(&me).args(&["--discard", root.to_str().expect("text")]).start();
        let begun = Instant::now();
        let mounts = || fs::read_to_string("/proc/self/mounts").expect("mounts");
        while !mounts().contains(root.to_str().expect("text")) {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is not mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
        Mounted { root, server: Some(server) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.root).status();
        match &mut self.server {
            Some(server) => _ = server.wait(),
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// A file system in memory that takes large pages where it may: small ones are two fifths of what a write costs. Unmounted at its end.
struct LargePages(PathBuf);

impl LargePages {
    /// Nothing for users who may not mount one.
    fn mount(bench: &Bench) -> Option<LargePages> {
        let root = bench.path("large-pages");
        fs::create_dir_all(&root).expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "huge=within_size", "stdchk-bench"]).arg(&root);
        mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()).then_some(LargePages(root))
    }
}

impl Drop for LargePages {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

fn write(path: &Path, bytes: &[u8], block: usize) -> f64 {
    seconds(|| {
        let mut file = File::create(path).expect("a file");
        bytes.chunks(block).for_each(|block| file.write_all(block).expect("room"));
    })
}

pub fn measure(bench: &Bench) {
    let mib = bench.mib.min(512);
    println!("## The mount: {mib} MiB that do not compress\n");
    let image = Random::new(9).bytes(mib << 20);
    let mut figures = Figures::default();
    for round in 0..=bench.rounds {
        let mut of_round = Figures::default();
        writes(bench, &image, &mut of_round);
        local(bench, &image, round, &mut of_round);
        small(bench, &mut of_round);
        // The first round brings the memory of the machine in.
        if round > 0 {
            figures.take(of_round);
        }
    }
    names(bench, &mut figures);
    figures.print("seconds");
    println!("| speed | ratio | wanted |\n|---|---|---|");
    for (what, ours, theirs, wanted) in [
        ("1 MiB writes, staged, against discarding", "1 MiB, staged", "1 MiB, discarded", 0.4),
        ("the same, a tmpfs with large pages", "1 MiB, staged, large pages", "1 MiB, discarded", 0.4),
        ("4 KiB writes, staged, against discarding", "4 KiB, staged", "4 KiB, discarded", 0.5),
        ("1 MiB writes, local, against dd conv=fsync", "1 MiB, local", "dd conv=fsync", 0.6),
        ("a tenth of the pages, against all", "a tenth of the pages", "1 MiB, local", 1.5),
        ("all of it, a tenth changed, against all", "all of it, a tenth changed", "1 MiB, local", 1.5),
        ("read, against cat from the page cache", "read", "cat", 0.3),
        ("small files, against files without sync", "small files, staged", "small files, no mount", 0.05),
    ] {
        if figures.median(ours).is_some() {
            println!("| {what} | {:.2} | {wanted} |", figures.ratio(theirs, ours));
        }
    }
    println!();
}

/// Writes of both sizes, where nothing is synced.
fn writes(bench: &Bench, image: &[u8], figures: &mut Figures) {
    let large = LargePages::mount(bench);
    let store = tempfile::tempdir_in(MEMORY).expect("memory for a store");
    for (name, block) in [("1 MiB", 1 << 20), ("4 KiB", 4096)] {
        let some = if block == 4096 { &image[..image.len() / 4] } else { image };
        let discard = Mounted::discard(bench);
        figures.add(&format!("{name}, discarded"), write(&discard.path("f"), some, block));
        drop(discard);
        let mut staged = |what: &str, place: &Path| {
            let mounted = Mounted::store(bench, place, "staged");
            figures.add(&format!("{name}, {what}"), write(&mounted.path("f"), some, block));
            drop(mounted);
            remove(place);
        };
        staged("staged", &store.path().join(name));
        if let Some(large) = large.as_ref() {
            staged("staged, large pages", &large.0.join(name));
        }
    }
}

/// `dd` of a file to another one, synced.
fn plainly(input: &Path, output: &Path, figures: &mut Figures) {
    let text = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut dd = Run::new(Path::new("dd"));
    dd.args(&[&text("if", input), &text("of", output), "bs=1M", "conv=fsync"]);
    sync_all();
    figures.add("dd conv=fsync", dd.go());
    sync_all();
}

/// On disk: all, a tenth of it, and back. Disks that are lent are slower for whoever comes second, so that turns are taken.
fn local(bench: &Bench, image: &[u8], round: usize, figures: &mut Figures) {
    let (store, plain, input) = (bench.path("store"), bench.path("plain"), bench.path("in"));
    fs::write(&input, image).expect("room");
    let is_second = round.is_multiple_of(2);
    if !is_second {
        plainly(&input, &plain, figures);
    }
    sync_all();
    let mounted = Mounted::store(bench, &store, "local");
    figures.add("1 MiB, local", write(&mounted.path("f"), image, 1 << 20));
    sync_all();
    if is_second {
        plainly(&input, &plain, figures);
    }
    let mut random = Random::new(11);
    let pages = image.len() / 4096;
    let new = random.bytes(pages / 10 * 4096);
    figures.add(
        "a tenth of the pages",
        seconds(|| {
            let file = fs::OpenOptions::new().write(true).open(mounted.path("f")).expect("it is there");
            for page in new.chunks(4096) {
                let at = random.below(pages as u64) * 4096;
                file.write_all_at(page, at).expect("room");
            }
        }),
    );
    for name in ["g", "h"] {
        fs::write(mounted.path(name), image).expect("room");
    }
    let mut changed = image.to_vec();
    generate::touch_pages(&mut changed, 10, &mut random);
    sync_all();
    figures.add("all of it, a tenth changed", write(&mounted.path("h"), &changed, 1 << 20));
    drop(mounted);
    // What is measured is not the disk.
    warm(&store);
    let mounted = Mounted::store(bench, &store, "local");
    let mut buffer = vec![0; 1 << 20];
    let mut read = |path: &Path| {
        let mut file = File::open(path).expect("it is there");
        let mut at = 0;
        loop {
            match file.read(&mut buffer).expect("it can be read") {
                0 => break,
                some => {
                    assert!(buffer[..some] == image[at..at + some], "wrong bytes");
                    at += some;
                }
            }
        }
        assert_eq!(at, image.len());
    };
    figures.add("read", seconds(|| read(&mounted.path("g"))));
    figures.add("cat", seconds(|| read(&input)));
    drop(mounted);
    [store, plain, input].iter().for_each(|path| remove(path));
}

fn small(bench: &Bench, figures: &mut Figures) {
    let store = tempfile::tempdir_in(MEMORY).expect("memory for a store");
    let content = Random::new(3).bytes(4096);
    let all = |folder: &Path| {
        fs::create_dir_all(folder).expect("a directory");
        (0..FILES).for_each(|i| fs::write(folder.join(format!("f{i}")), &content).expect("room"));
    };
    let plain = bench.path("many");
    figures.add("small files, no mount", seconds(|| all(&plain)));
    remove(&plain);
    let mounted = Mounted::store(bench, &store.path().join("store"), "staged");
    figures.add("small files, staged", seconds(|| all(&mounted.path("many"))));
}

/// A directory of many names, made of links since those take no time to make, listed with what `stat` says.
fn names(bench: &Bench, figures: &mut Figures) {
    let store = tempfile::tempdir_in(MEMORY).expect("memory for a store");
    let mounted = Mounted::store(bench, &store.path().join("store"), "staged");
    let folder = mounted.path("many");
    fs::create_dir_all(&folder).expect("a directory");
    for i in 0..NAMES {
        std::os::unix::fs::symlink("x", folder.join(format!("name{i}"))).expect("a name");
    }
    for _ in 0..bench.rounds {
        let listed = || {
            let all = fs::read_dir(&folder).expect("a directory").flatten();
            assert_eq!(all.filter(|entry| entry.metadata().is_ok()).count(), NAMES);
        };
        figures.add("readdir and stat of 100 000 names", seconds(listed));
    }
}
