//! Packs and objects as files of a directory.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stdchk_object::error::Context;
use stdchk_object::pack::tail_length;
use stdchk_object::{Error, Item, Kind, PackName, Result};
use stdchk_store::{Objects, Store};

use crate::fs::Fs;
use crate::real::RealFs;
use crate::shards::Protection;

/// The folders of a repository.
const FOLDERS: [&str; 6] = ["packs", "log", "snapshots", "index", "beats", "tmp"];
/// A file that only takes up room, so that there is some to free more with when the disk is full to the last block.
const BALLAST: &str = "ballast";
/// Enough for the largest records of a garbage collection.
const BALLAST_BYTES: u64 = 256 << 10;
/// It is given up by as much as is needed, in steps of this.
const BALLAST_STEP: u64 = 8 << 10;
/// Says how packs are protected, if they are.
pub(crate) const ERASURE: &str = "erasure";
/// Temporary files older than this belong to nobody. Wrongly removed, one costs its writer a clear error.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A directory as [`Store`] and [`Objects`].
pub struct DirStore {
    pub(crate) fs: Arc<dyn Fs>,
    /// For messages.
    place: String,
    /// Distinguishes this store's temporary files from those of other processes and hosts.
    tag: String,
    counter: AtomicU64,
    pub(crate) protection: Protection,
    make_room: OnceLock<MakeRoom>,
}

impl DirStore {
    /// The directory at `root`, which must exist; [`DirStore::prepare`] makes what is missing in it.
    /// `tag` must differ between any two processes that use the directory at the same time.
    pub fn open(root: &Path, tag: String) -> DirStore {
        DirStore::on(Arc::new(RealFs::new(root)), root.display().to_string(), tag)
    }

    /// The same on any file system.
    pub fn on(fs: Arc<dyn Fs>, place: String, tag: String) -> DirStore {
        let (counter, protection) = (AtomicU64::new(0), Protection::default());
        DirStore { fs, place, tag, counter, protection, make_room: OnceLock::new() }
    }

    /// Makes folders that are missing: copies and object stores drop empty ones. Who may not, goes on without.
    pub fn complete(&self) {
        for folder in FOLDERS {
            let _ = self.fs.make_dir(folder);
        }
    }

    /// Makes the folders of a repository, durably. Doing it again does nothing.
    pub fn prepare(&self) -> Result<()> {
        for folder in FOLDERS {
            self.fs.make_dir(folder).context(|| self.failed("cannot create", folder))?;
        }
        self.fs.sync_dir("").context(|| self.failed("cannot sync", ""))
    }

    /// Removes temporary files that nobody can still be using; says how many and their bytes.
    pub fn remove_stale_temporaries(&self, really: bool) -> Result<(u64, u64)> {
        let (mut count, mut bytes) = (0, 0);
        let now = self.fs.now().context(|| self.failed("cannot ask the time of", "tmp"))?;
        for entry in self.fs.list("tmp").context(|| self.failed("cannot list", "tmp"))? {
            if now.saturating_sub(entry.modified) < TEMPORARY_AGE_MAX {
                continue;
            }
            if really {
                self.unlink(&format!("tmp/{}", entry.name))?;
            }
            count += 1;
            bytes += entry.len;
        }
        Ok((count, bytes))
    }

    /// Files in the folders of packs that are no packs, or lie in the wrong folder.
    pub fn strangers(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut look = |folder: String, allowed: &dyn Fn(&str) -> bool| -> Result<()> {
            for entry in self.fs.list(&folder).context(|| self.failed("cannot list", &folder))? {
                if !allowed(&entry.name) {
                    found.push(if folder.is_empty() {
                        entry.name
                    } else {
                        format!("{folder}/{}", entry.name)
                    });
                }
            }
            Ok(())
        };
        look(String::new(), &|name| matches!(name, "stdchk" | "mark" | "named" | BALLAST | ERASURE))?;
        look("packs".to_owned(), &|_| false)?;
        for folder in self.fs.list_dirs("packs").context(|| self.failed("cannot list", "packs"))? {
            let folder = format!("packs/{folder}");
            let is_pack =
                |name: &str| name.parse::<Item>().is_ok_and(|item| pack_folder(item.pack) == folder);
            look(folder.clone(), &is_pack)?;
        }
        Ok(found)
    }

    pub(crate) fn failed(&self, what: &str, path: &str) -> String {
        format!("{what} {}/{path}", self.place)
    }

