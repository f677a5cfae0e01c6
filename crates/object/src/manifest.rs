//! Manifests: what joins the parts of a checkpoint.

use crate::part::check_version;
use crate::wire::{Reader, Writer};
use crate::{AppName, Locator, Result};

const VERSION: u32 = 1;

/// The whole of one checkpoint. Its generation is given by the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The application.
    pub app: AppName,
    /// The step.
    pub step: u64,
    /// When it was committed, in nanoseconds since 1970.
    pub created_ns: i64,
    /// The machine that committed it.
    pub host: String,
    /// What the user had to say.
    pub note: String,
    /// Step and generation of the checkpoint it was compared with.
    pub parent: Option<(u64, u32)>,
    /// The parts.
    pub parts: Vec<Locator>,
}

impl Manifest {
    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(VERSION);
        out.string(self.app.as_str());
        out.varint(self.step);
        out.zigzag(self.created_ns);
        out.string(&self.host);
        out.string(&self.note);
        match self.parent {
            None => out.u8(0),
            Some((step, generation)) => {
                out.u8(1);
                out.varint(step);
                out.varint(u64::from(generation));
            }
        }
        out.varint(self.parts.len() as u64);
        self.parts.iter().for_each(|part| part.encode(&mut out));
        out.into_bytes()
    }

    /// Reads a manifest.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        let mut reader = Reader::new(bytes, "manifest");
        check_version(&mut reader, "manifest", VERSION)?;
        let app = AppName::decode(&mut reader)?;
        let step = reader.varint()?;
        let created_ns = reader.zigzag()?;
        let host = reader.string()?.to_owned();
        let note = reader.string()?.to_owned();
        let parent = match reader.u8()? {
            0 => None,
            1 => Some((reader.varint()?, reader.varint32("a generation")?)),
            _ => return Err(reader.corrupt("unknown kind of parent")),
        };
        let count = reader.count(Locator::BYTES_MIN)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(Locator::decode(&mut reader)?);
        }
        reader.finish()?;
        Ok(Manifest { app, step, created_ns, host, note, parent, parts })
    }
}
