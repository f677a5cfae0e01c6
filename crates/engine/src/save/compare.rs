//! Comparing the bytes of a stretch, cut by cut, with what the parent has there: by tags where there are any, and else by hashes.

use std::ops::Range;

use stdchk_object::hash::Domain;
use stdchk_object::{Hash, Result};
use stdchk_tag::{Tag, Tagger};

use super::cover::Cover;
use super::grid::Planned;
use super::parent::{Chunk, Theirs};
use super::stretch::Stretch;
use super::tagging::TagGrid;
use super::unit::{Cut, Page, is_zero};
use crate::buffers::Buffer;

/// Bytes that are read, looked at and hashed together, while they are in the processor's cache.
const GROUP_BYTES: usize = 256 << 10;
/// What the processor gets from memory at once.
const LINE: usize = 64;

/// What is known to be unchanged, as places are passed in their order.
type Unchanged<'r> = Cover<std::slice::Iter<'r, Range<usize>>>;

/// What the parent has that is known to be the same as a cut, without a look at it; and its tag, if there is one.
fn known(
    cut: &Planned,
    at: usize,
    theirs: &Theirs,
    unchanged: &mut Unchanged,
) -> Option<(Page, Option<Tag>)> {
    let is_known = unchanged.has(at..at + cut.len as usize);
    let expected = cut.theirs.filter(|_| is_known)?;
    theirs.page(expected).map(|page| (page, theirs.tag(expected)))
}

/// Reads what lies between the cuts from `at` on, and compares it with what the parent has there. What is read goes into the grid of tags, too.
pub fn look_at(
    planned: &[Planned],
    theirs: &Theirs,
    (tagger, tags): (Option<&Tagger>, &mut TagGrid),
    mut at: usize,
    stretch: &mut Stretch,
    cuts: &mut Vec<Cut>,
    unchanged: &[Range<usize>],
) -> Result<()> {
    let mut rest = planned;
    let mut late = Late::default();
    let mut unchanged = Cover::of(unchanged.iter());
    let mut founds = Vec::new();
    while !rest.is_empty() {
        let len = group(rest, at, theirs, &mut unchanged, stretch.lies_in_memory(), &mut founds);
        let (group, others) = rest.split_at(founds.len());
        rest = others;
        let unknown = founds.iter().filter(|found| found.is_none()).count();
        let (bytes, kept) = match unknown {
            0 => (&[][..], None),
            _ => stretch.next(at, len)?,
        };
        if unknown < founds.len() {
            fetch(bytes, group, &founds);
        }
        let mut pieces = Vec::with_capacity(unknown);
        let mut pending = Vec::with_capacity(unknown);
        let mut passed = 0;
        // Whether tags say already that the parent has nothing of what must be hashed.
        let mut all_new = true;
        for (cut, found) in group.iter().zip(&founds) {
            let start = passed;
            passed += cut.len as usize;
            if let &Some((what, tag)) = found {
                cuts.push(Cut { len: cut.len, what, old: theirs.old(cut.theirs) });
                tags.pass(cut.len as usize, tag);
                continue;
            }
            let piece = &bytes[start..passed];
            let mut now = Cut { len: cut.len, what: Page::Zero, old: None };
            let mut tag = None;
            if !is_zero(piece) {
                now.old = theirs.old(cut.theirs);
                let theirs_tag = cut.theirs.and_then(|expected| theirs.tag(expected));
                if theirs_tag.is_some() || tags.takes_whole(piece.len()) {
                    tag = tagger.and_then(|tagger| tagger.tag(piece));
                }
                match cut.theirs.filter(|_| tag.is_some() && tag == theirs_tag).and_then(|it| theirs.page(it))
                {
                    Some(same) => now.what = same,
                    None => {
                        all_new &= theirs_tag.is_some() && tag.is_some() && tag != theirs_tag;
                        pieces.push(piece);
                        pending.push((cuts.len(), theirs.chunk(cut.theirs), piece));
                    }
                }
            }
            tags.add(piece, tag);
            cuts.push(now);
        }
        match kept {
            Some(kept) if all_new => late.keep(kept, &pending, cuts),
            kept => hash_group(pieces, pending, kept, cuts),
        }
        if late.bytes >= GROUP_BYTES {
            late.hash(stretch.kept(), cuts);
        }
        at += len;
    }
    late.hash(stretch.kept(), cuts);
    Ok(())
}

