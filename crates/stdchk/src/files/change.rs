//! Changing names and what they lead to.

use stdchk_catalog::tree::{self, Body, NOTES_BYTES_MAX, Named, Node, ROOT, Special, TARGET_BYTES_MAX};
use stdchk_catalog::{Op, State};
use stdchk_object::{Error, Kind};

use super::fault::{Fault, Outcome};
use super::policy::{self, POLICY};
use super::steps::{NODES, parse_nodes};
use super::{Entry, Files, entry_of, locked, new_number, now};

/// What is new about something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions: the lower twelve bits of the mode.
    pub mode: Option<u32>,
    /// The user whose it is.
    pub user: Option<u32>,
    /// The group whose it is.
    pub group: Option<u32>,
    /// When its bytes or names changed last, in nanoseconds since 1970.
    pub modified_ns: Option<i64>,
    /// When it was read last.
    pub accessed_ns: Option<i64>,
}

impl Attributes {
    /// Something new that has them.
    pub(super) fn node(&self, number: u64, body: Body) -> Node {
        let now = now();
        Node {
            number,
            body,
            mode: self.mode.unwrap_or(0o644) & 0o7777,
            user: self.user.unwrap_or(0),
            group: self.group.unwrap_or(0),
            modified_ns: self.modified_ns.unwrap_or(now),
            changed_ns: now,
            accessed_ns: self.accessed_ns.unwrap_or(now),
            notes: Vec::new(),
        }
    }

    fn put_on(&self, node: &mut Node) {
        node.mode = self.mode.map_or(node.mode, |mode| mode & 0o7777);
        node.user = self.user.unwrap_or(node.user);
        node.group = self.group.unwrap_or(node.group);
        node.modified_ns = self.modified_ns.unwrap_or(node.modified_ns);
        node.accessed_ns = self.accessed_ns.unwrap_or(node.accessed_ns);
        node.changed_ns = now();
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Attributes::default()
    }
}

impl Files {
    /// Appends what `decide` makes of the newest state.
    pub(super) fn change<T>(&self, mut decide: impl FnMut(&State) -> Outcome<(Vec<Op>, T)>) -> Outcome<T> {
        self.check_writable()?;
        let (mut fault, mut result) = (None, None);
        let appended = self.repository.catalog.append(false, &mut |state| match decide(state) {
            Ok((ops, value)) => {
                result = Some(value);
                Ok(ops)
            }
            Err(why) => {
                fault = Some(why);
                Err(Error::new(Kind::Conflict, "it cannot be done"))
            }
        });
        match (appended, fault, result) {
            (Ok(state), _, Some(value)) => {
                self.learn(&state);
                Ok(value)
            }
            (_, Some(fault), _) => Err(fault),
            (Err(error), None, _) => Err(error.into()),
            (Ok(_), None, None) => unreachable!("something was decided"),
        }
    }

    /// Refuses a place where there is something already, or nothing can be.
    pub(super) fn check_new(&self, parent: u64, name: &str) -> Outcome<()> {
        tree::check_name(name).map_err(|_| Fault::Invalid)?;
        match self.find(parent, name) {
            Ok(_) => Err(Fault::Exists),
            Err(Fault::Missing) => check_directory(&*self.state()?, parent),
            Err(fault) => Err(fault),
        }
    }

    fn make(&self, parent: u64, name: &str, attributes: &Attributes, body: Body) -> Outcome<Entry> {
        self.check_new(parent, name)?;
        let node = attributes.node(new_number()?, body);
        self.change(|state| {
            check_directory(state, parent)?;
            // It may be there since this was asked before, and the answer was lost.
            if state.tree().find(parent, name).is_some_and(|there| there.number != node.number) {
                return Err(Fault::Exists);
            }
            let named = Named { parent, name: name.to_owned(), node: node.clone() };
            Ok((vec![Op::Name(Box::new(named))], ()))
        })?;
        let state = self.state()?;
        Ok(entry_of(&state, &node))
    }

    /// Makes a directory.
    pub fn make_directory(&self, parent: u64, name: &str, attributes: &Attributes) -> Outcome<Entry> {
        self.make(parent, name, attributes, Body::Directory)
    }

    /// Makes a symbolic link.
    pub fn make_link(
        &self,
        parent: u64,
        name: &str,
        target: &str,
        attributes: &Attributes,
    ) -> Outcome<Entry> {
        if target.is_empty() || target.len() > TARGET_BYTES_MAX {
            return Err(Fault::Invalid);
        }
        self.make(parent, name, attributes, Body::Link(target.to_owned()))
    }

    /// Makes a pipe, a socket or a device.
    pub fn make_special(
        &self,
        parent: u64,
        name: &str,
        (special, device): (Special, u32),
        attributes: &Attributes,
    ) -> Outcome<Entry> {
        self.make(parent, name, attributes, Body::Special(special, device))
    }