    /// Fills buffers from a file; what says that its bytes are not there any more is damage.
    pub(crate) fn read_file(&self, path: &str, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        match self.fs.read_at(path, offset, buffers) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Error::corrupt(format!("{} is cut short", self.failed("pack", path))))
            }
            // A sector that cannot be read any more is how media lose bytes.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Err(Error::io(self.failed("the medium cannot read pack", path), error)
                    .with_kind(Kind::Corrupt))
            }
            // Offsets beyond what the system can address lie beyond any end.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Error::corrupt(format!("{} is cut short", self.failed("pack", path))))
            }
            done => done.context(|| self.failed("cannot read pack", path)),
        }
    }

    /// Creates a file in a pack's folder, and the folder where it is missing.
    pub(crate) fn write_in_folder(&self, name: PackName, path: &str, pieces: &[&[u8]]) -> io::Result<()> {
        self.in_folder(name, || self.fs.write_new(path, pieces))
    }

    /// The same past the cache, but for `cached` bytes at the end.
    pub(crate) fn write_in_folder_past_cache(
        &self,
        name: PackName,
        path: &str,
        pieces: &[&[u8]],
        cached: usize,
    ) -> io::Result<()> {
        self.in_folder(name, || self.fs.write_new_past_cache(path, pieces, cached))
    }

    /// Does what needs a pack's folder, and creates that where it is missing.
    fn in_folder(&self, name: PackName, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.fs.make_dir(&pack_folder(name)).and_then(|_| write())
            }
            done => done,
        }
    }

    pub(crate) fn unlink(&self, path: &str) -> Result<()> {
        match self.fs.unlink(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(self.failed("cannot remove", path), error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a temporary file, synced if asked, and hands it to `place`; then it is gone again.
    pub(crate) fn through_temporary(
        &self,
        pieces: &[&[u8]],
        durable: bool,
        place: impl FnOnce(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("tmp/{}-{number}", self.tag);
        let placed = self
            .fs
            .write_new(&temporary, pieces)
            .and_then(|()| if durable { self.fs.sync_file(&temporary) } else { Ok(()) })
            .and_then(|()| place(&temporary));
        // After a rename there is nothing to remove; after a crash, garbage collection does it.
        let _ = self.fs.unlink(&temporary);
        placed
    }
}

fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

pub(crate) fn pack_folder(name: PackName) -> String {
    format!("packs/{:02x}", name.session.0 >> 56)
}

pub(crate) fn pack_path(name: PackName) -> String {
    format!("{}/{name}", pack_folder(name))
}

/// Makes room in a store that is full; whether it tried.
type MakeRoom = Box<dyn Fn() -> bool + Send + Sync>;

impl DirStore {
    /// What is done where a pack finds no room, before it is put once more.
    pub fn when_full(&self, make_room: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.make_room.set(Box::new(make_room));
    }

    fn put_or_make_room(&self, name: PackName, put: impl Fn() -> Result<()>) -> Result<()> {
        match put() {
            Err(error)
                if error.kind() == Kind::Full
                    && self.make_room.get().is_some_and(|make_room| make_room()) =>
            {
                // It, or some of its shards, may have got a name before there was no room for that to last.
                self.remove(&[name])?;
                put()
            }
            done => done,
        }
    }

    fn put_cached(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        if let Some(code) = self.code()? {
            return self.put_shards(name, code, pieces, None);
        }
        let path = pack_path(name);
        self.write_in_folder(name, &path, pieces).context(|| self.failed("cannot write pack", &path))
    }

    fn put_uncached(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        // Whoever opens a pack reads its end first.
        let end = usize::try_from(tail_length(len as u64)).unwrap_or(len);
        let cached = pieces.last().map_or(0, |footer| footer.len().max(end));
        if let Some(code) = self.code()? {
            return self.put_shards(name, code, pieces, Some(cached as u64));
        }
        let path = pack_path(name);
        self.write_in_folder_past_cache(name, &path, pieces, cached)
            .context(|| self.failed("cannot write pack", &path))
    }
}

impl Store for DirStore {
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.put_or_make_room(name, || self.put_cached(name, pieces))
    }

    fn put_past_cache(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.put_or_make_room(name, || self.put_uncached(name, pieces))
    }

    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        if let Some(layout) = self.layout(name)? {
            return self.replace_shards(name, layout, pieces);
        }
        let (folder, path) = (pack_folder(name), pack_path(name));
        self.fs
            .make_dir(&folder)
            .and_then(|is_new| if is_new { self.fs.sync_dir("packs") } else { Ok(()) })
            .and_then(|()| self.through_temporary(pieces, true, |temporary| self.fs.rename(temporary, &path)))
            .and_then(|()| self.fs.sync_dir(&folder))
            .context(|| self.failed("cannot replace pack", &path))
    }

    fn sync(&self, names: &[PackName]) -> Result<()> {
        let mut folders = std::collections::BTreeSet::new();
        for &name in names {
            let path = pack_path(name);
            let in_one = || self.fs.sync_file(&path).context(|| self.failed("cannot sync pack", &path));
            self.either(name, in_one, |layout| self.sync_shards(name, layout))?;
            folders.insert(pack_folder(name));
        }
        if folders.is_empty() {
            return Ok(());
        }
        folders.insert("packs".to_owned());
        for folder in folders {
            self.fs.sync_dir(&folder).context(|| self.failed("cannot sync", &folder))?;
        }
        Ok(())
    }

    fn length(&self, name: PackName) -> Result<u64> {
        let path = pack_path(name);
        let in_one = || self.fs.len(&path).context(|| self.failed("cannot find pack", &path));
        self.either(name, in_one, |layout| Ok(self.confirm(name, layout)?.pack_len()))
    }

    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let buffers = std::cell::RefCell::new(buffers);
        let in_one = || self.read_file(&pack_path(name), offset, &mut buffers.borrow_mut());
        self.either(name, in_one, |layout| {
            self.read_shards(name, layout, false, offset, &mut buffers.borrow_mut())
        })
    }

    fn will_read(&self, name: PackName, range: Range<u64>) {
        match self.is_in_shards(name) {
            true => self.will_read_shards(name, range),
            false => self.fs.will_read(&pack_path(name), range),
        }
    }

    fn copies(&self) -> u32 {
        1 + u32::from(self.may_have_shards())
    }

    /// The second copy is the pack by those shards of which every block fits its sum.
    fn read_copy(&self, name: PackName, copy: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match (copy, self.layout(name)?) {
            (0, _) => self.read(name, offset, buffer),
            (1, Some(layout)) => self.read_shards(name, layout, true, offset, &mut [buffer]),
            _ => Err(Error::new(Kind::NotFound, format!("there is no other copy of pack {name}"))),
        }
    }

    fn is_sound(&self, name: PackName) -> Result<bool> {
        self.are_shards_sound(name)
    }

    fn heal(&self, name: PackName) -> Result<()> {
        self.heal_shards(name)
    }

    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
        for folder in self.fs.list_dirs("packs").context(|| self.failed("cannot list", "packs"))? {
            let folder = format!("packs/{folder}");
            let mut sharded = std::collections::BTreeMap::new();
            for entry in self.fs.list(&folder).context(|| self.failed("cannot list", &folder))? {
                match entry.name.parse::<Item>() {
                    Ok(item) if pack_folder(item.pack) != folder => {}
                    Ok(Item { pack, shard: None }) => each(pack, entry.len),
                    Ok(Item { pack, .. }) => *sharded.entry(pack).or_insert(0) += entry.len,
                    Err(_) => {}
                }
            }
            for (name, bytes) in sharded {
                // Shards that do not even say how long the pack was still take up room.
                each(name, self.layout(name).ok().flatten().map_or(bytes, |layout| layout.pack_len()));
            }
        }
        Ok(())
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        names.iter().try_for_each(|&name| match self.fs.unlink(&pack_path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.remove_shards(name),
            // A cut that was stopped leaves both.
            Ok(()) if self.may_have_shards() => self.remove_shards(name),
            done => done.context(|| self.failed("cannot remove", &pack_path(name))),
        })
    }
}

