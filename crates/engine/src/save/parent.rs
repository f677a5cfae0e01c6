//! What the parent has where a stretch is: its chunks, as they were cut.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use stdchk_object::pack::ChunkKind;
use stdchk_object::tree::{Blob, Extent, Leaf, Piece};
use stdchk_object::{Hash, PackRef, Result};
use stdchk_tag::Tag;

use super::cover::Cover;
use super::unit::{Held, Page};
use crate::tags::Tagged;
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
    /// Known of those without a tag, once somebody asked for it.
    pub hash: Option<Hash>,
    /// Whether it may be referred to, or only be subtracted.
    pub shared: bool,
    /// Its tag, where that is known.
    pub tag: Option<Tag>,
}

/// Bytes of one chunk that the parent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where they begin in the parent.
    pub at: u64,
    pub len: u32,
    /// Index into [`Theirs::opens`].
    pub slot: u32,
    /// The chunk in its pack.
    pub chunk: u32,
    /// Bytes of the chunk before them.
    pub skip: u32,
}

impl Span {
    fn end(&self) -> u64 {
        self.at + u64::from(self.len)
    }
}

/// Bytes of the parent that are no whole chunk, and have a tag.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub at: u64,
    pub len: u32,
    pub tag: Tag,
    /// Where its spans are in [`Theirs::spans`], and how many.
    pub spans: (u32, u32),
}

/// What a cut is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A chunk: index into [`Theirs::chunks`].
    Chunk(u32),
    /// Bytes of chunks: index into [`Theirs::cells`].
    Cell(u32),
}

/// Where the parent is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub at: u64,
    pub len: u32,
    pub what: Expected,
}

/// Bytes of chunks that lie side by side in one run.
#[derive(Clone, Copy)]
struct Strip {
    /// Where they begin in the parent.
    at: u64,
    len: u64,
    /// Index into [`Theirs::opens`].
    slot: u32,
    run: usize,
    /// The first chunk.
    from: u32,
    /// Bytes of it before them.
    skip: u32,
}

/// Bytes that may be referred to: cut into chunks only where a tag asks for it, since mostly those of whole chunks are all there are.
#[derive(Default)]
pub struct Sound {
    strips: Vec<Strip>,
    spans: Option<Vec<Span>>,
}

impl Sound {
    fn spans(&mut self, opens: &[Arc<OpenPack>]) -> &[Span] {
        let strips = &self.strips;
        self.spans.get_or_insert_with(|| strips.iter().flat_map(|strip| strip.spans(opens)).collect())
    }
}

impl Strip {
    fn spans(self, opens: &[Arc<OpenPack>]) -> impl Iterator<Item = Span> {
        let Strip { mut at, mut len, slot, run, mut from, mut skip } = self;
        let run = &opens[slot as usize].footer.runs()[run];
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let part = u64::from(run.chunk_len(from) - skip).min(len);
            let span = Span { at, len: part as u32, slot, chunk: from, skip };
            (at, len, from, skip) = (at + part, len - part, from + 1, 0);
            Some(span)
        })
    }
}

/// Of so many spans a cell may be: what is more scattered is stored anew.
const SPANS_MAX: usize = 3;

/// What the parent has in a range.
#[derive(Default)]
pub struct Theirs {
    pub opens: Vec<Arc<OpenPack>>,
    /// Whole chunks, in the order of their places.
    pub chunks: Vec<Chunk>,
    /// Cells, likewise.
    pub cells: Vec<Cell>,
    /// Those of cells.
    pub spans: Vec<Span>,
    /// All bytes that may be referred to, in order.
    pub sound: Sound,
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
        let hash = vault.hash(&open, chunk)?;
        Ok((!vault.is_damaged(open.pack.name, chunk)).then_some((hash, open.pack, chunk)))
    }
}

impl Theirs {
    /// The chunks that lie in what several hold, whole.
    pub fn of(vault: &Vault, all: &[Held]) -> Result<Theirs> {
        let mut theirs = Theirs::default();
        // A blob may hold a range here and there: it is walked through once.
        for (roots, blob, ranges) in by_blob(all) {
            let (first, last) = (ranges[0], ranges[ranges.len() - 1]);
            let (roots, blob, shifts) = (roots.clone(), blob.clone(), Vec::new());
            let parent = Parent { roots, blob, leaf: None, shift: 0, shifts };
            let one = parent.chunks(vault, false, first.start..last.end)?;
            let slots = theirs.opens.len() as u32;
            theirs.opens.extend(one.opens);
            let mut held = Cover::of(ranges.into_iter());
            let whole =
                one.chunks.into_iter().filter(|chunk| held.has(chunk.at..chunk.at + u64::from(chunk.len)));
            theirs.chunks.extend(whole.map(|chunk| Chunk { slot: chunk.slot + slots, ..chunk }));
        }
        theirs.chunks.sort_by_key(|chunk| chunk.at);
        Ok(theirs)
    }

    /// Takes in tags of the blob that all this is of.
    pub fn know(&mut self, tags: Vec<Tagged>) {
        let mut next = 0;
        for tagged in tags {
            next += self.chunks[next..].iter().take_while(|chunk| chunk.at < tagged.at).count();
            match self.chunks.get_mut(next) {
                Some(chunk) if (chunk.at, chunk.len) == (tagged.at, tagged.len) => {
                    chunk.tag = Some(tagged.tag)
                }
                _ => self.know_cell(tagged),
            }
        }
    }

