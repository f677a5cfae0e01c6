//! Checks of the house. `cargo xtask layers` refuses an arrow between crates that `layers.toml` does not list.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};

type Arrows = BTreeMap<String, BTreeSet<String>>;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("layers") => layers(),
        _ => Err("usage: cargo xtask layers".to_owned()),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// Reads `name = ["other", ...]` lines; the file has no other form.
fn allowed(text: &str) -> Result<Arrows, String> {
    let mut arrows = Arrows::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, list) =
            line.split_once('=').ok_or_else(|| format!("layers.toml: {line:?} is no arrow"))?;
        let list = list.trim().trim_start_matches('[').trim_end_matches(']');
        let names = list.split(',').map(|other| other.trim().trim_matches('"').to_owned());
        arrows.insert(name.trim().to_owned(), names.filter(|name| !name.is_empty()).collect());
    }
    Ok(arrows)
}

/// The arrows of normal dependencies within the workspace, as cargo sees them.
fn actual() -> Result<Arrows, String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let mut arrows = Arrows::new();
    for package in packages {
        let of = |d: &&serde_json::Value| d["kind"].is_null() && names.contains(&text(&d["name"]));
        let dependencies = package["dependencies"].as_array().into_iter().flatten().filter(of);
        arrows.insert(text(&package["name"]), dependencies.map(|d| text(&d["name"])).collect());
    }
    Ok(arrows)
}

fn layers() -> Result<String, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../layers.toml");
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let (allowed, actual) = (allowed(&text)?, actual()?);
    let mut problems = Vec::new();
    for (name, uses) in &actual {
        match allowed.get(name) {
            None => problems.push(format!("{name} is not in layers.toml")),
            Some(may) => {
                problems.extend(uses.difference(may).map(|other| format!("{name} may not use {other}")));
                problems.extend(
                    may.difference(uses).map(|other| format!("{name} does not use {other}; take it out")),
                );
            }
        }
    }
    problems.extend(
        allowed.keys().filter(|name| !actual.contains_key(*name)).map(|n| format!("there is no {n}")),
    );
    let count: usize = actual.values().map(BTreeSet::len).sum();
    if problems.is_empty() {
        Ok(format!("{} crates, {count} arrows, all as listed", actual.len()))
    } else {
        Err(problems.join("\n"))
    }
}
