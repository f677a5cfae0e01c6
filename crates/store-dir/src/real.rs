//! The file system of the operating system.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut, Seek, SeekFrom, Write};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::fs::{Advice, fadvise};
use stdchk_store::write_pieces;

use crate::direct::Direct;
use crate::fs::{Entry, Fs};

/// Files kept open for reading.
const OPEN_MAX: usize = 64;

/// Pieces that one system call takes.
const SLICES_MAX: usize = 1024;

/// Bytes written by one call. For larger writes the kernel looks for larger contiguous memory for its cache, which on a
/// busy or virtual machine is slow to get: packs written with one call each took twice as long.
pub const WRITE_BYTES: usize = 1 << 20;

/// Bytes of which the kernel is told with one call that they will be read: it fetches no more, whatever it is told.
const HINT_BYTES: u64 = 1 << 20;

/// Files below a directory.
pub struct RealFs {
    root: PathBuf,
    open: Mutex<VecDeque<(String, Arc<File>)>>,
    direct: Direct,
}

impl RealFs {
    /// The files below `root`.
    pub fn new(root: &Path) -> RealFs {
        RealFs { root: root.to_owned(), open: Mutex::default(), direct: Direct::default() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn opened(&self, path: &str) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        if let Some(at) = open.iter().position(|(name, _)| name == path) {
            let found = open.remove(at).expect("position is in range");
            open.push_front(found);
        } else {
            open.push_front((path.to_owned(), Arc::new(File::open(self.path(path))?)));
            open.truncate(OPEN_MAX);
        }
        Ok(open[0].1.clone())
    }

    fn forget(&self, path: &str) {
        self.open.lock().expect("no holder of this lock panics").retain(|(name, _)| name != path);
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn read_pieces(file: &File, mut offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSliceMut> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    let mut rest = &mut slices[..];
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let some = rest.len().min(SLICES_MAX);
        match rustix::io::preadv(file, &mut rest[..some], offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                IoSliceMut::advance_slices(&mut rest, read);
                offset = offset.saturating_add(read as u64);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Fs for RealFs {
    fn write_new(&self, path: &str, pieces: &[&[u8]]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(self.path(path))?;
        write_pieces(&mut file, pieces, WRITE_BYTES)
    }

    fn write_new_past_cache(&self, path: &str, pieces: &[&[u8]], cached: usize) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(self.path(path))?;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut written = self.direct.write(&file, pieces, len.saturating_sub(cached));
        file.seek(SeekFrom::Start(written as u64))?;
        let rest = pieces.iter().map(|piece| {
            let passed = written.min(piece.len());
            written -= passed;
            &piece[passed..]
        });
        write_pieces(&mut file, &rest.collect::<Vec<_>>(), WRITE_BYTES)
    }

    fn room(&self) -> io::Result<u64> {
        let room = rustix::fs::statvfs(self.path(""))?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().append(true).open(self.path(path))?.write_all(bytes)
    }

    fn sync_file(&self, path: &str) -> io::Result<()> {
        File::open(self.path(path))?.sync_data()
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        match File::open(self.path(path))?.sync_all() {
            // Some network and FUSE file systems know no fsync of directories; their entries are synchronous.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }

    fn make_dir(&self, path: &str) -> io::Result<bool> {
        match fs::create_dir(self.path(path)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.path(from), self.path(to))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let moved = fs::rename(self.path(from), self.path(to));
        self.forget(to);
        moved
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path(path))?.set_len(len)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.forget(path);
        fs::remove_file(self.path(path))
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(path))
    }

    fn read_range(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.opened(path)?;
        let left = file.metadata()?.len().saturating_sub(offset);
        let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(len))];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn read_at(&self, path: &str, offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let file = self.opened(path)?;
        match buffers {
            [buffer] => file.read_exact_at(buffer, offset),
            _ => read_pieces(&file, offset, buffers),
        }
    }

    fn will_read(&self, path: &str, range: Range<u64>) {
        let Ok(file) = self.opened(path) else { return };
        let Ok(metadata) = file.metadata() else { return };
        let (mut at, end) = (range.start, range.end.min(metadata.len()));
        while let Some(len) = NonZero::new(end.saturating_sub(at).min(HINT_BYTES)) {
            if fadvise(&file, at, Some(len), Advice::WillNeed).is_err() {
                return;
            }
            at += len.get();
        }
    }

    fn len(&self, path: &str) -> io::Result<u64> {
        let metadata = fs::metadata(self.path(path))?;
        if metadata.is_file() { Ok(metadata.len()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            let entry = entry?;
            // What vanishes while it is listed is as good as gone.
            let (Ok(metadata), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else {
                continue;
            };
            if metadata.is_file() {
                entries.push(Entry { name, len: metadata.len(), modified: since_1970(metadata.modified()?) });
            }
        }
        Ok(entries)
    }

    /// A server's clock may differ from this machine's, so a file of ours is touched and asked.
    fn now(&self) -> io::Result<Duration> {
        let path = self.path(&format!("tmp/clock-{}", std::process::id()));
        let asked = File::create(&path).and_then(|file| file.metadata()?.modified());
        let _ = fs::remove_file(&path);
        Ok(since_1970(asked.unwrap_or_else(|_| SystemTime::now())))
    }

    fn list_dirs(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    }
}
