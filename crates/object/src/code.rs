//! How many shards a pack is cut into, and how many of them may be lost.

use std::fmt;
use std::str::FromStr;

use crate::wire::{Reader, Writer};
use crate::{Error, PackName, Result};

/// An erasure code K+M: a pack becomes K shards of data and M of parity, and any K of them bring it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    /// The most shards of data.
    pub const DATA_MAX: u8 = 32;
    /// The most shards of parity.
    pub const PARITY_MAX: u8 = 16;
    /// The most shards.
    pub const COUNT_MAX: u8 = Code::DATA_MAX + Code::PARITY_MAX;

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

/// What is kept of a pack in one place: all of it, or one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// The pack.
    pub pack: PackName,
    /// Which shard; `None` is the pack itself.
    pub shard: Option<u8>,
}

impl Item {
    /// Bytes of an encoded item.
    pub const BYTES: usize = PackName::BYTES + 1;
    const WHOLE: u8 = 255;

    /// A shard.
    pub fn shard(pack: PackName, index: u8) -> Item {
        Item { pack, shard: Some(index) }
    }

    /// Writes it: the pack's name, and a byte that is 255 where it is all of the pack.
    pub fn encode(self, out: &mut Writer) {
        out.raw(&self.pack.to_bytes());
        out.u8(self.shard.unwrap_or(Item::WHOLE));
    }

    /// Reads one.
    pub fn decode(reader: &mut Reader) -> Result<Item> {
        let pack = PackName::decode(reader)?;
        match reader.u8()? {
            Item::WHOLE => Ok(Item { pack, shard: None }),
            index if index < Code::COUNT_MAX => Ok(Item::shard(pack, index)),
            _ => Err(reader.corrupt("no shard has that number")),
        }
    }
}

impl From<PackName> for Item {
    fn from(pack: PackName) -> Item {
        Item { pack, shard: None }
    }
}

/// The name of its file: the pack's, or the pack's, a dot and the shard's number.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shard {
            None => write!(f, "{}", self.pack),
            Some(index) => write!(f, "{}.{index}", self.pack),
        }
    }
}

impl FromStr for Item {
    type Err = Error;

    fn from_str(text: &str) -> Result<Item> {
        let Some((pack, index)) = text.split_once('.') else { return text.parse().map(PackName::into) };
        let index = index.parse::<u8>().ok().filter(|&index| index < Code::COUNT_MAX);
        let item = index.map(|index| Ok(Item::shard(pack.parse()?, index))).transpose()?;
        // One spelling only.
        item.filter(|item| item.to_string() == text)
            .ok_or_else(|| Error::invalid(format!("{text:?} is no name of a shard")))
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

    #[test]
    fn items_have_names() {
        let pack = PackName { session: crate::SessionId(5), writer: 6, number: 7 };
        let file = format!("{pack}.11");
        assert_eq!(file.parse::<Item>().unwrap(), Item::shard(pack, 11));
        assert_eq!(pack.to_string().parse::<Item>().unwrap(), pack.into());
        for bad in [format!("{pack}.48"), format!("{pack}.011"), format!("{pack}."), "x.1".into(), "x".into()]
        {
            assert!(bad.parse::<Item>().is_err(), "{bad}");
        }
        for item in [pack.into(), Item::shard(pack, 0), Item::shard(pack, 47)] {
            let mut out = Writer::new();
            item.encode(&mut out);
            let bytes = out.into_bytes();
            assert_eq!(Item::decode(&mut Reader::new(&bytes, "item")).unwrap(), item);
        }
        assert!(Item::from(pack) < Item::shard(pack, 0), "the pack comes before its shards");
    }
}
