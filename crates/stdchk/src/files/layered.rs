//! What a file is while it is written: the version before, as much of it as is left, and what was written above it.

use std::ops::Range;
use std::sync::Arc;

use stdchk_engine::Source;
use stdchk_object::Result;
use stdchk_object::tree::Blob;

use super::opened::Opened;
use super::overlay::Overlay;

/// A file of two layers. What neither has is zeros.
#[derive(Clone, Default)]
pub struct Layered {
    /// What is below.
    pub base: Option<Arc<Opened>>,
    /// How much of it is left, at its beginning.
    pub base_len: u64,
    /// Ranges of it that are zeros by now, in order.
    zeroed: Vec<Range<u64>>,
    /// What is above.
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
        self.overlay.is_empty() && self.zeroed.is_empty() && self.len == base && self.base_len == base
    }

    /// Puts bytes above what is there.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.overlay.write(offset, data);
        self.len = self.len.max(offset + data.len() as u64);
    }

    /// Cuts it off, or makes it longer by zeros.
    pub fn set_len(&mut self, len: u64) {
        self.overlay.remove(len..u64::MAX);
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
        let data = |at: u64| {
            let above = self.overlay.held(at..self.len).next().map_or(self.len, |range| range.start);
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
            at = self.overlay.held(at..self.len).next().map_or(self.len, |range| range.end);
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
        self.overlay.read(offset, buffer);
        Ok(())
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.seek(offset, false)
    }

    fn changed_since(&self, blob: &Blob, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.base.as_ref().filter(|base| base.content.blob == *blob)?;
        let kept = range.start..range.end.min(self.base_len).max(range.start);
        let tail = kept.end..range.end;
        let mut changed: Vec<Range<u64>> =
            self.overlay.held(kept.clone()).chain(self.zeroed_in(kept)).chain([tail]).collect();
        changed.retain(|range| !range.is_empty());
        changed.sort_unstable_by_key(|range| range.start);
        Some(changed)
    }
}
