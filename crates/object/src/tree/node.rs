//! Nodes: leaves of pieces, inner nodes of children.

use super::FANOUT;
use crate::wire::{Reader, Writer};
use crate::{PackName, Result};

const UNIT: u64 = 4096;

/// A run of chunks that lie side by side in one pack, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The pack.
    pub pack: PackName,
    /// The first chunk.
    pub chunk: u32,
    /// Bytes of the first chunk that do not belong to the extent.
    pub skip: u32,
    /// How many bytes the extent has.
    pub len: u64,
}

/// A piece of a leaf's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Zeros that are stored nowhere.
    Hole(u64),
    /// Bytes in a pack.
    Data(Extent),
}

impl Piece {
    /// How many bytes of the blob it stands for.
    pub fn bytes(&self) -> u64 {
        match self {
            Piece::Hole(len) => *len,
            Piece::Data(extent) => extent.len,
        }
    }
}

/// Where a node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// The pack.
    pub pack: PackName,
    /// The chunk in it.
    pub chunk: u32,
}

/// A leaf: pieces that cover its range, up to the end of the blob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// The pieces in order.
    pub pieces: Vec<Piece>,
}

/// An inner node: up to 256 children, `None` for holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The height, at least 1.
    pub height: u8,
    /// Exactly 256.
    pub children: Vec<Option<NodeRef>>,
}

/// A decoded node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Node {
    Leaf(Leaf),
    Inner(Inner),
}

/// The packs that a node names, in the order of first use, and for each where its next extent is expected.
#[derive(Default)]
struct Slots {
    names: Vec<PackName>,
    expected: Vec<u32>,
}

impl Slots {
    fn of(&mut self, name: PackName) -> usize {
        // Nodes name few packs, mostly the one named last; a search from the end beats a map.
        if let Some(back) = self.names.iter().rev().position(|&n| n == name) {
            return self.names.len() - 1 - back;
        }
        self.names.push(name);
        self.expected.push(0);
        self.names.len() - 1
    }

    fn encode(&self, height: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(height);
        out.varint(self.names.len() as u64);
        self.names.iter().for_each(|name| out.raw(&name.to_bytes()));
        out.raw(body);
        out.into_bytes()
    }
}

fn expected_after(extent: &Extent) -> u32 {
    let units = (u64::from(extent.skip) + extent.len).div_ceil(UNIT);
    extent.chunk.wrapping_add(units as u32)
}

impl Leaf {
    /// How many bytes its pieces cover.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes).sum()
    }

    /// Whether it holds nothing but holes.
    pub fn is_hole(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Hole(_)))
    }

    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut slots = Slots::default();
        let mut body = Writer::new();
        for piece in &self.pieces {
            let bytes = piece.bytes();
            let odd = !bytes.is_multiple_of(UNIT);
            let length = if odd { bytes } else { bytes / UNIT };
            match piece {
                Piece::Hole(_) => {
                    body.varint(1 | u64::from(odd) << 1);
                    body.varint(length);
                }
                Piece::Data(extent) => {
                    let slot = slots.of(extent.pack);
                    let skips = extent.skip > 0;
                    body.varint((slot as u64) << 3 | u64::from(skips) << 2 | u64::from(odd) << 1);
                    body.varint(length);
                    body.zigzag(i64::from(extent.chunk) - i64::from(slots.expected[slot]));
                    if skips {
                        body.varint(u64::from(extent.skip));
                    }
                    slots.expected[slot] = expected_after(extent);
                }
            }
        }
        slots.encode(0, &body.into_bytes())
    }
}

impl Inner {
    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut slots = Slots::default();
        let mut body = Writer::new();
        let mut bitmap = [0u8; FANOUT / 8];
        for (i, _) in self.children.iter().enumerate().filter(|(_, child)| child.is_some()) {
            bitmap[i / 8] |= 1 << (i % 8);
        }
        body.raw(&bitmap);
        for child in self.children.iter().flatten() {
            body.varint(slots.of(child.pack) as u64);
            body.varint(u64::from(child.chunk));
        }
        slots.encode(self.height, &body.into_bytes())
    }
}