    /// Removes the name of anything but a directory, with all versions. Who has it open goes on.
    pub fn remove(&self, parent: u64, name: &str) -> Outcome<()> {
        self.check_writable()?;
        // A new file may hide one that is there.
        let was_new = self.withdraw(parent, name)? || self.forget_new(parent, name)?;
        let number = self.change(|state| match state.tree().find(parent, name) {
            None if was_new => Ok((Vec::new(), None)),
            None => Err(Fault::Missing),
            Some(node) if node.is_directory() => Err(Fault::IsDirectory),
            Some(node) => Ok((vec![Op::Unname(parent, name.to_owned(), now())], Some(node.number))),
        })?;
        if let Some(number) = number {
            self.note_removed(number);
            locked(&self.collected).is_due = true;
        }
        Ok(())
    }

    /// Removes a directory, which must be empty.
    pub fn remove_directory(&self, parent: u64, name: &str) -> Outcome<()> {
        self.change(|state| {
            let node = state.tree().find(parent, name).ok_or(Fault::Missing)?;
            if !node.is_directory() {
                return Err(Fault::NotDirectory);
            }
            self.check_empty(state, node.number)?;
            Ok((vec![Op::Unname(parent, name.to_owned(), now())], ()))
        })
    }

    fn check_empty(&self, state: &State, directory: u64) -> Outcome<()> {
        let has_new = self.table().names.keys().any(|(parent, _)| *parent == directory);
        match has_new || state.tree().list(directory, "").next().is_some() {
            true => Err(Fault::NotEmpty),
            false => Ok(()),
        }
    }

    /// Forgets the name of a file that nobody else knows; whether there was one.
    fn forget_new(&self, parent: u64, name: &str) -> Outcome<bool> {
        let writing = {
            let mut table = self.table();
            let number = table.names.remove(&(parent, name.to_owned()));
            number.and_then(|number| table.writing.get(&number).cloned())
        };
        let Some(writing) = writing else { return Ok(false) };
        self.touch(parent);
        let mut inner = self.settled(&writing)?;
        // It may have come to be known just now.
        let was_new = inner.place.take().is_some();
        inner.is_removed |= was_new;
        Ok(was_new)
    }

    pub(super) fn note_removed(&self, number: u64) {
        let writing = self.table().writing.get(&number).cloned();
        if let Some(writing) = writing {
            writing.inner().is_removed = true;
        }
    }

    /// Gives something another name, at once. A file that is there already gets what the other one is as its newest version; with
    /// `is_new` it is an error that there is anything.
    pub fn rename(&self, from: (u64, &str), to: (u64, &str), is_new: bool) -> Outcome<()> {
        self.check_writable()?;
        tree::check_name(to.1).map_err(|_| Fault::Invalid)?;
        self.gather_named(from.0, from.1)?;
        self.gather_named(to.0, to.1)?;
        if from == to {
            return self.find(from.0, from.1).map(drop);
        }
        if is_new && self.find(to.0, to.1).is_ok() {
            return Err(Fault::Exists);
        }
        if self.rename_new(from, to)? {
            return Ok(());
        }
        let (number, replaced) = self.change(|state| {
            let tree = state.tree();
            let mut node = tree.find(from.0, from.1).ok_or(Fault::Missing)?.clone();
            check_directory(state, to.0)?;
            let there = tree.find(to.0, to.1);
            if let Some(there) = there {
                self.check_replaced(state, &node, there, is_new)?;
                let older = there.versions().to_vec();
                let kept = policy::kept(state, &node, to.0);
                if let Body::File(versions) = &mut node.body {
                    let newest = versions.last().copied();
                    *versions = older.into_iter().chain(newest).collect();
                    let surplus = versions.len().saturating_sub(kept.most);
                    versions.drain(..surplus);
                }
            }
            node.changed_ns = now();
            let numbers = (node.number, there.map(|there| there.number));
            let named = Named { parent: to.0, name: to.1.to_owned(), node };
            // What a directory would become that is moved into itself is no error of the store.
            tree_allows(state, &named)?;
            Ok((vec![Op::Name(Box::new(named))], numbers))
        })?;
        self.forget_new(to.0, to.1)?;
        if let Some(number) = replaced {
            self.note_removed(number);
        }
        // It may be the last file of a step now.
        self.complete_if_last_or_later(&*self.state()?, number);
        Ok(())
    }

    /// The same for a file that nobody else knows yet; whether it is one.
    fn rename_new(&self, from: (u64, &str), to: (u64, &str)) -> Outcome<bool> {
        let number = self.table().names.get(&(from.0, from.1.to_owned())).copied();
        let Some(number) = number else { return Ok(false) };
        let state = self.state()?;
        check_directory(&state, to.0)?;
        let there = state.tree().find(to.0, to.1);
        if there.is_some_and(Node::is_directory) {
            return Err(Fault::IsDirectory);
        }
        self.forget_new(to.0, to.1)?;
        let Some(writing) = self.table().writing.get(&number).cloned() else { return Ok(false) };
        let mut inner = self.settled(&writing)?;
        if inner.place.is_none() {
            return Ok(false);
        }
        inner.place = Some((to.0, to.1.to_owned()));
        inner.gets_place = true;
        let mut table = self.table();
        table.names.remove(&(from.0, from.1.to_owned()));
        table.names.insert((to.0, to.1.to_owned()), number);
        drop(table);
        self.touch(from.0);
        self.touch(to.0);
        inner.node.changed_ns = now();
        Ok(true)
    }

