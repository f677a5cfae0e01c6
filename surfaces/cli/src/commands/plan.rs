//! How often to save: the models of `docs/MODEL.md` on what the user knows.

use std::path::Path;

use serde_json::json;

use stdchk::model::{self, Compression, Failures, Interval, Job, Latency, Overlay, simulate};
use stdchk::{Error, Result};

use crate::args::PlanArgs;
use crate::output::{Out, size, span, table};

/// What the models make of a machine and a job.
#[derive(Clone)]
struct Case {
    solve: f64,
    mtti: f64,
    startup: f64,
    restart: Option<f64>,
    bytes: f64,
    new: f64,
    link: f64,
    bisection: f64,
    store: f64,
    compression: Option<Compression>,
    overlay: Option<Overlay>,
}

impl Case {
    fn of(args: &PlanArgs) -> Result<Case> {
        let nodes = args.nodes as f64;
        let speed = |rate: u64| rate as f64 * nodes;
        let compression = match (args.compress_ratio, args.compress_speed) {
            (Some(ratio), Some(compress)) if ratio.is_finite() && ratio >= 1.0 => Some(Compression {
                saved: 1.0 - 1.0 / ratio,
                compress: speed(compress),
                decompress: speed(args.decompress_speed.unwrap_or(compress)),
            }),
            (Some(ratio), _) => {
                return Err(Error::invalid(format!("--compress-ratio must be 1 or more, not {ratio}")));
            }
            _ => None,
        };
        let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64());
        Ok(Case {
            solve: args.solve_time.as_secs_f64(),
            mtti: args.node_mtti.as_secs_f64() / nodes,
            startup: seconds(args.startup_time).unwrap_or(0.0),
            restart: seconds(args.restart_time),
            bytes: args.ckpt_size as f64,
            new: f64::from(args.new) / 100.0,
            link: args.link_bandwidth.map_or(f64::INFINITY, speed),
            bisection: args.bisection.map_or(f64::INFINITY, |rate| rate as f64),
            store: args.bandwidth as f64,
            compression,
            overlay: args.overlay.map(|memory| Overlay { memory: memory as f64 }),
        })
    }

    fn latency(&self, bytes: f64) -> Latency {
        let Case { startup, link, bisection, store, .. } = *self;
        Latency { startup, bytes, link, bisection, store }
    }

    fn kept(&self) -> f64 {
        self.compression.map_or(1.0, |compression| 1.0 - compression.saved)
    }

    /// The job, and the shortest interval that the overlay allows.
    fn job(&self) -> model::Result<(Job, f64)> {
        let new = self.bytes * self.new;
        let latency = self.latency(new * self.kept());
        let (written, least) = match &self.overlay {
            None => (latency.time()?, 0.0),
            Some(overlay) => (overlay.time(&latency)?, overlay.drain(&latency)?),
        };
        // Compressing overlaps with writing: the slower counts.
        let compressed =
            self.compression.map_or(0.0, |compression| self.startup + new / compression.compress);
        let read = self.latency(self.bytes * self.kept()).time()?;
        let decompressed = self.compression.map_or(0.0, |c| self.startup + self.bytes / c.decompress);
        let restart = self.restart.unwrap_or(read.max(decompressed));
        Ok((Job { solve: self.solve, checkpoint: written.max(compressed), restart, mtti: self.mtti }, least))
    }

    fn best(&self) -> model::Result<(Job, Interval)> {
        let (job, least) = self.job()?;
        Ok((job, Interval::at_least(&job, least)?))
    }

    fn efficiency(&self) -> Option<f64> {
        self.best().ok().map(|(job, best)| job.solve / best.expected)
    }

    /// Whether compression pays, for people.
    fn verdict(&self) -> model::Result<Option<String>> {
        let Some(compression) = self.compression else { return Ok(None) };
        let (limit, rate) = (compression.break_even()?, self.latency(0.0).bandwidth()?);
        let verdict = if rate < limit { "pays" } else { "does not pay" };
        Ok(Some(format!(
            "Compression {verdict} when it is waited for: it does below {}/s, and checkpoints are written at {}/s.",
            size(limit as u64),
            size(rate as u64)
        )))
    }

    /// What could be changed, and the share of work that would follow, best first.
    fn levers(&self) -> Vec<(&'static str, f64)> {
        let mut levers = vec![
            ("twice the bandwidth of the store", Case { store: 2.0 * self.store, ..self.clone() }),
            ("half as many bytes to write, by deduplication", Case { new: self.new / 2.0, ..self.clone() }),
            ("nodes that fail half as often", Case { mtti: 2.0 * self.mtti, ..self.clone() }),
        ];
        if self.link.min(self.bisection).is_finite() {
            levers.push((
                "network of twice the bandwidth",
                Case { link: 2.0 * self.link, bisection: 2.0 * self.bisection, ..self.clone() },
            ));
            if self.overlay.is_none() {
                let overlay = Some(Overlay { memory: self.bytes * self.new * self.kept() });
                levers.push(("memory of other nodes for one checkpoint", Case { overlay, ..self.clone() }));
            }
        }
        if self.compression.is_some() {
            levers.push(("no compression", Case { compression: None, ..self.clone() }));
        }
        let known = levers.into_iter().filter_map(|(what, case)| Some((what, case.efficiency()?)));
        let mut known: Vec<_> = known.collect();
        known.sort_by(|a, b| b.1.total_cmp(&a.1));
        known
    }
}

