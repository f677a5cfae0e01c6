//! Mounts: the programs of others on them, and what becomes of them when rooms and pools go.

mod mounts;
mod pools;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mounts::{Mounted, Shell, can_mount, text, until};
use pools::Pool;
use stdchk_kit::{Hosts, Random};

/// A program of others that was built for the tests.
fn tool(name: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let path = target.join("tools/bin").join(name);
    if !path.exists() {
        eprintln!("not tested: {} is missing; 'scripts/setup test' makes it", path.display());
    }
    path.exists().then_some(path)
}

#[test]
fn everyday_programs_work() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted
        .sh("mkdir -p a/b; echo one > a/b/f; test \"$(cat a/b/f)\" = one; test \"$(stat -c %s a/b/f)\" = 4");
    // A file that several processes write one after the other is one file.
    mounted.sh("{ echo 1; sh -c 'echo 2'; (echo 3); echo 4; } > log; test \"$(tr -d '\\n' < log)\" = 1234");
    mounted.sh("echo 5 >> log; test \"$(wc -l < log)\" = 5; : > log; test ! -s log");
    mounted.sh("cp -r /usr/include/linux big; diff -r /usr/include/linux big; du -s big > /dev/null");
    mounted
        .sh("tar -cf t.tar big; mkdir again; tar -C again -xf t.tar; diff -r big again/big; rm -r big again");
    mounted.sh("ln -s a/b/f link; test \"$(cat link)\" = one; mv a/b c; test \"$(cat c/f)\" = one; rmdir a");
    mounted.sh(
        "truncate -s 10M sparse; test \"$(stat -c %s sparse)\" = 10485760; cp sparse copy; cmp sparse copy",
    );
    mounted.sh("echo two > c/f.tmp; mv c/f.tmp c/f; test \"$(cat c/f)\" = two; chmod 600 c/f; touch -d 2001-02-03 c/f");
    mounted.sh("test \"$(stat -c '%a %y' c/f | cut -c1-14)\" = '600 2001-02-03'; df . > /dev/null; find . > /dev/null");
    // Who is killed leaves nothing, and takes nothing along.
    mounted
        .sh("echo old > kept; sh -c 'exec 3> kept 4> new; echo half >&3; echo half >&4; kill -9 $$' || true");
    mounted.sh(
        "sleep 0.3; test \"$(cat kept)\" = old; test ! -e new; echo new > kept; test \"$(cat kept)\" = new",
    );
    mounted.sh("exec 3> open; echo x >&3; rm open; echo y >&3; exec 3>&-; test ! -e open");
    // Two write one file, and one of them is killed: the other one hears of it when it closes.
    mounted.sh("cp kept before");
    let python = "import os, signal\n\
        child = os.fork(); f = os.open('kept', os.O_WRONLY); os.write(f, b'half')\n\
        if child == 0: signal.pause()\n\
        import time; time.sleep(0.2); os.kill(child, 9); os.waitpid(child, 0); time.sleep(0.2)\n\
        try: os.close(f)\n\
        except OSError as error: print(error.errno)\n";
    std::fs::write(mounted.dir.path().join("two.py"), python).expect("a file");
    assert_eq!(mounted.sh("python3 ../two.py; cmp kept before; rm before"), "5\n");
    let python = "import mmap, os\n\
        data = os.urandom(300000)\n\
        open('m', 'wb').write(data)\n\
        f = open('m', 'rb'); assert mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:] == data\n\
        os.setxattr('m', 'user.who', b'me'); assert os.getxattr('m', 'user.who') == b'me'\n\
        import sqlite3\n\
        for round in range(3):\n    \
            db = sqlite3.connect('db'); db.execute('create table if not exists t(a, b)')\n    \
            db.executemany('insert into t values(?, ?)', [(i, os.urandom(50)) for i in range(2000)])\n    \
            db.commit(); db.close()\n\
        db = sqlite3.connect('db'); assert db.execute('select count(*) from t').fetchone() == (6000,)\n\
        assert db.execute('pragma integrity_check').fetchone() == ('ok',)\n";
    std::fs::write(mounted.dir.path().join("try.py"), python).expect("a file");
    mounted.sh("python3 ../try.py");
    // What is not installed here is not tried.
    mounted.sh("command -v rsync > /dev/null || exit 0; rsync -a /usr/include/linux/ synced/; rsync -a --delete --checksum /usr/include/linux/ synced/; diff -r /usr/include/linux synced");
    let python = "try: import numpy\n\
        except ImportError: numpy = None\n\
        if numpy:\n    \
            a = numpy.arange(300000).reshape(100, -1); numpy.save('a.npy', a); numpy.savez('a.npz', a=a, b=a[1])\n    \
            assert (numpy.load('a.npy', mmap_mode='r') == a).all() and (numpy.load('a.npz')['b'] == a[1]).all()\n\
        try: import torch\n\
        except ImportError: torch = None\n\
        if torch:\n    \
            state = {'w': torch.arange(100000.0), 'step': 3}; torch.save(state, 'model.pt')\n    \
            back = torch.load('model.pt'); assert back['step'] == 3 and bool((back['w'] == state['w']).all())\n";
    std::fs::write(mounted.dir.path().join("arrays.py"), python).expect("a file");
    mounted.sh("python3 ../arrays.py");
    // All is there after it was unmounted, and mounted again.
    let before = mounted.sh("find . -type f -exec sha256sum {} + | sort");
    mounted.umount();
    mounted.mount(&["--read-only"]);
    assert_eq!(mounted.sh("find . -type f -exec sha256sum {} + | sort"), before);
    let refused = mounted.try_sh("echo x > new");
    assert!(!refused.status.success() && text(&refused.stderr).contains("Read-only file system"));
}

