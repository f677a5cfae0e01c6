//! What is mounted on a directory, as the kernel says.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::unmount::{is_dead, server_of};

/// How the kernel calls a mount of stdchk, if whoever mounted it told it; root need not.
const TYPE: &str = "fuse.stdchk";
const TYPE_OF_ANY: &str = "fuse";

/// Whether the last thing that was mounted on a directory is a mount of stdchk; nothing if there is none.
pub fn is_mount(directory: &Path) -> Option<bool> {
    let place = place_of(directory)?;
    let all = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let last = all.lines().filter_map(mounted).rfind(|(on, _)| *on == place);
    let is_ours = || server_of(directory).is_some() || is_dead(directory);
    last.map(|(_, sort)| sort == TYPE || (sort == TYPE_OF_ANY && is_ours()))
}

/// Refuses a directory that nothing should be mounted on: one with something in it, or mounted on it.
pub fn check_free(directory: &Path) -> io::Result<()> {
    let refused = |text: String| Err(io::Error::new(ErrorKind::AlreadyExists, text));
    if is_mount(directory) == Some(true) {
        let text = match is_dead(directory) {
            true => "a mount whose process is gone is there: unmount it first",
            false => "a store is mounted there already",
        };
        return refused(text.to_owned());
    }
    match std::fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(entry)) => refused(format!("there is something in it, as {:?}", entry.file_name())),
    }
}

/// Where a directory is, without a look at it: nobody may answer for it any more.
fn place_of(directory: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(directory).ok()?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Some(parent.canonicalize().ok()?.join(name)),
        // As with a link to the directory, or `..` at its end.
        _ => absolute.canonicalize().ok(),
    }
}

/// On what something is mounted, and what sort it is of.
fn mounted(line: &str) -> Option<(PathBuf, &str)> {
    let (mount, file_system) = line.split_once(" - ")?;
    Some((unescaped(mount.split(' ').nth(4)?), file_system.split(' ').next()?))
}

/// Blanks and the like are octal numbers there.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.first_chunk::<3>().filter(|_| first == b'\\');
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Whether one of two directories lies in the other one, or is it.
pub fn lie_in_each_other(one: &Path, other: &Path) -> bool {
    let known = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    let (Ok(one), Ok(other)) = (known(one), known(other)) else { return false };
    one.as_os_str().as_bytes() == other.as_os_str().as_bytes()
        || one.starts_with(&other)
        || other.starts_with(&one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_understood() {
        let line = "75 22 0:40 / /mnt/my\\040files rw,nosuid shared:3 - fuse.stdchk /s,1 rw,user_id=0";
        assert_eq!(mounted(line), Some((PathBuf::from("/mnt/my files"), TYPE)));
        assert_eq!(mounted("75 22 0:40"), None);
        assert_eq!(unescaped("a\\08"), PathBuf::from("a\\08"));
        assert_eq!(is_mount(Path::new("/proc")), Some(false));
        assert_eq!(is_mount(Path::new("/nothing/there")), None);
    }

    #[test]
    fn directories_lie_in_each_other_or_do_not() {
        let lie = |one: &str, other: &str| lie_in_each_other(Path::new(one), Path::new(other));
        assert!(lie("/usr", "/usr/lib") && lie("/usr/lib", "/usr") && lie("/usr", "/usr/."));
        assert!(!lie("/usr/lib", "/usr/bin") && !lie("/usrlib", "/usr"));
    }
}
