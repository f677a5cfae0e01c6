//! Files of one step as one checkpoint: those that are named `A.Ni.Tj` (application, node, step) in one directory. A step is complete when as many nodes
//! have closed their files as the directory says, or when somebody says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use stdchk_catalog::tree::{Named, Node};
use stdchk_catalog::{CheckpointEntry, Op, SessionKind, State};
use stdchk_engine::session::Session;
use stdchk_object::AppName;

use super::due::is_damage;
use super::fault::{Fault, Outcome};
use super::opened::Opened;
use super::{Files, locked, manifest, newest};
use crate::naming::{Conventional, by_convention};

/// The note of a directory that says how many nodes write a step.
pub const NODES: &str = "user.stdchk.nodes";
/// The name in a directory that, made, says that its steps are complete.
pub const COMPLETE: &str = ".complete";

/// An application and a step of it.
type Step = (AppName, u64);

/// What the note of a directory says.
pub fn parse_nodes(value: &[u8]) -> Outcome<u32> {
    let count = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
    count.filter(|&count| count > 0).ok_or(Fault::Invalid)
}

/// A file of a step, with the place in commit order of its newest version.
struct StepFile<'s> {
    named: &'s Named,
    rank: u32,
    sequence: u64,
}

/// Does something with each, also with those behind one that is damaged; tells the first failure. Any other would be that of all.
fn with_each<T>(all: impl IntoIterator<Item = T>, mut act: impl FnMut(T) -> Outcome<()>) -> Outcome<()> {
    let mut done = Ok(());
    for one in all {
        match act(one) {
            Err(fault) if is_damage(&fault) => done = done.and(Err(fault)),
            other => other?,
        }
    }
    done
}

/// Why a step is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// All nodes have closed their files.
    AllClosed,
    /// Somebody says so, of the files that are there.
    Said,
}

/// The files of each step in a directory that were closed after that step was complete the last time.
fn open_steps(state: &State, directory: u64, why: Why) -> BTreeMap<Step, Vec<StepFile<'_>>> {
    let mut steps: BTreeMap<Step, Vec<StepFile>> = BTreeMap::new();
    for named in state.tree().list(directory, "") {
        let Ok(Conventional { app, rank, step }) = by_convention(&named.name) else { continue };
        let version = newest(state, &named.node).and_then(|version| state.checkpoint(&version.id()));
        let Some(version) = version else { continue };
        if version.sequence > last_complete(state, &app, step, why) {
            steps.entry((app, step)).or_default().push(StepFile { named, rank, sequence: version.sequence });
        }
    }
    steps
}

/// The place in commit order of the newest checkpoint of a step, also of one that was dropped, unless somebody says that what is there of it counts.
fn last_complete(state: &State, app: &AppName, step: u64, why: Why) -> u64 {
    let Some(app) = state.apps().get(app) else { return 0 };
    let known = app.checkpoints.of_step(step).last().map(|entry| entry.sequence);
    let dropped = app.dropped.since(step).filter(|_| why == Why::AllClosed);
    known.max(dropped).unwrap_or(0)
}

/// How many nodes write a step, as the nearest directory above says.
fn nodes_declared(state: &State, directory: u64) -> Option<u32> {
    parse_nodes(state.tree().nodes_above(directory).find_map(note_of_nodes)?).ok()
}

fn note_of_nodes(node: &Node) -> Option<&[u8]> {
    node.notes.iter().find(|(name, _)| name == NODES).map(|(_, value)| &value[..])
}

impl Files {
    /// Makes a checkpoint of the step that a file belongs to, if that is complete now.
    pub(super) fn complete_if_last(&self, state: &State, number: u64) -> Outcome<()> {
        let Some(named) = state.tree().get(number) else { return Ok(()) };
        let Ok(Conventional { app, step, .. }) = by_convention(&named.name) else { return Ok(()) };
        self.complete_where(state, named.parent, |closed| *closed == (app.clone(), step))
    }

    /// The same; if that fails, it is done later.
    pub(super) fn complete_if_last_or_later(&self, state: &State, number: u64) {
        if let Err(fault) = self.complete_if_last(state, number) {
            tracing::error!("a step is not complete yet: {}", fault.into_error());
            self.look_for_steps();
        }
    }

    /// Has steps looked for that should be complete.
    pub(super) fn look_for_steps(&self) {
        locked(&self.steps_due).look();
    }

