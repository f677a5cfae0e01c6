//! This machine and this process, as the catalog knows them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, test_kill_process};
use stdchk_catalog::Owner;
use stdchk_engine::TagCache;

/// Tags of what this user saves on this machine: in the directory that the environment names for what need not last, if any.
pub fn tags() -> Option<Arc<TagCache>> {
    static TAGS: OnceLock<Option<Arc<TagCache>>> = OnceLock::new();
    let open = |directory: PathBuf| {
        let opened = TagCache::open(&directory);
        opened.inspect_err(|error| tracing::debug!("no tags in {}: {error}", directory.display())).ok()
    };
    TAGS.get_or_init(|| cache_directory().and_then(open).map(Arc::new)).clone()
}

fn cache_directory() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(named) = of("STDCHK_CACHE") {
        return Some(named).filter(|named| !named.as_os_str().is_empty());
    }
    let users = of("XDG_CACHE_HOME").filter(|home| home.is_absolute());
    // With the rights of another user, as under sudo, nothing is made in the home of the first one.
    let owner = |path: &Path| fs::metadata(path).map(|meta| meta.uid()).ok();
    let is_ours = |home: &PathBuf| home.is_absolute() && owner(home) == owner(Path::new("/proc/self"));
    let users = users.or_else(|| of("HOME").filter(is_ours).map(|home| home.join(".cache")));
    users.map(|users| users.join("stdchk"))
}

/// Who is calling. `lasting` is for sessions that outlive the process, as those of shell scripts do.
pub fn owner(lasting: bool) -> Owner {
    let pid = if lasting { 0 } else { std::process::id() };
    Owner { host: name(), boot: boot(), pid, pid_start: if lasting { 0 } else { started(pid).unwrap_or(0) } }
}

/// The machine's name.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Identifies this boot of this machine, and within it the space in which process numbers mean something: a
/// container sees the same boot, but other processes.
pub fn boot() -> [u8; 16] {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| name());
    let space = fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string()).unwrap_or_default();
    let hash = blake3::derive_key("stdchk v1 boot", format!("{}\n{space}", boot.trim()).as_bytes());
    hash[..16].try_into().expect("16 of 32 bytes")
}

fn started(pid: u32) -> Option<u64> {
    state_of(pid).map(|(_, start)| start)
}

/// Whether a process is a zombie, which will never do anything again, and when it started, in ticks since boot.
fn state_of(pid: u32) -> Option<(bool, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the process, in parentheses, may hold anything; the fields are counted after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_zombie = matches!(fields.first(), Some(&"Z" | &"X"));
    Some((is_zombie, fields.get(19)?.parse().ok()?))
}

/// Whether the process behind a session is provably gone: it ran in this boot, and no process of that number
/// and start is there any more.
pub fn is_gone(owner: &Owner) -> bool {
    let Some(pid) = i32::try_from(owner.pid).ok().and_then(Pid::from_raw) else { return false };
    if owner.pid == 0 || owner.boot != boot() {
        return false;
    }
    // Others' processes may be hidden in /proc; a signal that nobody gets tells them from the dead all the same.
    if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    is_other(owner, state_of(owner.pid))
}

/// Whether a process that has the owner's number, in this state, is none or another one. Where /proc does not show it,
/// it must be taken for the owner.
fn is_other(owner: &Owner, state: Option<(bool, u64)>) -> bool {
    state.is_some_and(|(is_zombie, start)| is_zombie || start != owner.pid_start)
}

pub use stdchk_engine::session::now_ns;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_not_gone_and_the_dead_are() {
        assert!(!is_gone(&owner(false)));
        assert!(!is_gone(&owner(true)));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let theirs = Owner { pid: child.id(), pid_start: started(child.id()).unwrap(), ..owner(false) };
        assert!(!is_gone(&theirs));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&theirs));
        let recycled = Owner { pid_start: 1, ..owner(false) };
        assert!(is_gone(&recycled));
        assert!(!is_other(&theirs, None), "one that is hidden is taken for alive");
        let elsewhere = Owner { boot: [9; 16], ..theirs };
        assert!(!is_gone(&elsewhere), "nothing is known of other machines");
    }
}
