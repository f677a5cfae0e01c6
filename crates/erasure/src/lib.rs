//! Packs as shards of which some may be lost.
//!
//! A pack of a code K+M is cut into K shards, to which M of parity are added (Reed and Solomon 1960, over GF(2^16), as the crate
//! `reed-solomon-simd` computes them); any K of them bring it back. The shards of a pack live and die together, so nothing here meets
//! deduplication. A shard says of itself which one it is, and has sums that tell rot: `docs/FORMAT.md` has its bytes.
//!
//! Where shards lie is not known here: whoever has them is [`Shards`].
#![forbid(unsafe_code)]

mod coder;
mod heal;
mod layout;
mod read;
mod shard;

pub use heal::{Healed, heal, is_whole};
pub use layout::{BLOCK_BYTES, Layout, Segment, TAIL_BYTES};
pub use read::{Checked, Shards, read};
pub use shard::Encoded;
