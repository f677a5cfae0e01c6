//! Members: the named byte sequences of a checkpoint, and the pages that list them.

use crate::pack::Coding;
use crate::tree::Blob;
use crate::wire::{Reader, Writer};
use crate::{Error, Result};

/// The longest path of a member in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// How a member's bytes were cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chunking {
    /// Fixed pages of so many bytes.
    Page(u32),
    /// Content-defined, of so many bytes on average.
    Cdc(u32),
}

impl Chunking {
    /// Writes it.
    pub fn encode(self, out: &mut Writer) {
        let (tag, size) = match self {
            Chunking::Page(size) => (1, size),
            Chunking::Cdc(size) => (2, size),
        };
        out.u8(tag);
        out.varint(u64::from(size));
    }

    /// Reads it.
    pub fn decode(reader: &mut Reader) -> Result<Chunking> {
        let tag = reader.u8()?;
        let size = reader.varint32("a chunk size")?;
        match tag {
            1 => Ok(Chunking::Page(size)),
            2 => Ok(Chunking::Cdc(size)),
            _ => Err(reader.corrupt("unknown chunking")),
        }
    }
}

impl std::fmt::Display for Chunking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Chunking::Page(size) => write!(f, "page:{size}"),
            Chunking::Cdc(size) => write!(f, "cdc:{size}"),
        }
    }
}

/// What became of the bytes of a member, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes stored for the first time, before compression.
    pub new: u64,
    /// Bytes that were found stored already.
    pub shared: u64,
    /// Bytes that are zero and cost nothing.
    pub zero: u64,
    /// What the new bytes took in packs.
    pub stored: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Tally) {
        self.new += other.new;
        self.shared += other.shared;
        self.zero += other.zero;
        self.stored += other.stored;
    }

    /// Writes the four numbers.
    pub fn encode(&self, out: &mut Writer) {
        [self.new, self.shared, self.zero, self.stored].into_iter().for_each(|n| out.varint(n));
    }

    /// Reads the four numbers.
    pub fn decode(reader: &mut Reader) -> Result<Tally> {
        Ok(Tally {
            new: reader.varint()?,
            shared: reader.varint()?,
            zero: reader.varint()?,
            stored: reader.varint()?,
        })
    }
}

/// What was preferred when a coding was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Preferred {
    /// Nothing was chosen: the coding was given.
    Given = 1,
    /// Time.
    Time = 2,
    /// A balance of time and space.
    Balance = 3,
    /// Space.
    Space = 4,
}

impl Preferred {
    /// From its byte.
    pub fn decode(byte: u8) -> Option<Preferred> {
        use Preferred::*;
        [Given, Time, Balance, Space].into_iter().find(|&preferred| preferred as u8 == byte)
    }
}

/// One of the codings of the new bytes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The coding.
    pub coding: Coding,
    /// The level of the compressor.
    pub level: i8,
    /// Bytes before it.
    pub raw: u64,
    /// Bytes after it.
    pub stored: u64,
    /// Picoseconds that one thread took for each byte, where that was measured.
    pub cost: u64,
}

/// How the new bytes of a member were coded, and from which measurements that followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// What was preferred.
    pub preferred: Preferred,
    /// Threads that worked on it.
    pub threads: u32,
    /// Picoseconds that one thread needed to look at what came with each new byte.
    pub look: u64,
    /// Picoseconds that the store needed for a byte; 0 where that was not measured.
    pub store: u64,
    /// The codings that were used, the most frequent first.
    pub ways: Vec<Way>,
}

/// More codings than there are.
const WAYS_MAX: usize = 4096;

impl Coded {
    fn encode(coded: Option<&Coded>, out: &mut Writer) {
        let Some(coded) = coded else { return out.u8(0) };
        out.u8(coded.preferred as u8);
        out.varint(u64::from(coded.threads));
        out.varint(coded.look);
        out.varint(coded.store);
        out.varint(coded.ways.len() as u64);
        for way in &coded.ways {
            out.raw(&way.coding.encode());
            out.zigzag(i64::from(way.level));
            [way.raw, way.stored, way.cost].into_iter().for_each(|n| out.varint(n));
        }
    }

    fn decode(reader: &mut Reader) -> Result<Option<Coded>> {
        let preferred = match reader.u8()? {
            0 => return Ok(None),
            byte => Preferred::decode(byte).ok_or_else(|| reader.corrupt("unknown preference"))?,
        };
        let threads = reader.varint32("a number of threads")?;
        let (look, store) = (reader.varint()?, reader.varint()?);
        let count = reader.count(6)?;
        if count > WAYS_MAX {
            return Err(reader.corrupt("too many codings"));
        }
        let mut ways = Vec::with_capacity(count);
        for _ in 0..count {
            let coding = Coding::decode(reader.u8()?, reader.u8()?);
            let coding = coding.ok_or_else(|| reader.corrupt("unknown coding"))?;
            let level = i8::try_from(reader.zigzag()?).map_err(|_| reader.corrupt("a level out of range"))?;
            ways.push(Way {
                coding,
                level,
                raw: reader.varint()?,
                stored: reader.varint()?,
                cost: reader.varint()?,
            });
        }
        Ok(Some(Coded { preferred, threads, look, store, ways }))
    }
}

/// The bytes of a file or stream, and how they were taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub blob: Blob,
    /// How they were cut.
    pub chunking: Chunking,
    /// What became of them.
    pub tally: Tally,
    /// How those that are new were coded, if there are any.
    pub coded: Option<Coded>,
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Dir,
    /// A symbolic link and its target.
    Link(String),
    /// Bytes that came through a pipe or from memory: no file's mode or time.
    Stream(Content),
}

