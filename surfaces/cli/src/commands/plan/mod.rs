//! plan, due: how often to save, by the models of `docs/MODEL.md` on what the user knows or what was measured.

mod answer;
mod case;
mod due;
mod failures;
mod levers;
mod reproduce;
mod trace;

use stdchk::model::{self, Interval, Job, simulate};
use stdchk::{AppName, Error, History, Kind, Result};

use super::open;
use crate::args::{Cli, PlanArgs};
use crate::chart::{self, Corner, Line, Panel};
use crate::output::{Out, span};
use crate::picture;
use answer::Answer;
use case::Case;
pub use due::due;
use failures::Failing;
use levers::levers;
pub use reproduce::NAMES as MACHINES;
use trace::Trace;

/// What was measured of an application.
fn history_of(cli: &Cli, app: &str) -> Result<History> {
    let name = AppName::new(app)?;
    let state = open(cli)?.state()?;
    let known = state.apps().get(&name).filter(|app| app.is_known());
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
    let failing = Failing::of(args)?;
    let case = Case::of(args, history.as_ref(), failing.trace().map(Trace::mean))?;
    let (job, best) = case.best().map_err(|error| hopeless(&case, error))?;
    let limit = (job.mtti < job.checkpoint).then_some(
        "the job is interrupted more often than a checkpoint can be written: it hardly gets on, and the figures are at the limit of the model",
    );
    limit.into_iter().for_each(|limit| out.note(limit));
    if let Some(path) = &args.plot {
        let (_, least) = case.job().map_err(refused)?;
        chart::panels(path, &[share_of_work(&job, &best, least)])?;
    }
    // The same seed: the same question has the same answer.
    let simulated = args.simulate.map(|runs| simulate(&job, best.interval, &failing.failures(), runs, 1));
    let simulated = simulated.transpose().map_err(refused)?;
    if simulated == Some(None) {
        out.note("there is nothing simulated: failures come so often, or intervals are so short, that a run takes too many steps");
    }
    let verdict = case.verdict().map_err(refused)?;
    let (levers, trace) = (levers(&case), failing.trace());
    let answer = Answer { job, best, verdict, assumed: case.assumed, limit, levers, simulated, trace };
    if out.json {
        out.object(&answer.json());
    } else {
        answer.print(out);
    }
    Ok(0)
}

fn refused(error: model::Error) -> Error {
    Error::invalid(error.to_string())
}

/// Why there is no plan, and what would help most if anything does.
fn hopeless(case: &Case, error: model::Error) -> Error {
    let help = levers(case).into_iter().next();
    let help = help.map(|(what, to)| format!("; it would be {:.1} % work with {what}", 100.0 * to));
    Error::invalid(format!("{error}{}", help.unwrap_or_default()))
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
