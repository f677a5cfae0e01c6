//! Frames: sent whole or not at all, and believed only when their code is right.

use std::io;
use std::time::Duration;

use stdchk_object::{Error, Kind, Result};

use super::key::{CODE_BYTES, code, same};
use super::link::Link;

const HEAD_BYTES: usize = 16;
/// The longest body.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// The longest bulk.
pub const BULK_BYTES_MAX: u64 = 1 << 30;
/// Bytes that are hashed and sent, or received and hashed, while they are in the processor's cache.
const STEP_BYTES: usize = 256 << 10;
/// How long one step of a frame may take. Whoever takes longer is gone, or as good as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection whose two sides know each other.
pub struct Channel {
    link: Box<dyn Link>,
    /// What goes to the other side, and what comes.
    sent: Direction,
    received: Direction,
    /// Of the frame that is being received.
    code: Code,
    bulk_left: u64,
}

/// What goes one way.
pub struct Direction {
    /// What codes are made with, unless the link itself keeps frames from being changed.
    key: Option<[u8; 32]>,
    frames: u64,
}

/// The code of a frame, as far as the frame is known; nothing where there are no codes.
struct Code(Option<Hashers>);

/// Bulk is hashed apart from what comes before it: its steps then are whole subtrees of its hash, which takes the processor much less than steps that
/// begin anywhere.
struct Hashers {
    before: blake3::Hasher,
    bulk: blake3::Hasher,
}

impl Code {
    fn update(&mut self, bytes: &[u8]) {
        if let Some(hashers) = &mut self.0 {
            hashers.before.update(bytes);
        }
    }

    fn update_bulk(&mut self, bytes: &[u8]) {
        if let Some(hashers) = &mut self.0 {
            hashers.bulk.update(bytes);
        }
    }

    /// That of all; the hash of the bulk is a part of it where there is bulk.
    fn finish(&mut self) -> Option<[u8; CODE_BYTES]> {
        let Hashers { before, bulk } = self.0.as_mut()?;
        if bulk.count() > 0 {
            before.update(bulk.finalize().as_bytes());
        }
        Some(code(before))
    }
}

impl Direction {
    /// With codes by this key.
    pub fn coded(key: [u8; 32]) -> Direction {
        Direction { key: Some(key), frames: 0 }
    }

    /// Without codes, over a link that brings what was sent or fails.
    pub fn bare() -> Direction {
        Direction { key: None, frames: 0 }
    }

    /// Begins the code of the next frame.
    fn begin(&mut self) -> Code {
        let number = self.frames;
        self.frames += 1;
        Code(self.key.map(|key| {
            let bulk = blake3::Hasher::new_keyed(&key);
            let mut before = bulk.clone();
            before.update(&number.to_le_bytes());
            Hashers { before, bulk }
        }))
    }
}

/// A frame that has arrived but for its bulk, which must be received next. Nothing of it is proven before [`Channel::finish`].
pub struct Frame {
    /// What it is.
    pub kind: u8,
    /// Its body.
    pub body: Vec<u8>,
    /// Bytes of its bulk.
    pub bulk: u64,
}

impl Channel {
    /// Over a link whose keys are agreed upon.
    pub fn new(link: Box<dyn Link>, sent: Direction, received: Direction) -> Channel {
        Channel { link, sent, received, code: Code(None), bulk_left: 0 }
    }

    /// Sends a frame.
    pub fn send(&mut self, kind: u8, body: &[u8], bulk: &[&[u8]]) -> Result<()> {
        self.send_watched(kind, body, bulk, &mut |_| Ok(()))
    }

