//! How failures come, as the user says it.

use stdchk::model::Failures;
use stdchk::{Error, Result};

use super::trace::Trace;
use crate::args::PlanArgs;

/// How failures come in a simulation.
pub enum Failing {
    /// By a distribution around the job's mean time to interrupt.
    By(Failures),
    /// As a file has it.
    As(Trace),
}

impl Failing {
    /// From `exponential`, `weibull:SHAPE`, or the name of a file.
    pub fn of(args: &PlanArgs) -> Result<Failing> {
        let text = args.failures.as_deref().unwrap_or("exponential");
        let column = args.failures_column.as_deref();
        match text.split_once(':') {
            _ if text == "exponential" => Ok(Failing::By(Failures::Exponential)),
            Some(("weibull", shape)) => shape
                .parse()
                .map(|shape| Failing::By(Failures::Weibull(shape)))
                .map_err(|_| Error::invalid(format!("{shape:?} is no shape of a Weibull distribution"))),
            _ => Trace::read(text.as_ref(), column).map(Failing::As),
        }
    }

    pub fn trace(&self) -> Option<&Trace> {
        match self {
            Failing::By(_) => None,
            Failing::As(trace) => Some(trace),
        }
    }

    pub fn failures(&self) -> Failures {
        match self {
            Failing::By(failures) => failures.clone(),
            Failing::As(trace) => Failures::Trace(trace.gaps.clone()),
        }
    }
}
