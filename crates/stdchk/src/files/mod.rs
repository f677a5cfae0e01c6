//! The tree of files: what a mount shows, and any other surface that works with files by their names (`docs/MOUNT.md`).
//!
//! Lock order: a file that is being written, then the table of those, then what is known of the catalog.

mod ahead;
mod change;
mod due;
mod fault;
mod gather;
mod journal;
mod known;
mod layer;
mod layered;
mod memory;
mod opened;
mod overlay;
mod patches;
mod policy;
mod publish;
mod room;
mod shared;
mod step;
mod steps;
mod stream;
mod upkeep;
mod versions;
mod writers;
mod writing;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use stdchk_catalog::tree::{Body, Node, ROOT, Version};
use stdchk_catalog::{Op, SessionKind, State};
use stdchk_engine::Vault;
use stdchk_engine::session::{Session, random_u64};
use stdchk_object::manifest::Manifest;
use stdchk_object::{AppName, CheckpointId, Kind, Result};

use crate::host;
use crate::repository::{Reading, Repository};
use crate::save::SaveOptions;
use ahead::Ahead;
use due::Due;
use gather::Waiting;
use known::{Known, Pin};
use memory::Memory;
use step::Step;
use upkeep::Collected;

pub use ahead::Progress;
pub use change::Attributes;
pub use fault::{Fault, Outcome};
pub use opened::Opened;
pub(crate) use opened::version_in;
pub use policy::POLICY;
pub use room::Room;
pub use stdchk_catalog::tree::{NAME_BYTES_MAX, ROOT as ROOT_NUMBER, Special};
pub use step::Inside;
pub use steps::{COMPLETE, NODES};
pub use writing::Writing;

/// The part of the memory budget that all files together may take for what is read ahead.
const AHEAD_PART: usize = 8;
/// Files by name.
pub struct Files {
    repository: Repository,
    /// How one file is stored: with as little memory as that can be done with, since there may be many.
    save: SaveOptions,
    memory: Arc<Memory>,
    is_read_only: bool,
    known: Mutex<Option<Known>>,
    /// Held by who asks for what is known; when that failed last, and why.
    asking: Mutex<Option<(Instant, Kind, String)>>,
    pin: Mutex<Option<Pin>>,
    /// What pins kept, as long as anybody reads with it.
    readings: Mutex<Vec<Weak<Reading>>>,
    table: Mutex<Table>,
    opened: Mutex<HashMap<Version, Arc<Opened>>>,
    ahead: Ahead,
    /// Steps that were looked into.
    steps: Mutex<Vec<(Vec<(CheckpointId, u64)>, Arc<Step>)>>,
    steps_due: Mutex<Due>,
    collected: Mutex<Collected>,
    /// Small files that were closed.
    waiting: Mutex<Waiting>,
    is_waiting: Condvar,
    /// Held by who stores them.
    gathering: Mutex<()>,
    /// Says to other mounts that this one is there, unless it can only be read.
    mount: Mutex<Option<Session>>,
    /// Files that somebody here is about to take part in writing.
    joining: Mutex<HashSet<u64>>,
    has_joined: Condvar,
}

/// The files that somebody has open.
#[derive(Default)]
struct Table {
    writing: HashMap<u64, Arc<Writing>>,
    /// Those that nobody else knows yet, by directory and name.
    names: HashMap<(u64, String), u64>,
    /// When such a name in a directory changed last.
    touched: HashMap<u64, i64>,
    /// What those were like when they were opened that are read.
    reading: HashMap<u64, (u32, Entry)>,
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Link,
    /// What the kernel gives a meaning to; with a device's number.
    Special(Special, u32),
}

/// What can be said of a file, a directory or a link.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number, for as long as it is there.
    pub number: u64,
    /// What it is.
    pub sort: Sort,
    /// Bytes.
    pub len: u64,
    /// How many of them are not known to be zeros.
    pub data: u64,
    /// Permissions: the lower twelve bits of the mode.
    pub mode: u32,
    /// The user whose it is.
    pub user: u32,
    /// The group whose it is.
    pub group: u32,
    /// When its bytes or names changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
    /// When it was read last, as somebody said.
    pub accessed_ns: i64,
    /// Names that lead to it: 0 when it is only open.
    pub links: u32,
}

