//! Small new files are not stored one by one: when they are closed they go into a journal, and a moment later all of them into one part, with one
//! record (`docs/MOUNT.md`, Small files).
//!
//! What stays true: a file that was closed is in the journal until its version is in the catalog. Lock order: who gathers, then a file that is being
//! written, then what waits.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use stdchk_catalog::tree::{Body, Named, Node, Version};
use stdchk_catalog::{CheckpointEntry, Durability, Op, State};
use stdchk_engine::FinishedPart;
use stdchk_engine::session::Session;
use stdchk_object::manifest::Manifest;
use stdchk_object::{AppName, Error, Result};

use super::fault::Outcome;
use super::journal::{Closed, Journal, left_over};
use super::layer::Plain;
use super::opened::member_path;
use super::policy;
use super::writing::{Inner, Writing};
use super::{Files, locked, manifest, newest};
use crate::naming::{Conventional, by_convention};

/// Longer files are stored by themselves.
const SMALL: u64 = 64 << 10;
/// How long a file waits for others.
const PAUSE: Duration = Duration::from_millis(20);
/// Files that are stored together.
const TOGETHER: usize = 1024;
/// Files that may wait: whoever closes one more stores them first.
const WAITING: usize = 4 * TOGETHER;

/// The part of the memory budget that they may take.
const WAITING_PART: usize = 8;

/// What waits to be gathered.
#[derive(Default)]
pub(super) struct Waiting {
    /// None before anything waits.
    journal: Option<Journal>,
    /// Others that have some of what waits.
    older: Vec<Journal>,
    closed: Vec<(Closed, Arc<Writing>)>,
    /// Their bytes.
    bytes: usize,
    /// Whether nothing can wait here.
    is_off: bool,
}

impl Files {
    /// Whether a file that is closed may wait for others: it is new, small, whole in memory, and only has to survive this process.
    fn may_wait(&self, writing: &Writing, inner: &Inner) -> bool {
        let layers = &inner.layers;
        self.save.durability == Durability::Staged
            && inner.place.is_some()
            && !inner.gets_place
            && !writing.waits.load(Ordering::Acquire)
            && inner.is_plain()
            && layers.base.is_none()
            && layers.len <= SMALL
    }

    /// Takes in a file that is closed; whether it did.
    pub(super) fn let_wait(&self, writing: &Arc<Writing>, inner: &mut Inner) -> Result<bool> {
        let Some((parent, name)) = inner.place.clone().filter(|_| self.may_wait(writing, inner)) else {
            return Ok(false);
        };
        let Some(folder) = self.repository.journal() else { return Ok(false) };
        let node = Node { body: Body::File(Vec::new()), ..inner.node.clone() };
        let bytes = inner.layers.read(0, inner.layers.len as usize)?;
        let closed = Closed { named: Named { parent, name, node }, bytes };
        // What the catalog would refuse is told who closes it.
        let state = self.state()?;
        if !can_be_there(&state, &closed.named) || self.has_others(&state) {
            return Ok(false);
        }
        let mut waiting = locked(&self.waiting);
        let is_full = waiting.closed.len() >= WAITING || waiting.bytes > self.save.memory / WAITING_PART;
        if waiting.is_off || is_full {
            return Ok(false);
        }
        if waiting.journal.is_none() {
            match Journal::begin(&folder) {
                Ok(journal) => waiting.journal = Some(journal),
                Err(error) => {
                    tracing::info!("small files are stored one by one: {error}");
                    waiting.is_off = true;
                    return Ok(false);
                }
            }
        }
        // Where there is no room for it there may be none for a pack; that says so.
        if waiting.journal.as_mut().expect("just begun").add(&closed).is_err() {
            return Ok(false);
        }
        writing.waits.store(true, Ordering::Release);
        waiting.bytes += closed.bytes.len();
        waiting.closed.push((closed, writing.clone()));
        inner.is_dirty = false;
        self.is_waiting.notify_one();
        Ok(true)
    }

