//! Files as sources of saves and as targets of restores.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use stdchk_engine::{Sink, Source};
use stdchk_object::error::Context;
use stdchk_object::{Error, Result};
use stdchk_store_dir::WRITE_BYTES;

/// How the folders begin in which restores are put together.
pub const STAGING_PREFIX: &str = ".stdchk-restore-";

/// A file that is being saved.
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
    mtime_ns: i64,
    /// Where the next data begins, as far as asked: answers come in ascending order.
    data_from: AtomicU64,
}

/// The modification time of a file in nanoseconds since 1970.
pub fn mtime_ns(metadata: &fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

impl FileSource {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<FileSource> {
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).context(cannot)?;
        let metadata = file.metadata().context(cannot)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file", path.display())));
        }
        let (len, mtime_ns) = (metadata.len(), mtime_ns(&metadata));
        Ok(FileSource { file, path: path.to_owned(), len, mtime_ns, data_from: AtomicU64::new(0) })
    }

    /// The modification time when it was opened.
    pub fn mtime_ns(&self) -> i64 {
        self.mtime_ns
    }

    /// Permission bits.
    pub fn mode(&self) -> Result<u32> {
        let metadata = self.file.metadata().context(|| format!("cannot read {}", self.path.display()))?;
        Ok(metadata.mode() & 0o7777)
    }

    /// Fails if the file is not what it was when it was opened: a state that changed while it was saved is none.
    pub fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata().context(|| format!("cannot read {}", self.path.display()))?;
        // Some files say that they are empty and are not, and times can be too coarse: there must be no byte more.
        let more = self.file.read_at(&mut [0], self.len);
        let more = more.context(|| format!("cannot read {}", self.path.display()))?;
        let same = (metadata.len(), mtime_ns(&metadata)) == (self.len, self.mtime_ns) && more == 0;
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        Error::invalid(format!(
            "{} was changed while it was saved; save it when its writer has finished",
            self.path.display()
        ))
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(buffer, offset) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(self.changed()),
            done => done.context(|| format!("cannot read {}", self.path.display())),
        }
    }

    fn next_data(&self, offset: u64) -> u64 {
        let known = self.data_from.load(Ordering::Relaxed);
        if known > offset {
            return known;
        }
        let next = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(next) => next,
            // Nothing but a hole up to the end.
            Err(rustix::io::Errno::NXIO) => self.len,
            // This file system knows no holes.
            Err(_) => offset,
        };
        self.data_from.store(next, Ordering::Relaxed);
        next
    }
}

/// Shorter files are not worth a promise.
const RESERVED_BYTES_MIN: u64 = 1 << 20;

/// A file that is being restored.
pub struct FileSink {
    file: File,
    path: PathBuf,
}

impl FileSink {
    /// Creates a file of `len` bytes, all of them a hole at first. With `reserve` room is set aside for all of them, where the file
    /// system can do that: writing is faster then.
    pub fn create(path: &Path, len: u64, reserve: bool) -> Result<FileSink> {
        let cannot = || format!("cannot create {}", path.display());
        let file = File::options().write(true).create_new(true).mode(0o600).open(path).context(cannot)?;
        file.set_len(len).context(cannot)?;
        if reserve && len >= RESERVED_BYTES_MIN {
            // Who cannot promise it is written to all the same: there may be room after compression, and if not, writing tells.
            let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len);
        }
        Ok(FileSink { file, path: path.to_owned() })
    }
}

impl Sink for FileSink {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut at = offset;
        for piece in bytes.chunks(WRITE_BYTES) {
            self.file.write_all_at(piece, at).context(|| format!("cannot write {}", self.path.display()))?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// Sets permission bits and modification time, not following a link.
pub fn set_metadata(path: &Path, mode: u32, mtime_ns: i64, is_link: bool) -> Result<()> {
    use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, chmodat, utimensat};
    let cannot = || format!("cannot set mode and time of {}", path.display());
    if !is_link {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        chmodat(CWD, path, mode, AtFlags::empty()).map_err(std::io::Error::from).context(cannot)?;
    }
    let time =
        Timespec { tv_sec: mtime_ns.div_euclid(1_000_000_000), tv_nsec: mtime_ns.rem_euclid(1_000_000_000) };
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: omit, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(std::io::Error::from).context(cannot)
}