#[test]
fn versions_are_shown_and_policies_act() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted.sh("mkdir melt; for i in 1 2 3; do echo $i > melt/restart; done");
    assert_eq!(
        mounted.sh("ls -A . melt").split_whitespace().collect::<Vec<_>>(),
        [".:", "melt", "melt:", "restart"]
    );
    assert_eq!(mounted.sh("cd melt/.versions/restart; cat $(ls | sort -n)"), "1\n2\n3\n");
    assert_eq!(mounted.sh("ls melt/.versions"), "restart\n");
    // A version is brought back as anybody would, and nobody changes one.
    mounted.sh("cd melt; cp .versions/restart/$(ls .versions/restart | sort -n | head -1) restart; test $(cat restart) = 1");
    for refused in [
        "echo x > melt/.versions/restart/1",
        "rm -r melt/.versions/restart",
        "touch melt/.versions/x",
        "mkdir melt/.versions",
        "ls melt/restart/.versions",
        "ls melt/.versions/nothing",
    ] {
        assert!(!mounted.try_sh(refused).status.success(), "{refused}");
    }
    let set = |path: &str, policy: &str| {
        let script = "import os,sys; os.setxattr(sys.argv[1], 'user.stdchk.policy', sys.argv[2].encode())";
        let mut command = Command::new("python3");
        command.args(["-c", script, path, policy]).current_dir(mounted.root()).stderr(Stdio::null());
        command.status().expect("python3").success()
    };
    assert!(set("melt", "keep-last=2") && !set("melt", "keep-some"));
    mounted.sh("for i in 4 5 6; do echo $i > melt/restart; done; mkdir melt/deep; for i in 1 2 3; do echo $i > melt/deep/f; done");
    assert_eq!(mounted.sh("cd melt/.versions/restart; cat $(ls | sort -n)"), "5\n6\n");
    assert_eq!(mounted.sh("cd melt/deep/.versions/f; cat $(ls | sort -n)"), "2\n3\n");
    // What a file says itself counts more; renaming over it counts as writing it.
    assert!(set("melt/restart", "replace"));
    mounted.sh("echo 7 > melt/restart; echo 8 > melt/new");
    assert_eq!(mounted.sh("cat melt/.versions/restart/*"), "7\n");
    mounted.sh("mv melt/new melt/deep/f");
    assert_eq!(mounted.sh("cd melt/deep/.versions/f; cat $(ls | sort -n)"), "3\n8\n");
    // What was allowed to stay before goes when that is changed, though nothing is written.
    mounted.sh("for i in 1 2 3; do echo $i > melt/deep/g; done");
    assert_eq!(mounted.sh("cd melt/deep/.versions/g; cat $(ls | sort -n)"), "2\n3\n");
    assert!(set("melt/deep", "replace") && set("melt/deep/f", "keep-last=2"));
    until(|| (mounted.sh("cat melt/deep/.versions/g/*") == "3\n").then_some(()));
    assert_eq!(mounted.sh("cd melt/deep/.versions/f; cat $(ls | sort -n)"), "3\n8\n");
    let script = "import os; print(*(os.getxattr('melt/deep/f', 'user.stdchk.' + name).decode() for name in ('versions', 'durability')))";
    assert_eq!(mounted.sh(&format!("python3 -c \"{script}\"")), "2 local\n");
    // The same bytes have the same hash, others have another one.
    mounted.sh("head -c 3000000 /dev/urandom > one; cp one same; { cat one; echo; } > other");
    let script = "import os; print(len({os.getxattr(name, 'user.stdchk.hash') for name in ('one', 'same', 'other')}), 'user.stdchk.hash' in os.listxattr('one'))";
    assert_eq!(mounted.sh(&format!("python3 -c \"{script}\"")), "2 True\n");
}