    /// Has steps looked for that should be complete, if a mount is gone that was there before. The first one does it for all.
    pub(super) fn watch_mounts(&self, state: &State, is_first: bool) {
        let mut due = locked(&self.steps_due);
        if due.have_gone(state.mounts().collect()) && is_first {
            due.look();
        }
    }

    /// Makes a checkpoint of each step that should be complete and is none yet, if there may be one.
    pub(super) fn complete_what_is_due(&self) {
        let Some(turn) = locked(&self.steps_due).take(Instant::now()) else { return };
        let done = self.complete_what_is_left();
        let is_damage = done.as_ref().err().map(is_damage);
        if let Err(fault) = done {
            tracing::error!("not all steps are complete yet: {}", fault.into_error());
        }
        locked(&self.steps_due).done(turn, is_damage, Instant::now());
    }

    /// Looks for such steps everywhere.
    fn complete_what_is_left(&self) -> Outcome<()> {
        let state = self.newest_state()?;
        let nodes = state.tree().names().map(|named| &named.node).chain(state.tree().root());
        if !nodes.into_iter().any(|node| note_of_nodes(node).is_some()) {
            return Ok(());
        }
        let is_of_step = |named: &&Named| by_convention(&named.name).is_ok();
        let directories: BTreeSet<u64> =
            state.tree().names().filter(is_of_step).map(|named| named.parent).collect();
        with_each(directories, |directory| self.complete_where(&state, directory, |_| true))
    }

    /// Of a directory, and of those of its steps that are meant.
    fn complete_where(&self, state: &State, directory: u64, is_meant: impl Fn(&Step) -> bool) -> Outcome<()> {
        let Some(nodes) = nodes_declared(state, directory) else { return Ok(()) };
        with_each(open_steps(state, directory, Why::AllClosed), |(step, files)| {
            let ranks: BTreeSet<u32> = files.iter().map(|file| file.rank).collect();
            let is_complete = is_meant(&step) && ranks.len() as u32 >= nodes;
            if is_complete { self.complete(directory, &step, Why::AllClosed) } else { Ok(()) }
        })
    }

    /// Makes a checkpoint of each step of a directory that is not complete yet, of the files that are there.
    pub fn complete_all(&self, directory: u64) -> Outcome<()> {
        self.check_writable()?;
        self.gather()?;
        let state = self.repository.state()?;
        let steps = open_steps(&state, directory, Why::Said);
        with_each(steps.keys(), |step| self.complete(directory, step, Why::Said))
    }

    /// Makes a checkpoint of the files of a step that were closed since it was complete the last time. No data is written, only a list.
    fn complete(&self, directory: u64, (app, step): &Step, why: Why) -> Outcome<()> {
        let kind = SessionKind::Writer { app: app.clone(), step: *step, parts: None };
        let session =
            Arc::new(Session::open(self.repository.catalog.clone(), kind, &self.repository.owner(false))?);
        let state = session.state().clone();
        let all = open_steps(&state, directory, why);
        let Some(files) = all.get(&(app.clone(), *step)) else { return Ok(()) };
        let vault = self.vault_of(state.clone());
        let mut part = self.repository.part_writer_after(session.id(), &state, app, &self.save, |_| None)?;
        for StepFile { named, .. } in files {
            let version = newest(&state, &named.node).expect("only such are listed");
            let opened = Opened::version(vault.clone(), session.clone(), &state, version)?;
            let (mode, time) = (named.node.mode, named.node.modified_ns);
            part.add_content_of(&named.name, &opened.content, &opened.part, mode, time)?;
        }
        let manifest = manifest(app.clone(), *step);
        let finished = part.finish(Some(manifest.clone()))?;
        if self.save.is_durable() {
            self.repository.raise(None, &finished)?;
        }
        let at = finished.manifest.expect("a manifest was given");
        let new = self.repository.new_entry(app, *step, &manifest, at, self.save.durability);
        let head = &finished.part;
        let entry = CheckpointEntry {
            member_count: head.member_count,
            bytes: head.bytes,
            tally: head.tally.into(),
            written: finished.written,
            ..new
        };
        let (id, newest_file) = (session.id(), files.iter().map(|file| file.sequence).max().unwrap_or(0));
        let state = self.repository.catalog.append(self.save.is_durable(), &mut |state| {
            // Another mount may have seen the last file, too, and was faster.
            if last_complete(state, app, *step, why) > newest_file {
                return Ok(Vec::new());
            }
            let packs = head.references.iter().map(|reference| reference.pack.name);
            Ok(vec![Op::Commit(id, Box::new(entry.clone()), state.to_revive(packs))])
        })?;
        self.learn(&state);
        Ok(())
    }
}
