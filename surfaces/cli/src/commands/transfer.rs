//! export and import.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use stdchk::{AppName, Error, Import, Kind, Look, Repository, Result, Spec};

use super::open_or_create;
use super::read::is_broken_pipe;
use super::save::{options, report};
use crate::args::{Cli, EngineArgs};
use crate::output::{Out, size};

pub fn export(repository: &Repository, out: &Out, checkpoint: &str, output: &Path) -> Result<u8> {
    let spec = Spec::parse(checkpoint)?;
    let reading = repository.read()?;
    let (entry, passed) = repository.newest_whole(&reading, &spec, Look::Quick)?;
    passed.iter().for_each(|passed| out.warn(&format!("passed over {}: {}", passed.id, passed.problem)));
    let entry = entry.ok_or_else(|| Error::new(Kind::Corrupt, format!("no checkpoint {spec} is whole")))?;
    let checkpoint = repository.checkpoint(&reading, &entry)?;
    let bar = out.progress("exporting", entry.bytes);
    if output == Path::new("-") {
        let mut stdout = BufWriter::new(std::io::stdout().lock());
        return match checkpoint.export(&mut stdout, &|n| bar.inc(n)) {
            Err(error) if is_broken_pipe(&error) => {
                // What is still in the buffer has nowhere to go either.
                drop(stdout.into_parts());
                Ok(0)
            }
            done => done.map(|()| 0),
        };
    }
    let cannot = |error| Error::io(format!("cannot write {}", output.display()), error);
    let file = File::create_new(output).map_err(cannot)?;
    let mut writer = BufWriter::new(&file);
    let done = checkpoint
        .export(&mut writer, &|n| bar.inc(n))
        .and_then(|()| writer.flush().map_err(cannot))
        .and_then(|()| file.sync_all().map_err(cannot));
    bar.finish_and_clear();
    if let Err(error) = done {
        // Half an export is of no use, and would be in the way of the next try.
        let _ = std::fs::remove_file(output);
        return Err(error);
    }
    out.note(&format!("exported {} ({}) to {}", entry.id(), size(entry.bytes), output.display()));
    Ok(0)
}

pub fn import(
    cli: &Cli,
    out: &Out,
    input: &Path,
    app: Option<&str>,
    step: Option<u64>,
    engine: &EngineArgs,
) -> Result<u8> {
    let mut reader: Box<dyn Read> = if input == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let cannot = |error| Error::io(format!("cannot read {}", input.display()), error);
        Box::new(BufReader::with_capacity(1 << 20, File::open(input).map_err(cannot)?))
    };
    let import = Import::open(&mut reader)?;
    let app = app.map_or_else(|| Ok(import.app.clone()), AppName::new)?;
    let step = step.unwrap_or(import.step);
    let options = options(cli, engine, &import.note.clone(), 0)?;
    let repository = open_or_create(cli)?;
    let bar = out.progress("importing", 0);
    let saved = import.save_into(&repository, &app, step, options, &|n| bar.inc(n))?;
    bar.finish_and_clear();
    report(out, &saved);
    Ok(0)
}
