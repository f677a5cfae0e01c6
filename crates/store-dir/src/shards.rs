//! Packs as shards, each in a file of its own: `packs/xx/<pack>.<shard>`.
//!
//! A directory that has an object `erasure` writes its packs so. What was written before, or is a pack in one file for another reason, is
//! read all the same: it is seen from what is there.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};

use stdchk_erasure::{Checked, Encoded, Layout, Shards, TAIL_BYTES, heal, is_whole, read};
use stdchk_object::error::Context;
use stdchk_object::pack::check_whole;
use stdchk_object::{Code, Error, Item, Kind, PackName, Result};
use stdchk_store::Objects;

use crate::DirStore;
use crate::dir::{ERASURE, pack_folder, pack_path};

/// Layouts that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// How the packs of a directory are protected, as far as it is known.
#[derive(Default)]
pub(crate) struct Protection {
    code: Mutex<Option<Option<Code>>>,
    layouts: Mutex<HashMap<PackName, Layout>>,
    any: OnceLock<()>,
}

fn shard_path(name: PackName, index: u8) -> String {
    format!("{}/{}", pack_folder(name), Item::shard(name, index))
}

/// The files of one pack.
struct Files<'a> {
    store: &'a DirStore,
    name: PackName,
}

impl Shards for Files<'_> {
    fn read(&self, index: u8, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        self.store.read_file(&shard_path(self.name, index), offset, buffers)
    }
}

impl DirStore {
    fn layouts(&self) -> MutexGuard<'_, HashMap<PackName, Layout>> {
        self.protection.layouts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The code by which packs are written, if there is one.
    pub fn code(&self) -> Result<Option<Code>> {
        let mut known = self.protection.code.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(code) = *known {
            return Ok(code);
        }
        let code = match self.get(ERASURE)? {
            None => None,
            Some(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let read = text.trim().parse::<Code>();
                Some(read.map_err(|_| Error::corrupt(self.failed("what cannot be a code is in", ERASURE)))?)
            }
        };
        *known = Some(code);
        Ok(code)
    }

    /// Sets the code by which packs are written from now on; `None` writes each as one file.
    pub fn protect(&self, code: Option<Code>) -> Result<()> {
        match code {
            Some(code) => Objects::replace(self, ERASURE, format!("{code}\n").as_bytes(), true)?,
            None => self.delete(&[ERASURE.to_owned()])?,
        }
        *self.protection.code.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(code);
        Ok(())
    }

    pub(crate) fn may_have_shards(&self) -> bool {
        self.protection.any.get().is_some() || matches!(self.code(), Ok(Some(_)))
    }

    /// Whether a pack is known to lie in shards.
    pub(crate) fn is_in_shards(&self, name: PackName) -> bool {
        self.protection.any.get().is_some() && self.layouts().contains_key(&name)
    }

    fn know(&self, name: PackName, layout: Layout) {
        let mut layouts = self.layouts();
        if layouts.len() >= KNOWN_MAX {
            layouts.clear();
        }
        layouts.insert(name, layout);
        let _ = self.protection.any.set(());
    }

    /// Does something with a pack in one file or with its shards, whichever there are. Others may cut it or remove it at any time, so that
    /// what is known counts only as long as it fits.
    pub(crate) fn either<T>(
        &self,
        name: PackName,
        in_one: impl FnOnce() -> Result<T>,
        mut in_shards: impl FnMut(Layout) -> Result<T>,
    ) -> Result<T> {
        let known = self.layouts().get(&name).copied();
        if let Some(layout) = known {
            match in_shards(layout) {
                Err(error) if error.kind() == Kind::NotFound => _ = self.layouts().remove(&name),
                done => return done,
            }
        }
        let missing = match in_one() {
            Err(error) if error.kind() == Kind::NotFound => error,
            done => return done,
        };
        match self.find_layout(name)? {
            Some(layout) => {
                self.know(name, layout);
                in_shards(layout)
            }
            None => Err(missing),
        }
    }

