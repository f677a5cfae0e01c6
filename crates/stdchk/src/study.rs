//! The papers' experiments on the user's own data: what `stdchk-study` measures, and beside it what stdchk itself finds.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub use stdchk_study::{
    Cuts, Figures, Input, Pressed, Progress, Tool, WindowHash, compression, similarity, successive,
    write_rate,
};

use stdchk_catalog::Durability;
use stdchk_codec::Preference;
use stdchk_engine::session::random_u64;
use stdchk_object::error::Context;
use stdchk_object::member::Tally;
use stdchk_object::pack::{ChunkKind, Coding};
use stdchk_object::{AppName, Error, Result};

use crate::{Repository, SaveOptions};

/// What stdchk finds of each file in the one before it: they are saved one after the other into a repository of their own below `scratch`,
/// which is removed at the end, and soon after `stop` is set. The lengths of chunks are those of all that were stored.
pub fn ours(files: &[Input], scratch: &Path, stop: &AtomicBool, progress: Progress) -> Result<Figures> {
    if files.len() < 2 {
        return Err(Error::invalid("two files or more are needed: each is compared with the one before it"));
    }
    let folder = Scratch::new(scratch)?;
    let place = folder.0.to_str().ok_or_else(|| Error::invalid("the folder for scratch is not UTF-8"))?;
    let repository = Repository::open_or_create(place)?;
    let app = AppName::new("study")?;
    let (mut bytes, mut shares, mut zeros_before) = (0, Vec::new(), false);
    let begun = Instant::now();
    for (step, file) in files.iter().enumerate() {
        let mut options = SaveOptions { durability: Durability::Staged, ..SaveOptions::default() };
        options.coding = Some(Preference::Fixed(Coding::NONE, 0));
        let what = || format!("cannot study {}", file.path().display());
        let mut reading = Stoppable { inner: file.read().context(what)?, stop };
        let mut save = repository.save(&app, step as u64, options)?;
        save.add_stream("file", &mut reading, progress).map_err(|error| error.within(what()))?;
        let entry = save.commit()?.entry;
        let tally = Tally::from(entry.tally);
        if step > 0 && entry.bytes > 0 {
            let zeros = if zeros_before { tally.zero } else { 0 };
            shares.push((tally.shared + zeros) as f64 / entry.bytes as f64);
        }
        zeros_before = tally.zero > 0;
        bytes += entry.bytes;
    }
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    let similarity = if shares.is_empty() { 0.0 } else { shares.iter().sum::<f64>() / shares.len() as f64 };
    let lengths = stored_lengths(&repository)?;
    let mean = lengths.iter().map(|&len| f64::from(len)).sum::<f64>() / lengths.len().max(1) as f64;
    let end = |len: Option<&u32>| len.map_or(0.0, |&len| f64::from(len));
    Ok(Figures {
        similarity,
        throughput: bytes as f64 / seconds,
        mean,
        shortest: end(lengths.iter().min()),
        longest: end(lengths.iter().max()),
    })
}

/// The lengths of all chunks of data in a repository.
fn stored_lengths(repository: &Repository) -> Result<Vec<u32>> {
    let (ground, state) = (repository.ground(), repository.state()?);
    let vault = ground.vault(&state);
    let mut names = Vec::new();
    ground.store.list(&mut |name, _| names.push(name))?;
    let mut lengths = Vec::new();
    for name in names {
        let open = vault.open_named(name)?;
        for run in open.footer.runs().iter().filter(|run| run.kind == ChunkKind::Data) {
            lengths.extend((run.first_chunk..run.end_chunk()).map(|chunk| run.chunk_len(chunk)));
        }
    }
    Ok(lengths)
}

/// Ends with an error once it is told to stop.
struct Stoppable<'s, R> {
    inner: R,
    stop: &'s AtomicBool,
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("it was stopped"));
        }
        self.inner.read(out)
    }
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Scratch> {
        let path = parent.join(format!(".stdchk-study-{:016x}", random_u64()?));
        // It must be new, and nobody else's business.
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::io(format!("cannot create {}", path.display()), error))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("{} is left behind: {error}", self.0.display());
        }
    }
}
