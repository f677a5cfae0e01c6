//! Files that have names, as members: what a mount shows, for those who have none (`docs/MOUNT.md`, Without a mount).

use std::sync::Arc;

use stdchk_catalog::tree::{Body as NodeBody, Node, ROOT};
use stdchk_catalog::{CheckpointEntry, State};
use stdchk_object::member::{Body, Member};
use stdchk_object::{Error, Kind, Result};

use super::{Members, RankedMember};
use crate::files::{Sort, version_in};
use crate::repository::{Reading, Repository};

/// Which files are meant.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// A path in the tree of names; empty for all of it.
    path: String,
    /// Of each file the newest version whose number is no larger; its newest one where that is not said.
    at: Option<u64>,
}

/// Something that has a name.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// The path, below what was asked for; of that itself, the last name in it.
    pub path: String,
    /// What it is.
    pub sort: Sort,
    /// Permissions: the lower twelve bits of the mode.
    pub mode: u32,
    /// When its bytes changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where it leads, if it is a link.
    pub target: Option<String>,
    /// How many versions of it there are.
    pub versions: usize,
    /// The version that is meant of a file.
    pub version: Option<CheckpointEntry>,
}

/// Where a path leads: the root, or a node.
enum Place<'s> {
    Root,
    Node(&'s Node),
}

impl FileSpec {
    /// The files at a path, or below it if it is a directory: their newest versions, or those that were the newest when there were `at` versions in
    /// the store.
    pub fn new(path: &str, at: Option<u64>) -> Result<FileSpec> {
        let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
        match names.contains(&"..") {
            true => Err(Error::invalid(format!("{path:?} leads upwards; write it without '..'"))),
            false => Ok(FileSpec { path: names.join("/"), at }),
        }
    }

    /// What is at the path, or below it if it is a directory: right below it, or with `is_deep` all of it. Directories come before what is in them.
    pub fn find(&self, state: &State, is_deep: bool) -> Result<Vec<NamedFile>> {
        let mut found = Vec::new();
        let top = match self.place(state)? {
            Place::Node(node) if !node.is_directory() => {
                let name = self.path.rsplit('/').next().unwrap_or_default();
                found.extend(self.named(state, name.to_owned(), node));
                if found.is_empty() {
                    let at = self.at.unwrap_or_default();
                    return Err(self.missing(&format!("has no version up to {at}")));
                }
                return Ok(found);
            }
            Place::Node(node) => node.number,
            Place::Root => ROOT,
        };
        let mut directories = vec![(top, String::new())];
        while let Some((directory, above)) = directories.pop() {
            for named in state.tree().list(directory, "") {
                let path = format!("{above}{}", named.name);
                if named.node.is_directory() && is_deep {
                    directories.push((named.node.number, format!("{path}/")));
                }
                found.extend(self.named(state, path, &named.node));
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Whether one file is meant.
    pub fn is_file(&self, state: &State) -> Result<bool> {
        Ok(self.file(state)?.is_some())
    }

    /// What is known of the versions of a file, the newest last.
    pub fn versions<'s>(&self, state: &'s State) -> Result<Vec<&'s CheckpointEntry>> {
        match self.file(state)? {
            Some(node) => Ok(self.versions_of(state, node)),
            None => Err(Error::invalid(format!("{:?} is not a file; only files have versions", self.path))),
        }
    }

    fn file<'s>(&self, state: &'s State) -> Result<Option<&'s Node>> {
        match self.place(state)? {
            Place::Node(node) if matches!(node.body, NodeBody::File(_)) => Ok(Some(node)),
            _ => Ok(None),
        }
    }

    fn place<'s>(&self, state: &'s State) -> Result<Place<'s>> {
        let mut place = Place::Root;
        for name in self.path.split('/').filter(|name| !name.is_empty()) {
            let parent = match place {
                Place::Root => ROOT,
                Place::Node(node) => node.number,
            };
            let node = state.tree().find(parent, name).filter(|node| !node.is_unwritten());
            place = Place::Node(node.ok_or_else(|| self.missing("is not among the files"))?);
        }
        Ok(place)
    }

    fn missing(&self, why: &str) -> Error {
        Error::new(Kind::NotFound, format!("{:?} {why}", self.path))
    }

    fn versions_of<'s>(&self, state: &'s State, node: &Node) -> Vec<&'s CheckpointEntry> {
        let known = node.versions().iter().filter_map(|version| state.checkpoint(&version.id()));
        known.filter(|entry| self.at.is_none_or(|at| entry.sequence <= at)).collect()
    }

    /// Nothing for a file of which no version is meant.
    fn named(&self, state: &State, path: String, node: &Node) -> Option<NamedFile> {
        let versions = self.versions_of(state, node);
        let version = versions.last().map(|&entry| entry.clone());
        let (sort, target) = match &node.body {
            NodeBody::File(_) if version.is_none() => return None,
            NodeBody::File(_) => (Sort::File, None),
            NodeBody::Directory => (Sort::Directory, None),
            NodeBody::Link(target) => (Sort::Link, Some(target.clone())),
            NodeBody::Special(special, device) => (Sort::Special(*special, *device), None),
        };
        // A version of before has the time at which it was made.
        let is_newest = versions.len() == node.versions().len();
        let made_ns = version.as_ref().filter(|_| !is_newest).map(|entry| entry.created_ns);
        let modified_ns = made_ns.unwrap_or(node.modified_ns);
        Some(NamedFile {
            path,
            sort,
            mode: node.mode,
            modified_ns,
            target,
            versions: versions.len(),
            version,
        })
    }
}

impl Repository {
    /// Opens files that have names, to be read. What is neither a file nor a directory nor a link is left out.
    pub fn files<'a>(&'a self, reading: &'a Reading, spec: &FileSpec) -> Result<Members<'a>> {
        let mut members = Vec::new();
        for named in spec.find(&reading.state, true)? {
            let path = named.path.clone();
            members.extend(member_of(reading, named).map_err(|error| {
                self.record_damage(reading);
                error.within(format!("{path:?} cannot be read"))
            })?);
        }
        let of = if spec.path.is_empty() { "the files".to_owned() } else { format!("{:?}", spec.path) };
        Ok(Members::new(self, reading, of, members))
    }
}

fn member_of(reading: &Reading, named: NamedFile) -> Result<Option<RankedMember>> {
    let NamedFile { path, sort, mode, modified_ns, target, version, .. } = named;
    let (body, roots) = match (sort, version, target) {
        (Sort::File, Some(entry), _) => {
            let (part, content) = version_in(&reading.vault, &entry)?;
            (Body::File(content), part.roots.clone())
        }
        (Sort::Directory, ..) => (Body::Dir, Arc::default()),
        (Sort::Link, _, Some(target)) => (Body::Link(target), Arc::default()),
        _ => return Ok(None),
    };
    Ok(Some(RankedMember { rank: 0, member: Member { path, body, mode, mtime_ns: modified_ns }, roots }))
}
