//! The file system as a parameter: the few operations that a repository in a directory needs.

use std::io;
use std::ops::Range;
use std::time::Duration;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// When it was modified, since 1970, by the clock of the file system.
    pub modified: Duration,
}

/// A file system below one root. Paths are relative, with `/` between components.
///
/// Each call is one step: a crash may come between any two, and what was not synced may then be lost,
/// torn or kept, each thing by itself.
pub trait Fs: Send + Sync {
    /// Creates a file that must not exist and writes `pieces` to it.
    fn write_new(&self, path: &str, pieces: &[&[u8]]) -> io::Result<()>;
    /// The same, of what will be synced next: all but about the last `cached` bytes may go to the disk past the cache.
    fn write_new_past_cache(&self, path: &str, pieces: &[&[u8]], cached: usize) -> io::Result<()> {
        let _ = cached;
        self.write_new(path, pieces)
    }
    /// Adds bytes at the end of a file.
    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes the bytes of a file durable.
    fn sync_file(&self, path: &str) -> io::Result<()>;
    /// Makes the entries of a directory durable; the root is `""`.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Creates a directory; says `false` if it was there.
    fn make_dir(&self, path: &str) -> io::Result<bool>;
    /// Gives a file a second name, which must not exist.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Moves a file to a name, over what was there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes a file shorter.
    fn truncate(&self, path: &str, len: u64) -> io::Result<()>;
    /// Removes a name.
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// The bytes of a file.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// At most `len` bytes of a file from `offset` on.
    fn read_range(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Fills `buffers`, one after the other, from `offset` on; an end before that is
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, path: &str, offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()>;
    /// Says which bytes of a file will be read soon.
    fn will_read(&self, path: &str, range: Range<u64>) {
        let _ = (path, range);
    }
    /// The length of a file.
    fn len(&self, path: &str) -> io::Result<u64>;
    /// The files in a directory.
    fn list(&self, path: &str) -> io::Result<Vec<Entry>>;
    /// Bytes that may still be written, as far as that can be said.
    fn room(&self) -> io::Result<u64>;
    /// The time since 1970 by the clock of the file system.
    fn now(&self) -> io::Result<Duration>;
    /// The directories in a directory.
    fn list_dirs(&self, path: &str) -> io::Result<Vec<String>>;
}
