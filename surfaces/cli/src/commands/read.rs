//! restore, cat, latest: from the newest whole checkpoint.

use std::io::Write;
use std::time::Instant;

use serde_json::json;

use stdchk::{
    CheckpointEntry, Error, Kind, Look, Members, Passed, RankedMember, Reading, Repository, Result, Spec,
};

use super::checkpoint_json;
use crate::args::RestoreArgs;
use crate::output::{Out, count, size};

fn tell(out: &Out, passed: &[Passed]) {
    passed.iter().for_each(|passed| {
        out.warn(&format!("passed over {}, which is hurt: {}", passed.id, passed.problem))
    });
}

fn none_whole(spec: &Spec) -> Error {
    Error::new(Kind::Corrupt, format!("no checkpoint {spec} is whole; 'stdchk verify {spec}' says more"))
}

/// Tries checkpoints, newest first, until one can be read to its end; the damage that a reader meets is recorded
/// and makes the next one the newest whole.
fn with_newest_whole<T>(
    repository: &Repository,
    out: &Out,
    spec: &Spec,
    mut read: impl FnMut(&Reading, &CheckpointEntry) -> Result<T>,
) -> Result<T> {
    let mut tried: Vec<stdchk::CheckpointId> = Vec::new();
    loop {
        let reading = repository.read()?;
        let (found, passed) = repository.newest_whole_but(&reading, spec, Look::Quick, &tried)?;
        tell(out, &passed);
        tried.extend(passed.into_iter().map(|passed| passed.id));
        let entry = found.ok_or_else(|| none_whole(spec))?;
        match read(&reading, &entry) {
            Err(error)
                if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) && spec.step.is_none() =>
            {
                out.warn(&format!("passed over {}, which is hurt: {error}", entry.id()));
                tried.push(entry.id());
            }
            done => return done,
        }
    }
}

pub fn restore(repository: &Repository, out: &Out, args: &RestoreArgs) -> Result<u8> {
    let spec = Spec::parse(&args.checkpoint)?;
    with_newest_whole(repository, out, &spec, |reading, entry| {
        let checkpoint = repository.checkpoint(reading, entry)?;
        let bar = out.progress("restoring", entry.bytes);
        let begun = Instant::now();
        let restored = checkpoint.restore_to(&args.to, args.overwrite, &|n| bar.inc(n))?;
        bar.finish_and_clear();
        if !args.inspect {
            repository.note_restart(&entry.app, begun.elapsed());
        }
        out.did(
            || {
                let mut value = checkpoint_json(entry);
                value["to"] = json!(args.to.display().to_string());
                value
            },
            || {
                format!(
                    "restored {}: {} in {} to {}",
                    entry.id(),
                    size(entry.bytes),
                    count(restored.len() as u64, "member"),
                    args.to.display()
                )
            },
        );
        Ok(())
    })?;
    Ok(0)
}

pub fn cat(repository: &Repository, out: &Out, member: &str, rank: Option<u32>) -> Result<u8> {
    let (spec, path) = Spec::parse_member(member)?;
    let reading = repository.read()?;
    let (entry, passed) = repository.newest_whole(&reading, &spec, Look::Quick)?;
    tell(out, &passed);
    let entry = entry.ok_or_else(|| none_whole(&spec))?;
    let checkpoint = repository.checkpoint(&reading, &entry)?;
    let member = checkpoint.member(&path, rank)?;
    write_out(&checkpoint, member)
}

/// Writes a member to standard output. Who closed that has read enough.
pub fn write_out(members: &Members, member: &RankedMember) -> Result<u8> {
    let mut stdout = std::io::stdout().lock();
    match members.write_to(member, &mut stdout, &|_| {}) {
        Ok(()) => {
            stdout.flush().map_err(|error| Error::io("cannot write to standard output", error))?;
            Ok(0)
        }
        Err(error) if is_broken_pipe(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

pub fn is_broken_pipe(error: &Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
            return true;
        }
        source = error.source();
    }
    false
}

pub fn latest(repository: &Repository, out: &Out, app: &str, verify: bool) -> Result<u8> {
    let spec = Spec::parse(app)?;
    let reading = repository.read()?;
    let look = if verify { Look::Deep } else { Look::Quick };
    let (found, passed) = repository.newest_whole(&reading, &spec, look)?;
    tell(out, &passed);
    let entry = found.ok_or_else(|| none_whole(&spec))?;
    out.either(|| checkpoint_json(&entry), || entry.step.to_string());
    Ok(0)
}
