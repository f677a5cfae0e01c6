//! A grid of pages that follows its parent.
//!
//! Fixed pages find everything in memory that is rewritten page by page, and nothing after an insertion of a length that
//! is no multiple of the page. So the cuts are inherited: where the parent was cut, this version is cut, moved by the
//! shift that is in force. When what follows is nowhere as it should be, the shift is lost; then some chunks of the
//! parent are read as anchors and looked for in the new bytes, and where one is found the grid goes on from there.

use aho_corasick::{AhoCorasick, Match, packed};
use stdchk_object::Result;

use super::parent::{Expected, Parent, Place, Theirs};
use super::unit::{Cut, Page};
use crate::vault::Vault;

/// Pages in a row, up to the end of the stretch, that are not what the parent has: then its place is looked for.
const LOST_TAIL: u64 = 8;
/// The same anywhere in the stretch.
const LOST_RUN: u64 = 64;
/// Where in the parent chunks are chosen that are looked for, in bytes from where it was lost.
const ANCHORS: [u64; 8] =
    [8 << 10, 28 << 10, 76 << 10, 188 << 10, 400 << 10, 800 << 10, 1600 << 10, 3200 << 10];
/// Bytes of the parent in which anchors are chosen: so much may be missing.
pub const SEARCH_BYTES: u64 = 4 << 20;
/// Bytes of an anchor that are looked for.
const NEEDLE: usize = 32;
/// Different bytes that a needle must have: what is the same everywhere leads nowhere.
const NEEDLE_VARIETY: usize = 8;
/// Places of needles that are tried.
const PLACES_MAX: usize = 64;

/// A cut before its bytes were looked at: its length, and which chunk of the parent is expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub len: u32,
    pub theirs: Option<Expected>,
}

/// Cuts `from..to` of a stretch that begins at `offset` where the parent was cut, and where it has nothing, into pages.
pub fn plan(theirs: &[Place], shift: i64, offset: u64, from: usize, to: usize, page: usize) -> Vec<Planned> {
    let mut cuts = Vec::with_capacity((to - from) / page + 2);
    let place = |place: &Place| i128::from(place.at) + i128::from(shift) - i128::from(offset);
    let mut next = theirs.partition_point(|theirs| place(theirs) < from as i128);
    let mut at = from;
    while at < to {
        let expected = theirs.get(next).map(|theirs| (place(theirs), theirs.len as usize));
        match expected {
            Some((start, len)) if start == at as i128 && at + len <= to && len <= page => {
                cuts.push(Planned { len: len as u32, theirs: Some(theirs[next].what) });
                at += len;
            }
            // One that does not fit is not followed.
            Some((start, _)) if start <= at as i128 => {
                if start == at as i128 {
                    let len = page.min(to - at);
                    cuts.push(Planned { len: len as u32, theirs: None });
                    at += len;
                }
            }
            expected => {
                let begins = expected.and_then(|(start, _)| usize::try_from(start).ok());
                let stop = begins.map_or(to, |start| start.min(to));
                // Only a gap has two ends; what ends with the stretch stays on the grid.
                for len in pages(stop - at, page, stop < to) {
                    cuts.push(Planned { len: len as u32, theirs: None });
                }
                at = stop;
                continue;
            }
        }
        next += 1;
    }
    cuts
}

/// Cuts so many bytes into pages. If `evenly`, a rest that is short takes half of the page before it: tiny pieces would
/// stay for ever.
pub fn pages(bytes: usize, page: usize, evenly: bool) -> impl Iterator<Item = usize> {
    let (whole, rest) = (bytes / page, bytes % page);
    let shared = evenly && whole > 0 && rest > 0 && rest < page / 2;
    let full = if shared { whole - 1 } else { whole };
    let last = if shared { [(page + rest).div_ceil(2), (page + rest) / 2] } else { [rest, 0] };
    std::iter::repeat_n(page, full).chain(last).filter(|&len| len > 0)
}

/// The first cut, from `from` on, of those where the parent's place seems to be lost.
pub fn lost(cuts: &[Cut], from: usize, page: usize) -> Option<usize> {
    let mut run: Option<(usize, u64)> = None;
    let page = page as u64;
    for (i, cut) in cuts.iter().enumerate().skip(from) {
        match cut.what {
            Page::Zero => {}
            Page::Same(..) | Page::Spans(..) => {
                if run.is_some_and(|(_, bytes)| bytes >= LOST_RUN * page) {
                    break;
                }
                run = None;
            }
            Page::Other(_) => {
                let (first, bytes) = run.unwrap_or((i, 0));
                run = Some((first, bytes + u64::from(cut.len)));
            }
        }
    }
    run.filter(|&(_, bytes)| bytes >= LOST_TAIL * page).map(|(first, _)| first)
}

