//! One file that many processes write, on one mount and on several: MPI-IO, PnetCDF and parallel HDF5, as Debian has them.

mod mounts;
mod pools;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mounts::{Mounted, Shell, can_mount, text, until};
use pools::Pool;
use stdchk_kit::Hosts;

/// The programs: what each writes, what compiles it, and what compares two such files.
const PROGRAMS: [(&str, &str, &[&str], &[&str]); 3] = [
    ("shared_mpiio", "mpi.dat", &["mpicc"], &["cmp"]),
    ("shared_pnetcdf", "field.nc", &["mpicc", "-lpnetcdf"], &["ncmpidiff"]),
    ("shared_hdf5", "field.h5", &["h5pcc"], &["h5diff"]),
];

/// Programs for four ranks, compiled, and what they write where there is no mount.
struct Programs {
    dir: tempfile::TempDir,
}

impl Programs {
    /// None where there is no MPI here.
    fn new() -> Option<Programs> {
        let dir = tempfile::tempdir().expect("a directory");
        let programs = Programs { dir };
        std::fs::create_dir(programs.path("plain")).expect("a directory");
        for (name, _, compiler, _) in PROGRAMS {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
            let mut command = Command::new(compiler[0]);
            // HDF5's compiler leaves its objects where it is.
            command
                .current_dir(programs.dir.path())
                .args(["-O1", "-o", name])
                .arg(source)
                .args(&compiler[1..]);
            match command.output() {
                Ok(output) => assert!(output.status.success(), "{name}: {}", text(&output.stderr)),
                Err(error) => {
                    eprintln!("not tested: {} cannot be started: {error}", compiler[0]);
                    return None;
                }
            }
            must(programs.run(name, "ompio", &[&programs.path("plain")]));
        }
        Some(programs)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs one, each rank with its place among directories.
    fn run(&self, name: &str, io: &str, directories: &[&Path]) -> Output {
        let mut command = mpirun(io, directories.len());
        command.arg(self.path(name)).args(directories).output().expect("mpirun")
    }

    /// Whether a file is what it would be where there is no mount.
    fn check(&self, file: &Path, name: &str, compare: &[&str]) {
        must(
            Command::new(compare[0])
                .args(&compare[1..])
                .arg(self.path("plain").join(name))
                .arg(file)
                .output()
                .expect("it starts"),
        );
    }
}

/// With several mounts nobody may count on locks: `docs/MOUNT.md` says how that is told.
fn mpirun(io: &str, mounts: usize) -> Command {
    let mut command = Command::new("timeout");
    command.args(["100", "mpirun", "--oversubscribe", "--mca", "io", io, "-n", "4"]);
    if mounts > 1 {
        command.env("WITHOUT_LOCKS", "1").env("OMPI_MCA_fbtl_posix_write_datasieving", "0");
    }
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn must(output: Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Longer than mounts take to learn of each other.
fn wait() {
    std::thread::sleep(Duration::from_millis(400));
}

#[test]
fn ranks_write_one_file_on_one_mount_and_on_two() {
    if !can_mount() {
        return;
    }
    let Some(programs) = Programs::new() else { return };
    let one = Mounted::new(&[]);
    for several in [false, true] {
        let other = several.then(|| Mounted::of(&one.store, &[]));
        wait();
        let roots: Vec<PathBuf> =
            [Some(&one), other.as_ref()].into_iter().flatten().map(Mounted::root).collect();
        let directories: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
        for io in ["ompio", "romio321"] {
            for (name, file, _, compare) in PROGRAMS {
                must(programs.run(name, io, &directories));
                for root in &roots {
                    programs.check(&root.join(file), file, compare);
                }
            }
        }
    }
}

/// A rank on each host writes into the mount of that host.
#[test]
fn ranks_on_several_hosts_write_one_file_of_a_pool() {
    if !can_mount() {
        return;
    }
    let Some(programs) = Programs::new() else { return };
    let pool = Pool::start_on(Hosts::new(2), &["--replicas", "2"]);
    let lenders = [pool.join_on(1, &["--memory", "256MiB"]), pool.join_on(2, &["--memory", "256MiB"])];
    let program = env!("CARGO_BIN_EXE_stdchk");
    let root = pool.path("mnt").display().to_string();
    std::fs::create_dir(&root).expect("a directory");
    let mut shells: Vec<Shell> = (1..=2).map(|host| Shell::on(&pool, host)).collect();
    for (host, shell) in shells.iter_mut().enumerate() {
        shell.must(&format!("{program} mount {root} --log {root}.{host}.log"));
    }
    if pool.hosts.is_none() {
        eprintln!("not tested: there are no hosts of their own here");
        return;
    }
    wait();
    // Ranks see the mounts of their host; MPI itself needs no network of its own.
    let places: Vec<String> = shells.iter().map(|shell| shell.child.id().to_string()).collect();
    let script = format!(
        "if [ $((OMPI_COMM_WORLD_RANK % 2)) = 0 ]; then at={}; else at={}; fi; exec nsenter -t $at -m \"$@\"",
        places[0], places[1]
    );
    for (name, file, _, compare) in PROGRAMS {
        must(
            mpirun("ompio", 2)
                .args(["sh", "-c", &script, "rank"])
                .arg(programs.path(name))
                .arg(&root)
                .output()
                .expect("mpirun"),
        );
        for (host, shell) in shells.iter_mut().enumerate() {
            let copy = programs.path(&format!("{host}.{file}"));
            // What others closed is heard of a moment later.
            shell.must(&format!("for i in $(seq 100); do [ -e {root}/{file} ] && break; sleep 0.1; done"));
            shell.must(&format!("cp {root}/{file} {}", copy.display()));
            programs.check(&copy, file, compare);
        }
    }
    shells.iter_mut().for_each(|shell| _ = shell.must(&format!("{program} umount {root}")));
    lenders.into_iter().for_each(|lender| lender.kill());
}

/// Who dies takes what all wrote along, whether it is a process or a mount, and others hear of it.
#[test]
fn who_dies_aborts_what_all_write() {
    if !can_mount() {
        return;
    }
    let one = Mounted::new(&[]);
    let other = Mounted::of(&one.store, &[]);
    one.sh("echo old > f");
    wait();
    for round in 0..4 {
        let process_dies = round % 2 == 0;
        let name = if round < 2 { "f" } else { "new" };
        let ours = one.root().join(name);
        let theirs = other.root().join(name);
        // Each writes its own part, and syncs it; then it waits.
        let script = "import os, sys, time\nf = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\nos.pwrite(f, b'new', int(sys.argv[2]))\nos.fsync(f)\nprint('there', flush=True)\n";
        let wait_to_die = format!("{script}time.sleep(100)\n");
        let go_on = format!(
            "{script}sys.stdin.read(1)\ntry:\n  os.pwrite(f, b'more', 9)\n  os.fsync(f)\n  os.close(f)\nexcept OSError as error:\n  print(error.errno)\n"
        );
        let python = |script: &str, path: &Path, at: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", script]).arg(path).arg(at).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("python3")
        };
        let mut victim = python(&wait_to_die, &theirs, "0");
        line_of(&mut victim);
        let mut witness = python(&go_on, &ours, "3");
        line_of(&mut witness);
        if process_dies {
            victim.kill().expect("kill");
            victim.wait().expect("it ends");
            wait();
        } else {
            let server = other.server().expect("it is there");
            assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill").success());
            until(|| other.server().filter(|&there| there != server));
        }
        drop(witness.stdin.take());
        let said = witness.wait_with_output().expect("it ends");
        assert_eq!(text(&said.stdout).trim(), "5", "round {round}: it hears EIO{}", one.log());
        let _ = victim.kill();
        let _ = victim.wait();
        let begun = Instant::now();
        for mounted in [&one, &other] {
            until(|| {
                mounted.try_sh("test \"$(cat f)\" = old && test ! -e new").status.success().then_some(())
            });
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    one.sh("echo again > f");
    wait();
    other.sh("test \"$(cat f)\" = again; ls .versions/f | wc -l | grep -qx 2");
}

/// The first line that a process says.
fn line_of(child: &mut std::process::Child) -> String {
    let mut line = String::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().expect("piped");
    while std::io::Read::read(out, &mut byte).expect("it speaks") == 1 && byte[0] != b'\n' {
        line.push(byte[0] as char);
    }
    assert_eq!(line, "there");
    line
}
