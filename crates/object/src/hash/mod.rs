//! BLAKE3-256, keyed by what is hashed, so that bytes of one kind never pass for another.

mod many;

use std::fmt;
use std::sync::LazyLock;

/// A BLAKE3-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first half, used where only accidents and not forgers have to be found.
    pub fn half(&self) -> [u8; 16] {
        self.0[..16].try_into().expect("16 of 32 bytes")
    }

    /// The first eight bytes as a number: evenly spread, so good for tables.
    pub fn prefix(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("8 of 32 bytes"))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What is hashed. Each domain has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Domain {
    Data,
    Node,
    MemberPage,
    Part,
    Manifest,
    Forward,
    PackRoot,
    StoredRun,
    Envelope,
    Content,
}

const CONTEXTS: [&str; 10] = [
    "stdchk v1 data chunk",
    "stdchk v1 tree node",
    "stdchk v1 member page",
    "stdchk v1 part",
    "stdchk v1 manifest",
    "stdchk v1 forward table",
    "stdchk v1 pack root",
    "stdchk v1 stored run",
    "stdchk v1 envelope",
    "stdchk v1 content",
];

static KEYS: LazyLock<[[u8; 32]; 10]> =
    LazyLock::new(|| CONTEXTS.map(|context| blake3::derive_key(context, b"")));

impl Domain {
    fn key(self) -> &'static [u8; 32] {
        &KEYS[self as usize]
    }

    /// Hashes `bytes` in this domain.
    pub fn hash(self, bytes: &[u8]) -> Hash {
        Hash(*blake3::keyed_hash(self.key(), bytes).as_bytes())
    }

    /// Hashes several pieces as if they were one.
    pub fn hash_pieces(self, pieces: &[&[u8]]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.key());
        for piece in pieces {
            hasher.update(piece);
        }
        Hash(*hasher.finalize().as_bytes())
    }
}

/// Plain BLAKE3, for inner steps whose result is hashed again in a domain.
pub fn plain(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}