/// A folder that is missing is a broken repository, not an object that is not there.
fn no_folder(error: Error) -> Error {
    if error.kind() == Kind::NotFound { error.with_kind(Kind::Io) } else { error }
}

impl Objects for DirStore {
    fn create(&self, name: &str, bytes: &[u8], durable: bool) -> Result<bool> {
        let linked = self.through_temporary(&[bytes], true, |temporary| self.fs.link(temporary, name));
        let created = match linked {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The answer to a link that succeeded may have been lost, and the link tried again: read back.
                self.get(name)?.as_deref() == Some(bytes)
            }
            Err(error) => return Err(no_folder(Error::io(self.failed("cannot create", name), error))),
        };
        if created && durable {
            self.sync_folder(folder_of(name))?;
        }
        Ok(created)
    }

    fn replace(&self, name: &str, bytes: &[u8], durable: bool) -> Result<()> {
        self.through_temporary(&[bytes], durable, |temporary| self.fs.rename(temporary, name))
            .context(|| self.failed("cannot write", name))
            .map_err(no_folder)?;
        if durable { self.sync_folder(folder_of(name)) } else { Ok(()) }
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.fs.read(name) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(self.failed("cannot read", name), error)),
        }
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        match self.fs.read_range(name, offset, len) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(self.failed("cannot read", name), error)),
        }
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let entries =
            self.fs.list(folder).context(|| self.failed("cannot list", folder)).map_err(no_folder)?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.unlink(name))
    }

    fn sync_folder(&self, folder: &str) -> Result<()> {
        self.fs.sync_dir(folder).context(|| self.failed("cannot sync", folder)).map_err(no_folder)
    }

    fn keep_room(&self) -> Result<()> {
        let kept = self.fs.len(BALLAST).unwrap_or(0);
        // Bytes that no file system compresses away.
        let bytes: Vec<u8> = (0..BALLAST_BYTES / 8)
            .flat_map(|i| {
                (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left((i % 61) as u32).to_le_bytes()
            })
            .collect();
        // As much as there is room for.
        let mut len = BALLAST_BYTES;
        while len > kept {
            let written = self.through_temporary(&[&bytes[..len as usize]], false, |temporary| {
                self.fs.rename(temporary, BALLAST)
            });
            match written {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
                {
                    len /= 2
                }
                done => return done.context(|| self.failed("cannot write", BALLAST)),
            }
        }
        Ok(())
    }

    fn keeps_room(&self) -> Result<bool> {
        match self.fs.len(BALLAST) {
            Ok(kept) => Ok(kept >= BALLAST_BYTES),
            // It was given up; or those who made the store could not keep any.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(self.failed("cannot look at", BALLAST), error)),
        }
    }

    fn give_room(&self, bytes: u64) -> Result<bool> {
        let Ok(kept) = self.fs.len(BALLAST) else { return Ok(false) };
        // Names and the file system's own tables need room, too.
        let left = kept.saturating_sub(bytes + BALLAST_STEP) / BALLAST_STEP * BALLAST_STEP;
        let given = if left > 0 { self.fs.truncate(BALLAST, left) } else { self.fs.unlink(BALLAST) };
        match given {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(self.failed("cannot shorten", BALLAST), error)),
        }
    }

    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>> {
        let now =
            self.fs.now().context(|| self.failed("cannot ask the time of", folder)).map_err(no_folder)?;
        let entries =
            self.fs.list(folder).context(|| self.failed("cannot list", folder)).map_err(no_folder)?;
        Ok(entries.into_iter().map(|e| (e.name, now.saturating_sub(e.modified))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(root: &Path) -> DirStore {
        let store = DirStore::open(root, "test".into());
        store.prepare().unwrap();
        store
    }

    #[test]
    fn passes_the_conformance_suite() {
        let dir = tempfile::tempdir().unwrap();
        stdchk_store::conformance::store(&store(dir.path()));
        let dir = tempfile::tempdir().unwrap();
        stdchk_store::conformance::objects(&store(dir.path()));
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn passes_the_conformance_suite_in_shards() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.protect(Some("4+2".parse().unwrap())).unwrap();
        stdchk_store::conformance::store(&store);
        let files: usize = std::fs::read_dir(dir.path().join("packs"))
            .unwrap()
            .map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count())
            .sum();
        assert_eq!(files, 6 + 3, "a pack as 4+2, a small one as 1+2, and nothing of those removed");
        assert!(store.strangers().unwrap().is_empty());
    }

    #[test]
    fn strangers_among_the_packs_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        std::fs::create_dir_all(dir.path().join("packs/00/deep")).unwrap();
        std::fs::write(dir.path().join("packs/00/README"), b"x").unwrap();
        std::fs::write(dir.path().join("packs/ff00000000000000000000000000000000"), b"x").unwrap();
        store.list(&mut |name, _| panic!("{name}")).unwrap();
    }
}
