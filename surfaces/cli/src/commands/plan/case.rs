//! A machine and a job, and what the models make of them.

use std::time::Duration;

use stdchk::model::{self, Compression, Interval, Job, Latency, Overlay};
use stdchk::{Error, History, Result};

use crate::args::PlanArgs;
use crate::output::{size, span};

const DAY: f64 = 86_400.0;
/// Bytes a second that a node compresses, where nothing is known of that.
pub const COMPRESSING: f64 = 500e6;
/// Bytes a second of a node's link, where nothing is known of the network: ten gigabit Ethernet, a little less than full.
pub const LINK: f64 = 1e9;
const NO_INTERRUPTION: &str =
    "no interruption of this application is on record, so how often it fails must be given: --node-mtti TIME";

/// Seconds of work between two interruptions.
pub fn mtti_of(history: &History) -> Option<f64> {
    history.mtti_ms().map(|mtti| mtti as f64 / 1e3)
}

/// Seconds that a save usually takes.
pub fn save_of(history: &History) -> Option<f64> {
    // A clock of milliseconds sees nothing of what is faster.
    history.usual_save_ms().map(|took| (took as f64 / 1e3).max(0.5e-3))
}

/// What the history of an application says.
struct Measured {
    bytes: f64,
    /// The share of the bytes that is new.
    new: f64,
    /// New bytes stored in a second, everything included.
    rate: f64,
    restore: Option<f64>,
}

impl Measured {
    fn of(history: &History) -> Result<Measured> {
        let (Some(newest), Some(save)) = (history.saves().last(), save_of(history)) else {
            return Err(Error::invalid("nothing was measured of this application yet"));
        };
        let later: Vec<_> =
            history.saves().iter().filter(|save| save.pause_ms > 0 && save.bytes > 0).collect();
        let shares = later.iter().map(|save| save.new as f64 / save.bytes as f64);
        let new = if later.is_empty() { 1.0 } else { shares.sum::<f64>() / later.len() as f64 };
        // A save in which nothing is new still takes its time.
        let new = new.clamp(1e-6, 1.0);
        let bytes = newest.bytes.max(1) as f64;
        let restore = history.usual_restore_ms().map(|took| took as f64 / 1e3);
        Ok(Measured { bytes, new, rate: bytes * new / save, restore })
    }
}

/// Seconds until every process has created a file or object of its own (the overlay report, 3.2 and 4.1).
fn create_time(args: &PlanArgs) -> f64 {
    let files = args.nodes as f64 * args.processes_per_node as f64;
    args.creates_per_second.map_or(0.0, |rate| files / rate as f64)
}

/// What the models make of a machine and a job.
#[derive(Clone)]
pub struct Case {
    pub solve: f64,
    pub mtti: f64,
    pub startup: f64,
    /// Until all files or objects of a checkpoint are created.
    pub create: f64,
    pub restart: Option<f64>,
    pub bytes: f64,
    /// The share of the bytes that is written.
    pub new: f64,
    pub nodes: f64,
    pub link: f64,
    pub bisection: f64,
    pub store: f64,
    pub compression: Option<Compression>,
    pub overlay: Option<Overlay>,
    /// What was not said and is taken to be so, for people.
    pub assumed: Vec<String>,
}