    /// Waits until something is to be gathered, for a while, and gathers it. To be called again and again.
    pub fn gather_next(&self, patience: Duration) {
        let waiting = locked(&self.waiting);
        let none = |waiting: &mut Waiting| waiting.closed.is_empty();
        let waited = self.is_waiting.wait_timeout_while(waiting, patience, none);
        let is_none = waited.is_ok_and(|(waiting, _)| waiting.closed.is_empty());
        if is_none {
            return;
        }
        std::thread::sleep(PAUSE);
        if let Err(error) = self.gather() {
            tracing::error!(
                "small files that were closed are in the journal, and cannot be stored yet: {error}"
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Makes versions of all that waits.
    pub fn gather(&self) -> Result<()> {
        let _turn = locked(&self.gathering);
        loop {
            let (mut journals, batch) = {
                let mut waiting = locked(&self.waiting);
                waiting.bytes = 0;
                let journals: Vec<Journal> = waiting.journal.take().into_iter().collect();
                let older = std::mem::take(&mut waiting.older);
                (journals.into_iter().chain(older).collect::<Vec<_>>(), std::mem::take(&mut waiting.closed))
            };
            if batch.is_empty() {
                journals.into_iter().for_each(Journal::remove);
                return Ok(());
            }
            let mut stored = Ok(());
            for together in batch.chunks(TOGETHER) {
                let closed: Vec<&Closed> = together.iter().map(|(closed, _)| closed).collect();
                stored = stored.and_then(|()| {
                    let state = self.store_together(&closed)?;
                    let numbers: Vec<u64> = closed.iter().map(|closed| closed.named.node.number).collect();
                    // Before anybody can remove them, or a mount that finds the journal would bring them back.
                    for journal in &mut journals {
                        if let Err(error) = journal.done(&numbers) {
                            tracing::warn!("that files are stored is not in the journal: {error}");
                        }
                    }
                    self.let_go_of(together, &state);
                    Ok(())
                });
            }
            if let Err(error) = stored {
                self.wait_again(journals, batch);
                return Err(error);
            }
            journals.into_iter().for_each(Journal::remove);
        }
    }

    /// Has what could not be stored wait again, with its journals.
    fn wait_again(&self, journals: Vec<Journal>, mut batch: Vec<(Closed, Arc<Writing>)>) {
        batch.retain(|(_, writing)| writing.waits.load(Ordering::Acquire));
        let mut waiting = locked(&self.waiting);
        waiting.older.extend(journals);
        batch.append(&mut waiting.closed);
        waiting.bytes = batch.iter().map(|(closed, _)| closed.bytes.len()).sum();
        waiting.closed = batch;
    }

    /// Takes a file of that name out of those that wait: it is wanted no more. Whether that was all there was of it.
    pub(super) fn withdraw(&self, parent: u64, name: &str) -> Outcome<bool> {
        let number = self.table().names.get(&(parent, name.to_owned())).copied();
        let Some(writing) = number.and_then(|number| self.writing(number)) else { return Ok(false) };
        let _turn = locked(&self.gathering);
        let mut inner = writing.inner();
        if !writing.waits.load(Ordering::Acquire) {
            return Ok(false);
        }
        let mut waiting = locked(&self.waiting);
        let Waiting { journal, older, closed, .. } = &mut *waiting;
        journal.iter_mut().chain(older).try_for_each(|journal| journal.done(&[writing.number]))?;
        closed.retain(|(_, there)| !Arc::ptr_eq(there, &writing));
        drop(waiting);
        writing.waits.store(false, Ordering::Release);
        (inner.place, inner.is_removed) = (None, true);
        let mut table = self.table();
        if inner.opens == 0 {
            table.writing.remove(&writing.number);
        }
        table.names.remove(&(parent, name.to_owned()));
        drop(table);
        self.touch(parent);
        Ok(true)
    }

    /// What a file is like that is being written; one that waits is gathered first.
    pub(super) fn settled<'w>(&self, writing: &'w Writing) -> Outcome<MutexGuard<'w, Inner>> {
        loop {
            let inner = writing.inner();
            if !writing.waits.load(Ordering::Acquire) {
                return Ok(inner);
            }
            drop(inner);
            self.gather()?;
        }
    }

    /// Gathers first what waits if a file is among it, since something else is to be done with that.
    pub(super) fn gather_if(&self, number: u64) -> Outcome<()> {
        match self.writing(number).is_some_and(|writing| writing.waits.load(Ordering::Acquire)) {
            true => Ok(self.gather()?),
            false => Ok(()),
        }
    }

    /// The same for a file of that name.
    pub(super) fn gather_named(&self, parent: u64, name: &str) -> Outcome<()> {
        let number = self.table().names.get(&(parent, name.to_owned())).copied();
        number.map_or(Ok(()), |number| self.gather_if(number))
    }

    /// Makes versions of what mounts left in their journals that are gone.
    pub(super) fn gather_left_over(&self) -> Result<()> {
        let Some(folder) = self.repository.journal() else { return Ok(()) };
        let mut failed = Ok(());
        for left in left_over(&folder)? {
            // One that cannot be stored is no reason to leave the others.
            let stored = left.closed.chunks(TOGETHER).try_for_each(|together| {
                let there = self.newest_state()?;
                let is_new = |closed: &&Closed| there.tree().get(closed.named.node.number).is_none();
                let new: BTreeMap<u64, &Closed> =
                    together.iter().filter(is_new).map(|closed| (closed.named.node.number, closed)).collect();
                let new: Vec<&Closed> = new.into_values().collect();
                if !new.is_empty() {
                    self.store_together(&new)?;
                    self.look_for_steps();
                    tracing::info!("{} files that were closed before a mount ended are stored", new.len());
                }
                Ok(())
            });
            failed = failed.and(stored.and_then(|()| left.remove()));
        }
        failed
    }

    /// Completes the steps that files were the last ones of.
    fn complete_steps_of<'c>(&self, stored: impl Iterator<Item = &'c Closed>, state: &State) {
        let mut steps = BTreeMap::new();
        for Closed { named, .. } in stored {
            let Ok(Conventional { app, step, .. }) = by_convention(&named.name) else { continue };
            if let Some(there) = there(state, named) {
                steps.insert((named.parent, app, step), there.number);
            }
        }
        for number in steps.into_values() {
            self.complete_if_last_or_later(state, number);
        }
    }

