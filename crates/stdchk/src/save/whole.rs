//! A checkpoint that one process saves.

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stdchk_catalog::{CheckpointEntry, Durability, Op, Saving, SessionKind};
use stdchk_engine::{FinishedPart, PartWriter, Session};
use stdchk_object::manifest::Manifest;
use stdchk_object::{AppName, CheckpointId, Error, Result};

use super::{SaveOptions, Saved, add_paths, saved};
use crate::host;
use crate::memory::Memory;
use crate::repository::Repository;

/// How long a save waits that is to be drained; the checkpoint is there before.
const DRAIN_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// A checkpoint that is being saved by this process. Dropped without a commit, it leaves nothing.
pub struct Save<'a> {
    repository: &'a Repository,
    session: Session,
    options: SaveOptions,
    /// What it is to survive when the commit returns.
    level: Durability,
    app: AppName,
    step: u64,
    parent: Option<CheckpointEntry>,
    part: PartWriter,
    begun: Instant,
    /// From its beginning to its end.
    span: tracing::Span,
}

impl Repository {
    /// Begins to save a checkpoint.
    pub fn save(&self, app: &AppName, step: u64, options: SaveOptions) -> Result<Save<'_>> {
        let begun = Instant::now();
        let level = options.durability;
        let options = SaveOptions { durability: self.level(level)?, ..options };
        options.engine(&Saving::default(), 0.0).check()?;
        let kind = SessionKind::Writer { app: app.clone(), step, parts: None };
        let session = Session::open(self.catalog.clone(), kind, &self.owner(false))?;
        let parent = self.choose_parent(session.state(), app, &options.parent)?;
        let part = self.part_writer(session.id(), session.state(), app, &options, parent.as_ref())?;
        let span = tracing::debug_span!("save", %app, step, session = %session.id());
        Ok(Save {
            repository: self,
            session,
            options,
            level,
            app: app.clone(),
            step,
            parent,
            part,
            begun,
            span,
        })
    }
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

    /// Adds bytes in memory as the member `name`. What has not changed of them is looked at where it lies, and never copied.
    pub fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.part.add_memory(name, bytes)
    }

    /// Adds memory as the member `name`. What was not written to since it was saved as, or restored from, what is the parent now is not even looked at.
    pub fn add_memory(&mut self, name: &str, memory: &mut Memory) -> Result<()> {
        memory.add_to(&mut self.part, name)
    }

    /// Gives the checkpoint up, and removes what was written of it.
    pub fn abort(self) {
        self.part.abandon();
    }

    /// Makes the checkpoint exist, at once and whole.
    pub fn commit(self) -> Result<Saved> {
        let Save { repository, session, options, level, app, step, parent, part, begun, span } = self;
        let _span = span.entered();
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
        let durable = options.is_durable();
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
            took_ms: begun.elapsed().as_millis() as u64,
            ..repository.new_entry(&app, step, &manifest, at, options.durability)
        };
        let id = session.id();
        let committed = session.end_with(durable, &mut |state| {
            let names = part.references.iter().map(|reference| reference.pack.name);
            Ok(vec![Op::Commit(id, Box::new(entry.clone()), state.to_revive(names))])
        })?;
        repository.list_in_index(listed, options.durability);
        let mut saved = saved(&committed, &entry)?;
        if level == Durability::Drained {
            repository.wait_for(&saved.id, level, DRAIN_PATIENCE)?;
            saved.entry.durability = level;
        }
        Ok(saved)
    }
}
