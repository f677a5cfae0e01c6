//! What shards cost in a directory, and what they bring: first saves and restores with and without, restores that lack shards, repair.

use std::path::Path;
use std::time::Duration;

use stdchk_kit::Random;

use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove, tree_bytes};

const CODE: &str = "8+2";
/// How long ext4 does not use again what belonged to a removed file, and looks through all of that for each new one.
const RECENT: Duration = Duration::from_secs(6);

/// Noise, durable and staged, so that every byte is new.
pub fn measure(bench: &Bench) {
    println!("## Shards {CODE} in a directory: {} MiB that do not compress\n", bench.mib);
    let (file, to) = (bench.path("state"), bench.path("restored"));
    let image = Random::new(3).bytes(bench.mib << 20);
    std::fs::write(&file, &image).expect("room for the input");
    let mut figures = Figures::default();
    let mut bytes = [0, 0];
    for round in 0..bench.rounds {
        let mut ways = [(0, "none"), (1, CODE)];
        ways.rotate_left(round % 2);
        for (at, erasure) in ways {
            for durability in ["staged", "local"] {
                let store = bench.path("store");
                sync_all();
                std::thread::sleep(RECENT);
                figures.add(
                    &format!("save, {durability}, {erasure}"),
                    save(bench, &store, &file, erasure, durability),
                );
                sync_all();
                if durability == "local" {
                    figures.add(&format!("restore, {erasure}"), restore(bench, &store, &to));
                    assert!(std::fs::read(to.join("state")).expect("restored") == image, "wrong bytes");
                    bytes[at] = tree_bytes(&store);
                    remove(&to);
                    if erasure == CODE {
                        lose(&store, [".2", ".7"]);
                        sync_all();
                        figures.add("restore, two shards of each pack lost", restore(bench, &store, &to));
                        assert!(std::fs::read(to.join("state")).expect("restored") == image, "wrong bytes");
                        remove(&to);
                        let mut repair = Run::new(&bench.stdchk);
                        repair.env("STDCHK_STORE", &store).args(&["-q", "verify", "--repair"]);
                        figures.add("verify --repair, twice over all", repair.go());
                    }
                }
                remove(&store);
            }
        }
    }
    figures.print("seconds");
    let ratio = |what: &str| figures.ratio(&format!("{what}, none"), &format!("{what}, {CODE}"));
    println!("| speed with {CODE} against without | |\n|---|---|");
    for what in ["save, staged", "save, local", "restore"] {
        println!("| {what} | {:.2} |", ratio(what));
    }
    let lost = figures.ratio("restore, none", "restore, two shards of each pack lost");
    println!("| restore, two shards of each pack lost | {lost:.2} |");
    println!("\nbytes: {:.3} times\n", bytes[1] as f64 / bytes[0] as f64);
    remove(&file);
}

fn lose(store: &Path, ends: [&str; 2]) {
    let folders = std::fs::read_dir(store.join("packs")).expect("packs");
    for folder in folders.flatten() {
        for pack in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
            let name = pack.file_name().into_string().expect("a name that is text");
            if ends.iter().any(|end| name.ends_with(end)) {
                std::fs::remove_file(pack.path()).expect("it is there");
            }
        }
    }
}

fn save(bench: &Bench, store: &Path, file: &Path, erasure: &str, durability: &str) -> f64 {
    let mut run = Run::new(&bench.stdchk);
    run.env("STDCHK_STORE", store).args(&["-q", "save", "noise", "--step", "1", "--erasure", erasure]);
    run.args(&["--durability", durability, file.to_str().expect("a path that is text")]).go()
}

fn restore(bench: &Bench, store: &Path, to: &Path) -> f64 {
    let mut run = Run::new(&bench.stdchk);
    run.env("STDCHK_STORE", store).args(&["-q", "restore", "noise", "--to"]);
    run.args(&[to.to_str().expect("a path that is text")]).go()
}
