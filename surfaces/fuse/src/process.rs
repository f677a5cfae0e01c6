//! What is known of the processes that use a mount.

use std::ffi::CStr;
use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, open, readlinkat};
use rustix::io::Errno;

/// Of `open(2)`.
const O_ACCMODE: u32 = 3;
const O_RDONLY: u32 = 0;

/// With more files open than these a process is not asked which they are.
const FILES_MAX: usize = 1 << 14;

/// The process of a thread: who opens a file in one thread may close it in another.
pub fn process_of(thread: u32) -> u32 {
    let status = told(format!("/proc/{thread}/status"));
    field(&status, "Tgid:").unwrap_or(thread)
}

/// Whether a process may still have a file open for writing, by another descriptor than the one that it is closing: shells copy them, and close the
/// copies. Descriptors that lead to another `name` are none; a program may have thousands.
pub fn has_open(process: u32, number: u64, name: Option<&str>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(format!("/proc/{process}/fd"), flags, Mode::empty());
    let (all, list) = match opened.and_then(|all| Dir::read_from(&all).map(|list| (all, list))) {
        Ok(opened) => opened,
        // Of one that is none of ours, or is unknown here, nothing can be said.
        Err(error) => return process == 0 || matches!(error, Errno::ACCESS | Errno::PERM),
    };
    let mut room = Vec::new();
    let mut is_it = |descriptor: &CStr| {
        let Ok(path) = readlinkat(&all, descriptor, std::mem::take(&mut room)) else { return false };
        // The kernel says so of what has no name any more, whatever that was.
        let is_removed = path.as_bytes().ends_with(b" (deleted)");
        let last = path.as_bytes().rsplit(|&byte| byte == b'/').next();
        let is_other = !is_removed && name.is_some_and(|name| last != Some(name.as_bytes()));
        // What is no path is no file.
        let may_be_it = path.as_bytes().starts_with(b"/") && !is_other;
        room = path.into_bytes();
        may_be_it && is_written(&format!("/proc/{process}/fdinfo/{}", descriptor.to_string_lossy()), number)
    };
    let mut asked = 0;
    list.flatten().filter(|entry| entry.file_name().to_bytes()[0] != b'.').any(|entry| {
        asked += 1;
        asked > FILES_MAX || is_it(entry.file_name())
    })
}

/// Whether a descriptor is one of that file, and is for writing.
fn is_written(fdinfo: &str, number: u64) -> bool {
    let info = told(fdinfo);
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    field(&info, "ino:") == Some(number) && flags.is_none_or(|flags| flags & O_ACCMODE != O_RDONLY)
}

/// Whether a process is ending because of a signal. What the kernel says of that stands at the end of its `stat`, as `waitpid(2)` has it.
pub fn is_killed(process: u32) -> bool {
    // The same number stands there for one that a debugger has stopped; but that one still has its files.
    if fs::read_dir(format!("/proc/{process}/fdinfo")).is_ok_and(|mut all| all.next().is_some()) {
        return false;
    }
    let stat = told(format!("/proc/{process}/stat"));
    let code: Option<u32> = stat.split_whitespace().last().and_then(|code| code.parse().ok());
    code.is_some_and(|code| code & 0x7f != 0)
}

/// What the kernel tells in a file, as far as it comes at once.
fn told(path: impl AsRef<Path>) -> String {
    let mut room = [0; 4096];
    let len = fs::File::open(path).and_then(|mut file| file.read(&mut room)).unwrap_or(0);
    String::from_utf8_lossy(&room[..len]).into_owned()
}

fn field<T: std::str::FromStr>(lines: &str, name: &str) -> Option<T> {
    lines.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn this_process_has_open_what_it_has_open() {
        let me = std::process::id();
        let file = tempfile::NamedTempFile::new().expect("a file");
        let number = file.as_file().metadata().expect("its number").ino();
        assert!(has_open(process_of(me), number, None));
        let reading = fs::File::open(file.path()).expect("it is there");
        drop(file);
        assert_eq!(reading.metadata().expect("its number").ino(), number);
        assert!(
            !has_open(me, number, None) && !has_open(u32::MAX, number, None) && has_open(0, number, None)
        );
    }
}
