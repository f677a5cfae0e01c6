//! When to checkpoint, and what it costs: pure arithmetic, after the papers that `docs/MODEL.md` names.
//!
//! Times are in seconds, sizes in bytes, rates in bytes for each second. Every quantity must be finite and within its stated
//! range; what is not is an [`Error`], so that no result is ever NaN.
//!
//! ```
//! use stdchk_model::{Interval, Job, Latency};
//! let latency = Latency { startup: 0.0, bytes: 1.5e12, link: f64::INFINITY, bisection: f64::INFINITY, store: 50e9 };
//! let year = 365.25 * 86_400.0;
//! let job = Job { solve: 7.0 * 86_400.0, checkpoint: latency.time()?, restart: latency.time()?, mtti: 5.0 * year / 4096.0 };
//! let plan = Interval::daly(&job)?;
//! assert!((1500.0..1501.0).contains(&plan.interval), "{plan:?}");
//! # Ok::<(), stdchk_model::Error>(())
//! ```
#![forbid(unsafe_code)]

mod interval;
mod latency;
mod machines;
mod simulate;
mod viability;

pub use interval::{Interval, Job};
pub use latency::{Latency, Overlay};
pub use machines::{
    Intrepid, LAMMPS_APPLICATION, LAMMPS_SYSTEM, MACHINES, MINI_APPLICATIONS, Machine, OBJECTS_PER_SECOND,
    Path, Point,
};
pub use simulate::{Failures, Simulated, simulate};
pub use viability::Compression;

use std::fmt;

/// Why there is no answer: a quantity makes no sense, or lies where the model has nothing to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// What a computation leads to.
pub type Result<T> = std::result::Result<T, Error>;

/// A job that takes this many times its work will practically never end.
const HOPELESS: f64 = 1e4;

/// A quantity that must be above zero and finite.
fn positive(value: f64, what: &str) -> Result<f64> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error(format!("{what} must be more than zero and finite, not {value}")))
}

/// A quantity that must not be below zero, and finite.
fn not_negative(value: f64, what: &str) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(Error(format!("{what} must be zero or more and finite, not {value}")))
}
