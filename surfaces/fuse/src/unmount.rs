//! The end of a mount.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::getxattr;

/// The note of the root that says which process answers.
pub const PROCESS: &str = "user.stdchk.process";

/// Unmounts a directory; with `lazy` also one that is in use, or whose process is gone.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    let mut ways = vec![("fusermount3", if lazy { "-uz" } else { "-u" })];
    if rustix::process::geteuid().is_root() {
        ways.insert(0, ("umount", if lazy { "-l" } else { "-v" }));
    }
    let mut failure =
        io::Error::new(ErrorKind::NotFound, "fusermount3 is not installed (Debian's package fuse3)");
    for (program, flag) in ways {
        let run = Command::new(program).arg(flag).arg("--").arg(directory).stdin(Stdio::null()).output();
        match run {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                failure = io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The process that answers for a mount.
pub fn server_of(directory: &Path) -> Option<u32> {
    let mut value = [0; 16];
    let len = getxattr(directory, PROCESS, &mut value).ok()?;
    std::str::from_utf8(&value[..len]).ok()?.parse().ok()
}

/// Whether anything is mounted on a directory, also if its process is gone.
pub fn is_mounted(directory: &Path) -> bool {
    let Ok(path) = std::path::absolute(directory) else { return false };
    // The directory itself may answer no question.
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let path = parent.zip(path.file_name()).map_or(path.clone(), |(parent, name)| parent.join(name));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // As the kernel writes it there.
    let escaped =
        path.display().to_string().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(escaped.trim_end_matches('/')))
}

/// Whether a process is there and does something.
pub fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}