/// Chooses the cuts that are looked at together, and says how many bytes they have. Of each, `founds` is what is known without a look at it. What is
/// known and what is not go together only where nothing has to be read for it.
fn group(
    planned: &[Planned],
    at: usize,
    theirs: &Theirs,
    unchanged: &mut Unchanged,
    lies_in_memory: bool,
    founds: &mut Vec<Option<(Page, Option<Tag>)>>,
) -> usize {
    founds.clear();
    let (mut len, mut unknown) = (0, 0);
    for cut in planned {
        let found = known(cut, at + len, theirs, unchanged);
        let goes_along = match founds.first() {
            None => true,
            Some(first) => {
                let is_alike = first.is_some() == found.is_some() || lies_in_memory;
                is_alike && (found.is_some() || unknown + cut.len as usize <= GROUP_BYTES)
            }
        };
        if !goes_along {
            break;
        }
        len += cut.len as usize;
        unknown += if found.is_none() { cut.len as usize } else { 0 };
        founds.push(found);
    }
    len
}

/// Asks the memory for all that will be looked at. Where that is a page here and there, the processor does not guess it by itself, and would wait at each.
fn fetch(bytes: &[u8], group: &[Planned], founds: &[Option<(Page, Option<Tag>)>]) {
    let (mut at, mut some) = (0, 0);
    for (cut, found) in group.iter().zip(founds) {
        let to = at + cut.len as usize;
        if found.is_none() {
            some |= bytes[at..to].iter().step_by(LINE).fold(0, |some, byte| some | byte);
        }
        at = to;
    }
    std::hint::black_box(some);
}

/// A cut that must be hashed: its index, what the parent has there, its bytes.
type Unhashed<'p> = (usize, Option<&'p Chunk>, &'p [u8]);

/// Hashes what was read together. What turns out to be new is kept.
fn hash_group(pieces: Vec<&[u8]>, pending: Vec<Unhashed>, mut kept: Option<&mut Buffer>, cuts: &mut [Cut]) {
    let mut pending = pending.into_iter();
    Domain::Data.hash_each(pieces, |hash| {
        let (index, expected, piece) = pending.next().expect("one for each piece");
        cuts[index].what = match expected {
            Some(chunk) if chunk.hash == Some(hash) && chunk.shared => Page::Same(chunk.slot, chunk.chunk),
            _ => {
                if let Some(kept) = &mut kept {
                    kept.append(piece);
                }
                Page::Other(hash)
            }
        };
    });
}

/// Cuts that are new in any case, and hashed when there are enough of them to fill the processor's lanes: where a tenth has changed, what is read together
/// has a few.
#[derive(Default)]
struct Late {
    /// Index of a cut, and where its bytes are kept.
    cuts: Vec<(usize, Range<usize>)>,
    bytes: usize,
}

impl Late {
    /// Keeps the bytes of cuts, to be hashed later.
    fn keep(&mut self, kept: &mut Buffer, pending: &[Unhashed], cuts: &mut [Cut]) {
        for &(index, _, piece) in pending {
            let start = kept.len();
            kept.append(piece);
            self.cuts.push((index, start..kept.len()));
            self.bytes += piece.len();
            // Until its hash is known.
            cuts[index].what = Page::Other(Hash([0; 32]));
        }
    }

