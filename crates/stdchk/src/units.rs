//! Times as people write them.

use std::time::Duration;

use stdchk_object::{Error, Result};

/// Splits a number from its unit.
pub fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse::<f64>().ok()?, unit.trim()))
}

/// A time: `90`, `90s`, `15min`, `24h`, `7d`, `5y` (of 365.25 days).
pub fn duration(text: &str) -> Result<Duration> {
    let bad = || Error::invalid(format!("{text:?} is no time: write for example 90s, 15min, 24h, 7d or 5y"));
    let (number, unit) = split(text.trim()).ok_or_else(bad)?;
    let factor = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "w" => 7.0 * 86400.0,
        "y" => 365.25 * 86400.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(number * factor).ok().filter(|time| time.as_secs() > 0).ok_or_else(bad)
}