    /// Sends a frame, and says of the bulk how many bytes have gone; an error of `moved` ends the connection.
    pub fn send_watched(
        &mut self,
        kind: u8,
        body: &[u8],
        bulk: &[&[u8]],
        moved: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let bulk_len: u64 = bulk.iter().map(|piece| piece.len() as u64).sum();
        if body.len() > BODY_BYTES_MAX || bulk_len > BULK_BYTES_MAX {
            return Err(Error::invalid("a message is longer than a frame may be"));
        }
        let mut head = [0; HEAD_BYTES];
        head[0] = kind;
        head[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[8..].copy_from_slice(&bulk_len.to_le_bytes());
        let mut code = self.sent.begin();
        code.update(&head);
        code.update(body);
        // What is small goes with one call.
        let mut waiting: Vec<&[u8]> = vec![&head, body];
        let mut waiting_len = HEAD_BYTES + body.len();
        for step in bulk.iter().flat_map(|piece| piece.chunks(STEP_BYTES)) {
            code.update_bulk(step);
            waiting.push(step);
            waiting_len += step.len();
            if waiting_len >= STEP_BYTES {
                self.link.send(&waiting).map_err(lost)?;
                moved(waiting_len)?;
                waiting.clear();
                waiting_len = 0;
            }
        }
        let code = code.finish();
        waiting.extend(code.as_ref().map(|code| &code[..]));
        self.link.send(&waiting).map_err(lost)?;
        // Now that all has gone the answer is waited for in any case.
        let _ = moved(waiting_len);
        Ok(())
    }

    /// Waits for the next frame, so long for its first byte; `None` when the other side has ended between two of them.
    pub fn receive(&mut self, patience: Option<Duration>) -> Result<Option<Frame>> {
        let mut head = [0; HEAD_BYTES];
        self.link.set_patience(patience).map_err(lost)?;
        let some = match self.link.receive_some(&mut head).map_err(lost)? {
            0 => return Ok(None),
            some => some,
        };
        self.link.set_patience(Some(PATIENCE)).map_err(lost)?;
        self.link.receive(&mut head[some..]).map_err(lost)?;
        let body_len = u32::from_le_bytes(head[4..8].try_into().expect("4 of 16 bytes")) as usize;
        let bulk = u64::from_le_bytes(head[8..].try_into().expect("8 of 16 bytes"));
        if head[1..4] != [0; 3] || body_len > BODY_BYTES_MAX || bulk > BULK_BYTES_MAX {
            return Err(Error::corrupt("a frame with a head that cannot be"));
        }
        self.code = self.received.begin();
        self.code.update(&head);
        let mut body = Vec::new();
        // Memory only for what has come: the length is proven last.
        while body.len() < body_len {
            let start = body.len();
            body.resize((start + STEP_BYTES).min(body_len), 0);
            self.link.receive(&mut body[start..]).map_err(lost)?;
        }
        self.code.update(&body);
        self.bulk_left = bulk;
        if bulk == 0 {
            self.finish()?;
        }
        Ok(Some(Frame { kind: head[0], body, bulk }))
    }

    /// Whether the other side has not ended, as far as is known here.
    pub fn is_open(&mut self) -> bool {
        self.link.is_open()
    }

    /// Receives the next bytes of the bulk.
    pub fn receive_bulk(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.receive_bulk_watched(buffer, &mut |_| Ok(()))
    }

    /// Receives the next bytes of the bulk, and says how many have come; an error of `moved` ends the connection, unless all have.
    pub fn receive_bulk_watched(
        &mut self,
        buffer: &mut [u8],
        moved: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        if buffer.len() as u64 > self.bulk_left {
            return Err(Error::corrupt("a frame with less bulk than it should have"));
        }
        for step in buffer.chunks_mut(STEP_BYTES) {
            let mut come = 0;
            while come < step.len() {
                let some = self.link.receive_some(&mut step[come..]).map_err(lost)?;
                if some == 0 {
                    return Err(lost(io::ErrorKind::UnexpectedEof.into()));
                }
                come += some;
                self.bulk_left -= some as u64;
                let goes_on = moved(some);
                if self.bulk_left > 0 {
                    goes_on?;
                }
            }
            self.code.update_bulk(step);
        }
        Ok(())
    }

    /// Receives what is left of the bulk, for nobody.
    pub fn skip_bulk(&mut self) -> Result<()> {
        let mut room = vec![0; STEP_BYTES.min(usize::try_from(self.bulk_left).unwrap_or(STEP_BYTES))];
        while self.bulk_left > 0 {
            let len = room.len().min(usize::try_from(self.bulk_left).unwrap_or(room.len()));
            self.receive_bulk(&mut room[..len])?;
        }
        Ok(())
    }

    /// Receives the code of a frame with bulk, when all of that was received. Only now anything of the frame may be believed.
    pub fn finish(&mut self) -> Result<()> {
        debug_assert_eq!(self.bulk_left, 0, "all bulk comes before the code");
        let Some(ours) = self.code.finish() else { return Ok(()) };
        let mut theirs = [0; CODE_BYTES];
        self.link.receive(&mut theirs).map_err(lost)?;
        if same(&ours, &theirs) {
            return Ok(());
        }
        Err(Error::corrupt("a frame is not what was sent: its code is wrong"))
    }
}

/// A connection that ended while something was said.
fn lost(error: io::Error) -> Error {
    let gone = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let text = if gone { "the other side does not answer" } else { "the connection is lost" };
    // Not found, full and so on are said of packs, never of sockets.
    Error::io(text, error).with_kind(Kind::Io)
}
