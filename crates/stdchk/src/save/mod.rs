//! Saving: one writer that commits at once, or many that each add a part.

mod parts;
mod whole;

pub(crate) use parts::written_by;
pub use parts::{Add, SCRIPT_LEASE};
pub use whole::Save;

use std::path::PathBuf;
use std::sync::Arc;

use stdchk_catalog::{CheckpointEntry, Durability, Saving, State, Wanted};
use stdchk_codec::{Prefer, Preference};
use stdchk_engine::session::random_u64;
use stdchk_engine::{
    ChunkingChoice, FinishedPart, Index, IndexBuilder, Options, PartView, PartWriter, Vault, View,
};
use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Body, Preferred, Tally};
use stdchk_object::{AppName, CheckpointId, Error, Kind, Locator, PackName, Result, SessionId};

use crate::file_source::FileSource;
use crate::naming::Spec;
use crate::repository::Repository;
use crate::walk::{Sort, find};

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
    /// How members are cut into chunks; where nothing is said, as the application's policy has it, or else by looking at the data.
    pub chunking: Option<ChunkingChoice>,
    /// How new bytes are coded; where nothing is said, as the application's policy has it, or else by measuring.
    pub coding: Option<Preference>,
    /// Bytes of memory to use, about. An eighth of it is kept for the next save of the same repository.
    pub memory: usize,
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
    /// Whether what is new goes to the benefactor of this machine, in a pool, as long as it has room; copies go to others as ever.
    pub local_first: bool,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions {
            chunking: None,
            coding: None,
            memory: Options::default().memory,
            durability: Durability::Local,
            parent: ParentChoice::Newest,
            note: String::new(),
            rank: 0,
            replace: false,
            local_first: false,
        }
    }
}

impl SaveOptions {
    /// What the engine is told, with what is settled for the application where nothing is said.
    fn engine(&self, settled: &Saving, restarts: f64) -> Options {
        let chunking = settled.chunking.map_or(ChunkingChoice::Auto, ChunkingChoice::Fixed);
        Options {
            chunking: self.chunking.unwrap_or(chunking),
            coding: self.coding.unwrap_or_else(|| preference(settled)),
            memory: self.memory,
            durable: self.is_durable(),
            restarts,
            local_first: self.local_first,
        }
    }

    /// The least memory that a save needs; an error if less is given, or anything else of it cannot be.
    pub(crate) fn memory_min(&self) -> Result<usize> {
        let engine = self.engine(&Saving::default(), 0.0);
        engine.check()?;
        Ok(engine.memory_min())
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durability >= Durability::Local
    }
}

fn preference(settled: &Saving) -> Preference {
    match settled.coding {
        None => Preference::Auto(Prefer::default()),
        Some(Wanted::Fixed(coding, level)) => Preference::Fixed(coding, i32::from(level)),
        Some(Wanted::Prefer(Preferred::Time)) => Preference::Auto(Prefer::Time),
        Some(Wanted::Prefer(Preferred::Space)) => Preference::Auto(Prefer::Space),
        Some(Wanted::Prefer(_)) => Preference::Auto(Prefer::Balanced),
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

impl Repository {
    fn part_writer(
        &self,
        session: SessionId,
        state: &Arc<State>,
        app: &AppName,
        options: &SaveOptions,
        parent: Option<&CheckpointEntry>,
    ) -> Result<PartWriter> {
        let part = |vault: &Vault| parent.and_then(|entry| parent_part(vault, entry, options.rank));
        let mut writer = self.part_writer_after(session, state, app, options, part)?;
        writer.use_tags(self.tags);
        Ok(writer)
    }

    /// The same with any part as the one to compare with; the session must keep it.
    pub(crate) fn part_writer_after(
        &self,
        session: SessionId,
        state: &Arc<State>,
        app: &AppName,
        options: &SaveOptions,
        parent: impl FnOnce(&Vault) -> Option<PartView>,
    ) -> Result<PartWriter> {
        let known = state.apps().get(app);
        let settled = known.map(|app| app.policy.saving).unwrap_or_default();
        let restarts = known.map_or(0.0, |app| app.history.restarts_per_save());
        let engine = options.engine(&settled, restarts);
        engine.check()?;
        let vault = Arc::new(Vault::new(self.store.clone(), state.clone(), engine.memory / 8));
        let index = match Index::open(self.objects.clone()) {
            Ok(index) => Some(index),
            Err(error) => {
                tracing::warn!("saving without the fingerprint index, which cannot be opened: {error}");
                None
            }
        };
        let parent = parent(&vault);
        let mut writer = PartWriter::new(
            engine,
            vault,
            self.workers.clone(),
            index,
            parent.as_ref(),
            session,
            random_u64()? as u32,
            options.rank,
        )?;
        let took = known.and_then(|app| app.history.least_write_s_per_byte());
        took.into_iter().for_each(|most| writer.expect_store(most));
        Ok(writer)
    }

    pub(crate) fn new_entry(
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
            took_ms: 0,
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
    /// Makes packs of others durable that a durable commit refers to: it must survive no less than it says. What a
    /// durable parent refers to is durable.
    pub(crate) fn raise(&self, parent: Option<&CheckpointEntry>, finished: &FinishedPart) -> Result<()> {
        let parent_is_durable = parent.is_some_and(|parent| parent.durability >= Durability::Local);
        let of_parent = finished.of_parent.iter().filter(|_| !parent_is_durable);
        let names: Vec<PackName> = of_parent.chain(&finished.found).map(|pack| pack.name).collect();
        self.store.sync(&names)
    }
    pub(crate) fn list_in_index(&self, listed: IndexBuilder, durability: Durability) {
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

fn saved(state: &State, entry: &CheckpointEntry) -> Result<Saved> {
    let generations = state.apps().get(&entry.app).map(|app| app.checkpoints.of_step(entry.step));
    let found = generations.into_iter().flatten().find(|known| known.manifest == entry.manifest);
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
