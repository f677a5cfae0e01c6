//! Reading a pack from its shards.

use stdchk_object::{Error, Kind, Result};

use crate::coder::restore;
use crate::layout::{BLOCK_BYTES, Layout, Segment, sum};

/// Bytes of each shard that are read at once where one must be made again.
const STEP: u64 = 1 << 20;
/// What is coded together: so many bytes of each shard, from a multiple of them on.
const GRAIN: u64 = 64;

/// Whoever has the shards of one pack.
pub trait Shards {
    /// Fills buffers with the stored bytes of a shard, from `offset` on.
    fn read(&self, index: u8, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()>;
}

/// Fills `buffers` with bytes of the pack. What a shard does not give is made from others; those in `without` are not asked.
pub fn read(
    layout: &Layout,
    shards: &dyn Shards,
    without: &[u8],
    offset: u64,
    buffers: &mut [&mut [u8]],
) -> Result<()> {
    let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
    if offset.checked_add(len).is_none_or(|end| end > layout.pack_len()) {
        return Err(Error::corrupt("the pack ends before what is read of it"));
    }
    let mut left: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
    left.reverse();
    for segment in layout.segments(offset, len) {
        let mut mine = take(&mut left, segment.len as usize);
        let direct = match without.contains(&segment.index) {
            true => Err(Error::corrupt("it is not asked")),
            false => shards.read(segment.index, segment.offset, &mut mine),
        };
        if let Err(error) = direct {
            make_again(layout, shards, without, segment, &mut mine)
                .map_err(|missing| missing.within(error.to_string()))?;
        }
    }
    Ok(())
}

/// The next `len` bytes of buffers that lie in `left`, the last first.
fn take<'a>(left: &mut Vec<&'a mut [u8]>, len: usize) -> Vec<&'a mut [u8]> {
    let (mut mine, mut missing) = (Vec::new(), len);
    while missing > 0
        && let Some(buffer) = left.pop()
    {
        let some = missing.min(buffer.len());
        let (head, tail) = buffer.split_at_mut(some);
        if !tail.is_empty() {
            left.push(tail);
        }
        missing -= some;
        mine.push(head);
    }
    mine
}

/// Makes a stretch of a shard of data from the same stretch of others.
fn make_again(
    layout: &Layout,
    shards: &dyn Shards,
    without: &[u8],
    wanted: Segment,
    buffers: &mut [&mut [u8]],
) -> Result<()> {
    let mut left: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
    left.reverse();
    let end = wanted.offset + wanted.len;
    let mut at = wanted.offset;
    while at < end {
        let from = at / GRAIN * GRAIN;
        let to = end.next_multiple_of(GRAIN).min(from + STEP);
        let row = gather(layout, shards, without, wanted.index, from, (to - from) as usize)?;
        let row: Vec<(u8, &[u8])> = row.iter().map(|(index, bytes)| (*index, &bytes[..])).collect();
        let some = to.min(end) - at;
        let mut mine = take(&mut left, some as usize);
        restore(layout.code(), &row, &[wanted.index], |_, block| {
            let mut rest = &block[(at - from) as usize..];
            for buffer in &mut mine {
                let (head, tail) = rest.split_at(buffer.len());
                buffer.copy_from_slice(head);
                rest = tail;
            }
        })?;
        at += some;
    }
    Ok(())
}

/// The same stretch of as many other shards as are needed.
fn gather(
    layout: &Layout,
    shards: &dyn Shards,
    without: &[u8],
    wanted: u8,
    offset: u64,
    len: usize,
) -> Result<Vec<(u8, Vec<u8>)>> {
    let needed = usize::from(layout.code().data());
    let mut row = Vec::with_capacity(needed);
    let (mut failure, mut gone) = (None, 0);
    for index in (0..layout.count()).filter(|index| *index != wanted && !without.contains(index)) {
        if row.len() == needed {
            break;
        }
        let mut bytes = vec![0; len];
        match shards.read(index, offset, &mut [&mut bytes]) {
            Ok(()) => row.push((index, bytes)),
            Err(error) => {
                gone += usize::from(error.kind() == Kind::NotFound);
                failure = Some(error);
            }
        }
    }
    if row.len() == needed {
        return Ok(row);
    }
    let text = format!("only {} of the {needed} shards that are needed can be read", row.len());
    // Where nothing at all is there, nothing is damaged.
    let kind =
        if row.is_empty() && gone + 1 == layout.count().into() { Kind::NotFound } else { Kind::Corrupt };
    Err(match failure {
        Some(error) => error.within(text).with_kind(kind),
        None => Error::new(kind, text),
    })
}

/// Shards of which every block that is read is compared with its sum: one that does not fit is not given.
pub struct Checked<'a> {
    /// Whoever has them.
    pub shards: &'a dyn Shards,
    /// How the pack is cut.
    pub layout: Layout,
}

impl Shards for Checked<'_> {
    fn read(&self, index: u8, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let end = offset + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let (first, last) = (offset / block, end.div_ceil(block).min(self.layout.blocks()));
        let start = first * block;
        let mut bytes = vec![0; ((last * block).min(self.layout.shard_len()) - start) as usize];
        let mut sums = vec![0; ((last - first) * 8) as usize];
        self.shards.read(index, start, &mut [&mut bytes])?;
        self.shards.read(index, self.layout.shard_len() + first * 8, &mut [&mut sums])?;
        let mut blocks = bytes.chunks(BLOCK_BYTES).zip(sums.as_chunks::<8>().0);
        if !blocks.all(|(block, known)| sum(block).to_le_bytes() == *known) {
            return Err(Error::corrupt(format!("shard {index} is damaged")));
        }
        let mut rest = &bytes[(offset - start) as usize..];
        for buffer in buffers {
            let (head, tail) = rest.split_at(buffer.len());
            buffer.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }
}
