//! What programs and people expect of any file system, and of who mounts and unmounts one.

mod mounts;
mod pools;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mounts::{Mounted, can_mount, text, until};

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    text(&id.stdout).trim() == "0"
}

#[test]
fn mounts_and_unmounts_are_only_where_they_should_be() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let refused = |args: &[&str], why: &str| {
        let output = mounted.stdchk(args).output().expect("it starts");
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    };
    let (root, store) = (mounted.root().display().to_string(), mounted.store.clone());
    let full = mounted.dir.path().join("full");
    std::fs::create_dir_all(full.join("something")).expect("a directory");
    let inside = Path::new(&store).join("inside");
    std::fs::create_dir(&inside).expect("a directory");
    refused(&["mount", &root], "mounted there already");
    refused(&["mount", full.to_str().expect("text")], "there is something in it");
    refused(&["mount", inside.to_str().expect("text")], "the store lies there");
    refused(&["umount", full.to_str().expect("text")], "no mount of stdchk");
    refused(&["umount", "/proc"], "no mount of stdchk");
    assert!(Path::new("/proc/self").exists());
    let log = mounted.dir.path().join("not/there/log");
    let elsewhere = mounted.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    refused(
        &["mount", "--log", log.to_str().expect("text"), elsewhere.to_str().expect("text")],
        "cannot write",
    );
    assert!(!log.parent().expect("a folder").exists());
}

#[test]
fn root_need_not_say_where() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    // Nobody else sees that mount, nor what else may be there.
    let script = "set -e; mount -t tmpfs none /mnt; s=\"$1\"; \"$s\" -q mount --log /mnt/log; echo x > /stdchk/f; \"$s\" -q umount; test ! -e /stdchk/f; rmdir /stdchk";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    let output =
        command.arg(env!("CARGO_BIN_EXE_stdchk")).env("STDCHK_STORE", dir.path().join("store")).output();
    let output = output.expect("unshare");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A mount that is taken away while a file is open ends with that file. It must not take along what is mounted there by then.
#[test]
fn who_ends_late_leaves_what_was_mounted_since() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let server = mounted.server().expect("it is there");
    let open = std::fs::File::create(mounted.root().join("open")).expect("a file");
    let root = mounted.root().display().to_string();
    let lazily = mounted.stdchk(&["umount", "--lazy", &root]).output().expect("it starts");
    assert!(lazily.status.success(), "{}", text(&lazily.stderr));
    let output = mounted.stdchk(&["mount", &root]).output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    mounted.sh("echo new > new");
    drop(open);
    until(|| (!Path::new(&format!("/proc/{server}")).exists()).then_some(()));
    assert_eq!(mounted.sh("cat new"), "new\n");
    assert_ne!(mounted.server(), Some(server));
}

/// Whoever may not write a program that runs does not cut it off either.
#[test]
fn a_program_that_runs_is_left_as_it_is() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["--durability", "staged"]);
    let python = "import errno, os, shutil, subprocess, time\n\
        shutil.copy(shutil.which('dash'), 'program')\n\
        running = subprocess.Popen(['./program', '-c', 'while :; do :; done'])\n\
        for flags in [os.O_WRONLY, os.O_RDONLY | os.O_TRUNC] * 20 + [os.O_WRONLY | os.O_TRUNC | os.O_CREAT]:\n\
        \x20   try:\n\
        \x20       os.open('program', flags)\n\
        \x20   except OSError as error:\n\
        \x20       assert error.errno == errno.ETXTBSY, error\n\
        \x20   else:\n\
        \x20       raise SystemExit('it can be opened')\n\
        time.sleep(0.2); assert running.poll() is None, 'it has ended'\n\
        running.kill(); running.wait(); time.sleep(0.5)\n\
        assert len(os.listdir('.versions/program')) == 1\n\
        # What is written anew has no version of nothing in between, and others see it when it is closed.\n\
        for word in [b'one', b'two']:\n\
        \x20   f = os.open('text', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(f, word)\n\
        \x20   assert word == b'one' or subprocess.check_output(['cat', 'text']) == b'one'\n\
        \x20   os.close(f)\n\
        assert open('text', 'rb').read() == b'two' and len(os.listdir('.versions/text')) == 2\n";
    std::fs::write(mounted.dir.path().join("busy.py"), python).expect("a file");
    mounted.sh("python3 ../busy.py; cmp program $(which dash)");
}

