//! Which layer has which bytes of a file that several write: ranges of parts, the newest on top.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use stdchk_object::Result;

use super::opened::Opened;

/// Ranges of stored bytes that do not overlap, each at its own place in the part that has it.
#[derive(Clone, Default)]
pub struct Patches {
    ranges: BTreeMap<u64, (u64, Arc<Opened>)>,
}

impl Patches {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Puts a range of a part above what is there.
    pub fn put(&mut self, range: Range<u64>, of: Arc<Opened>) {
        if !range.is_empty() {
            self.remove(range.clone());
            self.ranges.insert(range.start, (range.end, of));
        }
    }

    /// Forgets what lies in a range.
    pub fn remove(&mut self, range: Range<u64>) {
        let before =
            self.ranges.range(..range.start).next_back().map(|(&start, (end, of))| (start, *end, of.clone()));
        if let Some((start, end, of)) = before.filter(|(_, end, _)| *end > range.start) {
            self.ranges.insert(start, (range.start, of.clone()));
            if end > range.end {
                self.ranges.insert(range.end, (end, of));
            }
        }
        let within: Vec<u64> = self.ranges.range(range.clone()).map(|(&start, _)| start).collect();
        for start in within {
            let (end, of) = self.ranges.remove(&start).expect("just seen");
            if end > range.end {
                self.ranges.insert(range.end, (end, of));
            }
        }
    }

    /// What there is in a range, in order.
    pub fn held(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Arc<Opened>)> {
        let Range { start: from, end: to } = range.clone();
        let before = self.ranges.range(..from).next_back().filter(move |(_, (end, _))| *end > from);
        let all = before.into_iter().chain(self.ranges.range(range));
        all.map(move |(&start, (end, of))| (start.max(from)..(*end).min(to), of))
    }

    /// Puts what there is of a range into `target`, which begins at `offset`.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        for (range, of) in self.held(offset..offset + target.len() as u64) {
            let target = &mut target[(range.start - offset) as usize..(range.end - offset) as usize];
            of.read_at(range.start, target)?;
        }
        Ok(())
    }
}