impl Body {
    /// The word for this type in messages and JSON.
    pub fn type_name(&self) -> &'static str {
        match self {
            Body::File(_) => "file",
            Body::Dir => "dir",
            Body::Link(_) => "link",
            Body::Stream(_) => "stream",
        }
    }

    /// The content, where there is one.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Body::File(content) | Body::Stream(content) => Some(content),
            Body::Dir | Body::Link(_) => None,
        }
    }

    /// The content, to be changed.
    pub fn content_mut(&mut self) -> Option<&mut Content> {
        match self {
            Body::File(content) | Body::Stream(content) => Some(content),
            Body::Dir | Body::Link(_) => None,
        }
    }
}

/// One member of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Relative path, checked by [`check_path`].
    pub path: String,
    /// What it is.
    pub body: Body,
    /// Permission bits.
    pub mode: u32,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Member {
    /// Length of the member's bytes.
    pub fn bytes(&self) -> u64 {
        self.body.content().map_or(0, |content| content.blob.len)
    }

    fn encode(&self, out: &mut Writer) {
        out.string(&self.path);
        out.u8(match self.body {
            Body::File(_) => 0,
            Body::Dir => 1,
            Body::Link(_) => 2,
            Body::Stream(_) => 3,
        });
        out.varint(u64::from(self.mode));
        out.zigzag(self.mtime_ns);
        match &self.body {
            Body::Dir => {}
            Body::Link(target) => out.string(target),
            Body::File(content) | Body::Stream(content) => {
                content.blob.encode(out);
                content.chunking.encode(out);
                content.tally.encode(out);
                Coded::encode(content.coded.as_ref(), out);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Member> {
        let path = reader.string()?;
        check_path(path).map_err(|_| reader.corrupt("a member's path is not allowed"))?;
        let sort = reader.u8()?;
        let mode = reader.bounded(0o7777, "a mode")? as u32;
        let mtime_ns = reader.zigzag()?;
        let body = match sort {
            0 => Body::File(decode_content(reader)?),
            1 => Body::Dir,
            2 => {
                let target = reader.string()?;
                check_target(target).map_err(|_| reader.corrupt("a link's target is not allowed"))?;
                Body::Link(target.to_owned())
            }
            3 => Body::Stream(decode_content(reader)?),
            _ => return Err(reader.corrupt("unknown type of member")),
        };
        Ok(Member { path: path.to_owned(), body, mode, mtime_ns })
    }
}

fn decode_content(reader: &mut Reader) -> Result<Content> {
    let blob = Blob::decode(reader)?;
    let chunking = Chunking::decode(reader)?;
    Ok(Content { blob, chunking, tally: Tally::decode(reader)?, coded: Coded::decode(reader)? })
}

/// Checks that a path can name a member: relative, no empty, `.` or `..` component, no NUL.
pub fn check_path(path: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::invalid(format!("{path:?} cannot name a member: {why}")));
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return bad("its length must be 1 to 4096 bytes");
    }
    if path.contains('\0') {
        return bad("it contains a NUL");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("") => bad("it is absolute or has an empty component"),
        Some(_) => bad("it has a component '.' or '..'"),
        None => Ok(()),
    }
}

/// Checks that a text can be the target of a symbolic link.
pub fn check_target(target: &str) -> Result<()> {
    if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains('\0') {
        return Err(Error::invalid("the target of a link must have 1 to 4096 bytes and no NUL"));
    }
    Ok(())
}

/// Encodes a page of members, which must be in byte order of their paths.
pub fn encode_page(members: &[Member]) -> Vec<u8> {
    let mut out = Writer::new();
    out.varint(members.len() as u64);
    members.iter().for_each(|member| member.encode(&mut out));
    out.into_bytes()
}

/// Decodes a page of members.
pub fn decode_page(bytes: &[u8]) -> Result<Vec<Member>> {
    let mut reader = Reader::new(bytes, "member page");
    let count = reader.count(5)?;
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..count {
        let member = Member::decode(&mut reader)?;
        if members.last().is_some_and(|last| last.path >= member.path) {
            return Err(reader.corrupt("its members are not in order"));
        }
        members.push(member);
    }
    reader.finish()?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Root;

    #[test]
    fn a_page_comes_back() {
        let content = |len| Content {
            blob: Blob {
                len,
                leaf_shift: 22,
                root: if len == 0 { Root::Hole } else { Root::Inline(vec![1, 2]) },
            },
            chunking: Chunking::Page(4096),
            tally: Tally { new: 1, shared: 2, zero: 3, stored: 4 },
            coded: (len > 0).then(|| Coded {
                preferred: Preferred::Space,
                threads: 2,
                look: 300,
                store: 0,
                ways: vec![Way { coding: Coding::NONE, level: -3, raw: 1, stored: 1, cost: 700 }],
            }),
        };
        let member = |path: &str, body| Member { path: path.into(), body, mode: 0o644, mtime_ns: -5 };
        let members = vec![
            member("a", Body::Dir),
            member("a/b", Body::File(content(10))),
            member("a/c", Body::Link("b".into())),
            member("z", Body::Stream(content(0))),
        ];
        let bytes = encode_page(&members);
        assert_eq!(decode_page(&bytes).unwrap(), members);
        for cut in 0..bytes.len() {
            assert!(decode_page(&bytes[..cut]).is_err());
        }
        let unordered = encode_page(&[members[1].clone(), members[0].clone()]);
        assert!(decode_page(&unordered).is_err());
    }

    #[test]
    fn paths_that_escape_are_refused() {
        for bad in ["", "/a", "a//b", "../a", "a/..", ".", "a/./b", "a/", "a\0b"] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "..a", "a b", "ü/n"] {
            check_path(good).unwrap();
        }
    }
}
