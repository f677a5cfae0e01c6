//! What is known of the processes that use a mount.

use std::fs;

/// With more files open than these a process is not asked which they are.
const FILES_MAX: usize = 1024;

/// The process of a thread: who opens a file in one thread may close it in another.
pub fn process_of(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    field(&status, "Tgid:").unwrap_or(thread)
}

/// Whether a process still has a file open, by another descriptor than the one that it is closing: shells copy them, and close the copies.
pub fn has_open(process: u32, number: u64) -> bool {
    // One that ends has none any more.
    let Ok(all) = fs::read_dir(format!("/proc/{process}/fdinfo")) else { return false };
    let is_it = |entry: fs::DirEntry| {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        field(&info, "ino:") == Some(number)
    };
    let mut asked = 0;
    all.flatten().any(|entry| {
        asked += 1;
        asked > FILES_MAX || is_it(entry)
    })
}

/// Whether a process is ending because of a signal. What the kernel says of that stands at the end of its `stat`, as `waitpid(2)` has it.
pub fn is_killed(process: u32) -> bool {
    // The same number stands there for one that a debugger has stopped; but that one still has its files.
    if fs::read_dir(format!("/proc/{process}/fdinfo")).is_ok_and(|mut all| all.next().is_some()) {
        return false;
    }
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let code: Option<u32> = stat.split_whitespace().last().and_then(|code| code.parse().ok());
    code.is_some_and(|code| code & 0x7f != 0)
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
        let file = fs::File::open("/proc/self/exe").expect("this program");
        let number = file.metadata().expect("its number").ino();
        assert!(has_open(process_of(me), number));
        drop(file);
        assert!(!has_open(me, number) && !has_open(u32::MAX, number));
    }
}
