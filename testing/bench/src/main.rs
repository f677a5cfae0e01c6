//! `make bench`: every figure is a whole process, medians of several rounds, the contenders taking turns in each.
//!
//! stdchk is taken from the folder of this program.
#![forbid(unsafe_code)]

mod ageing;
mod cache;
mod chunkings;
mod contenders;
mod discard;
mod erasure;
mod factors;
mod inputs;
mod mount;
mod noise;
mod pool;
mod pool_more;
mod series;
mod timing;
mod training;

use std::path::{Path, PathBuf};

/// What all experiments share.
struct Bench {
    stdchk: PathBuf,
    dir: PathBuf,
    rounds: usize,
    /// The size of generated images.
    mib: usize,
}

type Experiment = fn(&Bench);

/// What is measured, in this order, unless `--only` names some.
const EXPERIMENTS: [(&str, Experiment); 20] = [
    ("generated", |bench| series::measure(bench, &inputs::generated(&bench.dir, bench.mib))),
    ("unaligned", |bench| series::measure(bench, &inputs::unaligned(&bench.dir, bench.mib))),
    ("lammps", |bench| of_a_program(bench, inputs::gcore_of_lammps(&bench.dir))),
    ("restarts", |bench| of_a_program(bench, inputs::restarts_of_lammps(&bench.dir))),
    ("weights", |bench| series::measure(bench, &inputs::weights(&bench.dir))),
    ("chunkings", chunkings::measure),
    ("factors", factors::measure),
    ("ageing", ageing::hundred_versions),
    ("growth", ageing::growth),
    ("deleting", ageing::deleting),
    ("noise", noise::measure),
    ("erasure", erasure::measure),
    ("pool", pool::measure),
    ("commits", pool::commits),
    ("stripe", pool_more::stripe),
    ("repair", pool_more::repair),
    ("first-byte", pool_more::first_byte),
    ("questions", pool_more::questions),
    ("tls", pool_more::tls),
    ("mount", mount::measure),
];

fn of_a_program(bench: &Bench, series: Option<inputs::Series>) {
    match series {
        Some(series) => series::measure(bench, &series),
        None => println!("no images of a real program: lmp and gcore are needed for them\n"),
    }
}

const USAGE: &str = "stdchk-bench [--mib N] [--rounds N] [--dir DIR] [--only NAME,...]";
/// Each takes a value; `--discard` is for the process that the mount is compared with.
const OPTIONS: [&str; 5] = ["--mib", "--rounds", "--dir", "--only", "--discard"];

/// Says how it is used, and ends, if that was asked for or is not known. What it would do instead takes most of an hour.
fn check_arguments() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        if pair.len() != 2 || !OPTIONS.contains(&pair[0].as_str()) {
            println!("usage: {USAGE}\nNAMEs: {}", EXPERIMENTS.map(|(name, _)| name).join(", "));
            std::process::exit(i32::from(!["-h", "--help"].contains(&pair[0].as_str())));
        }
    }
}

fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != name).nth(1)
}

fn number(name: &str, default: usize) -> usize {
    option(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} takes a number")))
}

fn main() {
    check_arguments();
    if let Some(directory) = option("--discard") {
        return discard::run(Path::new(&directory));
    }
    let here = std::env::current_exe().expect("a program has a path");
    let stdchk = here.parent().expect("a program lies in a folder").join("stdchk");
    assert!(stdchk.exists(), "{} is not built", stdchk.display());
    let only = option("--only");
    let names: Vec<&str> = only.as_deref().map_or(Vec::new(), |only| only.split(',').collect());
    for name in &names {
        let known = EXPERIMENTS.map(|(known, _)| known);
        assert!(known.contains(name), "there is no experiment {name}; there are {}", known.join(", "));
    }
    let base = option("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let (rounds, mib) = (number("--rounds", 5), number("--mib", 1024));
    println!("{rounds} rounds, medians; every figure is a whole process\n");
    for (name, measure) in EXPERIMENTS {
        if names.is_empty() || names.contains(&name) {
            // Each begins in a folder of its own, so that nothing is left of the one before.
            let work = tempfile::tempdir_in(&base).expect("a folder to work in");
            measure(&Bench { stdchk: stdchk.clone(), dir: work.path().to_owned(), rounds, mib });
        }
    }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
    let _ = std::fs::remove_file(path);
}

fn tree_bytes(path: &Path) -> u64 {
    cache::files(path).iter().map(|file| file.metadata().map_or(0, |metadata| metadata.len())).sum()
}
