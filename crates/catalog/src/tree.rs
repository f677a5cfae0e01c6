//! The tree of names: directories, files and links as one root has them, and which checkpoints are the versions of a file.
//!
//! What stays true:
//! - every name but the root's lies in a directory, and no directory lies in itself;
//! - each version of each file is a checkpoint of the application [`AppName::files`], or was lost with it; no other checkpoint is of that
//!   application, since with the last name that leads to it it is dropped.

use std::cmp::Ordering;
use std::collections::HashSet;

use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{AppName, CheckpointId, Error, Kind, Result};

use crate::state::{Chunked, Keyed};

/// The number of the root.
pub const ROOT: u64 = 1;
/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest target of a link in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The most that notes of a node may have in bytes, names included.
pub const NOTES_BYTES_MAX: usize = 64 << 10;
/// Directories above each other that something is put in, at most. What lies in a directory that is moved may come to lie deeper.
const DEPTH_MAX: usize = 1024;

/// A version of a file: step and generation of a checkpoint of [`AppName::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The number of the file that it was written as.
    pub step: u64,
    /// Counts the versions of that file.
    pub generation: u32,
}

impl Version {
    /// The checkpoint.
    pub fn id(self) -> CheckpointId {
        CheckpointId { app: AppName::files(), step: self.step, generation: self.generation }
    }

    pub(crate) fn encode(self, out: &mut Writer) {
        out.u64(self.step);
        out.varint(u64::from(self.generation));
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Version> {
        Ok(Version { step: reader.u64()?, generation: reader.varint32("a generation")? })
    }
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Other names.
    Directory,
    /// A path.
    Link(String),
    /// Bytes: the versions, the newest last.
    File(Vec<Version>),
    /// What the kernel gives a meaning to, and nobody else.
    Special(Special, u32),
}

/// Kinds of files that have no bytes; with a device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Special {
    /// A pipe with a name.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A device of characters.
    CharDevice = 6,
    /// A device of blocks.
    BlockDevice = 7,
}

impl Special {
    fn decode(byte: u8) -> Option<Special> {
        use Special::*;
        [Fifo, Socket, CharDevice, BlockDevice].into_iter().find(|&special| special as u8 == byte)
    }
}

/// A directory, a file or a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its identity: random, and never used again.
    pub number: u64,
    /// What it is.
    pub body: Body,
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
    /// When it was read last, as somebody said; reading it says nothing.
    pub accessed_ns: i64,
    /// What users noted of it: extended attributes, by name.
    pub notes: Vec<(String, Vec<u8>)>,
}

impl Node {
    /// The versions, the newest last; none of what is no file.
    pub fn versions(&self) -> &[Version] {
        match &self.body {
            Body::File(versions) => versions,
            Body::Directory | Body::Link(_) | Body::Special(..) => &[],
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.body == Body::Directory
    }

    /// Whether it is a file that is not there yet: several write it together.
    pub fn is_unwritten(&self) -> bool {
        matches!(&self.body, Body::File(versions) if versions.is_empty())
    }
}

/// A name and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// The number of the directory.
    pub parent: u64,
    /// The name in it.
    pub name: String,
    /// What is there.
    pub node: Node,
}

impl Keyed for Named {
    type Key = (u64, String);

    fn key(&self) -> (u64, String) {
        (self.parent, self.name.clone())
    }

    fn compare(&self, key: &(u64, String)) -> Ordering {
        self.parent.cmp(&key.0).then_with(|| self.name.cmp(&key.1))
    }
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    number: u64,
    parent: u64,
    name: String,
}

impl Keyed for Place {
    type Key = u64;

    fn key(&self) -> u64 {
        self.number
    }

    fn compare(&self, key: &u64) -> Ordering {
        self.number.cmp(key)
    }
}

/// All names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tree {
    names: Chunked<Named>,
    places: Chunked<Place>,
    /// What was said of the root itself, if anything was.
    root: Option<Box<Node>>,
    /// When a name in the root changed last, in nanoseconds since 1970.
    root_changed_ns: i64,
}

/// Whether a number can be that of anything but the root.
fn is_number(number: u64) -> bool {
    number > ROOT && number >> 63 == 0
}

/// Refuses what cannot be the name of anything in a directory.
pub fn check_name(name: &str) -> Result<()> {
    let is_bad = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    match is_bad || name.len() > NAME_BYTES_MAX {
        true => Err(Error::invalid(format!("{name:?} cannot name a file"))),
        false => Ok(()),
    }
}