pub fn plan(out: &Out, args: &PlanArgs) -> Result<u8> {
    let refused = |error: model::Error| Error::invalid(error.to_string());
    let case = Case::of(args)?;
    let (job, best) = case.best().map_err(refused)?;
    let young = Interval::young(&job).map_err(refused)?;
    let levers = case.levers();
    let verdict = case.verdict().map_err(refused)?;
    let simulated = match args.simulate {
        None => None,
        Some(runs) => {
            let failures = failures(&args.failures)?;
            // The same seed: the same question has the same answer.
            Some(simulate(&job, best.interval, &failures, runs, 1).map_err(refused)?)
        }
    };
    if out.json {
        let mut value = json!({
            "interval_s": best.interval, "young_interval_s": young.interval, "checkpoint_s": job.checkpoint,
            "restart_s": job.restart, "mtti_s": job.mtti, "solve_s": job.solve, "expected_s": best.expected,
            "saving_s": best.saving, "lost_s": best.lost, "efficiency": job.solve / best.expected,
            "levers": levers.iter().map(|(what, to)| json!({ "change": what, "efficiency": to })).collect::<Vec<_>>(),
        });
        if let Some(run) = simulated {
            value["simulated"] = json!({ "mean_s": run.mean, "standard_error_s": run.error,
                "ninth_decile_s": run.ninth_decile, "failures": run.failures });
        }
        out.object(&value);
        return Ok(0);
    }
    let share = |part: f64| format!("{:.1} %", 100.0 * part / best.expected);
    let often = if best.interval < job.solve {
        format!("Save after every {} of work", span(best.interval))
    } else {
        "No checkpoint is worth its time in a job this short".to_owned()
    };
    out.line(&format!(
        "{often}: one takes {}, and the job is interrupted every {} on average.",
        span(job.checkpoint),
        span(job.mtti)
    ));
    out.line(&format!(
        "Instead of {} it is expected to take {}: {} of that is work, {} checkpoints, {} restarts and work done again.",
        span(job.solve),
        span(best.expected),
        share(job.solve),
        share(best.saving),
        share(best.lost)
    ));
    if let Some(verdict) = verdict {
        out.line(&verdict);
    }
    if let Some(run) = simulated {
        out.line(&format!(
            "Simulated: {} on average (standard error {}), nine in ten runs below {}, {:.1} failures a run.",
            span(run.mean),
            span(run.error),
            span(run.ninth_decile),
            run.failures
        ));
    }
    let now = job.solve / best.expected;
    let helps: Vec<Vec<String>> = levers
        .into_iter()
        .filter(|&(_, to)| to > now + 0.0005)
        .map(|(what, to)| vec![what.to_owned(), format!("{:.1} %", 100.0 * to)])
        .collect();
    if helps.is_empty() {
        out.line("Nothing that could be changed would help by more than a tenth of a per cent.");
    } else {
        out.line("");
        out.line(&table(&["WHAT WOULD HELP", "WORK"], &helps));
    }
    Ok(0)
}

fn failures(text: &str) -> Result<Failures> {
    match text.split_once(':') {
        _ if text == "exponential" => Ok(Failures::Exponential),
        Some(("weibull", shape)) => shape
            .parse()
            .map(Failures::Weibull)
            .map_err(|_| Error::invalid(format!("{shape:?} is no shape of a Weibull distribution"))),
        _ => trace(Path::new(text)),
    }
}

/// The times between the failures that a CSV file lists by the second, in any order; a first line of words is passed over.
fn trace(path: &Path) -> Result<Failures> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::io(format!("cannot read the failures in {}", path.display()), error))?;
    let mut times = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let first = line.split([',', ';', '\t']).next().unwrap_or_default().trim().trim_matches('"');
        match first.parse::<f64>() {
            Ok(time) if time.is_finite() => times.push(time),
            _ if number == 0 => {}
            _ => {
                let text =
                    format!("{}, line {}: {first:?} is no time in seconds", path.display(), number + 1);
                return Err(Error::invalid(text));
            }
        }
    }
    times.sort_by(f64::total_cmp);
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).filter(|&gap| gap > 0.0).collect();
    if gaps.is_empty() {
        return Err(Error::invalid(format!("{} holds no two failures at different times", path.display())));
    }
    Ok(Failures::Trace(gaps))
}
