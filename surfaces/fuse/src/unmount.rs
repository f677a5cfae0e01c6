//! The end of a mount.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::getxattr;
use rustix::io::Errno;

/// The note of the root that says which process answers.
pub const PROCESS: &str = "user.stdchk.process";

/// The note of the root that says how many files are open for writing, or are still being stored.
pub const WRITING: &str = "user.stdchk.writing";

/// How long it is waited until those that were closed are stored.
const STORED: Duration = Duration::from_secs(10);

/// Waits until no file is open for writing, for a while: what was closed a moment ago may not be stored yet. How many still are.
pub fn wait_stored(directory: &Path) -> u32 {
    let begun = Instant::now();
    loop {
        let count = number(directory, WRITING).unwrap_or(0);
        if count == 0 || begun.elapsed() > STORED {
            return count;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

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
    number(directory, PROCESS)
}

fn number(directory: &Path, note: &str) -> Option<u32> {
    let mut value = [0; 16];
    let len = getxattr(directory, note, &mut value).ok()?;
    std::str::from_utf8(&value[..len]).ok()?.parse().ok()
}

/// Whether what is mounted on a directory has no process any more.
pub fn is_dead(directory: &Path) -> bool {
    // The kernel answers other questions for a while.
    getxattr(directory, PROCESS, &mut [0; 16]) == Err(Errno::NOTCONN)
}

/// Whether a process is there and does something: its first thread may have ended before others, which still have files open.
pub fn is_alive(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    })
}

/// From now on this process belongs to no terminal: what ends the session of whoever called does not end it.
pub fn leave_session() {
    // Who leads a group already has one of its own.
    let _ = rustix::process::setsid();
}

/// Processes that have something below a directory open, or work there: their names and numbers, a few of them. Of those of others only root learns.
pub fn users_of(directory: &Path) -> Vec<String> {
    const MANY: usize = 5;
    let Ok(directory) = std::path::absolute(directory) else { return Vec::new() };
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_below = |link: &Path| std::fs::read_link(link).is_ok_and(|path| path.starts_with(&directory));
    let uses = |process: &Path| {
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        is_below(&process.join("cwd"))
            || is_below(&process.join("root"))
            || open.map(|fd| fd.path()).any(|fd| is_below(&fd))
    };
    let users = processes.flatten().map(|entry| entry.path()).filter(|path| {
        let number = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        number.is_some() && uses(path)
    });
    let said = users.take(MANY).filter_map(|path| {
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        Some(format!("{} ({})", name.trim(), path.file_name()?.to_str()?))
    });
    said.collect()
}
