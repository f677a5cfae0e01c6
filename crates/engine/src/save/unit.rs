//! What workers do with a stretch of a file: read it, find zeros, hash its pages, compare with the parent.

use std::ops::Range;
use std::sync::Arc;

use stdchk_object::hash::Domain;
use stdchk_object::tree::Blob;
use stdchk_object::{Hash, PackRef, Result};

use super::compare::look_at;
use super::cover::Cover;
use super::grid::{self, Planned};
use super::parent::{Chunk, Parent, Place, Span, Theirs};
use super::stretch::Stretch;
use super::tagging::{TagGrid, Tagging};
use crate::buffers::Buffer;
use crate::tags::Tagged;
use crate::vault::{OpenPack, Roots, Vault};

/// Bytes that can be read at any place, from several threads.
pub trait Source: Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from `offset` on. Bytes that are no longer there are an error: what is saved must be
    /// what was there when the save began.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// All bytes, where they lie in memory that does not change.
    fn memory(&self) -> Option<&[u8]> {
        None
    }

    /// The first place at or after `offset` that may not be zero: file systems know their holes.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// Where bytes of a range are known to be those of blobs at the very same place, in order: they are referred to, not read, as far as whole
    /// chunks lie there. The session must keep what has them.
    fn held(&self, range: Range<u64>) -> Vec<Held> {
        let _ = range;
        Vec::new()
    }
}

/// Bytes that are those of a blob at the very same place.
#[derive(Clone)]
pub struct Held {
    /// Where.
    pub range: Range<u64>,
    /// What vouches for the packs of the blob.
    pub roots: Arc<Roots>,
    /// The blob.
    pub blob: Blob,
}

/// What a page turned out to be.
#[derive(Clone, Copy)]
pub enum Page {
    /// Zeros.
    Zero,
    /// What the parent has there: index into the unit's packs, chunk.
    Same(u32, u32),
    /// The same, but bytes of chunks: where they are in the unit's spans, and how many.
    Spans(u32, u32),
    /// Something else.
    Other(Hash),
}

/// A page, or where the parent was cut otherwise, what lies between two cuts.
#[derive(Clone, Copy)]
pub struct Cut {
    pub len: u32,
    pub what: Page,
    /// What the parent has there, if that has the same length: index into the unit's packs, chunk.
    pub old: Option<(u32, u32)>,
}

/// A stretch that was read and looked at.
pub struct Unit {
    /// The bytes of what is new, one after the other.
    pub buffer: Arc<Buffer>,
    pub cuts: Vec<Cut>,
    /// Packs of the parent that cuts are the same as, or replace.
    pub packs: Vec<Arc<OpenPack>>,
    /// Bytes of the parent that cuts are the same as.
    pub spans: Vec<Span>,
    /// The tags of its pages.
    pub tags: Vec<Tagged>,
    /// The parent's leaf, if it was read whole: hash, pack, chunk.
    pub leaf: Option<(Hash, PackRef, u32)>,
    /// By how much the parent's bytes are further on at its end.
    pub shift: i64,
    /// How often the parent's place was lost and found again, and lost and not found.
    pub found: u32,
    pub missed: u32,
}

impl Unit {
    /// What the new bytes of a cut may be subtracted from: what they replace, or where that is a difference itself, what it was
    /// subtracted from.
    pub fn base_of(&self, vault: &Vault, cut: &Cut) -> Option<(PackRef, u32)> {
        let (slot, chunk) = cut.old?;
        let open = &self.packs[slot as usize];
        if !open.footer.run_of(chunk)?.coding.delta {
            return Some((open.pack, chunk));
        }
        let (pack, chunk) = open.footer.base_of_chunk(chunk)?;
        let (open, chunk, _) = vault.resolve_pack(&pack, chunk).ok()?;
        (!vault.is_damaged(open.pack.name, chunk)).then_some((open.pack, chunk))
    }

    pub fn bytes(&self) -> u64 {
        self.cuts.iter().map(|cut| u64::from(cut.len)).sum()
    }

    /// Bytes that are neither zeros nor what the parent has there.
    pub fn bytes_new(&self) -> u64 {
        let new = |cut: &&Cut| matches!(cut.what, Page::Other(_));
        self.cuts.iter().filter(new).map(|cut| u64::from(cut.len)).sum()
    }
}

