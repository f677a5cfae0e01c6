//! The key of a pool, and what is derived from it.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};

/// What all members of a pool know, and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// Bytes of a proof or of the code of a frame.
pub const CODE_BYTES: usize = 16;
/// Bytes that each side adds to what a connection's keys are made of.
pub const NONCE_BYTES: usize = 32;

/// The two sides of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    fn word(self) -> &'static [u8] {
        match self {
            Side::Client => b"client",
            Side::Server => b"server",
        }
    }

    fn context(self) -> &'static str {
        match self {
            Side::Client => "stdchk wire 1 client",
            Side::Server => "stdchk wire 1 server",
        }
    }
}

impl Key {
    /// A new key.
    pub fn random() -> Result<Key> {
        nonce().map(Key)
    }

    /// Reads a key from a file.
    pub fn read(path: &Path) -> Result<Key> {
        let read = || format!("cannot read the pool's key from {}", path.display());
        let text = std::fs::read_to_string(path).context(read)?;
        let mode = std::fs::metadata(path).context(read)?.permissions().mode();
        if mode & 0o077 != 0 {
            let text =
                format!("{} can be read by others, so it keeps no secret: chmod 600 it", path.display());
            return Err(Error::new(Kind::Denied, text));
        }
        text.trim().parse::<Key>().context(read)
    }

    /// A secret for some other use, from which this key does not follow.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }

    /// What shows that a side knows the key, without telling it.
    pub fn proof(&self, side: Side, nonces: &[u8]) -> [u8; CODE_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(side.word());
        hasher.update(nonces);
        code(&hasher)
    }

    /// The key of what a side sends in one connection.
    pub fn of_direction(&self, side: Side, nonces: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(side.context());
        hasher.update(&self.0);
        hasher.update(nonces);
        *hasher.finalize().as_bytes()
    }
}

/// The first bytes of a hash, as codes and proofs have them.
pub fn code(hasher: &blake3::Hasher) -> [u8; CODE_BYTES] {
    let hash = hasher.finalize();
    hash.as_bytes()[..CODE_BYTES].try_into().expect("16 of 32 bytes")
}

/// Whether two codes are the same, in a time that does not tell where they differ.
pub fn same(ours: &[u8; CODE_BYTES], theirs: &[u8; CODE_BYTES]) -> bool {
    std::hint::black_box(ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

/// Random bytes that are never used twice.
pub fn nonce() -> Result<[u8; NONCE_BYTES]> {
    stdchk_catalog::random()
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Key> {
        let bad =
            || Error::invalid("a pool's key is 64 hexadecimal digits, as 'stdchk pool key' prints them");
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Key(bytes))
    }
}

/// The digits themselves: only for writing a key where it is to be kept.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A key is never shown by accident.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = Key::random().unwrap();
        assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        assert_ne!(key, Key::random().unwrap());
        let (long, odd) = ("0".repeat(66), format!("{}+1", "0".repeat(62)));
        for text in ["", "xyz", &key.to_string()[1..], &long, &odd, &odd.replace("+1", "é")] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
    }

    #[test]
    fn proofs_differ_by_side_key_and_connection() {
        let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
        let proof = key.proof(Side::Client, &[1; 64]);
        assert!(same(&proof, &key.proof(Side::Client, &[1; 64])));
        for wrong in [
            key.proof(Side::Server, &[1; 64]),
            key.proof(Side::Client, &[2; 64]),
            other.proof(Side::Client, &[1; 64]),
        ] {
            assert!(!same(&proof, &wrong));
        }
        assert_ne!(key.of_direction(Side::Client, &[1; 64]), key.of_direction(Side::Server, &[1; 64]));
    }
}
