//! What a plan comes to: in words first, with tables behind, or as JSON.

use serde_json::{Value, json};

use stdchk::model::{Interval, Job, Simulated};

use super::trace::Trace;
use crate::output::{Out, span, table};

/// Times between failures that differ by more than this factor are not the same.
const FAR: f64 = 1.25;

/// A lever that brings less is not worth a line.
const WORTH: f64 = 0.0005;

pub struct Answer<'a> {
    pub job: Job,
    pub best: Interval,
    /// Whether compression pays, where there is any.
    pub verdict: Option<String>,
    /// What was not said, and is taken to be so.
    pub assumed: Vec<String>,
    /// Why the models say little here, if they do.
    pub limit: Option<&'static str>,
    /// What could be changed, and the share of work that follows.
    pub levers: Vec<(String, f64)>,
    /// What a simulation came to, if one was asked for and its runs end.
    pub simulated: Option<Option<Simulated>>,
    pub trace: Option<&'a Trace>,
}

impl Answer<'_> {
    fn efficiency(&self) -> f64 {
        self.job.solve / self.best.expected
    }

    pub fn json(&self) -> Value {
        let Answer { job, best, levers, .. } = self;
        let levers: Vec<Value> =
            levers.iter().map(|(what, to)| json!({ "change": what, "efficiency": to })).collect();
        let mut value = json!({
            "interval_s": best.interval, "young_interval_s": (2.0 * job.checkpoint * job.mtti).sqrt(),
            "checkpoint_s": job.checkpoint, "restart_s": job.restart, "mtti_s": job.mtti, "solve_s": job.solve,
            "expected_s": best.expected, "saving_s": best.saving, "lost_s": best.lost,
            "efficiency": self.efficiency(), "levers": levers, "assumed": self.assumed, "limit": self.limit,
        });
        if let Some(run) = self.simulated {
            value["simulated"] = run.map_or(Value::Null, |run| {
                json!({ "mean_s": run.mean, "standard_error_s": run.error,
                    "ninth_decile_s": run.ninth_decile, "failures": run.failures,
                    "against_expected": run.mean / best.expected })
            });
        }
        if let Some(trace) = self.trace {
            value["trace"] = json!({ "column": trace.column, "mtti_s": trace.mean() });
        }
        value
    }

    pub fn print(&self, out: &Out) {
        out.line(&self.interval());
        out.line(&self.losses());
        if let Some(verdict) = &self.verdict {
            out.line(verdict);
        }
        if !self.assumed.is_empty() {
            out.line(&format!("Assumed, since nothing was said of it: {}.", self.assumed.join("; ")));
        }
        if let Some(Some(run)) = &self.simulated {
            out.line(&self.simulation(run));
            out.line(&self.comparison(run));
        }
        let worth = self.levers.iter().filter(|&(_, to)| *to > self.efficiency() + WORTH);
        let rows: Vec<_> =
            worth.map(|(what, to)| vec![what.clone(), format!("{:.1} %", 100.0 * to)]).collect();
        if rows.is_empty() {
            out.line("Nothing that could be changed would help by more than a tenth of a per cent.");
        } else {
            out.line(&format!(
                "What would help most: {}, with which {} would be work.",
                rows[0][0], rows[0][1]
            ));
            out.line("");
            out.line(&table(&["WHAT WOULD HELP", "WORK"], &rows));
        }
    }

    fn interval(&self) -> String {
        let Answer { job, best, .. } = self;
        let often = if best.interval < job.solve {
            format!("Save after every {} of work", span(best.interval))
        } else {
            "No checkpoint is worth its time in a job this short".to_owned()
        };
        let (save, failure) = (span(job.checkpoint), span(job.mtti));
        format!("{often}: one takes {save}, and the job is interrupted every {failure} on average.")
    }

    fn losses(&self) -> String {
        let Answer { job, best, .. } = self;
        let share = |part: f64| format!("{:.1} %", 100.0 * part / best.expected);
        format!(
            "Instead of {} it is expected to take {}: {} of that is work, {} checkpoints, {} restarts and work done again.",
            span(job.solve),
            span(best.expected),
            share(job.solve),
            share(best.saving),
            share(best.lost)
        )
    }

    fn simulation(&self, run: &Simulated) -> String {
        let by = self.trace.map(|trace| {
            let Trace { column, .. } = trace;
            format!(
                " with the failures of the trace (column {column}), every {} on average",
                span(trace.mean())
            )
        });
        format!(
            "Simulated{}: {} on average (standard error {}), nine in ten runs below {}, {:.1} failures a run.",
            by.unwrap_or_default(),
            span(run.mean),
            span(run.error),
            span(run.ninth_decile),
            run.failures
        )
    }

    /// How far the simulation is from the closed form, and what the form does not know.
    fn comparison(&self, run: &Simulated) -> String {
        let off = run.mean / self.best.expected - 1.0;
        let far = format!("{:.1} % {}", 100.0 * off.abs(), if off < 0.0 { "less" } else { "more" });
        let mut text = match 2.0 * run.error >= (run.mean - self.best.expected).abs() {
            true => format!("That is what the formula expects, as far as so many runs can tell ({far})."),
            false => format!(
                "That is {far} than the formula expects, which takes failures to know nothing of each other."
            ),
        };
        if let Some(trace) = self.trace
            && (self.job.mtti / trace.mean()).ln().abs() > FAR.ln()
        {
            let (said, seen) = (span(self.job.mtti), span(trace.mean()));
            text += &format!(
                " It was given an interruption every {said}; in the trace there is one every {seen}."
            );
        }
        text
    }
}
