//! Mounts of stores with little room, or none; and what people do with the root of a mount.

mod mounts;
mod pools;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use stdchk_kit::Random;

use mounts::{Mounted, can_mount, text};

/// A store on a file system of its own, which is gone with it.
struct Small {
    mounted: Mounted,
    place: PathBuf,
}

impl Small {
    fn new(size: &str) -> Option<Small> {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("small");
        std::fs::create_dir(&place).expect("a directory");
        let options = format!("size={size}");
        let tmpfs = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(&place).status();
        if !tmpfs.is_ok_and(|status| status.success()) {
            eprintln!("not tested: tmpfs cannot be mounted here");
            return None;
        }
        let store = place.join("store").display().to_string();
        let mounted = Mounted { store, dir, key: None };
        mounted.mount(&["--durability", "local"]);
        Some(Small { mounted, place })
    }

    fn remount(&self, how: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.place).status();
        assert!(done.expect("mount").success());
    }

    fn gc(&self) {
        let collected = self.mounted.stdchk(&["gc"]).output().expect("it starts");
        assert!(collected.status.success(), "{}", text(&collected.stderr));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let root = self.mounted.root();
        let _ = self.mounted.stdchk(&["umount", "--lazy", root.to_str().expect("text")]).output();
        let _ =
            Command::new("umount").arg("-l").arg(&self.place).stderr(std::process::Stdio::null()).status();
    }
}

/// However often somebody tries to write where there is no room: what is there can be removed afterwards, and the store be mounted.
#[test]
fn what_fails_again_and_again_leaves_room_to_remove_something() {
    if !can_mount() {
        return;
    }
    let Some(small) = Small::new("16m") else { return };
    let script = "
import os
failed = made = 0
while failed < 80:
    try:
        with open('f%d' % made, 'wb') as f:
            f.write(os.urandom(20000))
        made += 1
    except OSError as error:
        assert error.errno == 28, error
        failed += 1
print(made)";
    let made = small.mounted.sh(&format!("python3 - <<'end'{script}\nend"));
    let made: u64 = made.trim().parse().expect("a number");
    assert!(made > 100, "{made}");
    small.mounted.sh("for i in 1 2 3 4 5 6 7 8 9 10; do rm f$i; done");
    small.gc();
    small.mounted.umount();
    small.mounted.mount(&[]);
    small
        .mounted
        .sh("rm f1[0-9]; for i in 1 2 3; do head -c 20000 /dev/urandom > again$i; done; test -s f20");
    small.mounted.umount();
}

/// Nobody waits for room that he has made.
#[test]
fn what_is_removed_makes_room_at_once() {
    if !can_mount() {
        return;
    }
    let Some(small) = Small::new("24m") else { return };
    for seed in 1..=4 {
        let file = small.mounted.dir.path().join(format!("in{seed}"));
        std::fs::write(file, Random::new(seed).bytes(13 << 20)).expect("a file");
    }
    small.mounted.sh("cp ../in1 t");
    let begun = Instant::now();
    for seed in 2..=4 {
        small.mounted.sh(&format!("rm t; cp ../in{seed} t; cmp ../in{seed} t; sleep 1"));
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    small.mounted.umount();
}

#[test]
fn a_store_that_cannot_be_written_any_more_is_read_only() {
    if !can_mount() {
        return;
    }
    let Some(small) = Small::new("24m") else { return };
    small.mounted.sh("echo there > f");
    small.remount("ro");
    for script in ["mkdir d", "rm f", "cp f g"] {
        let refused = small.mounted.try_sh(script);
        assert!(text(&refused.stderr).contains("Read-only file system"), "{}", text(&refused.stderr));
    }
    assert_eq!(small.mounted.sh("cat f"), "there\n");
    small.remount("rw");
    small.mounted.sh("rm f; mkdir d");
    small.mounted.umount();
}

#[test]
fn the_root_is_a_directory_as_others_are() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let source = mounted.dir.path().join("from");
    std::fs::create_dir_all(source.join("sub")).expect("a directory");
    std::fs::write(source.join("sub/f"), "bytes").expect("a file");
    mounted.sh("chmod 750 ../from; touch -d @1000000 ../from; cp -a ../from/. .; cat sub/f");
    assert_eq!(mounted.sh("stat -c '%a %Y' ."), "750 1000000\n");
    mounted.sh("cd ../from && tar cf ../a.tar . && cd - && tar xf ../a.tar");
    mounted.sh("touch new; test $(stat -c %Y .) -gt 1000000");
    let note = |code: &str| mounted.sh(&format!("python3 -c \"import os; {code}\""));
    note("os.setxattr('.', 'user.stdchk.policy', b'keep-last=2')");
    mounted.sh("for i in 1 2 3 4; do echo $i > kept; done");
    assert_eq!(mounted.sh("ls .versions/kept 2>/dev/null | wc -l || true").trim(), "2");
    mounted.umount();
    mounted.mount(&[]);
    assert_eq!(mounted.sh("stat -c %a ."), "750\n");
    assert_eq!(note("print(os.getxattr('.', 'user.stdchk.policy').decode())"), "keep-last=2\n");
    mounted.umount();
}

