//! Building a tree from pieces that come in order.

use super::{Blob, Extent, FANOUT, INLINE_BYTES_MAX, Inner, Leaf, NodeRef, Piece, Root, height_for};
use crate::Result;

/// Takes encoded nodes and says where they lie. One that was stored before may be answered with the old place.
pub trait NodeSink {
    /// Stores a node, or finds it.
    fn node(&mut self, height: u8, bytes: Vec<u8>) -> Result<NodeRef>;
}

/// Builds the tree of one blob. Pieces are pushed in order; neighbours that continue each other must have
/// been joined by the caller where that is known, since only it knows the chunks' lengths.
pub struct TreeBuilder {
    leaf_shift: u8,
    leaf: Leaf,
    leaf_filled: u64,
    len: u64,
    /// Children of the unfinished inner node of each height, from 1 up.
    levels: Vec<Vec<Option<NodeRef>>>,
    /// An only leaf that may end up inline.
    first_leaf: Option<Vec<u8>>,
}

impl TreeBuilder {
    /// An empty blob.
    pub fn new(leaf_shift: u8) -> TreeBuilder {
        TreeBuilder {
            leaf_shift,
            leaf: Leaf::default(),
            leaf_filled: 0,
            len: 0,
            levels: Vec::new(),
            first_leaf: None,
        }
    }

    /// Bytes pushed so far.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Adds a piece; it is split where it crosses the border of a leaf. `chunk_at` tells, for an extent and
    /// a number of bytes into it, which chunk that is and how many bytes into the chunk.
    pub fn push(
        &mut self,
        piece: Piece,
        sink: &mut dyn NodeSink,
        chunk_at: &dyn Fn(&Extent, u64) -> Result<(u32, u32)>,
    ) -> Result<()> {
        let mut rest = piece;
        loop {
            let room = (1u64 << self.leaf_shift) - self.leaf_filled;
            if rest.bytes() < room {
                self.add(rest);
                return Ok(());
            }
            let (head, tail) = split(rest, room, chunk_at)?;
            self.add(head);
            self.end_leaf(sink)?;
            match tail {
                Some(tail) => rest = tail,
                None => return Ok(()),
            }
        }
    }

    fn add(&mut self, piece: Piece) {
        self.leaf_filled += piece.bytes();
        self.len += piece.bytes();
        if let (Piece::Hole(more), Some(Piece::Hole(last))) = (piece, self.leaf.pieces.last_mut()) {
            *last += more;
            return;
        }
        self.leaf.pieces.push(piece);
    }

    fn end_leaf(&mut self, sink: &mut dyn NodeSink) -> Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        self.leaf_filled = 0;
        if self.levels.is_empty() && self.first_leaf.is_none() {
            // The first leaf waits: if it stays the only one it may be kept inline.
            self.first_leaf = Some(if leaf.is_hole() { Vec::new() } else { leaf.encode() });
            return Ok(());
        }
        self.settle_first_leaf(sink)?;
        let child = if leaf.is_hole() { None } else { Some(sink.node(0, leaf.encode())?) };
        self.add_child(1, child, sink)
    }

    fn settle_first_leaf(&mut self, sink: &mut dyn NodeSink) -> Result<()> {
        if let Some(bytes) = self.first_leaf.take() {
            let child = if bytes.is_empty() { None } else { Some(sink.node(0, bytes)?) };
            self.add_child(1, child, sink)?;
        }
        Ok(())
    }

    fn add_child(&mut self, height: u8, child: Option<NodeRef>, sink: &mut dyn NodeSink) -> Result<()> {
        let at = usize::from(height) - 1;
        if self.levels.len() == at {
            self.levels.push(Vec::with_capacity(FANOUT));
        }
        self.levels[at].push(child);
        // A full node goes up only when another child comes: it may turn out to be the root.
        if self.levels[at].len() > FANOUT {
            let last = self.levels[at].pop().expect("just pushed");
            let full = std::mem::take(&mut self.levels[at]);
            self.levels[at].push(last);
            let node = store_inner(height, full, sink)?;
            self.add_child(height + 1, node, sink)?;
        }
        Ok(())
    }

    /// Ends the blob.
    pub fn finish(mut self, sink: &mut dyn NodeSink) -> Result<Blob> {
        if !self.leaf.pieces.is_empty() {
            self.end_leaf(sink)?;
        }
        let (len, leaf_shift) = (self.len, self.leaf_shift);
        let root = match self.first_leaf.take() {
            Some(bytes) if bytes.is_empty() => Root::Hole,
            Some(bytes) if bytes.len() <= INLINE_BYTES_MAX => Root::Inline(bytes),
            Some(bytes) => Root::Node(sink.node(0, bytes)?),
            None => self.finish_levels(sink)?,
        };
        Ok(Blob { len, leaf_shift, root })
    }

    fn finish_levels(&mut self, sink: &mut dyn NodeSink) -> Result<Root> {
        let top = height_for(self.len, self.leaf_shift);
        for height in 1..=top {
            let children = std::mem::take(&mut self.levels[usize::from(height) - 1]);
            let node = store_inner(height, children, sink)?;
            if height == top {
                return Ok(node.map_or(Root::Hole, Root::Node));
            }
            self.add_child(height + 1, node, sink)?;
        }
        Ok(Root::Hole)
    }
}

fn store_inner(
    height: u8,
    mut children: Vec<Option<NodeRef>>,
    sink: &mut dyn NodeSink,
) -> Result<Option<NodeRef>> {
    if children.iter().all(Option::is_none) {
        return Ok(None);
    }
    children.resize(FANOUT, None);
    Ok(Some(sink.node(height, Inner { height, children }.encode())?))
}

fn split(
    piece: Piece,
    at: u64,
    chunk_at: &dyn Fn(&Extent, u64) -> Result<(u32, u32)>,
) -> Result<(Piece, Option<Piece>)> {
    let rest = piece.bytes() - at;
    if rest == 0 {
        return Ok((piece, None));
    }
    Ok(match piece {
        Piece::Hole(_) => (Piece::Hole(at), Some(Piece::Hole(rest))),
        Piece::Data(extent) => {
            let (chunk, skip) = chunk_at(&extent, at)?;
            let tail = Extent { pack: extent.pack, chunk, skip, len: rest };
            (Piece::Data(Extent { len: at, ..extent }), Some(Piece::Data(tail)))
        }
    })
}