/// What is too old goes by itself, but for what was written last.
#[test]
fn old_files_are_purged() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted.sh("mkdir old young; for i in 1 2; do for n in 0 1; do echo x > old/melt.N$n.T$i; echo x > young/melt.N$n.T$i; done; echo $i > old/log; done");
    mounted.sh("echo last > old/melt.N0.T2; echo last > old/melt.N1.T2");
    let script = "import os; [os.setxattr(name, 'user.stdchk.policy', value) for name, value in (('old', b'keep-last=3 purge-after=1s'), ('young', b'purge-after=1h'))]";
    mounted.sh(&format!("python3 -c \"{script}\""));
    until(|| (mounted.sh("ls old") == "melt.N0.T2\nmelt.N1.T2\n").then_some(()));
    until(|| (mounted.sh("ls old/.versions/melt.N0.T2 | wc -l") == "1\n").then_some(()));
    assert_eq!(mounted.sh("cat old/*; ls young | wc -l"), "last\nlast\n4\n");
    // What is being written is not old.
    mounted.sh("echo x > old/melt.N0.T1; sleep 1.2; echo y > old/other; exec 3<> old/melt.N0.T1; echo new >&3; sleep 7; exec 3>&-; cat old/melt.N0.T1 | grep -qx new");
}

/// What was removed is given back to the disk, and nobody has to ask for it.
#[test]
fn garbage_goes_by_itself() {
    if !can_mount() || std::env::var_os("STDCHK_TEST_LONG").is_none() {
        return eprintln!("not tested: it takes minutes");
    }
    let mounted = Mounted::new(&[]);
    mounted.sh(
        "head -c 50000000 /dev/urandom > f; head -c 100 /dev/urandom > kept; sha256sum kept > ../sum; rm f",
    );
    let bytes = || -> u64 {
        let said = mounted.sh("du -sb ../store/packs | cut -f1");
        said.trim().parse().expect("a number")
    };
    assert!(bytes() > 50_000_000);
    let begun = Instant::now();
    while bytes() > 1_000_000 {
        assert!(begun.elapsed() < Duration::from_secs(300), "{} bytes are left{}", bytes(), mounted.log());
        std::thread::sleep(Duration::from_secs(1));
    }
    mounted.sh("sha256sum -c ../sum");
}

