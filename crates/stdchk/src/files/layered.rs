//! What a file is while it is written: the version before, as much of it as is left, what others wrote above it together with this mount, and what was
//! written above that.

use std::ops::Range;
use std::sync::Arc;

use stdchk_engine::{Held, Source};
use stdchk_object::Result;

use super::opened::Opened;
use super::overlay::Overlay;
use super::patches::Patches;

/// A file of layers. What none has is zeros.
#[derive(Clone, Default)]
pub struct Layered {
    /// What is below.
    pub base: Option<Arc<Opened>>,
    /// How much of it is left, at its beginning.
    pub base_len: u64,
    /// Ranges of it that are zeros by now, in order.
    pub(super) zeroed: Vec<Range<u64>>,
    /// Whether a new version may share with what is below.
    pub is_base_kept: bool,
    /// What is stored above it already, by this mount and others.
    pub patches: Patches,
    /// What is above all that.
    pub overlay: Overlay,
    /// How long the file is.
    pub len: u64,
}

impl Layered {
    /// A version as it is.
    pub fn of(base: Arc<Opened>) -> Layered {
        let len = base.len();
        Layered { base: Some(base), base_len: len, len, ..Layered::default() }
    }

    /// Whether it is what is below it, and nothing else.
    pub fn is_base(&self) -> bool {
        let base = self.base.as_ref().map_or(0, |base| base.len());
        self.overlay.is_empty()
            && self.patches.is_empty()
            && self.zeroed.is_empty()
            && self.len == base
            && self.base_len == base
    }

    /// Puts bytes above what is there.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.overlay.write(offset, data);
        self.len = self.len.max(offset + data.len() as u64);
    }

    /// Cuts it off, or makes it longer by zeros.
    pub fn set_len(&mut self, len: u64) {
        self.overlay.remove(len..u64::MAX);
        self.patches.remove(len..u64::MAX);
        self.base_len = self.base_len.min(len);
        self.len = len;
    }

    /// Makes a range zeros.
    pub fn punch(&mut self, range: Range<u64>) {
        self.overlay.remove(range.clone());
        let below = range.start..range.end.min(self.base_len);
        if !below.is_empty() {
            self.zeroed.push(below);
            self.zeroed.sort_unstable_by_key(|range| range.start);
            self.zeroed.dedup_by(|next, last| {
                let touches = next.start <= last.end;
                if touches {
                    last.end = last.end.max(next.end);
                }
                touches
            });
        }
    }

    /// What was made zeros of a range.
    fn zeroed_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.zeroed.partition_point(|zeroed| zeroed.end <= range.start);
        let meeting = self.zeroed[first..].iter().take_while(move |zeroed| zeroed.start < range.end);
        meeting.map(move |zeroed| zeroed.start.max(range.start)..zeroed.end.min(range.end))
    }

    /// Bytes from an offset on, fewer where it ends.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let left = self.len.saturating_sub(offset).min(len as u64);
        let mut bytes = vec![0; left as usize];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The next place from an offset on that may not be zeros, or with `wants_hole` that may be.
    pub fn seek(&self, offset: u64, wants_hole: bool) -> u64 {
        if offset >= self.len {
            return self.len;
        }
        let above = |at: u64| {
            let new = self.overlay.held(at..self.len).next();
            let stored = self.patches.held(at..self.len).next().map(|(range, _)| range);
            new.into_iter().chain(stored).min_by_key(|range| range.start).unwrap_or(self.len..self.len)
        };
        let data = |at: u64| {
            let above = above(at).start;
            match &self.base {
                Some(base) if at < self.base_len => match base.next_data(at) {
                    below if below < self.base_len => above.min(below),
                    _ => above,
                },
                _ => above,
            }
        };
        if !wants_hole {
            return data(offset);
        }
        let mut at = offset.max(self.base_len);
        while at < self.len && data(at) == at {
            at = above(at).end;
        }
        at.min(self.len)
    }
}

impl Source for Layered {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let below = self.base_len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (from_base, zeros) = buffer.split_at_mut(below);
        let range = offset..offset + below as u64;
        if let Some(base) = &self.base
            && self.overlay.held(range.clone()).map(|held| held.end - held.start).sum::<u64>() < below as u64
        {
            base.read_at(offset, from_base)?;
        }
        for zeroed in self.zeroed_in(range) {
            from_base[(zeroed.start - offset) as usize..(zeroed.end - offset) as usize].fill(0);
        }
        zeros.fill(0);
        self.patches.read(offset, buffer)?;
        self.overlay.read(offset, buffer);
        Ok(())
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.seek(offset, false)
    }

    fn held(&self, range: Range<u64>) -> Vec<Held> {
        let below = range.start..range.end.min(self.base_len).max(range.start);
        let base = self.base.iter().filter(|_| self.is_base_kept).map(|base| (below.clone(), base));
        let mut held: Vec<(Range<u64>, &Arc<Opened>)> = Vec::new();
        for (range, of) in base.filter(|(range, _)| !range.is_empty()) {
            let patched = self.patches.held(range.clone()).map(|(range, _)| range);
            held.extend(
                without(range, self.zeroed_in(below.clone()).chain(patched)).map(|range| (range, of)),
            );
        }
        held.extend(self.patches.held(range));
        let uncovered = held.into_iter().flat_map(|(range, of)| {
            without(range.clone(), self.overlay.held(range)).map(move |range| (range, of))
        });
        let mut held: Vec<Held> = uncovered.map(|(range, of)| of.held(range)).collect();
        held.sort_unstable_by_key(|held| held.range.start);
        held
    }
}

/// What is left of a range without others, which may overlap.
fn without(range: Range<u64>, others: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let mut others: Vec<Range<u64>> = others.collect();
    others.sort_unstable_by_key(|other| other.start);
    let (mut left, mut at) = (Vec::new(), range.start);
    for other in others {
        left.push(at..other.start);
        at = at.max(other.end);
    }
    left.push(at..range.end);
    left.into_iter().filter(|range| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_others() {
        let left = |range: Range<u64>, others: &[Range<u64>]| {
            let left = without(range, others.iter().cloned());
            left.map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        let (two, four) = (7..8, [7..8, 5..6, 5..7]);
        assert_eq!(left(5..9, &[]), [(5, 9)]);
        assert_eq!(left(5..9, &four), [(8, 9)]);
        assert_eq!(left(5..9, std::slice::from_ref(&two)), [(5, 7), (8, 9)]);
        assert_eq!(left(7..8, &[two.clone(), two]), []);
    }
}
