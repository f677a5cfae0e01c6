//! Packs: immutable containers of chunks that say themselves what they hold.
//!
//! What stays true: a [`Footer`] exists only after its root was checked, or was made by a
//! [`FooterBuilder`]; runs lie back to back, so every offset is a sum and never read from the bytes.

mod decode;
mod encode;
mod footer;
mod whole;

pub use decode::{Trailer, footer_length, open_footer, open_footer_unreferenced, tail_length};
pub use encode::{FooterBuilder, SealedFooter};
pub use footer::{BaseSpan, Footer, Run};
pub use whole::check_whole;

use crate::ids::PackName;
use crate::{Error, Result, hash::Domain};

pub(crate) const MAGIC: &[u8; 8] = b"STDCHKPK";
pub(crate) const MAGIC_END: &[u8; 8] = b"STDCHKPE";
pub(crate) const VERSION: u16 = 3;

/// Bytes before the first run.
pub const HEADER_BYTES: usize = 32;
/// Bytes after the footer.
pub const TRAILER_BYTES: usize = 64;
/// Bytes of the hash of a chunk.
pub(crate) const HASH_BYTES: usize = 32;
/// The longest chunk.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// The longest run before compression.
pub const RUN_BYTES_MAX: usize = 16 << 20;
/// The longest footer, with the hashes before it.
pub const FOOTER_BYTES_MAX: usize = 64 << 20;
/// The longest pack.
pub const PACK_BYTES_MAX: u64 = 1 << 30;

/// What the chunks of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChunkKind {
    /// Bytes of members.
    Data = 1,
    /// Nodes of segment trees.
    Node = 2,
    /// Pages of member lists.
    MemberPage = 3,
    /// Heads of parts.
    Part = 4,
    /// Manifests.
    Manifest = 5,
    /// Tables that say where compaction moved chunks.
    Forward = 6,
}

impl ChunkKind {
    fn decode(byte: u8) -> Option<ChunkKind> {
        use ChunkKind::*;
        [Data, Node, MemberPage, Part, Manifest, Forward].into_iter().find(|&k| k as u8 == byte)
    }

    /// The domain in which chunks of this kind are hashed.
    pub fn domain(self) -> Domain {
        match self {
            ChunkKind::Data => Domain::Data,
            ChunkKind::Node => Domain::Node,
            ChunkKind::MemberPage => Domain::MemberPage,
            ChunkKind::Part => Domain::Part,
            ChunkKind::Manifest => Domain::Manifest,
            ChunkKind::Forward => Domain::Forward,
        }
    }
}

/// The compressor of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    None = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One zstd frame.
    Zstd = 2,
}

impl Codec {
    fn decode(byte: u8) -> Option<Codec> {
        [Codec::None, Codec::Lz4, Codec::Zstd].into_iter().find(|&c| c as u8 == byte)
    }
}

/// How the bytes of a run were stored: subtracted from what they replaced, if `delta`; byte planes of `planes` bytes (0: no
/// filter); then the codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coding {
    /// The compressor.
    pub codec: Codec,
    /// Element width of the byte planes: 0, 2, 4 or 8.
    pub planes: u8,
    /// Whether the run holds differences to other chunks, by elements of that width (0: by bytes).
    pub delta: bool,
}

/// Marks a delta in the byte of the filter.
const DELTA: u8 = 0x80;

impl Coding {
    /// Stored as it is.
    pub const NONE: Coding = Coding::new(Codec::None, 0);

    /// A codec behind byte planes.
    pub const fn new(codec: Codec, planes: u8) -> Coding {
        Coding { codec, planes, delta: false }
    }

    /// The same of differences.
    pub const fn of_delta(self) -> Coding {
        Coding { delta: true, ..self }
    }

    /// The same of the bytes themselves.
    pub const fn of_bytes(self) -> Coding {
        Coding { delta: false, ..self }
    }

    /// The width of the elements that are subtracted.
    pub fn width(self) -> usize {
        usize::from(self.planes.max(1))
    }

    /// Whether stored and raw bytes are the same.
    pub fn is_none(self) -> bool {
        self == Coding::NONE
    }

    /// Decodes the two bytes of a run's entry.
    pub fn decode(codec: u8, filter: u8) -> Option<Coding> {
        let (codec, planes, delta) = (Codec::decode(codec)?, filter & !DELTA, filter & DELTA != 0);
        let sound = matches!(planes, 0 | 2 | 4 | 8) && !(delta && codec == Codec::None);
        sound.then_some(Coding { codec, planes, delta })
    }

    /// The two bytes of a run's entry.
    pub fn encode(self) -> [u8; 2] {
        [self.codec as u8, self.planes | if self.delta { DELTA } else { 0 }]
    }
}

impl std::fmt::Display for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.delta {
            f.write_str("delta+")?;
        }
        if self.planes > 0 {
            write!(f, "planes{}+", self.planes)?;
        }
        f.write_str(match self.codec {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        })
    }
}

/// The header of the pack of that name. It holds nothing that the name does not say.
pub fn header(name: PackName) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..].copy_from_slice(&name.to_bytes());
    bytes
}

/// Checks that `bytes` is the header of the pack of that name.
pub fn check_header(name: PackName, bytes: &[u8]) -> Result<()> {
    if bytes == header(name) {
        return Ok(());
    }
    Err(Error::corrupt(format!("pack {name}: its header is not the one of that name")))
}