#[test]
fn files_of_a_step_are_one_checkpoint_when_all_nodes_have_closed_theirs() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let latest = |app: &str| text(&mounted.stdchk(&["latest", app]).output().expect("it starts").stdout);
    mounted.sh("mkdir melt; for i in 0 1 2; do head -c 100000 /dev/urandom > melt/melt.N$i.T1000; done");
    assert_eq!(latest("melt"), "", "nobody said how many there are");
    let script = "import os; os.setxattr('melt', 'user.stdchk.nodes', b'3')";
    mounted.sh(&format!("python3 -c \"{script}\""));
    mounted.sh("for i in 0 1; do head -c 100000 /dev/urandom > melt/melt.N$i.T2000; done");
    assert_eq!(latest("melt"), "");
    mounted.sh("head -c 100000 /dev/urandom > melt/melt.N2.T2000");
    assert_eq!(latest("melt"), "2000\n");
    let back = mounted.dir.path().join("back").display().to_string();
    let restored = mounted.stdchk(&["restore", "melt", "--to", &back]).output().expect("it starts");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    mounted.sh("for i in 0 1 2; do cmp melt/melt.N$i.T2000 ../back/melt.N$i.T2000; done");
    // Steps can be looked into, those only that are complete.
    assert_eq!(
        mounted.sh("ls melt/.steps; ls melt/.steps/2000"),
        "2000\nmelt.N0.T2000\nmelt.N1.T2000\nmelt.N2.T2000\n"
    );
    mounted.sh("diff -r melt/.steps/2000 ../back; ! ls melt/.steps/1000; ! touch melt/.steps/2000/x; ! rm -r melt/.steps/2000");
    // A job that went back writes the step again: it is complete when all have.
    mounted.sh("for i in 0 1; do echo again > melt/melt.N$i.T2000; done");
    assert!(!text(&mounted.stdchk(&["list", "melt"]).output().expect("it starts").stdout).contains("2000.2"));
    mounted.sh("echo again > melt/melt.N2.T2000");
    assert!(text(&mounted.stdchk(&["list", "melt"]).output().expect("it starts").stdout).contains("2000.2"));
    // What is incomplete can be said to be complete.
    mounted.sh("echo x > melt/melt.N0.T3000; touch melt/.complete; test ! -e melt/.complete");
    assert_eq!(latest("melt"), "3000\n");
    mounted.sh("rm -r melt");
    assert!(mounted.stdchk(&["verify"]).output().expect("it starts").status.success());
    assert_eq!(latest("melt"), "3000\n", "checkpoints stay when the files they were made of go");
    mounted.sh("mkdir melt; ls melt/.steps | tr '\\n' ' ' | grep -qx '1000 2000 3000 '; test $(cat melt/.steps/2000/melt.N1.T2000) = again");
    // So do those that were saved otherwise, with folders and links, in the directory that is named like their application.
    let state = mounted.dir.path().join("state").display().to_string();
    mounted.sh("mkdir -p ../state/a/b; echo deep > ../state/a/b/f; ln -s b/f ../state/a/link; head -c 5000000 /dev/urandom > ../state/large; mkdir run");
    let saved = mounted.stdchk(&["save", "--step", "7", "run", &state]).output().expect("it starts");
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    until(|| mounted.try_sh("test -d run/.steps/7").status.success().then_some(()));
    mounted.sh("diff -r run/.steps/7/$(ls run/.steps/7) ../state; cp -r run/.steps/7 run/copy; find run/.steps | wc -l");
    // Nobody may read there what he may not read anywhere else.
    mounted.sh("echo key > melt/melt.N0.T4; chmod 600 melt/melt.N0.T4; touch melt/.complete; test $(stat -c %a melt/.steps/4/melt.N0.T4) = 400");
}

/// Whether the mount dies before files of a step are stored, or before the list of them is, the step is complete when it is there again.
#[test]
fn a_step_is_complete_that_was_when_the_mount_died() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["--durability", "staged"]);
    mounted.sh("mkdir melt; python3 -c \"import os; os.setxattr('melt', 'user.stdchk.nodes', b'2')\"");
    for step in 1..=12 {
        let server = mounted.server().expect("it is there");
        let script = format!(
            "import os, time\n\
            for node in [0, 1]: open('melt/melt.N%d.T{step}' % node, 'w').write('node %d' % node)\n\
            time.sleep({}e-3); os.kill({server}, 9)\n",
            (step - 1) * 4
        );
        mounted.sh(&format!("python3 -c \"{script}\""));
        until(|| mounted.server().filter(|&there| there != server));
        assert_eq!(mounted.sh(&format!("cat melt/.steps/{step}/*")), "node 0node 1", "{step}");
    }
    // What was forgotten is not shown in the place of what came after it, nor are files from before part of that.
    assert!(mounted.stdchk(&["forget", "melt@3"]).output().expect("it starts").status.success());
    mounted.sh("echo again > melt/melt.N0.T3; sleep 0.5; test ! -e melt/.steps/3; echo again > melt/melt.N1.T3; sleep 0.5");
    assert_eq!(mounted.sh("cat melt/.steps/3/*"), "again\nagain\n");
}

/// A suite of others for the bytes of a file, on a mount.
fn try_bytes(fsx: &Path, mounted: &Mounted, seeds: u64, operations: &str) {
    for seed in 0..seeds {
        let file = mounted.root().join(format!("fsx{seed}"));
        let mut command = Command::new(fsx);
        command.args(["-N", operations, "-S", &seed.to_string(), "-P"]).arg(mounted.dir.path()).arg(file);
        let output = command.output().expect("fsx");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && said.contains("A-OK"), "seed {seed}: {said}{}", mounted.log());
    }
}

