//! Making versions of what was written: one record for the version and the name that leads to it.

use std::sync::Arc;

use stdchk_catalog::tree::{Body, Named, Node, Version};
use stdchk_catalog::{CheckpointEntry, Op, State};
use stdchk_object::{AppName, Error, Kind, Result};

use super::fault::{Fault, Outcome};
use super::layered::Layered;
use super::policy;
use super::shared::Joined;
use super::writing::{Inner, Ready, Writing};
use super::{Files, now};

/// A file whose bytes are stored, and that is to get a version.
struct Item<'a> {
    entry: CheckpointEntry,
    /// What the file is like but for its bytes.
    node: &'a Node,
    /// The number of the file that it is a version of, if that is there.
    target: u64,
    /// Where it will be, if it is new.
    place: Option<&'a (u64, String)>,
    /// Whether it was moved there: then it is no version of what is there, but that gives way to it.
    gets_place: bool,
    /// A version that those who wrote it have published already.
    replaces: Option<Version>,
}

/// What became of a file in a state.
enum Found {
    /// It gets a version here.
    At(Named),
    /// Nothing leads to it any more.
    Nowhere,
}

/// What became of a record.
enum Appended {
    /// It is there: the state after it, the version, and the number of the file that has it.
    Version(Arc<State>, Version, u64),
    /// The file has no name any more, or there may be no version yet.
    Nothing,
}

impl Item<'_> {
    /// The number of what gives way to it, if anything does.
    fn gives_way(&self, state: &State) -> Option<u64> {
        let (parent, name) = self.place.filter(|_| self.gets_place)?;
        state.tree().find(*parent, name).map(|there| there.number)
    }

    /// The file with its new version, as it will be.
    fn named(&self, state: &State) -> Outcome<Found> {
        let tree = state.tree();
        let there = tree.get(self.target).cloned();
        let mut named = match (there, self.place) {
            (Some(named), _) => named,
            (None, None) => return Ok(Found::Nowhere),
            (None, Some((parent, name))) => match tree.find(*parent, name) {
                None => {
                    let node = Node { body: Body::File(Vec::new()), ..self.node.clone() };
                    Named { parent: *parent, name: name.clone(), node }
                }
                Some(there) if self.gets_place => {
                    if there.is_directory() {
                        return Err(Fault::IsDirectory);
                    }
                    let node = Node { body: Body::File(there.versions().to_vec()), ..self.node.clone() };
                    Named { parent: *parent, name: name.clone(), node }
                }
                // Somebody else has made it meanwhile: then this is a version of that.
                Some(node) => Named { parent: *parent, name: name.clone(), node: node.clone() },
            },
        };
        let kept = policy::kept(state, &named.node, named.parent);
        let Body::File(versions) = &mut named.node.body else { return Err(Fault::IsDirectory) };
        if self.replaces.is_some() && versions.last() == self.replaces.as_ref() {
            versions.pop();
        }
        versions.push(next_version(state, self.entry.step));
        let surplus = versions.len().saturating_sub(kept.most);
        versions.drain(..surplus);
        named.node.modified_ns = self.node.modified_ns;
        named.node.changed_ns = self.node.changed_ns.max(named.node.changed_ns);
        Ok(Found::At(named))
    }
}

/// The version that the next checkpoint of a file will be.
fn next_version(state: &State, step: u64) -> Version {
    let files = state.apps().get(&AppName::files());
    let newest = files.and_then(|files| files.checkpoints.of_step(step).last().map(|entry| entry.generation));
    Version { step, generation: newest.unwrap_or(0).saturating_add(1) }
}

impl Files {
    /// Makes a version of what was written, if that is anything new. After a failure there is nothing left of it, and all who have the file open
    /// hear that. Only if `may` says so of the file as it is then.
    pub(super) fn publish(
        &self,
        writing: &Arc<Writing>,
        may: &mut dyn FnMut(&mut Inner) -> bool,
    ) -> Outcome<()> {
        if writing.inner().is_dirty {
            // It was written again since it was closed.
            self.gather_if(writing.number)?;
        }
        let mut inner = writing.inner();
        if !may(&mut inner) {
            return Ok(());
        }
        inner.check()?;
        if inner.is_dirty && !inner.is_removed && self.let_wait(writing, &mut inner)? {
            return Ok(());
        }
        let mut gone = None;
        let published = match inner.joined {
            _ if inner.is_removed => return Ok(()),
            Some(_) => inner.leave(self),
            None if !inner.is_dirty => return Ok(()),
            None => {
                let ready = inner.ready(self)?;
                self.publish_ready(&mut inner, ready, &mut gone)
            }
        };
        match published {
            Ok(Some(state)) => {
                drop(inner);
                gone.into_iter().for_each(|gone| self.note_removed(gone));
                self.complete_if_last(&state, writing.number).inspect_err(|_| self.look_for_steps())
            }
            Ok(None) => Ok(()),
            Err(fault) => {
                // Before anybody else can come to it: what it had is in the part that is lost.
                let error = fault.into_error();
                inner.fail(&error);
                // It may be a version all the same, where only the answer was lost.
                self.look_for_steps();
                Err(Fault::Store(error))
            }
        }
    }

