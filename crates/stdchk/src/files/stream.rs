//! What is written in order goes through the engine while it is written.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use stdchk_engine::{Buffer, Buffers, PartWriter};
use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};

use super::memory::Loan;

/// Full buffers that may wait.
const WAITING: usize = 4;

/// A member that is being added to a part.
pub struct Stream {
    sender: SyncSender<Buffer>,
    buffers: Buffers,
    thread: JoinHandle<(PartWriter, Result<()>)>,
    /// What is not full yet.
    filling: Option<Buffer>,
    /// How much was written.
    pub len: u64,
    _memory: Loan,
}

impl Stream {
    /// Begins the only member of a part.
    pub(super) fn begin(mut part: PartWriter, path: String, mode: u32, memory: Loan) -> Result<Stream> {
        let (sender, receiver) = sync_channel::<Buffer>(WAITING);
        let buffers = part.buffers();
        let add = move || {
            let added = part.add_file_fed(&path, &mut || receiver.recv().ok(), mode, 0);
            (part, added)
        };
        let thread = std::thread::Builder::new().name("stdchk-stream".to_owned()).spawn(add);
        let thread = thread.context(|| "no thread can be begun that stores a file".to_owned())?;
        Ok(Stream { sender, buffers, thread, filling: None, len: 0, _memory: memory })
    }

    /// Adds what comes next. That the engine has failed is found out at the end, at the latest.
    pub fn write(&mut self, mut data: &[u8]) -> Result<()> {
        self.len += data.len() as u64;
        while !data.is_empty() {
            let buffer = self.filling.get_or_insert_with(|| {
                let mut buffer = self.buffers.take();
                buffer.reserve();
                buffer
            });
            let (now, rest) = data.split_at(data.len().min(PartWriter::STRETCH - buffer.len()));
            buffer.append(now);
            data = rest;
            if buffer.len() == PartWriter::STRETCH {
                self.hand_on()?;
            }
        }
        Ok(())
    }

    fn hand_on(&mut self) -> Result<()> {
        let Some(buffer) = self.filling.take() else { return Ok(()) };
        let gone = |_| Error::new(Kind::Io, "what was written before could not be stored");
        self.sender.send(buffer).map_err(gone)
    }

    /// Ends the member; the part it was added to.
    pub fn end(mut self) -> Result<PartWriter> {
        let handed_on = self.hand_on();
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
