//! files: what was written through a mount, for those who have none.

use serde_json::{Value, json};

use stdchk::files::Sort;
use stdchk::{CheckpointEntry, Error, FileSpec, NamedFile, Repository, Result, Tally};

use super::checkpoint_json;
use super::read::write_out;
use crate::args::FilesVerb;
use crate::output::{Out, count, size, table, time};

pub fn files(repository: &Repository, out: &Out, verb: &FilesVerb) -> Result<u8> {
    match verb {
        FilesVerb::List { path, recursive, at } => {
            list(repository, out, &FileSpec::new(path, at.at)?, *recursive)
        }
        FilesVerb::Versions { path } => versions(repository, out, &FileSpec::new(path, None)?),
        FilesVerb::Cat { path, at } => cat(repository, &FileSpec::new(path, at.at)?, path),
        FilesVerb::Restore { path, to, overwrite, at } => {
            restore(repository, out, &FileSpec::new(path, at.at)?, path, to, *overwrite)
        }
    }
}

fn list(repository: &Repository, out: &Out, spec: &FileSpec, is_deep: bool) -> Result<u8> {
    let found = spec.find(&*repository.state()?, is_deep)?;
    if out.json {
        found.iter().for_each(|file| out.object(&file_json(file)));
        return Ok(0);
    }
    let row = |file: &NamedFile| {
        let (sort, end) = sort_of(file);
        let version = file.version.as_ref();
        vec![
            format!("{}{:04o}", sort.chars().next().unwrap_or('-'), file.mode),
            version.map_or("-".to_owned(), |entry| size(entry.bytes)),
            version.map_or("-".to_owned(), |_| file.versions.to_string()),
            time(file.modified_ns),
            format!("{}{end}", file.path),
        ]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    match rows.is_empty() {
        true => out.note("no files"),
        false => out.line(&table(&["MODE", "SIZE", "VERSIONS", "MODIFIED", "NAME"], &rows)),
    }
    Ok(0)
}

/// The word for what it is, and what follows its name in a list.
fn sort_of(file: &NamedFile) -> (&'static str, String) {
    match (&file.sort, &file.target) {
        (Sort::Directory, _) => ("dir", "/".to_owned()),
        (Sort::Link, Some(target)) => ("link", format!(" -> {target}")),
        (Sort::Special(..), _) => ("special", String::new()),
        _ => ("file", String::new()),
    }
}

fn file_json(file: &NamedFile) -> Value {
    let mut value = json!({
        "path": file.path, "type": sort_of(file).0, "mode": file.mode, "modified": time(file.modified_ns),
    });
    if let Some(target) = &file.target {
        value["target"] = json!(target);
    }
    if let Some(entry) = &file.version {
        value["versions"] = json!(file.versions);
        value["version"] = json!(entry.sequence);
        value["bytes"] = json!(entry.bytes);
    }
    value
}

fn versions(repository: &Repository, out: &Out, spec: &FileSpec) -> Result<u8> {
    let state = repository.state()?;
    let versions = spec.versions(&state)?;
    if out.json {
        versions.into_iter().for_each(|entry| out.object(&version_json(entry)));
        return Ok(0);
    }
    let row = |entry: &&CheckpointEntry| {
        vec![
            entry.sequence.to_string(),
            time(entry.created_ns),
            size(entry.bytes),
            size(Tally::from(entry.tally).new),
            size(entry.written),
            entry.durability.as_str().to_owned(),
        ]
    };
    let rows: Vec<_> = versions.iter().map(row).collect();
    out.line(&table(&["VERSION", "SAVED", "SIZE", "NEW", "WROTE", "DURABILITY"], &rows));
    Ok(0)
}

fn version_json(entry: &CheckpointEntry) -> Value {
    let mut value = checkpoint_json(entry);
    if let Some(fields) = value.as_object_mut() {
        // What tells checkpoints apart says nothing of files.
        ["app", "step", "generation", "checkpoint", "members"]
            .iter()
            .for_each(|field| _ = fields.remove(*field));
        fields.insert("version".to_owned(), json!(entry.sequence));
    }
    value
}

fn cat(repository: &Repository, spec: &FileSpec, path: &str) -> Result<u8> {
    let reading = repository.read()?;
    let files = repository.files(&reading, spec)?;
    match &files.members[..] {
        [file] if spec.is_file(&reading.state)? => write_out(&files, file),
        _ => Err(Error::invalid(format!("{path:?} is not a file, and has no bytes"))),
    }
}

fn restore(
    repository: &Repository,
    out: &Out,
    spec: &FileSpec,
    path: &str,
    to: &std::path::Path,
    overwrite: bool,
) -> Result<u8> {
    let reading = repository.read()?;
    let files = repository.files(&reading, spec)?;
    let bytes = files.members.iter().map(|file| file.member.bytes()).sum();
    let bar = out.progress("restoring", bytes);
    let restored = files.restore_to(to, overwrite, &|n| bar.inc(n))?;
    bar.finish_and_clear();
    let to = to.display().to_string();
    out.did(
        || json!({ "path": path, "files": restored.len(), "bytes": bytes, "to": to }),
        || format!("restored {path}: {} in {} to {to}", size(bytes), count(restored.len() as u64, "file")),
    );
    Ok(0)
}