    /// Stores files in one part, and makes versions of them in one record.
    fn store_together(&self, all: &[&Closed]) -> Result<Arc<State>> {
        let session = self.open_writer()?;
        let app = AppName::files();
        let state = session.state();
        let mut part = self.repository.part_writer_after(session.id(), state, &app, &self.save, |_| None)?;
        for Closed { named, bytes } in all {
            let (path, node) = (member_path(named.node.number), &named.node);
            let source = Arc::new(Plain(bytes.clone()));
            if let Err(error) = part.add_file(&path, source, node.mode, node.modified_ns, &|_| {}) {
                part.abandon();
                return Err(error);
            }
        }
        let manifest = manifest(app, 0);
        let finished = part.finish(Some(manifest.clone()))?;
        if self.save.is_durable() {
            self.repository.raise(None, &finished)?;
        }
        let state = self.append_together(&session, all, &finished, &manifest)?;
        self.learn(&state);
        Ok(state)
    }

    fn append_together(
        &self,
        session: &Session,
        all: &[&Closed],
        finished: &FinishedPart,
        manifest: &Manifest,
    ) -> Result<Arc<State>> {
        let at = finished.manifest.ok_or_else(|| Error::corrupt("a part without its manifest"))?;
        let count = all.len() as u64;
        let entry = |closed: &Closed| {
            let app = AppName::files();
            let number = closed.named.node.number;
            let new = self.repository.new_entry(&app, number, manifest, at, self.save.durability);
            let bytes = closed.bytes.len() as u64;
            // What all of them took, shared out.
            CheckpointEntry { member_count: 1, bytes, written: finished.written / count, ..new }
        };
        let packs = || finished.part.references.iter().map(|reference| reference.pack.name);
        let id = session.id();
        self.repository.catalog.append(self.save.is_durable(), &mut |state| {
            if !state.sessions().contains_key(&id) {
                // It was appended, and only the answer was lost; or it was given up.
                let is_there = |closed: &&Closed| state.tree().get(closed.named.node.number).is_some();
                return match all.iter().all(is_there) {
                    true => Ok(Vec::new()),
                    false => state.session(id).map(|_| Vec::new()),
                };
            }
            let mut names = BTreeMap::new();
            // An attempt that seemed to fail may have been made.
            let is_there = |closed: &&&Closed| state.checkpoint(&first_version(closed).id()).is_some();
            for closed in all.iter().filter(|closed| !is_there(closed)) {
                match named_with_version(state, closed) {
                    Some(named) => {
                        _ = names.insert((named.parent, named.name.clone()), (entry(closed), named))
                    }
                    None => tracing::error!("{:?} cannot be there any more, and is lost", closed.named.name),
                }
            }
            if names.is_empty() {
                return Ok(Vec::new());
            }
            let (entries, names): (Vec<_>, Vec<_>) = names.into_values().unzip();
            let publish = Op::Publish(id, entries, state.to_revive(packs()));
            let names = names.into_iter().map(|named| Op::Name(Box::new(named)));
            Ok([publish].into_iter().chain(names).collect())
        })
    }