impl Tree {
    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// When a name in the root changed last, in nanoseconds since 1970.
    pub fn root_changed_ns(&self) -> i64 {
        self.root_changed_ns
    }

    /// The root itself, if anything was said of it.
    pub fn root(&self) -> Option<&Node> {
        self.root.as_deref()
    }

    /// All names, those of a directory side by side.
    pub fn names(&self) -> impl Iterator<Item = &Named> {
        self.names.values()
    }

    /// What a name in a directory leads to.
    pub fn find(&self, parent: u64, name: &str) -> Option<&Node> {
        self.names.get(&(parent, name.to_owned())).map(|named| &named.node)
    }

    /// The names in a directory, in order, those after `after` only.
    pub fn list<'a>(&'a self, parent: u64, after: &str) -> impl Iterator<Item = &'a Named> + use<'a> {
        let after = after.to_owned();
        let named = self.names.from(&(parent, after.clone()));
        named.take_while(move |named| named.parent == parent).skip_while(move |named| named.name == after)
    }

    /// A node by its number, with its place; the root has none.
    pub fn get(&self, number: u64) -> Option<&Named> {
        let place = self.places.get(&number)?;
        self.names.get(&(place.parent, place.name.clone()))
    }

    /// The path from the root, for people.
    pub fn path(&self, number: u64) -> Option<String> {
        let mut names: Vec<&str> = self.above(number).map(|named| named.name.as_str()).collect();
        names.reverse();
        (number == ROOT || !names.is_empty()).then(|| names.join("/"))
    }

    /// A node and the directories that it lies in, up to the root.
    pub fn above(&self, number: u64) -> impl Iterator<Item = &Named> {
        std::iter::successors(self.get(number), |named| self.get(named.parent))
    }

    /// The same, with the root at the end if anything was said of it.
    pub fn nodes_above(&self, number: u64) -> impl Iterator<Item = &Node> {
        self.above(number).map(|named| &named.node).chain(self.root())
    }

    /// Whether a node is another one, or lies in it.
    pub fn lies_in(&self, number: u64, other: u64) -> bool {
        number == other || self.above(number).any(|above| above.node.number == other || above.parent == other)
    }

    /// Whether a number is that of a directory.
    fn is_directory(&self, number: u64) -> bool {
        number == ROOT || self.get(number).is_some_and(|named| named.node.is_directory())
    }

    fn has_names(&self, number: u64) -> bool {
        self.list(number, "").next().is_some()
    }

    /// Whether a name may lead to this from now on.
    pub(crate) fn check_name(&self, named: &Named) -> Result<()> {
        let node = &named.node;
        let notes: usize = node.notes.iter().map(|(name, value)| name.len() + value.len()).sum();
        if named.is_root() && notes <= NOTES_BYTES_MAX {
            return Ok(());
        }
        check_name(&named.name)?;
        let target = if let Body::Link(target) = &node.body { target.len() } else { 0 };
        if !is_number(node.number) || notes > NOTES_BYTES_MAX || target > TARGET_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{:?} cannot be kept: a number, a link or notes of it are not as they must be",
                named.name
            )));
        }
        if !self.is_directory(named.parent) {
            let text = format!("the directory of {:?} is not there any more", named.name);
            return Err(Error::new(Kind::NotFound, text));
        }
        if let Some(there) = self.find(named.parent, &named.name)
            && there.number != node.number
        {
            self.check_gone(there)?;
        }
        if self.get(node.number).is_some_and(|there| there.parent == named.parent) {
            return Ok(());
        }
        match self.above(named.parent).count() {
            _ if self.lies_in(named.parent, node.number) => {
                Err(Error::invalid(format!("{:?} would lie in itself", named.name)))
            }
            depth if depth >= DEPTH_MAX => {
                Err(Error::invalid(format!("{:?} would lie too deep", named.name)))
            }
            _ => Ok(()),
        }
    }

    /// Whether what is there may go.
    fn check_gone(&self, node: &Node) -> Result<()> {
        match node.is_directory() && self.has_names(node.number) {
            true => Err(Error::new(Kind::Conflict, "the directory is not empty")),
            false => Ok(()),
        }
    }

    pub(crate) fn check_unname(&self, parent: u64, name: &str) -> Result<()> {
        self.find(parent, name).map_or(Ok(()), |node| self.check_gone(node))
    }

    /// Has a name lead to a node, which has no other name from then on; versions that nothing leads to any more.
    pub(crate) fn name(&mut self, named: Named) -> Vec<Version> {
        if named.is_root() {
            self.root = Some(Box::new(named.node));
            return Vec::new();
        }
        let now = named.node.changed_ns;
        let old = self.get(named.node.number).map(|old| (old.parent, old.name.clone()));
        let stays = old.as_ref().is_some_and(|(parent, name)| (*parent, name) == (named.parent, &named.name));
        let mut gone = self.take(named.parent, &named.name);
        if let Some((parent, name)) = old.filter(|_| !stays) {
            gone.extend(self.unname(parent, &name, now));
        }
        if !stays {
            self.touch(named.parent, now);
        }
        gone.retain(|version| !named.node.versions().contains(version));
        let place = Place { number: named.node.number, parent: named.parent, name: named.name.clone() };
        self.places.insert(place);
        self.names.insert(named);
        gone
    }

    /// Has a name lead to nothing; versions that nothing leads to any more.
    pub(crate) fn unname(&mut self, parent: u64, name: &str, now_ns: i64) -> Vec<Version> {
        self.touch(parent, now_ns);
        self.take(parent, name)
    }

    /// What makes another tree like this one: names that lead to something else there, with those versions only that `is_there` says are, and numbers
    /// that nothing leads to here. Files of which no version is there are left out.
    pub(crate) fn mirror_to(
        &self,
        there: &Tree,
        is_there: impl Fn(Version) -> bool,
    ) -> (Vec<Named>, Vec<u64>) {
        let mirrored = |named: &Named| {
            let mut named = named.clone();
            if let Body::File(versions) = &mut named.node.body {
                versions.retain(|version| is_there(*version));
            }
            (!named.node.is_unwritten()).then_some(named)
        };
        let root = self.root().filter(|_| self.root != there.root).cloned();
        let (mut named, mut gone) = (Vec::from_iter(root.map(Named::root)), Vec::new());
        for mirrored in self.names().filter_map(mirrored) {
            if there.get(mirrored.node.number) != Some(&mirrored) {
                named.push(mirrored);
            }
        }
        for old in there.names() {
            let number = old.node.number;
            if self.get(number).and_then(mirrored).is_none() {
                gone.push(number);
            }
        }
        (named, gone)
    }

    /// Becomes like the tree that [`Tree::mirror_to`] was asked of.
    pub(crate) fn follow(&mut self, named: &[Named], gone: &[u64]) {
        let changed = named.iter().map(|named| &named.node.number);
        for number in gone.iter().chain(changed) {
            if let Some(place) = self.places.remove(number) {
                self.names.remove(&(place.parent, place.name.clone()));
            }
        }
        for named in named {
            if named.is_root() {
                self.root = Some(Box::new(named.node.clone()));
                continue;
            }
            let (number, parent) = (named.node.number, named.parent);
            self.root_changed_ns = self.root_changed_ns.max(named.node.changed_ns);
            self.places.insert(Place { number, parent, name: named.name.clone() });
            self.names.insert(named.clone());
        }
    }

    /// Notes that a name in a directory has changed.
    fn touch(&mut self, directory: u64, now_ns: i64) {
        match self.places.get(&directory) {
            None => {
                self.root_changed_ns = self.root_changed_ns.max(now_ns);
                if let Some(root) = &mut self.root {
                    root.modified_ns = root.modified_ns.max(now_ns);
                    root.changed_ns = root.changed_ns.max(now_ns);
                }
            }
            Some(place) => self.names.change(&(place.parent, place.name.clone()), |named| {
                named.node.modified_ns = named.node.modified_ns.max(now_ns);
                named.node.changed_ns = named.node.changed_ns.max(now_ns);
            }),
        }
    }

    fn take(&mut self, parent: u64, name: &str) -> Vec<Version> {
        let Some(named) = self.names.remove(&(parent, name.to_owned())) else { return Vec::new() };
        self.places.remove(&named.node.number);
        named.node.versions().to_vec()
    }

    /// Writes all names.
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.zigzag(self.root_changed_ns);
        out.u8(u8::from(self.root.is_some()));
        self.root.iter().for_each(|root| Named::root((**root).clone()).encode(out));
        out.varint(self.names.len() as u64);
        self.names().for_each(|named| named.encode(out));
    }

    /// Reads them.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Tree> {
        let mut tree = Tree::default();
        let root_changed_ns = reader.zigzag()?;
        if reader.u8()? == 1 {
            let named = Named::decode(reader)?;
            if !named.is_root() {
                return Err(reader.corrupt("something else for the root"));
            }
            tree.root = Some(Box::new(named.node));
        }
        for _ in 0..reader.count(Named::BYTES_MIN)? {
            let named = Named::decode(reader)?;
            let number = named.node.number;
            if !named.can_be() || tree.places.get(&number).is_some() {
                return Err(reader.corrupt("a name that cannot be"));
            }
            tree.places.insert(Place { number, parent: named.parent, name: named.name.clone() });
            tree.names.insert(named);
        }
        if tree.names.len() != tree.places.len() {
            return Err(reader.corrupt("a name twice"));
        }
        match tree.is_whole() {
            true => Ok(Tree { root_changed_ns, ..tree }),
            false => Err(reader.corrupt("a name in no directory")),
        }
    }

    /// Whether whoever goes up from anywhere, by directories, comes to the root.
    fn is_whole(&self) -> bool {
        let mut held = HashSet::from([ROOT]);
        let mut way = Vec::new();
        for named in self.names() {
            let mut number = named.node.number;
            while !held.contains(&number) {
                let Some(named) = self.get(number) else { return false };
                // Longer than there are names, and it goes round.
                if !self.is_directory(named.parent) || way.len() > self.names.len() {
                    return false;
                }
                way.push(number);
                number = named.parent;
            }
            held.extend(way.drain(..));
        }
        true
    }
}

