//! Reading, extending and trimming the log.

use stdchk_catalog::{Record, State};
use stdchk_object::envelope::{Sort, open, seal};
use stdchk_object::error::Context;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Kind, Result};
use stdchk_store::Objects;

/// A snapshot is made at every multiple of this.
pub const SNAPSHOT_EVERY: u64 = 256;
/// Records that stay before a snapshot, so that writers who are late collide rather than slip in.
pub const RECORDS_KEPT: u64 = 1024;
/// Snapshots that stay besides the newest.
const SNAPSHOTS_KEPT: u64 = 1;
/// How often a state is read again because it was trimmed away meanwhile.
const RETRIES_MAX: u32 = 100;

pub fn record_name(number: u64) -> String {
    format!("log/{number:016}")
}

fn snapshot_name(number: u64) -> String {
    format!("snapshots/{number:016}")
}

fn read_mark(objects: &dyn Objects) -> Result<Option<u64>> {
    let Some(bytes) = objects.get("mark")? else { return Ok(None) };
    let parse = || -> Result<Option<u64>> {
        let mut reader = Reader::new(open(Sort::Mark, &bytes)?, "mark");
        let number = reader.varint()?;
        reader.finish()?;
        Ok(Some(number))
    };
    parse().context(|| "the file 'mark' of the catalog is damaged".to_owned())
}

/// The newest state, going on from `from` where that helps.
pub fn catch_up(objects: &dyn Objects, from: &mut State) -> Result<()> {
    for retry in 0..RETRIES_MAX {
        // A snapshot that the mark names may have been trimmed since; a mark that stays wrong was set back.
        let mark = if retry < 3 { newest_snapshot(objects)? } else { newest_listed(objects)? };
        if mark > from.number() && !jump(objects, mark, from)? {
            continue;
        }
        while let Some(bytes) = objects.get(&record_name(from.number() + 1))? {
            let number = from.number() + 1;
            let record = Record::decode(number, &bytes)
                .context(|| format!("log record {number} cannot be read; run 'stdchk verify'"))?;
            from.apply(&record)?;
        }
        if newest_snapshot(objects)? <= from.number() && is_end(objects, from.number())? {
            return Ok(());
        }
    }
    Err(Error::new(Kind::Conflict, "the catalog changes faster than it can be read"))
}

/// Whether the log ends at `number`. A record that vanished from its middle must not pass for the end: the next
/// writer would fill the gap. `false`: it has gone on meanwhile.
fn is_end(objects: &dyn Objects, number: u64) -> Result<bool> {
    if number == 0 && objects.names("log")?.iter().any(|name| name.parse::<u64>().is_ok_and(|n| n > 1)) {
        if objects.get_range(&record_name(1), 0, 1)?.is_some() || newest_listed(objects)? > 0 {
            return Ok(false);
        }
        return Err(Error::corrupt("the log's first records and all snapshots are missing"));
    }
    // What was trimmed away is no end, whatever a mark says that was set back.
    if number > 0 && newest_listed(objects)? > number {
        return Ok(false);
    }
    if objects.get_range(&record_name(number + 2), 0, 1)?.is_none() {
        return Ok(true);
    }
    if objects.get_range(&record_name(number + 1), 0, 1)?.is_some() {
        return Ok(false);
    }
    let text = format!("log record {} is missing, but the log goes on after it", number + 1);
    Err(Error::corrupt(text))
}

/// The newest snapshot: what the mark says, or where it is missing or damaged, what a listing finds. The mark is
/// only a pointer.
pub fn newest_snapshot(objects: &dyn Objects) -> Result<u64> {
    match read_mark(objects) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => newest_listed(objects),
        Err(error) if error.kind() == Kind::Corrupt => {
            tracing::warn!("{error}; looking for the newest snapshot by listing");
            newest_listed(objects)
        }
        Err(error) => Err(error),
    }
}

fn newest_listed(objects: &dyn Objects) -> Result<u64> {
    Ok(objects.names("snapshots")?.iter().filter_map(|name| name.parse().ok()).max().unwrap_or(0))
}

/// Whether the record before this one is there. Records are trimmed in ascending order, so a record that was put into
/// a place that had been trimmed has none before it.
pub fn has_predecessor(objects: &dyn Objects, number: u64) -> Result<bool> {
    match number {
        1 => Ok(newest_snapshot(objects)? == 0),
        _ => Ok(objects.get_range(&record_name(number - 1), 0, 1)?.is_some()),
    }
}

