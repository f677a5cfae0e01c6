//! A folder that is lent.
//!
//! A pack, or a shard of one, lies in a file of its own name: its bytes, a u64 sum of each block of 64 KiB, its length as u64, and the sum of these two. A file
//! has its name only when it is whole, or when a power cut has torn it: then its end, or a sum, says so, and it is none.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stdchk_object::error::Context;
use stdchk_object::{Error, Item, Kind, Result};
use stdchk_store_dir::fs::Fs;

use super::{BLOCK_BYTES, Bulk, Room, Shelf, Source, Usage, Wish, WriterId, sum};

/// Where packs lie, by the first byte of their names, and where they are written.
const PACKS: &str = "packs";
const TEMPORARY: &str = "tmp";
const TAIL_BYTES: usize = 16;

/// Packs in a folder, of which this process is the only user.
pub struct LentDisk {
    fs: Arc<dyn Fs>,
    /// For messages.
    place: String,
    inner: Mutex<Inner>,
    counter: AtomicU64,
}

struct Inner {
    packs: BTreeMap<Item, u64>,
    room: Room,
}

fn folder_of(item: Item) -> String {
    format!("{PACKS}/{:02x}", item.pack.session.0 >> 56)
}

fn path_of(item: Item) -> String {
    format!("{}/{item}", folder_of(item))
}

fn blocks_of(len: u64) -> u64 {
    len.div_ceil(BLOCK_BYTES as u64)
}

/// Bytes of the file of a pack of that length.
fn file_len(len: u64) -> u64 {
    len + blocks_of(len) * 8 + TAIL_BYTES as u64
}

impl LentDisk {
    /// Lends so many bytes. What is there whole from before is there again; what is torn is removed.
    pub fn open(fs: Arc<dyn Fs>, place: &str, capacity: u64) -> Result<LentDisk> {
        let disk = LentDisk {
            fs,
            place: place.to_owned(),
            inner: Mutex::new(Inner { packs: BTreeMap::new(), room: Room::new(capacity) }),
            counter: AtomicU64::new(0),
        };
        for folder in [PACKS, TEMPORARY] {
            disk.fs.make_dir(folder).context(|| disk.failed("cannot make", folder))?;
        }
        disk.fs.sync_dir("").context(|| disk.failed("cannot sync", ""))?;
        for entry in disk.fs.list(TEMPORARY).context(|| disk.failed("cannot list", TEMPORARY))? {
            disk.unlink(&format!("{TEMPORARY}/{}", entry.name))?;
        }
        for folder in disk.fs.list_dirs(PACKS).context(|| disk.failed("cannot list", PACKS))? {
            disk.take_in(&format!("{PACKS}/{folder}"))?;
        }
        Ok(disk)
    }