impl Named {
    /// The least that one takes when it is written.
    pub(crate) const BYTES_MIN: usize = 16;

    /// The root, which has no name.
    pub fn root(node: Node) -> Named {
        Named { parent: ROOT, name: String::new(), node }
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        (self.parent, self.node.number) == (ROOT, ROOT) && self.name.is_empty() && self.node.is_directory()
    }

    /// Whether its name and its number can be such.
    pub(crate) fn can_be(&self) -> bool {
        is_number(self.node.number) && check_name(&self.name).is_ok()
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Writer) {
        out.u64(self.parent);
        out.string(&self.name);
        let node = &self.node;
        out.u64(node.number);
        match &node.body {
            Body::Directory => out.u8(1),
            Body::Link(target) => {
                out.u8(2);
                out.string(target);
            }
            Body::File(versions) => {
                out.u8(3);
                out.varint(versions.len() as u64);
                versions.iter().for_each(|version| version.encode(out));
            }
            Body::Special(special, device) => {
                out.u8(*special as u8);
                out.u32(*device);
            }
        }
        out.varint(u64::from(node.mode));
        out.varint(u64::from(node.user));
        out.varint(u64::from(node.group));
        out.zigzag(node.modified_ns);
        out.zigzag(node.changed_ns);
        out.zigzag(node.accessed_ns);
        out.varint(node.notes.len() as u64);
        for (name, value) in &node.notes {
            out.string(name);
            out.bytes(value);
        }
    }

