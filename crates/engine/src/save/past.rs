//! What memory was equal to at some moments, and where it was written to since (docs/CAPTURE.md).

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stdchk_lend::Lent;
use stdchk_object::Result;
use stdchk_object::tree::Blob;

use super::unit::{Held, Source};
use crate::vault::Roots;

/// So many moments are remembered.
const MOMENTS: usize = 4;

/// Moments of some memory.
pub struct Past {
    page: usize,
    pages: usize,
    /// The one last saved or compared with comes last.
    moments: VecDeque<Moment>,
}

/// When memory was equal to a blob.
struct Moment {
    blob: Blob,
    written: Pages,
}

/// A set of pages.
#[derive(Clone)]
struct Pages(Vec<u64>);

impl fmt::Debug for Past {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Past").field("pages", &self.pages).field("moments", &self.moments.len()).finish()
    }
}

impl Past {
    /// The past of `len` bytes, of which writes are known by pages of `page` bytes. No moment is known yet.
    pub fn new(len: usize, page: usize) -> Past {
        Past { page, pages: len.div_ceil(page), moments: VecDeque::new() }
    }

    /// Pages were written to. Must be told of all that were before the next save.
    pub fn wrote(&mut self, range: Range<usize>) {
        let pages = range.start / self.page..range.end.div_ceil(self.page).min(self.pages);
        self.moments.iter_mut().for_each(|moment| moment.written.add(pages.clone()));
    }

    /// The memory is equal to this blob.
    pub fn is_now(&mut self, blob: &Blob) {
        self.moments.retain(|moment| moment.blob != *blob);
        self.moments.push_back(Moment { blob: blob.clone(), written: Pages::none(self.pages) });
        if self.moments.len() > MOMENTS {
            self.moments.pop_front();
        }
    }

    /// What was written since the memory was equal to a blob, if that is known.
    fn since(&mut self, blob: &Blob) -> Option<&Pages> {
        let found = self.moments.iter().position(|moment| moment.blob == *blob)?;
        let moment = self.moments.remove(found)?;
        self.moments.push_back(moment);
        self.moments.back().map(|moment| &moment.written)
    }

    /// The memory, to be saved next to a parent with this blob.
    pub(super) fn source(&mut self, bytes: Lent, parent: Option<(Arc<Roots>, Blob)>) -> Watched {
        let since = parent.and_then(|(roots, blob)| {
            let written = self.since(&blob)?.clone();
            Some(Since { roots, blob, written })
        });
        Watched { bytes, page: self.page, since }
    }
}

impl Pages {
    fn none(count: usize) -> Pages {
        Pages(vec![0; count.div_ceil(64)])
    }

    fn add(&mut self, pages: Range<usize>) {
        let mut at = pages.start;
        while at < pages.end {
            // All of a word that is meant, at once.
            let end = (at / 64 * 64 + 64).min(pages.end);
            self.0[at / 64] |= (u64::MAX >> (64 - (end - at))) << (at % 64);
            at = end;
        }
    }

    fn has(&self, page: usize) -> bool {
        self.0[page / 64] & 1 << (page % 64) != 0
    }

    /// The stretches of a range that have none of the set, or only such.
    fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let start = at;
            let is_in = (start < range.end).then(|| self.has(start))?;
            while at < range.end && self.has(at) == is_in {
                // Whole words of one kind at once.
                let word = if is_in { u64::MAX } else { 0 };
                at += if at.is_multiple_of(64) && self.0[at / 64] == word { 64 } else { 1 };
            }
            at = at.min(range.end);
            Some((start..at, is_in))
        })
    }
}

/// Memory, and what was not written of it since it was equal to the parent.
pub(super) struct Watched {
    bytes: Lent,
    page: usize,
    since: Option<Since>,
}

struct Since {
    roots: Arc<Roots>,
    blob: Blob,
    written: Pages,
}

impl Source for Watched {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.copy_from_slice(&self.bytes[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn memory(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }

    fn held(&self, range: Range<u64>) -> Vec<Held> {
        let Some(Since { roots, blob, written }) = &self.since else { return Vec::new() };
        let page = self.page as u64;
        // Pages of which the range has only a part are held as far as it goes.
        let pages = (range.start / page) as usize..range.end.div_ceil(page) as usize;
        let unwritten = written.runs(pages).filter(|(_, is_written)| !is_written);
        let held = unwritten.map(|(pages, _)| {
            let (start, end) = (pages.start as u64 * page, pages.end as u64 * page);
            let range = start.max(range.start)..end.min(range.end);
            Held { range, roots: roots.clone(), blob: blob.clone() }
        });
        held.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::tree::Root;

    /// Blobs that can be told apart.
    fn blob(which: u8) -> Blob {
        Blob { len: 1000 * 4096, leaf_shift: 22, root: Root::Inline(vec![which]) }
    }

    fn since(past: &mut Past, which: u8) -> Option<Vec<Range<usize>>> {
        let written = past.since(&blob(which))?;
        Some(written.runs(0..1000).filter(|(_, is_in)| *is_in).map(|(run, _)| run).collect())
    }

    #[test]
    fn each_moment_knows_what_came_after_it() {
        let mut past = Past::new(1000 * 4096, 4096);
        past.wrote(0..1000 * 4096);
        assert_eq!(since(&mut past, 1), None);
        past.is_now(&blob(1));
        past.wrote(4096..3 * 4096);
        past.is_now(&blob(2));
        past.wrote(999 * 4096..1000 * 4096);
        assert_eq!(since(&mut past, 1), Some(vec![1..3, 999..1000]));
        assert_eq!(since(&mut past, 2), Some(vec![Range { start: 999, end: 1000 }]));
        past.is_now(&blob(1));
        assert_eq!(since(&mut past, 1), Some(vec![]), "it came to be what it was");
        // The oldest are forgotten, but not those that are used.
        for which in 3..6 {
            past.is_now(&blob(which));
            assert!(since(&mut past, 1).is_some());
        }
        assert_eq!(since(&mut past, 2), None);
        assert_eq!(past.moments.len(), MOMENTS);
    }

    #[test]
    fn runs_are_what_they_are_page_by_page() {
        let mut random = fastrand_like(7);
        for _ in 0..200 {
            let count = 1 + random() % 400;
            let mut pages = Pages::none(count);
            let mut expected = vec![false; count];
            for _ in 0..random() % 20 {
                let (a, b) = (random() % (count + 1), random() % (count + 1));
                pages.add(a.min(b)..a.max(b));
                expected[a.min(b)..a.max(b)].fill(true);
            }
            assert!((0..count).all(|page| pages.has(page) == expected[page]));
            let (a, b) = (random() % (count + 1), random() % (count + 1));
            let range = a.min(b)..a.max(b);
            let runs: Vec<(Range<usize>, bool)> = pages.runs(range.clone()).collect();
            let each: Vec<(usize, bool)> =
                runs.iter().flat_map(|(run, is_in)| run.clone().map(|page| (page, *is_in))).collect();
            assert!(each == range.map(|page| (page, pages.has(page))).collect::<Vec<_>>());
            assert!(runs.windows(2).all(|two| two[0].1 != two[1].1), "as long as can be");
        }
    }

    /// Numbers without pattern.
    fn fastrand_like(seed: u64) -> impl FnMut() -> usize {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        }
    }
}
