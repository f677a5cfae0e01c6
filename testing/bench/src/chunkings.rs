//! Ways to cut: what each stores of versions in which pages change and pieces are inserted, and how long it takes.

use std::path::{Path, PathBuf};

use crate::inputs::{self, Series};
use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove, tree_bytes};

/// Ours, fixed pages, and content-defined chunks (FastCDC) of several sizes on average; codings are another matter.
const SETTINGS: [(&str, &[&str]); 7] = [
    ("auto", &["--chunking", "auto"]),
    ("auto, nothing compressed, no deltas", &["--chunking", "auto", "--compress", "none"]),
    ("page:4096", &["--chunking", "page:4096", "--compress", "none"]),
    ("cdc:2048", &["--chunking", "cdc:2048", "--compress", "none"]),
    ("cdc:4096", &["--chunking", "cdc:4096", "--compress", "none"]),
    ("cdc:8192", &["--chunking", "cdc:8192", "--compress", "none"]),
    ("cdc:16384", &["--chunking", "cdc:16384", "--compress", "none"]),
];

/// Unaligned insertions, without which `auto` and pages are the same.
pub fn measure(bench: &Bench) {
    let mib = bench.mib / 2;
    let series = inputs::unaligned(&bench.dir, mib);
    println!("## Ways to cut {mib} MiB: {}\n", series.name.to_lowercase());
    let mut figures = Figures::default();
    for round in 0..bench.rounds {
        let mut turns = SETTINGS;
        turns.rotate_left(round % SETTINGS.len());
        for (name, flags) in turns {
            versions(bench, &series, name, flags, &mut figures);
        }
    }
    let further = 1..series.files.len();
    println!(
        "| chunking | {} mean | s for one |",
        further.clone().map(|n| format!("version {} |", n + 1)).collect::<String>()
    );
    println!("|---|{}---|---|", "---|".repeat(further.len()));
    for (name, _) in SETTINGS {
        let stored = |n| figures.median(&format!("{name} stored {n}")).unwrap_or(f64::NAN);
        let shares: String = further.clone().map(|n| format!(" {:.1} % |", 100.0 * stored(n))).collect();
        let mean = further.clone().map(stored).sum::<f64>() / further.len() as f64;
        let seconds = figures.median(&format!("{name} s")).unwrap_or(f64::NAN);
        println!("| `{name}` |{shares} {:.1} % | {seconds:.2} |", 100.0 * mean);
    }
    println!("\nstored in per cent of the image (the optimum is 10 %)\n");
}

/// Saves all versions to a new store.
fn versions(bench: &Bench, series: &Series, name: &str, flags: &[&str], figures: &mut Figures) {
    let store = bench.path("store");
    for (n, (file, len)) in series.files.iter().enumerate() {
        let member = staged(bench, file);
        let before = tree_bytes(&store);
        sync_all();
        let mut run = Run::new(&bench.stdchk);
        run.env("STDCHK_STORE", &store).args(&["-q", "save", "cut", "--step", &n.to_string()]);
        let seconds = run.args(flags).args(&[member.to_str().expect("a path that is text")]).go();
        if n > 0 {
            figures.add(&format!("{name} s"), seconds);
            let stored = (tree_bytes(&store) - before) as f64 / *len as f64;
            figures.add(&format!("{name} stored {n}"), stored);
        }
    }
    remove(&store);
}

/// The file under the name that all versions share, read once.
fn staged(bench: &Bench, file: &Path) -> PathBuf {
    let member = bench.path("image");
    remove(&member);
    std::fs::hard_link(file, &member).expect("a link to the input");
    Run::new(Path::new("cat")).args(&[member.to_str().expect("a path that is text")]).go();
    member
}
