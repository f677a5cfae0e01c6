//! Reading a leaf: chunks in the order in which they lie in packs, into their places, and checked together.
//!
//! A leaf of a checkpoint that shares most of its pages names many short extents of few packs. One system call for
//! each, and one hash at a time, would cost more than the bytes themselves.

use std::ops::Range;
use std::sync::Arc;

use stdchk_object::hash::Domain;
use stdchk_object::tree::{Leaf, Piece};
use stdchk_object::{PackName, Result};

use super::extents::Span;
use super::{OpenPack, Roots, Scratch, Vault};

/// Bytes that nobody wants are read, too, where they lie between wanted ones and are no more than this.
const GAP_MAX: u64 = 16 << 10;
/// And no more than this in one call.
const GAPS_MAX: u64 = 256 << 10;

/// Ranges that are no further apart are said to be read in one; and no shorter ones are.
const HINT_GAP_MAX: u64 = 64 << 10;
const HINT_MIN: u64 = 32 << 10;

/// A part of a leaf without holes.
pub struct Slice {
    /// Where it begins in the leaf.
    pub start: usize,
    /// Its length.
    pub len: usize,
    spans: Vec<Span>,
}

/// Whole chunks of a run that lie side by side, stored as they are, and where they go.
struct Fetch<'a> {
    chunks: Chunks<'a>,
    offset: u64,
    target: &'a mut [u8],
    /// Where those bytes of it go, from such a place on, of which alone they are wanted: only whole chunks can be checked.
    wanted: Option<(usize, &'a mut [u8])>,
}

/// Chunks of a run.
#[derive(Clone, Copy)]
struct Chunks<'a> {
    span: &'a Span,
    from: u32,
    to: u32,
}

impl<'a> Chunks<'a> {
    fn of(span: &'a Span) -> Chunks<'a> {
        Chunks { span, from: span.from, to: span.to }
    }

    fn offset(&self) -> u64 {
        let run = self.span.run();
        run.offset + u64::from(run.chunk_start(self.from))
    }

    fn bytes(&self) -> usize {
        let chunk_len = |chunk| self.span.run().chunk_len(chunk) as usize;
        (self.from..self.to).map(chunk_len).sum()
    }

    /// Those before, and those from there on.
    fn split(self, chunk: u32) -> [Chunks<'a>; 2] {
        [Chunks { to: chunk, ..self }, Chunks { from: chunk, ..self }]
    }
}

/// Chunks of which `len` bytes are wanted that lie behind the first `skip`.
struct Wanted<'a> {
    chunks: Chunks<'a>,
    skip: usize,
    len: usize,
}

impl Wanted<'_> {
    fn is_whole(&self) -> bool {
        self.chunks.bytes() == self.len
    }
}

/// The first chunk of a span, those between, and the last one, where the first or the last is wanted in part.
fn parts_of(span: &Span) -> Vec<Wanted<'_>> {
    let (all, skip, len) = (Chunks::of(span), span.skip as usize, span.len as usize);
    let mut parts = Vec::with_capacity(3);
    let (mut rest, mut left) = (all, len);
    if skip > 0 {
        let [first, others] = rest.split(all.from + 1);
        let some = (first.bytes() - skip).min(left);
        parts.push(Wanted { chunks: first, skip, len: some });
        (rest, left) = (others, left - some);
    }
    let surplus = rest.bytes() - left;
    if surplus > 0 {
        let [between, last] = rest.split(rest.to - 1);
        let len = between.bytes();
        parts.push(Wanted { chunks: between, skip: 0, len });
        parts.push(Wanted { chunks: last, skip: 0, len: left - len });
    } else {
        parts.push(Wanted { chunks: rest, skip: 0, len: left });
    }
    parts.retain(|part| part.len > 0);
    parts
}