/// The number of something new. The highest bit is left to those who show more than there is.
fn new_number() -> Result<u64> {
    Ok((random_u64()? >> 1).max(ROOT + 1))
}

/// What joins the parts of something that is made here and now.
fn manifest(app: AppName, step: u64) -> Manifest {
    let (created_ns, host) = (now(), host::name());
    Manifest { app, step, created_ns, host, note: String::new(), parent: None, parts: Vec::new() }
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    host::now_ns()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Files {
    /// The files of a repository. What is written is saved with these options.
    pub fn open(repository: Repository, save: SaveOptions, is_read_only: bool) -> Result<Files> {
        let (all, least) = (save.memory, save.memory_min()?);
        let save = SaveOptions { durability: repository.level(save.durability)?, memory: least, ..save };
        let mount = if is_read_only { None } else { Some(say_that_it_is_there(&repository)?) };
        let ahead = Ahead::new(repository.workers.clone(), all / AHEAD_PART);
        let files = Files {
            repository,
            save,
            memory: Memory::new(all, least),
            is_read_only,
            known: Mutex::default(),
            asking: Mutex::default(),
            pin: Mutex::default(),
            readings: Mutex::default(),
            table: Mutex::default(),
            opened: Mutex::default(),
            ahead,
            steps: Mutex::default(),
            steps_due: Mutex::default(),
            collected: Mutex::default(),
            waiting: Mutex::default(),
            is_waiting: Condvar::new(),
            gathering: Mutex::default(),
            mount: Mutex::new(mount),
            joining: Mutex::default(),
            has_joined: Condvar::new(),
        };
        files.state()?;
        files.give_up_the_dead();
        if !is_read_only && let Err(error) = files.gather_left_over() {
            tracing::error!(
                "small files that were closed before are in the journal, and cannot be stored yet: {error}"
            );
        }
        if !is_read_only {
            files.complete_what_is_due();
        }
        Ok(files)
    }

    /// Where it all is.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.table)
    }

    /// Whether somebody here writes a file.
    fn is_written(&self, number: u64) -> bool {
        self.table().writing.contains_key(&number)
    }

    /// Notes that a name in a directory has changed that nobody else knows.
    fn touch(&self, directory: u64) {
        self.table().touched.insert(directory, now());
    }

    fn vault_of(&self, state: Arc<State>) -> Arc<Vault> {
        Arc::new(Vault::new(self.repository.store.clone(), state, self.repository.memory / 8))
    }

    /// Hands on bytes of a version from an offset on, fewer where it ends; what a reader reads next is read before he does.
    pub fn read_version(
        &self,
        opened: &Arc<Opened>,
        progress: &Progress,
        offset: u64,
        len: usize,
        give: impl FnOnce(&[u8]),
    ) -> Outcome<()> {
        let end = offset.saturating_add(len as u64).min(opened.len());
        match offset < end {
            true => Ok(self.ahead.read(opened, progress, offset..end, give)?),
            false => {
                give(&[]);
                Ok(())
            }
        }
    }

    /// How many files are open for writing, or are still being stored.
    pub fn writing_count(&self) -> usize {
        self.table().writing.len()
    }

    /// Makes sure that names are where they were said to be, also after a power cut.
    pub fn sync_names(&self) -> Outcome<()> {
        if self.save.is_durable() && !self.is_read_only {
            // What says nothing says also that all before it is to stay.
            self.repository.catalog.append(true, &mut |_| Ok(vec![Op::Heal(Vec::new())]))?;
        }
        Ok(())
    }

    /// What is known of a number as others see it, who do not write it.
    pub fn entry_of_others(&self, number: u64) -> Outcome<Entry> {
        let state = self.state()?;
        let node = &state.tree().get(number).ok_or(Fault::Missing)?.node;
        Ok(entry_of(&state, node))
    }

    /// What is known of a number.
    pub fn entry(&self, number: u64) -> Outcome<Entry> {
        let (writing, reading, touched) = {
            let table = self.table();
            let reading = table.reading.get(&number).map(|(_, entry)| entry.clone());
            (table.writing.get(&number).cloned(), reading, table.touched.get(&number).copied())
        };
        let state = match self.state() {
            // The root is there as long as the mount is: otherwise nobody could ask who answers for it, and unmount it.
            Err(error) if number == ROOT => self.last_state().ok_or(error)?,
            state => state?,
        };
        let there = state.tree().get(number).map(|named| entry_of(&state, &named.node));
        let there = there.or_else(|| (number == ROOT).then(|| entry_of(&state, &change::root_node(&state))));
        let there = there.map(|entry| Entry {
            modified_ns: entry.modified_ns.max(touched.unwrap_or(i64::MIN)),
            changed_ns: entry.changed_ns.max(touched.unwrap_or(i64::MIN)),
            ..entry
        });
        match (number, writing) {
            (_, Some(writing)) => {
                let mut inner = writing.inner();
                // If it was given up, who writes it hears that.
                let _ = inner.follow(&state);
                let known = there.is_some() || (inner.place.is_some() && !inner.is_removed);
                let node = there.unwrap_or_else(|| entry_of(&state, &inner.node));
                let (len, modified_ns) = match (inner.is_dirty, inner.has_left()) {
                    (true, _) => (inner.len(), inner.node.modified_ns),
                    (false, true) => (node.len, node.modified_ns),
                    (false, false) => (inner.len(), node.modified_ns),
                };
                let changed_ns = node.changed_ns.max(inner.node.changed_ns);
                // Where there are holes in what is written is not counted.
                let data = if len == node.len { node.data } else { len };
                Ok(Entry { len, data, modified_ns, changed_ns, links: u32::from(known), ..node })
            }
            (_, None) => {
                let gone = || reading.map(|entry| Entry { links: 0, ..entry });
                there.or_else(gone).ok_or(Fault::Missing)
            }
        }
    }

    /// What a name in a directory leads to.
    pub fn find(&self, parent: u64, name: &str) -> Outcome<Entry> {
        let new = self.new_file(parent, name).map(|writing| writing.number);
        let number = match new {
            Some(number) => number,
            None => {
                let mut state = self.state()?;
                if state.tree().find(parent, name).is_none() && self.has_others(&state) {
                    // Somebody else may have made it just now, for all to write it.
                    state = self.newest_state()?;
                }
                let node = state.tree().find(parent, name);
                match node {
                    Some(node) => node.number,
                    None if parent == ROOT => return Err(Fault::Missing),
                    None => {
                        let is_directory = state.tree().get(parent).map(|named| named.node.is_directory());
                        return Err(if is_directory == Some(false) {
                            Fault::NotDirectory
                        } else {
                            Fault::Missing
                        });
                    }
                }
            }
        };
        self.entry(number)
    }

    /// A file of that name that nobody else knows yet. One that will never be known is forgotten.
    fn new_file(&self, parent: u64, name: &str) -> Option<Arc<Writing>> {
        let place = (parent, name.to_owned());
        let writing = {
            let table = self.table();
            table.names.get(&place).and_then(|number| table.writing.get(number).cloned())
        }?;
        if writing.has_failed() {
            self.table().names.remove(&place);
            return None;
        }
        Some(writing)
    }

    /// The names in a directory, in order, those after `after` only; no more than `most`.
    pub fn list(&self, directory: u64, after: &str, most: usize) -> Outcome<Vec<(String, Entry)>> {
        let state = self.state()?;
        if directory != ROOT && !state.tree().get(directory).is_some_and(|named| named.node.is_directory()) {
            return Err(Fault::Missing);
        }
        let (mut listed, open): (Vec<(String, Entry)>, Vec<u64>) = {
            let table = self.table();
            let new = table
                .names
                .iter()
                .filter(|((parent, name), _)| *parent == directory && name.as_str() > after);
            let new = new.map(|((_, name), number)| (name.clone(), *number)).collect::<Vec<_>>();
            let open = table.writing.keys().copied().collect();
            drop(table);
            (
                new.into_iter().filter_map(|(name, number)| Some((name, self.entry(number).ok()?))).collect(),
                open,
            )
        };
        for named in state.tree().list(directory, after).take(most) {
            let number = named.node.number;
            if named.node.is_unwritten() && !open.contains(&number) {
                continue;
            }
            let entry = if open.contains(&number) { self.entry(number).ok() } else { None };
            listed.push((named.name.clone(), entry.unwrap_or_else(|| entry_of(&state, &named.node))));
        }
        // A new one may have come to be known between the two looks.
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        listed.dedup_by(|a, b| a.0 == b.0);
        listed.truncate(most);
        Ok(listed)
    }

    /// The directory in which a directory lies.
    pub fn parent(&self, directory: u64) -> Outcome<u64> {
        let state = self.state()?;
        Ok(state.tree().get(directory).map_or(ROOT, |named| named.parent))
    }

    /// Where a link leads.
    pub fn target(&self, number: u64) -> Outcome<String> {
        let state = self.state()?;
        match state.tree().get(number).map(|named| &named.node.body) {
            Some(Body::Link(target)) => Ok(target.clone()),
            Some(_) => Err(Fault::Invalid),
            None => Err(Fault::Missing),
        }
    }

    /// Opens the newest version of a file to read it; nothing where it has none, or is only being written.
    pub fn open_to_read(&self, number: u64) -> Outcome<Option<Arc<Opened>>> {
        let mut state = self.state()?;
        if state.tree().get(number).is_some_and(|named| named.node.is_unwritten()) {
            // It may be there by now.
            state = self.newest_state()?;
        }
        let Some(named) = state.tree().get(number) else {
            let is_new = self.table().writing.contains_key(&number);
            return if is_new { Ok(None) } else { Err(Fault::Missing) };
        };
        let opened = match newest(&state, &named.node) {
            None if named.node.is_directory() => return Err(Fault::IsDirectory),
            // Others write it, and nobody has closed it yet.
            None if named.node.is_unwritten() && self.writing(number).is_none() => {
                return Err(Fault::Unwritten);
            }
            None => None,
            Some(version) => Some(self.open_version(&state, version)?),
        };
        let entry = entry_of(&state, &named.node);
        self.table().reading.entry(number).or_insert((0, entry)).0 += 1;
        Ok(opened)
    }

    /// A file that is being written.
    pub fn writing(&self, number: u64) -> Option<Arc<Writing>> {
        self.table().writing.get(&number).cloned()
    }

    /// The end of what [`Files::open_to_read`] began.
    pub fn close_reader(&self, number: u64) {
        let mut table = self.table();
        if let Some((readers, _)) = table.reading.get_mut(&number) {
            *readers -= 1;
            if *readers == 0 {
                table.reading.remove(&number);
            }
        }
    }

    /// The name under which a file is written, as far as it is known here.
    pub fn name_of(&self, writing: &Writing) -> Option<String> {
        let place = writing.inner().place.clone();
        let known = || Some(self.last_state()?.tree().get(writing.number)?.name.clone());
        place.map(|(_, name)| name).or_else(known)
    }

    fn check_writable(&self) -> Outcome<()> {
        if self.is_read_only { Err(Fault::ReadOnly) } else { Ok(()) }
    }
}

