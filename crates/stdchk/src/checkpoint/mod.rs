//! Reading: choosing a whole checkpoint, listing, restoring, single members, differences; and the same for files that have names.

mod members;
mod named;
mod restore;

use std::collections::BTreeMap;
use std::ops::Deref;

use stdchk_catalog::{CheckpointEntry, Op, State};
use stdchk_engine::View;
use stdchk_object::manifest::Manifest;
use stdchk_object::{CheckpointId, Result};
use stdchk_upkeep::{Health, VerifyReport, check_quick, verify};

use crate::naming::Spec;
use crate::repository::{Reading, Repository};

pub use members::{Members, RankedMember};
pub use named::{FileSpec, NamedFile};

/// A checkpoint that can be read: its members, and what is known of it.
pub struct Checkpoint<'a> {
    /// Its entry in the catalog.
    pub entry: CheckpointEntry,
    /// What joins its parts.
    pub manifest: Manifest,
    members: Members<'a>,
}

impl<'a> Deref for Checkpoint<'a> {
    type Target = Members<'a>;

    fn deref(&self) -> &Members<'a> {
        &self.members
    }
}

/// Why a checkpoint was passed over.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Which.
    pub id: CheckpointId,
    /// What is wrong with it.
    pub problem: String,
}

/// How closely to look before a checkpoint is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Manifests, member lists, presence and footers of all packs, and damage that is on record.
    Quick,
    /// Every byte.
    Deep,
}

impl Repository {
    /// The newest checkpoint that `spec` means and that is whole, and those newer ones that are not.
    pub fn newest_whole(
        &self,
        reading: &Reading,
        spec: &Spec,
        look: Look,
    ) -> Result<(Option<CheckpointEntry>, Vec<Passed>)> {
        self.newest_whole_but(reading, spec, look, &[])
    }

    /// The same, leaving out checkpoints that were found to be hurt by other means.
    pub fn newest_whole_but(
        &self,
        reading: &Reading,
        spec: &Spec,
        look: Look,
        except: &[CheckpointId],
    ) -> Result<(Option<CheckpointEntry>, Vec<Passed>)> {
        let mut passed = Vec::new();
        for entry in spec.find(&reading.state)?.into_iter().filter(|entry| !except.contains(&entry.id())) {
            match self.health(reading, entry, look)? {
                Health::Whole => return Ok((Some(entry.clone()), passed)),
                hurt => passed.push(Passed { id: entry.id(), problem: hurt.describe() }),
            }
        }
        Ok((None, passed))
    }

    fn health(&self, reading: &Reading, entry: &CheckpointEntry, look: Look) -> Result<Health> {
        let quick = check_quick(&reading.vault, entry)?;
        // What was never synced may have died with the machine that held it.
        if !quick.is_whole() || (look == Look::Quick && !self.is_doubtful(entry)) {
            return Ok(quick);
        }
        let id = entry.id();
        let report = self.verify(reading, Some(&|entry| entry.id() == id), &|_, _| {})?;
        Ok(report.checkpoints.into_iter().next().map_or(Health::Whole, |report| report.health))
    }

    /// Reads and checks the checkpoints that `wanted` chooses, or everything.
    pub fn verify(
        &self,
        reading: &Reading,
        wanted: Option<&dyn Fn(&CheckpointEntry) -> bool>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<VerifyReport> {
        verify(&self.ground(), &reading.state, wanted, true, progress)
    }

    /// Opens a checkpoint.
    pub fn checkpoint<'a>(&'a self, reading: &'a Reading, entry: &CheckpointEntry) -> Result<Checkpoint<'a>> {
        let opened = View::open(&reading.vault, &entry.manifest).and_then(|view| {
            let mut members = Vec::new();
            for part in &view.parts {
                let (rank, roots) = (part.part.rank, part.roots.clone());
                let of_part = part.members(&reading.vault)?.into_iter();
                members.extend(of_part.map(|member| RankedMember { rank, member, roots: roots.clone() }));
            }
            members.sort_by(|a, b| (a.rank, &a.member.path).cmp(&(b.rank, &b.member.path)));
            Ok((view.manifest, members))
        });
        let of = format!("checkpoint {}", entry.id());
        let (manifest, members) = opened.map_err(|error| {
            self.record_damage(reading);
            error.within(format!("{of} cannot be read"))
        })?;
        Ok(Checkpoint { entry: entry.clone(), manifest, members: Members::new(self, reading, of, members) })
    }

    /// Records damage that a reader met, so that the next one knows.
    pub fn record_damage(&self, reading: &Reading) {
        let found = reading.vault.take_damaged();
        if found.is_empty() {
            return;
        }
        let mut by_pack: BTreeMap<_, Vec<(u32, u32)>> = BTreeMap::new();
        found.into_iter().for_each(|(pack, range)| by_pack.entry(pack).or_default().push(range));
        let record = |state: &State| {
            let is_new = |(pack, ranges): &(&_, &Vec<_>)| {
                let known = state.damaged().get(pack);
                !ranges
                    .iter()
                    .all(|&(from, to)| known.is_some_and(|k| k.iter().any(|&(a, b)| a <= from && to <= b)))
            };
            let new = by_pack.iter().filter(is_new);
            Ok(new.map(|(pack, ranges)| Op::Damage(*pack, ranges.clone())).collect())
        };
        if let Err(error) = self.catalog.append(true, &mut { record }) {
            tracing::warn!("the damage cannot be recorded: {error}");
        }
    }
}
