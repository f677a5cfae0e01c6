//! Names and references: applications, checkpoints, sessions, packs.

use std::fmt;
use std::str::FromStr;

use crate::wire::{Reader, Writer};
use crate::{Error, Hash, Result};

/// The name of an application: 1 to 200 bytes of letters, digits and `. _ + - =` and other printable
/// UTF-8, without `/ @ : #`, white space and control characters, not starting with `.` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppName(String);

/// What no application can be named.
const FILES: &str = ".files";

impl AppName {
    /// The longest name in bytes.
    pub const BYTES_MAX: usize = 200;

    /// Checks a name.
    pub fn new(name: &str) -> Result<AppName> {
        let bad = |why: &str| Err(Error::invalid(format!("{name:?} cannot name an application: {why}")));
        if name.is_empty() || name.len() > Self::BYTES_MAX {
            return bad("its length must be 1 to 200 bytes");
        }
        if name.starts_with(['.', '-']) {
            return bad("it must not start with '.' or '-'");
        }
        let refused = |c: char| c.is_control() || c.is_whitespace() || "/@:#\\".contains(c);
        match name.chars().find(|&c| refused(c)) {
            Some(c) => bad(&format!("it must not contain {c:?}")),
            None => Ok(AppName(name.to_owned())),
        }
    }

    /// The application whose checkpoints are the versions of the files of a mount. Nobody can give this name to another one.
    pub fn files() -> AppName {
        AppName(FILES.to_owned())
    }

    /// Whether it is that one.
    pub fn is_files(&self) -> bool {
        self.0 == FILES
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a name.
    pub fn decode(reader: &mut Reader) -> Result<AppName> {
        let name = reader.string()?;
        if name == FILES {
            return Ok(AppName::files());
        }
        AppName::new(name).map_err(|_| reader.corrupt("not the name of an application"))
    }
}

impl fmt::Display for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AppName {
    type Err = Error;
    fn from_str(text: &str) -> Result<AppName> {
        AppName::new(text)
    }
}

/// Which checkpoint: application, step, generation. Shown as `app@step`, or `app@step.generation`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointId {
    /// The application.
    pub app: AppName,
    /// The step that the application gave it.
    pub step: u64,
    /// Counts how often this step was saved, from 1.
    pub generation: u32,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.app, self.step)?;
        if self.generation > 1 {
            write!(f, ".{}", self.generation)?;
        }
        Ok(())
    }
}

/// A write transaction, or a reader's pin: 64 random bits, shown as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for SessionId {
    type Err = Error;
    fn from_str(text: &str) -> Result<SessionId> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(SessionId(id)),
            _ => Err(Error::invalid(format!("{text:?} is not a session: 16 hexadecimal digits"))),
        }
    }
}

/// The name of a pack. It says who wrote it and is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackName {
    /// The session that wrote it.
    pub session: SessionId,
    /// The writer within the session, random.
    pub writer: u32,
    /// Counts the writer's packs.
    pub number: u32,
}

impl PackName {
    /// Bytes of an encoded name.
    pub const BYTES: usize = 16;

    /// As stored.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.writer.to_le_bytes());
        bytes[12..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// From what was stored.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> PackName {
        let [a, b, c, d, e, f, g, h, w0, w1, w2, w3, n0, n1, n2, n3] = bytes;
        PackName {
            session: SessionId(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            writer: u32::from_le_bytes([w0, w1, w2, w3]),
            number: u32::from_le_bytes([n0, n1, n2, n3]),
        }
    }

    /// Reads a name.
    pub fn decode(reader: &mut Reader) -> Result<PackName> {
        Ok(PackName::from_bytes(reader.array()?))
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:08x}{:08x}", self.session, self.writer, self.number)
    }
}

impl fmt::Debug for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for PackName {
    type Err = Error;
    fn from_str(text: &str) -> Result<PackName> {
        let bad = || Error::invalid(format!("{text:?} is not a pack: 32 hexadecimal digits"));
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        let number = |digits: &str| u32::from_str_radix(digits, 16).map_err(|_| bad());
        Ok(PackName {
            session: text[..16].parse()?,
            writer: number(&text[16..24])?,
            number: number(&text[24..])?,
        })
    }
}

/// A reference to a pack from outside: its name, what is in it, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackRef {
    /// The name.
    pub name: PackName,
    /// The root over header and footer.
    pub root: Hash,
    /// The length in bytes.
    pub length: u64,
}

impl PackRef {
    /// Fewest bytes of an encoded reference.
    pub const BYTES_MIN: usize = PackName::BYTES + 32 + 1;

    /// A reference to the pack that holds the referring bytes themselves: its root cannot be known yet.
    pub fn to_itself(name: PackName) -> PackRef {
        PackRef { name, root: Hash([0; 32]), length: 0 }
    }

    /// This reference, or `home` where it was one [to itself](PackRef::to_itself).
    pub fn resolved(&self, home: &PackRef) -> PackRef {
        if *self == PackRef::to_itself(home.name) { *home } else { *self }
    }

    /// Writes the reference.
    pub fn encode(&self, writer: &mut Writer) {
        writer.raw(&self.name.to_bytes());
        writer.raw(self.root.as_bytes());
        writer.varint(self.length);
    }

    /// Reads a reference.
    pub fn decode(reader: &mut Reader) -> Result<PackRef> {
        Ok(PackRef { name: PackName::decode(reader)?, root: Hash(reader.array()?), length: reader.varint()? })
    }
}

/// Where a chunk lies, and how to know that it is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Locator {
    /// The pack.
    pub pack: PackRef,
    /// The chunk's index in it.
    pub chunk: u32,
}

impl Locator {
    /// Fewest bytes of an encoded locator.
    pub const BYTES_MIN: usize = PackRef::BYTES_MIN + 1;

    /// Writes the locator.
    pub fn encode(&self, writer: &mut Writer) {
        self.pack.encode(writer);
        writer.varint(u64::from(self.chunk));
    }

    /// Reads a locator.
    pub fn decode(reader: &mut Reader) -> Result<Locator> {
        Ok(Locator { pack: PackRef::decode(reader)?, chunk: reader.varint32("a chunk index")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["melt", "a", "CM1-hurricane_2+x=3", "größe", "a.b"] {
            assert_eq!(AppName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", ".a", "-x", "a/b", "a@b", "a:b", "a b", "a\nb", &"x".repeat(201)] {
            assert!(AppName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pack_names_come_back() {
        let name = PackName { session: SessionId(0x0123_4567_89ab_cdef), writer: 7, number: 9 };
        assert_eq!(name.to_string(), "0123456789abcdef0000000700000009");
        assert_eq!(name.to_string().parse::<PackName>().unwrap(), name);
        assert_eq!(PackName::from_bytes(name.to_bytes()), name);
        for bad in ["", "0123", "0123456789ABCDEF0000000700000009", "+123456789abcdef0000000700000009"] {
            assert!(bad.parse::<PackName>().is_err(), "{bad:?}");
        }
    }
}
