//! Export and import: one checkpoint as one stream, readable from front to back. The layout is in `docs/FORMAT.md`.

use std::io::{Read, Write};

use stdchk_object::error::Context;
use stdchk_object::member::{Body, Member, check_path, check_target};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{AppName, Error, Kind, Result};

use crate::checkpoint::{Checkpoint, RankedMember};
use crate::repository::Repository;
use crate::save::{SaveOptions, Saved};

const MAGIC: &[u8; 8] = b"STDCHKEX";
const VERSION: u16 = 1;
const FRAME_RAW_MAX: usize = 4 << 20;
const FRAME_STORED_MAX: usize = FRAME_RAW_MAX + (64 << 10);
const ZSTD_LEVEL: i32 = 1;

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
        self.read_chunks(ranked, &mut |bytes| {
            progress(bytes.len() as u64);
            if bytes.iter().all(|&byte| byte == 0) {
                let mut hole = Writer::new();
                hole.varint(bytes.len() as u64);
                return frames.frame(HOLE, &hole.into_bytes());
            }
            let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL).context(|| "cannot compress".to_owned())?;
            let (codec, stored) = if packed.len() < bytes.len() { (2, &packed[..]) } else { (0, bytes) };
            let mut data = Writer::new();
            data.u8(codec);
            data.varint(bytes.len() as u64);
            data.raw(stored);
            frames.frame(DATA, &data.into_bytes())
        })
    }
}

/// A member as an export describes it.
struct Described {
    rank: u32,
    path: String,
    sort: u8,
    mode: u32,
    mtime_ns: i64,
    target: String,
    len: u64,
}

fn describe(body: &[u8]) -> Result<Described> {
    let mut r = Reader::new(body, "export");
    let rank = r.u32()?;
    let path = r.string()?.to_owned();
    check_path(&path).map_err(|_| r.corrupt("a member's path is not allowed"))?;
    let sort = r.u8()?;
    let mode = r.bounded(0o7777, "a mode")? as u32;
    let mtime_ns = r.zigzag()?;
    let target = if sort == 2 { r.string()?.to_owned() } else { String::new() };
    if sort == 2 {
        check_target(&target).map_err(|_| r.corrupt("a link's target is not allowed"))?;
    }
    let len = if matches!(sort, 0 | 3) { r.varint()? } else { 0 };
    r.finish()?;
    if sort > 3 {
        return Err(r.corrupt("unknown type of member"));
    }
    Ok(Described { rank, path, sort, mode, mtime_ns, target, len })
}

/// The bytes of the member whose frame was read last.
struct MemberBytes<'a, 'b> {
    frames: &'a mut FrameReader<'b>,
    left: u64,
    piece: Vec<u8>,
    used: usize,
    /// Why reading stopped; a `Read` cannot carry it.
    error: Option<Error>,
}

impl MemberBytes<'_, '_> {
    fn next_piece(&mut self) -> Result<()> {
        let (sort, body) = self.frames.frame()?;
        let mut r = Reader::new(&body, "export");
        match sort {
            DATA => {
                let codec = r.u8()?;
                let raw = r.bounded(FRAME_RAW_MAX as u64, "a frame's length")? as usize;
                let stored = r.raw(r.remaining())?;
                self.piece = match codec {
                    0 => stored.to_vec(),
                    2 => zstd::bulk::decompress(stored, raw)
                        .map_err(|e| Error::corrupt(format!("export: {e}")))?,
                    _ => return Err(r.corrupt("unknown codec")),
                };
                if self.piece.len() != raw {
                    return Err(r.corrupt("a frame has another length than it says"));
                }
            }
            HOLE => {
                let len = r.bounded(FRAME_RAW_MAX as u64, "a hole's length")? as usize;
                self.piece = vec![0; len];
            }
            _ => return Err(r.corrupt("a member ends too early")),
        }
        if self.piece.is_empty() || self.piece.len() as u64 > self.left {
            return Err(r.corrupt("a member's frames do not match its length"));
        }
        self.left -= self.piece.len() as u64;
        self.used = 0;
        Ok(())
    }
}