/// The session of a mount. Where there is no room for it, room is made of what nobody needs.
fn say_that_it_is_there(repository: &Repository) -> Result<Session> {
    let open = || Session::open(repository.catalog.clone(), SessionKind::Mount, &repository.owner(false));
    match open() {
        Err(error) if error.kind() == Kind::Full => {
            tracing::warn!("{error}; what nobody needs is removed");
            repository.remove_stale_temporaries(true)?;
            stdchk_upkeep::collect(&repository.ground(), false)?;
            open()
        }
        opened => opened,
    }
}

/// The newest version that is there.
fn newest(state: &State, node: &Node) -> Option<Version> {
    let is_there = |version: &&Version| state.checkpoint(&version.id()).is_some();
    node.versions().iter().rev().find(is_there).or(node.versions().last()).copied()
}

fn entry_of(state: &State, node: &Node) -> Entry {
    let len_of = |version: Version| {
        let known = state.checkpoint(&version.id());
        known.map_or((0, 0), |entry| (entry.bytes, entry.bytes.saturating_sub(entry.tally.zero)))
    };
    let (sort, (len, data)) = match &node.body {
        Body::Directory => (Sort::Directory, (0, 0)),
        Body::Link(target) => (Sort::Link, (target.len() as u64, 0)),
        Body::Special(special, device) => (Sort::Special(*special, *device), (0, 0)),
        Body::File(_) => (Sort::File, newest(state, node).map_or((0, 0), len_of)),
    };
    Entry {
        number: node.number,
        sort,
        len,
        data,
        mode: node.mode,
        user: node.user,
        group: node.group,
        modified_ns: node.modified_ns,
        changed_ns: node.changed_ns,
        accessed_ns: node.accessed_ns,
        links: if sort == Sort::Directory { 2 } else { 1 },
    }
}
