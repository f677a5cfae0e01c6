//! What a repository costs as it gets old: restores after many versions, saves beside many chunks, deleting among many
//! versions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use stdchk_kit::{Random, generate};

use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove, tree_bytes};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// A repository of its own for an experiment.
struct Store<'b> {
    bench: &'b Bench,
    path: PathBuf,
}

impl<'b> Store<'b> {
    fn new(bench: &'b Bench, name: &str) -> Store<'b> {
        Store { bench, path: bench.path(name) }
    }

    fn run(&self, args: &[&str]) -> Run {
        let mut run = Run::new(&self.bench.stdchk);
        run.env("STDCHK_STORE", &self.path).args(&["-q"]).args(args);
        run
    }

    fn save(&self, app: &str, file: &Path, step: usize) -> f64 {
        self.run(&["save", app, text(file), "--step", &step.to_string()]).go()
    }
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A hundred versions, each with 10 % of its pages rewritten, of which the last three are kept while saving goes on: is the last as
/// quickly restored as the first was?
pub fn hundred_versions(bench: &Bench) {
    let (first, aged) = (Store::new(bench, "first"), Store::new(bench, "aged"));
    let mut random = Random::new(2028);
    let mut image = random.bytes(bench.mib << 20);
    let file = bench.path("image");
    let write = |image: &[u8]| std::fs::write(&file, image).expect("room for the input");
    write(&image);
    println!("## A hundred versions of {} MiB, 10 % rewritten each time, the last three kept\n", bench.mib);
    first.save("aged", &file, 1);
    aged.save("aged", &file, 1);
    aged.run(&["policy", "aged", "--keep-last", "3"]).go();
    let mut saves = Figures::default();
    for version in 2..=100 {
        generate::touch_pages(&mut image, 10, &mut random);
        write(&image);
        sync_all();
        // Space is freed while the next version is saved.
        let collects = version % 5 == 0;
        let gc = collects.then(|| {
            aged.run(&["prune"]).go();
            aged.run(&["gc"]).start()
        });
        let seconds = aged.save("aged", &file, version);
        let which = if version <= 20 { "versions 2 to 20" } else { "versions 21 to 100" };
        let beside = if collects { ", beside a collection" } else { "" };
        saves.add(&format!("{which}{beside}"), seconds);
        if let Some(mut gc) = gc {
            assert!(gc.wait().expect("a child can be waited for").success(), "gc failed");
        }
    }
    aged.run(&["prune"]).go();
    aged.run(&["gc"]).go();
    let mut figures = Figures::default();
    let folder = bench.path("restored");
    // The first round makes everything warm.
    for round in 0..=bench.rounds {
        for (name, store) in [("first", &first), ("hundredth", &aged)] {
            remove(&folder);
            sync_all();
            let seconds = store.run(&["restore", "aged", "--to", text(&folder)]).go();
            if round > 0 {
                figures.add(name, seconds);
            }
        }
    }
    Run::new(Path::new("cmp")).args(&[text(&file), text(&folder.join("image"))]).go();
    remove(&folder);
    saves.print("seconds of a save");
    figures.print("seconds of a restore");
    let stored = tree_bytes(&aged.path) as f64 / image.len() as f64;
    println!(
        "restore of the 100th version, speed against the first: {:.2} (wanted 0.6)",
        figures.ratio("first", "hundredth")
    );
    println!("stored for the three versions: {:.0} % of one (120 % at best)\n", 100.0 * stored);
    remove(&file);
}

/// Saves beside ever more chunks of something else.
pub fn growth(bench: &Bench) {
    println!("## Saves of 128 MiB as the repository grows from 10^5 to 10^7 chunks\n");
    let (small, large) = (Store::new(bench, "small"), Store::new(bench, "large"));
    // Two chunks for each KiB.
    fill(&small, 50);
    fill(&large, 5000);
    let mut random = Random::new(2029);
    let mut image = random.bytes(128 << 20);
    let (file, fresh) = (bench.path("image"), bench.path("fresh"));
    std::fs::write(&file, &image).expect("room for the input");
    let both = [("10^5 chunks", &small), ("10^7 chunks", &large)];
    for (_, store) in both {
        store.save("next", &file, 0);
    }
    let mut figures = Figures::default();
    for round in 1..=bench.rounds {
        generate::touch_pages(&mut image, 10, &mut random);
        std::fs::write(&file, &image).expect("room for the input");
        std::fs::write(&fresh, random.bytes(128 << 20)).expect("room for the input");
        for (name, store) in both {
            sync_all();
            figures.add(&format!("next save, 10 % rewritten, {name}"), store.save("next", &file, round));
            sync_all();
            let app = format!("fresh-{round}");
            figures.add(&format!("first save of something new, {name}"), store.save(&app, &fresh, 1));
        }
    }
    figures.print("seconds of a save");
    for what in ["next save, 10 % rewritten", "first save of something new"] {
        let cost = figures.ratio(&format!("{what}, {}", both[1].0), &format!("{what}, {}", both[0].0));
        println!("{what}: x {cost:.2} (wanted at most x 1.3)");
    }
    println!();
    remove(&file);
    remove(&fresh);
}

/// Fills a repository with so many MiB in pages of 512 bytes.
fn fill(store: &Store, mib: usize) {
    let args = ["save", "filling", "-", "--step", "1", "--chunking", "page:512"];
    let mut child = store.run(&args).start_with(Stdio::piped());
    let mut input = child.stdin.take().expect("a pipe");
    let mut random = Random::new(mib as u64);
    for _ in 0..mib {
        input.write_all(&random.bytes(1 << 20)).expect("the save reads its input");
    }
    drop(input);
    assert!(child.wait().expect("a child can be waited for").success(), "filling failed");
}

/// Deleting one of many versions and collecting, against one of few.
pub fn deleting(bench: &Bench) {
    println!("## Deleting one version of 16 MiB and collecting\n");
    let stores = [10, 1000].map(|count| (count, Store::new(bench, &format!("versions-{count}"))));
    let mut random = Random::new(2030);
    let file = bench.path("image");
    let mut image = random.bytes(16 << 20);
    let mut next = |store: &Store, step| {
        generate::touch_pages(&mut image, 10, &mut random);
        std::fs::write(&file, &image).expect("room for the input");
        store.save("many", &file, step);
    };
    for (count, store) in &stores {
        (1..=*count).for_each(|step| next(store, step));
    }
    let mut figures = Figures::default();
    for round in 1..=bench.rounds {
        for (count, store) in &stores {
            sync_all();
            let seconds = store.run(&["forget", &format!("many@{}", count / 2 - 3 + round)]).go();
            figures.add(&format!("of {count}"), seconds + store.run(&["gc"]).go());
            next(store, count + round);
        }
    }
    figures.print("seconds");
    println!(
        "one of 1000 against one of 10: x {:.2} (wanted at most x 3)\n",
        figures.ratio("of 1000", "of 10")
    );
    remove(&file);
}
