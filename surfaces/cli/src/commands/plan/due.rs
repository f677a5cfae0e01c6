//! due: whether it is time to save, for job scripts.

use serde_json::json;

use stdchk::model::{Interval, Job};
use stdchk::{Error, History, Kind, Result, now_ns};

use super::case::{mtti_of, save_of};
use super::history_of;
use crate::args::{Cli, DueArgs};
use crate::output::{Out, span};

/// The exit code where nothing is due.
const NOT_DUE: u8 = 11;
/// Seconds between interruptions that are assumed where none is on record: waiting longer would risk more than saving costs.
const MTTI_ASSUMED: f64 = 86_400.0;

pub fn due(cli: &Cli, out: &Out, args: &DueArgs) -> Result<u8> {
    let history = match history_of(cli, &args.app) {
        // Before the first checkpoint there is nothing to go on from.
        Err(error) if error.kind() == Kind::NotFound => History::default(),
        history => history?,
    };
    let Some(last_ns) = history.last_ns() else {
        out.did(|| json!({ "due": true }), || "due: there is no checkpoint yet".to_owned());
        return Ok(0);
    };
    let now = now_ns();
    let since = now.saturating_sub(last_ns).max(0) as f64 / 1e9;
    let measured = mtti_of(&history);
    let mtti = args.mtti.map(|mtti| mtti.as_secs_f64()).or(measured).unwrap_or(MTTI_ASSUMED);
    let interval = optimal(&history, mtti)?;
    // A save from the future was made by a clock that was wrong: nobody knows how long ago it was.
    let due = since >= interval || now < last_ns;
    let value = json!({
        "due": due, "since_s": since, "interval_s": interval, "mtti_s": mtti, "mtti_measured": args.mtti.is_none() && measured.is_some(),
    });
    let word = if due { "due" } else { "not due" };
    out.did(|| value, || format!("{word}: {} since the last save, of {}", span(since), span(interval)));
    Ok(if due { 0 } else { NOT_DUE })
}

/// Daly's interval for saves as they were measured. How long the job is does not matter to it.
fn optimal(history: &History, mtti: f64) -> Result<f64> {
    let checkpoint = save_of(history).ok_or_else(|| Error::invalid("nothing was measured yet"))?;
    let job = Job { solve: mtti, checkpoint, restart: 0.0, mtti };
    Interval::daly(&job).map(|best| best.interval).map_err(|error| Error::invalid(error.to_string()))
}
