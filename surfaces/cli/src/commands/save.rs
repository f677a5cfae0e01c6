//! save: by application and step, or by the names of the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stdchk::{
    AppName, Error, ParentChoice, Preference, Repository, Result, SCRIPT_LEASE, SaveOptions, Saved, Spec,
    Tally, by_convention,
};

use super::{checkpoint_json, open_or_create};
use crate::args::{Cli, EngineArgs, HowArgs, SaveArgs};
use crate::output::{Out, count, size};
use crate::parse::Compress;

/// The options of a save from the flags.
pub fn options(cli: &Cli, engine: &EngineArgs, note: &str, rank: u32) -> Result<SaveOptions> {
    let mut options =
        SaveOptions { durability: engine.durability, note: note.to_owned(), rank, ..Default::default() };
    options.chunking = engine.how.chunking;
    options.coding = coding(&engine.how)?;
    options.memory = super::memory(cli);
    options.local_first = engine.local_first;
    options.parent = match engine.parent.as_deref() {
        None => ParentChoice::Newest,
        Some("none") => ParentChoice::None,
        Some(spec) => ParentChoice::Given(Spec::parse(spec)?),
    };
    Ok(options)
}

/// What is said of coding; nothing where nothing is.
pub fn coding(how: &HowArgs) -> Result<Option<Preference>> {
    match (how.compress, how.prefer) {
        (None, None) => Ok(None),
        (None | Some(Compress::Auto), prefer) => Ok(Some(Preference::Auto(prefer.unwrap_or_default()))),
        (Some(Compress::Fixed(coding, level)), None) => Ok(Some(Preference::Fixed(coding, level))),
        (Some(Compress::Fixed(..)), Some(_)) => Err(Error::invalid("--prefer is for --compress auto only")),
    }
}

/// Whether the only path is standard input.
pub fn is_stdin(paths: &[PathBuf]) -> Result<bool> {
    let dash = paths.iter().any(|path| path == Path::new("-"));
    if dash && paths.len() > 1 {
        return Err(Error::invalid("- (standard input) cannot be saved together with other paths"));
    }
    Ok(dash)
}

pub fn save(cli: &Cli, out: &Out, args: &SaveArgs) -> Result<u8> {
    if args.by_name {
        return save_by_name(cli, out, args);
    }
    let (app, paths) = args.what.split_first().ok_or_else(|| Error::invalid("nothing to save"))?;
    let app = app.to_str().ok_or_else(|| Error::invalid("the application's name is not UTF-8"))?;
    if paths.is_empty() {
        return Err(Error::invalid(format!(
            "nothing to save: say what after the application, as in 'save {app} FILE'"
        )));
    }
    let app = AppName::new(app)?;
    let step = args.step.ok_or_else(|| Error::invalid("--step is missing"))?;
    let stdin = is_stdin(paths)?;
    let options = options(cli, &args.engine, &args.note, 0)?;
    if !stdin {
        // What cannot be found should not make a repository.
        check_paths(paths)?;
    }
    let repository = open_protected(cli, args)?;
    let bar = out.progress("saving", if stdin { 0 } else { stdchk::total_bytes(paths) });
    let mut save = repository.save(&app, step, options)?;
    let added = if stdin {
        save.add_stream(&args.stdin_name, &mut std::io::stdin().lock(), &|n| bar.inc(n))
    } else {
        save.add_paths(paths, &|n| bar.inc(n))
    };
    let saved = match added {
        Ok(()) => save.commit()?,
        Err(error) => {
            save.abort();
            return Err(error);
        }
    };
    bar.finish_and_clear();
    if let Some(file) = &args.metrics_file
        && let Err(error) = write_metrics(file, &saved)
    {
        // The checkpoint is there all the same.
        out.warn(&error.to_string());
    }
    report(out, &saved);
    Ok(0)
}

/// Puts the figures of a save in the place of those before, at once: whoever collects them finds one or the other.
fn write_metrics(file: &Path, saved: &Saved) -> Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written =
        std::fs::write(&beside, stdchk::metrics_of(saved)).and_then(|()| std::fs::rename(&beside, file));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Error::io(format!("cannot write {}", file.display()), error)
    })
}

fn open_protected(cli: &Cli, args: &SaveArgs) -> Result<Repository> {
    let repository = open_or_create(cli)?;
    if let Some(erasure) = &args.erasure {
        repository.protect(erasure.0)?;
    }
    Ok(repository)
}

fn check_paths(paths: &[PathBuf]) -> Result<()> {
    paths.iter().try_for_each(|path| {
        std::fs::symlink_metadata(path)
            .map(drop)
            .map_err(|e| Error::io(format!("cannot read {}", path.display()), e))
    })
}

pub fn report(out: &Out, saved: &Saved) {
    let tally = Tally::from(saved.entry.tally);
    out.did(
        || checkpoint_json(&saved.entry),
        || {
            format!(
                "saved {}: {} in {}, {} new, {} shared, {} zero; wrote {}",
                saved.id,
                size(saved.entry.bytes),
                count(saved.entry.member_count, "member"),
                size(tally.new),
                size(tally.shared),
                size(tally.zero),
                size(saved.entry.written),
            )
        },
    );
}

/// Files each path under the application, rank and step that its name says; the files of one step are one checkpoint.
fn save_by_name(cli: &Cli, out: &Out, args: &SaveArgs) -> Result<u8> {
    let mut steps: BTreeMap<(u64, AppName), BTreeMap<u32, Vec<PathBuf>>> = BTreeMap::new();
    for path in &args.what {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Error::invalid(format!("{} has no usable name", path.display())))?;
        let said = by_convention(name)?;
        steps.entry((said.step, said.app)).or_default().entry(said.rank).or_default().push(path.clone());
    }
    check_paths(&args.what)?;
    let repository = open_protected(cli, args)?;
    for ((step, app), ranks) in steps {
        let session = repository.begin(&app, step, Some(ranks.len() as u32), SCRIPT_LEASE)?;
        let add_all = || -> Result<Saved> {
            for (rank, paths) in &ranks {
                let mut part = repository.add(session, options(cli, &args.engine, "", *rank)?)?;
                let bar = out.progress("saving", stdchk::total_bytes(paths));
                part.add_paths(paths, &|n| bar.inc(n))?;
                part.finish()?;
                bar.finish_and_clear();
            }
            repository.commit(session, &args.note)
        };
        match add_all() {
            Ok(saved) => report(out, &saved),
            Err(error) => {
                let _ = repository.abort(session);
                return Err(error);
            }
        }
    }
    Ok(0)
}
