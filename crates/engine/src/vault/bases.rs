//! What deltas were subtracted from: chunks of other packs, always stored whole themselves.

use std::sync::Arc;

use stdchk_object::pack::{BaseSpan, ChunkKind, Run};
use stdchk_object::{Error, PackName, Result};

use super::{OpenPack, Scratch, Vault};

/// Chunks of one run that lie side by side; or zeros.
struct Piece {
    at: Option<(Arc<OpenPack>, usize, u32, u32)>,
    bytes: usize,
}

impl Vault {
    /// The bytes of these chunks, verified, and zeros where there are none. Each span comes with the bytes that it must have.
    pub fn base_bytes(
        &self,
        spans: impl Iterator<Item = (BaseSpan, usize)>,
        scratch: &mut Scratch,
    ) -> Result<Vec<u8>> {
        let misfit = || Error::corrupt("a delta and what it was subtracted from do not fit");
        let pieces = self.plan_base(spans)?.ok_or_else(misfit)?;
        self.fetch_base(&pieces, scratch)
    }

    /// What a delta was subtracted from.
    pub fn base(&self, open: &OpenPack, run: &Run) -> Result<Vec<u8>> {
        self.base_bytes(spans_of(open, run), &mut Scratch::default())
    }

    /// What a run was subtracted from. Nothing where that does not fit, which is the run's own fault; an error where it cannot be read.
    pub(super) fn base_of_run(
        &self,
        open: &OpenPack,
        run: &Run,
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<u8>>> {
        let pieces = self.plan_base(spans_of(open, run))?;
        pieces.map(|pieces| self.fetch_base(&pieces, scratch)).transpose()
    }

    fn plan_base(&self, spans: impl Iterator<Item = (BaseSpan, usize)>) -> Result<Option<Vec<Piece>>> {
        let mut pieces = Vec::new();
        for (span, mut left) in spans {
            let Some((pack, first)) = span.at else {
                pieces.push(Piece { at: None, bytes: left });
                continue;
            };
            let (mut chunk, end) = (first, first + span.count);
            while chunk < end {
                let (open, from, near) = self.resolve_pack(&pack, chunk)?;
                let Some(index) = open.footer.run_index(from) else { return Ok(None) };
                let run = &open.footer.runs()[index];
                let to = run.end_chunk().min(from.saturating_add(near.min(end - chunk)));
                let bytes = run.chunk_start(to - 1) + run.chunk_len(to - 1) - run.chunk_start(from);
                // A base is whole: what it was made from would have to be kept, too, and so on.
                if run.kind != ChunkKind::Data || run.coding.delta || bytes as usize > left {
                    return Ok(None);
                }
                left -= bytes as usize;
                chunk += to - from;
                pieces.push(Piece { at: Some((open, index, from, to)), bytes: bytes as usize });
            }
            if left > 0 {
                return Ok(None);
            }
        }
        Ok(Some(pieces))
    }

    fn fetch_base(&self, pieces: &[Piece], scratch: &mut Scratch) -> Result<Vec<u8>> {
        let mut base = vec![0; pieces.iter().map(|piece| piece.bytes).sum()];
        let mut rest = &mut base[..];
        for piece in pieces {
            let (target, others) = std::mem::take(&mut rest).split_at_mut(piece.bytes);
            rest = others;
            let Some((open, index, from, to)) = &piece.at else { continue };
            let run = &open.footer.runs()[*index];
            if run.coding.is_none() {
                self.read_plain(open, run, *from, *to, target)?;
            } else {
                let start = run.chunk_start(*from) as usize;
                target.copy_from_slice(&self.run(open, *index, scratch)?[start..start + piece.bytes]);
            }
        }
        Ok(base)
    }

    /// Calls `each` for all chunks that a run was subtracted from, where they lie now: pack, first chunk, one past the last. None
    /// of its own chunks can be brought back without all of them.
    pub fn bases_of_run(
        &self,
        open: &OpenPack,
        run: &Run,
        mut each: impl FnMut(PackName, u32, u32),
    ) -> Result<()> {
        for span in open.footer.base_of(run) {
            let Some((pack, first)) = span.at else { continue };
            let (mut chunk, end) = (first, first + span.count);
            while chunk < end {
                let (open, from, near) = self.resolve_pack(&pack, chunk)?;
                let count = near.clamp(1, end - chunk);
                each(open.pack.name, from, from.saturating_add(count));
                chunk += count;
            }
        }
        Ok(())
    }

    /// What is known of a delta's base; of any other run nothing speaks against it.
    pub fn base_state(&self, open: &OpenPack, run: &Run) -> BaseState {
        let mut sound = true;
        let look = |pack: PackName, from, to| sound &= !self.any_damaged(pack, from, to);
        if self.bases_of_run(open, run, look).is_err() || !sound {
            return BaseState::Damaged;
        }
        let forwards = self.state.forwards();
        let moved = open
            .footer
            .base_of(run)
            .filter_map(|span| span.at)
            .any(|(pack, _)| forwards.contains_key(&pack.name));
        if moved { BaseState::Moved } else { BaseState::Sound }
    }
}

/// What is known of what a run was subtracted from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BaseState {
    /// It is where it was, and not known to be damaged.
    Sound,
    /// Compaction moved it. Who refers to the run cannot refer to its base by the name that the run knows: it must not be shared.
    Moved,
    /// It is damaged, or cannot be found.
    Damaged,
}

/// The spans of a run's base, each with the bytes that it must have.
fn spans_of<'o>(open: &'o OpenPack, run: &'o Run) -> impl Iterator<Item = (BaseSpan, usize)> + 'o {
    let mut chunk = run.first_chunk;
    open.footer.base_of(run).map(move |span| {
        let bytes = (chunk..chunk + span.count).map(|chunk| run.chunk_len(chunk) as usize).sum();
        chunk += span.count;
        (span, bytes)
    })
}