    /// Finds out the hashes of chunks at some places that have no tag.
    pub fn know_hashes<'p>(&mut self, vault: &Vault, places: impl Iterator<Item = &'p Place>) -> Result<()> {
        for place in places {
            if let Expected::Chunk(index) = place.what
                && let chunk = &mut self.chunks[index as usize]
                && chunk.tag.is_none()
                && chunk.hash.is_none()
            {
                chunk.hash = Some(vault.hash(&self.opens[chunk.slot as usize], chunk.chunk)?);
            }
        }
        Ok(())
    }

    fn know_cell(&mut self, Tagged { at, len, tag }: Tagged) {
        let first = self.spans.len();
        let (mut from, end) = (at, at + u64::from(len));
        let sound = self.sound.spans(&self.opens);
        let after = sound.partition_point(|span| span.end() <= at);
        for span in &sound[after..] {
            if span.at > from || from == end {
                break;
            }
            let (passed, to) = ((from - span.at) as u32, span.end().min(end));
            self.spans.push(Span { at: from, len: (to - from) as u32, skip: span.skip + passed, ..*span });
            from = to;
        }
        let count = self.spans.len() - first;
        if from == end && count <= SPANS_MAX {
            self.cells.push(Cell { at, len, tag, spans: (first as u32, count as u32) });
        } else {
            self.spans.truncate(first);
        }
    }

    /// Where the parent is cut: between cells, and where there are none, between chunks.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::with_capacity(self.chunks.len() + self.cells.len());
        let mut chunks = self.chunks.iter().enumerate().peekable();
        let place = |(index, chunk): (usize, &Chunk)| {
            let (at, len, what) = (chunk.at, chunk.len, Expected::Chunk(index as u32));
            Place { at, len, what }
        };
        for (index, cell) in self.cells.iter().enumerate() {
            let (at, len, what) = (cell.at, cell.len, Expected::Cell(index as u32));
            let ends_before = |&(_, chunk): &(usize, &Chunk)| chunk.at + u64::from(chunk.len) <= at;
            while let Some(before) = chunks.next_if(ends_before) {
                places.push(place(before));
            }
            while chunks.next_if(|(_, chunk)| chunk.at < at + u64::from(len)).is_some() {}
            places.push(Place { at, len, what });
        }
        places.extend(chunks.map(place));
        places
    }

    /// What a cut is that has the bytes of what was expected, if that may be referred to.
    pub fn page(&self, expected: Expected) -> Option<Page> {
        match expected {
            Expected::Chunk(index) => {
                let chunk = &self.chunks[index as usize];
                chunk.shared.then_some(Page::Same(chunk.slot, chunk.chunk))
            }
            Expected::Cell(index) => {
                let (first, count) = self.cells[index as usize].spans;
                Some(Page::Spans(first, count))
            }
        }
    }

    /// The tag of what is expected, where that is known.
    pub fn tag(&self, expected: Expected) -> Option<Tag> {
        match expected {
            Expected::Chunk(index) => self.chunks[index as usize].tag,
            Expected::Cell(index) => Some(self.cells[index as usize].tag),
        }
    }

    /// The chunk that is expected, if it is one.
    pub fn chunk(&self, expected: Option<Expected>) -> Option<&Chunk> {
        match expected? {
            Expected::Chunk(index) => self.chunks.get(index as usize),
            Expected::Cell(_) => None,
        }
    }

    /// The chunk that a cut takes the place of.
    pub fn old(&self, expected: Option<Expected>) -> Option<(u32, u32)> {
        self.chunk(expected).map(|chunk| (chunk.slot, chunk.chunk))
    }

    /// The bytes of a chunk, verified.
    pub fn bytes(&self, vault: &Vault, chunk: &Chunk) -> Result<Vec<u8>> {
        vault.chunk(&self.opens[chunk.slot as usize], chunk.chunk, ChunkKind::Data)
    }
}

/// What each blob holds, of what several hold in order.
fn by_blob(all: &[Held]) -> Vec<(&Arc<Roots>, &Blob, Vec<&Range<u64>>)> {
    let mut blobs: Vec<(&Arc<Roots>, &Blob, Vec<&Range<u64>>)> = Vec::new();
    for Held { range, roots, blob } in all {
        let is_same =
            |(known, of, _): &&mut (&Arc<Roots>, &Blob, _)| Arc::ptr_eq(known, roots) && *of == blob;
        match blobs.iter_mut().rev().find(is_same) {
            Some((_, _, ranges)) => ranges.push(range),
            None => blobs.push((roots, blob, vec![range])),
        }
    }
    blobs
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
            let some_damaged = vault.any_damaged(span.open.pack.name, span.from, span.to);
            let is_damaged = |chunk| some_damaged && vault.is_damaged(span.open.pack.name, chunk);
            let strip = Strip { at, len: span.len, slot, run: span.run, from: span.from, skip: span.skip };
            if state == BaseState::Sound && !some_damaged {
                self.theirs.sound.strips.push(strip);
            }
            self.theirs.chunks.reserve((span.to - span.from) as usize);
            let (mut skip, mut left) = (span.skip, span.len);
            for chunk in span.from..span.to {
                let len = run.chunk_len(chunk);
                let part = u64::from(len - skip).min(left) as u32;
                if some_damaged && state == BaseState::Sound && !is_damaged(chunk) {
                    let one = Strip { at, len: u64::from(part), from: chunk, skip, ..strip };
                    self.theirs.sound.strips.push(one);
                }
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
                    } else if !is_damaged(chunk) && state != BaseState::Damaged {
                        let shared = state == BaseState::Sound;
                        let (hash, tag) = (None, None);
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
