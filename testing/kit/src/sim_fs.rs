//! A file system in memory that counts its steps, can fail or stop at any of them, and after a power cut keeps only
//! what `docs/COMMIT.md` assumes of the media, and of the rest whatever a seed says.
//!
//! - The bytes of a file are certain up to its last fsync. What was written later may be there, be missing, or be
//!   torn: any sector old, new or zero.
//! - An entry of a directory is certain since that directory's last fsync. Changes after that may each be there or not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use stdchk_store_dir::fs::{Entry, Fs};

use crate::Random;

const SECTOR: usize = 512;

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine stops: this step and all later ones fail, until [`SimFs::power_cut`].
    Stop,
    /// This step fails with an error, having done nothing.
    Error(io::ErrorKind),
    /// This step and all later ones that write fail with an error.
    Errors(io::ErrorKind),
}

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// What a power cut cannot take.
    durable: Vec<u8>,
    modified: Duration,
}

#[derive(Clone, Default)]
struct Dir {
    entries: BTreeMap<String, Target>,
    durable: BTreeMap<String, Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    File(usize),
    Dir,
}

#[derive(Clone)]
struct World {
    inodes: Vec<Inode>,
    /// By path; the root is "".
    dirs: BTreeMap<String, Dir>,
    steps: u64,
    plan: Option<(u64, Fault)>,
    stopped: bool,
    now: Duration,
    trace: Vec<String>,
    /// How many bytes there are room for, in whole blocks.
    capacity: u64,
    advice: Vec<Advice>,
}

/// What the file system was told of its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// A new file need not go through the cache, but for so many bytes at its end.
    PastCache {
        /// Its path.
        path: String,
        /// The bytes at its end.
        cached: usize,
    },
    /// These bytes will be read.
    WillRead {
        /// The file's path.
        path: String,
        /// Which bytes.
        range: Range<u64>,
    },
}

/// The file system. Share it in an `Arc`.
pub struct SimFs {
    world: Mutex<World>,
}

impl Default for SimFs {
    fn default() -> SimFs {
        SimFs::new()
    }
}

fn parent(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn blocks(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).next_multiple_of(4096)
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl World {
    /// One step that changes something: counted, traced, and failed if that is planned.
    fn step(&mut self, what: impl FnOnce() -> String) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.steps += 1;
        self.now += Duration::from_millis(1);
        self.trace.push(what());
        match self.plan {
            Some((at, Fault::Stop)) if at == self.steps => {
                self.stopped = true;
                Err(io::Error::other("the machine has stopped"))
            }
            Some((at, Fault::Error(kind))) if at == self.steps => Err(kind.into()),
            Some((at, Fault::Errors(kind))) if at <= self.steps => Err(kind.into()),
            _ => Ok(()),
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the machine has stopped")) } else { Ok(()) }
    }

    fn file(&self, path: &str) -> io::Result<usize> {
        let (dir, name) = parent(path);
        match self.dirs.get(dir).and_then(|dir| dir.entries.get(name)) {
            Some(Target::File(inode)) => Ok(*inode),
            _ => Err(not_found()),
        }
    }

    /// Bytes of blocks that files with a name take.
    fn used(&self) -> u64 {
        let named: BTreeSet<usize> = self
            .dirs
            .values()
            .flat_map(|dir| dir.entries.values())
            .filter_map(|target| if let Target::File(inode) = target { Some(*inode) } else { None })
            .collect();
        named.into_iter().map(|inode| blocks(&self.inodes[inode].bytes)).sum()
    }

    fn dir(&mut self, path: &str) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(not_found)
    }
}

