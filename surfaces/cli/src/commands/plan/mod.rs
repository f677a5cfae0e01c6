//! plan, due: how often to save, by the models of `docs/MODEL.md` on what the user knows or what was measured.

mod case;
mod due;
mod failures;
mod reproduce;

use serde_json::json;

use stdchk::model::{self, Interval, Job, simulate};
use stdchk::{AppName, Error, History, Kind, Result};

use super::open;
use crate::args::{Cli, PlanArgs};
use crate::chart::{self, Corner, Line, Panel};
use crate::output::{Out, span, table};
use crate::picture;
use case::Case;
pub use due::due;
use failures::failures;
pub use reproduce::NAMES as MACHINES;

/// What was measured of an application.
fn history_of(cli: &Cli, app: &str) -> Result<History> {
    let state = open(cli)?.state()?;
    let known = state.apps().get(&AppName::new(app)?).filter(|app| app.is_known());
    known
        .map(|app| app.history.clone())
        .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no checkpoint of {app}")))
}

pub fn plan(cli: &Cli, out: &Out, args: &PlanArgs) -> Result<u8> {
    if let Some(path) = &args.plot {
        picture::check_name(path)?;
    }
    if let Some(machine) = &args.reproduce {
        return reproduce::reproduce(out, machine, args.plot.as_deref());
    }
    let history = args.app.as_deref().map(|app| history_of(cli, app)).transpose()?;
    let refused = |error: model::Error| Error::invalid(error.to_string());
    let case = Case::of(args, history.as_ref())?;
    let (_, least) = case.job().map_err(refused)?;
    let (job, best) = case.best().map_err(refused)?;
    let young = Interval::young(&job).map_err(refused)?;
    if job.mtti < job.checkpoint {
        out.note("the job is interrupted more often than a checkpoint can be written: it hardly gets on, and the figures are at the limit of the model");
    }
    let levers = case.levers();
    let verdict = case.verdict().map_err(refused)?;
    if let Some(path) = &args.plot {
        chart::panels(path, &[share_of_work(&job, &best, least)])?;
    }
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

/// Points of the chart, from a tenth to ten times the best interval.
const STEPS: i32 = 60;

/// The share of work over the interval.
fn share_of_work(job: &Job, best: &Interval, least: f64) -> Panel {
    let interval = |step: i32| best.interval * 10f64.powf(f64::from(step) / f64::from(STEPS / 2));
    let all = (-STEPS / 2..=STEPS / 2).map(interval).filter(|&interval| interval >= least.max(1e-9));
    let share = |interval: f64| Some((interval / 60.0, 100.0 * job.efficiency(interval).ok()?));
    let here = share(best.interval).into_iter().collect();
    Panel {
        title: format!("Expected share of work; best: every {}", span(best.interval)),
        x: "minutes between checkpoints",
        y: "% of the time that is work",
        log: false,
        names: Corner::LowerLeft,
        lines: vec![
            Line { name: "expected".to_owned(), points: all.filter_map(share).collect() },
            Line { name: "best interval".to_owned(), points: here },
        ],
    }
}
