//! A checkpoint to which several processes add parts.

use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stdchk_catalog::{CheckpointEntry, Durability, Op, OpenSession, PartEntry, Saving, SessionKind};
use stdchk_engine::session::{Heart, open_session, random_u64};
use stdchk_engine::{FinishedPart, PartView, PartWriter, Vault, write_manifest};
use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Body, Tally};
use stdchk_object::{AppName, Error, Kind, Locator, PackName, PackRef, Result, SessionId};

use super::{SaveOptions, Saved, add_paths, saved};
use crate::host;
use crate::memory::Memory;
use crate::repository::Repository;

/// How long the session of a shell script may be silent before it is given up.
pub const SCRIPT_LEASE: Duration = Duration::from_secs(24 * 3600);

impl Repository {
    /// Begins a checkpoint to which several processes add parts. The session lives until it is committed or
    /// aborted, or has been silent for `lease`.
    pub fn begin(&self, app: &AppName, step: u64, parts: Option<u32>, lease: Duration) -> Result<SessionId> {
        let kind = SessionKind::Writer { app: app.clone(), step, parts };
        let (id, _) = open_session(&*self.catalog, kind, &self.owner(true), lease)?;
        Ok(id)
    }

    /// Begins a part of a session that was begun elsewhere.
    pub fn add(&self, session: SessionId, options: SaveOptions) -> Result<Add<'_>> {
        let options = SaveOptions { durability: self.level(options.durability)?, ..options };
        options.engine(&Saving::default(), 0.0).check()?;
        let state = self.catalog.state()?;
        let open = state.session(session)?;
        // The session is alive as long as a part is being added, however long that takes.
        let heart = Heart::start(self.catalog.clone(), session, Duration::from_millis(open.entry.lease_ms));
        self.catalog.beat(session)?;
        let SessionKind::Writer { app, .. } = &open.entry.kind else {
            return Err(Error::invalid(format!("session {session} does not write a checkpoint")));
        };
        let parent = self.choose_parent(&state, app, &options.parent)?;
        let part = self.part_writer(session, &state, app, &options, parent.as_ref())?;
        let begun = Some((host::now_ns(), Instant::now()));
        Ok(Add { repository: self, session, options, parent, part, begun, _heart: heart })
    }

    /// Commits a session with the parts that were added to it.
    pub fn commit(&self, session: SessionId, note: &str) -> Result<Saved> {
        let state = self.catalog.state()?;
        let open = state.session(session)?.clone();
        let SessionKind::Writer { app, step, parts } = &open.entry.kind else {
            return Err(Error::invalid(format!("session {session} does not write a checkpoint")));
        };
        if open.parts.is_empty() {
            return Err(Error::invalid(format!("no part was added to session {session}")));
        }
        check_count(*parts, open.parts.len(), app, *step)?;
        let vault = Vault::new(self.store.clone(), state.clone(), self.memory / 8);
        let views = open.parts.iter().map(|part| PartView::open(&vault, &part.head));
        let views = views.collect::<Result<Vec<_>>>()?;
        check_members(&vault, &views)?;
        let durability = open.parts.iter().map(|part| part.durability).min().unwrap_or(Durability::Local);
        let boot = self.boot_of(&open.parts);
        let manifest = Manifest {
            app: app.clone(),
            step: *step,
            created_ns: host::now_ns(),
            host: host::name(),
            note: note.to_owned(),
            parent: None,
            parts: open.parts.iter().map(|part| part.head).collect(),
        };
        let durable = durability >= Durability::Local;
        let writer = random_u64()? as u32;
        let at = write_manifest(&self.store, &self.workers, session, writer, &manifest, durable)?;
        let written = at.pack.length + written_by(&views, session);
        let mut tally = Tally::default();
        views.iter().for_each(|view| tally.add(&view.part.tally));
        let entry = CheckpointEntry {
            member_count: views.iter().map(|view| view.part.member_count).sum(),
            bytes: views.iter().map(|view| view.part.bytes).sum(),
            tally: tally.into(),
            written,
            boot,
            took_ms: time_of(&open.parts),
            ..self.new_entry(app, *step, &manifest, at, durability)
        };
        let packs: Vec<PackName> =
            views.iter().flat_map(|view| view.references()).map(|(p, _)| p.name).collect();
        let names: Vec<Locator> = manifest.parts.clone();
        let committed = self.catalog.append(durable, &mut |state| {
            let open = state.session(session)?;
            if open.parts.iter().map(|part| part.head).ne(names.iter().copied()) {
                let text =
                    format!("a part was added to session {session} while it was committed; commit again");
                return Err(Error::new(Kind::Conflict, text));
            }
            Ok(vec![Op::Commit(session, Box::new(entry.clone()), state.to_revive(packs.iter().copied()))])
        })?;
        let _ = self.catalog.ended(session);
        saved(&committed, &entry)
    }

    /// The boot in which staged parts can be relied upon: the one that all of them were added in, or none.
    pub(crate) fn boot_of(&self, parts: &[PartEntry]) -> [u8; 16] {
        let mut staged =
            parts.iter().filter(|part| part.durability < Durability::Local).map(|part| part.boot);
        let first = staged.next().unwrap_or(self.boot);
        if staged.all(|boot| boot == first) { first } else { [0; 16] }
    }

    /// Refuses a part of a rank that has added one of its members before.
    fn check_not_added(&self, session: SessionId, head: &Locator) -> Result<()> {
        let state = self.catalog.state()?;
        let vault = Vault::new(self.store.clone(), state.clone(), 1 << 20);
        let view = PartView::open(&vault, head)?;
        let parts = &state.session(session)?.parts;
        let earlier: Vec<_> = parts.iter().filter(|part| part.rank == view.part.rank).collect();
        if earlier.is_empty() {
            return Ok(());
        }
        let ours: HashSet<String> = view.members(&vault)?.into_iter().map(|member| member.path).collect();
        for part in earlier {
            let theirs = PartView::open(&vault, &part.head)?.members(&vault)?;
            if let Some(twice) = theirs.iter().find(|member| ours.contains(&member.path)) {
                let text = format!(
                    "rank {} has added {:?} to session {session} already; --replace puts this part in its place",
                    part.rank, twice.path
                );
                return Err(Error::new(Kind::Exists, text));
            }
        }
        Ok(())
    }

    /// Gives a session up; its packs are removed by the next garbage collection.
    pub fn abort(&self, session: SessionId) -> Result<()> {
        self.catalog.append(false, &mut |state| {
            let open = state.session(session)?;
            if matches!(
                open.entry.kind,
                SessionKind::Mount | SessionKind::Join(_) | SessionKind::Shared { .. }
            ) {
                return Err(Error::invalid(format!("session {session} is that of a mount, which ends it")));
            }
            Ok(vec![Op::End(session)])
        })?;
        self.catalog.ended(session)
    }

    /// The sessions that are open.
    pub fn sessions(&self) -> Result<Vec<OpenSession>> {
        Ok(self.catalog.state()?.sessions().values().cloned().collect())
    }
}

