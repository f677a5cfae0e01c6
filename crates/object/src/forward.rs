//! Forward tables: where compaction moved the live chunks of one pack.

use crate::wire::{Reader, Writer};
use crate::{PackName, PackRef, Result};

/// A range of chunks that moved together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// First chunk in the old pack.
    pub from: u32,
    /// How many chunks.
    pub count: u32,
    /// Index of the new pack in the table's list.
    pub pack: u32,
    /// First chunk in the new pack.
    pub to: u32,
}

/// Where the live chunks of `old` went. Chunks in no range were dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTable {
    /// The pack that was compacted.
    pub old: PackName,
    /// The packs that hold its chunks now.
    pub packs: Vec<PackRef>,
    /// The ranges, ascending, not overlapping.
    pub ranges: Vec<Moved>,
}

impl ForwardTable {
    /// Where a chunk went, and how many chunks from it on lie side by side there.
    pub fn lookup(&self, chunk: u32) -> Option<(&PackRef, u32, u32)> {
        let after = self.ranges.partition_point(|range| range.from <= chunk);
        let range = self.ranges[..after].last()?;
        let into = chunk - range.from;
        (into < range.count).then(|| (&self.packs[range.pack as usize], range.to + into, range.count - into))
    }

    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(&self.old.to_bytes());
        out.varint(self.packs.len() as u64);
        self.packs.iter().for_each(|pack| pack.encode(&mut out));
        out.varint(self.ranges.len() as u64);
        let mut end = 0;
        for range in &self.ranges {
            out.varint(u64::from(range.from - end));
            out.varint(u64::from(range.count));
            out.varint(u64::from(range.pack));
            out.varint(u64::from(range.to));
            end = range.from + range.count;
        }
        out.into_bytes()
    }

    /// Reads a table.
    pub fn decode(bytes: &[u8]) -> Result<ForwardTable> {
        let mut reader = Reader::new(bytes, "forward table");
        let old = PackName::decode(&mut reader)?;
        let count = reader.count(PackRef::BYTES_MIN)?;
        let mut packs = Vec::with_capacity(count);
        for _ in 0..count {
            packs.push(PackRef::decode(&mut reader)?);
        }
        let count = reader.count(4)?;
        let mut ranges = Vec::with_capacity(count);
        let mut end = 0u32;
        for _ in 0..count {
            let gap = reader.varint32("a gap")?;
            let count = reader.varint32("a count")?;
            let pack = reader.varint32("a pack")?;
            let to = reader.varint32("a chunk index")?;
            let from = end.checked_add(gap);
            let next = from.and_then(|from| from.checked_add(count));
            let (Some(from), Some(next), Some(_)) = (from, next, to.checked_add(count)) else {
                return Err(reader.corrupt("a range out of range"));
            };
            if count == 0 || pack as usize >= packs.len() {
                return Err(reader.corrupt("an empty range, or one in no pack"));
            }
            ranges.push(Moved { from, count, pack, to });
            end = next;
        }
        reader.finish()?;
        Ok(ForwardTable { old, packs, ranges })
    }
}