/// Where an anchor was found.
pub struct Found {
    /// The place in the stretch.
    pub at: usize,
    /// The shift that follows from it.
    pub shift: i64,
}

/// Looks for some of the parent's chunks in `bytes`, which begin at `offset`. The chunks begin at `start` in the parent.
pub fn find_again(
    vault: &Vault,
    theirs: &Theirs,
    start: u64,
    bytes: &[u8],
    offset: u64,
    page: usize,
) -> Result<Option<Found>> {
    let mut anchors = Vec::with_capacity(ANCHORS.len());
    let mut tried = None;
    for anchor in ANCHORS {
        let first = theirs.chunks.partition_point(|chunk| chunk.at < start.saturating_add(anchor));
        // Short pieces say little.
        let next = theirs.chunks[first..].iter().find(|chunk| chunk.len as usize * 2 >= page);
        let Some(chunk) = next.filter(|chunk| tried != Some(chunk.at)) else { continue };
        tried = Some(chunk.at);
        anchors.push((chunk.at, theirs.bytes(vault, chunk)?));
    }
    let found = place_of(&anchors, bytes).and_then(|(theirs, at)| {
        let shift = i128::from(offset) + at as i128 - i128::from(theirs);
        Some(Found { at, shift: i64::try_from(shift).ok()? })
    });
    Ok(found)
}

/// Which of the anchors lies in `bytes` first, and where. What pages begin with is often the same in all, so needles are
/// taken from within. All are looked for in one pass.
fn place_of(anchors: &[(u64, Vec<u8>)], bytes: &[u8]) -> Option<(u64, usize)> {
    for quarter in [2, 3, 1] {
        let needle = |(which, (_, wanted)): (usize, &(u64, Vec<u8>))| {
            distinctive(wanted, wanted.len() / 4 * quarter).map(|within| (which, within))
        };
        let needles: Vec<(usize, usize)> = anchors.iter().enumerate().filter_map(needle).collect();
        if needles.is_empty() {
            // As behind the end of the parent. A search for nothing would look at every byte.
            continue;
        }
        let patterns = needles.iter().map(|&(which, within)| &anchors[which].1[within..within + NEEDLE]);
        let places = places_of(patterns, bytes);
        for place in &places {
            let (which, within) = needles[place.pattern()];
            let (theirs, wanted) = &anchors[which];
            if let Some(at) = place.start().checked_sub(within)
                && bytes.get(at..at + wanted.len()) == Some(wanted)
            {
                return Some((*theirs, at));
            }
        }
        // Only where there were too many places other needles may tell more.
        if places.len() < PLACES_MAX {
            return None;
        }
    }
    None
}

/// The first places of all patterns, in order. Vectors are compared where the processor can.
fn places_of<'b>(patterns: impl Iterator<Item = &'b [u8]> + Clone, bytes: &[u8]) -> Vec<Match> {
    if let Some(searcher) = packed::Searcher::new(patterns.clone()) {
        return searcher.find_iter(bytes).take(PLACES_MAX).collect();
    }
    let Ok(searcher) = AhoCorasick::new(patterns) else { return Vec::new() };
    searcher.find_iter(bytes).take(PLACES_MAX).collect()
}

/// Where in a chunk, from `from` on, a needle lies that is not likely to be found by chance.
fn distinctive(bytes: &[u8], from: usize) -> Option<usize> {
    let variety = |needle: &[u8]| {
        let mut seen = [0u64; 4];
        needle.iter().for_each(|&byte| seen[usize::from(byte >> 6)] |= 1 << (byte & 63));
        seen.iter().map(|bits| bits.count_ones() as usize).sum::<usize>()
    };
    let end = (bytes.len() + 1).saturating_sub(NEEDLE);
    (from..end).step_by(NEEDLE).find(|&at| variety(&bytes[at..at + NEEDLE]) >= NEEDLE_VARIETY)
}