    /// Reads one.
    pub fn decode(reader: &mut Reader) -> Result<Named> {
        let parent = reader.u64()?;
        let name = reader.string()?.to_owned();
        let number = reader.u64()?;
        let body = match reader.u8()? {
            1 => Body::Directory,
            2 => Body::Link(reader.string()?.to_owned()),
            3 => {
                let versions = (0..reader.count(9)?).map(|_| Version::decode(reader));
                Body::File(versions.collect::<Result<_>>()?)
            }
            other => match Special::decode(other) {
                Some(special) => Body::Special(special, reader.u32()?),
                None => return Err(reader.corrupt("unknown kind of file")),
            },
        };
        let mode = reader.varint32("a mode")?;
        let (user, group) = (reader.varint32("a user")?, reader.varint32("a group")?);
        let (modified_ns, changed_ns, accessed_ns) = (reader.zigzag()?, reader.zigzag()?, reader.zigzag()?);
        let note = |reader: &mut Reader| -> Result<(String, Vec<u8>)> {
            Ok((reader.string()?.to_owned(), reader.bytes()?.to_vec()))
        };
        let notes = (0..reader.count(2)?).map(|_| note(reader)).collect::<Result<_>>()?;
        let node = Node { number, body, mode, user, group, modified_ns, changed_ns, accessed_ns, notes };
        Ok(Named { parent, name, node })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(parent: u64, name: &str, number: u64, body: Body) -> Named {
        let (modified_ns, changed_ns, accessed_ns) = (1, 2, 3);
        let notes = vec![("user.x".to_owned(), b"y".to_vec())];
        let node = Node {
            number,
            body,
            mode: 0o755,
            user: 1,
            group: 2,
            modified_ns,
            changed_ns,
            accessed_ns,
            notes,
        };
        Named { parent, name: name.to_owned(), node }
    }

    #[test]
    fn what_is_moved_may_lie_as_deep_as_it_likes() {
        let mut tree = Tree::default();
        let chains = 4u64;
        for chain in 0..chains {
            let mut parent = ROOT;
            for depth in 0..DEPTH_MAX as u64 {
                let number = 2 + chain * DEPTH_MAX as u64 + depth;
                let name = if depth == 0 { format!("chain{chain}") } else { "d".to_owned() };
                let named = named(parent, &name, number, Body::Directory);
                tree.check_name(&named).expect("it may be there");
                tree.name(named);
                parent = number;
            }
            tree.check_name(&named(parent, "d", 1 << 40, Body::Directory)).expect_err("too deep");
        }
        let top = |chain: u64| 2 + chain * DEPTH_MAX as u64;
        let bottom = |chain: u64| top(chain) + DEPTH_MAX as u64 - 2;
        for chain in 0..chains - 1 {
            let moved = named(bottom(chain + 1), "moved", top(chain), Body::Directory);
            tree.check_name(&moved).expect("it may go there");
            tree.name(moved);
        }
        let round = named(bottom(0), "round", top(chains - 1), Body::Directory);
        tree.check_name(&round).expect_err("it would lie in itself");
        let mut out = Writer::new();
        tree.encode(&mut out);
        let again = decode(&out.into_bytes()).expect("what was written can be read");
        assert_eq!(again.above(bottom(0)).count(), tree.above(bottom(0)).count());
        assert!(again.above(bottom(0)).count() > 3 * DEPTH_MAX);
    }

    fn decode(bytes: &[u8]) -> Result<Tree> {
        Tree::decode(&mut Reader::new(bytes, "tree"))
    }

    fn encoded(all: &[Named]) -> Vec<u8> {
        let mut out = Writer::new();
        out.zigzag(0);
        out.u8(0);
        out.varint(all.len() as u64);
        all.iter().for_each(|named| named.encode(&mut out));
        out.into_bytes()
    }

    #[test]
    fn a_tree_comes_back_and_what_cannot_be_one_is_refused() {
        let version = Version { step: 9, generation: 2 };
        let good = [
            named(ROOT, "a", 2, Body::Directory),
            named(2, "b", 3, Body::File(vec![version])),
            named(2, "c", 4, Body::Link("b".to_owned())),
            named(2, "d", 5, Body::Special(Special::Fifo, 0)),
        ];
        let tree = decode(&encoded(&good)).expect("a tree");
        let mut again = Writer::new();
        tree.encode(&mut again);
        assert_eq!(again.into_bytes(), encoded(&good));
        assert_eq!(
            (tree.path(3).as_deref(), tree.path(ROOT).as_deref(), tree.path(7)),
            (Some("a/b"), Some(""), None)
        );
        for bad in [
            vec![named(7, "nowhere", 2, Body::Directory)],
            vec![named(ROOT, "a", ROOT, Body::Directory)],
            vec![named(ROOT, "a", 1 << 63, Body::Directory)],
            vec![named(ROOT, "..", 2, Body::Directory)],
            vec![named(ROOT, "a", 2, Body::Directory), named(ROOT, "b", 2, Body::Directory)],
            vec![named(ROOT, "a", 2, Body::Directory), named(ROOT, "a", 3, Body::Directory)],
            vec![named(ROOT, "a", 2, Body::Link("x".to_owned())), named(2, "b", 3, Body::Directory)],
            vec![named(3, "a", 2, Body::Directory), named(2, "b", 3, Body::Directory)],
            vec![named(2, "a", 2, Body::Directory)],
        ] {
            assert!(decode(&encoded(&bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nothing_lies_in_itself_and_versions_go_with_the_last_name() {
        let version = |generation| Version { step: 9, generation };
        let mut tree = Tree::default();
        assert!(tree.name(named(ROOT, "a", 2, Body::Directory)).is_empty());
        tree.name(named(2, "b", 3, Body::Directory));
        tree.name(named(3, "f", 9, Body::File(vec![version(1), version(2)])));
        for refused in [
            named(3, "a", 2, Body::Directory),
            named(2, "a", 2, Body::Directory),
            named(9, "x", 5, Body::Directory),
            named(ROOT, "x/y", 5, Body::Directory),
            named(ROOT, "a", 5, Body::Directory),
        ] {
            assert!(tree.check_name(&refused).is_err(), "{refused:?}");
        }
        assert!(tree.check_unname(ROOT, "a").is_err(), "it is not empty");
        let moved = named(ROOT, "g", 9, Body::File(vec![version(2)]));
        tree.check_name(&moved).expect("it may");
        assert_eq!(tree.name(moved), [version(1)]);
        assert!(tree.find(3, "f").is_none() && tree.lies_in(3, 2) && !tree.lies_in(9, 2));
        assert_eq!(tree.unname(ROOT, "g", 5), [version(2)]);
        assert_eq!(tree.root_changed_ns(), 5);
    }

    #[test]
    fn the_root_has_a_node_once_something_is_said_of_it() {
        let node = Node { mode: 0o700, ..named(ROOT, "", ROOT, Body::Directory).node };
        let (mut tree, mut there) = (Tree::default(), Tree::default());
        assert!(
            tree.root().is_none() && tree.check_name(&named(ROOT, "", ROOT, Body::File(vec![]))).is_err()
        );
        let said = Named::root(node.clone());
        tree.check_name(&said).expect("a root");
        assert!(tree.name(said).is_empty());
        tree.name(Named {
            node: Node { changed_ns: 77, ..named(ROOT, "a", 2, Body::Directory).node },
            ..named(ROOT, "a", 2, Body::Directory)
        });
        let (named, gone) = tree.mirror_to(&there, |_| true);
        there.follow(&named, &gone);
        for tree in [&tree, &there] {
            let mut out = Writer::new();
            tree.encode(&mut out);
            let again = decode(&out.into_bytes()).expect("a tree");
            assert_eq!(again.root().map(|root| root.mode), Some(0o700));
            assert_eq!(again.nodes_above(2).map(|node| node.number).collect::<Vec<_>>(), [2, ROOT]);
        }
        assert_eq!(tree.root().map(|root| root.modified_ns), Some(77), "a name in it has changed");
        assert_eq!(tree.get(ROOT), None);
    }

    #[test]
    fn a_tree_follows_another_one() {
        let file = |parent, name: &str, number, versions: &[u32]| {
            let version = |&generation: &u32| Version { step: number, generation };
            named(parent, name, number, Body::File(versions.iter().map(version).collect()))
        };
        let trees = [
            vec![named(ROOT, "a", 2, Body::Directory), file(2, "f", 3, &[1, 2]), file(2, "g", 4, &[9])],
            // Two names change places, one moves up, and one is new whose version has not come yet.
            vec![
                named(ROOT, "a", 2, Body::Directory),
                file(2, "f", 4, &[9]),
                file(2, "g", 3, &[1, 2]),
                file(ROOT, "new", 5, &[7]),
            ],
            vec![file(ROOT, "a", 3, &[2]), named(ROOT, "b", 2, Body::Directory), file(2, "new", 5, &[7, 8])],
            vec![],
        ];
        let mut there = Tree::default();
        for names in trees {
            let tree = decode(&encoded(&names)).expect("a tree");
            let (named, gone) = tree.mirror_to(&there, |version| version.generation != 7);
            there.follow(&named, &gone);
            let (left, too_many) = tree.mirror_to(&there, |version| version.generation != 7);
            assert!(left.is_empty() && too_many.is_empty(), "{left:?} {too_many:?}");
            let expected =
                names.iter().filter(|named| named.node.versions() != [Version { step: 5, generation: 7 }]);
            assert_eq!(there.len(), expected.count());
            // What is written of it can be read again.
            let mut out = Writer::new();
            there.encode(&mut out);
            decode(&out.into_bytes()).expect("a tree");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
