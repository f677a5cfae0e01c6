//! plan, due: how often to save, by the models of `docs/MODEL.md` on what the user knows or what was measured.

mod case;
mod due;
mod failures;

use serde_json::json;

use stdchk::model::{self, Interval, simulate};
use stdchk::{AppName, Error, History, Kind, Result};

use super::open;
use crate::args::{Cli, PlanArgs};
use crate::output::{Out, span, table};
use case::Case;
pub use due::due;
use failures::failures;

/// What was measured of an application.
fn history_of(cli: &Cli, app: &str) -> Result<History> {
    let state = open(cli)?.state()?;
    let known = state.apps().get(&AppName::new(app)?).map(|app| app.history.clone());
    known.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no checkpoint of {app}")))
}

pub fn plan(cli: &Cli, out: &Out, args: &PlanArgs) -> Result<u8> {
    let history = args.app.as_deref().map(|app| history_of(cli, app)).transpose()?;
    let refused = |error: model::Error| Error::invalid(error.to_string());
    let case = Case::of(args, history.as_ref())?;
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