#[test]
fn who_reads_a_file_that_is_written_is_told_of_what_he_reads() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let python = "import mmap, os\n\
        open('f', 'wb').write(b'a' * 50000)\n\
        def of_others():\n\
        \x20   r, w = os.pipe()\n\
        \x20   if os.fork() == 0:\n\
        \x20       f = os.open('f', os.O_RDONLY)\n\
        \x20       said = (os.stat('f').st_size, os.fstat(f).st_size, os.lseek(f, 0, 2), len(os.pread(f, 1 << 20, 0)))\n\
        \x20       os.write(w, repr(said).encode()); os._exit(0)\n\
        \x20   os.wait(); return eval(os.read(r, 1000))\n\
        f = os.open('f', os.O_WRONLY | os.O_TRUNC)\n\
        for size in [10, 100000]:\n\
        \x20   os.pwrite(f, b'b' * size, 0)\n\
        \x20   assert of_others() == (50000,) * 4, of_others()\n\
        \x20   assert os.fstat(f).st_size == os.lseek(f, 0, 2) == size\n\
        os.close(f)\n\
        assert of_others() == (100000,) * 4, of_others()\n\
        # Who maps a file to write it does not write back what others have read.\n\
        reader = open('f', 'rb'); old = mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ)\n\
        f = os.open('f', os.O_RDWR); os.pwrite(f, b'c' * 100000, 0)\n\
        old[:]\n\
        new = mmap.mmap(f, 100000)\n\
        for at in range(0, 100000, 4096): new[at] = ord('d')\n\
        new.flush(); new.close(); os.close(f)\n\
        wanted = bytes(ord('d') if at % 4096 == 0 else ord('c') for at in range(100000))\n\
        assert open('f', 'rb').read() == wanted\n\
        assert reader.read() == b'b' * 100000\n";
    std::fs::write(mounted.dir.path().join("sizes.py"), python).expect("a file");
    mounted.sh("python3 ../sizes.py");
    // Holes cost nothing, and are found.
    mounted.sh("truncate -s 400M hole; printf x | dd of=hole bs=1 seek=209715200 conv=notrunc status=none");
    mounted.sh("sleep 0.3; test \"$(du -k hole | cut -f1)\" -lt 10; cp -a hole ../hole; cmp hole ../hole");
    mounted.sh("test \"$(du -k ../hole | cut -f1)\" -lt 5000");
    // Notes go along with files, and those that are computed do no harm.
    let python = "import os\n\
        open('n', 'wb').write(b'x'); os.setxattr('n', 'user.mine', b'1')\n\
        os.setxattr('n', 'user.stdchk.hash', b'what was there'); os.removexattr('n', 'user.stdchk.version')\n\
        assert len(os.getxattr('n', 'user.stdchk.hash')) == 64 and os.getxattr('n', 'user.mine') == b'1'\n";
    std::fs::write(mounted.dir.path().join("notes.py"), python).expect("a file");
    mounted.sh("python3 ../notes.py; df . > /dev/null; df -i .");
    // Words that mean something are no names.
    mounted.sh("! mkdir .complete 2> /dev/null; ! mv n .complete 2> /dev/null; ! ln -s x .versions 2> /dev/null; test -e n");
}

