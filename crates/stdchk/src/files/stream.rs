//! What is written in order goes through the engine while it is written.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use stdchk_engine::PartWriter;
use stdchk_object::{Error, Kind, Result};

/// Bytes that are handed on together.
const PIECE: usize = 1 << 20;
/// Pieces that may wait.
const WAITING: usize = 4;

/// A member that is being added to a part.
pub struct Stream {
    sender: SyncSender<Vec<u8>>,
    /// Pieces that were taken in, to be filled again: memory from the system is dear.
    emptied: Receiver<Vec<u8>>,
    thread: JoinHandle<(PartWriter, Result<()>)>,
    piece: Vec<u8>,
    /// How much was written.
    pub len: u64,
}

impl Stream {
    /// Begins the only member of a part.
    pub fn begin(mut part: PartWriter, path: String, mode: u32) -> Stream {
        let (sender, receiver) = sync_channel::<Vec<u8>>(WAITING);
        let (give_back, emptied) = sync_channel::<Vec<u8>>(WAITING + 2);
        let thread = std::thread::spawn(move || {
            let mut pieces = Pieces { receiver, give_back, piece: Vec::new(), at: 0 };
            let added = part.add_file_stream(&path, &mut pieces, mode, 0, &|_| {});
            (part, added)
        });
        Stream { sender, emptied, thread, piece: Vec::new(), len: 0 }
    }

    /// Adds what comes next. That the engine has failed is found out at the end, at the latest.
    pub fn write(&mut self, mut data: &[u8]) -> Result<()> {
        self.len += data.len() as u64;
        while !data.is_empty() {
            if self.piece.capacity() == 0 {
                self.piece = self.emptied.try_recv().unwrap_or_else(|_| Vec::with_capacity(PIECE));
            }
            let some = data.len().min(PIECE - self.piece.len());
            self.piece.extend_from_slice(&data[..some]);
            data = &data[some..];
            if self.piece.len() == PIECE {
                self.hand_on()?;
            }
        }
        Ok(())
    }

    fn hand_on(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.piece);
        self.sender
            .send(piece)
            .map_err(|_| Error::new(Kind::Io, "what was written before could not be stored"))
    }

    /// Ends the member; the part it was added to.
    pub fn end(mut self) -> Result<PartWriter> {
        let handed_on = if self.piece.is_empty() { Ok(()) } else { self.hand_on() };
        drop(self.sender);
        let (part, added) = self
            .thread
            .join()
            .map_err(|_| Error::new(Kind::Io, "the thread that stored the file has panicked"))?;
        // Why the engine failed says more than that it was not there any more.
        match added.and(handed_on) {
            Ok(()) => Ok(part),
            Err(error) => {
                part.abandon();
                Err(error)
            }
        }
    }

    /// Gives it up.
    pub fn abandon(self) {
        drop(self.sender);
        if let Ok((part, _)) = self.thread.join() {
            part.abandon();
        }
    }
}

/// Pieces as they come, as a stream.
struct Pieces {
    receiver: Receiver<Vec<u8>>,
    give_back: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let Ok(piece) = self.receiver.recv() else { return Ok(0) };
            let mut old = std::mem::replace(&mut self.piece, piece);
            self.at = 0;
            old.clear();
            let _ = self.give_back.try_send(old);
        }
        let some = buffer.len().min(self.piece.len() - self.at);
        buffer[..some].copy_from_slice(&self.piece[self.at..self.at + some]);
        self.at += some;
        Ok(some)
    }
}
