//! Members that can be read: those of a checkpoint, or files that have names.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use stdchk_engine::{DiffRange, Reader, Roots, Sink, Stretch, diff_blobs};
use stdchk_object::error::Context;
use stdchk_object::member::{Content, Member};
use stdchk_object::tree::Piece;
use stdchk_object::{Error, Kind, Result};

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
    pub(super) roots: Arc<Roots>,
}

/// Members that can be read.
pub struct Members<'a> {
    pub(super) repository: &'a Repository,
    reading: &'a Reading,
    /// What they are members of, in words.
    pub(super) of: String,
    /// All of them, by rank and path.
    pub members: Vec<RankedMember>,
}

impl<'a> Members<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        reading: &'a Reading,
        of: String,
        members: Vec<RankedMember>,
    ) -> Members<'a> {
        Members { repository, reading, of, members }
    }
}

impl Members<'_> {
    /// The member of that path; with several ranks, `rank` says whose.
    pub fn member(&self, path: &str, rank: Option<u32>) -> Result<&RankedMember> {
        let mut found =
            self.members.iter().filter(|m| m.member.path == path && rank.is_none_or(|rank| m.rank == rank));
        match (found.next(), found.next()) {
            (Some(member), None) => Ok(member),
            (None, _) => Err(Error::new(Kind::NotFound, format!("{} has no member {path:?}", self.of))),
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("several ranks have a member {path:?}: say which with --rank")))
            }
        }
    }

    pub(crate) fn content<'m>(&self, member: &'m RankedMember) -> Result<&'m Content> {
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
            error.within(format!("{:?} of {} cannot be read", member.member.path, self.of))
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

    /// The ranges in which a member differs from another one, without reading the data of either.
    pub fn diff(&self, ours: &RankedMember, theirs: &RankedMember) -> Result<Vec<DiffRange>> {
        let (a, b) = (self.content(ours)?, self.content(theirs)?);
        diff_blobs(&self.reading.vault, (&ours.roots, &a.blob), (&theirs.roots, &b.blob))
    }
}
