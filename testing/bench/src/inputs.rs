//! What is saved: a generated memory image and its versions, and images of a real program.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stdchk_kit::{Random, generate};

use crate::timing::command_exists;
use crate::training::Training;

/// Versions of one image.
pub struct Series {
    pub name: &'static str,
    /// Each with its length.
    pub files: Vec<(PathBuf, u64)>,
    /// Nothing in it can be compressed.
    pub is_noise: bool,
}

impl Series {
    fn of_a_program(name: &'static str, files: Vec<PathBuf>) -> Option<Series> {
        let sized = |path: PathBuf| Some((path.clone(), std::fs::metadata(&path).ok()?.len()));
        let files = files.into_iter().map(sized).collect::<Option<Vec<_>>>()?;
        Some(Series { name, files, is_noise: false })
    }
}

/// An image that does not compress, and four versions, each with 10 % of the pages rewritten at random places.
pub fn generated(dir: &Path, mib: usize) -> Series {
    let mut random = Random::new(2026);
    let mut image = random.bytes(mib << 20);
    let mut files = Vec::new();
    for version in 0..5 {
        let path = dir.join(format!("generated.{version}"));
        std::fs::write(&path, &image).expect("room for the input");
        files.push((path, image.len() as u64));
        generate::touch_pages(&mut image, 10, &mut random);
    }
    Series { name: "Generated, 10 % of the pages rewritten each time", files, is_noise: true }
}

/// The same, but each version also has four pieces inserted, of up to 64 KiB and aligned to nothing.
pub fn unaligned(dir: &Path, mib: usize) -> Series {
    let mut random = Random::new(2027);
    let mut image = random.bytes(mib << 20);
    let mut files = Vec::new();
    for version in 0..5 {
        let path = dir.join(format!("unaligned.{version}"));
        std::fs::write(&path, &image).expect("room for the input");
        files.push((path, image.len() as u64));
        generate::touch_pages(&mut image, 10, &mut random);
        generate::insert(&mut image, 4, 64 << 10, &mut random);
    }
    Series { name: "The same with four unaligned insertions each time", files, is_noise: true }
}

/// A melt of `side`^3 cells of four atoms.
fn melt(side: usize, run: &str) -> String {
    format!(
        "units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {side} 0 {side} 0 {side}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
{run}
"
    )
}

fn lammps(dir: &Path, input: &str) -> Option<Command> {
    std::fs::write(dir.join("in.melt"), input).ok()?;
    let mut lammps = Command::new("lmp");
    lammps.current_dir(dir).args(["-in", "in.melt", "-log", "none", "-screen", "none"]);
    lammps.stdout(Stdio::null()).stderr(Stdio::null());
    Some(lammps)
}

/// A process that is killed when it is not needed any more.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three images of a running LAMMPS, some seconds apart, as a debugger dumps them.
pub fn gcore_of_lammps(dir: &Path) -> Option<Series> {
    if !command_exists("lmp") || !command_exists("gcore") {
        return None;
    }
    let child = Killed(lammps(dir, &melt(40, "run 1000000"))?.spawn().ok()?);
    let pid = child.0.id();
    let mut files = Vec::new();
    for version in 0..3 {
        std::thread::sleep(Duration::from_secs(6));
        let path = dir.join(format!("core.{version}"));
        let mut gcore = Command::new("gcore");
        gcore.arg("-o").arg(&path).arg(pid.to_string());
        let dumped = gcore.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?.success();
        let written = dir.join(format!("core.{version}.{pid}"));
        if !dumped || std::fs::rename(&written, &path).is_err() {
            return None;
        }
        files.push(path);
    }
    Series::of_a_program("Images of a running LAMMPS (gcore, 6 s apart)", files)
}

/// Four restart files of a LAMMPS run, ten steps apart.
pub fn restarts_of_lammps(dir: &Path) -> Option<Series> {
    if !command_exists("lmp") {
        return None;
    }
    let mut lammps = lammps(dir, &melt(64, "restart 10 restart.*\nrun 40"))?;
    let files = [10, 20, 30, 40].map(|step| dir.join(format!("restart.{step}")));
    lammps
        .status()
        .ok()?
        .success()
        .then(|| Series::of_a_program("Restart files of LAMMPS, ten steps apart", files.into()))?
}

/// Four states of a small network and its optimiser, ten steps of training apart.
pub fn weights(dir: &Path) -> Series {
    let mut training = Training::new(2031);
    let before = training.run(10);
    let mut after = before;
    let mut files = Vec::new();
    for version in 0..4 {
        let path = dir.join(format!("weights.{version}"));
        std::fs::write(&path, training.state()).expect("room for the input");
        files.push(path);
        after = training.run(10);
    }
    assert!(after < before, "the network does not learn: its error was {before} and is {after}");
    let name = "Weights of a network and the state of Adam, ten steps of training apart";
    Series::of_a_program(name, files).expect("files that were just written")
}