impl SimFs {
    /// An empty file system with a root directory.
    pub fn new() -> SimFs {
        let world = World {
            inodes: Vec::new(),
            dirs: BTreeMap::from([(String::new(), Dir::default())]),
            steps: 0,
            plan: None,
            stopped: false,
            now: Duration::from_secs(1_000_000),
            trace: Vec::new(),
            capacity: u64::MAX,
            advice: Vec::new(),
        };
        SimFs { world: Mutex::new(world) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A copy of everything as it is, with no fault planned and steps counted from 0.
    pub fn fork(&self) -> SimFs {
        let mut world = self.world().clone();
        (world.steps, world.plan, world.stopped) = (0, None, false);
        world.trace.clear();
        SimFs { world: Mutex::new(world) }
    }

    /// Steps so far that changed something.
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// What the steps were.
    pub fn trace(&self) -> Vec<String> {
        self.world().trace.clone()
    }

    /// What it was told of its cache since it was asked last.
    pub fn take_advice(&self) -> Vec<Advice> {
        std::mem::take(&mut self.world().advice)
    }

    /// Plans a fault at a step, counted from 1.
    pub fn plan(&self, at: u64, fault: Fault) {
        self.world().plan = Some((at, fault));
    }

    /// Leaves room for no more than so many bytes besides what is there.
    pub fn limit_room(&self, bytes: u64) {
        let mut world = self.world();
        world.capacity = world.used().saturating_add(bytes);
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.world().now += time;
    }

    /// The bytes of every file, by path, for tests that change them.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let world = self.world();
        let mut files = BTreeMap::new();
        for (path, dir) in &world.dirs {
            for (name, target) in &dir.entries {
                if let Target::File(inode) = target {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    files.insert(path, world.inodes[*inode].bytes.clone());
                }
            }
        }
        files
    }

    /// Puts bytes into a file, durably and behind the back of whoever uses the file system.
    pub fn overwrite(&self, path: &str, bytes: Vec<u8>) {
        let mut world = self.world();
        let inode = match world.file(path) {
            Ok(inode) => inode,
            Err(_) => {
                world.inodes.push(Inode::default());
                let inode = world.inodes.len() - 1;
                let (dir, name) = parent(path);
                let dir = world.dirs.entry(dir.to_owned()).or_default();
                dir.entries.insert(name.to_owned(), Target::File(inode));
                dir.durable = dir.entries.clone();
                inode
            }
        };
        world.inodes[inode] = Inode { durable: bytes.clone(), bytes, ..world.inodes[inode].clone() };
    }

    /// Removes a file, durably and behind the back of whoever uses the file system.
    pub fn remove(&self, path: &str) {
        let mut world = self.world();
        let (dir, name) = parent(path);
        if let Ok(dir) = world.dir(dir) {
            dir.entries.remove(name);
            dir.durable.remove(name);
        }
    }

    /// Cuts the power and starts again: what was not synced is kept, lost or torn as the random numbers say.
    pub fn power_cut(&self, random: &mut Random) {
        let mut world = self.world();
        (world.stopped, world.plan, world.steps) = (false, None, 0);
        world.trace.clear();
        for inode in &mut world.inodes {
            if inode.bytes != inode.durable {
                inode.bytes = torn(&inode.bytes, &inode.durable, random);
                inode.durable = inode.bytes.clone();
            }
        }
        let mut lost_dirs = BTreeSet::new();
        for (path, dir) in &mut world.dirs {
            let names: BTreeSet<String> = dir.entries.keys().chain(dir.durable.keys()).cloned().collect();
            for name in names {
                let (now, then) = (dir.entries.get(&name).copied(), dir.durable.get(&name).copied());
                if now != then && random.one_in(2) {
                    match then {
                        Some(target) => _ = dir.entries.insert(name.clone(), target),
                        None => _ = dir.entries.remove(&name),
                    }
                }
                if now == Some(Target::Dir) && !dir.entries.contains_key(&name) {
                    lost_dirs.insert(if path.is_empty() { name.clone() } else { format!("{path}/{name}") });
                }
            }
            dir.durable = dir.entries.clone();
        }
        world.dirs.retain(|path, _| !lost_dirs.contains(path));
    }
}

/// What may be left of bytes that were not synced. Those that were, and that nothing was written over, stay.
fn torn(new: &[u8], old: &[u8], random: &mut Random) -> Vec<u8> {
    let certain = new.iter().zip(old).take_while(|(new, old)| new == old).count();
    match random.below(4) {
        0 => old.to_vec(),
        1 => new.to_vec(),
        2 => new[..certain + random.below((new.len() - certain) as u64 + 1) as usize].to_vec(),
        _ => {
            let mut bytes = new.to_vec();
            for (i, sector) in bytes.chunks_mut(SECTOR).enumerate() {
                let start = i * SECTOR;
                match random.below(3) {
                    0 => {
                        let kept = certain.saturating_sub(start).min(sector.len());
                        sector[kept..].fill(0);
                    }
                    1 => {
                        for (k, byte) in sector.iter_mut().enumerate() {
                            *byte = old.get(start + k).copied().unwrap_or(0);
                        }
                    }
                    _ => {}
                }
            }
            bytes
        }
    }
}

impl Fs for SimFs {
    fn write_new(&self, path: &str, pieces: &[&[u8]]) -> io::Result<()> {
        let mut world = self.world();
        let (dir, name) = parent(path);
        // Creating and writing are two steps: a crash between them leaves an empty file.
        world.step(|| format!("create {path}"))?;
        if world.dir(dir)?.entries.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = world.inodes.len();
        let modified = world.now;
        world.inodes.push(Inode { modified, ..Inode::default() });
        world.dir(dir)?.entries.insert(name.to_owned(), Target::File(inode));
        world.step(|| format!("write {path}"))?;
        let bytes = pieces.concat();
        if world.used() + blocks(&bytes) > world.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        world.inodes[inode].bytes = bytes;
        Ok(())
    }