/// The range of the parent that a stretch is expected to have.
pub fn range_of(parent: &Parent, shift: i64, offset: u64, len: u64) -> std::ops::Range<u64> {
    let place = |at: u64| {
        let moved = i128::from(at) - i128::from(shift);
        u64::try_from(moved.max(0)).unwrap_or(u64::MAX).min(parent.blob.len)
    };
    place(offset)..place(offset.saturating_add(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::Hash;

    /// Chunks, numbered in their order.
    fn chunks(all: &[(u64, u32)]) -> Vec<Place> {
        let place =
            |(i, &(at, len)): (usize, &(u64, u32))| Place { at, len, what: Expected::Chunk(i as u32) };
        all.iter().enumerate().map(place).collect()
    }

    fn number(what: Expected) -> u32 {
        let Expected::Chunk(number) = what else { unreachable!("there are only chunks") };
        number
    }

    fn planned(
        theirs: &[(u64, u32)],
        shift: i64,
        offset: u64,
        from: usize,
        to: usize,
    ) -> Vec<(u32, Option<u32>)> {
        let cuts = plan(&chunks(theirs), shift, offset, from, to, 100);
        cuts.into_iter().map(|cut| (cut.len, cut.theirs.map(number))).collect()
    }

    #[test]
    fn cuts_are_those_of_the_parent() {
        let theirs = [(1000, 100), (1100, 30), (1130, 100), (1300, 100)];
        let same = [(100, Some(0)), (30, Some(1)), (100, Some(2)), (70, None), (100, Some(3))];
        assert_eq!(planned(&theirs, 0, 1000, 0, 400), same);
        // Moved by 7, the stretch begins with something of its own, and the last one no longer fits.
        let moved = [(7, None), (100, Some(0)), (30, Some(1)), (100, Some(2)), (70, None), (93, None)];
        assert_eq!(planned(&theirs, 7, 1000, 0, 400), moved);
        // What the parent had before this stretch is not looked for.
        assert_eq!(
            planned(&theirs, -50, 1000, 0, 200),
            [(50, None), (30, Some(1)), (100, Some(2)), (20, None)]
        );
        assert_eq!(planned(&[], 0, 0, 0, 250), [(100, None), (100, None), (50, None)]);
        // A short rest keeps to the grid at the end of the stretch, and shares with a page before a cut of the parent.
        assert_eq!(planned(&[], 0, 0, 0, 210), [(100, None), (100, None), (10, None)]);
        assert_eq!(planned(&[(110, 100)], 0, 0, 0, 210), [(55, None), (55, None), (100, Some(0))]);
        // Longer chunks than pages are not followed.
        assert_eq!(planned(&[(0, 150), (150, 50)], 0, 0, 0, 200), [(100, None), (50, None), (50, Some(1))]);
    }

    #[test]
    fn planned_cuts_cover_the_stretch() {
        for seed in 0..200u64 {
            let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |limit: u64| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x % limit
            };
            let mut at = next(300);
            let theirs: Vec<(u64, u32)> = (0..next(30))
                .map(|_| {
                    let len = 1 + next(120);
                    let chunk = (at, len as u32);
                    at += len + if next(3) == 0 { next(200) } else { 0 };
                    chunk
                })
                .collect();
            let (shift, offset, from, to) =
                (next(400) as i64 - 200, next(500), next(100) as usize, 100 + next(2000) as usize);
            let cuts = plan(&chunks(&theirs), shift, offset, from, to, 100);
            let mut place = from as i64 + offset as i64;
            for cut in &cuts {
                assert!(cut.len > 0 && cut.len <= 100);
                if let Some(which) = cut.theirs {
                    let (at, len) = theirs[number(which) as usize];
                    assert_eq!((at as i64 + shift, len), (place, cut.len), "seed {seed}");
                }
                place += i64::from(cut.len);
            }
            assert_eq!(place, to as i64 + offset as i64, "seed {seed}");
        }
    }

    #[test]
    fn being_lost_is_told_from_being_rewritten() {
        let same = Cut { len: 1, what: Page::Same(0, 0), old: None };
        let other = Cut { len: 1, what: Page::Other(Hash([1; 32])), old: None };
        let zero = Cut { len: 1, what: Page::Zero, old: None };
        let row = |cut: Cut, count: usize| vec![cut; count];
        assert_eq!(lost(&[row(same, 5), row(other, 20), row(same, 5)].concat(), 0, 1), None);
        assert_eq!(lost(&[row(same, 5), row(other, 20)].concat(), 0, 1), Some(5));
        assert_eq!(lost(&[row(same, 5), row(other, 4), row(zero, 9), row(other, 4)].concat(), 0, 1), Some(5));
        assert_eq!(lost(&[row(same, 5), row(other, 70), row(same, 5)].concat(), 0, 1), Some(5));
        assert_eq!(lost(&[row(same, 5), row(other, 7)].concat(), 0, 1), None);
        assert_eq!(lost(&[row(other, 20)].concat(), 15, 1), None);
    }
}