    /// How a pack is cut; `None` for one that lies in one file, or is not there.
    pub(crate) fn layout(&self, name: PackName) -> Result<Option<Layout>> {
        let path = pack_path(name);
        let in_one = || self.fs.len(&path).map(|_| None).context(|| self.failed("cannot find pack", &path));
        match self.either(name, in_one, |layout| self.confirm(name, layout).map(Some)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            done => done,
        }
    }

    /// Makes sure that there still are shards of a pack.
    pub(crate) fn confirm(&self, name: PackName, layout: Layout) -> Result<Layout> {
        let is_there = |index| self.fs.len(&shard_path(name, index)).is_ok();
        match (0..layout.count()).any(is_there) {
            true => Ok(layout),
            false => Err(Error::new(Kind::NotFound, self.failed("there is no pack", &pack_path(name)))),
        }
    }

    /// Asks one shard after the other, until one knows.
    fn find_layout(&self, name: PackName) -> Result<Option<Layout>> {
        let mut damage = None;
        for index in 0..Code::COUNT_MAX {
            let path = shard_path(name, index);
            let len = match self.fs.len(&path) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io(self.failed("cannot find pack", &path), error)),
            };
            let mut tail = [0; TAIL_BYTES];
            let read = match len.checked_sub(TAIL_BYTES as u64) {
                Some(at) => self.read_file(&path, at, &mut [&mut tail]),
                None => Err(Error::corrupt(self.failed("cut short:", &path))),
            };
            match read.and_then(|()| Layout::of_tail(name, &tail, len)) {
                Ok((layout, _)) => return Ok(Some(layout)),
                Err(error) if error.kind() == Kind::Corrupt => damage = Some(error),
                Err(error) => return Err(error),
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Writes a pack as shards. With `cached` they go past the cache, but for so many bytes at the end of the pack.
    pub(crate) fn put_shards(
        &self,
        name: PackName,
        code: Code,
        pieces: &[&[u8]],
        cached: Option<u64>,
    ) -> Result<()> {
        let encoded = Encoded::new(name, code, pieces)?;
        let layout = encoded.layout();
        for (index, pieces) in encoded.shards() {
            // Of several that put the same name one makes the first shard.
            let path = shard_path(name, index);
            let written = match cached {
                None => self.write_in_folder(name, &path, &pieces),
                Some(cached) => {
                    let cached = layout.stored_behind(index, layout.pack_len().saturating_sub(cached));
                    self.write_in_folder_past_cache(name, &path, &pieces, cached as usize)
                }
            };
            written.context(|| self.failed("cannot write pack", &path))?;
        }
        self.know(name, layout);
        Ok(())
    }

    /// Says which bytes of a pack will be read soon, if it lies in shards.
    pub(crate) fn will_read_shards(&self, name: PackName, range: Range<u64>) {
        let known = self.layouts().get(&name).copied();
        let Some(layout) = known.filter(|layout| range.end <= layout.pack_len()) else { return };
        for segment in layout.segments(range.start, range.end.saturating_sub(range.start)) {
            let path = shard_path(name, segment.index);
            self.fs.will_read(&path, segment.offset..segment.offset + segment.len);
        }
    }

    pub(crate) fn replace_shards(&self, name: PackName, layout: Layout, pieces: &[&[u8]]) -> Result<()> {
        let layout = layout.again(pieces.iter().map(|piece| piece.len() as u64).sum());
        let encoded = Encoded::again(name, layout, pieces)?;
        self.write_over(name, encoded.shards())?;
        self.know(name, encoded.layout());
        Ok(())
    }

    /// Puts shards in the place of others, durably.
    fn write_over<'a>(
        &self,
        name: PackName,
        shards: impl Iterator<Item = (u8, Vec<&'a [u8]>)>,
    ) -> Result<()> {
        let folder = pack_folder(name);
        self.fs.make_dir(&folder).context(|| self.failed("cannot create", &folder))?;
        for (index, pieces) in shards {
            let path = shard_path(name, index);
            self.through_temporary(&pieces, true, |temporary| self.fs.rename(temporary, &path))
                .context(|| self.failed("cannot replace pack", &path))?;
        }
        self.fs.sync_dir(&folder).context(|| self.failed("cannot sync", &folder))
    }

    /// Makes shards durable, as many as bring the pack back at least: what was lost is for verify to find.
    pub(crate) fn sync_shards(&self, name: PackName, layout: Layout) -> Result<()> {
        let mut missing = 0;
        for index in 0..layout.count() {
            let path = shard_path(name, index);
            match self.fs.sync_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing += 1,
                done => done.context(|| self.failed("cannot sync pack", &path))?,
            }
        }
        if missing > layout.code().parity() {
            return Err(Error::new(
                Kind::NotFound,
                self.failed("too few shards are left of", &pack_path(name)),
            ));
        }
        Ok(())
    }