fn check_count(declared: Option<u32>, added: usize, app: &AppName, step: u64) -> Result<()> {
    match declared {
        Some(declared) if declared as usize != added => Err(Error::invalid(format!(
            "{declared} parts were declared for {app}@{step}, and {added} were added"
        ))),
        _ => Ok(()),
    }
}

/// No two parts may have the same member of the same rank.
fn check_members(vault: &Vault, views: &[PartView]) -> Result<()> {
    let mut seen = HashSet::new();
    for view in views {
        for member in view.members(vault)? {
            if !seen.insert((view.part.rank, member.path.clone())) {
                let rank = view.part.rank;
                return Err(Error::invalid(format!(
                    "two parts of rank {rank} have the member {:?}",
                    member.path
                )));
            }
        }
    }
    Ok(())
}

/// Bytes of the packs that a session wrote, of those that parts refer to.
pub(crate) fn written_by(views: &[PartView], session: SessionId) -> u64 {
    let ours = views.iter().flat_map(|view| view.references()).map(|(pack, _)| pack);
    let packs: BTreeSet<PackRef> = ours.filter(|pack| pack.name.session == session).collect();
    packs.iter().map(|pack| pack.length).sum()
}

/// Milliseconds that parts took together: from the first beginning to the last end, as the clocks of their hosts have it, but no less than
/// the longest and no more than all one after the other. 0 where one was not measured.
fn time_of(parts: &[PartEntry]) -> u64 {
    let times = || parts.iter().map(|part| part.took_ms);
    if times().any(|took| took == 0) {
        return 0;
    }
    let begun = parts.iter().map(|part| i128::from(part.begun_ns)).min().unwrap_or(0);
    let end = |part: &PartEntry| i128::from(part.begun_ns) + i128::from(part.took_ms) * 1_000_000;
    let end = parts.iter().map(end).max().unwrap_or(0);
    let elapsed = u64::try_from((end - begun) / 1_000_000).unwrap_or(u64::MAX);
    let (longest, sum) = (times().max().unwrap_or(0), times().fold(0, u64::saturating_add));
    elapsed.clamp(longest, sum)
}

