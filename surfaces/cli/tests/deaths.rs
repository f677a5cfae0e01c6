//! The process of a mount is killed while others write, and so are they: what was closed is there, nothing is there in part, and nobody hangs.

mod mounts;
mod pools;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mounts::{Mounted, can_mount, text, until};
use pools::Pool;
use stdchk_kit::Random;

#[test]
fn what_was_closed_survives_the_death_of_the_mount() {
    if can_mount() {
        kill_while_others_write(&Mounted::new(&["--durability", "staged"]), 50, NO_PAUSE);
    }
}

#[test]
fn what_was_closed_and_synced_survives_the_death_of_the_mount() {
    if can_mount() {
        kill_while_others_write(&Mounted::new(&["--durability", "local"]), 12, NO_PAUSE);
    }
}

#[test]
fn what_was_closed_survives_the_death_of_the_mount_of_a_pool() {
    if !can_mount() {
        return;
    }
    let pool = Pool::start(&["--replicas", "2"]);
    let lenders: Vec<_> = (1..=3).map(|host| pool.join(host, &["--memory", "2GiB"])).collect();
    let kills = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 50 } else { 12 };
    // Nobody drops versions here, and what is lent must have room for all of them, twice.
    let pause = Duration::from_millis(250);
    kill_while_others_write(&Mounted::of_pool(&pool, &["--durability", "staged"]), kills, pause);
    drop(lenders);
}

const NO_PAUSE: Duration = Duration::ZERO;

