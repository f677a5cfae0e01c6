//! Saving: one writer that commits at once, or many that each add a part.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stdchk_catalog::{CheckpointEntry, Durability, Op, OpenSession, PartEntry, SessionKind, State};
use stdchk_engine::session::{Heart, open_session, random_u64};
use stdchk_engine::{
    FinishedPart, Index, Options, PartView, PartWriter, Session, Vault, View, write_manifest,
};
use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Body, Tally};
use stdchk_object::{AppName, CheckpointId, Error, Kind, Locator, PackName, PackRef, Result, SessionId};

use crate::files::FileSource;
use crate::host;
use crate::naming::Spec;
use crate::repository::Repository;
use crate::walk::{Sort, find};

/// How long the session of a shell script may be silent before it is given up.
pub const SCRIPT_LEASE: Duration = Duration::from_secs(24 * 3600);

/// What to compare with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ParentChoice {
    /// The application's newest checkpoint.
    #[default]
    Newest,
    /// Nothing.
    None,
    /// This one; it may be another application's.
    Given(Spec),
}

/// How to save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// Chunking, codec, memory.
    pub engine: Options,
    /// What the commit survives.
    pub durability: Durability,
    /// What to compare with.
    pub parent: ParentChoice,
    /// A word for people.
    pub note: String,
    /// The rank of this part.
    pub rank: u32,
    /// Whether a part that is added takes the place of earlier ones of its rank, as when a rank tries again.
    pub replace: bool,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions {
            engine: Options::default(),
            durability: Durability::Local,
            parent: ParentChoice::Newest,
            note: String::new(),
            rank: 0,
            replace: false,
        }
    }
}

/// What a save led to.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Its entry in the catalog.
    pub entry: CheckpointEntry,
}

/// A checkpoint that is being saved by this process. Dropped without a commit, it leaves nothing.
pub struct Save<'a> {
    repository: &'a Repository,
    session: Session,
    options: SaveOptions,
    app: AppName,
    step: u64,
    parent: Option<CheckpointEntry>,
    part: PartWriter,
}

impl Repository {
    /// Begins to save a checkpoint.
    pub fn save(&self, app: &AppName, step: u64, mut options: SaveOptions) -> Result<Save<'_>> {
        options.engine.durable = options.durability >= Durability::Local;
        options.engine.check()?;
        let kind = SessionKind::Writer { app: app.clone(), step, parts: None };
        let session = Session::open(self.catalog.clone(), kind, &self.owner(false))?;
        let parent = self.choose_parent(session.state(), app, &options.parent)?;
        let part = self.part_writer(session.id(), session.state(), &options, parent.as_ref())?;
        Ok(Save { repository: self, session, options, app: app.clone(), step, parent, part })
    }

    fn part_writer(
        &self,
        session: SessionId,
        state: &Arc<State>,
        options: &SaveOptions,
        parent: Option<&CheckpointEntry>,
    ) -> Result<PartWriter> {
        let vault = Arc::new(Vault::new(self.store.clone(), state.clone(), options.engine.memory / 8));
        let index = match Index::open(self.objects.clone()) {
            Ok(index) => Some(index),
            Err(error) => {
                tracing::warn!("saving without the fingerprint index, which cannot be opened: {error}");
                None
            }
        };
        let parent = parent.and_then(|entry| parent_part(&vault, entry, options.rank));
        PartWriter::new(
            options.engine,
            vault,
            self.workers.clone(),
            index,
            parent.as_ref(),
            session,
            random_u64()? as u32,
            options.rank,
        )
    }

    /// Begins a checkpoint to which several processes add parts. The session lives until it is committed or
    /// aborted, or has been silent for `lease`.
    pub fn begin(&self, app: &AppName, step: u64, parts: Option<u32>, lease: Duration) -> Result<SessionId> {
        let kind = SessionKind::Writer { app: app.clone(), step, parts };
        let (id, _) = open_session(&*self.catalog, kind, &self.owner(true), lease)?;
        Ok(id)
    }

    /// Begins a part of a session that was begun elsewhere.
    pub fn add(&self, session: SessionId, mut options: SaveOptions) -> Result<Add<'_>> {
        options.engine.durable = options.durability >= Durability::Local;
        options.engine.check()?;
        let state = self.catalog.state()?;
        let open = state.session(session)?;
        // The session is alive as long as a part is being added, however long that takes.
        let heart = Heart::start(self.catalog.clone(), session, Duration::from_millis(open.entry.lease_ms));
        self.catalog.beat(session)?;
        let SessionKind::Writer { app, .. } = &open.entry.kind else {
            return Err(Error::invalid(format!("session {session} does not write a checkpoint")));
        };
        let parent = self.choose_parent(&state, app, &options.parent)?;
        let part = self.part_writer(session, &state, &options, parent.as_ref())?;
        Ok(Add { repository: self, session, options, parent, part, _heart: heart })
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
        let _ = self.catalog.forget_beats(&[session]);
        saved(&committed, &entry)
    }

    /// The boot in which staged parts can be relied upon: the one that all of them were added in, or none.
    fn boot_of(&self, parts: &[PartEntry]) -> [u8; 16] {
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
        let ours: std::collections::HashSet<String> =
            view.members(&vault)?.into_iter().map(|member| member.path).collect();
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
            state.session(session)?;
            Ok(vec![Op::End(session)])
        })?;
        self.catalog.forget_beats(&[session])
    }

    /// The sessions that are open.
    pub fn sessions(&self) -> Result<Vec<OpenSession>> {
        Ok(self.catalog.state()?.sessions().values().cloned().collect())
    }

    /// Makes packs of others durable that a durable commit refers to: it must survive no less than it says. What a
    /// durable parent refers to is durable.
    fn raise(&self, parent: Option<&CheckpointEntry>, finished: &FinishedPart) -> Result<()> {
        let parent_is_durable = parent.is_some_and(|parent| parent.durability >= Durability::Local);
        let of_parent = finished.of_parent.iter().filter(|_| !parent_is_durable);
        let names: Vec<PackName> = of_parent.chain(&finished.found).map(|pack| pack.name).collect();
        self.store.sync(&names)
    }
}

