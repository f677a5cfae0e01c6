//! Mounts, and shells on hosts that have some, for tests.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::pools::Pool;

/// A mount that ends with the test.
pub struct Mounted {
    pub dir: tempfile::TempDir,
    pub store: String,
    /// The key, if it is a pool.
    pub key: Option<PathBuf>,
}

impl Mounted {
    pub fn new(options: &[&str]) -> Mounted {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store").display().to_string();
        let mounted = Mounted { dir, store, key: None };
        mounted.mount(options);
        mounted
    }

    /// Another mount of a store.
    pub fn of(store: &str, options: &[&str]) -> Mounted {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Mounted { dir, store: store.to_owned(), key: None };
        mounted.mount(options);
        mounted
    }

    /// A mount of a pool.
    pub fn of_pool(pool: &Pool, options: &[&str]) -> Mounted {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Mounted { dir, store: pool.place.clone(), key: Some(pool.path("key")) };
        mounted.mount(options);
        mounted
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn stdchk(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
        command.env("STDCHK_STORE", &self.store).env_remove("STDCHK_LOG").args(args);
        command.envs(self.key.iter().map(|key| ("STDCHK_POOL_KEY", key)));
        command
    }

    pub fn mount(&self, options: &[&str]) {
        let root = self.root();
        std::fs::create_dir_all(&root).expect("a directory");
        let log = self.dir.path().join("log").display().to_string();
        let args = ["mount", "--log", &log, root.to_str().expect("text")];
        let output = self.stdchk(&args).args(options).output().expect("the binary starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn umount(&self) {
        let output =
            self.stdchk(&["umount", self.root().to_str().expect("text")]).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The process that answers the kernel.
    pub fn server(&self) -> Option<u32> {
        let output = Command::new("python3")
            .args(["-c", "import os,sys; print(os.getxattr(sys.argv[1], 'user.stdchk.process').decode())"])
            .arg(self.root())
            .output()
            .expect("python3");
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    /// Runs a script in the mount, which must succeed.
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}: {said}{errors}{}", self.log());
        said
    }

    pub fn try_sh(&self, script: &str) -> Output {
        let script = format!("set -eu\n{script}");
        Command::new("sh").arg("-c").arg(script).current_dir(self.root()).output().expect("sh")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let root = self.root();
        let _ = self.stdchk(&["umount", "--lazy", root.to_str().expect("text")]).output();
    }
}

/// What a program said.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether mounts are allowed here; says so where they are not.
pub fn can_mount() -> bool {
    let can = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("not tested: /dev/fuse cannot be opened here");
    }
    can
}

/// A shell on a host of its own: mounts that it makes are seen by what it runs.
pub struct Shell {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    pub fn on(pool: &Pool, host: usize) -> Shell {
        let mut command = match &pool.hosts {
            Some(hosts) => hosts.command(host, "sh"),
            None => Command::new("sh"),
        };
        command.env("STDCHK_STORE", &pool.place).env("STDCHK_POOL_KEY", pool.path("key"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Shell { child, input, output: BufReader::new(output) }
    }

    /// Runs a command; whether it succeeded, and what it said.
    pub fn run(&mut self, command: &str) -> (bool, String) {
        writeln!(self.input, "{{ {command}; }} 2>&1; echo \"done $?\"").expect("it listens");
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("it speaks") > 0, "{command}: the shell ended");
            if let Some(code) = line.strip_prefix("done ") {
                return (code.trim() == "0", said);
            }
            said += &line;
        }
    }

    pub fn must(&mut self, command: &str) -> String {
        let (succeeded, said) = self.run(command);
        assert!(succeeded, "{command}: {said}");
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something, for a while.
pub fn until<T>(mut there: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(there) = there() {
            return there;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}
