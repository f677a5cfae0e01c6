//! Files that several mounts write together (`docs/MOUNT.md`, One file, many writers).

use std::sync::Arc;
use std::time::Duration;

use stdchk_catalog::tree::{Named, Version};
use stdchk_catalog::{
    Catalog, Durability, Op, OpenSession, Owner, PartEntry, SessionEntry, SessionKind, State,
};
use stdchk_engine::session::{Heart, LEASE, Session, random_u64};
use stdchk_engine::{FinishedPart, PartView, Vault};
use stdchk_object::{AppName, Error, Kind, Result, SessionId};

use super::change::check_directory;
use super::fault::{Fault, Outcome};
use super::layer::Layer;
use super::layered::Layered;
use super::overlay::Overlay;
use super::writing::Inner;
use super::{Files, locked, newest, now};

/// How long a mount that writes a file with others may be silent.
const JOIN_LEASE: Duration = Duration::from_secs(20);

/// The part that this mount has in a file that several write. Dropped, it leaves the others to it.
pub(super) struct Joined {
    catalog: Arc<dyn Catalog>,
    /// The session that writes the file.
    pub of: SessionId,
    /// The session that says that this mount takes part.
    pub id: SessionId,
    /// The version below all that is written.
    pub base: Option<Version>,
    /// That both are alive.
    hearts: Vec<Heart>,
    /// What the layers are read with: the session keeps them, as they were written.
    vault: Arc<Vault>,
    /// How many layers are known here.
    known: usize,
    /// What was done here since the last layer of this mount; what was written is in memory.
    pub undone: Layer,
    has_ended: bool,
}

impl Joined {
    /// Whether it has not been given up.
    pub fn is_open(&self, state: &State) -> bool {
        state.sessions().contains_key(&self.id)
    }

    /// What is written together; an error if it has been given up.
    fn session<'s>(&self, state: &'s State) -> Result<&'s OpenSession> {
        let gone = || {
            Error::new(Kind::Io, "the file was given up: a process or a mount that wrote it, too, has died")
        };
        if !self.is_open(state) {
            return Err(gone());
        }
        state.sessions().get(&self.of).ok_or_else(gone)
    }

    /// Gives up the file, for all who write it.
    pub fn abort(mut self) {
        self.end(Op::Fence(self.id));
    }

    /// Whether nobody else writes it any more, and all that was written is known here.
    pub fn is_last(&self, state: &State) -> bool {
        let is_known = self.session(state).is_ok_and(|session| session.parts.len() == self.known);
        is_known && state.joined(self.of).count() == 1
    }

    /// Lets it go after it has ended with a version.
    pub fn forget(mut self) {
        self.has_ended = true;
    }

    fn end(&mut self, op: Op) {
        self.hearts.clear();
        let ended = self
            .catalog
            .append(false, &mut |state| Ok(if self.is_open(state) { vec![op.clone()] } else { Vec::new() }));
        self.has_ended = true;
        if let Err(error) = ended {
            tracing::warn!("others learn later that a file is not written here any more: {error}");
        }
    }

    /// Whether the only one who takes part, who knows of no layer, has written nothing; then that is the end of it.
    fn is_idle(&self, state: &State) -> bool {
        self.is_last(state) && self.known == 0 && self.undone.is_empty()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.has_ended {
            // Who is the last, and has not published what was written, gives it up.
            let leaves = |state: &State| !self.is_last(state) || self.is_idle(state);
            let leaves = self.catalog.state().is_ok_and(|state| leaves(&state));
            self.end(if leaves { Op::End(self.id) } else { Op::Fence(self.id) });
        }
        self.hearts.clear();
        let _ = self.catalog.ended(self.id);
        if self.catalog.state().is_ok_and(|state| !state.sessions().contains_key(&self.of)) {
            let _ = self.catalog.ended(self.of);
        }
    }
}

/// What became of a file that was closed here.
enum Left {
    /// Others write it still.
    ToOthers,
    /// Nobody else does.
    Last(Arc<State>),
}

impl Files {
    /// Whether there are other mounts, so that they must know what is written here.
    pub(super) fn has_others(&self, state: &State) -> bool {
        self.mount_session().is_some_and(|mount| {
            // One that was taken for dead knows nothing of the others.
            state.has_other_mounts(mount) || !state.sessions().contains_key(&mount)
        })
    }

    /// The session that says that this mount is there.
    pub(super) fn mount_session(&self) -> Option<SessionId> {
        locked(&self.mount).as_ref().map(Session::id)
    }

    /// Says again that this mount is there, where others took it for dead.
    pub(super) fn come_back(&self) -> Result<()> {
        let Some(mount) = self.mount_session() else { return Ok(()) };
        if self.state()?.sessions().contains_key(&mount)
            || self.newest_state()?.sessions().contains_key(&mount)
        {
            return Ok(());
        }
        let catalog = self.repository.catalog.clone();
        let again = Session::open(catalog, SessionKind::Mount, &self.repository.owner(false))?;
        tracing::warn!("others took this mount for dead; what it wrote together with them was given up");
        *locked(&self.mount) = Some(again);
        Ok(())
    }

