//! The key of a pool, and what is derived from it.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};

use super::tls::Tls;

/// What all members of a pool know, and nobody else; and with it how their connections are protected.
#[derive(Clone)]
pub struct Key {
    secret: [u8; 32],
    /// The pool's certificate and what goes with it, unless connections are not encrypted.
    tls: Option<Arc<Tls>>,
}

/// How connections are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// By TLS 1.3: nobody else can read what goes by.
    Tls,
    /// By codes: nobody else can change what goes by.
    Plain,
}

impl Protection {
    /// As it is written in a key's file.
    pub fn as_str(self) -> &'static str {
        match self {
            Protection::Tls => "tls",
            Protection::Plain => "plain",
        }
    }
}

/// What the certificate's key is derived for.
const CERTIFICATE: &str = "stdchk wire 1 certificate";
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
    pub fn random(protection: Protection) -> Result<Key> {
        Key::new(nonce()?, protection)
    }

    fn new(secret: [u8; 32], protection: Protection) -> Result<Key> {
        let tls = match protection {
            Protection::Tls => Some(Arc::new(Tls::of_seed(&blake3::derive_key(CERTIFICATE, &secret))?)),
            Protection::Plain => None,
        };
        Ok(Key { secret, tls })
    }

    /// How connections are protected.
    pub fn protection(&self) -> Protection {
        if self.tls.is_some() { Protection::Tls } else { Protection::Plain }
    }

    /// The certificate of all members, in DER, where they have one.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.tls.as_ref().map(|tls| tls.certificate())
    }

    /// The SHA-256 of the certificate, in hexadecimal digits.
    pub fn certificate_fingerprint(&self) -> Option<String> {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.certificate()?);
        Some(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_deref()
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
        blake3::derive_key(purpose, &self.secret)
    }

    /// What shows that a side knows the key, without telling it.
    pub fn proof(&self, side: Side, nonces: &[u8]) -> [u8; CODE_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(side.word());
        hasher.update(nonces);
        code(&hasher)
    }

    /// The key of what a side sends in one connection.
    pub fn of_direction(&self, side: Side, nonces: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(side.context());
        hasher.update(&self.secret);
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
        let bad = || {
            Error::invalid(
                "a pool's key is a word and 64 hexadecimal digits, as 'stdchk pool key' makes them",
            )
        };
        let (word, text) = text.split_once(' ').ok_or_else(bad)?;
        let protection = [Protection::Tls, Protection::Plain].into_iter().find(|one| one.as_str() == word);
        let protection = protection.ok_or_else(bad)?;
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Key::new(bytes, protection)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        (self.secret, self.protection()) == (other.secret, other.protection())
    }
}

impl Eq for Key {}

/// The word and the digits themselves: only for writing a key where it is to be kept.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.protection().as_str())?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
        for protection in [Protection::Tls, Protection::Plain] {
            let key = Key::random(protection).unwrap();
            let again: Key = key.to_string().parse().unwrap();
            assert_eq!(again, key);
            assert_eq!(again.certificate(), key.certificate());
            assert_ne!(key, Key::random(protection).unwrap());
            let text = key.to_string();
            let (word, digits) = text.split_once(' ').unwrap();
            let (long, odd) = (format!("{text}00"), format!("{word} {}+1", "0".repeat(62)));
            for text in ["", "xyz", digits, &text[..text.len() - 1], &long, &odd, &odd.replace("+1", "é")] {
                assert!(text.parse::<Key>().is_err(), "{text}");
            }
        }
    }

    #[test]
    fn proofs_differ_by_side_key_and_connection() {
        let new = || Key::random(Protection::Plain).unwrap();
        let (key, other) = (new(), new());
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
