//! Traces of failures: CSV files with a line for each, as machines and archives of failures keep them.

use std::io::Read;
use std::path::Path;

use chrono::{DateTime, NaiveDate, NaiveDateTime};
use csv::StringRecord;
use stdchk::{Error, Result};

/// No trace is larger.
const BYTES_MAX: u64 = 64 << 20;
/// What the words of a column's name begin with that holds the time of a failure, the surest first.
const NAMES: [&str; 7] = ["start", "beg", "fail", "down", "time", "date", "second"];
/// What stands in the name of a column that holds the times between failures, not when they were.
const GAPS: [&str; 8] = ["tbf", "ttf", "mtbf", "mtti", "between", "gap", "interval", "uptime"];
/// Dates with a time of day, and days. A year of two digits is tried first: four digits do not match it.
const DATES: [&str; 9] = [
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%y %H:%M",
    "%m/%d/%Y %H:%M",
];
const DAYS: [&str; 3] = ["%Y-%m-%d", "%m/%d/%y", "%m/%d/%Y"];

/// The failures of a file.
pub struct Trace {
    /// Seconds between one and the next, each more than zero.
    pub gaps: Vec<f64>,
    /// The name or number of the column that they are from.
    pub column: String,
}

impl Trace {
    /// Reads a file whose lines have the times of failures in a column, in any order, or by its name the seconds between two of them. Failures of
    /// the same time are one.
    pub fn read(path: &Path, column: Option<&str>) -> Result<Trace> {
        let failed = |text: String| Error::invalid(format!("{}: {text}", path.display()));
        let text = text_of(path)?;
        let records = records(&text).map_err(|error| failed(error.to_string()))?;
        let Some(first) = records.iter().position(|(_, record)| record.iter().any(is_time)) else {
            return Err(failed("no line has the time of a failure, in seconds or as a date".to_owned()));
        };
        let header = first.checked_sub(1).map(|above| &records[above].1);
        let at = column_of(header, &records[first].1, column).map_err(failed)?;
        let mut times = Vec::with_capacity(records.len() - first);
        for (line, record) in &records[first..] {
            let field = record.get(at).unwrap_or_default();
            let time = time_of(field).ok_or_else(|| failed(format!("line {line}: {field:?} is no time")));
            times.push(time?);
        }
        let name = header.and_then(|names| names.get(at)).filter(|name| !name.is_empty());
        let gaps: Vec<f64> = match name.is_some_and(says_gaps) {
            true if times.iter().any(|&gap| gap < 0.0) => {
                return Err(failed(
                    "there is a time between two failures that is less than nothing".to_owned(),
                ));
            }
            true => times.into_iter().filter(|&gap| gap > 0.0).collect(),
            false => {
                times.sort_by(f64::total_cmp);
                times.windows(2).map(|two| two[1] - two[0]).filter(|&gap| gap > 0.0).collect()
            }
        };
        if gaps.is_empty() {
            return Err(failed("there are no two failures at different times".to_owned()));
        }
        Ok(Trace { gaps, column: name.map_or_else(|| (at + 1).to_string(), str::to_owned) })
    }

    /// The mean time between two failures in seconds.
    pub fn mean(&self) -> f64 {
        self.gaps.iter().sum::<f64>() / self.gaps.len() as f64
    }
}

fn text_of(path: &Path) -> Result<String> {
    let failed = |error| Error::io(format!("cannot read the failures in {}", path.display()), error);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        let text =
            format!("{} holds more than {} MiB: no trace of failures", path.display(), BYTES_MAX >> 20);
        return Err(Error::invalid(text));
    }
    Ok(text)
}

/// The lines of a file, with their numbers. Names of columns may stand in a comment.
fn records(text: &str) -> std::result::Result<Vec<(u64, StringRecord)>, csv::Error> {
    let often = |&delimiter: &u8| text.bytes().filter(|&byte| byte == delimiter).count();
    let delimiter = [b'\t', b';', b','].into_iter().max_by_key(often).unwrap_or(b',');
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).trim(csv::Trim::All).delimiter(delimiter);
    let mut records = Vec::new();
    for record in reader.from_reader(text.as_bytes()).into_records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let is_comment = record.get(0).is_some_and(|first| first.starts_with('#'));
        // After the first failures comments are only comments.
        let has_failures =
            || records.iter().any(|(_, record): &(u64, StringRecord)| record.iter().any(is_time));
        if record.iter().all(str::is_empty) || is_comment && has_failures() {
            continue;
        }
        let bare = record.iter().map(|field| field.trim_start_matches('#').trim());
        records.push((line, bare.collect()));
    }
    Ok(records)
}

/// Whether the name of a column speaks of the times between failures.
fn says_gaps(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).any(|word| GAPS.contains(&word.trim_end_matches('s')))
}

