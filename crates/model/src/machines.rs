//! The machines of the papers, and the curves that they drew for them.

use crate::{Compression, Interval, Job, Latency, Overlay, Result};

const YEAR: f64 = 365.25 * 86_400.0;
/// Objects that a lightweight file system creates in a second (the overlay report, 4.1).
pub const OBJECTS_PER_SECOND: f64 = 60_000.0;
/// Nodes that lend their memory in the report's chapter 4.
const OVERLAY_NODES: f64 = 1024.0;
/// Work of the jobs in the curves: long against every interval, so that it makes no difference.
const SOLVE: f64 = 30.0 * 86_400.0;

/// A machine of the overlay report, table 3.1. Every processor counts as a node that fails for itself, and writes half of its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// What it was called.
    pub name: &'static str,
    /// Processors of a node.
    pub cores: f64,
    /// Bytes of memory of each processor (d_max).
    pub memory: f64,
    /// Mean time between failures of one processor (M_dev).
    pub mtti: f64,
    /// Rate of the store (beta_s).
    pub store: f64,
    /// Rate through the middle of the network (beta_n).
    pub bisection: f64,
    /// Rate of one link (beta_L).
    pub link: f64,
}

/// The four machines of the report.
pub const MACHINES: [Machine; 4] = [
    machine("red-storm", 1.0e9, 50e9, 2.3e12, 4.8e9),
    machine("bluegene-l", 0.25e9, 45e9, 360e9, 1.4e9),
    machine("jaguar", 2.0e9, 45e9, 1.8e12, 3.8e9),
    machine("petaflop", 2.5e9, 500e9, 30e12, 40e9),
];

const fn machine(name: &'static str, memory: f64, store: f64, bisection: f64, link: f64) -> Machine {
    Machine { name, cores: 2.0, memory, mtti: 5.0 * YEAR, store, bisection, link }
}

/// How a checkpoint gets to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A parallel file system at the speed of the hardware, without any cost of creating files: the report's lower bound.
    Files,
    /// Objects that processes create for themselves, in parallel.
    Objects,
    /// The same, through the memory of 1024 other nodes.
    Overlay,
}

/// One point of the report's curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The optimal interval in seconds (figures 3.2 and 4.3).
    pub interval: f64,
    /// Bytes of a checkpoint for each second that the application waits for it (figures 3.3 and 4.4).
    pub throughput: f64,
    /// The share of the time that goes into checkpoints (figures 3.4 and 4.5).
    pub saving: f64,
    /// The share of the time that is work, restarts and work done again counted too (Daly's expected time).
    pub efficiency: f64,
    /// Whether a checkpoint fits into what the overlay takes at the speed of the network.
    pub fits: bool,
}

impl Machine {
    /// One of the report's machines.
    pub fn named(name: &str) -> Option<Machine> {
        MACHINES.into_iter().find(|machine| machine.name == name)
    }

    /// The overlay of chapter 4: 1024 nodes with twice the memory of a compute node each. (The text says of a compute-node
    /// *processor*; then the memory would be exhausted at 8 Ki processors, not at 16 Ki as it says.)
    pub fn overlay(&self) -> Overlay {
        Overlay { memory: OVERLAY_NODES * 2.0 * self.cores * self.memory }
    }

    /// What the models say of a job on so many processors.
    pub fn at(&self, processors: f64, path: Path) -> Result<Point> {
        let startup = if path == Path::Files { 0.0 } else { processors / OBJECTS_PER_SECOND };
        let latency = Latency {
            startup,
            bytes: processors * self.memory / 2.0,
            link: processors * self.link,
            bisection: self.bisection,
            store: self.store,
        };
        let overlay = self.overlay();
        let fits = latency.bytes <= overlay.effective(&latency)?;
        let (checkpoint, least) = match path {
            Path::Overlay => (overlay.time(&latency)?, overlay.drain(&latency)?),
            _ => (latency.time()?, 0.0),
        };
        let restart = latency.bytes / latency.bandwidth()?;
        let job = Job { solve: SOLVE, checkpoint, restart, mtti: self.mtti / processors };
        let best = Interval::at_least(&job, least)?;
        Ok(Point {
            interval: best.interval,
            throughput: latency.bytes / checkpoint,
            saving: checkpoint / (best.interval + checkpoint),
            efficiency: job.solve / best.expected,
            fits,
        })
    }
}

/// What compression does to a job on Intrepid as the compression paper has it (IV.E): a third of 2 GB for each process, written and
/// read at 1 MB/s, one failure in five years on each node. Nothing overlaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intrepid {
    /// The codec for each process; none writes as it is.
    pub compression: Option<Compression>,
}

/// Bytes that each process writes, and bytes that it can write in a second.
const INTREPID_BYTES: f64 = 2e9 / 3.0;
const INTREPID_RATE: f64 = 1e6;