/// The process of the mount is killed again and again while others write, with a pause after each file: what was closed is there, nothing is there in part,
/// nobody hangs.
fn kill_while_others_write(mounted: &Mounted, kills: usize, pause: Duration) {
    let root = mounted.root();
    let stop = AtomicBool::new(false);
    let closed: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let tried: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let content = |writer: usize, version: u64| {
        let len = [3000, 200_000, 9_000_000][writer] + version as usize % 1000;
        Random::new(version * 10 + writer as u64).bytes(len)
    };
    std::thread::scope(|scope| {
        for writer in 0..3usize {
            let (root, stop, closed, tried) = (&root, &stop, &closed, &tried);
            scope.spawn(move || {
                let source = mounted.dir.path().join(format!("in{writer}"));
                for version in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    std::fs::write(&source, content(writer, version)).expect("a file");
                    tried[writer].store(version, Ordering::SeqCst);
                    // Of the programs at hand this one says what close says.
                    let mut copy = Command::new("timeout");
                    copy.args(["60", "cp"]).arg(&source).arg(root.join(format!("f{writer}")));
                    let status = copy.stderr(Stdio::null()).status().expect("cp");
                    assert_ne!(status.code(), Some(124), "a writer hangs");
                    if status.success() {
                        closed[writer].store(version, Ordering::SeqCst);
                        std::thread::sleep(pause);
                    } else {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        // Also when something below fails: or the writers would never end.
        let _stop = StopAtEnd(&stop);
        let mut random = Random::new(77);
        for kill in 0..kills {
            std::thread::sleep(Duration::from_millis(20 + random.below(150)));
            let server = until(|| mounted.server());
            assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill").success());
            until(|| mounted.server().filter(|&there| there != server));
            for writer in 0..3 {
                let least = closed[writer].load(Ordering::SeqCst);
                let mut bytes = Vec::new();
                let read = std::fs::File::open(root.join(format!("f{writer}")))
                    .and_then(|mut file| file.read_to_end(&mut bytes));
                let most = tried[writer].load(Ordering::SeqCst);
                match read {
                    Err(_) if least == 0 => {}
                    Err(error) => panic!("kill {kill}: f{writer} cannot be read: {error}\n{}", mounted.log()),
                    Ok(_) => assert!(
                        (least..=most).rev().any(|version| bytes == content(writer, version)),
                        "kill {kill}: f{writer} is none of the versions {least} to {most}\n{}",
                        mounted.log()
                    ),
                }
            }
        }
    });
    assert!(closed.iter().all(|closed| closed.load(Ordering::SeqCst) > 3), "{closed:?}");
    mounted.umount();
    // What is staged has one copy at first.
    let is_pool = mounted.key.is_some();
    assert!(!is_pool || mounted.stdchk(&["pool", "wait"]).output().expect("it starts").status.success());
    let verified = mounted.stdchk(&["verify"]).output().expect("it starts");
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
}

/// Small files wait in a journal until they are stored together. What was closed is there, whenever the mount dies.
#[test]
fn small_files_survive_the_death_of_the_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["--durability", "staged"]);
    // Prints the number of each file that was closed.
    let script = "import os, sys\n\
        for i in range(int(sys.argv[1]), 1000000):\n    \
            try:\n        \
                f = os.open(f'f{i}', os.O_CREAT | os.O_WRONLY | os.O_EXCL); os.write(f, b'%d.' % i * 500); os.close(f)\n    \
            except OSError: break\n    \
            print(i, flush=True)\n";
    let (mut random, mut first) = (Random::new(5), 0u64);
    let mut all = Vec::new();
    for kill in 0..12 {
        let mut writer = Command::new("python3");
        writer.args(["-c", script, &first.to_string()]).current_dir(mounted.root()).stdout(Stdio::piped());
        let writer = writer.spawn().expect("python3");
        std::thread::sleep(Duration::from_millis(100 + random.below(150)));
        let server = mounted.server().expect("it is there");
        assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill").success());
        let said = text(&writer.wait_with_output().expect("it ends").stdout);
        let closed: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).collect();
        until(|| mounted.server().filter(|&there| there != server));
        all.extend(&closed);
        first = all.last().map_or(0, |last| last + 2);
        let wrong: Vec<u64> = all
            .iter()
            .copied()
            .filter(|i| {
                let bytes = std::fs::read_to_string(mounted.root().join(format!("f{i}")));
                !bytes.is_ok_and(|bytes| bytes == format!("{i}.").repeat(500))
            })
            .collect();
        assert!(wrong.is_empty(), "kill {kill}: {wrong:?} of {}\n{}", all.len(), mounted.log());
    }
    assert!(all.len() > 500, "{}", all.len());
    // Whatever is done to one while it is closed is done to it.
    let race = "import os, threading, time\n\
        def make(i):\n    \
            f = os.open(f'r{i}', os.O_CREAT | os.O_WRONLY); os.write(f, b'x' * 3000); os.close(f)\n\
        for i in range(400):\n    \
            maker = threading.Thread(target=make, args=(i,)); maker.start()\n    \
            done = False\n    \
            while not done:\n        \
                try: (os.unlink(f'r{i}') if i % 3 else os.rename(f'r{i}', f's{i}')); done = True\n        \
                except FileNotFoundError: pass\n    \
            maker.join()\n\
        time.sleep(0.3)\n\
        left = set(os.listdir('.')); assert not [n for n in left if n[0] == 'r'], left\n\
        assert all(f's{i}' in left for i in range(0, 400, 3)), left\n\
        # What cannot be kept is refused at once, and is no harm to others.\n\
        f = os.open('pill', os.O_CREAT | os.O_WRONLY); os.setxattr(f, 'user.a', b'x' * 40000)\n\
        try: os.setxattr(f, 'user.b', b'x' * 40000); refused = False\n\
        except OSError: refused = True\n\
        os.write(f, b'pill'); os.close(f); assert refused\n";
    std::fs::write(mounted.dir.path().join("race.py"), race).expect("a file");
    mounted.sh("python3 ../race.py; cat pill; rm s* pill");
    // What is done to one that waits comes after it, and nothing is left behind.
    mounted.sh("echo 1 > a; echo 2 >> a; mv a b; echo 3 > a; rm a; echo 4 > c; chmod 600 c; test \"$(cat b)\" = \"$(printf '1\\n2')\"; test ! -e a");
    mounted.sh("mkdir d; echo 5 > d/f; ! rmdir d; mv d e; cat e/f | grep -qx 5; test $(stat -c %a c) = 600");
    mounted.umount();
    assert_eq!(std::fs::read_dir(Path::new(&mounted.store).join("journal")).expect("a folder").count(), 0);
    assert!(mounted.stdchk(&["verify"]).output().expect("it starts").status.success());
    mounted.mount(&["--read-only"]);
    mounted.sh("cat b e/f c | tr -d '\\n' | grep -qx 1254");
    let there: usize = mounted.sh("ls | grep -c '^f'").trim().parse().expect("a number");
    assert!(there >= all.len(), "{there} of {}", all.len());
}

/// A simulation that knows nothing of stdchk writes its restart files into a mount. It is killed, and so is the mount; then it goes on from the
/// newest restart file, to the same end as from the file that another run wrote.
#[test]
fn a_simulation_goes_on_from_a_mount() {
    let has_lammps = Command::new("lmp").arg("-h").output().is_ok();
    if !has_lammps {
        eprintln!("not tested: LAMMPS (lmp) is not installed");
    }
    if !can_mount() || !has_lammps {
        return;
    }
    let mounted = Mounted::new(&[]);
    let settings = "pair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\n\
        neigh_modify every 20 delay 0 check no\nfix 1 all nve\nthermo 1000\n";
    let begin = format!(
        "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 6 0 6 0 6\n\
        create_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287\n{settings}\
        restart 100 melt.*.restart\nrun 4000\n"
    );
    let go_on = format!("read_restart ${{file}}\n{settings}run 4000 upto\n");
    std::fs::write(mounted.dir.path().join("in.melt"), begin).expect("a file");
    std::fs::write(mounted.dir.path().join("in.continue"), go_on).expect("a file");
    mounted.sh("mkdir melt whole");
    let energy = |log: &str| {
        let lines = mounted.sh(&format!("cat {log}"));
        let last = lines.lines().rfind(|line| line.split_whitespace().next() == Some("4000"));
        last.expect("the last step").split_whitespace().nth(4).map(str::to_owned)
    };
    mounted.sh("cd whole && lmp -in ../../in.melt -log none -screen none");
    let mut simulation = Command::new("lmp");
    simulation.args(["-in", "../../in.melt", "-log", "none", "-screen", "none"]);
    let mut simulation = simulation.current_dir(mounted.root().join("melt")).spawn().expect("lmp");
    until(|| (mounted.sh("ls melt | wc -l").trim().parse::<u32>().ok()? > 5).then_some(()));
    simulation.kill().expect("it runs");
    simulation.wait().expect("it ends");
    let server = mounted.server().expect("it is mounted");
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill").success());
    until(|| mounted.server().filter(|&there| there != server));
    let newest = mounted.sh("ls melt | sort -t . -k 2 -n | tail -1");
    let newest = newest.trim();
    assert_ne!(newest, "melt.4000.restart", "it was killed before its end");
    mounted.sh(&format!(
        "cd melt && lmp -in ../../in.continue -var file {newest} -log ../../rest.log -screen none"
    ));
    // The same from the file of the run that nobody killed, which never was in a mount since.
    mounted.sh(&format!(
        "cp whole/{newest} ../plain; cd .. && lmp -in in.continue -var file plain -log plain.log -screen none"
    ));
    assert_eq!(energy("../rest.log"), energy("../plain.log"));
    // Restart files are whole, every one: those before are those of the run that was not killed.
    mounted.sh(
        "cd melt && for f in *.restart; do test \"$(stat -c %s $f)\" = \"$(stat -c %s ../whole/$f)\"; done",
    );
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
