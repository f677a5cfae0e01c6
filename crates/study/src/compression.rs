//! How well and how fast compressors do on files (the compression paper, section IV.B, figures 1 and 2).

use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use stdchk_codec::{Advisor, Pace, Prefer, Preference, Press, try_codings};
use stdchk_object::error::Context;
use stdchk_object::{Error, Result};

use crate::Input;
use crate::similarity::Progress;

/// A compressor and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Deflate, as gzip and zip have it.
    Zlib(u32),
    /// bzip2 on one thread.
    Bzip2(u32),
    /// bzip2 on pieces of 500 kB, on all threads, as pbzip2 does it.
    ParallelBzip2(u32),
    /// LZMA, as xz and 7zip have it.
    Xz(u32),
    /// LZ4.
    Lz4,
    /// zstd.
    Zstd(i32),
    /// What stdchk would choose for each run if only space counted among its fast codings.
    Ours,
    /// The same beside the version before, where a run may be a difference: see [`crate::successive`].
    OursNext,
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tool::Zlib(level) => write!(f, "zlib({level})"),
            Tool::Bzip2(level) => write!(f, "bzip2({level})"),
            Tool::ParallelBzip2(level) => write!(f, "pbzip2({level},5)"),
            Tool::Xz(level) => write!(f, "xz({level})"),
            Tool::Lz4 => f.write_str("lz4"),
            Tool::Zstd(level) => write!(f, "zstd({level})"),
            Tool::Ours => f.write_str("stdchk"),
            Tool::OursNext => f.write_str("stdchk, next"),
        }
    }
}

/// What a compressor did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressed {
    /// Bytes before.
    pub raw: u64,
    /// Bytes after; pieces that do not shrink count as they are.
    pub packed: u64,
    /// Seconds to compress.
    pub compress_s: f64,
    /// Seconds to bring them back.
    pub decompress_s: f64,
}

impl Pressed {
    /// The share that goes away: the paper's compression factor, from 0 to below 1.
    pub fn saved(&self) -> f64 {
        1.0 - self.packed as f64 / self.raw.max(1) as f64
    }

    /// Bytes a second.
    pub fn compress(&self) -> f64 {
        self.raw as f64 / self.compress_s.max(1e-9)
    }

    /// Bytes a second, counted after decompression.
    pub fn decompress(&self) -> f64 {
        self.raw as f64 / self.decompress_s.max(1e-9)
    }

    /// Adds what was done to another file.
    pub fn add(&mut self, other: &Pressed) {
        self.raw += other.raw;
        self.packed += other.packed;
        self.compress_s += other.compress_s;
        self.decompress_s += other.decompress_s;
    }
}

/// What is compressed at once.
pub(crate) const PIECE: usize = 8 << 20;
/// Pieces of pbzip2: its second parameter, 5, times 100 kB.
const PARALLEL_PIECE: usize = 500_000;
/// Runs of stdchk.
pub(crate) const RUN: usize = 256 << 10;
/// With nothing to wait for the smallest of stdchk's fast codings is chosen.
pub(crate) const AT_LEISURE: Pace =
    Pace { threads: 1.0, look: 0.0, store: 0.0, store_known: false, little: true, restarts: 0.0 };

/// Compresses a file in pieces of 8 MiB, brings them back, and compares. `threads` are for what is parallel.
pub fn compression(input: &Input, tool: Tool, threads: usize, progress: Progress) -> Result<Pressed> {
    let what = || format!("cannot study {}", input.path().display());
    let mut file = input.read().context(what)?;
    let mut sum = Pressed::default();
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        piece.clear();
        let read = (&mut file).take(PIECE as u64).read_to_end(&mut piece).context(what)?;
        if read == 0 {
            return Ok(sum);
        }
        let one =
            press(&piece, tool, threads).map_err(|error| error.within(format!("{tool}: {}", what())))?;
        sum.add(&one);
        progress(read as u64);
    }
}

fn press(raw: &[u8], tool: Tool, threads: usize) -> Result<Pressed> {
    let begun = Instant::now();
    let packed = pack(raw, tool, threads)?;
    let compress_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let back = unpack(&packed, tool, threads)?;
    let decompress_s = begun.elapsed().as_secs_f64();
    if back.concat() != raw {
        return Err(Error::corrupt("what was compressed did not come back"));
    }
    let packed = packed.iter().map(|piece| piece.bytes.len().min(piece.raw)).sum::<usize>() as u64;
    Ok(Pressed { raw: raw.len() as u64, packed, compress_s, decompress_s })
}

/// A compressed piece.
struct Packed {
    bytes: Vec<u8>,
    raw: usize,
    coding: stdchk_object::pack::Coding,
}

impl Packed {
    fn new(bytes: Vec<u8>, raw: usize) -> Packed {
        Packed { bytes, raw, coding: stdchk_object::pack::Coding::NONE }
    }
}

fn pack(raw: &[u8], tool: Tool, threads: usize) -> Result<Vec<Packed>> {
    let whole = |bytes: Vec<u8>| vec![Packed::new(bytes, raw.len())];
    Ok(match tool {
        Tool::Zlib(level) => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
            encoder.write_all(raw).and_then(|()| encoder.finish()).map(whole).map_err(failed)?
        }
        Tool::Bzip2(level) => whole(bzipped(raw, level)?),
        Tool::ParallelBzip2(level) => {
            let pieces: Vec<&[u8]> = raw.chunks(PARALLEL_PIECE).collect();
            let packed = parallel(&pieces, threads, |piece| bzipped(piece, level))?;
            packed.into_iter().zip(pieces).map(|(bytes, piece)| Packed::new(bytes, piece.len())).collect()
        }
        Tool::Xz(level) => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), level);
            encoder.write_all(raw).and_then(|()| encoder.finish()).map(whole).map_err(failed)?
        }
        Tool::Lz4 => whole(lz4_flex::compress(raw)),
        Tool::Zstd(level) => whole(zstd::bulk::compress(raw, level).map_err(failed)?),
        // With nothing before it there is nothing to subtract from.
        Tool::Ours | Tool::OursNext => ours(raw)?,
    })
}

