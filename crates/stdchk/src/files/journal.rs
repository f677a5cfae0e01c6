//! Small files that were closed and are in no pack yet: kept in a file of the store, so that they survive the process of the mount.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use stdchk_catalog::tree::Named;
use stdchk_engine::session::random_u64;
use stdchk_object::envelope::{self, Sort};
use stdchk_object::error::Context;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Kind, Result};

/// A file that was closed: its name, what it is like, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The name, and all but the bytes. There is no version yet.
    pub named: Named,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a journal says, one after the other.
enum Entry {
    Closed(Closed),
    /// The files of these numbers are stored, or are wanted no more.
    Done(Vec<u64>),
}

impl Closed {
    fn encode(&self) -> Vec<u8> {
        let mut body = Writer::new();
        body.u8(1);
        self.named.encode(&mut body);
        body.bytes(&self.bytes);
        envelope::seal(Sort::Journal, &body.into_bytes())
    }
}

fn encode_done(numbers: &[u64]) -> Vec<u8> {
    let mut body = Writer::new();
    body.u8(2);
    body.varint(numbers.len() as u64);
    numbers.iter().for_each(|number| body.u64(*number));
    envelope::seal(Sort::Journal, &body.into_bytes())
}

impl Entry {
    fn decode(bytes: &[u8]) -> Result<Entry> {
        let mut reader = Reader::new(envelope::open(Sort::Journal, bytes)?, "closed file");
        let r = &mut reader;
        let entry = match r.u8()? {
            1 => Entry::Closed(Closed { named: Named::decode(r)?, bytes: r.bytes()?.to_vec() }),
            2 => Entry::Done((0..r.count(8)?).map(|_| r.u64()).collect::<Result<_>>()?),
            _ => return Err(r.corrupt("neither a file nor that files are done")),
        };
        reader.finish()?;
        Ok(entry)
    }
}

/// A journal that is written. It goes with what it has, once that is stored.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Bytes that are whole.
    len: u64,
    /// Whether something follows them that is not, and does not go away: what came behind it would not be found.
    is_torn: bool,
}

impl Journal {
    /// Begins one in a folder, which is made if it is not there. As long as it is open nobody else takes it for left over.
    pub fn begin(folder: &Path) -> Result<Journal> {
        let cannot = || format!("cannot begin a journal in {}", folder.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).context(cannot)?;
        loop {
            let path = folder.join(format!("{:016x}", random_u64()?));
            let file =
                OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path).context(cannot)?;
            // Before it is locked somebody may take it for left over, and remove it: what is written to it then is nowhere.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => continue,
                locked => locked.map_err(std::io::Error::from).context(cannot)?,
            }
            if file.metadata().context(cannot)?.nlink() > 0 {
                return Ok(Journal { file, path, len: 0, is_torn: false });
            }
        }
    }

    /// Adds a file that was closed. After a failure it has what it had before.
    pub fn add(&mut self, closed: &Closed) -> Result<()> {
        self.append(closed.encode())
    }

    /// Notes that files are stored, or are wanted no more: from now on nobody takes them for left over.
    pub fn done(&mut self, numbers: &[u64]) -> Result<()> {
        self.append(encode_done(numbers))
    }

    fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        if self.is_torn {
            return Err(Error::new(Kind::Io, format!("{} is torn", self.path.display())));
        }
        let written = self.file.write_all(&bytes);
        if written.is_err() {
            self.is_torn = self.file.set_len(self.len).is_err();
        }
        written.context(|| format!("cannot write {}", self.path.display()))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Removes it: all that it has is stored.
    pub fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("{} is left over: {error}", self.path.display());
        }
    }
}

/// A journal whose process is gone.
pub struct LeftOver {
    /// Who holds it is the only one who takes it over.
    _file: File,
    path: PathBuf,
    /// What it has, in order.
    pub closed: Vec<Closed>,
}