    fn hash(&mut self, kept: &[u8], cuts: &mut [Cut]) {
        let pieces: Vec<&[u8]> = self.cuts.iter().map(|(_, range)| &kept[range.clone()]).collect();
        let mut indices = self.cuts.iter().map(|(index, _)| *index);
        Domain::Data.hash_each(pieces, |hash| {
            cuts[indices.next().expect("one for each piece")].what = Page::Other(hash);
        });
        self.cuts.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::parent::Expected;
    use super::super::unit::new_ranges;
    use super::*;
    use crate::buffers::Buffers;
    use crate::tags::Tagged;

    /// What a page is taken for of which the parent has another hash, but perhaps the same tag.
    fn looked_at(tagger: &Tagger, tag: Option<Tag>, shared: bool) -> Page {
        let buffers = Buffers::new(1, 4096);
        let mut buffer = buffers.take();
        buffer.set_len(4096);
        buffer.fill(7);
        let hash = Some(Hash([0; 32]));
        let chunk = Chunk { at: 0, len: 4096, slot: 3, chunk: 9, hash, shared, tag };
        let theirs = Theirs { chunks: vec![chunk], ..Theirs::default() };
        let planned = [Planned { len: 4096, theirs: Some(Expected::Chunk(0)) }];
        let (mut cuts, mut tags) = (Vec::new(), TagGrid::new(Some(tagger), 4096));
        look_at(&planned, &theirs, (Some(tagger), &mut tags), 0, &mut Stretch::there(buffer), &mut cuts, &[])
            .expect("it is there");
        assert_eq!(tags.finish(), [Tagged { at: 0, len: 4096, tag: tagger.tag(&[7; 4096]).expect("short") }]);
        assert_eq!(cuts[0].old, Some((3, 9)));
        cuts[0].what
    }

    #[test]
    fn a_chunk_with_the_tag_of_the_parents_is_not_hashed() {
        let Some(tagger) = Tagger::new(&[1; 32]) else { return };
        let right = tagger.tag(&[7; 4096]);
        assert!(matches!(looked_at(&tagger, right, true), Page::Same(3, 9)));
        assert!(matches!(looked_at(&tagger, right, false), Page::Other(_)));
        assert!(matches!(looked_at(&tagger, tagger.tag(&[8; 4096]), true), Page::Other(_)));
        assert!(matches!(looked_at(&tagger, None, true), Page::Other(_)));
    }

    /// Pages of which the parent has the tags, all but some, looked at where they lie.
    #[test]
    fn what_tags_say_is_new_is_kept_in_order_with_its_hash() {
        let Some(tagger) = Tagger::new(&[1; 32]) else { return };
        let page = |byte: u8| vec![byte; 4096];
        // More than are hashed at once, and short ones between them.
        let is_new = |index: usize| !index.is_multiple_of(5);
        let lens = |index: usize| if index % 7 == 3 { 1000 } else { 4096 };
        let (mut bytes, mut chunks, mut planned) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..200 {
            let now = &page(index as u8 + 1)[..lens(index)];
            let before = if is_new(index) { &page(0xfe)[..lens(index)] } else { now };
            let tag = tagger.tag(before);
            let (at, hash) = (bytes.len() as u64, Some(Domain::Data.hash(before)));
            chunks.push(Chunk {
                at,
                len: lens(index) as u32,
                slot: 0,
                chunk: index as u32,
                hash,
                shared: true,
                tag,
            });
            planned.push(Planned { len: lens(index) as u32, theirs: Some(Expected::Chunk(index as u32)) });
            bytes.extend_from_slice(now);
        }
        let theirs = Theirs { chunks, ..Theirs::default() };
        let (mut cuts, mut tags) = (Vec::new(), TagGrid::new(Some(&tagger), 4096));
        let mut stretch = Stretch::in_memory(Buffers::new(1, 4096).take(), &bytes);
        look_at(&planned, &theirs, (Some(&tagger), &mut tags), 0, &mut stretch, &mut cuts, &[])
            .expect("it is there");
        let (mut at, mut kept) = (0, Vec::new());
        for (index, cut) in cuts.iter().enumerate() {
            let piece = &bytes[at..at + lens(index)];
            match cut.what {
                Page::Other(hash) => {
                    assert!(is_new(index) && hash == Domain::Data.hash(piece), "{index}");
                    kept.extend_from_slice(piece);
                }
                Page::Same(_, chunk) => assert!(!is_new(index) && chunk == index as u32),
                Page::Zero | Page::Spans(..) => panic!("{index}"),
            }
            at += lens(index);
        }
        assert!(stretch.keep(new_ranges(&cuts))[..] == kept, "they are kept in their order");
    }

    /// Pages of which many are known to be unchanged; the others are as they were, other ones, or zeros, with tags and without.
    #[test]
    fn what_is_known_is_not_looked_at_and_the_rest_comes_out_alike() {
        let tagger = Tagger::new(&[1; 32]);
        let count = 300;
        let is_known = |index: usize| !index.is_multiple_of(3) || (100..180).contains(&index);
        let before: Vec<u8> = (0..count).flat_map(|index| [(index % 251) as u8 + 1; 4096]).collect();
        let mut now = before.clone();
        for (index, page) in now.chunks_mut(4096).enumerate() {
            match (is_known(index), index % 4) {
                // It must not matter what is there.
                (true, _) => page.fill(0xff),
                (false, 0) => page.fill(0),
                (false, 1 | 2) => page[index] ^= 0x80,
                (false, _) => {}
            }
        }
        let mut unchanged: Vec<Range<usize>> = Vec::new();
        for index in (0..count).filter(|&index| is_known(index)) {
            match unchanged.last_mut() {
                Some(last) if last.end == index * 4096 => last.end += 4096,
                _ => unchanged.push(index * 4096..(index + 1) * 4096),
            }
        }
        for tagger in [tagger.as_ref(), None] {
            let chunk = |(index, page): (usize, &[u8])| {
                let (tag, hash) = (tagger.and_then(|tagger| tagger.tag(page)), Some(Domain::Data.hash(page)));
                let (at, chunk) = ((index * 4096) as u64, index as u32);
                Chunk { at, len: 4096, slot: 0, chunk, hash, shared: true, tag }
            };
            let chunks: Vec<Chunk> = before.chunks(4096).enumerate().map(chunk).collect();
            let planned: Vec<Planned> = (0..count as u32)
                .map(|index| Planned { len: 4096, theirs: Some(Expected::Chunk(index)) })
                .collect();
            let theirs = Theirs { chunks, ..Theirs::default() };
            let buffers = Buffers::new(2, now.len());
            let mut read = |at: usize, bytes: &mut [u8]| {
                bytes.copy_from_slice(&now[at..at + bytes.len()]);
                Ok(())
            };
            let mut room = Vec::new();
            let from_memory = Stretch::in_memory(buffers.take(), &now);
            let from_reads = Stretch::to_be_read(buffers.take(), now.len(), Some(&mut room), &mut read);
            for mut stretch in [from_memory, from_reads] {
                let (mut cuts, mut tags) = (Vec::new(), TagGrid::new(tagger, 4096));
                look_at(&planned, &theirs, (tagger, &mut tags), 0, &mut stretch, &mut cuts, &unchanged)
                    .expect("it is there");
                let mut new = Vec::new();
                for (index, cut) in cuts.iter().enumerate() {
                    let page = &now[index * 4096..][..4096];
                    match cut.what {
                        Page::Same(0, chunk) => {
                            assert!(chunk == index as u32 && (is_known(index) || index % 4 == 3), "{index}");
                        }
                        Page::Zero => assert!(!is_known(index) && index % 4 == 0, "{index}"),
                        Page::Other(hash) => {
                            assert!(!is_known(index) && hash == Domain::Data.hash(page), "{index}");
                            new.extend_from_slice(page);
                        }
                        _ => panic!("{index}"),
                    }
                }
                assert_eq!(cuts.len(), count);
                assert!(stretch.keep(new_ranges(&cuts))[..] == new);
                let expected = |index: &usize| is_known(*index) || !index.is_multiple_of(4);
                let tagged = (0..count).filter(expected).count();
                assert_eq!(tags.finish().len(), if tagger.is_some() { tagged } else { 0 });
            }
        }
    }
}