/// Writes at random, in several ways and by several threads, of which each byte is checked.
fn try_random_writes(mounted: &Mounted) {
    for engine in ["psync", "libaio"] {
        let mut command = Command::new("fio");
        let root = format!("--directory={}", mounted.root().display());
        let engine = format!("--ioengine={engine}");
        command.args([
            "--name=f",
            "--rw=randrw",
            "--bsrange=1k-96k",
            "--size=12m",
            "--numjobs=2",
            "--iodepth=8",
        ]);
        command.args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=40",
            "--group_reporting",
        ]);
        let Ok(output) = command.args([root, engine]).current_dir(mounted.dir.path()).output() else {
            return eprintln!("not tested: fio is not installed here");
        };
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        mounted.sh("rm f.*");
    }
}

#[test]
fn a_suite_for_files_of_others_finds_nothing() {
    let Some(fsx) = tool("fsx").filter(|_| can_mount()) else { return };
    let mounted = Mounted::new(&["--durability", "staged"]);
    let (seeds, operations) =
        if std::env::var_os("STDCHK_TEST_LONG").is_some() { (20, "20000") } else { (3, "2000") };
    try_bytes(&fsx, &mounted, seeds, operations);
    try_random_writes(&mounted);
}

#[test]
fn suites_of_others_find_nothing_on_a_pool() {
    let Some((fsx, names)) = tool("fsx").zip(tool("pjdfstest")).filter(|_| can_mount()) else { return };
    let pool = Pool::start(&["--replicas", "2"]);
    let lenders: Vec<_> = (1..=2).map(|host| pool.join(host, &["--memory", "512MiB"])).collect();
    let mounted = Mounted::of_pool(&pool, &["--allow-other"]);
    try_bytes(&fsx, &mounted, 1, "1000");
    try_random_writes(&mounted);
    try_names(&names, &mounted);
    mounted.umount();
    drop(lenders);
}

/// What the suite for names wants that a mount does not do: docs/MOUNT.md says why.
const NOT_DONE: [&str; 6] = [
    "link::",
    "rename::preserve_metadata::",
    "rename::to_multiply_linked::",
    "unlink::unchanged_ctime_failed::",
    "unlink::update_ctime_success::",
    "rename::updates_link_parent",
];

#[test]
fn a_suite_for_names_of_others_finds_only_what_is_known() {
    let Some(suite) = tool("pjdfstest").filter(|_| can_mount()) else { return };
    try_names(&suite, &Mounted::new(&["--durability", "staged", "--allow-other"]));
}

