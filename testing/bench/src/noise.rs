//! What looking for a coding costs where there is none: noise, saved with `auto` and without, many times in turn.

use std::path::Path;

use stdchk_kit::Random;

use crate::timing::{Figures, Run, sync_all};
use crate::{Bench, remove};

/// Pairs of saves: the difference that is looked for is small.
const PAIRS: usize = 31;
/// Small enough that many pairs take little time.
const MIB: usize = 128;

/// First saves of noise, staged, so that the disk's moods do not hide what is looked for.
pub fn measure(bench: &Bench) {
    println!("## {MIB} MiB of noise, staged, {PAIRS} pairs of saves in turn\n");
    let file = bench.path("noise");
    std::fs::write(&file, Random::new(11).bytes(MIB << 20)).expect("room for the input");
    let mut figures = Figures::default();
    for pair in 0..PAIRS {
        let mut codings = ["auto", "none"];
        codings.rotate_left(pair % 2);
        for coding in codings {
            let store = bench.path("store");
            sync_all();
            figures.add(coding, save(bench, &store, &file, coding));
            remove(&store);
        }
    }
    figures.print("seconds");
    println!("speed of auto against none: {:.3} (wanted: 0.97)\n", figures.ratio("none", "auto"));
}

fn save(bench: &Bench, store: &Path, file: &Path, coding: &str) -> f64 {
    let mut run = Run::new(&bench.stdchk);
    run.env("STDCHK_STORE", store).args(&["-q", "save", "noise", "--step", "1", "--durability", "staged"]);
    run.args(&["--compress", coding, file.to_str().expect("a path that is text")]).go()
}
