//! Bytes that were written above others: by ranges, the newest on top.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that touch are joined until one is so long: longer ones would be copied too often.
const JOINED_MAX: usize = 1 << 20;
/// What a range takes besides its bytes: its place in the tree, and in the allocator.
const RANGE_BYTES: usize = 96;

/// Ranges of bytes in memory that do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    ranges: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Overlay {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it takes of the memory, about: short ranges take more for where they are than for what they hold.
    pub fn memory(&self) -> usize {
        self.bytes + self.ranges.len() * RANGE_BYTES
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Puts bytes above what is there.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.remove(offset..offset + data.len() as u64);
        self.bytes += data.len();
        if let Some((&start, range)) = self.ranges.range_mut(..offset).next_back()
            && start + range.len() as u64 == offset
            && range.len() + data.len() <= JOINED_MAX
        {
            range.extend_from_slice(data);
            return;
        }
        self.ranges.insert(offset, data.to_vec());
    }

    /// Forgets what lies in a range.
    pub fn remove(&mut self, range: Range<u64>) {
        // One that begins before may reach into the range, and beyond it.
        if let Some((&start, before)) = self.ranges.range_mut(..range.start).next_back() {
            let end = start + before.len() as u64;
            if end > range.start {
                let rest = (end > range.end).then(|| before[(range.end - start) as usize..].to_vec());
                before.truncate((range.start - start) as usize);
                self.bytes -= (end.min(range.end) - range.start) as usize;
                if let Some(rest) = rest {
                    self.ranges.insert(range.end, rest);
                }
            }
        }
        let within: Vec<u64> = self.ranges.range(range.clone()).map(|(&start, _)| start).collect();
        for start in within {
            let bytes = self.ranges.remove(&start).expect("just seen");
            let end = start + bytes.len() as u64;
            self.bytes -= (end.min(range.end) - start) as usize;
            if end > range.end {
                self.ranges.insert(range.end, bytes[(range.end - start) as usize..].to_vec());
            }
        }
    }

    /// Puts what it holds of a range into `target`, which begins at `offset`.
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        let end = offset + target.len() as u64;
        for (start, bytes) in self.meeting(offset..end) {
            let (from, to) = (start.max(offset), (start + bytes.len() as u64).min(end));
            let bytes = &bytes[(from - start) as usize..(to - start) as usize];
            target[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
        }
    }

    /// What it holds of a range, in order; ranges that touch are not joined.
    pub fn held(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let Range { start: from, end: to } = range.clone();
        self.meeting(range).map(move |(start, bytes)| start.max(from)..(start + bytes.len() as u64).min(to))
    }

    fn meeting(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let before = self.ranges.range(..range.start).next_back();
        let before = before.filter(|(start, bytes)| **start + bytes.len() as u64 > range.start);
        let all = before.into_iter().chain(self.ranges.range(range));
        all.map(|(&start, bytes)| (start, bytes.as_slice()))
    }

    /// Where it ends, if it holds all from 0 on until there.
    pub fn run_from_start(&self) -> Option<u64> {
        let mut end = 0;
        for (&start, bytes) in &self.ranges {
            if start != end {
                return None;
            }
            end += bytes.len() as u64;
        }
        Some(end)
    }

    /// All that it holds, in order.
    pub fn into_ranges(self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.ranges.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_what_was_written_last(steps in proptest::collection::vec((0u64..300, 0usize..90, any::<bool>()), 1..60)) {
            let mut overlay = Overlay::default();
            let mut model: Vec<Option<u8>> = vec![None; 512];
            for (number, (offset, len, writes)) in steps.into_iter().enumerate() {
                let range = offset as usize..offset as usize + len;
                if writes {
                    overlay.write(offset, &vec![number as u8; len]);
                    model[range].fill(Some(number as u8));
                } else {
                    overlay.remove(offset..offset + len as u64);
                    model[range].fill(None);
                }
                prop_assert_eq!(overlay.bytes(), model.iter().flatten().count());
            }
            for (from, len) in [(0, 512), (17, 101), (100, 1), (250, 0)] {
                let mut read = vec![255; len];
                overlay.read(from as u64, &mut read);
                let wanted: Vec<u8> = model[from..from + len].iter().map(|byte| byte.unwrap_or(255)).collect();
                prop_assert_eq!(&read, &wanted);
                let held: u64 = overlay.held(from as u64..(from + len) as u64).map(|range| range.end - range.start).sum();
                prop_assert_eq!(held as usize, model[from..from + len].iter().flatten().count());
            }
        }
    }
}
