//! Why something cannot be done with a file.

use stdchk_object::{Error, Kind};

/// What a program is told that works with files; all but the last say something of the names, not of the store.
#[derive(Debug)]
pub enum Fault {
    /// There is nothing of that name.
    Missing,
    /// Others are writing it, and there is no version of it yet.
    Unwritten,
    /// There is something of that name already.
    Exists,
    /// A directory was wanted.
    NotDirectory,
    /// Something else than a directory was wanted.
    IsDirectory,
    /// The directory has names in it.
    NotEmpty,
    /// A file that is open is not the one that the store has any more.
    Stale,
    /// A name, a length or a note that cannot be.
    Invalid,
    /// A length that no file can have.
    TooLong,
    /// More notes than anything can have.
    NotesFull,
    /// The mount, or the store, can only be read.
    ReadOnly,
    /// Something that the tree does not know: hard links, devices.
    Unsupported,
    /// The store says no.
    Store(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Store(error)
    }
}

impl Fault {
    /// As an error that can be shown.
    pub fn into_error(self) -> Error {
        let (kind, text) = match self {
            Fault::Store(error) => return error,
            Fault::Missing => (Kind::NotFound, "there is no such file"),
            Fault::Unwritten => (Kind::NotFound, "there is no version of the file yet"),
            Fault::Exists => (Kind::Exists, "there is a file of that name"),
            Fault::NotDirectory => (Kind::Invalid, "it is not a directory"),
            Fault::IsDirectory => (Kind::Invalid, "it is a directory"),
            Fault::NotEmpty => (Kind::Conflict, "the directory is not empty"),
            Fault::Stale => (Kind::Conflict, "the file is not the one that was opened"),
            Fault::Invalid => (Kind::Invalid, "that cannot be"),
            Fault::TooLong => (Kind::Invalid, "no file can be that long"),
            Fault::NotesFull => (Kind::Invalid, "its notes would be too long"),
            Fault::ReadOnly => (Kind::Denied, "it can only be read"),
            Fault::Unsupported => (Kind::Unsupported, "that is not supported"),
        };
        Error::new(kind, text)
    }
}

/// What came of it, or why nothing did.
pub type Outcome<T> = std::result::Result<T, Fault>;
