//! Reading an export into a repository.

use std::io::Read;

use stdchk_object::member::{check_path, check_target};
use stdchk_object::wire::Reader;
use stdchk_object::{AppName, Error, Kind, Result, SessionId};

use super::{DATA, END, FRAME_RAW_MAX, FrameReader, HEAD, HOLE, MAGIC, MEMBER, VERSION};
use crate::repository::Repository;
use crate::save::{Add, SCRIPT_LEASE, SaveOptions, Saved};

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
    /// The rest of the last data frame, from `used` on, or of the last hole.
    piece: Vec<u8>,
    used: usize,
    zeros: u64,
    /// Why reading stopped; a `Read` cannot carry it.
    error: Option<Error>,
}

impl MemberBytes<'_, '_> {
    fn next_piece(&mut self) -> Result<()> {
        let (sort, body) = self.frames.frame()?;
        let mut r = Reader::new(&body, "export");
        let len = match sort {
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
                self.used = 0;
                raw as u64
            }
            HOLE => {
                self.zeros = r.varint()?;
                self.zeros
            }
            _ => return Err(r.corrupt("a member ends too early")),
        };
        if len == 0 || len > self.left {
            return Err(r.corrupt("a member's frames do not match its length"));
        }
        self.left -= len;
        Ok(())
    }
}

impl Read for MemberBytes<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.used == self.piece.len() && self.zeros == 0 {
            if self.left == 0 {
                return Ok(0);
            }
            if let Err(error) = self.next_piece() {
                self.error = Some(error);
                return Err(std::io::Error::other("the export cannot be read"));
            }
        }
        if self.zeros > 0 {
            let len = buffer.len().min(usize::try_from(self.zeros).unwrap_or(usize::MAX));
            buffer[..len].fill(0);
            self.zeros -= len as u64;
            return Ok(len);
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
        let session = repository.begin(app, step, None, SCRIPT_LEASE)?;
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
        session: SessionId,
        options: SaveOptions,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut part: Option<(u32, Add)> = None;
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
                part = Some((member.rank, repository.add(session, options)?.unmeasured()));
            }
            let (_, part) = part.as_mut().expect("set above");
            let mut reader = MemberBytes {
                frames: &mut self.frames,
                left: member.len,
                piece: Vec::new(),
                used: 0,
                zeros: 0,
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
