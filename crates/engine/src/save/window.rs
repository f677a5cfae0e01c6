//! Stretches of one member on their way: looked at by workers in any order, taken in the order of the bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use stdchk_object::member::{Chunking, Content};
use stdchk_object::{Hash, Result};

use super::blob::BlobWriter;
use super::unit::Unit;
use super::{PartWriter, empty_content};
use crate::buffers::Buffer;
use crate::tags::{TagWriter, Tagged};
use crate::workers::Answer;

/// A stretch that is being looked at.
pub enum Pending {
    Hole(u64),
    Unit(Answer<Unit>, u64),
    Chunks(Answer<(Arc<Buffer>, Vec<(u32, Hash)>)>, u64),
}

/// What the stretches taken so far say about the next: where the parent's bytes are, and whether looking for them pays.
pub struct Trail {
    /// By how much the parent's bytes are further on.
    pub shift: i64,
    /// Shifts that were in force lately, the last one first; 0 always is among them.
    pub shifts: Vec<i64>,
    credit: i32,
    /// Whether a good part of the last stretch was the parent's, or zeros: then so may be some of the next.
    pub some_old: bool,
}

/// Shifts that are remembered.
const SHIFTS_MAX: usize = 4;

/// What searches may cost at most at a time, and what one adds or takes. Where nothing is ever found, one stretch in
/// sixteen is searched.
const CREDIT_MAX: i32 = 48;
const CREDIT_STEP: i32 = 16;

impl Trail {
    fn new(has_parent: bool) -> Trail {
        Trail { shift: 0, shifts: vec![0], credit: CREDIT_MAX, some_old: has_parent }
    }

    /// Whether the parent's place may be looked for where it is lost.
    pub fn may_search(&self) -> bool {
        self.credit > 0
    }

    fn pass(&mut self, unit: &Unit) {
        self.shift = unit.shift;
        self.some_old = 8 * unit.bytes_new() <= 7 * unit.bytes();
        self.shifts.retain(|&shift| shift != unit.shift && shift != 0);
        self.shifts.insert(0, unit.shift);
        self.shifts.truncate(SHIFTS_MAX);
        if unit.shift != 0 {
            self.shifts.push(0);
        }
        let change = 1 + (i64::from(unit.found) - i64::from(unit.missed)) as i32 * CREDIT_STEP;
        self.credit = (self.credit + change).clamp(-CREDIT_STEP, CREDIT_MAX);
    }
}

/// The stretches under way, and the blob that they become.
pub struct Window<'a> {
    pending: VecDeque<Pending>,
    limit: usize,
    blob: BlobWriter,
    progress: &'a dyn Fn(u64),
    /// Where the next stretch that is taken begins.
    at: u64,
    tags: Option<TagWriter>,
    pub trail: Trail,
}

impl<'a> Window<'a> {
    /// Room for `limit` stretches of a member that a parent may have, too.
    pub fn new(limit: usize, leaf_shift: u8, has_parent: bool, progress: &'a dyn Fn(u64)) -> Window<'a> {
        let blob = BlobWriter::new(leaf_shift);
        let trail = Trail::new(has_parent);
        Window { pending: VecDeque::new(), limit, blob, progress, at: 0, tags: None, trail }
    }

    /// Has the tags of all that is taken written.
    pub fn write_tags(&mut self, tags: Option<TagWriter>) {
        self.tags = tags;
    }

    /// Takes the oldest stretches until there is room for one more.
    pub fn make_room(&mut self, part: &mut PartWriter) -> Result<()> {
        while self.pending.len() >= self.limit
            && let Some(oldest) = self.pending.pop_front()
        {
            self.take(oldest, part)?;
        }
        Ok(())
    }

    /// Adds a stretch; there must be room.
    pub fn push(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    /// Takes what is left.
    pub fn finish(mut self, part: &mut PartWriter, chunking: Chunking) -> Result<Content> {
        while let Some(oldest) = self.pending.pop_front() {
            self.take(oldest, part)?;
        }
        let (blob, tally) = self.blob.finish(part)?;
        if let Some(tags) = self.tags {
            tags.finish(&blob);
        }
        Ok(Content { tally, ..empty_content(chunking, blob) })
    }

    fn take(&mut self, pending: Pending, part: &mut PartWriter) -> Result<()> {
        let before = self.blob.tally.new;
        let len = match pending {
            Pending::Hole(len) => {
                self.blob.hole(part, len)?;
                len
            }
            Pending::Unit(answer, len) => {
                let unit = answer.wait()?;
                self.trail.pass(&unit);
                self.add_tags(&unit);
                self.blob.unit(part, unit)?;
                len
            }
            Pending::Chunks(answer, len) => {
                let (buffer, chunks) = answer.wait()?;
                self.blob.chunks(part, buffer, &chunks)?;
                len
            }
        };
        let new = self.blob.tally.new - before;
        part.coder.meter.passed(len, new);
        part.note_passed(len, new);
        self.at += len;
        (self.progress)(len);
        Ok(())
    }

    fn add_tags(&mut self, unit: &Unit) {
        let Some(tags) = &mut self.tags else { return };
        unit.tags.iter().for_each(|tagged| tags.add(Tagged { at: self.at + tagged.at, ..*tagged }));
    }
}
