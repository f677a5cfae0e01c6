//! What is printed: data to stdout, words to stderr, and progress where a terminal is attached.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use stdchk::{Error, Kind};

use crate::args::Cli;

/// The exit code of a failure. The table is in `docs/CLI.md`.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::Invalid => 2,
        Kind::Corrupt => 3,
        Kind::NotFound => 4,
        Kind::Exists => 5,
        Kind::Unsupported => 6,
        Kind::Fenced => 7,
        Kind::Conflict => 8,
        Kind::Full => 9,
        Kind::Denied => 10,
        _ => 1,
    }
}

/// Prints as the user asked.
pub struct Out {
    /// Whether data is JSON.
    pub json: bool,
    quiet: bool,
    failed: RefCell<Option<std::io::Error>>,
}

impl Out {
    /// As the flags say.
    pub fn new(cli: &Cli) -> Out {
        Out { json: cli.json, quiet: cli.quiet, failed: RefCell::new(None) }
    }

    /// A line of data.
    pub fn line(&self, text: &str) {
        self.write(text);
    }

    /// A JSON object on one line.
    pub fn object(&self, value: &Value) {
        self.write(&value.to_string());
    }

    /// Whichever of the two was asked for.
    pub fn either(&self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        if self.json { self.object(&value()) } else { self.line(&text()) }
    }

    /// What a verb did, in either form. Who wants quiet takes its success for granted.
    pub fn did(&self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        if self.json { self.object(&value()) } else { self.told(&text()) }
    }

    /// A line about what was done.
    pub fn told(&self, text: &str) {
        if !self.quiet {
            self.line(text);
        }
    }

    fn write(&self, text: &str) {
        // After a failure there is nobody to write for; what is being done is still ended in order.
        if self.failed.borrow().is_none()
            && let Err(error) = writeln!(std::io::stdout(), "{text}")
        {
            *self.failed.borrow_mut() = Some(error);
        }
    }

    /// The failure to print, if there was one. Whoever closed the pipe has read enough: that is none.
    pub fn failure(&self) -> Option<Error> {
        let error = self.failed.borrow_mut().take()?;
        let closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        (!closed).then(|| Error::io("cannot write to standard output", error).with_kind(Kind::Io))
    }

    /// Something that people may want to know.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// Something that people should know.
    pub fn warn(&self, text: &str) {
        say(&format!("warning: {text}"));
    }

    /// A failure.
    pub fn error(&self, error: &Error) {
        if self.json {
            self.object(&json!({ "error": { "kind": error.kind().as_str(), "message": error.to_string() } }));
        }
        say(&format!("stdchk: {error}"));
    }

    /// A progress bar over `total` bytes, 0 where nobody knows how many; invisible where no terminal is attached.
    pub fn progress(&self, what: &'static str, total: u64) -> ProgressBar {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::no_length().with_style(style(COUNTED)).with_message(what);
        measure(&bar, total);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// A line for people. Whether anybody listens does not matter.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

const COUNTED: &str = "{msg} {binary_bytes}, {binary_bytes_per_sec}, {elapsed}";
const MEASURED: &str =
    "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Tells a progress bar how many bytes there are, once that is known.
pub fn measure(bar: &ProgressBar, total: u64) {
    if total > 0 && bar.length() != Some(total) {
        bar.set_style(style(MEASURED));
        bar.set_length(total);
    }
}

/// A size in binary units.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number of things, in the singular where it is one.
pub fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A time in UTC, as RFC 3339 has it.
pub fn time(ns: i64) -> String {
    chrono::DateTime::from_timestamp_nanos(ns).format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time in its two largest units.
pub fn span(seconds: f64) -> String {
    const UNITS: [(&str, f64); 5] =
        [("y", 365.25 * 86_400.0), ("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)];
    if seconds < 60.0 {
        return if seconds < 10.0 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") };
    }
    let at = UNITS.iter().position(|&(_, unit)| seconds >= unit).unwrap_or(4).min(3);
    let ((large, unit), (small, part)) = (UNITS[at], UNITS[at + 1]);
    let whole = ((seconds + part / 2.0) / unit).floor();
    let rest = ((seconds - whole * unit) / part).round();
    if rest > 0.0 { format!("{whole} {large} {rest} {small}") } else { format!("{whole} {large}") }
}

/// How long ago, in one unit.
pub fn age(ns: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let seconds = (now - ns.div_euclid(1_000_000_000)).max(0);
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// A word as it can stand in a line: names may have anything in them.
fn in_one_line(text: &str) -> String {
    let plain = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(plain).collect()
}

/// Rows of text in columns; numbers to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| in_one_line(cell)).collect()).collect();
    let columns = head.len();
    let width =
        |i: usize| rows.iter().map(|row| row[i].chars().count()).chain([head[i].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    // Short, so that an id that happens to have digits only is none.
    let is_number = |text: &str| {
        let number = text.split(' ').next().unwrap_or_default();
        text == "-"
            || (!number.is_empty()
                && number.len() < 16
                && number.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    };
    let right: Vec<bool> =
        (0..columns).map(|i| !rows.is_empty() && rows.iter().all(|row| is_number(&row[i]))).collect();
    let line = |cells: &[String]| {
        let cell = |(i, text): (usize, &String)| {
            if right[i] {
                format!("{text:>width$}", width = widths[i])
            } else {
                format!("{text:<width$}", width = widths[i])
            }
        };
        cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let mut lines = vec![line(&head)];
    lines.extend(rows.iter().map(|row| line(row)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(1 << 30), "1.0 GiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(span(0.5), "0.50 s");
        assert_eq!(span(59.94), "59.9 s");
        assert_eq!(span(90.0), "1 min 30 s");
        assert_eq!(span(3600.0), "1 h");
        assert_eq!(span(7199.0), "2 h");
        assert_eq!(span(629_770.0), "7 d 7 h");
        assert_eq!(span(5.0 * 365.25 * 86_400.0), "5 y");
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_827_696_000_000_000), "2000-02-29T12:34:56Z");
        assert_eq!(time(-1), "1969-12-31T23:59:59Z");
    }
}