impl Fetch<'_> {
    fn pack(&self) -> &Arc<OpenPack> {
        &self.chunks.span.open
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
        self.slices_within(roots, leaf, 0..leaf.bytes(), limit)
    }

    /// The same of a range of a leaf; where they begin is counted from its beginning.
    pub fn slices_within(
        &self,
        roots: &Roots,
        leaf: &Leaf,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Slice>> {
        let mut slices: Vec<Slice> = Vec::new();
        let mut at = 0;
        for piece in &leaf.pieces {
            let mut begin = at;
            at += piece.bytes();
            let Piece::Data(extent) = piece else { continue };
            if at <= range.start || begin >= range.end {
                continue;
            }
            self.spans(roots, extent, |span| {
                let (from, to) = (begin.max(range.start), (begin + span.len).min(range.end));
                let skip = from.saturating_sub(begin);
                begin += span.len;
                if from >= to {
                    return Ok(());
                }
                let (start, len) = ((from - range.start) as usize, (to - from) as usize);
                let span = if len as u64 == span.len { span } else { span.narrowed(skip, to - from) };
                match slices.last_mut() {
                    Some(slice) if slice.start + slice.len == start && slice.len + len <= limit => {
                        slice.len += len;
                        slice.spans.push(span);
                    }
                    _ => slices.push(Slice { start, len, spans: vec![span] }),
                }
                Ok(())
            })?;
        }
        Ok(slices)
    }

    /// Says which bytes slices will be read from, as far as they are worth a call of their own.
    pub fn will_read(&self, slices: &[Slice]) {
        let mut ranges: Vec<(PackName, Range<u64>)> =
            slices.iter().flat_map(|slice| &slice.spans).map(Span::stored).collect();
        ranges.sort_unstable_by_key(|(pack, range)| (*pack, range.start));
        let near = |a: &(PackName, Range<u64>), b: &(PackName, Range<u64>)| {
            a.0 == b.0 && b.1.start <= a.1.end.saturating_add(HINT_GAP_MAX)
        };
        for run in ranges.chunk_by(near) {
            let (pack, start) = (run[0].0, run[0].1.start);
            let end = run.iter().map(|(_, range)| range.end).max().unwrap_or(start);
            if end - start >= HINT_MIN {
                self.store().will_read(pack, start..end);
            }
        }
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
        self.will_read(&slices);
        slices.iter().try_for_each(|slice| {
            self.read_slice(slice, &mut target[slice.start..slice.start + slice.len], scratch)
        })
    }

    /// The bytes of a slice into `target`, which is exactly as long.
    pub fn read_slice(&self, slice: &Slice, target: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        // Chunks that are wanted in part are read aside, together, up to as much again; however short the parts, and however long their chunks.
        let most_aside = target.len();
        let mut parts = Vec::with_capacity(slice.spans.len());
        let mut aside = 0;
        let mut rest = target;
        for span in &slice.spans {
            let (mut target, tail) = std::mem::take(&mut rest).split_at_mut(span.len as usize);
            rest = tail;
            if !span.run().coding.is_none() {
                // What is compressed is read at once.
                self.read_span(span, target, scratch)?;
                continue;
            }
            for part in parts_of(span) {
                let (head, tail) = std::mem::take(&mut target).split_at_mut(part.len);
                target = tail;
                let more = if part.is_whole() { 0 } else { part.chunks.bytes() };
                if aside + more > most_aside {
                    self.read_alone(&part, head)?;
                    continue;
                }
                aside += more;
                parts.push((part, head));
            }
        }
        let mut aside = vec![0; aside];
        let mut room = &mut aside[..];
        let mut fetches = Vec::with_capacity(parts.len());
        for (part, target) in parts {
            let (chunks, offset) = (part.chunks, part.chunks.offset());
            if part.is_whole() {
                fetches.push(Fetch { chunks, offset, target, wanted: None });
                continue;
            }
            let (whole, rest) = std::mem::take(&mut room).split_at_mut(chunks.bytes());
            room = rest;
            fetches.push(Fetch { chunks, offset, target: whole, wanted: Some((part.skip, target)) });
        }
        self.fetch_all(fetches, scratch)
    }

    /// Reads and checks chunks in the order in which they lie in packs.
    fn fetch_all(&self, mut fetches: Vec<Fetch>, scratch: &mut Scratch) -> Result<()> {
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
        self.bad_fetches(&fetches)?.into_iter().try_for_each(|bad| self.fetch_again(&mut fetches[bad]))?;
        for Fetch { target, wanted, .. } in fetches {
            if let Some((skip, place)) = wanted {
                place.copy_from_slice(&target[skip..skip + place.len()]);
            }
        }
        Ok(())
    }

    /// Reads and checks chunks, and hands on what is wanted of them.
    fn read_alone(&self, part: &Wanted, target: &mut [u8]) -> Result<()> {
        let Chunks { span, from, to } = part.chunks;
        let mut bytes = vec![0; part.chunks.bytes()];
        self.read_plain(&span.open, span.run(), from, to, &mut bytes)?;
        target.copy_from_slice(&bytes[part.skip..part.skip + part.len]);
        Ok(())
    }

    /// Reads and checks what could not be read together with others, and notes what is wrong with it.
    fn fetch_again(&self, fetch: &mut Fetch) -> Result<()> {
        let Chunks { span, from, to } = fetch.chunks;
        self.read_plain(&span.open, span.run(), from, to, fetch.target)
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

    /// Which ones are not what they should be. All are hashed side by side: few at a time would cost twice as much.
    fn bad_fetches(&self, fetches: &[Fetch]) -> Result<Vec<usize>> {
        let hashes = fetches.iter().map(|fetch| self.hashes(fetch.pack())).collect::<Result<Vec<_>>>()?;
        let chunks = fetches.iter().enumerate().flat_map(|(index, fetch)| {
            let mut rest = &*fetch.target;
            let Chunks { span, from, to } = fetch.chunks;
            (from..to).map(move |chunk| {
                let (head, tail) = rest.split_at(span.run().chunk_len(chunk) as usize);
                rest = tail;
                (index, chunk, head)
            })
        });
        let mut expected = chunks.clone();
        let mut bad: Vec<usize> = Vec::new();
        Domain::Data.hash_each(chunks.map(|(_, _, bytes)| bytes), |hash| {
            let (index, chunk, _) = expected.next().expect("one for each hash");
            let is_good = hashes[index].get(chunk as usize) == Some(&hash);
            if !is_good && bad.last() != Some(&index) {
                bad.push(index);
            }
        });
        Ok(bad)
    }
}
