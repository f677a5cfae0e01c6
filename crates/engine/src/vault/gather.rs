//! Reading a leaf: chunks in the order in which they lie in packs, into their places, and checked together.
//!
//! A leaf of a checkpoint that shares most of its pages names many short extents of few packs. One system call for
//! each, and one hash at a time, would cost more than the bytes themselves.

use std::sync::Arc;

use stdchk_object::Result;
use stdchk_object::hash::Domain;
use stdchk_object::tree::{Leaf, Piece};

use super::extents::Span;
use super::{OpenPack, Roots, Scratch, Vault};

/// Bytes that nobody wants are read, too, where they lie between wanted ones and are no more than this.
const GAP_MAX: u64 = 16 << 10;
/// And no more than this in one call.
const GAPS_MAX: u64 = 256 << 10;

/// A part of a leaf without holes.
pub struct Slice {
    /// Where it begins in the leaf.
    pub start: usize,
    /// Its length.
    pub len: usize,
    spans: Vec<Span>,
}

/// Chunks of a run that lie side by side, stored as they are, and where they go.
struct Fetch<'a> {
    span: &'a Span,
    offset: u64,
    target: &'a mut [u8],
}

impl Fetch<'_> {
    fn pack(&self) -> &Arc<OpenPack> {
        &self.span.open
    }

    fn end(&self) -> u64 {
        self.offset + self.target.len() as u64
    }

    /// The bytes between this and the next one, if they may be read together.
    fn gap_to(&self, next: &Fetch) -> Option<u64> {
        let gap = next.offset.checked_sub(self.end())?;
        (self.pack().pack.name == next.pack().pack.name && gap <= GAP_MAX).then_some(gap)
    }
}

/// How many, from the first on, are read with one call.
fn count_near(fetches: &[Fetch]) -> usize {
    let mut gaps = 0;
    let near = fetches.windows(2).take_while(|pair| {
        gaps += pair[0].gap_to(&pair[1]).unwrap_or(GAPS_MAX + 1);
        gaps <= GAPS_MAX
    });
    1 + near.count()
}

impl Vault {
    /// The parts of a leaf between its holes, in order, each of at most `limit` bytes unless one run gives more.
    pub fn slices(&self, roots: &Roots, leaf: &Leaf, limit: usize) -> Result<Vec<Slice>> {
        let mut slices: Vec<Slice> = Vec::new();
        let mut at = 0;
        for piece in &leaf.pieces {
            let Piece::Data(extent) = piece else {
                at += piece.bytes() as usize;
                continue;
            };
            self.spans(roots, extent, |span| {
                let len = span.len as usize;
                match slices.last_mut() {
                    Some(slice) if slice.start + slice.len == at && slice.len + len <= limit => {
                        slice.len += len;
                        slice.spans.push(span);
                    }
                    _ => slices.push(Slice { start: at, len, spans: vec![span] }),
                }
                at += len;
                Ok(())
            })?;
        }
        Ok(slices)
    }

    /// The bytes of a leaf into `target`, which is exactly as long. Holes are left as they are.
    pub fn read_leaf(
        &self,
        roots: &Roots,
        leaf: &Leaf,
        target: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let slices = self.slices(roots, leaf, usize::MAX)?;
        slices.iter().try_for_each(|slice| {
            self.read_slice(slice, &mut target[slice.start..slice.start + slice.len], scratch)
        })
    }

    /// The bytes of a slice into `target`, which is exactly as long.
    pub fn read_slice(&self, slice: &Slice, target: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let mut fetches = Vec::with_capacity(slice.spans.len());
        let mut rest = target;
        for span in &slice.spans {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(span.len as usize);
            rest = tail;
            match span.plain_offset() {
                Some(offset) => fetches.push(Fetch { span, offset, target: head }),
                // What is compressed or wanted only in part is read at once.
                None => self.read_span(span, head, scratch)?,
            }
        }
        fetches.sort_unstable_by_key(|fetch| (fetch.pack().pack.name, fetch.offset));
        let mut rest = &mut fetches[..];
        while !rest.is_empty() {
            let count = count_near(rest);
            let (near, others) = std::mem::take(&mut rest).split_at_mut(count);
            rest = others;
            if self.fetch(near, scratch).is_err() {
                // One by one, so that what is wrong is found out for just the chunks that it concerns.
                near.iter_mut().try_for_each(|fetch| self.fetch_again(fetch))?;
            }
        }
        bad_fetches(&fetches).into_iter().try_for_each(|bad| self.fetch_again(&mut fetches[bad]))
    }

    /// Reads and checks what could not be read together with others, and notes what is wrong with it.
    fn fetch_again(&self, fetch: &mut Fetch) -> Result<()> {
        let span = fetch.span;
        self.read_plain(&span.open, span.run(), span.from, span.to, fetch.target)
    }

    /// Reads chunks that lie near each other with one call.
    fn fetch(&self, near: &mut [Fetch], scratch: &mut Scratch) -> Result<()> {
        let name = near[0].pack().pack.name;
        let start = near[0].offset;
        let wanted: u64 = near.iter().map(|fetch| fetch.target.len() as u64).sum();
        scratch.bytes.resize((near[near.len() - 1].end() - start - wanted) as usize, 0);
        let mut gaps = &mut scratch.bytes[..];
        let mut buffers: Vec<&mut [u8]> = Vec::with_capacity(2 * near.len());
        let mut at = start;
        for fetch in &mut *near {
            let (gap, rest) = std::mem::take(&mut gaps).split_at_mut((fetch.offset - at) as usize);
            gaps = rest;
            at = fetch.end();
            if !gap.is_empty() {
                buffers.push(gap);
            }
            buffers.push(fetch.target);
        }
        self.store().read_into(name, start, &mut buffers)
    }
}

/// Which ones are not what they should be. All are hashed side by side: few at a time would cost twice as much.
fn bad_fetches(fetches: &[Fetch]) -> Vec<usize> {
    let chunks = fetches.iter().enumerate().flat_map(|(index, fetch)| {
        let mut rest = &*fetch.target;
        (fetch.span.from..fetch.span.to).map(move |chunk| {
            let (head, tail) = rest.split_at(fetch.span.run().chunk_len(chunk) as usize);
            rest = tail;
            (index, chunk, head)
        })
    });
    let mut expected = chunks.clone();
    let mut bad: Vec<usize> = Vec::new();
    Domain::Data.hash_each(chunks.map(|(_, _, bytes)| bytes), |hash| {
        let (index, chunk, _) = expected.next().expect("one for each hash");
        let is_good = fetches[index].pack().footer.hash(chunk) == Some(&hash);
        if !is_good && bad.last() != Some(&index) {
            bad.push(index);
        }
    });
    bad
}
