//! What the parent has where a stretch is: its chunks, as they were cut.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use stdchk_object::pack::ChunkKind;
use stdchk_object::tree::{Blob, Extent, Leaf, Piece};
use stdchk_object::{Hash, PackRef, Result};
use stdchk_tag::Tag;

use super::unit::Held;
use crate::vault::{BaseState, LeafAt, OpenPack, Roots, Vault};

/// The parent of a member, as far as a stretch of it is concerned.
pub struct Parent {
    pub roots: Arc<Roots>,
    pub blob: Blob,
    /// Its leaf at the very place of the stretch.
    pub leaf: Option<(LeafAt, u64)>,
    /// By how much what the parent has is expected further on in the new bytes, as far as that is known.
    pub shift: i64,
    /// Shifts that were in force before, and none.
    pub shifts: Vec<i64>,
}

/// A chunk of the parent.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Where it begins in the parent.
    pub at: u64,
    pub len: u32,
    /// Index into [`Theirs::opens`].
    pub slot: u32,
    /// The chunk in its pack.
    pub chunk: u32,
    pub hash: Hash,
    /// Whether it may be referred to, or only be subtracted.
    pub shared: bool,
    /// Its tag, where that is known.
    pub tag: Option<Tag>,
}

/// Chunks that the parent has in a range.
#[derive(Default)]
pub struct Theirs {
    pub opens: Vec<Arc<OpenPack>>,
    /// In the order of their places.
    pub chunks: Vec<Chunk>,
    /// The leaf that was read whole: hash, pack, chunk.
    pub node: Option<(Hash, PackRef, u32)>,
}

impl Parent {
    /// The chunks that lie in a range of the parent, `from_leaf` if that is the range of its leaf: whole and not known to be damaged.
    pub fn chunks(&self, vault: &Vault, from_leaf: bool, range: Range<u64>) -> Result<Theirs> {
        let mut gathered = Gathered { vault, theirs: Theirs::default(), states: HashMap::new(), begun: None };
        match &self.leaf {
            Some((at, len)) if from_leaf => {
                let leaf = vault.leaf(&self.roots, &self.blob, at, *len)?;
                gathered.leaf(&self.roots, range.start, &leaf)?;
                gathered.theirs.node = self.leaf_node(vault, at)?;
            }
            _ => vault.walk(&self.roots, &self.blob, range.clone(), &mut |start, at, len| {
                if at == LeafAt::Hole {
                    return Ok(());
                }
                let leaf = vault.leaf(&self.roots, &self.blob, &at, len)?;
                gathered.leaf(&self.roots, start, &leaf)
            })?,
        }
        let mut theirs = gathered.theirs;
        theirs.chunks.retain(|chunk| chunk.at >= range.start && chunk.at < range.end);
        Ok(theirs)
    }

    /// Where a leaf that was read lies, unless it is known to be damaged or is kept in the blob itself.
    fn leaf_node(&self, vault: &Vault, at: &LeafAt) -> Result<Option<(Hash, PackRef, u32)>> {
        let LeafAt::Node(node) = at else { return Ok(None) };
        let (open, chunk, _) = vault.resolve(&self.roots, node.pack, node.chunk)?;
        let hash = open.footer.hash(chunk).copied();
        Ok(hash.filter(|_| !vault.is_damaged(open.pack.name, chunk)).map(|hash| (hash, open.pack, chunk)))
    }
}

impl Theirs {
    /// The chunks that lie in what several hold, whole.
    pub fn of(vault: &Vault, all: &[Held]) -> Result<Theirs> {
        let mut theirs = Theirs::default();
        for Held { range, roots, blob } in all {
            let (roots, blob, shifts) = (roots.clone(), blob.clone(), Vec::new());
            let one =
                Parent { roots, blob, leaf: None, shift: 0, shifts }.chunks(vault, false, range.clone())?;
            let first = theirs.opens.len() as u32;
            theirs.opens.extend(one.opens);
            let is_whole = |chunk: &Chunk| chunk.at + u64::from(chunk.len) <= range.end;
            let whole = one.chunks.into_iter().filter(is_whole);
            theirs.chunks.extend(whole.map(|chunk| Chunk { slot: chunk.slot + first, ..chunk }));
        }
        Ok(theirs)
    }

    /// Takes in the tags of chunks, which are those of the blob where these lie.
    pub fn know(&mut self, tags: Vec<(u64, Tag)>) {
        let mut tags = tags.into_iter().peekable();
        for chunk in &mut self.chunks {
            while tags.next_if(|&(at, _)| at < chunk.at).is_some() {}
            chunk.tag = tags.next_if(|&(at, _)| at == chunk.at).map(|(_, tag)| tag);
        }
    }

    /// The bytes of a chunk, verified.
    pub fn bytes(&self, vault: &Vault, chunk: &Chunk) -> Result<Vec<u8>> {
        vault.chunk(&self.opens[chunk.slot as usize], chunk.chunk, ChunkKind::Data)
    }
}

struct Gathered<'v> {
    vault: &'v Vault,
    theirs: Theirs,
    states: HashMap<(u32, usize), BaseState>,
    /// The beginning of a chunk that goes on in the next leaf: where it begins, slot, chunk, bytes so far.
    begun: Option<(u64, u32, u32, u32)>,
}

impl Gathered<'_> {
    fn leaf(&mut self, roots: &Roots, start: u64, leaf: &Leaf) -> Result<()> {
        let mut at = start;
        for piece in &leaf.pieces {
            if let Piece::Data(extent) = piece {
                self.extent(roots, at, extent)?;
            }
            at += piece.bytes();
        }
        Ok(())
    }

    fn extent(&mut self, roots: &Roots, mut at: u64, extent: &Extent) -> Result<()> {
        let vault = self.vault;
        vault.spans(roots, extent, |span| {
            let run = span.run();
            let slot = self.slot(&span.open);
            let state = match run.coding.delta {
                false => BaseState::Sound,
                // Many spans may lie in one run.
                true => {
                    *self.states.entry((slot, span.run)).or_insert_with(|| vault.base_state(&span.open, run))
                }
            };
            let (mut skip, mut left) = (span.skip, span.len);
            for chunk in span.from..span.to {
                let len = run.chunk_len(chunk);
                let part = u64::from(len - skip).min(left) as u32;
                let begins = match self.begun.take() {
                    Some((begins, of, which, bytes))
                        if (of, which, bytes, begins + u64::from(bytes)) == (slot, chunk, skip, at) =>
                    {
                        Some(begins)
                    }
                    _ => (skip == 0).then_some(at),
                };
                if let Some(begins) = begins {
                    if skip + part < len {
                        self.begun = Some((begins, slot, chunk, skip + part));
                    } else if !vault.is_damaged(span.open.pack.name, chunk) && state != BaseState::Damaged {
                        let hash = span.open.footer.hashes()[chunk as usize];
                        let shared = state == BaseState::Sound;
                        let tag = None;
                        self.theirs.chunks.push(Chunk { at: begins, len, slot, chunk, hash, shared, tag });
                    }
                }
                at += u64::from(part);
                left -= u64::from(part);
                skip = 0;
            }
            Ok(())
        })
    }

    fn slot(&mut self, open: &Arc<OpenPack>) -> u32 {
        let opens = &mut self.theirs.opens;
        let known = opens.iter().rposition(|known| known.pack.name == open.pack.name);
        known.unwrap_or_else(|| {
            opens.push(open.clone());
            opens.len() - 1
        }) as u32
    }
}
