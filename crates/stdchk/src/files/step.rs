//! Looking into the steps that are complete: those of the applications whose files a directory has, and of the one that is named like it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stdchk_catalog::tree::ROOT;
use stdchk_catalog::{CheckpointEntry, State};
use stdchk_engine::{PartView, View};
use stdchk_object::member::{Body, Member};
use stdchk_object::{AppName, CheckpointId};

use super::fault::{Fault, Outcome};
use super::opened::Opened;
use super::{Files, locked};
use crate::naming::by_convention;

/// Steps whose lists of members are kept.
const STEPS: usize = 16;

/// What is known of a path in a step.
pub enum Inside {
    /// Paths lie below it.
    Directory,
    /// A link, and where it leads.
    Link(String),
    /// Bytes: how many, permissions, when they changed last in nanoseconds since 1970.
    File(u64, u32, i64),
}

/// The members of the checkpoints of one step, by path.
pub struct Step {
    members: BTreeMap<String, (Member, usize)>,
    parts: Vec<(Arc<PartView>, CheckpointEntry)>,
}

/// A path with something behind it, which begins all that lies below.
fn below(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}/") }
}

impl Step {
    /// What there is at a path; the empty one is the step itself.
    pub fn find(&self, path: &str) -> Option<Inside> {
        match self.members.get(path).map(|(member, _)| member) {
            Some(Member { body: Body::Link(target), .. }) => Some(Inside::Link(target.clone())),
            Some(Member { body: Body::Dir, .. }) => Some(Inside::Directory),
            Some(member) => Some(Inside::File(member.bytes(), member.mode, member.mtime_ns)),
            None => {
                let prefix = below(path);
                let is_below = self
                    .members
                    .range(prefix.clone()..)
                    .next()
                    .is_some_and(|(path, _)| path.starts_with(&prefix));
                (path.is_empty() || is_below).then_some(Inside::Directory)
            }
        }
    }

    /// The names right below a path.
    pub fn list(&self, path: &str) -> BTreeSet<String> {
        let prefix = below(path);
        let all = self.members.range(prefix.clone()..).map(|(path, _)| path);
        let below = all.take_while(|path| path.starts_with(&prefix)).map(|path| &path[prefix.len()..]);
        below
            .filter_map(|rest| rest.split('/').next())
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }
}

/// The applications that a directory is about, if it belongs to whoever mounted it: who may make a directory may not read what others saved.
fn apps(state: &State, directory: u64) -> BTreeSet<AppName> {
    let owner = state.tree().get(directory).map(|named| named.node.user);
    if owner.is_some_and(|owner| owner != rustix::process::getuid().as_raw()) {
        return BTreeSet::new();
    }
    let of_files =
        state.tree().list(directory, "").filter_map(|named| Some(by_convention(&named.name).ok()?.app));
    let own = state.tree().get(directory).filter(|_| directory != ROOT);
    let own = own.and_then(|named| AppName::new(&named.name).ok());
    of_files.chain(own).filter(|app| state.apps().contains_key(app)).collect()
}

/// The newest checkpoint of a step of each application.
fn of_step(state: &State, directory: u64, step: u64) -> Vec<CheckpointEntry> {
    let newest = |app: AppName| state.apps().get(&app)?.checkpoints.of_step(step).last().cloned();
    apps(state, directory).into_iter().filter_map(newest).collect()
}

impl Files {
    /// The steps that are complete of what a directory is about.
    pub fn steps(&self, directory: u64) -> Outcome<BTreeSet<u64>> {
        let state = self.state()?;
        let apps = apps(&state, directory);
        let all =
            apps.iter().filter_map(|app| state.apps().get(app)).flat_map(|app| app.checkpoints.values());
        Ok(all.map(|entry| entry.step).collect())
    }

    /// When a step was complete, in nanoseconds since 1970.
    pub fn step_time(&self, directory: u64, step: u64) -> Outcome<i64> {
        let all = of_step(&*self.state()?, directory, step);
        all.iter().map(|entry| entry.created_ns).max().ok_or(Fault::Missing)
    }

    /// A step that is complete.
    pub fn step(&self, directory: u64, step: u64) -> Outcome<Arc<Step>> {
        let entries = of_step(&*self.state()?, directory, step);
        if entries.is_empty() {
            return Err(Fault::Missing);
        }
        // One that was dropped may have had the same identity.
        let key: Vec<(CheckpointId, u64)> =
            entries.iter().map(|entry| (entry.id(), entry.sequence)).collect();
        let pin = self.pin()?;
        if let Some((_, step)) = locked(&self.steps).iter().find(|(known, _)| *known == key) {
            return Ok(step.clone());
        }
        let mut step = Step { members: BTreeMap::new(), parts: Vec::new() };
        for entry in entries {
            for part in View::open(&pin.vault, &entry.manifest)?.parts {
                for member in part.members(&pin.vault)? {
                    step.members.entry(member.path.clone()).or_insert((member, step.parts.len()));
                }
                step.parts.push((Arc::new(part), entry.clone()));
            }
        }
        let step = Arc::new(step);
        let mut steps = locked(&self.steps);
        if steps.len() >= STEPS {
            steps.remove(0);
        }
        steps.push((key, step.clone()));
        Ok(step)
    }

    /// Opens a file of a step.
    pub fn open_of_step(&self, step: &Step, path: &str) -> Outcome<Arc<Opened>> {
        let (member, part) = step.members.get(path).ok_or(Fault::Missing)?;
        let content = member.body.content().ok_or(Fault::IsDirectory)?.clone();
        let (part, entry) = &step.parts[*part];
        let pin = self.pin()?;
        Ok(Arc::new(Opened::of_step(pin.vault.clone(), pin, part.clone(), content, entry.clone())))
    }
}
