//! Versions of one image, saved and restored by everyone in turn.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cache::{chill, warm};
use crate::contenders::{ALL, Contender, Field};
use crate::inputs::Series;
use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove, tree_bytes};

/// Limits of the machine, measured in the same rounds.
const COPY: &str = "memory copy, one thread";
const READ: &str = "read from the page cache, one thread";

pub fn measure(bench: &Bench, series: &Series) {
    let size = series.files[0].1;
    println!("## {}: {} versions of {} MiB\n", series.name, series.files.len(), size >> 20);
    let field = Field { stdchk: bench.stdchk.clone(), dir: bench.dir.clone(), is_noise: series.is_noise };
    let contenders: Vec<Contender> = ALL.into_iter().filter(|contender| contender.is_here()).collect();
    let mut figures = Figures::default();
    let mut turns = contenders.clone();
    for _ in 0..bench.rounds {
        round(bench, &field, series, &turns, &mut figures);
        // Nobody always comes after the same one.
        turns.rotate_left(1);
    }
    report(series, &contenders, &figures);
}

/// The file of a version under the name that all versions share.
fn stage(bench: &Bench, series: &Series, version: usize) -> PathBuf {
    let folder = bench.path("input");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).expect("a folder for the input");
    let file = folder.join("image");
    std::fs::hard_link(&series.files[version].0, &file).expect("a link to the input");
    file
}

/// One after the other saves all versions and restores the last. What it stored is removed then: all together would not
/// fit into the page cache, and whoever comes last would read from the disk.
fn round(bench: &Bench, field: &Field, series: &Series, contenders: &[Contender], figures: &mut Figures) {
    for contender in contenders {
        contender.begin(field);
        for version in 0..series.files.len() {
            save(bench, field, series, *contender, version, figures);
        }
        let last = series.files.len() - 1;
        let file = stage(bench, series, last);
        if *contender == Contender::Stdchk {
            sync_all();
            figures.add("stdchk same", contender.save(field, &file, 99).go());
            limits(&file, figures);
        }
        restore(bench, field, *contender, &file, last, figures);
        remove(&contender.store(field));
    }
}

fn save(
    bench: &Bench,
    field: &Field,
    series: &Series,
    contender: Contender,
    version: usize,
    figures: &mut Figures,
) {
    let file = stage(bench, series, version);
    let name = contender.name();
    let which = if version == 0 { "first" } else { "next" };
    // Everything is read once, so that all contenders read from memory.
    Run::new(Path::new("cat")).args(&[file.to_str().expect("a path that is text")]).go();
    contender.clear_old(field);
    let before = tree_bytes(&contender.store(field));
    sync_all();
    let (seconds, peak_kib) = contender.save(field, &file, version).go_measured();
    figures.add(&format!("{name} {which}"), seconds);
    figures.add(&format!("{name} memory {which}"), peak_kib as f64);
    let grown = tree_bytes(&contender.store(field)) - before;
    figures.add(&format!("{name} stored {which}"), grown as f64 / series.files[version].1 as f64);
}

/// What this machine can do at best: one thread that copies as many bytes in memory, or reads them from the page cache.
fn limits(file: &Path, figures: &mut Figures) {
    let from = std::fs::read(file).expect("the input is there");
    let mut to = vec![2u8; from.len()];
    let begun = Instant::now();
    to.copy_from_slice(std::hint::black_box(&from));
    std::hint::black_box(&to);
    figures.add(COPY, begun.elapsed().as_secs_f64());
    let mut file = std::fs::File::open(file).expect("the input is there");
    let begun = Instant::now();
    let mut room = vec![0; 1 << 20];
    while std::io::Read::read(&mut file, &mut room).expect("the input can be read") > 0 {}
    figures.add(READ, begun.elapsed().as_secs_f64());
}