/// How to look at a stretch.
pub struct Look {
    /// Where it begins in the member.
    pub offset: u64,
    pub page: usize,
    pub parent: Option<Parent>,
    /// Whether cuts may follow the parent's, wherever it has them.
    pub follow: bool,
    /// Whether the parent's place may be looked for where it is lost.
    pub search: bool,
    /// What is known of the stretch without reading it.
    pub known: Known,
    /// Tags, where there are any.
    pub tags: Tagging,
}

/// What need not be read of a stretch.
#[derive(Default)]
pub struct Known {
    /// Where others have the same, counted from where the stretch begins, in order.
    unchanged: Vec<Range<usize>>,
    /// Who they are, if they are not the parent.
    others: Vec<Held>,
}

impl Known {
    /// What is known of `size` bytes from `offset` on, of which others hold something.
    pub fn new(held: Vec<Held>, parent: Option<&Blob>, offset: u64, size: u64) -> Known {
        let at = |place: u64| (place.max(offset) - offset).min(size) as usize;
        let unchanged = held.iter().map(|held| at(held.range.start)..at(held.range.end)).collect();
        let is_parents = held.iter().all(|held| Some(&held.blob) == parent);
        Known { unchanged, others: if is_parents { Vec::new() } else { held } }
    }

    /// Whether all must be read.
    pub fn is_nothing(&self) -> bool {
        self.unchanged.is_empty()
    }

    /// Whether the parent is known to have less than half of `size` bytes.
    pub fn is_little(&self, size: u64) -> bool {
        self.others.is_empty()
            && self.unchanged.iter().map(|range| 2 * range.len() as u64).sum::<u64>() < size
    }

    /// Those of some places of the parent, in order, that are not known in a stretch that begins at `offset`.
    fn without<'p>(&self, places: &'p [Place], offset: u64) -> impl Iterator<Item = &'p Place> {
        let mut unchanged = Cover::of(self.unchanged.iter());
        places.iter().filter(move |place| {
            let start = place.at.saturating_sub(offset) as usize;
            !unchanged.has(start..start + place.len as usize)
        })
    }
}

/// Pages that are compared to see whether a known shift is in force again.
const PROBE_PAGES: usize = 16;
/// How often in one stretch the parent's place is looked for.
const SEARCHES_MAX: u32 = 64;

pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

impl Look {
    /// Looks at a stretch, cut by cut.
    pub fn at(self, vault: &Vault, mut stretch: Stretch) -> Result<Unit> {
        let tagger = self.tags.tagger();
        let mut shift = self.parent.as_ref().map_or(0, |parent| parent.shift);
        let len = stretch.len();
        let (mut theirs, places) = self.theirs(vault, shift, len);
        let planned = grid::plan(&places, shift, self.offset, 0, len, self.page);
        let mut cuts = Vec::with_capacity(planned.len());
        let mut tags = TagGrid::new(tagger, self.page);
        look_at(&planned, &theirs, (tagger, &mut tags), 0, &mut stretch, &mut cuts, &self.known.unchanged)?;
        let needs_all = |cuts: &[Cut]| {
            (self.search && grid::lost(cuts, 0, self.page).is_some()) || needs_mending(cuts, self.page)
        };
        if stretch.is_packed() && needs_all(&cuts) {
            stretch.unpack()?;
            cuts.clear();
            // Now they are looked at, too.
            if let Err(error) = theirs.know_hashes(vault, places.iter()) {
                tracing::debug!("some of the parent is not recognized: {error}");
            }
            tags = TagGrid::new(tagger, self.page);
            look_at(&planned, &theirs, (tagger, &mut tags), 0, &mut stretch, &mut cuts, &[])?;
        }
        stretch.end_reading();
        let (mut packs, mut spans, leaf) = (theirs.opens.clone(), theirs.spans.clone(), theirs.node);
        let (mut found, mut missed, mut from) = (0, 0, 0);
        while self.search
            && found + missed < SEARCHES_MAX
            && let Some(first) = grid::lost(&cuts, from, self.page)
        {
            let at: usize = cuts[..first].iter().map(|cut| cut.len as usize).sum();
            let Some(again) = self.find_again(vault, shift, at, stretch.whole()) else {
                missed += 1;
                shift = 0;
                break;
            };
            found += 1;
            if again.shift != shift {
                shift = again.shift;
                let (moved, places) = self.theirs(vault, shift, len);
                theirs = moved;
                let planned = grid::plan(&places, shift, self.offset, at, len, self.page);
                cuts.truncate(first);
                let known = cuts.len();
                // The tags of its pages are there already.
                let mut none = TagGrid::new(None, self.page);
                look_at(&planned, &theirs, (tagger, &mut none), at, &mut stretch, &mut cuts, &[])?;
                // Indices are those of the unit.
                let (base, base_spans) = (packs.len() as u32, spans.len() as u32);
                packs.extend_from_slice(&theirs.opens);
                spans.extend(theirs.spans.iter().map(|span| Span { slot: span.slot + base, ..*span }));
                for cut in &mut cuts[known..] {
                    match &mut cut.what {
                        Page::Same(slot, _) => *slot += base,
                        Page::Spans(first, _) => *first += base_spans,
                        Page::Zero | Page::Other(_) => {}
                    }
                    if let Some((slot, _)) = &mut cut.old {
                        *slot += base;
                    }
                }
            }
            from = first + cuts_up_to(&cuts[first..], again.at - at) + 1;
        }
        // A stretch that was packed for want of such a need has nothing to be mended.
        let cuts = if stretch.is_packed() { cuts } else { mended(cuts, &mut stretch, self.page)? };
        let buffer = stretch.keep(new_ranges(&cuts));
        Ok(Unit { buffer, cuts, packs, spans, tags: tags.finish(), leaf, shift, found, missed })
    }