/// The column that holds times: the one asked for, or by its name, or by what it holds.
fn column_of(
    header: Option<&StringRecord>,
    first: &StringRecord,
    asked: Option<&str>,
) -> std::result::Result<usize, String> {
    let names = || header.iter().flat_map(|names| names.iter()).map(str::to_lowercase).enumerate();
    if let Some(asked) = asked {
        let named = names().find(|(_, name)| *name == asked.to_lowercase()).map(|(at, _)| at);
        let number = || asked.parse::<usize>().ok()?.checked_sub(1).filter(|&at| at < first.len());
        return named.or_else(number).ok_or_else(|| format!("there is no column {asked:?}"));
    }
    let times: Vec<usize> = (0..first.len()).filter(|&at| is_time(&first[at])).collect();
    let says = |name: &str, word: &str| {
        name.split(|c: char| !c.is_alphanumeric()).any(|part| part.starts_with(word))
    };
    for word in NAMES {
        if let Some((at, _)) = names().find(|(at, name)| times.contains(at) && says(name, word)) {
            return Ok(at);
        }
    }
    let dates: Vec<usize> = times.iter().copied().filter(|&at| first[at].parse::<f64>().is_err()).collect();
    match (header, &dates[..], &times[..]) {
        (_, [date, ..], _) => Ok(*date),
        (None, [], [number, ..]) | (Some(_), [], [number]) => Ok(*number),
        _ => Err("which column has the times of the failures? Say it with --failures-column".to_owned()),
    }
}

fn is_time(field: &str) -> bool {
    time_of(field).is_some()
}

/// Seconds since whatever the trace counts from.
fn time_of(field: &str) -> Option<f64> {
    if let Ok(seconds) = field.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let zoned = DateTime::parse_from_rfc3339(field).ok().map(|date| date.naive_utc());
    let date = zoned
        .or_else(|| DATES.iter().find_map(|form| NaiveDateTime::parse_from_str(field, form).ok()))
        .or_else(|| {
            let day = DAYS.iter().find_map(|form| NaiveDate::parse_from_str(field, form).ok())?;
            day.and_hms_opt(0, 0, 0)
        })?;
    Some(date.and_utc().timestamp_millis() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, column: Option<&str>) -> std::result::Result<(Vec<f64>, String), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        std::fs::write(&path, text).unwrap();
        let trace = Trace::read(&path, column).map_err(|error| error.to_string())?;
        Ok((trace.gaps, trace.column))
    }

    fn gaps(text: &str) -> Vec<f64> {
        read(text, None).unwrap().0
    }

    #[test]
    fn seconds_and_dates_are_read() {
        assert_eq!(gaps("100\n40\n100\n250.5\n"), [60.0, 150.5]);
        assert_eq!(gaps("2024-02-28\n2024-03-01"), [2.0 * 86_400.0]);
        assert_eq!(gaps("2024-02-28T23:00:00Z\n2024-02-28T23:00:00-01:00"), [3600.0]);
        assert_eq!(gaps("2024-02-28 23:00\n2024-02-28 23:00:01.5"), [1.5]);
        // A turn of the century with years of two digits.
        assert_eq!(gaps("12/31/99 23:00\n1/1/00 1:30"), [2.5 * 3600.0]);
        assert_eq!(gaps("6/21/2005 10:54\n6/21/2005 10:55"), [60.0]);
    }

    #[test]
    fn columns_are_found() {
        let of = |text| read(text, None).unwrap();
        assert_eq!(of("node,start\n1,100\n2,200\n"), (vec![100.0], "start".to_owned()));
        assert_eq!(of("a,100\nb,300\n"), (vec![200.0], "2".to_owned()));
        assert_eq!(of("7,2024-01-01,2024-01-05\n3,2024-01-02,2024-01-03").1, "2");
        // As the Failure Trace Archive has it: names in a comment, restarts and ends beside the beginning.
        let archive = "# by the year\n# event_id\tnode_id\tevent_start_time\tevent_stop_time\n1\t5\t1000.5\t1100\n# late\n2\t5\t1500.5\t1600\n";
        assert_eq!(of(archive), (vec![500.0], "event_start_time".to_owned()));
        // As Los Alamos has it.
        let alamos = "System,nodes,\"Prob Started (mm/dd/yy hh:mm)\",\"Prob Fixed (mm/dd/yy hh:mm)\",Down Time\n2,49,7/31/2001 6:42,7/31/2001 8:00,78\n2,49,7/31/2001 7:42,7/31/2001 8:00,18\n";
        assert_eq!(of(alamos), (vec![3600.0], "Prob Started (mm/dd/yy hh:mm)".to_owned()));
        // Not when failures were, but how long it was between them.
        assert_eq!(of("tbf_s\n300\n100\n0\n200\n").0, [300.0, 100.0, 200.0]);
        assert_eq!(of("node,Time between failures (s)\na,60\nb,40\n").0, [60.0, 40.0]);
        let plain = "x;y\n1;10\n2;30\n";
        assert_eq!(read(plain, Some("Y")).unwrap().0, [20.0]);
        assert_eq!(read(plain, Some("1")).unwrap().0, [1.0]);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let told = |text, column| read(text, column).unwrap_err();
        assert!(told("x;y\n1;10\n2;30\n", None).contains("which column"));
        assert!(told("x;y\n1;10\n2;30\n", Some("z")).contains("no column \"z\""));
        assert!(told("x;y\n1;10\n2;30\n", Some("0")).contains("no column"));
        assert!(told("start\n1\nsoon\n", None).contains("line 3: \"soon\" is no time"));
        assert!(told("start,node\n1,a\n\n2,b\n,c\n", None).contains("line 5: \"\" is no time"));
        assert!(told("", None).contains("no line"));
        assert!(told("nothing\nat all\n", None).contains("no line"));
        assert!(told("5\n5\n", None).contains("no two failures"));
        assert!(told("gap\n5\n-5\n", None).contains("less than nothing"));
        assert!(told("nan\ninf\n", None).contains("no line"));
    }
}