    /// Takes part in writing a file, which begins with that if nobody does yet; `new` is one that is to be there from now on. The state after it.
    pub(super) fn join_writers(&self, number: u64, new: Option<&Named>) -> Outcome<(Joined, Arc<State>)> {
        let (first, id) = (SessionId(random_u64()?), SessionId(random_u64()?));
        let open = |id, kind, owner: &Owner, lease: Duration| {
            let lease_ms = lease.as_millis() as u64;
            Op::Open(SessionEntry { id, kind, owner: owner.clone(), lease_ms, since_ns: now() })
        };
        let (ours, nobodys) = (self.repository.owner(false), self.repository.owner(true));
        let catalog = &self.repository.catalog;
        catalog.begins(first)?;
        catalog.begins(id)?;
        let joined = self.change(|state| {
            let there = state.tree().get(number);
            match new {
                None if there.is_none() => return Err(Fault::Missing),
                None => {}
                Some(named) => {
                    check_directory(state, named.parent)?;
                    let other = state.tree().find(named.parent, &named.name);
                    if other.is_some_and(|other| other.number != number) {
                        return Err(Fault::Exists);
                    }
                }
            }
            let of = state.shared(number).unwrap_or(first);
            let known = state.sessions().get(&of).map(|session| &session.entry.kind);
            let base = match known {
                Some(SessionKind::Shared { base, .. }) => *base,
                _ => there.and_then(|named| newest(state, &named.node)),
            };
            if state.sessions().contains_key(&id) {
                return Ok((Vec::new(), (of, base)));
            }
            let mut ops = Vec::new();
            if of == first {
                ops.push(open(first, SessionKind::Shared { file: number, base }, &nobodys, LEASE));
            }
            ops.push(open(id, SessionKind::Join(of), &ours, JOIN_LEASE));
            ops.extend(new.map(|named| Op::Name(Box::new(named.clone()))));
            Ok((ops, (of, base)))
        });
        if !matches!(joined, Ok((of, _)) if of == first) {
            let _ = catalog.ended(first);
        }
        if joined.is_err() {
            let _ = catalog.ended(id);
        }
        let (of, base) = joined?;
        // Where clocks differ, when it was opened says nothing of whether it is alive.
        let _ = catalog.beat(id);
        let hearts =
            vec![Heart::start(catalog.clone(), of, LEASE), Heart::start(catalog.clone(), id, JOIN_LEASE)];
        let state = self.state()?;
        let (catalog, undone, vault) = (catalog.clone(), Layer::default(), self.vault_of(state.clone()));
        let joined = Joined { catalog, of, id, base, hearts, vault, known: 0, undone, has_ended: false };
        Ok((joined, state))
    }

    /// What lies below all that is written together.
    fn base_of(&self, joined: &Joined, state: &State) -> Result<Layered> {
        match joined.base {
            None => Ok(Layered::default()),
            Some(base) => Ok(Layered::of(self.open_version(state, base)?)),
        }
    }

    /// Ends the sessions of mounts that are gone, and with them what they wrote together with others. To be called now and then.
    pub(super) fn give_up_the_dead(&self) {
        let is_alone = self.state().is_ok_and(|state| !self.has_others(&state));
        if is_alone {
            return;
        }
        if let Err(error) = stdchk_upkeep::fence(&self.repository.ground()) {
            tracing::debug!("whether other mounts are alive cannot be found out: {error}");
        }
    }
}

impl Inner {
    /// Takes in what others have written by now, and what was written here and is stored.
    pub fn follow(&mut self, state: &State) -> Result<()> {
        let Some(joined) = &mut self.joined else { return Ok(()) };
        let session = joined.session(state)?;
        if session.parts.len() <= joined.known {
            return Ok(());
        }
        for part in &session.parts[joined.known..] {
            let (layer, bytes) = Layer::open(&joined.vault, &part.head, self.node.number)?;
            layer.put_on(&mut self.layers, &bytes);
            joined.known += 1;
        }
        Ok(())
    }

    /// The same, with the newest that there is. That this cannot be found out just now does not give up the file.
    pub fn catch_up(&mut self, files: &Files) -> Result<()> {
        if !self.is_shared || self.is_removed {
            return Ok(());
        }
        let state = files.newest_state()?;
        if let Some(joined) = &self.joined {
            if let Err(gone) = joined.session(&state).map(drop) {
                self.fail(&gone);
                return Err(gone);
            }
            return self.follow(&state);
        }
        // It was closed here: what there is now others may have made.
        let named = state.tree().get(self.node.number);
        let newest = named.and_then(|named| newest(&state, &named.node));
        if let Some(newest) = newest.filter(|newest| self.published != Some(*newest)) {
            self.layers = Layered::of(files.open_version(&state, newest)?);
            self.published = Some(newest);
        }
        Ok(())
    }