    /// The state with the new version; none where the file has no name any more. What gave way to it is `gone`.
    fn publish_ready(
        &self,
        inner: &mut Inner,
        ready: Ready,
        gone: &mut Option<u64>,
    ) -> Outcome<Option<Arc<State>>> {
        let session = inner.session.take().expect("a part was written under it");
        let item = Item {
            entry: self.entry_of(inner.node.number, &ready)?,
            node: &inner.node,
            target: inner.target,
            place: inner.place.as_ref(),
            gets_place: inner.gets_place,
            replaces: inner.published,
        };
        let way = std::cell::Cell::new(None);
        let published = self.append_version(&ready, &item, &|state| {
            way.set(item.gives_way(state));
            true
        })?;
        inner.is_dirty = false;
        let Appended::Version(state, version, target) = published else {
            // Those who have it open go on with it; it ends with the last of them.
            (inner.is_removed, inner.place) = (true, None);
            inner.session = Some(session.clone());
            inner.stand_on(self, session, &ready.finished)?;
            return Ok(None);
        };
        inner.target = target;
        if let Some((parent, name)) = inner.place.take() {
            self.table().names.remove(&(parent, name));
        }
        *gone = way.take();
        self.go_on_above(inner, &state, version);
        self.repository.list_in_index(ready.finished.listed, self.save.durability);
        Ok(Some(state))
    }

    /// Makes a version of what several mounts have written, for the last one of them. The state with it; none where others have come, or added
    /// something, or where the file has no name any more.
    pub(super) fn publish_together(
        &self,
        inner: &mut Inner,
        state: &Arc<State>,
    ) -> Outcome<Option<Arc<State>>> {
        let ready = inner.ready_together(self, state)?;
        let parts = inner.parts_together(state)?;
        let (durability, boot, written) = self.sum_of_layers(state, ready.session, parts)?;
        let new = self.entry_of(inner.node.number, &ready)?;
        let entry = CheckpointEntry { durability, boot, written: new.written + written, ..new };
        let last_ns = parts.iter().map(|part| part.begun_ns).max();
        let said_ns = state.tree().get(inner.node.number).map(|named| named.node.modified_ns);
        // What somebody said who has it open counts more than when it was written.
        inner.node.modified_ns = match said_ns {
            Some(said_ns) if said_ns != inner.modified_before_ns => said_ns,
            _ => last_ns.unwrap_or_else(now),
        };
        let joined = inner.joined.as_ref().expect("it takes part");
        let (node, target) = (&inner.node, inner.node.number);
        let item = Item { entry, node, target, place: None, gets_place: false, replaces: None };
        let appended = self.append_version(&ready, &item, &|state| joined.is_last(state))?;
        let Appended::Version(state, version, _) = appended else { return Ok(None) };
        inner.joined.take().into_iter().for_each(Joined::forget);
        self.go_on_above(inner, &state, version);
        self.repository.list_in_index(ready.finished.listed, durability);
        Ok(Some(state))
    }

    /// What is written next lies above the version that was just made.
    fn go_on_above(&self, inner: &mut Inner, state: &State, version: Version) {
        inner.published = Some(version);
        match self.open_version(state, version) {
            Ok(opened) => inner.layers = Layered::of(opened),
            // The version is there; only those who would go on above it cannot.
            Err(error) => inner.fail(&error),
        }
    }

    fn entry_of(&self, number: u64, ready: &Ready) -> Result<CheckpointEntry> {
        let Ready { finished, manifest, len, base, .. } = ready;
        if self.save.is_durable() {
            self.repository.raise(base.as_ref().and_then(|base| base.entry.as_ref()), finished)?;
        }
        let at = finished.manifest.ok_or_else(|| Error::corrupt("a part without its manifest"))?;
        let new = self.repository.new_entry(&AppName::files(), number, manifest, at, self.save.durability);
        let tally = finished.part.tally.into();
        Ok(CheckpointEntry { member_count: 1, bytes: *len, tally, written: finished.written, ..new })
    }

    /// Appends the record, if that may be.
    fn append_version(
        &self,
        ready: &Ready,
        item: &Item,
        may_be: &dyn Fn(&State) -> bool,
    ) -> Outcome<Appended> {
        let id = ready.session;
        let packs = || ready.finished.part.references.iter().map(|reference| reference.pack.name);
        let (mut fault, mut outcome) = (None, None);
        let state = self.repository.catalog.append(self.save.is_durable(), &mut |state| {
            if !state.sessions().contains_key(&id) {
                // It was appended, and only the answer was lost.
                let files = state.apps().get(&AppName::files());
                let mut mine = files.into_iter().flat_map(|files| files.checkpoints.of_step(item.entry.step));
                let there = mine.find(|entry| entry.manifest == item.entry.manifest);
                outcome = there
                    .map(|entry| (Version { step: entry.step, generation: entry.generation }, item.target));
                return match outcome {
                    Some(_) => Ok(Vec::new()),
                    None => state.session(id).map(|_| Vec::new()),
                };
            }
            match item.named(state) {
                _ if !may_be(state) => {
                    outcome = None;
                    Ok(Vec::new())
                }
                Ok(Found::At(named)) => {
                    outcome = named.node.versions().last().map(|version| (*version, named.node.number));
                    let publish = Op::Publish(id, vec![item.entry.clone()], state.to_revive(packs()));
                    Ok(vec![publish, Op::Name(Box::new(named))])
                }
                Ok(Found::Nowhere) => {
                    outcome = None;
                    Ok(Vec::new())
                }
                Err(why) => {
                    fault = Some(why);
                    Err(Error::new(Kind::Conflict, "the file cannot be there any more"))
                }
            }
        });
        match (state, fault) {
            (Ok(state), _) => {
                self.learn(&state);
                Ok(outcome
                    .map_or(Appended::Nothing, |(version, target)| Appended::Version(state, version, target)))
            }
            (Err(_), Some(fault)) => Err(fault),
            (Err(error), None) => Err(error.into()),
        }
    }
}
