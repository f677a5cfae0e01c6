//! Export and import: one checkpoint as one stream, readable from front to back. The layout is in `docs/FORMAT.md`.

mod export;
mod import;

pub use import::Import;

use std::io::{Read, Write};

use stdchk_object::error::Context;
use stdchk_object::{Error, Result};

const MAGIC: &[u8; 8] = b"STDCHKEX";
const VERSION: u16 = 1;
const FRAME_RAW_MAX: usize = 4 << 20;
const FRAME_STORED_MAX: usize = FRAME_RAW_MAX + (64 << 10);

const HEAD: u8 = 1;
const MEMBER: u8 = 2;
const DATA: u8 = 3;
const HOLE: u8 = 4;
const END: u8 = 5;

struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    chain: blake3::Hasher,
}

impl FrameWriter<'_> {
    fn frame(&mut self, sort: u8, body: &[u8]) -> Result<()> {
        let cannot = || "cannot write the export".to_owned();
        let length = (body.len() as u32).to_le_bytes();
        for piece in [&[sort][..], &length, body] {
            self.chain.update(piece);
            self.out.write_all(piece).context(cannot)?;
        }
        let check = self.chain.finalize();
        self.out.write_all(&check.as_bytes()[..16]).context(cannot)
    }
}

struct FrameReader<'a> {
    input: &'a mut dyn Read,
    chain: blake3::Hasher,
}

impl FrameReader<'_> {
    fn exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self.input.read_exact(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::corrupt("the export is cut short"))
            }
            done => done.context(|| "cannot read the export".to_owned()),
        }
    }

    fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.exact(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > FRAME_STORED_MAX {
            return Err(Error::corrupt("the export has a frame that is too long"));
        }
        let mut body = vec![0; length];
        self.exact(&mut body)?;
        self.chain.update(&head);
        self.chain.update(&body);
        let mut check = [0; 16];
        self.exact(&mut check)?;
        if self.chain.finalize().as_bytes()[..16] != check {
            return Err(Error::corrupt("the export is damaged"));
        }
        Ok((head[0], body))
    }
}
