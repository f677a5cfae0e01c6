//! Which number the kernel is told for what went wrong.

use fuser::Errno;
use stdchk::files::Fault;
use stdchk::{Error, Kind};

/// The number for it. What the store says is also noted, since a number says little.
pub fn errno(fault: Fault) -> Errno {
    match fault {
        Fault::Missing | Fault::Unwritten => Errno::ENOENT,
        Fault::Exists => Errno::EEXIST,
        Fault::NotDirectory => Errno::ENOTDIR,
        Fault::IsDirectory => Errno::EISDIR,
        Fault::NotEmpty => Errno::ENOTEMPTY,
        Fault::Stale => Errno::ESTALE,
        Fault::Invalid => Errno::EINVAL,
        Fault::TooLong => Errno::EFBIG,
        Fault::NotesFull => Errno::ENOSPC,
        Fault::ReadOnly => Errno::EROFS,
        Fault::Unsupported => Errno::EPERM,
        Fault::Store(error) => of_store(&error),
    }
}

/// Whether it is the store's file system that does not let itself be written, and not somebody's rights.
fn is_read_only(error: &Error) -> bool {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

fn of_store(error: &Error) -> Errno {
    tracing::error!("{error}");
    match error.kind() {
        Kind::Full => Errno::ENOSPC,
        Kind::Denied if is_read_only(error) => Errno::EROFS,
        Kind::Denied => Errno::EACCES,
        Kind::Fenced => Errno::ESTALE,
        _ => Errno::EIO,
    }
}
