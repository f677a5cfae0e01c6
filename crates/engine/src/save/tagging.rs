//! How what the parent has is recognized by tags: those of a stretch lie on the grid of its pages, wherever it is cut into chunks.

use std::sync::Arc;

use stdchk_object::tree::Blob;
use stdchk_tag::{Tag, Tagger};

use super::unit::is_zero;
use crate::tags::{TagCache, TagWriter, Tagged, Tags};

/// What makes tags, and those that there are.
#[derive(Clone, Default)]
pub struct Tagging {
    /// What makes them.
    pub cache: Option<Arc<TagCache>>,
    /// Those of the parent.
    pub parent: Option<Arc<Tags>>,
}

impl Tagging {
    pub fn tagger(&self) -> Option<&Tagger> {
        self.cache.as_ref().map(|cache| cache.tagger())
    }

    /// What writes the tags of what takes the place of `parent`.
    pub fn writer(&self, leaf_shift: u8, parent: Option<&Blob>) -> Option<TagWriter> {
        self.cache.clone().map(|cache| cache.begin(leaf_shift, parent))
    }
}

/// The tags of a stretch in the making: its bytes come in order, in pieces of any length.
pub struct TagGrid<'t> {
    tagger: Option<&'t Tagger>,
    page: usize,
    /// Up to where bytes have come.
    at: usize,
    /// Those of the page that is not full yet.
    begun: Vec<u8>,
    /// Whether some of that page was not read.
    is_broken: bool,
    tags: Vec<Tagged>,
}

impl<'t> TagGrid<'t> {
    pub fn new(tagger: Option<&'t Tagger>, page: usize) -> TagGrid<'t> {
        TagGrid { tagger, page, at: 0, begun: Vec::new(), is_broken: false, tags: Vec::new() }
    }

    /// Whether the next piece is a page of its own that gets a tag.
    pub fn takes_whole(&self, len: usize) -> bool {
        self.tagger.is_some() && self.at.is_multiple_of(self.page) && len == self.page
    }

    /// Takes the next bytes, of which the tag may be known.
    pub fn add(&mut self, mut bytes: &[u8], tag: Option<Tag>) {
        let Some(tagger) = self.tagger else { return };
        if tag.is_some() && self.takes_whole(bytes.len()) {
            self.push(bytes.len(), tag);
            return;
        }
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at((self.page - self.at % self.page).min(bytes.len()));
            bytes = rest;
            if some.len() == self.page {
                self.push(some.len(), tag_of(tagger, some));
                continue;
            }
            self.begun.extend_from_slice(some);
            self.at += some.len();
            if self.at.is_multiple_of(self.page) {
                self.end_page();
            }
        }
    }

    /// Passes over bytes that are not read, of which the tag may be known.
    pub fn pass(&mut self, len: usize, tag: Option<Tag>) {
        self.begun.clear();
        self.push(len, tag);
        self.is_broken = !self.at.is_multiple_of(self.page);
    }

    /// All tags, in order.
    pub fn finish(mut self) -> Vec<Tagged> {
        self.end_page();
        self.tags
    }

    fn push(&mut self, len: usize, tag: Option<Tag>) {
        let at = self.at as u64;
        self.tags.extend(tag.map(|tag| Tagged { at, len: len as u32, tag }));
        self.at += len;
    }

    fn end_page(&mut self) {
        let is_whole = !std::mem::take(&mut self.is_broken) && !self.begun.is_empty();
        if let Some(tagger) = self.tagger.filter(|_| is_whole) {
            let (tag, len) = (tag_of(tagger, &self.begun), self.begun.len());
            self.at -= len;
            self.push(len, tag);
        }
        self.begun.clear();
    }
}

/// Zeros have none: they are recognized as they are.
fn tag_of(tagger: &Tagger, bytes: &[u8]) -> Option<Tag> {
    if is_zero(bytes) { None } else { tagger.tag(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_pages_however_the_bytes_come() {
        let Some(tagger) = Tagger::new(&[1; 32]) else { return };
        let mut bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 5) as u8).collect();
        bytes[3000..5000].fill(0);
        let expected: Vec<Tagged> = bytes
            .chunks(1000)
            .enumerate()
            .filter(|(_, page)| !is_zero(page))
            .map(|(i, page)| Tagged {
                at: i as u64 * 1000,
                len: page.len() as u32,
                tag: tagger.tag(page).expect("short"),
            })
            .collect();
        assert_eq!(expected.len(), 8);
        for len in [1, 7, 999, 1000, 1001, 2000, 2500, 10_000] {
            let mut grid = TagGrid::new(Some(&tagger), 1000);
            for piece in bytes.chunks(len) {
                let tag = if grid.takes_whole(piece.len()) { tag_of(&tagger, piece) } else { None };
                grid.add(piece, tag);
            }
            assert_eq!(grid.finish(), expected, "{len}");
        }
    }

    #[test]
    fn what_was_not_read_has_only_the_tags_that_it_had() {
        let Some(tagger) = Tagger::new(&[1; 32]) else { return };
        let known = tagger.tag(b"known");
        let mut grid = TagGrid::new(Some(&tagger), 1000);
        grid.add(&[1; 1500], None);
        grid.pass(200, known);
        grid.pass(100, None);
        grid.add(&[1; 1300], None);
        grid.pass(900, known);
        let places: Vec<(u64, u32)> = grid.finish().iter().map(|tagged| (tagged.at, tagged.len)).collect();
        assert_eq!(places, [(0, 1000), (1500, 200), (2000, 1000), (3100, 900)]);
    }
}
