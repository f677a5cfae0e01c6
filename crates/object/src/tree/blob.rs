//! The handle of a blob: its length and the root of its tree.

use super::{INLINE_BYTES_MAX, LEAF_SHIFT_RANGE, NodeRef, height_for};
use crate::wire::{Reader, Writer};
use crate::{PackName, Result};

/// The root of a blob's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// All zeros, or empty.
    Hole,
    /// A leaf so small that it is kept here.
    Inline(Vec<u8>),
    /// A node in a pack.
    Node(NodeRef),
}

/// The bytes of a member: a length and the root of a segment tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Length in bytes.
    pub len: u64,
    /// log2 of the bytes that a leaf covers.
    pub leaf_shift: u8,
    /// The root; its height is [`Blob::height`].
    pub root: Root,
}

impl Blob {
    /// The height of the root.
    pub fn height(&self) -> u8 {
        height_for(self.len, self.leaf_shift)
    }

    /// Bytes that a leaf covers.
    pub fn leaf_bytes(&self) -> u64 {
        1 << self.leaf_shift
    }

    /// Writes the blob.
    pub fn encode(&self, out: &mut Writer) {
        out.varint(self.len);
        out.u8(self.leaf_shift);
        out.u8(self.height());
        match &self.root {
            Root::Hole => out.u8(0),
            Root::Inline(bytes) => {
                out.u8(1);
                out.bytes(bytes);
            }
            Root::Node(node) => {
                out.u8(2);
                out.raw(&node.pack.to_bytes());
                out.varint(u64::from(node.chunk));
            }
        }
    }

    /// Reads a blob.
    pub fn decode(reader: &mut Reader) -> Result<Blob> {
        let len = reader.varint()?;
        let leaf_shift = reader.u8()?;
        if !LEAF_SHIFT_RANGE.contains(&leaf_shift) {
            return Err(reader.corrupt("a leaf's size is out of range"));
        }
        let height = reader.u8()?;
        if height != height_for(len, leaf_shift) {
            return Err(reader.corrupt("a root's height does not match the length"));
        }
        let root = match reader.u8()? {
            0 => Root::Hole,
            1 if height == 0 => {
                let bytes = reader.bytes()?;
                if bytes.len() > INLINE_BYTES_MAX {
                    return Err(reader.corrupt("an inline root is too long"));
                }
                Root::Inline(bytes.to_vec())
            }
            2 => {
                let pack = PackName::decode(reader)?;
                Root::Node(NodeRef { pack, chunk: reader.varint32("a chunk index")? })
            }
            _ => return Err(reader.corrupt("unknown kind of root")),
        };
        Ok(Blob { len, leaf_shift, root })
    }
}
