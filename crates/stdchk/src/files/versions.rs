//! The versions of a file, and what is known of each.

use std::sync::Arc;

use stdchk_catalog::tree::Version;
use stdchk_catalog::{CheckpointEntry, State};
use stdchk_object::Hash;

use super::fault::{Fault, Outcome};
use super::opened::Opened;
use super::{Files, newest};

impl Files {
    /// What is known of the versions of a file, the newest last. Their places in commit order tell them apart.
    pub fn versions(&self, number: u64) -> Outcome<Vec<CheckpointEntry>> {
        self.gather_if(number)?;
        let state = self.state()?;
        let versions = versions_of(&state, number)?;
        Ok(versions.iter().filter_map(|version| state.checkpoint(&version.id()).cloned()).collect())
    }

    /// What is known of a version, by its place in commit order.
    pub fn version(&self, number: u64, sequence: u64) -> Outcome<CheckpointEntry> {
        let state = self.state()?;
        let (_, entry) = version_at(&state, number, sequence)?;
        Ok(entry.clone())
    }

    /// What the bytes of the newest version of a file are: files of the same hash have the same bytes.
    pub fn hash(&self, number: u64) -> Outcome<Hash> {
        self.gather_if(number)?;
        let state = self.state()?;
        let named = state.tree().get(number).ok_or(Fault::Missing)?;
        let version = newest(&state, &named.node).ok_or(Fault::Missing)?;
        Ok(self.open_version(&state, version)?.hash()?)
    }

    /// Opens a version by its place in commit order.
    pub fn open_version_to_read(&self, number: u64, sequence: u64) -> Outcome<Arc<Opened>> {
        let state = self.state()?;
        let (version, _) = version_at(&state, number, sequence)?;
        Ok(self.open_version(&state, version)?)
    }
}

fn version_at(state: &State, number: u64, sequence: u64) -> Outcome<(Version, &CheckpointEntry)> {
    let versions = versions_of(state, number)?.iter();
    let mut known = versions.filter_map(|version| Some((*version, state.checkpoint(&version.id())?)));
    known.find(|(_, entry)| entry.sequence == sequence).ok_or(Fault::Missing)
}

fn versions_of(state: &State, number: u64) -> Outcome<&[Version]> {
    let named = state.tree().get(number).ok_or(Fault::Missing)?;
    Ok(named.node.versions())
}