impl Node {
    /// Reads a node. The caller says what height it expects, and how many bytes it must cover at most.
    pub fn decode(bytes: &[u8], height: u8, leaf_bytes: u64) -> Result<Node> {
        let mut reader = Reader::new(bytes, "tree node");
        if reader.u8()? != height {
            return Err(reader.corrupt("its height is not the one expected there"));
        }
        let slot_count = reader.count(PackName::BYTES)?;
        let mut names = Vec::with_capacity(slot_count);
        for _ in 0..slot_count {
            names.push(PackName::decode(&mut reader)?);
        }
        let node = if height == 0 {
            Node::Leaf(decode_leaf(&mut reader, &names, leaf_bytes)?)
        } else {
            Node::Inner(decode_inner(&mut reader, &names, height)?)
        };
        reader.finish()?;
        Ok(node)
    }
}

fn decode_leaf(reader: &mut Reader, names: &[PackName], leaf_bytes: u64) -> Result<Leaf> {
    let mut expected = vec![0u32; names.len()];
    let mut pieces = Vec::with_capacity(reader.remaining() / 3);
    let mut covered = 0u64;
    while reader.remaining() > 0 {
        let tag = reader.varint()?;
        let length = reader.bounded(leaf_bytes, "a piece's length")?;
        let length = if tag & 2 == 0 { length.saturating_mul(UNIT) } else { length };
        covered = covered.saturating_add(length);
        if length == 0 || covered > leaf_bytes {
            return Err(reader.corrupt("a leaf's pieces do not fit its range"));
        }
        if tag & 1 == 1 {
            if tag > 3 {
                return Err(reader.corrupt("unknown bits in a hole"));
            }
            pieces.push(Piece::Hole(length));
            continue;
        }
        let slot = (tag >> 3) as usize;
        let pack = *names.get(slot).ok_or_else(|| reader.corrupt("a slot that is not there"))?;
        let chunk = i64::from(expected[slot])
            .checked_add(reader.zigzag()?)
            .and_then(|chunk| u32::try_from(chunk).ok())
            .ok_or_else(|| reader.corrupt("a chunk index out of range"))?;
        let skip = if tag & 4 == 0 { 0 } else { reader.varint32("a skip")? };
        let extent = Extent { pack, chunk, skip, len: length };
        expected[slot] = expected_after(&extent);
        pieces.push(Piece::Data(extent));
    }
    Ok(Leaf { pieces })
}

fn decode_inner(reader: &mut Reader, names: &[PackName], height: u8) -> Result<Inner> {
    let bitmap: [u8; FANOUT / 8] = reader.array()?;
    let mut children = vec![None; FANOUT];
    for (i, child) in children.iter_mut().enumerate() {
        if bitmap[i / 8] & (1 << (i % 8)) != 0 {
            let slot = reader.varint()? as usize;
            let pack = *names.get(slot).ok_or_else(|| reader.corrupt("a slot that is not there"))?;
            *child = Some(NodeRef { pack, chunk: reader.varint32("a chunk index")? });
        }
    }
    Ok(Inner { height, children })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use proptest::prelude::*;

    fn pack() -> impl Strategy<Value = PackName> {
        (0u64..4, 0u32..2, 0u32..3).prop_map(|(s, writer, number)| PackName {
            session: SessionId(s),
            writer,
            number,
        })
    }

    fn piece() -> impl Strategy<Value = Piece> {
        let len = prop_oneof![1u64..20_000, (1u64..16).prop_map(|n| n * UNIT)];
        prop_oneof![
            len.clone().prop_map(Piece::Hole),
            (pack(), any::<u32>(), prop_oneof![Just(0u32), 1u32..5000], len)
                .prop_map(|(pack, chunk, skip, len)| Piece::Data(Extent { pack, chunk, skip, len })),
        ]
    }

    proptest! {
        #[test]
        fn leaves_come_back(pieces in proptest::collection::vec(piece(), 0..60)) {
            let leaf = Leaf { pieces };
            let bytes = leaf.encode();
            prop_assert_eq!(Node::decode(&bytes, 0, 4 << 20).unwrap(), Node::Leaf(leaf));
        }

        #[test]
        fn inner_nodes_come_back(some in proptest::collection::vec((0usize..256, pack(), any::<u32>()), 0..60)) {
            let mut children = vec![None; FANOUT];
            for (i, pack, chunk) in some {
                children[i] = Some(NodeRef { pack, chunk });
            }
            let inner = Inner { height: 2, children };
            let bytes = inner.encode();
            prop_assert_eq!(Node::decode(&bytes, 2, 4 << 20).unwrap(), Node::Inner(inner));
            prop_assert!(Node::decode(&bytes, 1, 4 << 20).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), height in 0u8..3) {
            let _ = Node::decode(&bytes, height, 4 << 20);
        }
    }
}