#[test]
fn groups_and_rights_go_where_they_go_everywhere() {
    if !can_mount() || !is_root() {
        return;
    }
    let mounted = Mounted::new(&["--allow-other"]);
    std::fs::set_permissions(mounted.dir.path(), std::fs::Permissions::from_mode(0o755)).expect("rights");
    let of_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    mounted.sh("mkdir shared; chgrp 1234 shared; chmod 2777 shared; echo run > su; chmod 6777 su; sleep 0.3");
    mounted.sh(&format!(
        "{of_nobody} sh -c 'cd shared; echo x > f; mkdir d; cd ..; echo more >> su'; sleep 0.4"
    ));
    assert_eq!(mounted.sh("stat -c '%g %a' shared/f shared/d; stat -c %a su"), "1234 644\n1234 2755\n777\n");
    // What a new file that is moved over another one is like is what it was made as.
    mounted.sh("echo open > there; chmod 644 there; umask 077; exec 3> tmp; mv tmp there; echo secret >&3; exec 3>&-");
    assert_eq!(mounted.sh("stat -c %a there; cat there"), "600\nsecret\n");
    mounted.sh(
        "ln -s nowhere link; exec 3> tmp; mv tmp link; echo new >&3; exec 3>&-; test ! -L link; sleep 0.2",
    );
    assert_eq!(mounted.sh("cat link"), "new\n");
}

/// However many files are written at once, in whatever order, they share one budget.
#[test]
fn many_writers_share_the_memory_that_there_is() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["--memory", "64MiB", "--durability", "staged"]);
    let server = mounted.server().expect("it is there");
    let python = "import os\n\
        block = os.urandom(1 << 20); files, blocks = 24, 20\n\
        def of(i, b): return b'%08d' % (i * 1000 + b) + block[8:]\n\
        open_files = [os.open(f'f{i}', os.O_CREAT | os.O_WRONLY) for i in range(files)]\n\
        for step in range(blocks):\n\
        \x20   for i, f in enumerate(open_files):\n\
        \x20       b = step if i % 2 else step * 7 % blocks\n\
        \x20       os.pwrite(f, of(i, b), b << 20)\n\
        for f in open_files: os.close(f)\n\
        for i in range(files):\n\
        \x20   f = open(f'f{i}', 'rb')\n\
        \x20   for b in range(blocks): assert f.read(1 << 20) == of(i, b), (i, b)\n";
    std::fs::write(mounted.dir.path().join("many.py"), python).expect("a file");
    mounted.sh("python3 ../many.py");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("it is there still");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let most: u64 = most.expect("how much memory it took").trim().parse().expect("a number");
    assert!(most < 300 << 10, "{most} KiB for 480 MiB that were written");
}

/// No root is needed, neither to mount, nor for a mount that comes back, nor to unmount.
#[test]
fn who_is_not_root_can_mount() {
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    if !can_mount() || !is_root() || !has_helper {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let script = "set -eu; cd \"$1\"; s=./stdchk; export HOME=$PWD STDCHK_STORE=$PWD/store; mkdir mnt\n\
        server() { python3 -c \"import os; print(os.getxattr('mnt', 'user.stdchk.process').decode())\" 2> /dev/null || echo none; }\n\
        $s -q mount mnt; echo one > mnt/f; mkdir mnt/d; test \"$(stat -c %u mnt/f)\" = 65534\n\
        first=$(server); kill -9 $first\n\
        for i in $(seq 100); do now=$(server); test $now = none -o $now = $first || break; sleep 0.1; done\n\
        test \"$(cat mnt/f)\" = one; echo two > mnt/d/f; $s -q umount mnt; test ! -e mnt/f\n\
        $s -q mount mnt --read-only; test \"$(cat mnt/d/f)\" = two; ! echo x 2> /dev/null > mnt/g; $s -q umount mnt";
    let binary = dir.path().join("stdchk");
    std::fs::copy(env!("CARGO_BIN_EXE_stdchk"), &binary).expect("room");
    let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(dir.path()).status().expect("chown");
    assert!(owned.success());
    // Everybody may open the device on a Debian that people work on, but not in every container.
    let of_nobody = "set -e; mknod -m 666 \"$1/fuse\" c 10 229; mount --bind \"$1/fuse\" /dev/fuse\n\
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$2\" sh \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", of_nobody, "sh"]);
    let output = command.arg(dir.path()).arg(script).env_remove("STDCHK_LOG").output().expect("unshare");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