/// Replaces the state by the snapshot; says `false` if that is gone.
fn jump(objects: &dyn Objects, number: u64, state: &mut State) -> Result<bool> {
    let Some(bytes) = objects.get(&snapshot_name(number))? else { return Ok(false) };
    match State::decode(number, &bytes) {
        Ok(read) => *state = read,
        // The records before a snapshot stay for a while, and the snapshot before it too: go on from there.
        Err(error) if error.kind() == Kind::Corrupt && number > SNAPSHOT_EVERY => {
            tracing::warn!("snapshot {number} cannot be read ({error}); going on from the one before");
            let before = number - SNAPSHOT_EVERY;
            let Some(bytes) = objects.get(&snapshot_name(before))? else { return Err(error) };
            *state = State::decode(before, &bytes)?;
            replay_to(objects, number, state)?;
        }
        Err(error) if error.kind() == Kind::Corrupt => {
            tracing::warn!("snapshot {number} cannot be read ({error}); going on from the first record");
            *state = State::default();
            replay_to(objects, number, state).map_err(|_| error)?;
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

fn replay_to(objects: &dyn Objects, number: u64, state: &mut State) -> Result<()> {
    while state.number() < number {
        let next = state.number() + 1;
        let bytes = objects.get(&record_name(next))?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("log record {next} is missing")))?;
        state.apply(&Record::decode(next, &bytes)?)?;
    }
    Ok(())
}

/// Makes the snapshot of `state`, moves the mark to it, and trims what lies far behind.
pub fn snapshot(objects: &dyn Objects, state: &State) -> Result<()> {
    let number = state.number();
    // What the snapshot stands for must not be less durable than itself.
    objects.sync_folder("log")?;
    objects.create(&snapshot_name(number), &state.encode(), true)?;
    if read_mark(objects).unwrap_or(None).unwrap_or(0) < number {
        let mut body = Writer::new();
        body.varint(number);
        objects.replace("mark", &seal(Sort::Mark, &body.into_bytes()), true)?;
    }
    trim(objects, number)
}

fn trim(objects: &dyn Objects, snapshot: u64) -> Result<()> {
    let older = |names: Vec<String>, limit: u64| {
        let mut old: Vec<String> =
            names.into_iter().filter(|name| name.parse::<u64>().is_ok_and(|number| number < limit)).collect();
        // Ascending, since whoever finds a record believes that the ones after it are not trimmed either.
        old.sort();
        old.into_iter()
    };
    let records = older(objects.names("log")?, (snapshot + 1).saturating_sub(RECORDS_KEPT));
    objects.delete(&records.map(|name| format!("log/{name}")).collect::<Vec<_>>())?;
    let snapshots =
        older(objects.names("snapshots")?, snapshot.saturating_sub(SNAPSHOTS_KEPT * SNAPSHOT_EVERY));
    objects.delete(&snapshots.map(|name| format!("snapshots/{name}")).collect::<Vec<_>>())
}

/// Reads every record, snapshot and the mark; what is wrong with them.
pub fn check_all(objects: &dyn Objects) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut check = |name: String, done: Result<()>| {
        if let Err(error) = done {
            problems.push(format!("{name}: {error}"));
        }
    };
    check(
        "mark".to_owned(),
        match read_mark(objects) {
            Ok(None) if newest_listed(objects)? > 0 => {
                Err(Error::corrupt("it is missing, although there are snapshots"))
            }
            read => read.map(drop),
        },
    );
    let mut numbers: Vec<u64> = objects.names("log")?.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    for pair in numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1) {
        // What was appended while the names were listed is no gap.
        if objects.get_range(&record_name(pair[0] + 1), 0, 1)?.is_none() {
            check(
                record_name(pair[0] + 1),
                Err(Error::corrupt("it is missing, although the log goes on after it")),
            );
        }
    }
    for folder in ["log", "snapshots"] {
        for name in objects.names(folder)? {
            let path = format!("{folder}/{name}");
            // What is trimmed away meanwhile is no problem.
            let Some(bytes) = objects.get(&path)? else { continue };
            let number = match name.parse::<u64>() {
                Ok(number) if format!("{number:016}") == name => number,
                _ => {
                    check(path, Err(Error::corrupt("a file that does not belong here")));
                    continue;
                }
            };
            let read = match folder {
                "log" => Record::decode(number, &bytes).map(drop),
                _ => State::decode(number, &bytes).map(drop),
            };
            check(path, read);
        }
    }
    Ok(problems)
}