    /// What the parent has where the stretch is, moved by `shift`, and where it is cut.
    fn theirs(&self, vault: &Vault, shift: i64, len: usize) -> (Theirs, Vec<Place>) {
        let found = match &self.parent {
            _ if !self.known.others.is_empty() => Theirs::of(vault, &self.known.others),
            None => return (Theirs::default(), Vec::new()),
            Some(parent) => {
                let range = grid::range_of(parent, shift, self.offset, len as u64);
                parent.chunks(vault, shift == 0, range.clone()).map(|mut theirs| {
                    theirs.know(self.tags.parent.as_ref().map(|tags| tags.within(range)).unwrap_or_default());
                    theirs
                })
            }
        };
        let placed = found.and_then(|mut theirs| {
            let places = self.places(&theirs, len);
            // What is known is neither moved nor looked at.
            match shift {
                0 => theirs.know_hashes(vault, self.known.without(&places, self.offset))?,
                _ => theirs.know_hashes(vault, places.iter())?,
            }
            Ok((theirs, places))
        });
        placed.unwrap_or_else(|error| {
            tracing::warn!("a part of the parent cannot be read, so nothing is shared with it: {error}");
            (Theirs::default(), Vec::new())
        })
    }

    /// Where the parent is cut that the stretch may be.
    fn places(&self, theirs: &Theirs, len: usize) -> Vec<Place> {
        let mut places = theirs.places();
        if !self.follow {
            let page = self.page as u64;
            let end = self.offset + len as u64;
            places.retain(|place| {
                place.at.is_multiple_of(page)
                    && u64::from(place.len) == page.min(end.saturating_sub(place.at))
            });
        }
        places
    }

    /// Looks for what the parent has from `at` on, if it were moved by `shift`, in what the stretch has there.
    fn find_again(&self, vault: &Vault, shift: i64, at: usize, bytes: &[u8]) -> Option<grid::Found> {
        let parent = self.parent.as_ref()?;
        // Where it was before, or where it is in place, is where it is most likely to be again.
        let mut known = parent.shifts.iter().copied().filter(|&known| known != shift);
        if let Some(shift) = known.find(|&known| self.fits(vault, known, at, bytes)) {
            return Some(grid::Found { at, shift });
        }
        // What is lost has moved from where it was, or from where the whole is in place.
        let bases = if shift == 0 { &[0][..] } else { &[shift, 0] };
        bases.iter().find_map(|&base| self.find_from(vault, parent, base, at, bytes))
    }