impl Repository {
    fn new_entry(
        &self,
        app: &AppName,
        step: u64,
        manifest: &Manifest,
        at: Locator,
        durability: Durability,
    ) -> CheckpointEntry {
        CheckpointEntry {
            app: app.clone(),
            step,
            generation: 0,
            sequence: 0,
            manifest: at,
            created_ns: manifest.created_ns,
            durability,
            boot: self.boot,
            member_count: 0,
            bytes: 0,
            tally: Tally::default().into(),
            written: 0,
        }
    }

    fn choose_parent(
        &self,
        state: &State,
        app: &AppName,
        choice: &ParentChoice,
    ) -> Result<Option<CheckpointEntry>> {
        match choice {
            ParentChoice::None => Ok(None),
            ParentChoice::Given(spec) => match spec.find(state)?.first() {
                Some(entry) if self.is_doubtful(entry) => {
                    let text = format!(
                        "{} was only staged before this machine started again: it cannot be a parent",
                        entry.id()
                    );
                    Err(Error::invalid(text))
                }
                found => Ok(found.map(|entry| (*entry).clone())),
            },
            ParentChoice::Newest => {
                let all = state.apps().get(app).map(|app| app.newest_first()).unwrap_or_default();
                Ok(all.into_iter().find(|entry| !self.is_doubtful(entry)).cloned())
            }
        }
    }

    /// Whether a checkpoint was never synced and another boot of the machine committed it: what it has may be gone.
    pub(crate) fn is_doubtful(&self, entry: &CheckpointEntry) -> bool {
        entry.durability < Durability::Local && entry.boot != self.boot
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
    let mut seen = std::collections::HashSet::new();
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

fn written_by(views: &[PartView], session: SessionId) -> u64 {
    let ours = views.iter().flat_map(|view| view.references()).map(|(pack, _)| pack);
    let packs: std::collections::BTreeSet<PackRef> =
        ours.filter(|pack| pack.name.session == session).collect();
    packs.iter().map(|pack| pack.length).sum()
}

fn saved(state: &State, entry: &CheckpointEntry) -> Result<Saved> {
    let found = state.checkpoints().find(|known| known.manifest == entry.manifest);
    let entry = found
        .ok_or_else(|| Error::new(Kind::Conflict, "the checkpoint was committed and dropped at once"))?;
    Ok(Saved { id: entry.id(), entry: entry.clone() })
}

/// The parent's part of this rank, or its only one. One that cannot be read is no reason not to save.
fn parent_part(vault: &Vault, entry: &CheckpointEntry, rank: u32) -> Option<PartView> {
    let view = match View::open(vault, &entry.manifest) {
        Ok(view) => view,
        Err(error) => {
            tracing::warn!("the parent {} cannot be read, so nothing is shared with it: {error}", entry.id());
            return None;
        }
    };
    let only = view.parts.len() == 1;
    view.parts.into_iter().find(|part| only || part.part.rank == rank)
}

impl Save<'_> {
    /// What it is compared with.
    pub fn parent(&self) -> Option<CheckpointId> {
        self.parent.as_ref().map(CheckpointEntry::id)
    }

    /// Adds files and directories. `progress` is told of bytes that were taken in.
    pub fn add_paths(&mut self, paths: &[PathBuf], progress: &dyn Fn(u64)) -> Result<()> {
        add_paths(self.repository, &mut self.part, paths, progress)
    }

    /// Adds what a stream gives until it ends, as the member `name`.
    pub fn add_stream(&mut self, name: &str, stream: &mut dyn Read, progress: &dyn Fn(u64)) -> Result<()> {
        self.part.add_stream(name, stream, progress)
    }

    /// Adds bytes in memory as the member `name`.
    pub fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.part.add_stream(name, &mut { bytes }, &|_| {})
    }

