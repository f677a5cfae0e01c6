//! Writing an export.

use std::io::Write;

use stdchk_engine::Stretch;
use stdchk_object::Result;
use stdchk_object::error::Context;
use stdchk_object::member::{Body, Member};
use stdchk_object::wire::Writer;

use super::{DATA, END, FRAME_RAW_MAX, FrameWriter, HEAD, HOLE, MAGIC, MEMBER, VERSION};
use crate::checkpoint::{Checkpoint, RankedMember};

const ZSTD_LEVEL: i32 = 1;

impl Checkpoint<'_> {
    /// Writes the checkpoint as one stream.
    pub fn export(&self, out: &mut dyn Write, progress: &dyn Fn(u64)) -> Result<()> {
        let cannot = || "cannot write the export".to_owned();
        let mut preamble = MAGIC.to_vec();
        preamble.extend_from_slice(&VERSION.to_le_bytes());
        out.write_all(&preamble).context(cannot)?;
        let mut chain = blake3::Hasher::new();
        chain.update(&preamble);
        let mut frames = FrameWriter { out, chain };
        let mut head = Writer::new();
        head.string(self.manifest.app.as_str());
        head.varint(self.manifest.step);
        head.zigzag(self.manifest.created_ns);
        head.string(&self.manifest.host);
        head.string(&self.manifest.note);
        frames.frame(HEAD, &head.into_bytes())?;
        for member in &self.members {
            self.export_member(&mut frames, member, progress)?;
        }
        let mut end = Writer::new();
        end.varint(self.members.len() as u64);
        end.varint(self.members.iter().map(|m| m.member.bytes()).sum());
        frames.frame(END, &end.into_bytes())?;
        frames.out.flush().context(cannot)
    }

    fn export_member(
        &self,
        frames: &mut FrameWriter,
        ranked: &RankedMember,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let Member { path, body, mode, mtime_ns } = &ranked.member;
        let mut out = Writer::new();
        out.u32(ranked.rank);
        out.string(path);
        out.u8(match body {
            Body::File(_) => 0,
            Body::Dir => 1,
            Body::Link(_) => 2,
            Body::Stream(_) => 3,
        });
        out.varint(u64::from(*mode));
        out.zigzag(*mtime_ns);
        if let Body::Link(target) = body {
            out.string(target);
        }
        let content = body.content();
        content.iter().for_each(|content| out.varint(content.blob.len));
        frames.frame(MEMBER, &out.into_bytes())?;
        if content.is_none() {
            return Ok(());
        }
        let mut zeros = 0;
        self.read_stretches(ranked, &mut |stretch| match stretch {
            Stretch::Zeros(len) => {
                progress(len);
                zeros += len;
                Ok(())
            }
            Stretch::Data(bytes) => bytes.chunks(FRAME_RAW_MAX).try_for_each(|bytes| {
                progress(bytes.len() as u64);
                if bytes.iter().all(|&byte| byte == 0) {
                    zeros += bytes.len() as u64;
                    return Ok(());
                }
                export_hole(frames, std::mem::take(&mut zeros))?;
                export_data(frames, bytes)
            }),
        })?;
        export_hole(frames, zeros)
    }
}

fn export_hole(frames: &mut FrameWriter, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let mut hole = Writer::new();
    hole.varint(len);
    frames.frame(HOLE, &hole.into_bytes())
}

fn export_data(frames: &mut FrameWriter, bytes: &[u8]) -> Result<()> {
    let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL).context(|| "cannot compress".to_owned())?;
    let (codec, stored) = if packed.len() < bytes.len() { (2, &packed[..]) } else { (0, bytes) };
    let mut data = Writer::new();
    data.u8(codec);
    data.varint(bytes.len() as u64);
    data.raw(stored);
    frames.frame(DATA, &data.into_bytes())
}
