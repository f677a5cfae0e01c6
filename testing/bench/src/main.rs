//! `make bench`: every figure is a whole process, medians of several rounds, the contenders taking turns in each.
//!
//! `stdchk-bench [--mib N] [--rounds N] [--dir DIR] [--series generated|unaligned|lammps]`; stdchk is taken from the folder of this program.
#![forbid(unsafe_code)]

mod inputs;
mod timing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use inputs::Series;
use timing::{Figures, Run, command_exists, sync_all};

struct Bench {
    stdchk: PathBuf,
    dir: PathBuf,
    rounds: usize,
}

fn option(name: &str, default: usize) -> usize {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let here = std::env::current_exe().expect("a program has a path");
    let stdchk = here.parent().expect("a program lies in a folder").join("stdchk");
    assert!(stdchk.exists(), "{} is not built", stdchk.display());
    let mut args = std::env::args().skip_while(|arg| arg != "--dir");
    let base = args.nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let work = tempfile::tempdir_in(base).expect("a folder to work in");
    let bench = Bench { stdchk, dir: work.path().to_owned(), rounds: option("--rounds", 5) };
    println!("{} rounds, medians; every figure is a whole process\n", bench.rounds);
    let mut args = std::env::args().skip_while(|arg| arg != "--series");
    let only = args.nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("generated") {
        bench.series(&inputs::generated(&bench.dir, option("--mib", 1024)));
    }
    if wanted("unaligned") {
        bench.series(&inputs::unaligned(&bench.dir, option("--mib", 1024)));
    }
    if !wanted("lammps") {
        return;
    }
    if let Some(series) = inputs::gcore_of_lammps(&bench.dir) {
        bench.series(&series);
    } else {
        println!("no images of a real program: lmp and gcore are needed for them\n");
    }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn stdchk(&self, args: &[&str]) -> Run {
        let mut run = Run::new(&self.stdchk);
        run.env("STDCHK_STORE", self.path("store")).args(args);
        run
    }

    fn restic(&self, args: &[&str]) -> Run {
        let mut run = Run::new(Path::new("restic"));
        run.env("RESTIC_REPOSITORY", self.path("restic")).env("RESTIC_PASSWORD", "bench");
        run.env("RESTIC_CACHE_DIR", self.path("restic-cache")).args(&["-q"]).args(args);
        run
    }

    fn series(&self, series: &Series) {
        println!("{}: {} versions of {} MiB", series.name, series.files.len(), series.files[0].1 >> 20);
        let mut figures = Figures::default();
        let mut stored: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for _ in 0..self.rounds {
            self.round(series, &mut figures, &mut stored);
        }
        report(series, &figures, &stored);
    }

    /// The file of a version under the name that all versions share.
    fn stage(&self, series: &Series, version: usize) -> PathBuf {
        let folder = self.path("input");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("a folder for the input");
        let file = folder.join("image");
        std::fs::hard_link(&series.files[version].0, &file).expect("a link to the input");
        file
    }

    fn round(&self, series: &Series, figures: &mut Figures, stored: &mut BTreeMap<&str, Vec<u64>>) {
        let restic = command_exists("restic");
        for folder in ["store", "restic", "restic-cache"] {
            let _ = std::fs::remove_dir_all(self.path(folder));
        }
        if restic {
            self.restic(&["init"]).go();
        }
        for version in 0..series.files.len() {
            let file = self.stage(series, version);
            let text = file.to_str().expect("a path that is text");
            let which = if version == 0 { "first" } else { "next" };
            // Everything is read once, so that all contenders read from memory.
            Run::new(Path::new("cat")).args(&[text]).go();
            let copy = self.path("dd");
            sync_all();
            let target = format!("of={}", copy.display());
            let source = format!("if={text}");
            let seconds = Run::new(Path::new("dd")).args(&[&source, &target, "bs=1M", "conv=fsync"]).go();
            figures.add(&format!("dd {which}"), seconds);
            let _ = std::fs::remove_file(&copy);

            sync_all();
            let before = tree_bytes(&self.path("store"));
            let save = self.stdchk(&["save", "bench", text, "--step", &version.to_string()]).go_measured();
            figures.add(&format!("stdchk {which}"), save.0);
            figures.add(&format!("stdchk memory {which}"), save.1 as f64);
            let grown = tree_bytes(&self.path("store")) - before;
            stored.entry(if version == 0 { "stdchk first" } else { "stdchk next" }).or_default().push(grown);
            if restic {
                sync_all();
                let before = tree_bytes(&self.path("restic"));
                figures.add(&format!("restic {which}"), self.restic(&["backup", text]).go());
                let grown = tree_bytes(&self.path("restic")) - before;
                stored
                    .entry(if version == 0 { "restic first" } else { "restic next" })
                    .or_default()
                    .push(grown);
            }
        }
        let file = self.stage(series, series.files.len() - 1);
        let text = file.to_str().expect("a path that is text");
        sync_all();
        figures.add("stdchk same", self.stdchk(&["save", "bench", text, "--step", "99"]).go());
        self.memory_copy(series.files[0].1 as usize, figures);
        self.restores(text, restic, figures);
    }

    /// What this machine's memory can do at best: one thread that copies as many bytes.
    fn memory_copy(&self, len: usize, figures: &mut Figures) {
        let from = vec![1u8; len];
        let mut to = vec![2u8; len];
        let begun = std::time::Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        figures.add("memory copy", begun.elapsed().as_secs_f64());
    }

    fn restores(&self, text: &str, restic: bool, figures: &mut Figures) {
        let target = self.path("restored");
        let place = target.to_str().expect("a path that is text").to_owned();
        // On a virtual machine memory that was never used is slow to get: nobody is timed with the first touch of it.
        Run::new(Path::new("cp")).args(&[text, &place]).go();
        remove(&target);
        sync_all();
        figures.add("cp", Run::new(Path::new("cp")).args(&[text, &place]).go());
        remove(&target);
        sync_all();
        figures.add("stdchk restore", self.stdchk(&["restore", "bench", "--to", &place]).go());
        let same = Run::new(Path::new("cmp")).args(&[text, &format!("{place}/image")]).go();
        figures.add("cmp", same);
        remove(&target);
        if restic {
            sync_all();
            figures.add("restic restore", self.restic(&["restore", "latest", "--target", &place]).go());
            remove(&target);
        }
    }
}

fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
    let _ = std::fs::remove_file(path);
}

fn tree_bytes(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => tree_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

fn report(series: &Series, figures: &Figures, stored: &BTreeMap<&str, Vec<u64>>) {
    let size = series.files[0].1 as f64;
    println!("  {:<34}{:>8}{:>8}{:>8}", "", "median s", "min", "max");
    for (name, [min, median, max]) in figures.all() {
        if !name.contains("memory") && name != "cmp" {
            println!("  {name:<34}{median:>8.2}{min:>8.2}{max:>8.2}");
        }
    }
    println!();
    let ratio = |what: &str, wanted: &str, over: &str, under: &str| {
        if let (Some(over), Some(under)) = (figures.median(over), figures.median(under)) {
            println!("  {what:<58}{:>7.2}   wanted {wanted}", over / under);
        }
    };
    ratio("first save, speed against dd conv=fsync", "0.8", "dd first", "stdchk first");
    ratio("first save, speed against restic", "4", "restic first", "stdchk first");
    ratio("next save, speed against dd conv=fsync of the whole", "2", "dd next", "stdchk next");
    ratio("next save, speed against restic", "12", "restic next", "stdchk next");
    ratio("the same again, speed against dd conv=fsync of the whole", "-", "dd next", "stdchk same");
    ratio("the same again, speed against one thread that copies memory", "0.3", "memory copy", "stdchk same");
    ratio("restore, speed against cp", "0.8", "cp", "stdchk restore");
    ratio("restore, speed against restic", "-", "restic restore", "stdchk restore");
    for (name, all) in stored {
        let mut all = all.clone();
        all.sort_unstable();
        println!("  {name:<40} stores {:>6.2} % of the image", 100.0 * all[all.len() / 2] as f64 / size);
    }
    let memory = ["stdchk memory first", "stdchk memory next"].iter().filter_map(|name| figures.median(name));
    println!("  peak memory of a save: {:.0} MiB\n", memory.fold(0.0, f64::max) / 1024.0);
}