    /// Gives the checkpoint up, and removes what was written of it.
    pub fn abort(self) {
        self.part.abandon();
    }

    /// Makes the checkpoint exist, at once and whole.
    pub fn commit(self) -> Result<Saved> {
        let Save { repository, session, options, app, step, parent, part } = self;
        if part.member_count() == 0 {
            part.abandon();
            return Err(Error::invalid("there is nothing to save"));
        }
        let manifest = Manifest {
            app: app.clone(),
            step,
            created_ns: host::now_ns(),
            host: host::name(),
            note: options.note.clone(),
            parent: parent
                .as_ref()
                .map(|entry| (entry.step, entry.generation))
                .filter(|_| parent.as_ref().is_some_and(|entry| entry.app == app)),
            parts: Vec::new(),
        };
        let finished = part.finish(Some(manifest.clone()))?;
        let durable = options.durability >= Durability::Local;
        if durable {
            repository.raise(parent.as_ref(), &finished)?;
        }
        let FinishedPart { manifest: at, part, written, listed, .. } = finished;
        let at = at.expect("a manifest was given");
        let entry = CheckpointEntry {
            member_count: part.member_count,
            bytes: part.bytes,
            tally: part.tally.into(),
            written,
            ..repository.new_entry(&app, step, &manifest, at, options.durability)
        };
        let id = session.id();
        let committed = session.end_with(durable, &mut |state| {
            let names = part.references.iter().map(|reference| reference.pack.name);
            Ok(vec![Op::Commit(id, Box::new(entry.clone()), state.to_revive(names))])
        })?;
        repository.list_in_index(listed, options.durability);
        saved(&committed, &entry)
    }
}

impl Repository {
    fn list_in_index(&self, listed: stdchk_engine::IndexBuilder, durability: Durability) {
        // Others would refer to what a power cut may still take.
        if durability < Durability::Local {
            return;
        }
        // The index is a cache: the checkpoint is safe without it.
        let published = Index::open(self.objects.clone()).and_then(|index| index.publish(listed));
        if let Err(error) = published {
            tracing::warn!("the fingerprint index was not extended: {error}");
        }
    }
}

/// A part that is being added to somebody's session.
pub struct Add<'a> {
    repository: &'a Repository,
    session: SessionId,
    options: SaveOptions,
    parent: Option<CheckpointEntry>,
    part: PartWriter,
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
        let Add { repository, session, options, parent, part, _heart } = self;
        if part.member_count() == 0 {
            part.abandon();
            return Err(Error::invalid("there is nothing to add"));
        }
        let finished = part.finish(None)?;
        if options.durability >= Durability::Local {
            repository.raise(parent.as_ref(), &finished)?;
        }
        let FinishedPart { head, listed, .. } = finished;
        let entry =
            PartEntry { head, rank: options.rank, durability: options.durability, boot: repository.boot };
        let replaces = options.replace;
        if !replaces {
            repository.check_not_added(session, &entry.head)?;
        }
        repository.catalog.append(options.engine.durable, &mut |_| {
            Ok(vec![Op::AddPart(session, entry.clone(), replaces)])
        })?;
        repository.catalog.beat(session)?;
        repository.list_in_index(listed, options.durability);
        Ok(entry)
    }
}

fn add_paths(
    repository: &Repository,
    part: &mut PartWriter,
    paths: &[PathBuf],
    progress: &dyn Fn(u64),
) -> Result<()> {
    paths.iter().try_for_each(|path| repository.check_outside(path))?;
    for found in find(paths, Some(repository.place()))? {
        match found.sort {
            Sort::Dir => part.add_plain(&found.name, Body::Dir, found.mode, found.mtime_ns)?,
            Sort::Link(target) => {
                part.add_plain(&found.name, Body::Link(target), found.mode, found.mtime_ns)?
            }
            Sort::File => {
                let source = Arc::new(FileSource::open(&found.path)?);
                let (mode, mtime_ns) = (source.mode()?, source.mtime_ns());
                part.add_file(&found.name, source.clone(), mode, mtime_ns, progress)?;
                source.check_unchanged()?;
            }
        }
    }
    Ok(())
}
