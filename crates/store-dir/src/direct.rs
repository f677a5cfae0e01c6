//! Writing past the page cache. Bytes that are synced at once gain nothing from a copy in memory: making it costs as much as hashing them,
//! and it takes memory from the programs that are saved.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// What devices and file systems want lengths, places and memory to be multiples of, nearly all of them.
const BLOCK: usize = 4096;
/// Bytes that one call writes.
const ROOM: usize = 1 << 20;
/// Fewer bytes of a file are not worth it.
const LEAST: usize = 1 << 20;
/// Rooms that are kept for the next file.
const ROOMS_MAX: usize = 8;
/// Bytes a second below which the cache does better: it joins writes of several files into long runs, what it costs is not seen beside
/// such a disk, and who reads from it later gains much.
const SLOW: f64 = 256e6;
/// Files that go through the cache before another one is tried; and where none need be.
const PAUSE: u32 = 16;
const FOR_GOOD: u32 = u32::MAX;

/// Writers of one directory.
#[derive(Default)]
pub(crate) struct Direct {
    rooms: Mutex<Vec<MmapMut>>,
    under_way: AtomicU32,
    /// How many files go through the cache.
    pause: AtomicU32,
}

impl Direct {
    /// Writes the first `len` bytes of `pieces` to an empty file, as far as that goes without the page cache; how many were written. All
    /// others are for the caller to write, who also finds out what is wrong, if anything is.
    pub(crate) fn write(&self, file: &File, pieces: &[&[u8]], len: usize) -> usize {
        let there: usize = pieces.iter().map(|piece| piece.len()).sum();
        let len = len.min(there) / BLOCK * BLOCK;
        let takes_turn = |left: u32| left.checked_sub(1);
        if len < LEAST || self.pause.fetch_update(Relaxed, Relaxed, takes_turn).is_ok() {
            return 0;
        }
        let Some(_flag) = Flag::set(file) else {
            self.pause.store(FOR_GOOD, Relaxed);
            return 0;
        };
        let Ok(mut room) = self.take() else { return 0 };
        let (begun, beside) = (Instant::now(), self.under_way.fetch_add(1, Relaxed) + 1);
        let (written, stopped) =
            write_blocks(pieces, len, &mut room, |bytes, at| file.write_all_at(bytes, at as u64));
        let beside = f64::from(beside + self.under_way.fetch_sub(1, Relaxed)) / 2.0;
        self.give_back(room);
        let pause = match stopped.map(|error| error.kind()) {
            // Stricter about multiples than most file systems; or a short write, after which the rest begins anywhere.
            Some(ErrorKind::InvalidInput | ErrorKind::Unsupported) if written == 0 => Some(FOR_GOOD),
            Some(_) => Some(PAUSE),
            None => (len as f64 * beside < SLOW * begun.elapsed().as_secs_f64()).then_some(PAUSE),
        };
        pause.into_iter().for_each(|pause| self.pause.store(pause, Relaxed));
        written
    }

    fn take(&self) -> io::Result<MmapMut> {
        let kept = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| MmapOptions::new().len(ROOM).populate().map_anon(), Ok)
    }

    fn give_back(&self, room: MmapMut) {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() < ROOMS_MAX {
            rooms.push(room);
        }
    }
}

/// A file that is written past the page cache for as long as this is there.
struct Flag<'a>(&'a File, OFlags);

impl Flag<'_> {
    fn set(file: &File) -> Option<Flag<'_>> {
        let before = fcntl_getfl(file).ok()?;
        fcntl_setfl(file, before | OFlags::DIRECT).ok()?;
        Some(Flag(file, before))
    }
}

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        // If it stays, what does not fill a block is refused, with an error.
        let _ = fcntl_setfl(self.0, self.1);
    }
}

