//! A file that is studied. It is read several times, so figures belong together only if it stays what it is.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use stdchk_object::error::Context;
use stdchk_object::{Error, Result};

/// A file or a block device, and how it was when it was first looked at.
#[derive(Clone, Debug)]
pub struct Input {
    path: PathBuf,
    /// Bytes of it that are studied, and all that it has.
    len: u64,
    whole: u64,
    state: State,
}

/// What is different once a file was replaced, written or cut.
#[derive(Clone, Debug, PartialEq)]
struct State {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
}

impl State {
    fn of(metadata: &Metadata) -> State {
        State {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Input {
    /// Looks at a file of which at most `limit` bytes will be studied. Refuses what cannot be read several times.
    pub fn new(path: &Path, limit: u64) -> Result<Input> {
        let what = || format!("cannot study {}", path.display());
        // Opening a pipe would wait for whoever writes it.
        let metadata = std::fs::metadata(path).context(what)?;
        let kind = metadata.file_type();
        let refuse = |why: &str| Err(Error::invalid(format!("cannot study {}: {why}", path.display())));
        if kind.is_dir() {
            return refuse("it is a directory; name the files in it");
        }
        if !kind.is_file() && !kind.is_block_device() {
            return refuse("it is no file, and cannot be read several times; write what it gives into one");
        }
        let mut file = File::open(path).context(what)?;
        let whole = file.seek(SeekFrom::End(0)).context(what)?;
        Ok(Input { path: path.to_owned(), len: whole.min(limit), whole, state: State::of(&metadata) })
    }

    /// Looks at several, of each of which at most `limit` bytes will be studied.
    pub fn all(paths: &[impl AsRef<Path>], limit: u64) -> Result<Vec<Input>> {
        paths.iter().map(|path| Input::new(path.as_ref(), limit)).collect()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of it that are studied.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of it, whether they are studied or not.
    pub fn whole_len(&self) -> u64 {
        self.whole
    }

    /// Whether there is nothing to study.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads it from the beginning. What is not as it was is an error, at the end at the latest.
    pub fn read(&self) -> std::io::Result<Reading<'_>> {
        let reading = Reading { input: self, file: File::open(&self.path)?, left: self.len };
        reading.check()?;
        Ok(reading)
    }
}

/// One pass over a file.
pub struct Reading<'i> {
    input: &'i Input,
    file: File,
    left: u64,
}

impl Reading<'_> {
    fn check(&self) -> std::io::Result<()> {
        if State::of(&self.file.metadata()?) == self.input.state { Ok(()) } else { Err(changed()) }
    }
}

impl Read for Reading<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        if most == 0 {
            return Ok(0);
        }
        let read = self.file.read(&mut out[..most])?;
        self.left -= read as u64;
        if read == 0 {
            return Err(changed());
        }
        if self.left == 0 {
            self.check()?;
        }
        Ok(read)
    }
}

fn changed() -> std::io::Error {
    std::io::Error::other(
        "it was changed meanwhile, so figures would not belong together; study a copy of it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn all(input: &Input) -> std::io::Result<usize> {
        input.read()?.read_to_end(&mut Vec::new())
    }

    #[test]
    fn what_changes_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, [1; 5000]).unwrap();
        let (whole, part) = (Input::new(&path, u64::MAX).unwrap(), Input::new(&path, 1000).unwrap());
        assert_eq!((whole.len(), all(&whole).unwrap(), all(&part).unwrap()), (5000, 5000, 1000));
        assert_eq!(part.whole_len(), 5000);
        // While it is read.
        let mut reading = whole.read().unwrap();
        reading.read_exact(&mut [0; 100]).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(2000).unwrap();
        let error = reading.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("changed meanwhile"), "{error}");
        // Between two passes, even behind what is studied.
        assert!(all(&part).is_err());
        let grown = Input::new(&path, 1000).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert!(all(&grown).is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(all(&grown).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn only_what_can_be_read_again_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let error = Input::new(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("directory") && error.contains(folder.path().to_str().unwrap()), "{error}");
        assert!(Input::new(Path::new("/dev/zero"), 10).unwrap_err().to_string().contains("no file"));
    }
}