    /// What was stored need not be known here any more, unless somebody has it open.
    fn let_go_of(&self, stored: &[(Closed, Arc<Writing>)], state: &Arc<State>) {
        for (closed, writing) in stored {
            let mut inner = writing.inner();
            let there = there(state, &closed.named);
            let version = there.and_then(|node| newest(state, node));
            inner.target = there.map_or(inner.target, |node| node.number);
            let mut table = self.table();
            if let Some(place) = inner.place.take()
                && table.names.get(&place) == Some(&writing.number)
            {
                table.names.remove(&place);
            }
            let is_it = table.writing.get(&writing.number).is_some_and(|there| Arc::ptr_eq(there, writing));
            if inner.opens == 0 && is_it {
                table.writing.remove(&writing.number);
            }
            drop(table);
            inner.is_removed |= version.is_none();
            inner.published = version;
            writing.waits.store(false, Ordering::Release);
        }
        self.complete_steps_of(stored.iter().map(|(closed, _)| closed), state);
    }
}

/// What a file has become that was closed: itself, or a version of what somebody else made there.
fn there<'s>(state: &'s State, closed: &Named) -> Option<&'s Node> {
    let itself = state.tree().get(closed.node.number).map(|named| &named.node);
    itself.or_else(|| state.tree().find(closed.parent, &closed.name))
}

/// The version that a file has which was closed.
fn first_version(closed: &Closed) -> Version {
    Version { step: closed.named.node.number, generation: 1 }
}

/// What leads to a file that was closed, with its version; none where there can be no such file.
fn named_with_version(state: &State, closed: &Closed) -> Option<Named> {
    let new = &closed.named;
    if !can_be_there(state, new) {
        return None;
    }
    let there = state.tree().find(new.parent, &new.name);
    let mut named = Named { node: there.unwrap_or(&new.node).clone(), ..new.clone() };
    let kept = policy::kept(state, &named.node, named.parent);
    let is_newest = there.is_none_or(|there| there.modified_ns <= new.node.modified_ns);
    let Body::File(versions) = &mut named.node.body else { return None };
    let version = first_version(closed);
    // What was written there since stays the newest.
    versions.insert(if is_newest { versions.len() } else { versions.len().saturating_sub(1) }, version);
    versions.drain(..versions.len().saturating_sub(kept.most));
    if is_newest {
        (named.node.modified_ns, named.node.changed_ns) = (new.node.modified_ns, new.node.changed_ns);
    }
    named.node.versions().contains(&version).then_some(named)
}

/// Whether there may be a file of that name.
fn can_be_there(state: &State, named: &Named) -> bool {
    let there = state.tree().find(named.parent, &named.name);
    let is_free = there.is_none_or(|there| matches!(there.body, Body::File(_)));
    is_free && state.check(&Op::Name(Box::new(named.clone()))).is_ok()
}
