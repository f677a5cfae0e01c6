//! Reading: choosing a whole checkpoint, listing, restoring, single members, differences.

mod restore;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use stdchk_catalog::{CheckpointEntry, Op, State};
use stdchk_engine::{DiffRange, Reader, Roots, Sink, Stretch, View, diff_blobs};
use stdchk_object::error::Context;
use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Content, Member};
use stdchk_object::tree::Piece;
use stdchk_object::{CheckpointId, Error, Kind, Result};
use stdchk_upkeep::{Health, VerifyReport, check_quick, verify};

use crate::naming::Spec;
use crate::repository::{Reading, Repository};

/// Zeros written at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A member with its part's rank.
#[derive(Clone, Debug)]
pub struct RankedMember {
    /// The rank of its part.
    pub rank: u32,
    /// The member.
    pub member: Member,
    roots: Arc<Roots>,
}

/// A checkpoint that can be read.
pub struct Checkpoint<'a> {
    repository: &'a Repository,
    reading: &'a Reading,
    /// Its entry in the catalog.
    pub entry: CheckpointEntry,
    /// What joins its parts.
    pub manifest: Manifest,
    /// Its members, by rank and path.
    pub members: Vec<RankedMember>,
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
        let (manifest, members) = opened.map_err(|error| {
            self.record_damage(reading);
            error.within(format!("checkpoint {} cannot be read", entry.id()))
        })?;
        Ok(Checkpoint { repository: self, reading, entry: entry.clone(), manifest, members })
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

impl Checkpoint<'_> {
    /// The member of that path; with several ranks, `rank` says whose.
    pub fn member(&self, path: &str, rank: Option<u32>) -> Result<&RankedMember> {
        let mut found =
            self.members.iter().filter(|m| m.member.path == path && rank.is_none_or(|rank| m.rank == rank));
        match (found.next(), found.next()) {
            (Some(member), None) => Ok(member),
            (None, _) => Err(Error::new(
                Kind::NotFound,
                format!("checkpoint {} has no member {path:?}", self.entry.id()),
            )),
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("several ranks have a member {path:?}: say which with --rank")))
            }
        }
    }

    fn content<'m>(&self, member: &'m RankedMember) -> Result<&'m Content> {
        member.member.body.content().ok_or_else(|| {
            let name = member.member.body.type_name();
            Error::invalid(format!("{:?} is a {name}, which has no bytes", member.member.path))
        })
    }

    /// Brings a member's bytes into a sink.
    pub fn read_into(
        &self,
        member: &RankedMember,
        sink: &Arc<dyn Sink>,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        self.with_reader(member, |reader| reader.restore(sink, progress))
    }

    /// Reads a member; what is found damaged is recorded.
    fn with_reader(&self, member: &RankedMember, read: impl FnOnce(Reader) -> Result<()>) -> Result<()> {
        let blob = &self.content(member)?.blob;
        let (vault, repository) = (&self.reading.vault, self.repository);
        let (workers, memory) = (&repository.workers, repository.memory);
        read(Reader { vault, roots: &member.roots, blob, workers, memory }).map_err(|error| {
            self.repository.record_damage(self.reading);
            error.within(format!("{:?} of checkpoint {} cannot be read", member.member.path, self.entry.id()))
        })
    }

    /// Writes a member's bytes to a stream, in order.
    pub fn write_to(&self, member: &RankedMember, out: &mut dyn Write, progress: &dyn Fn(u64)) -> Result<()> {
        let mut write = |bytes: &[u8]| {
            out.write_all(bytes).context(|| "cannot write to the output".to_owned())?;
            progress(bytes.len() as u64);
            Ok(())
        };
        self.read_stretches(member, &mut |stretch| match stretch {
            Stretch::Data(bytes) => write(bytes),
            Stretch::Zeros(mut len) => {
                while len > 0 {
                    let some = len.min(ZEROS.len() as u64);
                    write(&ZEROS[..some as usize])?;
                    len -= some;
                }
                Ok(())
            }
        })
    }

    /// Calls `each` with a member's bytes, in order and in stretches that are short except where they are zeros.
    pub fn read_stretches(
        &self,
        member: &RankedMember,
        each: &mut dyn FnMut(Stretch) -> Result<()>,
    ) -> Result<()> {
        // What the caller fails at says nothing about the member.
        let mut failed = None;
        let read = self.with_reader(member, |reader| {
            reader.stream(&mut |stretch| {
                each(stretch).map_err(|error| {
                    failed = Some(error);
                    Error::invalid("the caller wants no more")
                })
            })
        });
        failed.map_or(read, Err)
    }

    /// The codings of the runs in which a member's bytes are stored, most frequent first.
    pub fn codecs(&self, member: &RankedMember) -> Result<Vec<String>> {
        let content = self.content(member)?;
        let vault = &self.reading.vault;
        let mut bytes: BTreeMap<_, u64> = BTreeMap::new();
        let mut met = HashSet::new();
        vault.visit_nodes(&member.roots, &content.blob, &mut |node, leaf| {
            if let Some(node) = node {
                return Ok(met.insert(node));
            }
            for piece in leaf.iter().flat_map(|leaf| &leaf.pieces) {
                let Piece::Data(extent) = piece else { continue };
                vault.spans(&member.roots, extent, |span| {
                    *bytes.entry(span.open.footer.runs()[span.run].coding).or_default() += span.len;
                    Ok(())
                })?;
            }
            Ok(true)
        })?;
        let mut by_size: Vec<_> = bytes.into_iter().collect();
        by_size.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        Ok(by_size.into_iter().map(|(coding, _)| coding.to_string()).collect())
    }

    /// The ranges in which a member differs from another checkpoint's, without reading the data of either.
    pub fn diff(&self, ours: &RankedMember, theirs: &RankedMember) -> Result<Vec<DiffRange>> {
        let (a, b) = (self.content(ours)?, self.content(theirs)?);
        diff_blobs(&self.reading.vault, (&ours.roots, &a.blob), (&theirs.roots, &b.blob))
    }
}