/// A suite of others for names and what can be said of files, on a mount.
fn try_names(suite: &Path, mounted: &Mounted) {
    if !Command::new("id").arg("-u").output().is_ok_and(|id| text(&id.stdout).trim() == "0") {
        eprintln!("not tested: the suite wants to be root");
        return;
    }
    // Others must reach it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mounted.dir.path(), open).expect("ours");
    let config = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
        [settings]\nnaptime = 0.5\nallow_remount = false\n\
        [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n";
    let path = mounted.dir.path().join("pjd.toml");
    std::fs::write(&path, config).expect("a file");
    let output = Command::new(suite).arg("-c").arg(path).arg("-p").arg(mounted.root()).output().expect("it");
    let said = text(&output.stdout);
    let named = |state: &str| -> Vec<String> {
        let lines = said.lines().filter(|line| line.ends_with(state));
        lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    let failed = named(" FAILED");
    let unknown: Vec<&String> =
        failed.iter().filter(|test| !NOT_DONE.iter().any(|known| test.starts_with(known))).collect();
    assert!(unknown.is_empty(), "{unknown:?}\n{said}");
    let passed = named(" ok").len();
    assert!(passed > 300, "{passed} passed: {said}{}", text(&output.stderr));
}

#[test]
fn two_mounts_of_a_pool_see_each_other_and_the_loss_of_the_pool_is_an_error() {
    if !can_mount() {
        return;
    }
    let mut pool = Pool::start_on(Hosts::new(2), &["--replicas", "2"]);
    let lenders = [pool.join_on(1, &["--memory", "256MiB"]), pool.join_on(2, &["--memory", "256MiB"])];
    let program = env!("CARGO_BIN_EXE_stdchk");
    let roots: Vec<String> =
        (1..=2).map(|host| pool.path(&format!("mnt{host}")).display().to_string()).collect();
    let mut shells: Vec<Shell> = (1..=2).map(|host| Shell::on(&pool, host)).collect();
    for (shell, root) in shells.iter_mut().zip(&roots) {
        shell.must(&format!("mkdir {root} && {program} mount {root} --log {root}.log"));
    }
    std::fs::write(pool.path("in"), Random::new(3).bytes(20 << 20)).expect("a file");
    let state = pool.path("in").display().to_string();
    for round in 0..3usize {
        let (one, other) = (round % 2, (round + 1) % 2);
        shells[one].must(&format!("cp {state} {}/f{round}", roots[one]));
        let begun = Instant::now();
        while !shells[other].run(&format!("cmp {state} {}/f{round}", roots[other])).0 {
            assert!(begun.elapsed() < Duration::from_secs(1), "it is not seen within a second");
        }
    }
    // Of what is being written nothing can be read elsewhere, and lists do not show it.
    shells[0].must(&format!("exec 3> {}/part && echo some >&3", roots[0]));
    std::thread::sleep(Duration::from_millis(600));
    assert!(shells[1].run(&format!("cat {}/part", roots[1])).1.contains("No such file"));
    assert!(!shells[1].must(&format!("ls {}", roots[1])).contains("part"));
    shells[0].must("exec 3>&-");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(shells[1].must(&format!("cat {}/part", roots[1])), "some\n");
    // The pool goes away: errors, and nobody hangs.
    lenders.into_iter().for_each(|lender| lender.kill());
    pool.manager.take().expect("a manager").kill();
    let begun = Instant::now();
    let (succeeded, said) = shells[0].run(&format!("timeout 100 cp {state} {}/lost", roots[0]));
    assert!(!succeeded, "{said}");
    let (succeeded, said) = shells[1].run(&format!("timeout 100 cat {}/f0 > /dev/null", roots[1]));
    assert!(!succeeded, "{said}");
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    for (shell, root) in shells.iter_mut().zip(&roots) {
        shell.run(&format!("{program} umount --lazy {root}"));
    }
}

#[test]
fn a_full_store_says_so_and_keeps_what_was_there() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let small = dir.path().join("small");
    std::fs::create_dir(&small).expect("a directory");
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "small"]).arg(&small).status();
    if !tmpfs.is_ok_and(|status| status.success()) {
        eprintln!("not tested: tmpfs cannot be mounted here");
        return;
    }
    let mounted = Mounted { store: small.join("store").display().to_string(), dir, key: None };
    mounted.mount(&[]);
    std::fs::write(mounted.dir.path().join("in"), Random::new(1).bytes(6 << 20)).expect("a file");
    std::fs::write(mounted.dir.path().join("large"), Random::new(2).bytes(60 << 20)).expect("a file");
    mounted.sh("cp ../in kept; sync kept");
    for name in ["new", "kept"] {
        let refused = mounted.try_sh(&format!("cp ../large {name}"));
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("No space left on device"), "{said}");
        mounted.sh("cmp ../in kept; test ! -e new");
    }
    // What is removed makes room.
    mounted.sh("rm kept");
    for _ in 0..3 {
        assert!(mounted.stdchk(&["gc"]).output().expect("it starts").status.success());
    }
    mounted.sh("cp ../in again; cmp ../in again");
    // Where nothing at all is left a mount makes room for itself, of what nobody needs any more.
    mounted.sh("cp ../in garbage; rm garbage");
    let mut dd = Command::new("dd");
    dd.arg("if=/dev/zero").arg(format!("of={}", small.join("fill").display())).args(["bs=4k", "status=none"]);
    assert!(!dd.stderr(Stdio::null()).status().expect("dd").success(), "all is full");
    mounted.umount();
    mounted.mount(&[]);
    mounted.sh("cmp ../in again; echo small > small");
    mounted.umount();
    let _ = Command::new("umount").arg("-l").arg(&small).status();
}

/// Many who write at once share one budget of memory, and none of them waits for ever.
#[test]
fn many_writers_keep_to_the_budget() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["--durability", "staged"]);
    std::fs::write(mounted.dir.path().join("in"), Random::new(4).bytes(32 << 20)).expect("a file");
    // Not the same for each: or it would be stored once.
    mounted.sh("for i in $(seq 32); do (echo $i; cat ../in; tail -c +$((i * 999)) ../in) > f$i & done; wait");
    mounted.sh("(echo 7; cat ../in; tail -c +6993 ../in) | cmp - f7");
    let server = mounted.server().expect("it is there");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    let peak_mib = peak.and_then(|kib| kib.parse::<u64>().ok()).expect("a number") >> 10;
    assert!(peak_mib < 320, "{peak_mib} MiB with a budget of 256");
}