fn unpack(packed: &[Packed], tool: Tool, threads: usize) -> Result<Vec<Vec<u8>>> {
    let read = |reader: &mut dyn Read, len: usize| {
        let mut out = Vec::with_capacity(len);
        reader.read_to_end(&mut out).map_err(failed)?;
        Ok(out)
    };
    let mut press = Press::new();
    let mut one = |piece: &Packed| match tool {
        Tool::Zlib(_) => read(&mut flate2::read::ZlibDecoder::new(&piece.bytes[..]), piece.raw),
        Tool::Bzip2(_) | Tool::ParallelBzip2(_) => {
            read(&mut bzip2::read::BzDecoder::new(&piece.bytes[..]), piece.raw)
        }
        Tool::Xz(_) => read(&mut liblzma::read::XzDecoder::new(&piece.bytes[..]), piece.raw),
        Tool::Lz4 => lz4_flex::decompress(&piece.bytes, piece.raw).map_err(failed),
        Tool::Zstd(_) => zstd::bulk::decompress(&piece.bytes, piece.raw).map_err(failed),
        Tool::Ours | Tool::OursNext => {
            let mut out = Vec::new();
            press.decompress(piece.coding, &piece.bytes, piece.raw, &mut out).map(|()| out)
        }
    };
    if matches!(tool, Tool::ParallelBzip2(_)) {
        return parallel(packed, threads, |piece| {
            read(&mut bzip2::read::BzDecoder::new(&piece.bytes[..]), piece.raw)
        });
    }
    packed.iter().map(&mut one).collect()
}

fn bzipped(raw: &[u8], level: u32) -> Result<Vec<u8>> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(level));
    encoder.write_all(raw).and_then(|()| encoder.finish()).map_err(failed)
}

/// What stdchk would store, run by run, on one thread.
fn ours(raw: &[u8]) -> Result<Vec<Packed>> {
    let preference = Preference::Auto(Prefer::Balanced);
    let mut advisor = Advisor::new(preference);
    let mut press = Press::new();
    let begun = Instant::now();
    let clock = || begun.elapsed().as_secs_f64();
    let mut packed = Vec::new();
    for run in raw.chunks(RUN) {
        if let Some(prefer) = advisor.wants_trial(f64::INFINITY) {
            advisor.tried(try_codings(prefer, &mut press, run, &clock)?);
        }
        let choice = advisor.choose(&AT_LEISURE, false);
        let done = match choice.coding.is_none() {
            true => None,
            false => press.compress(choice.coding, choice.level, run, preference.limit(run.len()))?,
        };
        packed.push(match done {
            Some(bytes) => Packed { bytes: bytes.to_vec(), raw: run.len(), coding: choice.coding },
            None => Packed::new(run.to_vec(), run.len()),
        });
    }
    Ok(packed)
}

/// Does something to all items on so many threads; the results in their order.
fn parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let share = items.len().div_ceil(threads.max(1)).max(1);
    let work = &work;
    std::thread::scope(|scope| {
        let shares: Vec<_> = items
            .chunks(share)
            .map(|share| scope.spawn(move || share.iter().map(work).collect::<Result<Vec<R>>>()))
            .collect();
        let mut all = Vec::with_capacity(items.len());
        for share in shares {
            all.extend(share.join().map_err(|_| Error::corrupt("a thread of the study panicked"))??);
        }
        Ok(all)
    })
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("a compressor failed: {error}"))
}

/// Writes `bytes` bytes that do not compress into a file in `folder`, and syncs it; bytes a second.
pub fn write_rate(folder: &Path, bytes: u64, progress: Progress) -> Result<f64> {
    write_probe(folder, bytes, progress)
        .context(|| format!("cannot measure how fast {} is", folder.display()))
}

fn write_probe(folder: &Path, bytes: u64, progress: Progress) -> std::io::Result<f64> {
    let mut noise = vec![0u8; 1 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    // Nothing is left of it, whenever this ends.
    let mut file = tempfile::tempfile_in(folder)?;
    let begun = Instant::now();
    for at in 0..bytes.div_ceil(1 << 20) {
        noise[..8].copy_from_slice(&at.to_le_bytes());
        file.write_all(&noise)?;
        progress(noise.len() as u64);
    }
    file.sync_data()?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_brings_back_what_it_took() {
        let text: Vec<u8> = (0..200_000).flat_map(|i| format!("{i} ").into_bytes()).collect();
        let mut noise = vec![0; 600_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let tools = [
            Tool::Zlib(1),
            Tool::Bzip2(1),
            Tool::ParallelBzip2(1),
            Tool::Xz(1),
            Tool::Lz4,
            Tool::Zstd(1),
            Tool::Ours,
        ];
        for tool in tools {
            let done = press(&text, tool, 3).unwrap();
            assert!(done.saved() > 0.3, "{tool}: {done:?}");
            let done = press(&noise, tool, 3).unwrap();
            assert!(done.saved().abs() < 0.01, "{tool}: {done:?}");
        }
    }

    #[test]
    fn a_store_is_measured_and_left_clean() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write_rate(folder.path(), 3 << 20, &|_| {}).unwrap() > 1e5);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(write_rate(&folder.path().join("gone"), 1, &|_| {}).is_err());
    }
}
