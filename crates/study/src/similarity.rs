//! How much of a file is found in the one before it (the stdchk paper, section V.C, tables 3 to 7).

use std::collections::HashSet;
use std::time::Instant;

use stdchk_object::error::Context;
use stdchk_object::{Error, Result};

use crate::Input;
use crate::cuts::Cuts;

/// What one way to cut found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The share of the bytes of each file but the first that is found in the file before it, from 0 to 1; zeros count like any others.
    pub similarity: f64,
    /// Bytes a second that were read, cut and hashed.
    pub throughput: f64,
    /// Bytes of a chunk on average, and the means over all files of the shortest and of the longest one.
    pub mean: f64,
    /// See above.
    pub shortest: f64,
    /// See above.
    pub longest: f64,
}

/// Is told of bytes that were read.
pub type Progress<'p> = &'p dyn Fn(u64);

/// Hashes of chunks: half of each is enough to count by.
type Known = HashSet<u128>;

#[derive(Default)]
struct OneFile {
    known: Known,
    bytes: u64,
    found: u64,
    chunks: u64,
    shortest: u64,
    longest: u64,
}

/// Cuts files that follow each other, and compares each with the one before. Memory is that of the hashes of two files.
pub fn similarity(files: &[Input], cuts: &Cuts, progress: Progress) -> Result<Figures> {
    cuts.check()?;
    if files.len() < 2 {
        return Err(Error::invalid("two files or more are needed: each is compared with the one before it"));
    }
    let mut before: Option<Known> = None;
    let mut shares = Vec::with_capacity(files.len() - 1);
    let (mut bytes, mut chunks, mut shortest, mut longest) = (0u64, 0u64, Vec::new(), Vec::new());
    let begun = Instant::now();
    for file in files {
        let file = one_file(file, cuts, before.as_ref(), progress)?;
        if before.is_some() && file.bytes > 0 {
            shares.push(file.found as f64 / file.bytes as f64);
        }
        bytes += file.bytes;
        chunks += file.chunks;
        // One that is empty has no chunks.
        if file.chunks > 0 {
            shortest.push(file.shortest as f64);
            longest.push(file.longest as f64);
        }
        before = Some(file.known);
    }
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    Ok(Figures {
        similarity: mean(&shares),
        throughput: bytes as f64 / seconds,
        mean: bytes as f64 / chunks.max(1) as f64,
        shortest: mean(&shortest),
        longest: mean(&longest),
    })
}

/// The mean; zero of none.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn one_file(file: &Input, cuts: &Cuts, before: Option<&Known>, progress: Progress) -> Result<OneFile> {
    let what = || format!("cannot study {}", file.path().display());
    let mut one = OneFile { shortest: u64::MAX, ..OneFile::default() };
    let mut untold = 0;
    cuts.each(&mut file.read().context(what)?, &mut |chunk| {
        let hash = blake3::hash(chunk);
        let hash = u128::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"));
        let len = chunk.len() as u64;
        one.known.insert(hash);
        one.bytes += len;
        one.chunks += 1;
        one.shortest = one.shortest.min(len);
        one.longest = one.longest.max(len);
        if before.is_some_and(|before| before.contains(&hash)) {
            one.found += len;
        }
        untold += len;
        if untold >= 1 << 20 {
            progress(std::mem::take(&mut untold));
        }
    })
    .map_err(|error| error.within(what()))?;
    progress(untold);
    Ok(one)
}