    fn find_from(
        &self,
        vault: &Vault,
        parent: &Parent,
        shift: i64,
        at: usize,
        bytes: &[u8],
    ) -> Option<grid::Found> {
        let place = self.offset + at as u64;
        let range = grid::range_of(parent, shift, place, grid::SEARCH_BYTES);
        let start = range.start;
        let found = parent
            .chunks(vault, false, range)
            .and_then(|theirs| grid::find_again(vault, &theirs, start, &bytes[at..], place, self.page));
        let found = found.unwrap_or_else(|error| {
            tracing::debug!("the parent cannot be looked for: {error}");
            None
        })?;
        Some(grid::Found { at: found.at + at, ..found })
    }

    /// Whether the parent, moved by `shift`, has some of what the stretch has behind `at`.
    fn fits(&self, vault: &Vault, shift: i64, at: usize, bytes: &[u8]) -> bool {
        let Some(parent) = &self.parent else { return false };
        let to = (at + PROBE_PAGES * self.page).min(bytes.len());
        let range = grid::range_of(parent, shift, self.offset + at as u64, (to - at) as u64);
        let Ok(theirs) = parent.chunks(vault, false, range) else { return false };
        let place = |chunk: &Chunk| i128::from(chunk.at) + i128::from(shift) - i128::from(self.offset);
        let mut expected = Vec::new();
        let mut pieces = Vec::new();
        for chunk in &theirs.chunks {
            let Ok(start) = usize::try_from(place(chunk)) else { continue };
            if let Some(piece) = bytes[..to].get(start..start + chunk.len as usize)
                && start >= at
                && !is_zero(piece)
                && let Ok(hash) = vault.hash(&theirs.opens[chunk.slot as usize], chunk.chunk)
            {
                expected.push(hash);
                pieces.push(piece);
            }
        }
        let (mut same, mut expected) = (0, expected.into_iter());
        Domain::Data.hash_each(pieces, |hash| same += usize::from(expected.next() == Some(hash)));
        same >= PROBE_PAGES / 4
    }
}

/// Whether a cut may be cut anew together with new ones beside it.
fn joins(cut: &Cut, page: usize) -> bool {
    match cut.what {
        Page::Other(_) => true,
        Page::Same(..) | Page::Spans(..) => (cut.len as usize) < page / 4,
        Page::Zero => false,
    }
}

/// Whether cuts that lie side by side are more than there need be, and any of them is new.
fn is_mendable(run: &[Cut], page: usize) -> bool {
    let len: usize = run.iter().map(|cut| cut.len as usize).sum();
    run.iter().any(|cut| matches!(cut.what, Page::Other(_))) && len.div_ceil(page) < run.len()
}

fn needs_mending(cuts: &[Cut], page: usize) -> bool {
    cuts.chunk_by(|a, b| joins(a, page) && joins(b, page)).any(|run| is_mendable(run, page))
}

/// Cuts anew what is new anyway, where short pieces have piled up: with as few pieces as there can be. Very short ones that
/// are not new go along.
fn mended(cuts: Vec<Cut>, stretch: &mut Stretch, page: usize) -> Result<Vec<Cut>> {
    let mut mended = Vec::with_capacity(cuts.len());
    let mut at = 0;
    for run in cuts.chunk_by(|a, b| joins(a, page) && joins(b, page)) {
        let len: usize = run.iter().map(|cut| cut.len as usize).sum();
        if is_mendable(run, page) {
            let again = grid::pages(len, page, true).map(|len| Planned { len: len as u32, theirs: None });
            let planned: Vec<Planned> = again.collect();
            let none = (None, &mut TagGrid::new(None, page));
            look_at(&planned, &Theirs::default(), none, at, stretch, &mut mended, &[])?;
        } else {
            mended.extend_from_slice(run);
        }
        at += len;
    }
    Ok(mended)
}

/// Where what is new lies in the stretch.
pub fn new_ranges(cuts: &[Cut]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    cuts.iter().filter_map(move |cut| {
        let range = at..at + cut.len as usize;
        at = range.end;
        matches!(cut.what, Page::Other(_)).then_some(range)
    })
}

/// How many cuts begin before `bytes`.
fn cuts_up_to(cuts: &[Cut], bytes: usize) -> usize {
    let mut at = 0;
    cuts.iter()
        .take_while(|cut| {
            let before = at < bytes;
            at += cut.len as usize;
            before
        })
        .count()
}