/// Writes the first `len` bytes by way of `room`, until something fails; how many were written, and what failed.
fn write_blocks(
    pieces: &[&[u8]],
    len: usize,
    room: &mut [u8],
    mut write: impl FnMut(&[u8], usize) -> io::Result<()>,
) -> (usize, Option<io::Error>) {
    let mut written = 0;
    let mut pieces = pieces.iter().copied();
    let mut piece: &[u8] = &[];
    while written < len {
        let wanted = room.len().min(len - written);
        let mut filled = 0;
        while filled < wanted {
            while piece.is_empty() {
                piece = pieces.next().expect("they are at least so long");
            }
            let some = piece.len().min(wanted - filled);
            let (now, later) = piece.split_at(some);
            room[filled..filled + some].copy_from_slice(now);
            filled += some;
            piece = later;
        }
        if let Err(error) = write(&room[..wanted], written) {
            return (written, Some(error));
        }
        written += wanted;
    }
    (written, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that repeat with no power of two.
    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8 ^ (i / 65_521) as u8).collect()
    }

    /// How much of the pieces was written, if it was written right; and whether it could be.
    fn written(direct: &Direct, pieces: &[&[u8]], len: usize) -> (usize, bool) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let can_be = Flag::set(file.as_file()).is_some();
        let written = direct.write(file.as_file(), pieces, len);
        let there = std::fs::read(file.path()).expect("it is there");
        assert!(there == pieces.concat()[..written]);
        (written, can_be)
    }

    #[test]
    fn pieces_of_any_length_are_written_as_far_as_blocks_go() {
        let bytes = noise(3 * ROOM + 5000);
        for cuts in [vec![1, 7, 4097, 1 << 20], vec![ROOM, 2 * ROOM], vec![5000, 5000, 5001], vec![]] {
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            for len in [0, LEAST - 1, LEAST, 2 * ROOM + 4095, bytes.len(), usize::MAX] {
                let direct = Direct::default();
                let (written, can_be) = written(&direct, &pieces, len);
                let most = if len < LEAST { 0 } else { len.min(bytes.len()) / BLOCK * BLOCK };
                assert_eq!(written, if can_be { most } else { 0 }, "{len}");
                assert_eq!(direct.under_way.load(Relaxed), 0);
            }
        }
    }

    #[test]
    fn what_fails_leaves_the_rest_to_the_caller() {
        let bytes = noise(5 * BLOCK);
        for fails_at in 0..3 {
            let mut there = Vec::new();
            let (written, stopped) = write_blocks(&[&bytes], 5 * BLOCK, &mut [0; 2 * BLOCK], |some, at| {
                assert_eq!(at, there.len());
                if at == fails_at * 2 * BLOCK {
                    return Err(ErrorKind::InvalidInput.into());
                }
                there.extend_from_slice(some);
                Ok(())
            });
            assert_eq!(written, fails_at * 2 * BLOCK);
            assert!(stopped.is_some() && there == bytes[..written]);
        }
    }

    #[test]
    fn where_it_is_not_worth_it_files_go_through_the_cache() {
        let bytes = noise(ROOM);
        let direct = Direct::default();
        direct.pause.store(PAUSE, Relaxed);
        for _ in 0..PAUSE {
            assert_eq!(written(&direct, &[&bytes], ROOM).0, 0);
        }
        assert_eq!(direct.pause.load(Relaxed), 0, "now one is tried");
    }

    #[test]
    fn a_file_that_only_can_be_read_is_left_to_the_caller() {
        let bytes = noise(ROOM);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let direct = Direct::default();
        let written = direct.write(&File::open(file.path()).expect("it is there"), &[&bytes], ROOM);
        assert_eq!(written, 0);
        assert_ne!(direct.pause.load(Relaxed), 0);
    }

    #[test]
    fn a_file_is_as_it_was_afterwards() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes = noise(ROOM);
        Direct::default().write(file.as_file(), &[&bytes], ROOM);
        assert!(!fcntl_getfl(file.as_file()).expect("it is open").contains(OFlags::DIRECT));
    }
}
