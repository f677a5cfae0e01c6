//! begin, add, commit, abort, sessions: checkpoints of many writers.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use stdchk::{AppName, Durability, Repository, Result, SaveOptions, SessionId, SessionKind, Spec};

use super::save::{is_stdin, options, report};
use super::{open, open_or_create};
use crate::args::{Cli, EngineArgs};
use crate::output::{Out, age, table};

pub fn begin(cli: &Cli, out: &Out, app: &str, step: u64, parts: Option<u32>, lease: Duration) -> Result<u8> {
    let app = AppName::new(app)?;
    let repository = open_or_create(cli)?;
    let session = repository.begin(&app, step, parts, lease)?;
    out.either(
        || json!({ "session": session.to_string(), "app": app.as_str(), "step": step }),
        || session.to_string(),
    );
    if let Some(error) = out.failure() {
        // A session that nobody knows of would only be in the way.
        repository.abort(session)?;
        return Err(error);
    }
    Ok(0)
}

pub fn add(
    cli: &Cli,
    out: &Out,
    session: &str,
    paths: &[PathBuf],
    (rank, replace): (u32, bool),
    stdin_name: &str,
    engine: &EngineArgs,
) -> Result<u8> {
    let session: SessionId = session.parse()?;
    let stdin = is_stdin(paths)?;
    let repository = open(cli)?;
    let bar = out.progress("adding", if stdin { 0 } else { stdchk::total_bytes(paths) });
    let mut part = repository.add(session, SaveOptions { replace, ..options(cli, engine, "", rank)? })?;
    let added = if stdin {
        part.add_stream(stdin_name, &mut std::io::stdin().lock(), &|n| bar.inc(n))
    } else {
        part.add_paths(paths, &|n| bar.inc(n))
    };
    if let Err(error) = added {
        part.abort();
        return Err(error);
    }
    let entry = part.finish()?;
    bar.finish_and_clear();
    if out.json {
        out.object(&json!({ "session": session.to_string(), "rank": entry.rank, "durability": entry.durability.as_str() }));
    } else {
        out.note(&format!("added the part of rank {} to session {session}", entry.rank));
    }
    Ok(0)
}

pub fn commit(repository: &Repository, out: &Out, session: &str, note: &str) -> Result<u8> {
    report(out, &repository.commit(session.parse()?, note)?);
    Ok(0)
}

pub fn abort(repository: &Repository, out: &Out, session: &str) -> Result<u8> {
    let session: SessionId = session.parse()?;
    repository.abort(session)?;
    if out.json {
        out.object(&json!({ "session": session.to_string(), "aborted": true }));
    } else {
        out.note(&format!("aborted session {session}"));
    }
    Ok(0)
}

pub fn list(repository: &Repository, out: &Out) -> Result<u8> {
    let mut rows = Vec::new();
    for session in repository.sessions()? {
        let entry = &session.entry;
        let what = match &entry.kind {
            SessionKind::Reader => "reading".to_owned(),
            SessionKind::Upkeep => "upkeep".to_owned(),
            SessionKind::Writer { app, step, .. } => format!("saving {app}@{step}"),
            SessionKind::Mount => "a mount".to_owned(),
            SessionKind::Shared { file, .. } => format!("file {file:016x} of several mounts"),
            SessionKind::Join(of) => format!("writing a file with others, session {of}"),
        };
        if out.json {
            out.object(&json!({
                "session": entry.id.to_string(), "what": what, "host": entry.owner.host, "pid": entry.owner.pid,
                "since_ns": entry.since_ns, "lease_s": entry.lease_ms / 1000, "parts": session.parts.len(),
            }));
            continue;
        }
        let pid = if entry.owner.pid == 0 { "-".to_owned() } else { entry.owner.pid.to_string() };
        let parts = session.parts.len().to_string();
        rows.push(vec![
            entry.id.to_string(),
            what,
            age(entry.since_ns),
            entry.owner.host.clone(),
            pid,
            parts,
        ]);
    }
    if !out.json && rows.is_empty() {
        out.note("no session is open");
    } else if !out.json {
        out.line(&table(&["SESSION", "WHAT", "BEGUN", "HOST", "PID", "PARTS"], &rows));
    }
    Ok(0)
}

pub fn wait(
    repository: &Repository,
    out: &Out,
    checkpoint: &str,
    level: Durability,
    patience: Duration,
) -> Result<u8> {
    let state = repository.state()?;
    let id = Spec::parse(checkpoint)?.find(&state)?[0].id();
    repository.wait_for(&id, level, patience)?;
    out.did(
        || json!({ "checkpoint": id.to_string(), "durability": level.as_str() }),
        || format!("{id} is {}", level.as_str()),
    );
    Ok(0)
}