    fn take_in(&self, folder: &str) -> Result<()> {
        for entry in self.fs.list(folder).context(|| self.failed("cannot list", folder))? {
            let Ok(item) = entry.name.parse::<Item>() else { continue };
            let path = path_of(item);
            match self.read_tail(&path, entry.len) {
                Ok(len) if folder_of(item) == folder => {
                    let mut inner = self.inner();
                    inner.packs.insert(item, len);
                    inner.room.take_in(len);
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!("{error}; others have it");
                    self.unlink(&path)?;
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The length of the pack in a file, by its end.
    fn read_tail(&self, path: &str, file: u64) -> Result<u64> {
        let torn = || Error::corrupt(self.failed("torn pack", path));
        let start = file.checked_sub(TAIL_BYTES as u64).ok_or_else(torn)?;
        let tail =
            self.fs.read_range(path, start, TAIL_BYTES).context(|| self.failed("cannot read", path))?;
        let (len, code) = tail.split_first_chunk::<8>().ok_or_else(torn)?;
        let len = u64::from_le_bytes(*len);
        let is_whole = code == sum(&len.to_le_bytes()).to_le_bytes() && len < file && file_len(len) == file;
        if is_whole { Ok(len) } else { Err(torn()) }
    }

    fn failed(&self, what: &str, path: &str) -> String {
        format!("{what} {}/{path}", self.place)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn unlink(&self, path: &str) -> Result<()> {
        match self.fs.unlink(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(self.failed("cannot remove", path), error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a pack whole, and only then gives it its name.
    fn write(&self, item: Item, bytes: &[u8], replaces: bool) -> Result<()> {
        let path = path_of(item);
        let temporary = format!("{TEMPORARY}/{}", self.counter.fetch_add(1, Ordering::Relaxed));
        let sums: Vec<u8> = bytes.chunks(BLOCK_BYTES).flat_map(|block| sum(block).to_le_bytes()).collect();
        let len = (bytes.len() as u64).to_le_bytes();
        let written = self
            .fs
            .make_dir(&folder_of(item))
            .and_then(|_| self.fs.write_new(&temporary, &[bytes, &sums, &len, &sum(&len).to_le_bytes()]))
            .and_then(|()| match replaces {
                // Never over what is there before it is as safe.
                true => self.fs.sync_file(&temporary).and_then(|()| self.fs.rename(&temporary, &path)),
                false => self.fs.link(&temporary, &path),
            });
        let _ = self.fs.unlink(&temporary);
        written.context(|| self.failed("cannot write pack", &path))
    }

    fn remove_one(&self, item: Item) -> Result<()> {
        self.unlink(&path_of(item))?;
        let mut inner = self.inner();
        let freed = inner.packs.remove(&item).unwrap_or(0);
        inner.room.give(freed);
        Ok(())
    }

    /// Reads whole blocks, and checks each.
    fn read_blocks(&self, item: Item, len: u64, from: u64, to: u64) -> Result<Vec<u8>> {
        let path = path_of(item);
        let block = BLOCK_BYTES as u64;
        let bytes = ((to * block).min(len) - from * block) as usize;
        let mut read = vec![0; bytes];
        let mut sums = vec![0; ((to - from) * 8) as usize];
        let done = self
            .fs
            .read_at(&path, from * block, &mut [&mut read])
            .and_then(|()| self.fs.read_at(&path, len + from * 8, &mut [&mut sums]));
        match done {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(Error::corrupt(self.failed("torn pack", &path)));
            }
            done => done.context(|| self.failed("cannot read", &path))?,
        }
        let all_fit =
            read.chunks(BLOCK_BYTES).zip(sums.as_chunks::<8>().0).all(|(b, s)| sum(b).to_le_bytes() == *s);
        if all_fit { Ok(read) } else { Err(Error::corrupt(self.failed("rotten pack", &path))) }
    }
}

/// Some of the bytes that were read.
struct Part {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Bulk for Part {
    fn slices(&self) -> Vec<&[u8]> {
        vec![&self.bytes[self.skip..self.skip + self.len]]
    }
}

impl Shelf for LentDisk {
    fn take(&self, item: Item, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()> {
        {
            let mut inner = self.inner();
            if inner.packs.contains_key(&item) && !replaces {
                return Err(Error::new(Kind::Exists, format!("pack {item} is here already")));
            }
            inner.room.take(item, len, len)?;
        }
        let mut bytes = Vec::new();
        let taken = receive(len, source, &mut bytes).and_then(|()| self.write(item, &bytes, replaces));
        let mut inner = self.inner();
        let freed = match &taken {
            Ok(()) => inner.packs.insert(item, len).unwrap_or(0),
            Err(_) => len,
        };
        inner.room.give(freed);
        taken
    }

    fn check_room(&self, item: Item, len: u64) -> Result<()> {
        self.inner().room.check(item, len, len)?;
        // Others may have taken what was lent.
        let there = self.fs.room().context(|| self.failed("cannot see how much room is left in", ""))?;
        if there >= file_len(len) {
            return Ok(());
        }
        let text = format!("no room for the {len} bytes of pack {item}: {there} are left in {}", self.place);
        Err(Error::new(Kind::Full, text))
    }

    fn keep_room(&self, writer: WriterId, wish: Wish) -> u64 {
        self.inner().room.keep(writer, wish)
    }

    fn give(&self, item: Item, offset: u64, len: u64) -> Result<Box<dyn Bulk>> {
        let length = self.length(item)?;
        let Some(end) = offset.checked_add(len).filter(|&end| end <= length) else {
            return Err(Error::corrupt(format!("pack {item} ends before byte {offset}+{len}")));
        };
        let block = BLOCK_BYTES as u64;
        let from = offset / block;
        let to = end.div_ceil(block).max(from);
        let mut read = self.read_blocks(item, length, from, to);
        if read.is_err() {
            // It may have been replaced at this moment.
            read = self.read_blocks(item, self.length(item)?, from, to);
        }
        if read.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
            // It is none any more: others are asked, and whoever looks for copies sees that one is missing.
            self.remove_one(item)?;
        }
        Ok(Box::new(Part { bytes: read?, skip: (offset - from * block) as usize, len: len as usize }))
    }

    fn length(&self, item: Item) -> Result<u64> {
        let missing = || Error::new(Kind::NotFound, format!("pack {item} is not here"));
        self.inner().packs.get(&item).copied().ok_or_else(missing)
    }

    fn sync(&self, items: &[Item]) -> Result<()> {
        for &item in items {
            let path = path_of(item);
            self.length(item)?;
            self.fs.sync_file(&path).context(|| self.failed("cannot sync", &path))?;
            for folder in [&folder_of(item), PACKS] {
                self.fs.sync_dir(folder).context(|| self.failed("cannot sync", folder))?;
            }
        }
        Ok(())
    }

    fn list(&self, after: Option<Item>, most: usize) -> Result<Vec<(Item, u64)>> {
        let inner = self.inner();
        let behind = inner.packs.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        Ok(behind.take(most).map(|(item, len)| (*item, *len)).collect())
    }

    fn remove(&self, items: &[Item]) -> Result<()> {
        items.iter().try_for_each(|&item| self.remove_one(item))
    }

    fn usage(&self) -> Usage {
        let inner = self.inner();
        inner.room.usage(inner.packs.len())
    }
}

/// Receives all bytes of a pack; memory grows only with what has come.
fn receive(len: u64, source: &mut dyn Source, bytes: &mut Vec<u8>) -> Result<()> {
    const STEP: u64 = 1 << 20;
    while (bytes.len() as u64) < len {
        let start = bytes.len();
        bytes.resize((start as u64 + STEP).min(len) as usize, 0);
        source.fill(&mut bytes[start..])?;
    }
    source.finish()
}
