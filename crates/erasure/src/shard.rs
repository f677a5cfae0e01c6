//! Making shards.

use stdchk_object::{Code, PackName, Result};

use crate::coder::Parity;
use crate::layout::{BLOCK_BYTES, Layout, sum};

/// Bytes that lie in several pieces.
struct Scattered<'a> {
    pieces: &'a [&'a [u8]],
    /// Where each piece begins, and where the last one ends.
    starts: Vec<u64>,
}

impl<'a> Scattered<'a> {
    fn new(pieces: &'a [&'a [u8]]) -> Scattered<'a> {
        let mut end = 0;
        let mut starts = vec![0];
        starts.extend(pieces.iter().map(|piece| {
            end += piece.len() as u64;
            end
        }));
        Scattered { pieces, starts }
    }

    fn len(&self) -> u64 {
        *self.starts.last().expect("there is one more than pieces")
    }

    /// The bytes `from..to`, as far as there are any.
    fn slices(&self, from: u64, to: u64) -> impl Iterator<Item = &'a [u8]> {
        let first = self.starts.partition_point(|&start| start <= from).saturating_sub(1);
        let pieces = self.pieces.iter().zip(&self.starts).skip(first);
        pieces.take_while(move |(_, start)| **start < to).filter_map(move |(piece, &start)| {
            let skip = from.saturating_sub(start) as usize;
            let end = ((to - start) as usize).min(piece.len());
            (skip < end).then(|| &piece[skip..end])
        })
    }

    /// A block, copied only where it lies in several pieces; behind the end there are zeros.
    fn block<'b>(&self, from: u64, len: usize, room: &'b mut [u8]) -> &'b [u8]
    where
        'a: 'b,
    {
        let mut slices = self.slices(from, from + len as u64);
        let first = slices.next().unwrap_or_default();
        if first.len() == len {
            return first;
        }
        let mut at = 0;
        for slice in std::iter::once(first).chain(slices) {
            room[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        room[at..len].fill(0);
        &room[..len]
    }
}

/// A pack as shards; those of data are still the pieces that it was made of.
pub struct Encoded<'a> {
    layout: Layout,
    pieces: Scattered<'a>,
    parity: Vec<Vec<u8>>,
    /// What follows the bytes of each shard: sums and tail.
    ends: Vec<Vec<u8>>,
    zeros: Vec<u8>,
}

impl<'a> Encoded<'a> {
    /// Cuts a pack, and adds parity.
    pub fn new(name: PackName, code: Code, pieces: &'a [&'a [u8]]) -> Result<Encoded<'a>> {
        let pieces = Scattered::new(pieces);
        let layout = Layout::of(code, pieces.len());
        Encoded::with_layout(name, layout, pieces)
    }

    /// The same for a pack of which it is known how it was cut.
    pub fn again(name: PackName, layout: Layout, pieces: &'a [&'a [u8]]) -> Result<Encoded<'a>> {
        Encoded::with_layout(name, layout, Scattered::new(pieces))
    }

    fn with_layout(name: PackName, layout: Layout, pieces: Scattered<'a>) -> Result<Encoded<'a>> {
        let (code, shard_len) = (layout.code(), layout.shard_len());
        let (data, count) = (usize::from(code.data()), usize::from(layout.count()));
        let mut coder = Parity::new(code, layout.block_len(0))?;
        let mut parity = vec![Vec::with_capacity(shard_len as usize); count - data];
        let mut ends = vec![Vec::new(); count];
        let mut rooms = vec![vec![0; BLOCK_BYTES.min(shard_len as usize)]; data];
        for block in 0..layout.blocks() {
            let (at, len) = (block * BLOCK_BYTES as u64, layout.block_len(block));
            let row: Vec<&[u8]> = (0u64..)
                .zip(&mut rooms)
                .map(|(index, room)| pieces.block(index * shard_len + at, len, room))
                .collect();
            ends.iter_mut().zip(&row).for_each(|(end, block)| end.extend(sum(block).to_le_bytes()));
            coder.of(row, len, |at, block| {
                parity[at].extend_from_slice(block);
                ends[data + at].extend(sum(block).to_le_bytes());
            })?;
        }
        for (index, end) in ends.iter_mut().enumerate() {
            let tail = layout.tail(name, index as u8, end);
            end.extend(tail);
        }
        let padding = u64::from(code.data()) * shard_len - pieces.len();
        Ok(Encoded { layout, pieces, parity, ends, zeros: vec![0; padding.min(shard_len) as usize] })
    }

    /// How it is cut.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// A shard as it is to be stored, in pieces.
    pub fn shard(&self, index: u8) -> Vec<&[u8]> {
        let end = &self.ends[usize::from(index)][..];
        if let Some(parity) = usize::from(index).checked_sub(self.layout.code().data().into()) {
            return vec![&self.parity[parity], end];
        }
        let shard_len = self.layout.shard_len();
        let from = u64::from(index) * shard_len;
        let mut slices: Vec<&[u8]> = self.pieces.slices(from, from + shard_len).collect();
        let missing = shard_len - slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
        slices.push(&self.zeros[..missing as usize]);
        slices.push(end);
        slices
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = (u8, Vec<&[u8]>)> {
        (0..self.layout.count()).map(|index| (index, self.shard(index)))
    }
}
