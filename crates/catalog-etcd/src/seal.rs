//! Values that only those can read and make who know the pool's key.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use stdchk_catalog::random;
use stdchk_object::{Error, Kind, Result};

/// Seals values, each to the name under which it lies.
pub struct Seal(LessSafeKey);

impl Seal {
    /// By 32 secret bytes.
    pub fn new(secret: &[u8; 32]) -> Seal {
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("the key has the length of such keys");
        Seal(LessSafeKey::new(key))
    }

    /// A random nonce, and the bytes with their code behind it. With random nonces of 96 bits a key serves for 2^32 values and more.
    pub fn seal(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut sealed = bytes.to_vec();
        let aad = Aad::from(name.as_bytes());
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .map_err(|_| Error::invalid(format!("{name} is too long to be sealed")))?;
        sealed.splice(..0, nonce);
        Ok(sealed)
    }

    /// The bytes.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let foreign = || Error::new(Kind::Denied, format!("{name} was not written with this pool's key"));
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(foreign)?;
        let mut bytes = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let len =
            self.0.open_in_place(nonce, Aad::from(name.as_bytes()), &mut bytes).map_err(|_| foreign())?.len();
        bytes.truncate(len);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_under_its_name_only() {
        let seal = Seal::new(&[7; 32]);
        let sealed = seal.seal("log/1", b"record").unwrap();
        assert_eq!(seal.open("log/1", &sealed).unwrap(), b"record");
        assert_ne!(sealed, seal.seal("log/1", b"record").unwrap());
        assert!(seal.open("log/2", &sealed).is_err() && Seal::new(&[8; 32]).open("log/1", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert!(seal.open("log/1", &bent).is_err() && seal.open("log/1", &sealed[..at]).is_err());
        }
    }
}
