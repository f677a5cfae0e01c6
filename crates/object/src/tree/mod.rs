//! Segment trees: a blob as a tree of fixed, aligned ranges whose leaves hold extents.
//!
//! A new version of a blob shares every node whose range did not change; a node is told by its bytes,
//! and what it refers to is told by the pack names in it, so sharing needs no bookkeeping.

mod blob;
mod builder;
mod node;

pub use blob::{Blob, Root};
pub use builder::{NodeSink, TreeBuilder};
pub use node::{Extent, Inner, Leaf, Node, NodeRef, Piece};

/// Children of an inner node.
pub const FANOUT: usize = 256;
/// log2 of [`FANOUT`].
pub const FANOUT_SHIFT: u32 = 8;
/// log2 of the bytes that a leaf covers, unless said otherwise.
pub const LEAF_SHIFT: u8 = 22;
/// The smallest and largest leaf allowed.
pub const LEAF_SHIFT_RANGE: std::ops::RangeInclusive<u8> = 16..=24;
/// A leaf no longer than this is kept inside its blob when it is the root.
pub const INLINE_BYTES_MAX: usize = 128;

/// The least height of a root whose range covers `length` bytes.
pub fn height_for(length: u64, leaf_shift: u8) -> u8 {
    let mut height = 0;
    while span_shift(height, leaf_shift) < 64
        && (length.saturating_sub(1) >> span_shift(height, leaf_shift)) > 0
    {
        height += 1;
    }
    height
}

/// log2 of the bytes that a node of that height covers.
pub fn span_shift(height: u8, leaf_shift: u8) -> u32 {
    u32::from(leaf_shift) + FANOUT_SHIFT * u32::from(height)
}
