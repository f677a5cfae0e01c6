//! How many times smaller arrays of numbers become, with no version before them and with one.

use std::path::Path;

use stdchk_kit::Random;

use crate::timing::{Run, command_exists};
use crate::training::Training;
use crate::{Bench, remove, tree_bytes};

/// Two versions of an array.
struct Array {
    name: &'static str,
    /// Bytes of an element.
    width: usize,
    versions: [Vec<u8>; 2],
}

pub fn measure(bench: &Bench) {
    if !command_exists("zstd") {
        return println!("no factors of arrays of numbers: zstd is needed for them\n");
    }
    println!("## Factors of arrays of numbers: bytes over bytes stored, metadata included\n");
    println!("- zstd -1: of the file, the next with `--patch-from` of the first");
    println!(
        "- planes: `zstd -1` of byte planes, of the next version's differences of integers to the first\n"
    );
    println!(
        "| array | first: zstd -1 | planes | default | `--prefer space` | next: zstd -1 | planes | default | `--prefer space` |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for array in trained().into_iter().chain([field()]) {
        let paths = ["one", "two"].map(|folder| bench.path(folder).join("array"));
        for (path, bytes) in paths.iter().zip(&array.versions) {
            write(path, bytes);
        }
        let patch = format!("--patch-from={}", text(&paths[0]));
        let zstd = [zstd(bench, &[], &paths[0]), zstd(bench, &[&patch], &paths[1])];
        let planes = planes_alone(bench, &array);
        let [balanced, space] = ["balanced", "space"].map(|prefer| ours(bench, &paths, prefer));
        print!("| {} ", array.name);
        for at in 0..2 {
            print!("| {:.2} | {:.2} | {:.2} | {:.2} ", zstd[at], planes[at], balanced[at], space[at]);
        }
        println!("|");
    }
    println!();
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for the input");
    std::fs::write(path, bytes).expect("room for the input");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// Saves a file under the same name in all versions.
fn save(bench: &Bench, store: &Path, app: &str, step: usize, prefer: &str, path: &Path) {
    let mut run = Run::new(&bench.stdchk);
    run.env("STDCHK_STORE", store).args(&["-q", "save", app, "--step", &step.to_string()]);
    run.args(&["--prefer", prefer, "--stdin-name", "array", "-"]);
    let file = std::fs::File::open(path).expect("the input");
    assert!(run.start_with(file.into()).wait().expect("a child").success(), "the save failed");
}

fn len(path: &Path) -> f64 {
    std::fs::metadata(path).expect("a file").len() as f64
}

/// The factors of a first and of a next version in a store of their own.
fn ours(bench: &Bench, paths: &[std::path::PathBuf; 2], prefer: &str) -> [f64; 2] {
    let store = bench.path("store");
    save(bench, &store, "nothing", 0, prefer, Path::new("/dev/null"));
    let mut stored = tree_bytes(&store);
    let factors = [1, 2].map(|step| {
        let path = &paths[step - 1];
        save(bench, &store, "array", step, prefer, path);
        let before = std::mem::replace(&mut stored, tree_bytes(&store));
        len(path) / (stored - before) as f64
    });
    remove(&store);
    factors
}

/// The factor of `zstd -1` with more options.
fn zstd(bench: &Bench, flags: &[&str], path: &Path) -> f64 {
    let out = bench.path("out.zst");
    let mut run = Run::new(Path::new("zstd"));
    run.args(&["-1", "-q", "-f"]).args(flags).args(&[text(path), "-o", text(&out)]).go();
    len(path) / len(&out)
}

/// What the planes of the first version and of the differences of the next to it give, with no blocks, checks or metadata.
fn planes_alone(bench: &Bench, array: &Array) -> [f64; 2] {
    let [first, next] = &array.versions;
    let differences = differences(next, first, array.width);
    [first, &differences].map(|bytes| {
        let path = bench.path("planes");
        write(&path, &planes(bytes, array.width));
        zstd(bench, &[], &path)
    })
}

/// The first bytes of all elements, then the second ones, and so on.
fn planes(bytes: &[u8], width: usize) -> Vec<u8> {
    (0..width).flat_map(|at| bytes.iter().skip(at).step_by(width).copied()).collect()
}

/// Each element less the one before, as little-endian integers that wrap.
fn differences(next: &[u8], first: &[u8], width: usize) -> Vec<u8> {
    let integer = |element: &[u8]| {
        let mut whole = [0; 8];
        whole[..width].copy_from_slice(element);
        u64::from_le_bytes(whole)
    };
    let pairs = next.chunks_exact(width).zip(first.chunks_exact(width));
    let differences = pairs.map(|(next, first)| integer(next).wrapping_sub(integer(first)).to_le_bytes());
    differences.flat_map(|bytes| bytes.into_iter().take(width)).collect()
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
    let array = |name, from, part| Array { name, width: 4, versions: pair(from, part) };
    vec![
        array("float32 weights, a step of training", 0, 0),
        array("float32 weights, a step of fine-tuning", 1, 0),
        array("Adam's first moments, float32", 1, 1),
        array("Adam's second moments, float32", 1, 2),
        Array {
            name: "bfloat16 weights, a step of training",
            width: 2,
            versions: pair(0, 0).map(|weights| bfloat16(&weights)),
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
    Array { name, width: 8, versions: [first, bytes(&heat)] }
}