/// What the paper's text says of pbzip2 on LAMMPS: checkpoints of the system (IV.C).
pub const LAMMPS_SYSTEM: Compression = Compression { saved: 0.565, compress: 94.8e6, decompress: 94.8e6 };
/// Of LAMMPS's own restart files.
pub const LAMMPS_APPLICATION: Compression = Compression { saved: 0.433, compress: 87e6, decompress: 87e6 };
/// Of its small applications at least; their speeds are only drawn, so LAMMPS's serves.
pub const MINI_APPLICATIONS: Compression = Compression { saved: 0.7, ..LAMMPS_SYSTEM };

impl Intrepid {
    /// The share of the expected time that is work, on so many nodes (figure 5 has its reciprocal).
    pub fn efficiency(&self, nodes: f64) -> Result<f64> {
        let (checkpoint, restart) = match &self.compression {
            None => (INTREPID_BYTES / INTREPID_RATE, INTREPID_BYTES / INTREPID_RATE),
            Some(codec) => (
                codec.waited(INTREPID_BYTES, INTREPID_RATE)?,
                codec.waited_back(INTREPID_BYTES, INTREPID_RATE)?,
            ),
        };
        let job = Job { solve: SOLVE, checkpoint, restart, mtti: 5.0 * YEAR / nodes };
        Ok(job.solve / Interval::daly(&job)?.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(processors: f64, path: Path) -> [Point; 4] {
        MACHINES.map(|machine| machine.at(processors, path).unwrap())
    }

    /// The report, 3.4: the store governs any job on more than 32 processors, and the bisection none.
    #[test]
    fn the_store_governs_all_but_small_jobs() {
        for (machine, point) in MACHINES.iter().zip(all(64.0, Path::Files)) {
            assert!((point.throughput / machine.store - 1.0).abs() < 1e-12, "{}", machine.name);
        }
        let red_storm = MACHINES[0];
        assert_eq!(red_storm.at(8.0, Path::Files).unwrap().throughput, 8.0 * red_storm.link);
    }

    /// The report, 3.4: no better than 70 % at 64 Ki processors, even on the petaflop system.
    #[test]
    fn at_64_ki_processors_nobody_is_above_seventy_per_cent() {
        for (machine, point) in MACHINES.iter().zip(all(65_536.0, Path::Files)) {
            assert!(point.efficiency <= 0.7, "{}: {}", machine.name, point.efficiency);
        }
        let petaflop = Machine::named("petaflop").unwrap().at(65_536.0, Path::Files).unwrap();
        assert!(petaflop.efficiency > 0.6);
        assert!(all(16.0, Path::Files).iter().all(|point| point.efficiency > 0.99));
    }

    /// The report, 4.3: below 8 Ki processors less than 1 %; at 16 Ki the memory of the overlay is exhausted.
    #[test]
    fn an_overlay_hides_checkpoints_up_to_8_ki_processors() {
        for (machine, point) in MACHINES.iter().zip(all(4096.0, Path::Overlay)) {
            assert!(point.saving < 0.01, "{}: {}", machine.name, point.saving);
        }
        assert!(all(16_384.0, Path::Overlay).iter().all(|point| !point.fits));
        assert!(all(4096.0, Path::Overlay).iter().all(|point| point.fits));
        for processors in [1024.0, 65_536.0] {
            for (with, without) in all(processors, Path::Overlay).iter().zip(all(processors, Path::Files)) {
                assert!(with.saving < without.saving);
            }
        }
    }

    /// The compression paper, IV.E: a dramatic effect at today's scales and more so at those to come.
    #[test]
    fn compression_helps_where_the_store_is_slow() {
        let gain = |nodes| {
            let with = Intrepid { compression: Some(LAMMPS_SYSTEM) }.efficiency(nodes).unwrap();
            with / Intrepid { compression: None }.efficiency(nodes).unwrap()
        };
        assert!(gain(1024.0) > 1.02 && gain(8192.0) > 1.1 && gain(16_384.0) > gain(8192.0));
        // What does not compress better helps less.
        let of = |codec| Intrepid { compression: Some(codec) }.efficiency(8192.0).unwrap();
        assert!(of(MINI_APPLICATIONS) > of(LAMMPS_SYSTEM) && of(LAMMPS_SYSTEM) > of(LAMMPS_APPLICATION));
    }

    /// Table I says 3.38 GB/s for LAMMPS; equation 1 with the factor and the speed that the text prints says a sixtieth of that. Either
    /// is far above the 1 MB/s of the machine.
    #[test]
    fn the_printed_break_even_does_not_follow_from_the_printed_speeds() {
        let ours = LAMMPS_SYSTEM.break_even().unwrap();
        assert!((ours / 53.6e6 - 1.0).abs() < 0.01, "{ours}");
        assert!(ours > 50.0 * INTREPID_RATE);
        // Speeds of 6 GB/s both ways would give it.
        let needed = Compression { compress: 6e9, decompress: 6e9, ..LAMMPS_SYSTEM };
        assert!((needed.break_even().unwrap() / 3.38e9 - 1.0).abs() < 0.01);
    }
}
