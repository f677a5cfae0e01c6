//! What is shown beside the files: `.versions/NAME/N` and `.steps/N/PATH` in each directory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::process::{getgid, getuid};
use stdchk::CheckpointEntry;
use stdchk::files::{Entry, Fault, Files, Inside, Opened, Outcome, Sort};

/// The name in each directory under which its files have their versions; lists do not show it.
pub const VERSIONS: &str = ".versions";
/// The name in each directory under which the steps are that are complete; lists do not show it.
pub const STEPS: &str = ".steps";
/// Numbers of files have this bit never.
const SHOWN: u64 = 1 << 63;

/// Something that is shown. Files go by their names here: what is renamed over one continues it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shown {
    /// The files of a directory, each as a directory.
    Versions { directory: u64 },
    /// The versions of a file.
    Of { directory: u64, name: Arc<str> },
    /// A version, by its place in commit order.
    Version { directory: u64, name: Arc<str>, sequence: u64 },
    /// The steps that are complete.
    Steps { directory: u64 },
    /// Something in a step, or with an empty path the step.
    Inside { directory: u64, step: u64, path: Arc<str> },
}

/// What is shown, and its numbers: they follow from what it is, and what it is is remembered for as long as the kernel knows the number.
#[derive(Default)]
pub struct Showcase {
    numbers: RandomState,
    held: Mutex<HashMap<u64, Held>>,
}

struct Held {
    shown: Shown,
    /// How often the kernel was told of it.
    told: u64,
}

/// Whether a number is that of something that is shown.
pub fn is_shown(number: u64) -> bool {
    number & SHOWN != 0
}

fn joined(path: &str, name: &str) -> Arc<str> {
    if path.is_empty() { name.into() } else { format!("{path}/{name}").into() }
}

