//! How failures come, as the user says it.

use std::path::Path;

use stdchk::model::Failures;
use stdchk::{Error, Result};

/// `exponential`, `weibull:SHAPE`, or a file.
pub fn failures(text: &str) -> Result<Failures> {
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