    fn write_new_past_cache(&self, path: &str, pieces: &[&[u8]], cached: usize) -> io::Result<()> {
        self.world().advice.push(Advice::PastCache { path: path.to_owned(), cached });
        self.write_new(path, pieces)
    }

    fn will_read(&self, path: &str, range: Range<u64>) {
        self.world().advice.push(Advice::WillRead { path: path.to_owned(), range });
    }

    fn room(&self) -> io::Result<u64> {
        let world = self.world();
        Ok(world.capacity.saturating_sub(world.used()))
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world();
        let inode = world.file(path)?;
        world.step(|| format!("append to {path}"))?;
        let grown =
            blocks(&[&world.inodes[inode].bytes, bytes].concat()) - blocks(&world.inodes[inode].bytes);
        if world.used() + grown > world.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        world.inodes[inode].bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync_file(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        let inode = world.file(path)?;
        world.step(|| format!("sync {path}"))?;
        let inode = &mut world.inodes[inode];
        inode.durable = inode.bytes.clone();
        Ok(())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        world.dir(path)?;
        world.step(|| format!("sync directory {path}"))?;
        let dir = world.dir(path)?;
        dir.durable = dir.entries.clone();
        Ok(())
    }

    fn make_dir(&self, path: &str) -> io::Result<bool> {
        let mut world = self.world();
        let (dir, name) = parent(path);
        if world.dir(dir)?.entries.contains_key(name) {
            return Ok(false);
        }
        world.step(|| format!("make directory {path}"))?;
        world.dir(dir)?.entries.insert(name.to_owned(), Target::Dir);
        world.dirs.insert(path.to_owned(), Dir::default());
        Ok(true)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        let inode = world.file(from)?;
        world.step(|| format!("link {to}"))?;
        let (dir, name) = parent(to);
        if world.dir(dir)?.entries.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        world.dir(dir)?.entries.insert(name.to_owned(), Target::File(inode));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        let inode = world.file(from)?;
        world.step(|| format!("rename {from} to {to}"))?;
        let (dir, name) = parent(to);
        world.dir(dir)?.entries.insert(name.to_owned(), Target::File(inode));
        let (dir, name) = parent(from);
        world.dir(dir)?.entries.remove(name);
        Ok(())
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        let mut world = self.world();
        let inode = world.file(path)?;
        world.step(|| format!("truncate {path}"))?;
        world.inodes[inode].bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        world.alive()?;
        world.file(path)?;
        world.step(|| format!("unlink {path}"))?;
        let (dir, name) = parent(path);
        world.dir(dir)?.entries.remove(name);
        Ok(())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let world = self.world();
        world.alive()?;
        Ok(world.inodes[world.file(path)?].bytes.clone())
    }

    fn read_range(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let bytes = self.read(path)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[start..start.saturating_add(len).min(bytes.len())].to_vec())
    }

    fn read_at(&self, path: &str, offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let bytes = self.read_range(path, offset, len)?;
        if bytes.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &bytes[..];
        buffers.iter_mut().try_for_each(|buffer| io::Read::read_exact(&mut rest, buffer))
    }

    fn len(&self, path: &str) -> io::Result<u64> {
        Ok(self.read(path)?.len() as u64)
    }

    fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        let mut world = self.world();
        world.alive()?;
        let files: Vec<(String, usize)> = world
            .dir(path)?
            .entries
            .iter()
            .filter_map(|(name, target)| match target {
                Target::File(inode) => Some((name.clone(), *inode)),
                Target::Dir => None,
            })
            .collect();
        let entry = |(name, inode): (String, usize)| {
            let inode = &world.inodes[inode];
            Entry { name, len: inode.bytes.len() as u64, modified: inode.modified }
        };
        Ok(files.into_iter().map(entry).collect())
    }

    fn now(&self) -> io::Result<Duration> {
        Ok(self.world().now)
    }

    fn list_dirs(&self, path: &str) -> io::Result<Vec<String>> {
        let mut world = self.world();
        world.alive()?;
        let dirs = world.dir(path)?.entries.iter().filter(|(_, target)| **target == Target::Dir);
        Ok(dirs.map(|(name, _)| name.clone()).collect())
    }
}