/// A part that is being added to somebody's session.
pub struct Add<'a> {
    repository: &'a Repository,
    session: SessionId,
    options: SaveOptions,
    parent: Option<CheckpointEntry>,
    part: PartWriter,
    /// When it was begun; nothing where its time says nothing of the application.
    begun: Option<(i64, Instant)>,
    _heart: Heart,
}

impl Add<'_> {
    /// Adds files and directories. `progress` is told of bytes that were taken in.
    pub fn add_paths(&mut self, paths: &[PathBuf], progress: &dyn Fn(u64)) -> Result<()> {
        add_paths(self.repository, &mut self.part, paths, progress)
    }

    /// Adds what a stream gives until it ends, as the member `name`.
    pub fn add_stream(&mut self, name: &str, stream: &mut dyn Read, progress: &dyn Fn(u64)) -> Result<()> {
        self.part.add_stream(name, stream, progress)
    }

    /// Adds bytes in memory as the member `name`. What has not changed of them is looked at where it lies, and never copied.
    pub fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.part.add_memory(name, bytes)
    }

    /// Adds memory as the member `name`. What was not written to since it was saved as, or restored from, what is the parent now is not even looked at.
    pub fn add_memory(&mut self, name: &str, memory: &mut Memory) -> Result<()> {
        memory.add_to(&mut self.part, name)
    }

    /// Its bytes come from elsewhere: how long they take says nothing of the application.
    pub(crate) fn unmeasured(mut self) -> Self {
        self.begun = None;
        self
    }

    /// Adds a member as an export describes it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn import_member(
        &mut self,
        path: &str,
        sort: u8,
        mode: u32,
        mtime_ns: i64,
        target: String,
        bytes: &mut dyn Read,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        match sort {
            1 => self.part.add_plain(path, Body::Dir, mode, mtime_ns),
            2 => self.part.add_plain(path, Body::Link(target), mode, mtime_ns),
            3 => self.part.add_stream(path, bytes, progress),
            _ => self.part.add_file_stream(path, bytes, mode, mtime_ns, progress),
        }
    }

    /// Gives the part up, and removes what was written of it. The session stays open.
    pub fn abort(self) {
        self.part.abandon();
    }

    /// Makes the part durable and part of the session. It stays invisible until the session is committed.
    pub fn finish(self) -> Result<PartEntry> {
        let Add { repository, session, options, parent, part, begun, _heart } = self;
        if part.member_count() == 0 {
            part.abandon();
            return Err(Error::invalid("there is nothing to add"));
        }
        let finished = part.finish(None)?;
        if options.is_durable() {
            repository.raise(parent.as_ref(), &finished)?;
        }
        let FinishedPart { head, listed, .. } = finished;
        let entry = PartEntry {
            head,
            rank: options.rank,
            durability: options.durability,
            boot: repository.boot,
            begun_ns: begun.map_or(0, |(ns, _)| ns),
            took_ms: begun.map_or(0, |(_, begun)| begun.elapsed().as_millis().max(1) as u64),
        };
        let replaces = options.replace;
        if !replaces {
            repository.check_not_added(session, &entry.head)?;
        }
        repository.catalog.append_as_saver(options.is_durable(), &mut |_| {
            Ok(vec![Op::AddPart(session, entry.clone(), replaces)])
        })?;
        repository.catalog.beat(session)?;
        repository.list_in_index(listed, options.durability);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::{Hash, PackRef};

    fn part(begun_s: i64, took_ms: u64) -> PartEntry {
        let pack = PackName { session: SessionId(1), writer: 1, number: 1 };
        let head = Locator { pack: PackRef { name: pack, root: Hash([0; 32]), length: 1 }, chunk: 0 };
        let begun_ns = begun_s * 1_000_000_000;
        PartEntry { head, rank: 0, durability: Durability::Local, boot: [0; 16], begun_ns, took_ms }
    }

    #[test]
    fn parts_take_as_long_as_they_take_together() {
        assert_eq!(time_of(&[part(10, 3000), part(11, 4000)]), 5000);
        assert_eq!(time_of(&[part(10, 3000), part(60, 1000)]), 4000, "nobody saved in between");
        assert_eq!(time_of(&[part(-90_000, 3000), part(90_000, 3000)]), 6000, "clocks that disagree");
        assert_eq!(time_of(&[part(10, 3000), part(10, 0)]), 0);
        assert_eq!(time_of(&[part(i64::MIN / 1_000_000_000, u64::MAX), part(0, 1)]), u64::MAX);
    }
}