impl Read for MemberBytes<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.used == self.piece.len() {
            if self.left == 0 {
                return Ok(0);
            }
            if let Err(error) = self.next_piece() {
                self.error = Some(error);
                return Err(std::io::Error::other("the export cannot be read"));
            }
        }
        let len = buffer.len().min(self.piece.len() - self.used);
        buffer[..len].copy_from_slice(&self.piece[self.used..self.used + len]);
        self.used += len;
        Ok(len)
    }
}

/// The beginning of an export that was read.
pub struct Import<'a> {
    frames: FrameReader<'a>,
    /// The application that it was exported from.
    pub app: AppName,
    /// The step.
    pub step: u64,
    /// What the user had to say.
    pub note: String,
}

impl<'a> Import<'a> {
    /// Reads the beginning of an export.
    pub fn open(input: &'a mut dyn Read) -> Result<Import<'a>> {
        let mut frames = FrameReader { input, chain: blake3::Hasher::new() };
        let mut preamble = [0; 10];
        frames.exact(&mut preamble)?;
        if &preamble[..8] != MAGIC {
            return Err(Error::corrupt("this is not an export of stdchk"));
        }
        let version = u16::from_le_bytes([preamble[8], preamble[9]]);
        if version != VERSION {
            let text = format!("the export has version {version}; this program knows {VERSION}");
            return Err(Error::new(Kind::Unsupported, text));
        }
        frames.chain.update(&preamble);
        let (sort, body) = frames.frame()?;
        let mut r = Reader::new(&body, "export");
        if sort != HEAD {
            return Err(r.corrupt("it does not begin with a head"));
        }
        let app = AppName::decode(&mut r)?;
        let step = r.varint()?;
        r.zigzag()?;
        r.string()?;
        let note = r.string()?.to_owned();
        r.finish()?;
        Ok(Import { frames, app, step, note })
    }

    /// Saves the rest into a repository. Members of several ranks become members of one part each.
    pub fn save_into(
        mut self,
        repository: &Repository,
        app: &AppName,
        step: u64,
        options: SaveOptions,
        progress: &dyn Fn(u64),
    ) -> Result<Saved> {
        let session = repository.begin(app, step, None, crate::save::SCRIPT_LEASE)?;
        let note = options.note.clone();
        let done = self.add_parts(repository, session, options, progress);
        match done.and_then(|()| repository.commit(session, &note)) {
            Ok(saved) => Ok(saved),
            Err(error) => {
                let _ = repository.abort(session);
                Err(error)
            }
        }
    }

    fn add_parts(
        &mut self,
        repository: &Repository,
        session: stdchk_object::SessionId,
        options: SaveOptions,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut part: Option<(u32, crate::save::Add)> = None;
        let (mut count, mut bytes) = (0u64, 0u64);
        loop {
            let (sort, body) = self.frames.frame()?;
            if sort == END {
                let mut r = Reader::new(&body, "export");
                if r.varint()? != count || r.varint()? != bytes {
                    return Err(r.corrupt("it does not hold what its end says"));
                }
                return part.map_or(Ok(()), |(_, part)| part.finish().map(drop));
            }
            if sort != MEMBER {
                return Err(Error::corrupt("the export has a frame that belongs to no member"));
            }
            let member = describe(&body)?;
            count += 1;
            bytes = bytes.saturating_add(member.len);
            if part.as_ref().is_none_or(|(rank, _)| *rank != member.rank) {
                if let Some((_, part)) = part.take() {
                    part.finish()?;
                }
                let options = SaveOptions { rank: member.rank, ..options.clone() };
                part = Some((member.rank, repository.add(session, options)?));
            }
            let (_, part) = part.as_mut().expect("set above");
            let mut reader = MemberBytes {
                frames: &mut self.frames,
                left: member.len,
                piece: Vec::new(),
                used: 0,
                error: None,
            };
            part.import_member(
                &member.path,
                member.sort,
                member.mode,
                member.mtime_ns,
                member.target,
                &mut reader,
                progress,
            )
            .map_err(|error| reader.error.take().unwrap_or(error))?;
        }
    }
}
