//! The verbs, one file for those that belong together.

mod check;
mod files;
mod keep;
mod list;
mod mount;
mod plan;
mod pool;
mod read;
mod save;
mod sessions;
mod shell;
mod show;
mod study;
mod transfer;

use serde_json::{Value, json};

use stdchk::{CheckpointEntry, Error, Repository, Result, Tally};

use crate::args::{Cli, StudyVerb, Verb};
use crate::output::Out;

pub use plan::MACHINES;

/// Does what was asked; the exit code.
pub fn run(cli: &Cli, out: &Out) -> Result<u8> {
    match &cli.verb {
        Verb::Save(args) => save::save(cli, out, args),
        Verb::List { app } => list::list(&open(cli)?, out, app.as_deref()),
        Verb::Show { checkpoint, explain } => show::show(&open(cli)?, out, checkpoint, *explain),
        Verb::Restore(args) => read::restore(&open(cli)?, out, args),
        Verb::Cat { member, rank } => read::cat(&open(cli)?, out, member, *rank),
        Verb::Latest { app, verify } => read::latest(&open(cli)?, out, app, *verify),
        Verb::Diff { from, to } => list::diff(&open(cli)?, out, from, to),
        Verb::Policy(args) => keep::policy(cli, out, args),
        Verb::Prune { app, dry_run } => keep::prune(&open(cli)?, out, app.as_deref(), *dry_run),
        Verb::Forget { checkpoints, all } => keep::forget(&open(cli)?, out, checkpoints, *all),
        Verb::Gc { dry_run, no_compact } => keep::gc(&open(cli)?, out, *dry_run, !*no_compact),
        Verb::Verify { checkpoint, repair } => {
            check::verify(&open(cli)?, out, checkpoint.as_deref(), *repair)
        }
        Verb::Export { checkpoint, output } => transfer::export(&open(cli)?, out, checkpoint, output),
        Verb::Import { input, app, step, engine } => {
            transfer::import(cli, out, input, app.as_deref(), *step, engine)
        }
        Verb::Plan(args) => plan::plan(cli, out, args),
        Verb::Due(args) => plan::due(cli, out, args),
        Verb::Study(StudyVerb::Similarity(args)) => study::similarity(cli, out, args),
        Verb::Study(StudyVerb::Compression(args)) => study::compression(cli, out, args),
        Verb::Wait { checkpoint, level, patience } => {
            sessions::wait(&open(cli)?, out, checkpoint, *level, *patience)
        }
        Verb::Begin { app, step, parts, lease } => sessions::begin(cli, out, app, *step, *parts, *lease),
        Verb::Add { session, paths, rank, replace, stdin_name, engine } => {
            sessions::add(cli, out, session, paths, (*rank, *replace), stdin_name, engine)
        }
        Verb::Commit { session, note } => sessions::commit(&open(cli)?, out, session, note),
        Verb::Abort { session } => sessions::abort(&open(cli)?, out, session),
        Verb::Sessions => sessions::list(&open(cli)?, out),
        Verb::Mount(args) => mount::mount(cli, out, args),
        Verb::Files(verb) => files::files(&open(cli)?, out, verb),
        Verb::Umount { directory, lazy } => mount::umount(out, directory, *lazy),
        Verb::Pool(verb) => pool::pool(cli, out, verb),
        Verb::Completions { shell } => shell::completions(*shell),
        Verb::Man { to } => shell::man(to),
    }
}

fn place(cli: &Cli) -> Result<&str> {
    cli.store.as_deref().ok_or_else(|| Error::invalid("no store: give --store DIR or set STDCHK_STORE"))
}

fn open(cli: &Cli) -> Result<Repository> {
    let place = place(cli)?;
    let is_pool = stdchk::pool::is_pool(place);
    let opened =
        if is_pool { Repository::open_pool(place, pool::key(cli)?) } else { Repository::open(place) };
    Ok(set_up(cli, opened?))
}

fn open_or_create(cli: &Cli) -> Result<Repository> {
    let place = place(cli)?;
    if stdchk::pool::is_pool(place) {
        return open(cli);
    }
    Ok(set_up(cli, Repository::open_or_create(place)?))
}

/// The memory budget.
fn memory(cli: &Cli) -> usize {
    cli.memory.map_or(stdchk::Options::default().memory, |bytes| bytes as usize)
}

fn set_up(cli: &Cli, mut repository: Repository) -> Repository {
    repository.set_memory(memory(cli));
    if let Some(threads) = cli.threads {
        repository.set_threads(usize::from(threads));
    }
    repository
}

/// A checkpoint as JSON.
fn checkpoint_json(entry: &CheckpointEntry) -> Value {
    let tally = Tally::from(entry.tally);
    json!({
        "app": entry.app.as_str(),
        "step": entry.step,
        "generation": entry.generation,
        "checkpoint": entry.id().to_string(),
        "created": crate::output::time(entry.created_ns),
        "durability": entry.durability.as_str(),
        "members": entry.member_count,
        "bytes": entry.bytes,
        "new_bytes": tally.new,
        "shared_bytes": tally.shared,
        "zero_bytes": tally.zero,
        "stored_bytes": tally.stored,
        "written_bytes": entry.written,
    })
}
