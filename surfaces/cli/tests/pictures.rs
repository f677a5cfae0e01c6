//! Charts as PNG: the same as the SVG, with its text.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use resvg::tiny_skia::Pixmap;

fn draw(dir: &Path, args: &[&str]) -> Pixmap {
    let file = dir.join("chart.PNG");
    let mut run = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    let done = run.args(args).arg("--plot").arg(&file).current_dir(dir).output().expect("it starts");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    Pixmap::load_png(&file).expect("a PNG")
}

/// How many pixels there are of each colour.
fn colours(picture: &Pixmap, from: u32, to: u32) -> BTreeMap<[u8; 3], usize> {
    let mut colours = BTreeMap::new();
    let row = picture.width() as usize;
    for pixel in &picture.pixels()[from as usize * row..to as usize * row] {
        assert_eq!(pixel.alpha(), 255, "a chart has a ground");
        *colours.entry([pixel.red(), pixel.green(), pixel.blue()]).or_insert(0) += 1;
    }
    colours
}

#[test]
fn charts_are_drawn_as_png() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    ["a", "b"].iter().for_each(|name| std::fs::write(dir.join(name), &bytes).expect("room"));
    let job = "--nodes 4096 --ckpt-size 1.5TB --bandwidth 50GB/s --node-mtti 5y --solve-time 7d";
    let plan: Vec<&str> = ["plan"].into_iter().chain(job.split(' ')).collect();
    for args in [
        &["study", "similarity", "a", "b"][..],
        &["study", "compression", "a", "b", "--bandwidth", "1GB/s"],
        &["plan", "--reproduce", "jaguar"],
        &plan,
    ] {
        let picture = draw(dir, args);
        assert_eq!(picture.width(), 1720, "{args:?}");
        let all = colours(&picture, 0, picture.height());
        let white = all[&[255; 3]] as f64 / picture.pixels().len() as f64;
        assert!((0.4..0.97).contains(&white), "{args:?}: {white} of it is white");
        let blue = all.get(&[46, 99, 158]).copied().unwrap_or(0);
        assert!(blue > 500, "{args:?}: no data");
        // The title is text, and nothing else is there: without a font there would be none.
        let title = colours(&picture, 24, 70);
        assert!(title.len() > 20, "{args:?}: no title, but {} colours", title.len());
    }
}