impl LeftOver {
    /// Removes it: all that it has is stored.
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// The journals in a folder that nobody writes any more.
pub fn left_over(folder: &Path) -> Result<Vec<LeftOver>> {
    let cannot = |path: &Path| format!("cannot read {}", path.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(|| cannot(folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.context(|| cannot(folder))?.path();
        let taken = File::open(&path).and_then(|file| {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok((file, fs::read(&path)?))
        });
        let (file, bytes) = match taken {
            Ok(taken) => taken,
            // Somebody writes it still, or has taken it over.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound) => continue,
            Err(error) => {
                tracing::warn!("{} cannot be read, and is left for later: {error}", path.display());
                continue;
            }
        };
        found.push(LeftOver { _file: file, path, closed: all_whole(&bytes) });
    }
    Ok(found)
}

/// What was written whole. Only the end may not be: then whoever wrote it was told of no success.
fn all_whole(mut bytes: &[u8]) -> Vec<Closed> {
    let mut all: Vec<Closed> = Vec::new();
    while let Some(len) = envelope::length(bytes).filter(|&len| len <= bytes.len()) {
        let (one, rest) = bytes.split_at(len);
        match Entry::decode(one) {
            Ok(Entry::Closed(closed)) => all.push(closed),
            Ok(Entry::Done(numbers)) => {
                all.retain(|closed: &Closed| !numbers.contains(&closed.named.node.number))
            }
            Err(error) => {
                tracing::warn!("a file that was closed before the power went is lost: {error}");
                break;
            }
        }
        bytes = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_catalog::tree::{Body, Node, ROOT};

    fn closed(name: &str, number: u64) -> Closed {
        let node = Node {
            number,
            body: Body::File(Vec::new()),
            mode: 0o644,
            user: 1,
            group: 2,
            modified_ns: 3,
            changed_ns: 4,
            accessed_ns: 5,
            notes: Vec::new(),
        };
        Closed {
            named: Named { parent: ROOT, name: name.to_owned(), node },
            bytes: name.as_bytes().repeat(100),
        }
    }

    #[test]
    fn whoever_takes_over_what_is_left_never_takes_a_journal_that_begins() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("journal");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for number in 0..3000 {
                    let mut journal = Journal::begin(&folder).expect("begun");
                    journal.add(&closed("a", number)).expect("added");
                    assert!(journal.path.exists(), "{number}");
                    journal.remove();
                }
            });
            while !writer.is_finished() {
                for left in left_over(&folder).expect("a folder") {
                    left.remove().expect("removed");
                }
            }
        });
    }

    #[test]
    fn what_was_closed_comes_back_when_the_process_is_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("journal");
        assert!(left_over(&folder).expect("none").is_empty());
        let mut journal = Journal::begin(&folder).expect("begun");
        for (name, number) in [("a", 7), ("b", 8), ("gone", 9)] {
            journal.add(&closed(name, number)).expect("added");
        }
        journal.done(&[9]).expect("added");
        assert!(left_over(&folder).expect("none").is_empty(), "it is written still");
        let path = journal.path.clone();
        drop(journal);
        let found = left_over(&folder).expect("one");
        assert_eq!(found[0].closed, [closed("a", 7), closed("b", 8)]);
        assert!(left_over(&folder).expect("none").is_empty(), "somebody has it");
        drop(found);
        // Cut off anywhere, it has what was whole.
        let bytes = fs::read(&path).expect("bytes");
        let mut most = 0;
        for len in 0..bytes.len() {
            let whole = all_whole(&bytes[..len]);
            assert!(whole.len() >= most, "{len}");
            most = whole.len();
            assert_eq!(whole, [closed("a", 7), closed("b", 8), closed("gone", 9)][..most], "{len}");
        }
        assert_eq!(most, 3);
        for at in (0..bytes.len()).step_by(7) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let whole = all_whole(&wrong);
            assert_eq!(whole, [closed("a", 7), closed("b", 8), closed("gone", 9)][..whole.len()], "{at}");
        }
    }
}
