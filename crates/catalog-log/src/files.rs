//! The files of the log: segments of records, and snapshots.
//!
//! ```text
//! log/<first record, 16 digits>        entries, one after the other: u64 bytes of this file that were durable when it was
//!                                      written, u32 length of the record, the record in its envelope
//! snapshots/<last record, 16 digits>   a state in its envelope
//! ```
//!
//! A power cut may take or tear entries that were not durable, each sector by itself. What cannot be read ends the log, unless an
//! entry behind it proves that it had been durable: then it is damage, and the log must not go on as if it had never been.

use std::io::ErrorKind;
use std::sync::Arc;

use stdchk_catalog::{Record, State};
use stdchk_object::envelope::is_sealed;
use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};
use stdchk_store_dir::fs::Fs;

use crate::journal::{Journal, Newer};

const ENTRY_HEAD: usize = 12;
/// Snapshots that stay, the newest included, with the segments that lead from the oldest of them to now.
const SNAPSHOTS_KEPT: usize = 2;
/// Where snapshots are written before they get their name.
const TEMPORARY: &str = "snapshots/new";

/// The segment that is written.
pub struct Files {
    fs: Arc<dyn Fs>,
    place: String,
    segment: String,
    /// Bytes of it, and how many of these are durable.
    len: u64,
    durable: u64,
    /// Whether its name is durable.
    is_named: bool,
}

impl Files {
    /// The files of a folder, none of which is read yet.
    pub fn of(fs: Arc<dyn Fs>, place: &str) -> Files {
        Files { fs, place: place.to_owned(), segment: String::new(), len: 0, durable: 0, is_named: true }
    }

    fn failed(&self, what: &str, path: &str) -> String {
        format!("cannot {what} {}/{path}", self.place)
    }

    fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        let entries = self.fs.list(folder).context(|| self.failed("list", folder))?;
        let mut numbers: Vec<u64> = entries.iter().filter_map(|entry| entry.name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn newest_snapshot(&self) -> Result<State> {
        for number in self.numbers("snapshots")?.into_iter().rev() {
            let path = snapshot_path(number);
            let bytes = self.fs.read(&path).context(|| self.failed("read", &path))?;
            match State::decode(number, &bytes) {
                Ok(state) => return Ok(state),
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!("{}/{path} is damaged, so an older one serves: {error}", self.place);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(State::default())
    }

    /// Applies the records of a segment, and if it is the last, cuts off what a power cut left of those that were not durable.
    fn replay(&mut self, first: u64, is_last: bool, state: &mut State) -> Result<()> {
        let path = segment_path(first);
        let bytes = self.fs.read(&path).context(|| self.failed("read", &path))?;
        let mut at = 0;
        while at < bytes.len() {
            let read =
                entry_at(&bytes, at).and_then(|(_, sealed)| Ok((sealed.len(), number_of(sealed)?, sealed)));
            let (len, number, sealed) = match read {
                Ok(read) => read,
                Err(error) if !is_last || error.kind() == Kind::Unsupported || was_durable(&bytes, at) => {
                    return Err(error.within(format!("{}/{path} is damaged at byte {at}", self.place)));
                }
                Err(_) => break,
            };
            // What the snapshot has is passed over.
            if number > state.number() {
                state.apply(&Record::decode(number, sealed)?)?;
            }
            at += ENTRY_HEAD + len;
        }
        if is_last {
            if at < bytes.len() {
                self.fs.truncate(&path, at as u64).context(|| self.failed("shorten", &path))?;
            }
            self.fs.sync_file(&path).context(|| self.failed("sync", &path))?;
            (self.segment, self.len, self.durable) = (path, at as u64, at as u64);
        }
        Ok(())
    }

    fn begin_segment(&mut self, first: u64) -> Result<()> {
        let path = segment_path(first);
        if path == self.segment {
            return Ok(());
        }
        match self.fs.write_new(&path, &[]) {
            // It was begun before, and never written.
            Err(error)
                if error.kind() == ErrorKind::AlreadyExists
                    && self.fs.len(&path).is_ok_and(|len| len == 0) => {}
            Err(error) => {
                // What may be there must not be taken for where the segment that is gone on with ends.
                if error.kind() != ErrorKind::AlreadyExists {
                    let _ = self.fs.unlink(&path);
                }
                return Err(Error::io(self.failed("make", &path), error));
            }
            Ok(()) => {}
        }
        (self.segment, self.len, self.durable, self.is_named) = (path, 0, 0, false);
        self.sync()
    }

    fn trim(&self) -> Result<()> {
        let snapshots = self.numbers("snapshots")?;
        let Some(oldest) = snapshots.iter().rev().nth(SNAPSHOTS_KEPT - 1) else { return Ok(()) };
        let remove = |path: String| self.fs.unlink(&path).context(|| self.failed("remove", &path));
        snapshots
            .iter()
            .filter(|number| *number < oldest)
            .try_for_each(|&number| remove(snapshot_path(number)))?;
        // A segment is needed as long as the one behind it begins after the oldest snapshot's end.
        let segments = self.numbers("log")?;
        let passed = segments.windows(2).filter(|pair| pair[1] <= oldest + 1);
        passed.map(|pair| segment_path(pair[0])).try_for_each(remove)
    }
}

impl Journal for Files {
    fn read(&mut self) -> Result<State> {
        *self = Files::of(self.fs.clone(), &self.place);
        for folder in ["log", "snapshots"] {
            self.fs.make_dir(folder).context(|| self.failed("make", folder))?;
        }
        self.fs.sync_dir("").context(|| format!("cannot sync {}", self.place))?;
        let mut state = self.newest_snapshot()?;
        let mut segments = self.numbers("log")?;
        // One that was begun and in which nothing was ever written is none: what comes next goes on with the one before it.
        while segments.len() > 1
            && let Some(path) = segments.last().map(|&last| segment_path(last))
            && self.fs.len(&path).context(|| self.failed("read", &path))? == 0
        {
            self.fs.unlink(&path).context(|| self.failed("remove", &path))?;
            segments.pop();
        }
        for (at, &first) in segments.iter().enumerate() {
            let next = segments.get(at + 1).copied();
            // All of it is in the snapshot, if the segment behind it begins there.
            if next.is_none_or(|next| next > state.number() + 1) {
                self.replay(first, next.is_none(), &mut state)?;
            }
        }
        if self.segment.is_empty() {
            self.begin_segment(state.number() + 1)?;
        }
        Ok(state)
    }

    fn append(&mut self, _first: u64, records: &[Arc<[u8]>]) -> Result<bool> {
        let mut entries = Vec::with_capacity(records.iter().map(|sealed| sealed.len() + ENTRY_HEAD).sum());
        for sealed in records {
            let len =
                u32::try_from(sealed.len()).map_err(|_| Error::invalid("a record of more than 4 GiB"))?;
            entries.extend_from_slice(&self.durable.to_le_bytes());
            entries.extend_from_slice(&len.to_le_bytes());
            entries.extend_from_slice(sealed);
        }
        self.fs.append(&self.segment, &entries).context(|| self.failed("write", &self.segment))?;
        self.len += entries.len() as u64;
        Ok(true)
    }

    fn sync(&mut self) -> Result<()> {
        if !self.is_named {
            self.fs.sync_dir("log").context(|| self.failed("sync", "log"))?;
            self.is_named = true;
        }
        self.fs.sync_file(&self.segment).context(|| self.failed("sync", &self.segment))?;
        self.durable = self.len;
        Ok(())
    }

    /// Also begins a new segment behind it.
    fn snapshot(&mut self, state: &State) -> Result<()> {
        self.sync()?;
        let number = state.number();
        let path = snapshot_path(number);
        let _ = self.fs.unlink(TEMPORARY);
        let placed = self
            .fs
            .write_new(TEMPORARY, &[&state.encode()])
            .and_then(|()| self.fs.sync_file(TEMPORARY))
            .and_then(|()| self.fs.rename(TEMPORARY, &path))
            .and_then(|()| self.fs.sync_dir("snapshots"));
        placed.context(|| self.failed("write", &path))?;
        self.begin_segment(number + 1)?;
        self.trim()
    }

    fn check(&mut self) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        for number in self.numbers("snapshots")? {
            let path = snapshot_path(number);
            let bytes = self.fs.read(&path).context(|| self.failed("read", &path))?;
            if let Err(error) = State::decode(number, &bytes) {
                problems.push(format!("{path}: {error}"));
            }
        }
        for first in self.numbers("log")? {
            let path = segment_path(first);
            let bytes = self.fs.read(&path).context(|| self.failed("read", &path))?;
            // What is appended at this moment may be there in part.
            let end = if path == self.segment { self.len as usize } else { bytes.len() };
            let bytes = &bytes[..end.min(bytes.len())];
            let mut at = 0;
            while at < bytes.len() {
                match entry_at(bytes, at).and_then(|(_, sealed)| number_of(sealed).map(|_| sealed.len())) {
                    Ok(len) => at += ENTRY_HEAD + len,
                    Err(error) => {
                        problems.push(format!("{path}, byte {at}: {error}"));
                        break;
                    }
                }
            }
        }
        Ok(problems)
    }

    /// Nobody else writes here.
    fn newer(&mut self, _number: u64) -> Result<Newer> {
        Ok(Newer::Records(Vec::new()))
    }
}

fn segment_path(first: u64) -> String {
    format!("log/{first:016}")
}

fn snapshot_path(number: u64) -> String {
    format!("snapshots/{number:016}")
}

/// The entry at a place: how many bytes were durable when it was written, and its record.
fn entry_at(bytes: &[u8], at: usize) -> Result<(u64, &[u8])> {
    let short = || Error::corrupt("an entry of the log ends too early");
    let (head, rest) = bytes[at..].split_first_chunk::<ENTRY_HEAD>().ok_or_else(short)?;
    let durable = u64::from_le_bytes(head[..8].try_into().expect("8 of 12 bytes"));
    let len = u32::from_le_bytes(head[8..].try_into().expect("4 of 12 bytes")) as usize;
    Ok((durable, rest.get(..len).ok_or_else(short)?))
}

/// The number of a record, all of which was checked. One that is whole, and of a version that is not known here, is no damage.
fn number_of(sealed: &[u8]) -> Result<u64> {
    Record::number_of(sealed).map_err(|error| match error.kind() {
        Kind::Unsupported if !is_sealed(sealed) => error.with_kind(Kind::Corrupt),
        _ => error,
    })
}

/// Whether an entry behind `at` says that what is there had been durable.
fn was_durable(bytes: &[u8], at: usize) -> bool {
    let proves = |place: usize| {
        let entry = entry_at(bytes, place).and_then(|(durable, sealed)| number_of(sealed).map(|_| durable));
        entry.is_ok_and(|durable| durable > at as u64)
    };
    let magic = Record::MAGIC;
    let candidates = bytes[at..].windows(magic.len()).enumerate().filter(|(_, window)| *window == magic);
    candidates.filter_map(|(found, _)| (at + found).checked_sub(ENTRY_HEAD)).any(proves)
}