/// A mount is in nobody's way: not in the directory from which it was made, nor in the file system of a store that it has let go.
#[test]
fn a_mount_keeps_nothing_busy() {
    if !can_mount() {
        return;
    }
    let Some(small) = Small::new("24m") else { return };
    small.mounted.umount();
    let here = tempfile::tempdir().expect("a directory");
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "here"]).arg(here.path()).status();
    assert!(tmpfs.expect("mount").success());
    std::fs::create_dir(here.path().join("sub")).expect("a directory");
    let root = small.mounted.root();
    let store = small.place.join("store");
    let log = small.mounted.dir.path().join("log2");
    // All of these paths are said from there.
    let up = "../".repeat(here.path().components().count());
    let from =
        |path: &std::path::Path| format!("{up}{}", path.strip_prefix("/").expect("from the root").display());
    let mut command = small.mounted.stdchk(&["--store", &from(&store), "mount", &from(&root)]);
    let mount = command.arg(format!("--log={}", from(&log))).current_dir(here.path().join("sub")).output();
    let mount = mount.expect("it starts");
    assert!(mount.status.success(), "{}", text(&mount.stderr));
    small.mounted.sh("echo bytes > f; cat f");
    assert!(Command::new("umount").arg(here.path()).status().expect("umount").success());
    small.mounted.umount();
    assert!(Command::new("umount").arg(&small.place).status().expect("umount").success());
}

#[test]
fn unmounting_says_who_is_in_the_way() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted.sh("echo bytes > f");
    let file = std::fs::File::open(mounted.root().join("f")).expect("a file");
    let mut reader = Command::new("sleep").arg("60").stdin(file).spawn().expect("sleep");
    let refused = mounted.stdchk(&["umount", mounted.root().to_str().expect("text")]).output();
    let refused = refused.expect("it starts");
    let who = format!("sleep ({})", reader.id());
    assert!(!refused.status.success() && text(&refused.stderr).contains(&who), "{}", text(&refused.stderr));
    reader.kill().expect("it runs");
    reader.wait().expect("it ends");
    mounted.umount();
}

#[test]
fn a_mount_whose_store_is_gone_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted.sh("mkdir d; echo bytes > d/f");
    std::fs::rename(&mounted.store, mounted.dir.path().join("elsewhere")).expect("it can be moved");
    // Longer than the kernel believes what it was told.
    std::thread::sleep(Duration::from_secs(2));
    let refused = mounted.try_sh("cat d/f");
    assert!(text(&refused.stderr).contains("Input/output error"), "{}", text(&refused.stderr));
    mounted.umount();
}
