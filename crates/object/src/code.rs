//! How many shards a pack is cut into, and how many of them may be lost.

use std::fmt;
use std::str::FromStr;

use crate::wire::{Reader, Writer};
use crate::{Error, Result};

/// An erasure code K+M: a pack becomes K shards of data and M of parity, and any K of them bring it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    /// The most shards of data, and of parity.
    pub const DATA_MAX: u8 = 32;
    /// The most shards of parity.
    pub const PARITY_MAX: u8 = 16;

    /// K shards of data and M of parity.
    pub fn new(data: u8, parity: u8) -> Result<Code> {
        if !(1..=Code::DATA_MAX).contains(&data) || !(1..=Code::PARITY_MAX).contains(&parity) {
            let text = format!(
                "{data}+{parity} is no code: 1 to {} shards of data and 1 to {} of parity",
                Code::DATA_MAX,
                Code::PARITY_MAX
            );
            return Err(Error::invalid(text));
        }
        Ok(Code { data, parity })
    }

    /// Shards of data, K.
    pub fn data(self) -> u8 {
        self.data
    }

    /// Shards of parity, M: so many may be lost.
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// All shards.
    pub fn count(self) -> u8 {
        self.data + self.parity
    }

    /// Writes it: two bytes.
    pub fn encode(self, out: &mut Writer) {
        out.u8(self.data);
        out.u8(self.parity);
    }

    /// Reads one.
    pub fn decode(reader: &mut Reader) -> Result<Code> {
        let (data, parity) = (reader.u8()?, reader.u8()?);
        Code::new(data, parity).map_err(|_| reader.corrupt("no erasure code"))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl FromStr for Code {
    type Err = Error;

    fn from_str(text: &str) -> Result<Code> {
        let parsed = text.split_once('+').and_then(|(data, parity)| {
            Some((data.trim().parse::<u8>().ok()?, parity.trim().parse::<u8>().ok()?))
        });
        let (data, parity) =
            parsed.ok_or_else(|| Error::invalid(format!("{text:?} is no code: write K+M, as in 8+2")))?;
        Code::new(data, parity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_written_as_they_are_read() {
        let code: Code = "8+2".parse().unwrap();
        assert_eq!((code.data(), code.parity(), code.count()), (8, 2, 10));
        assert_eq!(code.to_string(), "8+2");
        for bad in ["", "8", "8+", "0+2", "8+0", "33+1", "8+17", "-1+2", "8+2+1", "999+1"] {
            assert!(bad.parse::<Code>().is_err(), "{bad}");
        }
    }
}
