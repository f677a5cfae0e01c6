//! Walking the trees of blobs.

use std::sync::Arc;

use stdchk_object::pack::ChunkKind;
use stdchk_object::tree::{Blob, FANOUT_SHIFT, Inner, Leaf, Node, NodeRef, Piece, Root, span_shift};
use stdchk_object::{Error, Hash, PackRef, Result};

use super::{Roots, Scratch, Vault};

/// Bytes that are read and checked together, so that they are still in the processor's cache.
const SLICE_BYTES: usize = 256 << 10;

/// A leaf that was not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafAt {
    /// Zeros.
    Hole,
    /// Kept in the blob itself.
    Inline(Arc<[u8]>),
    /// A node.
    Node(NodeRef),
}

impl Vault {
    fn node(&self, roots: &Roots, node: NodeRef, height: u8, leaf_bytes: u64) -> Result<Node> {
        let (open, chunk, _) = self.resolve(roots, node.pack, node.chunk)?;
        let bytes = self.chunk(&open, chunk, ChunkKind::Node)?;
        Node::decode(&bytes, height, leaf_bytes)
    }

    /// Calls `each` for the leaves that meet `from..to`, in order, with the offset where the leaf begins.
    /// A hole may be reported for many leaves at once; the last argument is how many bytes it covers.
    pub fn walk(
        &self,
        roots: &Roots,
        blob: &Blob,
        range: std::ops::Range<u64>,
        each: &mut dyn FnMut(u64, LeafAt, u64) -> Result<()>,
    ) -> Result<()> {
        let range = range.start..range.end.min(blob.len);
        if range.is_empty() {
            return Ok(());
        }
        match &blob.root {
            Root::Hole => each(0, LeafAt::Hole, blob.len),
            Root::Inline(bytes) => each(0, LeafAt::Inline(bytes.as_slice().into()), blob.len),
            Root::Node(node) => self.walk_node(roots, blob, *node, blob.height(), 0, &range, each),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn walk_node(
        &self,
        roots: &Roots,
        blob: &Blob,
        node: NodeRef,
        height: u8,
        start: u64,
        range: &std::ops::Range<u64>,
        each: &mut dyn FnMut(u64, LeafAt, u64) -> Result<()>,
    ) -> Result<()> {
        if height == 0 {
            return each(start, LeafAt::Node(node), (blob.len - start).min(blob.leaf_bytes()));
        }
        let Node::Inner(Inner { children, .. }) = self.node(roots, node, height, blob.leaf_bytes())? else {
            return Err(Error::corrupt("a leaf where an inner node was expected"));
        };
        let shift = span_shift(height, blob.leaf_shift) - FANOUT_SHIFT;
        for (i, child) in children.into_iter().enumerate() {
            let span = 1u64.checked_shl(shift);
            let begin = match (i, span) {
                (0, _) => Some(start),
                (_, Some(span)) => (i as u64).checked_mul(span).and_then(|offset| start.checked_add(offset)),
                (_, None) => None,
            };
            let Some(begin) = begin.filter(|&begin| begin < range.end) else { break };
            let end = begin.saturating_add(1u64.checked_shl(shift).unwrap_or(u64::MAX)).min(blob.len);
            if end <= range.start {
                continue;
            }
            match child {
                None => each(begin, LeafAt::Hole, end - begin)?,
                Some(child) => self.walk_node(roots, blob, child, height - 1, begin, range, each)?,
            }
        }
        Ok(())
    }

    /// The leaf that holds `offset`, where it begins and how many bytes it covers. `seen` is told the hash,
    /// the pack and the chunk of every inner node on the way.
    pub fn find_leaf(
        &self,
        roots: &Roots,
        blob: &Blob,
        offset: u64,
        seen: &mut dyn FnMut(Hash, PackRef, u32),
    ) -> Result<(LeafAt, u64, u64)> {
        let mut node = match &blob.root {
            Root::Hole => return Ok((LeafAt::Hole, 0, blob.len)),
            Root::Inline(bytes) => return Ok((LeafAt::Inline(bytes.as_slice().into()), 0, blob.len)),
            Root::Node(node) => *node,
        };
        let mut start = 0u64;
        for height in (0..=blob.height()).rev() {
            if height == 0 {
                break;
            }
            let Node::Inner(inner) = self.node(roots, node, height, blob.leaf_bytes())? else {
                return Err(Error::corrupt("a leaf where an inner node was expected"));
            };
            // Only what was just read whole may be shared.
            let (open, chunk, _) = self.resolve(roots, node.pack, node.chunk)?;
            if !self.is_damaged(open.pack.name, chunk) {
                seen(self.hash(&open, chunk)?, open.pack, chunk);
            }
            let shift = span_shift(height, blob.leaf_shift) - FANOUT_SHIFT;
            let index = (offset - start) >> shift;
            start += index << shift;
            match inner.children.get(index as usize).copied().flatten() {
                Some(child) => node = child,
                None => return Ok((LeafAt::Hole, start, (1u64 << shift).min(blob.len - start))),
            }
        }
        Ok((LeafAt::Node(node), start, blob.leaf_bytes().min(blob.len - start)))
    }

    /// Fills `buffer` with a blob's bytes from `offset` on; the blob must have them.
    pub fn read_range(&self, roots: &Roots, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let (mut scratch, mut filled) = (Scratch::default(), 0);
        self.walk(roots, blob, offset..end, &mut |start, at, len| {
            if at == LeafAt::Hole {
                return Ok(());
            }
            let leaf = self.leaf(roots, blob, &at, len)?;
            let range = start.max(offset)..(start + len).min(end);
            let place = (range.start - offset) as usize;
            for slice in
                self.slices_within(roots, &leaf, range.start - start..range.end - start, SLICE_BYTES)?
            {
                let target = place + slice.start..place + slice.start + slice.len;
                buffer[filled..target.start].fill(0);
                filled = target.end;
                self.read_slice(&slice, &mut buffer[target], &mut scratch)?;
            }
            Ok(())
        })?;
        buffer[filled..].fill(0);
        Ok(())
    }

    /// Reads a leaf, which must cover exactly `len` bytes.
    pub fn leaf(&self, roots: &Roots, blob: &Blob, at: &LeafAt, len: u64) -> Result<Leaf> {
        let node = match at {
            LeafAt::Hole => return Ok(Leaf { pieces: vec![Piece::Hole(len)] }),
            LeafAt::Inline(bytes) => Node::decode(bytes, 0, blob.leaf_bytes())?,
            LeafAt::Node(node) => self.node(roots, *node, 0, blob.leaf_bytes())?,
        };
        match node {
            Node::Leaf(leaf) if leaf.bytes() == len => Ok(leaf),
            _ => Err(Error::corrupt("a leaf does not cover its range")),
        }
    }

    /// Calls `each` with every node of a blob's tree, leaves included, and for leaves with their pieces.
    pub fn visit_nodes(
        &self,
        roots: &Roots,
        blob: &Blob,
        each: &mut dyn FnMut(Option<NodeRef>, Option<&Leaf>) -> Result<bool>,
    ) -> Result<()> {
        match &blob.root {
            Root::Hole => Ok(()),
            Root::Inline(bytes) => {
                let leaf = self.leaf(roots, blob, &LeafAt::Inline(bytes.as_slice().into()), blob.len)?;
                each(None, Some(&leaf)).map(drop)
            }
            Root::Node(node) => self.visit(roots, blob, *node, blob.height(), each),
        }
    }

    fn visit(
        &self,
        roots: &Roots,
        blob: &Blob,
        node: NodeRef,
        height: u8,
        each: &mut dyn FnMut(Option<NodeRef>, Option<&Leaf>) -> Result<bool>,
    ) -> Result<()> {
        // The visitor may know the node from another tree; then everything below is known, too.
        if !each(Some(node), None)? {
            return Ok(());
        }
        match self.node(roots, node, height, blob.leaf_bytes())? {
            Node::Leaf(leaf) => each(None, Some(&leaf)).map(drop),
            Node::Inner(inner) => inner
                .children
                .into_iter()
                .flatten()
                .try_for_each(|child| self.visit(roots, blob, child, height - 1, each)),
        }
    }
}
