//! What `stat` says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::process::{getgid, getuid};
use stdchk::files::{Entry, ROOT_NUMBER, Sort, Special};

/// What the kernel is told of a file.
pub fn attributes(entry: &Entry) -> FileAttr {
    let changed = time(entry.changed_ns);
    // The root is nobody's in the store: here it belongs to whoever mounts it.
    let (user, group) = match entry.number {
        ROOT_NUMBER => (getuid().as_raw(), getgid().as_raw()),
        _ => (entry.user, entry.group),
    };
    FileAttr {
        ino: INodeNo(entry.number),
        size: entry.len,
        blocks: entry.data.div_ceil(512),
        atime: time(entry.accessed_ns),
        mtime: time(entry.modified_ns),
        ctime: changed,
        crtime: changed,
        kind: kind(entry.sort),
        perm: (entry.mode & 0o7777) as u16,
        nlink: entry.links,
        uid: user,
        gid: group,
        rdev: if let Sort::Special(_, device) = entry.sort { device } else { 0 },
        blksize: 1 << 20,
        flags: 0,
    }
}

/// The kernel's word for what it is.
pub fn kind(sort: Sort) -> FileType {
    match sort {
        Sort::Directory => FileType::Directory,
        Sort::File => FileType::RegularFile,
        Sort::Link => FileType::Symlink,
        Sort::Special(Special::Fifo, _) => FileType::NamedPipe,
        Sort::Special(Special::Socket, _) => FileType::Socket,
        Sort::Special(Special::CharDevice, _) => FileType::CharDevice,
        Sort::Special(Special::BlockDevice, _) => FileType::BlockDevice,
    }
}

fn time(ns: i64) -> SystemTime {
    match u64::try_from(ns) {
        Ok(after) => UNIX_EPOCH + Duration::from_nanos(after),
        Err(_) => UNIX_EPOCH - Duration::from_nanos(ns.unsigned_abs()),
    }
}

/// Nanoseconds since 1970.
pub fn nanoseconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let ns = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|before| -ns(before.duration()), ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -5_000_000_001] {
            assert_eq!(nanoseconds(TimeOrNow::SpecificTime(time(ns))), ns);
        }
    }
}