impl Showcase {
    fn held(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn number(&self, shown: &Shown) -> u64 {
        SHOWN | self.numbers.hash_one(shown) >> 1
    }

    /// What has a number that the kernel was told of.
    pub fn get(&self, number: u64) -> Outcome<Shown> {
        self.held().get(&number).map(|held| held.shown.clone()).ok_or(Fault::Missing)
    }

    /// Notes that the kernel is told of what a name leads to.
    pub fn hold(&self, parent: u64, name: &str) -> Outcome<()> {
        let shown = self.child(parent, name)?;
        let number = self.number(&shown);
        self.held().entry(number).or_insert(Held { shown, told: 0 }).told += 1;
        Ok(())
    }

    /// Notes that the kernel has forgotten so many times that it was told of something.
    pub fn forget(&self, number: u64, times: u64) {
        let mut all = self.held();
        if let Some(held) = all.get_mut(&number) {
            held.told = held.told.saturating_sub(times);
            if held.told == 0 {
                all.remove(&number);
            }
        }
    }

    /// What a name leads to in a directory, if that or the name is shown.
    pub fn find(&self, files: &Files, parent: u64, name: &str) -> Outcome<Entry> {
        self.entry(files, self.child(parent, name)?)
    }

    fn child(&self, parent: u64, name: &str) -> Outcome<Shown> {
        match name {
            _ if is_shown(parent) => {}
            STEPS => return Ok(Shown::Steps { directory: parent }),
            _ => return Ok(Shown::Versions { directory: parent }),
        }
        Ok(match self.get(parent)? {
            Shown::Versions { directory } => Shown::Of { directory, name: name.into() },
            Shown::Of { directory, name: of } => {
                let sequence = name.parse().map_err(|_| Fault::Missing)?;
                Shown::Version { directory, name: of, sequence }
            }
            Shown::Version { .. } => return Err(Fault::NotDirectory),
            Shown::Steps { directory } => {
                let step = name.parse().map_err(|_| Fault::Missing)?;
                Shown::Inside { directory, step, path: "".into() }
            }
            Shown::Inside { directory, step, path } => {
                Shown::Inside { directory, step, path: joined(&path, name) }
            }
        })
    }

    /// What can be said of something.
    pub fn entry(&self, files: &Files, shown: Shown) -> Outcome<Entry> {
        let below = match &shown {
            Shown::Versions { directory } | Shown::Steps { directory } | Shown::Inside { directory, .. } => {
                files.entry(*directory)?
            }
            Shown::Of { directory, name } | Shown::Version { directory, name, .. } => {
                files.find(*directory, name)?
            }
        };
        // Nobody can write here, and who may read a file may read its versions.
        let readable = below.mode & 0o444;
        let entry = match &shown {
            Shown::Versions { .. } | Shown::Steps { .. } | Shown::Inside { .. }
                if below.sort != Sort::Directory =>
            {
                return Err(Fault::NotDirectory);
            }
            Shown::Versions { .. } | Shown::Steps { .. } => Entry { mode: below.mode & 0o555, ..below },
            Shown::Inside { directory, step, path } => {
                let time = files.step_time(*directory, *step)?;
                let below = Entry { modified_ns: time, changed_ns: time, accessed_ns: time, ..below };
                match files.step(*directory, *step)?.find(path).ok_or(Fault::Missing)? {
                    Inside::Directory => Entry { mode: below.mode & 0o555, links: 2, ..below },
                    Inside::Link(target) => {
                        Entry { sort: Sort::Link, len: target.len() as u64, mode: 0o777, links: 1, ..below }
                    }
                    Inside::File(len, mode, modified_ns) => {
                        let below = Entry { data: len, ..below };
                        // Whose it was nobody knows: it is as if whoever mounted it had saved it.
                        let (user, group) = (getuid().as_raw(), getgid().as_raw());
                        let mode = mode & 0o555;
                        Entry { sort: Sort::File, len, mode, user, group, modified_ns, links: 1, ..below }
                    }
                }
            }
            _ if below.sort != Sort::File => return Err(Fault::Missing),
            Shown::Of { .. } => {
                let mode = readable | readable >> 2;
                Entry { sort: Sort::Directory, len: 0, mode, links: 2, ..below }
            }
            Shown::Version { sequence, .. } => {
                let version = files.version(below.number, *sequence)?;
                let (len, time) = (version.bytes, version.created_ns);
                let times = Entry { modified_ns: time, changed_ns: time, accessed_ns: time, ..below };
                let data = len.saturating_sub(version.tally.zero);
                Entry { len, data, mode: readable, ..times }
            }
        };
        Ok(Entry { number: self.number(&shown), ..entry })
    }

    /// Opens the bytes of something.
    pub fn open(&self, files: &Files, number: u64) -> Outcome<Arc<Opened>> {
        match self.get(number)? {
            Shown::Version { directory, name, sequence } => {
                files.open_version_to_read(files.find(directory, &name)?.number, sequence)
            }
            Shown::Inside { directory, step, path } => {
                files.open_of_step(&*files.step(directory, step)?, &path)
            }
            _ => Err(Fault::IsDirectory),
        }
    }

    /// Where a link leads.
    pub fn target(&self, files: &Files, number: u64) -> Outcome<String> {
        let Shown::Inside { directory, step, path } = self.get(number)? else { return Err(Fault::Invalid) };
        match files.step(directory, step)?.find(&path) {
            Some(Inside::Link(target)) => Ok(target),
            _ => Err(Fault::Invalid),
        }
    }

    /// The names in a directory that is shown, with itself and the one above first.
    pub fn list(&self, files: &Files, number: u64) -> Outcome<Vec<(String, Entry)>> {
        let shown = self.get(number)?;
        let itself = self.entry(files, shown.clone())?;
        let (above, inside): (Entry, Vec<(String, Shown)>) = match shown {
            Shown::Versions { directory } => {
                let inside = files.list(directory, "", usize::MAX)?.into_iter();
                let inside = inside.filter(|(_, entry)| entry.sort == Sort::File);
                let of = |(name, _): (String, Entry)| {
                    let shown = Shown::Of { directory, name: name.as_str().into() };
                    (name, shown)
                };
                (files.entry(directory)?, inside.map(of).collect())
            }
            Shown::Of { directory, name } => {
                let versions = files.versions(files.find(directory, &name)?.number)?.into_iter();
                let of = |version: CheckpointEntry| {
                    let (name, sequence) = (name.clone(), version.sequence);
                    (sequence.to_string(), Shown::Version { directory, name, sequence })
                };
                (self.entry(files, Shown::Versions { directory })?, versions.map(of).collect())
            }
            Shown::Steps { directory } => {
                let of = |step: u64| (step.to_string(), Shown::Inside { directory, step, path: "".into() });
                (files.entry(directory)?, files.steps(directory)?.into_iter().map(of).collect())
            }
            Shown::Inside { directory, step, path } => {
                let of = |name: String| {
                    let path = joined(&path, &name);
                    (name, Shown::Inside { directory, step, path })
                };
                let inside = files.step(directory, step)?.list(&path).into_iter().map(of).collect();
                let above = match path.rsplit_once('/') {
                    _ if path.is_empty() => Shown::Steps { directory },
                    Some((above, _)) => Shown::Inside { directory, step, path: above.into() },
                    None => Shown::Inside { directory, step, path: "".into() },
                };
                (self.entry(files, above)?, inside)
            }
            Shown::Version { .. } => return Err(Fault::NotDirectory),
        };
        let mut all = vec![(".".to_owned(), itself), ("..".to_owned(), above)];
        // What is removed meanwhile is not listed.
        let inside =
            inside.into_iter().filter_map(|(name, shown)| Some((name, self.entry(files, shown).ok()?)));
        all.extend(inside);
        Ok(all)
    }
}
