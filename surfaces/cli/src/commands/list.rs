//! list, diff: what there is, without reading data.

use serde_json::json;

use stdchk::{AppName, CheckpointEntry, Error, Kind, Reading, Repository, Result, Spec, Tally};

use super::checkpoint_json;
use crate::output::{Out, age, count, size, table, time};

pub fn list(repository: &Repository, out: &Out, app: Option<&str>) -> Result<u8> {
    let state = repository.state()?;
    match app {
        None => {
            let apps: Vec<_> = state.apps().iter().filter(|(_, app)| app.is_known()).collect();
            if out.json {
                for (name, app) in apps {
                    let newest = app.newest_first().first().map(|entry| entry.step);
                    out.object(&json!({
                        "app": name.as_str(), "checkpoints": app.checkpoints.len(), "latest_step": newest,
                        "policy": app.policy.to_string(),
                        "written_bytes": app.checkpoints.values().map(|e| e.written).sum::<u64>(),
                    }));
                }
                return Ok(0);
            }
            let row = |(name, app): (&AppName, &std::sync::Arc<stdchk::App>)| {
                let newest = app.newest_first().first().map(|e| (e.step.to_string(), age(e.created_ns)));
                let (step, when) = newest.unwrap_or(("-".into(), "-".into()));
                vec![name.to_string(), app.checkpoints.len().to_string(), step, when, app.policy.to_string()]
            };
            let rows: Vec<_> = apps.into_iter().map(row).collect();
            if rows.is_empty() {
                out.note("no checkpoints yet");
            } else {
                out.line(&table(&["APPLICATION", "CHECKPOINTS", "LATEST", "SAVED", "POLICY"], &rows));
            }
        }
        Some(app) => {
            let spec = Spec::parse(app)?;
            let mut entries = spec.find(&state)?;
            entries.reverse();
            if out.json {
                entries.iter().for_each(|entry| out.object(&checkpoint_json(entry)));
                return Ok(0);
            }
            let row = |entry: &&CheckpointEntry| {
                let tally = Tally::from(entry.tally);
                vec![
                    entry.id().to_string(),
                    time(entry.created_ns),
                    entry.member_count.to_string(),
                    size(entry.bytes),
                    size(tally.new),
                    size(entry.written),
                    entry.durability.as_str().to_owned(),
                ]
            };
            let rows: Vec<_> = entries.iter().map(row).collect();
            let head = ["CHECKPOINT", "SAVED", "MEMBERS", "SIZE", "NEW", "WROTE", "DURABILITY"];
            out.line(&table(&head, &rows));
        }
    }
    Ok(0)
}

/// The newest checkpoint that is meant.
pub fn newest(reading: &Reading, text: &str) -> Result<CheckpointEntry> {
    let spec = Spec::parse(text)?;
    let found = spec.find(&reading.state)?;
    let first =
        found.first().ok_or_else(|| Error::new(Kind::NotFound, format!("there is no checkpoint {spec}")))?;
    Ok((*first).clone())
}

pub fn diff(repository: &Repository, out: &Out, from: &str, to: &str) -> Result<u8> {
    let reading = repository.read()?;
    let (from, to) = (newest(&reading, from)?, newest(&reading, to)?);
    let (a, b) = (repository.checkpoint(&reading, &from)?, repository.checkpoint(&reading, &to)?);
    let mut differ = 0;
    let mut show = |rank: u32, path: &str, what: &str, ranges: &[stdchk::DiffRange]| {
        differ += 1;
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if out.json {
            let ranges: Vec<_> = ranges.iter().map(|range| json!([range.start, range.end])).collect();
            out.object(
                &json!({ "path": path, "rank": rank, "change": what, "bytes": bytes, "ranges": ranges }),
            );
            return;
        }
        let sum = if ranges.is_empty() {
            String::new()
        } else {
            format!("  {} in {}", size(bytes), count(ranges.len() as u64, "range"))
        };
        out.line(&format!(
            "{what:<8}  {path}{}{sum}",
            if rank == 0 { String::new() } else { format!(" (rank {rank})") }
        ));
        ranges.iter().for_each(|range| out.line(&format!("            {}..{}", range.start, range.end)));
    };
    let key = |m: &stdchk::RankedMember| (m.rank, m.member.path.clone());
    let theirs: std::collections::BTreeMap<_, _> = b.members.iter().map(|m| (key(m), m)).collect();
    let ours: std::collections::BTreeSet<_> = a.members.iter().map(key).collect();
    for old in &a.members {
        let (rank, path) = (old.rank, old.member.path.as_str());
        match theirs.get(&key(old)) {
            None => show(rank, path, "removed", &[]),
            Some(new) => match (old.member.body.content(), new.member.body.content()) {
                (Some(_), Some(_)) => {
                    let ranges = a.diff(old, new)?;
                    if !ranges.is_empty() {
                        show(rank, path, "changed", &ranges);
                    }
                }
                _ if old.member.body != new.member.body => show(rank, path, "replaced", &[]),
                _ => {}
            },
        }
    }
    for new in b.members.iter().filter(|m| !ours.contains(&key(m))) {
        show(new.rank, &new.member.path, "added", &[]);
    }
    if differ == 0 {
        out.note(&format!("{} and {} have the same members and bytes", from.id(), to.id()));
    }
    Ok(0)
}