    fn check_replaced(&self, state: &State, node: &Node, there: &Node, is_new: bool) -> Outcome<()> {
        match (node.is_directory(), there.is_directory()) {
            _ if is_new => Err(Fault::Exists),
            (false, true) => Err(Fault::IsDirectory),
            (true, false) => Err(Fault::NotDirectory),
            (true, true) => self.check_empty(state, there.number),
            (false, false) => Ok(()),
        }
    }

    /// Changes what can be said of something.
    pub fn set(&self, number: u64, attributes: &Attributes) -> Outcome<()> {
        self.check_writable()?;
        self.gather_if(number)?;
        let writing = {
            let mut table = self.table();
            if attributes.modified_ns.is_some() {
                table.touched.remove(&number);
            }
            table.writing.get(&number).cloned()
        };
        if let Some(writing) = writing {
            let mut inner = self.settled(&writing)?;
            attributes.put_on(&mut inner.node);
            if inner.place.is_some() || inner.is_removed {
                return Ok(());
            }
        }
        self.change_node(number, |node| {
            attributes.put_on(node);
            Ok(())
        })
    }

    fn change_node<T>(&self, number: u64, mut change: impl FnMut(&mut Node) -> Outcome<T>) -> Outcome<T> {
        self.change(|state| {
            if number == ROOT {
                let mut node = root_node(state);
                let value = change(&mut node)?;
                return Ok((vec![Op::Name(Box::new(Named::root(node)))], value));
            }
            let mut named = state.tree().get(number).ok_or(Fault::Missing)?.clone();
            let value = change(&mut named.node)?;
            Ok((vec![Op::Name(Box::new(named))], value))
        })
    }

    /// What users noted of something, by name.
    pub fn notes(&self, number: u64) -> Outcome<Vec<(String, Vec<u8>)>> {
        let writing = self.table().writing.get(&number).cloned();
        if let Some(writing) = writing {
            let inner = writing.inner();
            if inner.place.is_some() {
                return Ok(inner.node.notes.clone());
            }
        }
        let state = self.state()?;
        match state.tree().get(number) {
            Some(named) => Ok(named.node.notes.clone()),
            None if number == ROOT => Ok(root_node(&state).notes),
            None => Err(Fault::Missing),
        }
    }

    /// Notes something, or with nothing forgets it. `wants` says whether it must be there already, or must not.
    pub fn set_note(
        &self,
        number: u64,
        name: &str,
        value: Option<&[u8]>,
        wants: Option<bool>,
    ) -> Outcome<()> {
        let put = |node: &mut Node| {
            let at = node.notes.iter().position(|(known, _)| known == name);
            match (at, wants) {
                (Some(_), Some(false)) => return Err(Fault::Exists),
                (None, Some(true)) => return Err(Fault::Missing),
                _ => {}
            }
            let others = node.notes.iter().filter(|(known, _)| known != name).cloned();
            let notes: Vec<(String, Vec<u8>)> =
                others.chain(value.map(|value| (name.to_owned(), value.to_owned()))).collect();
            let bytes: usize = notes.iter().map(|(name, value)| name.len() + value.len()).sum();
            if bytes > NOTES_BYTES_MAX {
                return Err(Fault::NotesFull);
            }
            (node.notes, node.changed_ns) = (notes, now());
            Ok(())
        };
        self.check_writable()?;
        self.gather_if(number)?;
        match (name, value) {
            (POLICY, Some(value)) => policy::parse(value).map(drop)?,
            (NODES, Some(value)) => parse_nodes(value).map(drop)?,
            _ => {}
        }
        let writing = self.table().writing.get(&number).cloned();
        if let Some(writing) = writing {
            let mut inner = self.settled(&writing)?;
            if inner.place.is_some() {
                return put(&mut inner.node);
            }
        }
        self.change_node(number, put)?;
        if name == NODES {
            self.look_for_steps();
        }
        Ok(())
    }
}

/// The root: as somebody made it, or else everybody's to read and the mounting user's to change.
pub(super) fn root_node(state: &State) -> Node {
    let changed_ns = state.tree().root_changed_ns();
    state.tree().root().cloned().unwrap_or_else(|| Node {
        number: ROOT,
        body: Body::Directory,
        mode: 0o755,
        user: rustix::process::geteuid().as_raw(),
        group: rustix::process::getegid().as_raw(),
        modified_ns: changed_ns,
        changed_ns,
        accessed_ns: changed_ns,
        notes: Vec::new(),
    })
}

/// Refuses what is not a directory.
pub(super) fn check_directory(state: &State, number: u64) -> Outcome<()> {
    match state.tree().get(number) {
        _ if number == ROOT => Ok(()),
        Some(named) if named.node.is_directory() => Ok(()),
        Some(_) => Err(Fault::NotDirectory),
        None => Err(Fault::Missing),
    }
}

fn tree_allows(state: &State, named: &Named) -> Outcome<()> {
    match state.tree().lies_in(named.parent, named.node.number) {
        true => Err(Fault::Invalid),
        false => Ok(()),
    }
}
