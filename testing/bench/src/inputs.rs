//! What is saved: a generated memory image and its versions, and images of a real program.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stdchk_kit::{Random, generate};

use crate::timing::command_exists;

/// Versions of one image.
pub struct Series {
    pub name: &'static str,
    /// Each with its length.
    pub files: Vec<(PathBuf, u64)>,
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
    Series { name: "generated, 10 % of the pages rewritten each time", files }
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
    Series { name: "the same with four unaligned insertions each time", files }
}

const MELT: &str = "units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 40 0 40 0 40
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
run 1000000
";

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
    let input = dir.join("in.melt");
    std::fs::write(&input, MELT).ok()?;
    let mut lammps = Command::new("lmp");
    lammps.current_dir(dir).args(["-in", "in.melt", "-log", "none", "-screen", "none"]);
    let child = Killed(lammps.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?);
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
        let len = std::fs::metadata(&path).ok()?.len();
        files.push((path, len));
    }
    Some(Series { name: "images of a running LAMMPS (gcore, 6 s apart)", files })
}