fn restore(
    bench: &Bench,
    field: &Field,
    contender: Contender,
    file: &Path,
    version: usize,
    figures: &mut Figures,
) {
    let folder = bench.path("restored");
    let empty = || {
        remove(&folder);
        std::fs::create_dir(&folder).expect("a folder to restore to");
    };
    // On a virtual machine memory that was never used is slow to get: nobody is timed with the first touch of it.
    empty();
    Contender::Dd.restore(field, version, file, &folder).go();
    // What is restored from: cp has no store.
    let from = if contender == Contender::Dd { file.to_owned() } else { contender.store(field) };
    for (prepare, what) in [(chill as fn(&Path), "restore cold"), (warm, "restore")] {
        empty();
        prepare(&from);
        sync_all();
        let seconds = contender.restore(field, version, file, &folder).go();
        figures.add(&format!("{} {what}", contender.name()), seconds);
    }
    if contender == Contender::Stdchk {
        let (file, restored) = (file.to_str().expect("text"), folder.join("image"));
        Run::new(Path::new("cmp")).args(&[file, restored.to_str().expect("text")]).go();
    }
    remove(&folder);
}

fn report(series: &Series, contenders: &[Contender], figures: &Figures) {
    let seconds = |name: &str, what: &str| figures.median(&format!("{name} {what}"));
    println!(
        "| seconds, and bytes stored | first save | next save | restore | stored at first | stored by next | peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for contender in contenders {
        let name = contender.name();
        let time = |what| seconds(name, what).map_or("".to_owned(), |seconds| format!("{seconds:.2}"));
        let share =
            |what| seconds(name, what).map_or("".to_owned(), |share| format!("{:.2} %", 100.0 * share));
        // What a shell starts is not seen.
        let peaks = ["memory first", "memory next"].map(|which| seconds(name, which).unwrap_or(0.0) / 1024.0);
        let peak = format!("{:.0}", peaks[0].max(peaks[1]));
        let peak = if contender.runs_in_a_shell() { "" } else { peak.as_str() };
        let setting = contender.setting(series.is_noise);
        let (first, next, restore) = (time("first"), time("next"), time("restore"));
        let (stored, grown) = (share("stored first"), share("stored next"));
        println!("| `{setting}` | {first} | {next} | {restore} | {stored} | {grown} | {peak} |");
    }
    println!();
    println!(
        "| speed of stdchk against | first save | wanted | next save | wanted | restore | wanted | restore from the disk |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for contender in contenders.iter().filter(|contender| **contender != Contender::Stdchk) {
        let name = contender.name();
        let ratio = |what| {
            let (theirs, ours) = (seconds(name, what), seconds("stdchk", what));
            theirs.zip(ours).map_or("".to_owned(), |(theirs, ours)| format!("{:.2}", theirs / ours))
        };
        let [first, next, restore] = wanted(*contender);
        let name = if *contender == Contender::Dd { "dd; cp" } else { name };
        let ratios = ["first", "next", "restore", "restore cold"].map(ratio);
        let [ours_first, ours_next, warm, cold] = ratios;
        println!("| {name} | {ours_first} | {first} | {ours_next} | {next} | {warm} | {restore} | {cold} |");
    }
    println!();
    println!("| fraction of a limit | limit s | first save | next save | the same again | restore |");
    println!("|---|---|---|---|---|---|");
    for (limit, name) in [(COPY, COPY), (READ, READ), ("dd first", "write and fsync of the whole (dd)")] {
        let Some(at_best) = figures.median(limit) else { continue };
        let fraction = |what| seconds("stdchk", what).map_or(0.0, |ours| at_best / ours);
        let [first, next, same, restore] = ["first", "next", "same", "restore"].map(fraction);
        println!("| {name} | {at_best:.2} | {first:.2} | {next:.2} | {same:.2} | {restore:.2} |");
    }
    println!();
}

/// What the project wants of each ratio.
fn wanted(contender: Contender) -> [&'static str; 3] {
    match contender {
        Contender::Dd => ["0.8", "2", "0.8"],
        Contender::Restic => ["4", "12", ""],
        Contender::Borg | Contender::Casync => ["", "12", ""],
        Contender::StdchkRaw => ["0.97", "0.97", ""],
        _ => ["", "", ""],
    }
}
