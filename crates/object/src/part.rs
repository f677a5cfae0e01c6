//! Parts: what one writer adds to a checkpoint.

use crate::member::Tally;
use crate::wire::{Reader, Writer};
use crate::{Error, Kind, PackRef, Result};

const VERSION: u32 = 2;

/// A pack that a part names, and how many bytes of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The pack.
    pub pack: PackRef,
    /// Bytes of the chunks that are named there, as often as they are named.
    pub bytes: u64,
}

/// Where a page of members lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Index into the part's references.
    pub reference: u32,
    /// The chunk.
    pub chunk: u32,
}

/// The head of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The rank that wrote it.
    pub rank: u32,
    /// How many members it has.
    pub member_count: u64,
    /// Sum of the members' lengths.
    pub bytes: u64,
    /// Sum of the members' tallies.
    pub tally: Tally,
    /// Every pack that anything in the part names.
    pub references: Vec<Reference>,
    /// The pages of its members, in order.
    pub pages: Vec<PageRef>,
}

impl Part {
    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(VERSION);
        out.u32(self.rank);
        out.varint(self.member_count);
        out.varint(self.bytes);
        self.tally.encode(&mut out);
        out.varint(self.references.len() as u64);
        for reference in &self.references {
            reference.pack.encode(&mut out);
            out.varint(reference.bytes);
        }
        out.varint(self.pages.len() as u64);
        for page in &self.pages {
            out.varint(u64::from(page.reference));
            out.varint(u64::from(page.chunk));
        }
        out.into_bytes()
    }

    /// Reads a part.
    pub fn decode(bytes: &[u8]) -> Result<Part> {
        let mut reader = Reader::new(bytes, "part");
        check_version(&mut reader, "part", VERSION)?;
        let rank = reader.u32()?;
        let member_count = reader.varint()?;
        let length = reader.varint()?;
        let tally = Tally::decode(&mut reader)?;
        let count = reader.count(PackRef::BYTES_MIN + 1)?;
        let mut references = Vec::with_capacity(count);
        for _ in 0..count {
            references.push(Reference { pack: PackRef::decode(&mut reader)?, bytes: reader.varint()? });
        }
        let count = reader.count(2)?;
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            let reference = reader.varint32("a reference")?;
            if reference as usize >= references.len() {
                return Err(reader.corrupt("a member page in a pack that is not referred to"));
            }
            pages.push(PageRef { reference, chunk: reader.varint32("a chunk index")? });
        }
        reader.finish()?;
        Ok(Part { rank, member_count, bytes: length, tally, references, pages })
    }
}

/// Reads and checks the version that starts parts and manifests.
pub(crate) fn check_version(reader: &mut Reader, what: &str, known: u32) -> Result<()> {
    let version = reader.u32()?;
    if version != known {
        let text = format!("a {what} has version {version}; this program knows {known}");
        return Err(Error::new(Kind::Unsupported, text));
    }
    Ok(())
}