    pub(crate) fn read_shards(
        &self,
        name: PackName,
        layout: Layout,
        is_checked: bool,
        offset: u64,
        buffers: &mut [&mut [u8]],
    ) -> Result<()> {
        let files = Files { store: self, name };
        let done = match is_checked {
            true => read(&layout, &Checked { shards: &files, layout }, &[], offset, buffers),
            false => read(&layout, &files, &[], offset, buffers),
        };
        done.map_err(|error| error.within(format!("pack {name}")))
    }

    /// What is stored of each shard of a pack.
    fn stored_shards(&self, name: PackName, layout: &Layout) -> Result<Vec<Option<Vec<u8>>>> {
        let stored = (0..layout.count()).map(|index| {
            let path = shard_path(name, index);
            let Ok(len) = self.fs.len(&path) else { return Ok(None) };
            // No more than a shard can be, whatever lies there.
            let mut bytes = vec![0; len.min(layout.stored_len()) as usize];
            match self.read_file(&path, 0, &mut [&mut bytes]) {
                Ok(()) => Ok((len <= layout.stored_len()).then_some(bytes)),
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        });
        stored.collect()
    }

    /// Whether all shards of a pack are whole; a pack in one file is not as safe as it should be where packs are to be in shards.
    pub(crate) fn are_shards_sound(&self, name: PackName) -> Result<bool> {
        let layout = match self.layout(name) {
            Err(error) if error.kind() == Kind::Corrupt => return Ok(false),
            layout => layout?,
        };
        let Some(layout) = layout else { return Ok(self.code()?.is_none()) };
        let stored = self.stored_shards(name, &layout)?;
        let is_whole = |(index, shard): (u8, &Option<Vec<u8>>)| {
            shard.as_ref().is_some_and(|shard| is_whole(name, &layout, index, shard))
        };
        Ok((0..).zip(&stored).all(is_whole))
    }

    /// Makes lost and damaged shards again; and shards of a pack in one file, where packs are to be in shards.
    pub(crate) fn heal_shards(&self, name: PackName) -> Result<()> {
        let Some(layout) = self.layout(name)? else {
            return self.code()?.map_or(Ok(()), |code| self.cut_file(name, code));
        };
        let stored = self.stored_shards(name, &layout)?;
        let Some(healed) = heal(name, &stored, |pack| check_whole(name, pack).is_ok())? else {
            return Ok(());
        };
        self.write_over(name, healed.bad.iter().map(|(index, bytes)| (*index, vec![&bytes[..]])))
    }

    /// Cuts a pack that lies in one file.
    fn cut_file(&self, name: PackName, code: Code) -> Result<()> {
        let path = pack_path(name);
        let pack = match self.fs.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            pack => pack.context(|| self.failed("cannot read pack", &path))?,
        };
        if check_whole(name, &pack).is_err() {
            return Ok(());
        }
        let pieces = [&pack[..]];
        let encoded = Encoded::new(name, code, &pieces)?;
        self.write_over(name, encoded.shards())?;
        self.know(name, encoded.layout());
        self.unlink(&path)
    }

    pub(crate) fn remove_shards(&self, name: PackName) -> Result<()> {
        self.layouts().remove(&name);
        let folder = pack_folder(name);
        let entries = match self.fs.list(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context(|| self.failed("cannot list", &folder))?,
        };
        let mut mine =
            entries.iter().filter(|entry| entry.name.parse::<Item>().is_ok_and(|item| item.pack == name));
        mine.try_for_each(|entry| self.unlink(&format!("{folder}/{}", entry.name)))
    }
}