impl Case {
    /// From what the user says, and where that is silent, from what was measured; how often the job is interrupted also from
    /// the mean of a trace of its failures.
    pub fn of(args: &PlanArgs, history: Option<&History>, trace: Option<f64>) -> Result<Case> {
        let measured = history.map(Measured::of).transpose()?;
        let nodes = args.nodes as f64;
        let speed = |rate: u64| rate as f64 * nodes;
        let mut assumed = Vec::new();
        let compression = args.compress.map(|said| {
            if said.compress.is_none() {
                assumed
                    .push(format!("compression at {:.0} MB/s on each node (--compress)", COMPRESSING / 1e6));
            }
            let compress = said.compress.map_or(COMPRESSING * nodes, speed);
            let decompress = said.decompress.map_or(compress, speed);
            Compression { saved: 1.0 - 1.0 / said.factor, compress, decompress }
        });
        let is_network_known = args.link_bandwidth.or(args.bisection).is_some();
        if args.overlay.is_some() && !is_network_known {
            assumed.push(format!("links of {} GB/s on each node (--link-bandwidth)", LINK / 1e9));
        }
        let unknown = if args.overlay.is_some() && !is_network_known { LINK * nodes } else { f64::INFINITY };
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let known = |given: Option<f64>, of: fn(&Measured) -> f64| given.or(measured.as_ref().map(of));
        let missing = || {
            Error::invalid(
                "--ckpt-size, --bandwidth and --node-mtti (or a trace of failures) are needed where no --app is given",
            )
        };
        let mtti = seconds(args.node_mtti).map(|mtti| mtti / nodes);
        let bytes =
            known(args.ckpt_size.map(|size| size as f64), |measured| measured.bytes).ok_or_else(missing)?;
        Ok(Case {
            solve: seconds(args.solve_time).unwrap_or(DAY),
            mtti: match mtti.or(history.and_then(mtti_of)).or(trace) {
                Some(mtti) => mtti,
                None if args.app.is_some() => return Err(Error::invalid(NO_INTERRUPTION)),
                None => return Err(missing()),
            },
            startup: seconds(args.startup_time).unwrap_or(0.0),
            create: create_time(args),
            restart: seconds(args.restart_time).or(measured.as_ref().and_then(|measured| measured.restore)),
            bytes,
            new: known(args.new.map(|percent| f64::from(percent) / 100.0), |measured| measured.new)
                .unwrap_or(1.0),
            nodes,
            link: args.link_bandwidth.map_or(unknown, speed),
            bisection: args.bisection.map_or(f64::INFINITY, |rate| rate as f64),
            store: known(args.bandwidth.map(|rate| rate as f64), |measured| measured.rate)
                .ok_or_else(missing)?,
            compression,
            overlay: args.overlay.map(|memory| Overlay { memory: memory as f64 }),
            assumed,
        })
    }

    fn latency(&self, bytes: f64) -> Latency {
        let Case { startup, link, bisection, store, .. } = *self;
        Latency { startup, bytes, link, bisection, store }
    }

    pub fn knows_network(&self) -> bool {
        self.link.min(self.bisection).is_finite()
    }

    /// Bytes of a checkpoint that reach the store or the overlay.
    pub fn written(&self) -> f64 {
        self.bytes * self.new * self.kept()
    }

    fn kept(&self) -> f64 {
        self.compression.map_or(1.0, |compression| 1.0 - compression.saved)
    }

    /// The job, and the shortest interval that the overlay allows.
    pub fn job(&self) -> model::Result<(Job, f64)> {
        let latency = self.latency(self.written());
        let latency = Latency { startup: latency.startup + self.create, ..latency };
        let (written, least) = match &self.overlay {
            None => (latency.time()?, 0.0),
            Some(overlay) => (overlay.time(&latency)?, overlay.drain(&latency)?),
        };
        // Compressing overlaps with writing: the slower counts.
        let compressed = self.compression.map_or(0.0, |c| self.startup + self.bytes * self.new / c.compress);
        let read = self.latency(self.bytes * self.kept()).time()?;
        let decompressed = self.compression.map_or(0.0, |c| self.startup + self.bytes / c.decompress);
        let restart = self.restart.unwrap_or(read.max(decompressed));
        Ok((Job { solve: self.solve, checkpoint: written.max(compressed), restart, mtti: self.mtti }, least))
    }

    pub fn best(&self) -> model::Result<(Job, Interval)> {
        let (job, least) = self.job()?;
        Ok((job, Interval::at_least(&job, least)?))
    }

    /// The share of the expected time that is work, where the job ends at all.
    pub fn efficiency(&self) -> Option<f64> {
        self.best().ok().map(|(job, best)| job.solve / best.expected)
    }

    /// Whether compression pays, for people: by what it does here, where it overlaps with writing, and by equation 1, where writing waits for it.
    pub fn verdict(&self) -> model::Result<Option<String>> {
        let Some(compression) = self.compression else { return Ok(None) };
        let (job, best) = self.best()?;
        let share = |job: &Job, best: &Interval| format!("{:.1} %", 100.0 * job.solve / best.expected);
        let took = span(job.checkpoint);
        let verdict = match (Case { compression: None, ..self.clone() }).best() {
            Ok((plain, without)) => format!(
                "Compression {}: a checkpoint takes {took} instead of {}, and {} of the time is work instead of {}.",
                if best.expected < without.expected { "pays" } else { "does not pay" },
                span(plain.checkpoint),
                share(&job, &best),
                share(&plain, &without),
            ),
            Err(_) => {
                format!("Compression pays: a checkpoint takes {took}, and without it the job hardly ends.")
            }
        };
        let latency = self.latency(0.0);
        let rate = if self.overlay.is_some() { latency.network()? } else { latency.bandwidth()? };
        Ok(Some(format!(
            "{verdict} Were it waited for before anything is written, it would pay below {}/s for all nodes together, and they write {}/s.",
            size(compression.break_even()? as u64),
            size(rate as u64)
        )))
    }
}
