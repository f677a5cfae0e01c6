//! How many times smaller arrays of numbers become, with no version before them and with one.

use std::path::Path;

use stdchk_kit::Random;

use crate::timing::{Run, command_exists};
use crate::training::Training;
use crate::{Bench, remove, tree_bytes};

/// Two versions of an array.
struct Array {
    name: &'static str,
    versions: [Vec<u8>; 2],
    /// The factors of the first and of the next version that are looked for.
    wanted: [&'static str; 2],
}

pub fn measure(bench: &Bench) {
    println!("## Factors of arrays of numbers: bytes over bytes stored, metadata included\n");
    println!(
        "| array | first: `zstd -1` | default | `--prefer space` | wanted | next: `zstd -1 --patch-from` | default | `--prefer space` | wanted |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for array in trained().into_iter().chain([field()]) {
        let paths = ["one", "two"].map(|folder| bench.path(folder).join("array"));
        for (path, bytes) in paths.iter().zip(&array.versions) {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for the input");
            std::fs::write(path, bytes).expect("room for the input");
        }
        let zstd = zstd(bench, &paths[0], &paths[1]);
        let [balanced, space] = ["balanced", "space"].map(|prefer| ours(bench, &paths, prefer));
        let Array { name, wanted, .. } = array;
        print!("| {name} ");
        for at in 0..2 {
            let zstd = zstd.map_or(String::new(), |zstd| format!("{:.2}", zstd[at]));
            print!("| {zstd} | {:.2} | {:.2} | {} ", balanced[at], space[at], wanted[at]);
        }
        println!("|");
    }
    println!();
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

fn len(path: &Path) -> f64 {
    std::fs::metadata(path).expect("a file").len() as f64
}

/// The factors of a first and of a next version in a store of their own.
fn ours(bench: &Bench, paths: &[std::path::PathBuf; 2], prefer: &str) -> [f64; 2] {
    let store = bench.path("store");
    let mut stored = 0;
    let factors = [1, 2].map(|step| {
        let path = &paths[step - 1];
        let mut run = Run::new(&bench.stdchk);
        run.env("STDCHK_STORE", &store).args(&["-q", "save", "array", "--step", &step.to_string()]);
        run.args(&["--prefer", prefer]);
        // The same name for both.
        run.args(&["--stdin-name", "array", "-"]);
        let file = std::fs::File::open(path).expect("the input");
        assert!(run.start_with(file.into()).wait().expect("a child").success(), "the save failed");
        let before = std::mem::replace(&mut stored, tree_bytes(&store));
        len(path) / (stored - before) as f64
    });
    remove(&store);
    factors
}

fn zstd(bench: &Bench, first: &Path, next: &Path) -> Option<[f64; 2]> {
    if !command_exists("zstd") {
        return None;
    }
    let out = bench.path("out.zst");
    let patch = format!("--patch-from={}", text(first));
    let of = |flags: &[&str], path: &Path| {
        let mut run = Run::new(Path::new("zstd"));
        run.args(&["-1", "-q", "-f"]).args(flags).args(&[text(path), "-o", text(&out)]).go();
        len(path) / len(&out)
    };
    Some([of(&[], first), of(&[&patch], next)])
}

/// A network: one step of training apart, and of fine-tuning.
fn trained() -> Vec<Array> {
    let mut training = Training::new(2031);
    training.run(30);
    let mut states = vec![parts(&training)];
    training.run(1);
    states.push(parts(&training));
    training.rate = 1e-5;
    training.run(1);
    states.push(parts(&training));
    let pair = |from: usize, part: usize| [states[from][part].clone(), states[from + 1][part].clone()];
    let array = |name, from, part, wanted| Array { name, versions: pair(from, part), wanted };
    vec![
        array("float32 weights, a step of training", 0, 0, ["1.2", "1.58"]),
        array("float32 weights, a step of fine-tuning", 1, 0, ["1.2", "4.1"]),
        array("Adam's first moments, float32", 1, 1, ["1.2", "2.5"]),
        array("Adam's second moments, float32", 1, 2, ["1.23", "3.4"]),
        Array {
            name: "bfloat16 weights, a step of training",
            versions: pair(0, 0).map(|weights| bfloat16(&weights)),
            wanted: ["1.46", ""],
        },
    ]
}

/// Weights, first moments and second moments.
fn parts(training: &Training) -> [Vec<u8>; 3] {
    let state = training.state();
    let third = state.len() / 3;
    [0, 1, 2].map(|part| state[part * third..][..third].to_vec())
}

/// The upper halves, rounded to the nearest.
fn bfloat16(weights: &[u8]) -> Vec<u8> {
    let floats = weights.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    floats.flat_map(|bits| (((bits + 0x8000) >> 16) as u16).to_le_bytes()).collect()
}

/// Heat that spreads over a plate of 1024 x 1024 from random spots, ten steps apart.
fn field() -> Array {
    const SIDE: usize = 1024;
    let mut random = Random::new(2032);
    let mut heat = vec![0.0f64; SIDE * SIDE];
    for _ in 0..2000 {
        let spot = random.below((SIDE * SIDE) as u64) as usize;
        heat[spot] += random.below(1_000_000) as f64;
    }
    let spread = |steps: usize, heat: &mut Vec<f64>| {
        for _ in 0..steps {
            let old = heat.clone();
            for row in 1..SIDE - 1 {
                for at in row * SIDE + 1..(row + 1) * SIDE - 1 {
                    let around = old[at - 1] + old[at + 1] + old[at - SIDE] + old[at + SIDE];
                    heat[at] = old[at] + 0.2 * (around - 4.0 * old[at]);
                }
            }
        }
    };
    let bytes = |heat: &[f64]| heat.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    spread(300, &mut heat);
    let first = bytes(&heat);
    spread(10, &mut heat);
    let name = "float64 field, ten steps of spreading heat";
    Array { name, versions: [first, bytes(&heat)], wanted: ["1.2", ""] }
}
