//! Envelopes: magic, version, length, body, hash. Log records, snapshots and other small files.

use crate::hash::Domain;
use crate::wire::Reader;
use crate::{Error, Kind, Result};

/// What an envelope holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A record of the catalog's log.
    Record,
    /// A snapshot of the catalog's state.
    Snapshot,
    /// The pointer to the newest snapshot.
    Mark,
    /// The repository's own record.
    Repository,
    /// A segment of the fingerprint index.
    Index,
    /// What manifests name, noted by collections.
    Named,
    /// A small file that was closed and is in no pack yet.
    Journal,
}

const VERSION: u16 = 1;
const HEAD: usize = 16;
/// Bytes that an envelope adds to its body.
pub const OVERHEAD: usize = HEAD + 32;

impl Sort {
    /// What its bytes begin with.
    pub const fn magic(self) -> &'static [u8; 8] {
        match self {
            Sort::Record => b"STDCHKRC",
            Sort::Snapshot => b"STDCHKSN",
            Sort::Mark => b"STDCHKMK",
            Sort::Repository => b"STDCHKRP",
            Sort::Index => b"STDCHKIX",
            Sort::Named => b"STDCHKNM",
            Sort::Journal => b"STDCHKJL",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Record => "log record",
            Sort::Snapshot => "snapshot",
            Sort::Mark => "mark",
            Sort::Repository => "repository record",
            Sort::Index => "index segment",
            Sort::Named => "note of what manifests name",
            Sort::Journal => "closed file",
        }
    }
}

/// How long the envelope is that bytes begin with, as it says itself.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(HEAD - 4..HEAD)?.try_into().ok()?;
    (u32::from_le_bytes(length) as usize).checked_add(OVERHEAD)
}

/// Puts `body` into an envelope.
///
/// # Panics
/// If the body is longer than 4 GiB; callers keep theirs far below.
pub fn seal(sort: Sort, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("an envelope's body is below 4 GiB");
    let mut bytes = Vec::with_capacity(body.len() + OVERHEAD);
    bytes.extend_from_slice(sort.magic());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(body);
    let hash = Domain::Envelope.hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

/// Whether bytes end in their hash, whatever they are.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk::<32>()
        .is_some_and(|(covered, hash)| Domain::Envelope.hash(covered).as_bytes() == hash)
}

/// Takes the body out of an envelope after checking everything about it.
pub fn open(sort: Sort, bytes: &[u8]) -> Result<&[u8]> {
    let name = sort.name();
    let mut reader = Reader::new(bytes, name);
    if reader.raw(8)? != sort.magic() {
        return Err(reader.corrupt("wrong magic"));
    }
    let version = reader.u16()?;
    if version != VERSION {
        let text = format!("{name} has version {version}; this program knows {VERSION}");
        return Err(Error::new(Kind::Unsupported, text));
    }
    if reader.u16()? != 0 {
        return Err(reader.corrupt("reserved bytes are not zero"));
    }
    let length = reader.u32()? as usize;
    if reader.remaining() < 32 || length != reader.remaining() - 32 {
        return Err(reader.corrupt("length does not match"));
    }
    let (covered, hash) = bytes.split_at(bytes.len() - 32);
    if Domain::Envelope.hash(covered).as_bytes() != hash {
        return Err(reader.corrupt("hash does not match"));
    }
    Ok(&covered[HEAD..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = seal(Sort::Record, b"body");
        assert_eq!(open(Sort::Record, &sealed).unwrap(), b"body");
        assert!(open(Sort::Mark, &sealed).is_err());
        for bit in 0..sealed.len() * 8 {
            let mut torn = sealed.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(open(Sort::Record, &torn).is_err(), "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert!(open(Sort::Record, &sealed[..length]).is_err());
        }
    }
}