    /// Takes part again, where that has ended with a version and the file is written again.
    pub fn join_again(&mut self, files: &Files) -> Outcome<()> {
        if !self.is_shared || self.joined.is_some() || self.is_removed {
            return Ok(());
        }
        let (joined, state) = files.join_writers(self.node.number, None)?;
        // If anything goes wrong now, it is left to the others, or given up where there are none: nothing can be published without all that lies below.
        let layers = files.base_of(&joined, &state)?;
        (self.joined, self.layers, self.published) = (Some(joined), layers, None);
        let followed = self.follow(&state);
        if followed.is_err() {
            self.joined = None;
        }
        Ok(followed?)
    }

    /// Adds what was written here to what is written together, for all to see.
    pub fn lay(&mut self, files: &Files) -> Result<()> {
        let Some(joined) = &mut self.joined else { return Ok(()) };
        let mut layer = std::mem::take(&mut joined.undone);
        layer.written = self.layers.overlay.held(0..u64::MAX).collect();
        let state = match layer.is_empty() {
            true => files.newest_state()?,
            false => {
                let _memory = files.memory.to_store(self.layers.len, self.layers.overlay.bytes());
                let overlay = std::mem::take(&mut self.layers.overlay);
                let finished = files.store_layer(joined.of, self.node.number, &layer, overlay)?;
                files.add_layer(joined, &finished, self.written_ns)?
            }
        };
        self.kept = None;
        self.is_dirty = false;
        self.follow(&state)
    }

    /// Closes the file for this mount; the last one makes a version of what all have written.
    pub fn leave(&mut self, files: &Files) -> Outcome<Option<Arc<State>>> {
        self.lay(files)?;
        loop {
            let Left::Last(state) = self.leave_to_others(files)? else { return Ok(None) };
            self.follow(&state)?;
            if state.tree().get(self.node.number).is_none() {
                // It ends with the last one, and nobody can reach what was written.
                self.is_removed = true;
                self.joined = None;
                return Ok(None);
            }
            if let Some(state) = files.publish_together(self, &state)? {
                return Ok(Some(state));
            }
        }
    }

    fn leave_to_others(&mut self, files: &Files) -> Result<Left> {
        let joined = self.joined.as_mut().expect("it takes part");
        let (of, id, number) = (joined.of, joined.id, self.node.number);
        let state = files.repository.catalog.append(files.save.is_durable(), &mut |state| {
            // That it ended, and the answer was lost, looks like being given up if others have ended since, too; then it is said to be.
            joined.session(state)?;
            let is_new = state.tree().get(number).is_some_and(|named| named.node.is_unwritten());
            // A new file is one even if nobody has written to it.
            let leaves = state.joined(of).count() > 1 || (joined.is_idle(state) && !is_new);
            Ok(if leaves { vec![Op::End(id)] } else { Vec::new() })
        })?;
        files.learn(&state);
        if joined.is_open(&state) {
            return Ok(Left::Last(state));
        }
        joined.has_ended = true;
        self.joined = None;
        Ok(Left::ToOthers)
    }

    /// The parts that others and this mount have added so far.
    pub fn parts_together<'s>(&self, state: &'s State) -> Result<&'s [PartEntry]> {
        let joined = self.joined.as_ref().expect("it takes part");
        Ok(&joined.session(state)?.parts)
    }
}

impl Files {
    fn store_layer(
        &self,
        of: SessionId,
        number: u64,
        layer: &Layer,
        overlay: Overlay,
    ) -> Result<FinishedPart> {
        let state = self.newest_state()?;
        let app = AppName::files();
        let mut part = self.repository.part_writer_after(of, &state, &app, &self.save, |_| None)?;
        if let Err(error) = layer.store(&mut part, number, overlay) {
            part.abandon();
            return Err(error);
        }
        part.finish(None)
    }

    fn add_layer(&self, joined: &Joined, finished: &FinishedPart, written_ns: i64) -> Result<Arc<State>> {
        if self.save.is_durable() {
            self.repository.raise(None, finished)?;
        }
        let entry = PartEntry {
            head: finished.head,
            rank: 0,
            durability: self.save.durability,
            boot: self.repository.boot,
            begun_ns: written_ns,
            took_ms: 0,
        };
        let state = self.repository.catalog.append(self.save.is_durable(), &mut |state| {
            joined.session(state)?;
            Ok(vec![Op::AddPart(joined.of, entry.clone(), false)])
        })?;
        self.learn(&state);
        Ok(state)
    }

    /// What the layers of a file say of a version of all of them: what it survives, in which boot, and what they took in the store.
    pub(super) fn sum_of_layers(
        &self,
        state: &Arc<State>,
        of: SessionId,
        parts: &[PartEntry],
    ) -> Result<(Durability, [u8; 16], u64)> {
        let vault = self.vault_of(state.clone());
        let views =
            parts.iter().map(|part| PartView::open(&vault, &part.head)).collect::<Result<Vec<_>>>()?;
        let lowest = parts.iter().map(|part| part.durability).min().unwrap_or(self.save.durability);
        let boot = self.repository.boot_of(parts);
        Ok((lowest.min(self.save.durability), boot, crate::save::written_by(&views, of)))
    }
}
