//! Pools of real processes: started, joined, saved to, and killed at any moment.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A process that is ended with the test.
struct Process {
    child: Child,
    /// What it said first.
    said: String,
}

impl Process {
    fn start(mut command: Command) -> Process {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says where it listens");
        assert!(said.contains("\"listen\""), "it ended at once: {said}");
        Process { child, said }
    }

    /// Where it listens.
    fn address(&self) -> String {
        self.said
            .split("\"listen\":\"")
            .nth(1)
            .expect("an address")
            .split('"')
            .next()
            .expect("its end")
            .to_owned()
    }

    /// Waits until it ends by itself.
    fn output(mut self) -> Output {
        use std::io::Read;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.child.stdout.take().expect("piped").read_to_end(&mut stdout).expect("its words");
        self.child.stderr.take().expect("piped").read_to_end(&mut stderr).expect("its errors");
        Output { status: self.child.wait().expect("it ends"), stdout, stderr }
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends it as a batch system does; whether it says that all went well.
    fn end(mut self) -> bool {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        self.child.wait().expect("it ends").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Pool {
    dir: tempfile::TempDir,
    /// What it promises.
    class: &'static [&'static str],
    manager: Option<Process>,
    address: String,
}

impl Pool {
    fn start(class: &'static [&'static str]) -> Pool {
        let dir = tempfile::tempdir().expect("a directory");
        let mut pool = Pool { dir, class, manager: None, address: "127.0.0.1:0".to_owned() };
        assert!(pool.run(&["pool", "key", pool.path("key").to_str().expect("text")]).status.success());
        pool.manage();
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
        command
            .env("STDCHK_STORE", format!("pool://{}", self.address))
            .env("STDCHK_POOL_KEY", self.path("key"));
        command.env_remove("STDCHK_LOG");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().expect("the binary starts")
    }

    fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Starts the manager, or starts it again.
    fn manage(&mut self) {
        let mut command = self.command();
        command.args(["pool", "start", "--json", "--listen", &self.address, "--patience", "4s"]);
        command.args(self.class).arg("--state").arg(self.path("state"));
        let manager = Process::start(command);
        self.address = manager.address();
        self.manager = Some(manager);
    }

    fn join(&self, domain: usize, lend: &[&str]) -> Process {
        let mut command = self.command();
        command
            .args(["pool", "join", &self.address, "--json", "--domain", &format!("host={domain}")])
            .args(lend);
        Process::start(command)
    }

    fn lenders(&self, count: usize) -> Vec<Process> {
        (0..count).map(|domain| self.join(domain, &["--memory", "512MiB"])).collect()
    }

    fn settle(&self) {
        self.succeed(&["pool", "wait", "--patience", "60s"]);
    }

    fn save(&self, step: u64) -> Process {
        std::fs::write(self.path("state.bin"), state(step)).expect("a file");
        let mut command = self.command();
        command.args(["save", "melt", "--json", "--step", &step.to_string()]).arg(self.path("state.bin"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        Process { child, said: String::new() }
    }

    fn restore(&self, step: u64) -> Process {
        let mut command = self.command();
        command.args(["restore", &format!("melt@{step}"), "--overwrite", "--to"]).arg(self.path("restored"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        Process { child, said: String::new() }
    }

    /// Every checkpoint that is listed reads back as it was.
    fn check_all(&self) -> Vec<u64> {
        let listed = self.succeed(&["list", "melt", "--json"]);
        let step = |line: &str| -> u64 {
            let rest = line.split("\"step\":").nth(1).expect("a step");
            rest.split(',').next().expect("a value").parse().expect("a number")
        };
        let steps: Vec<u64> = listed.lines().map(step).collect();
        for step in &steps {
            let output = self.run(&["cat", &format!("melt@{step}:state.bin")]);
            assert!(output.status.success(), "{step}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == state(*step), "{step}: wrong bytes");
        }
        steps
    }
}

/// 24 MiB of which a fifth differs from step to step.
fn state(step: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24 << 20);
    for page in 0..(24u64 << 8) {
        let version = if (page * 7 + step).is_multiple_of(5) { step } else { 0 };
        let mut x = (page << 20) ^ (version << 3) ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..512 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            bytes.extend_from_slice(&x.to_le_bytes());
        }
    }
    bytes
}

fn exit_code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

#[test]
fn every_verb_works_on_a_pool() {
    let pool = Pool::start(&["--replicas", "2"]);
    let _lenders = pool.lenders(3);
    for step in 1..=3 {
        let saved = pool.save(step).output();
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    }
    assert_eq!(pool.check_all(), [1, 2, 3]);
    assert!(pool.succeed(&["show", "melt", "--json"]).contains("\"durability\":\"replicated\""));
    assert_eq!(pool.succeed(&["latest", "melt"]).trim(), "3");
    assert!(pool.succeed(&["diff", "melt@1", "melt@2"]).contains("state.bin"));
    pool.succeed(&["restore", "melt@2", "--to", pool.path("out").to_str().expect("text")]);
    assert!(std::fs::read(pool.path("out/state.bin")).expect("restored") == state(2));
    pool.succeed(&["export", "melt@3", "--output", pool.path("three").to_str().expect("text")]);
    pool.succeed(&["import", pool.path("three").to_str().expect("text"), "--app", "copy"]);
    let session = pool.succeed(&["begin", "parts", "--step", "1"]).trim().to_owned();
    pool.succeed(&["add", &session, pool.path("three").to_str().expect("text")]);
    pool.succeed(&["commit", &session]);
    pool.succeed(&["policy", "melt", "--keep-last", "1"]);
    pool.succeed(&["prune"]);
    let used = |pool: &Pool| -> u64 {
        // What benefactors say of themselves is half a second old.
        std::thread::sleep(Duration::from_millis(1200));
        let status = pool.succeed(&["pool", "status", "--json"]);
        status
            .split("\"packs\":")
            .skip(1)
            .map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let before = used(&pool);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert!(used(&pool) < before);
    pool.succeed(&["verify"]);
    assert_eq!(pool.check_all(), [3]);
    for app in ["melt", "copy", "parts"] {
        pool.succeed(&["forget", app, "--all"]);
    }
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert_eq!(used(&pool), 0, "nothing is left");
}

/// Eight benefactors, of which `at_once` are killed in the middle of a save or a restore, again and again; and managers, and savers.
fn killed(class: &'static [&'static str], at_once: usize) {
    let mut pool = Pool::start(class);
    let mut lenders = pool.lenders(8);
    let mut committed = Vec::new();
    for step in 1..=6u64 {
        let save = pool.save(step);
        std::thread::sleep(Duration::from_millis(step * 23 % 90));
        match step % 3 {
            // Benefactors, in the middle of a save; others come.
            1 => {
                lenders.drain(..at_once).for_each(Process::kill);
                let new = |more: usize| pool.join(step as usize * 10 + more, &["--memory", "512MiB"]);
                lenders.extend((0..at_once).map(new));
            }
            // The manager.
            2 => {
                pool.manager.take().expect("a manager").kill();
                pool.manage();
            }
            _ => {}
        }
        let saved = save.output();
        if saved.status.success() {
            committed.push(step);
        } else {
            let said = String::from_utf8_lossy(&saved.stderr).into_owned();
            assert!(said.contains("stdchk: "), "a clear error: {said}");
        }
        if step % 3 == 0 && committed.contains(&step) {
            // In the middle of a restore.
            let restore = pool.restore(step);
            std::thread::sleep(Duration::from_millis(step * 7));
            lenders.drain(..at_once).for_each(Process::kill);
            let restored = restore.output();
            assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
            let new = |more: usize| pool.join(step as usize * 10 + more, &["--memory", "512MiB"]);
            lenders.extend((0..at_once).map(new));
        }
        let listed = pool.check_all();
        assert!(committed.iter().all(|step| listed.contains(step)), "{committed:?} of {listed:?}");
        pool.settle();
    }
    assert!(committed.len() >= 3, "{committed:?}");
    // A saver that is killed leaves nothing.
    for after in [5, 40, 80] {
        let save = pool.save(100 + after);
        std::thread::sleep(Duration::from_millis(after));
        save.kill();
    }
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    let listed = pool.check_all();
    assert!(committed.iter().all(|step| listed.contains(step)));
    // Everything is as safe again as was promised.
    pool.succeed(&["verify"]);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_two_copies() {
    killed(&["--replicas", "2"], 1);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_three_copies() {
    killed(&["--replicas", "3"], 2);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_shards() {
    killed(&["--erasure", "4+2"], 2);
}

#[test]
fn a_folder_that_is_lent_again_has_what_it_had() {
    let mut pool = Pool::start(&[]);
    let folder = pool.path("lent");
    let lend = ["--disk", folder.to_str().expect("text"), "--size", "1GiB"];
    let lender = pool.join(0, &lend);
    assert!(pool.save(1).output().status.success());
    lender.kill();
    assert_ne!(exit_code(&pool.run(&["cat", "melt@1:state.bin"])), 0, "there is nobody who has it");
    pool.manager.take().expect("a manager").kill();
    pool.manage();
    let lender = pool.join(0, &lend);
    assert_eq!(pool.check_all(), [1]);
    // It goes as it should, and gives everything to another one.
    let _other = pool.join(1, &["--memory", "512MiB"]);
    pool.settle();
    assert!(lender.end());
    assert_eq!(pool.check_all(), [1]);
}

#[test]
fn whoever_has_no_key_is_told_so() {
    let pool = Pool::start(&[]);
    let _lenders = pool.lenders(1);
    let other = pool.path("other");
    assert!(pool.run(&["pool", "key", other.to_str().expect("text")]).status.success());
    assert_eq!(
        exit_code(&pool.run(&["pool", "key", other.to_str().expect("text")])),
        5,
        "keys are not written over"
    );
    let with = |key: &Path| {
        let mut command = pool.command();
        command.env("STDCHK_POOL_KEY", key).args(["list"]).output().expect("the binary starts")
    };
    let refused = with(&other);
    assert_eq!(exit_code(&refused), 10, "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(exit_code(&with(&pool.path("nothing"))), 4);
    std::fs::write(pool.path("rubbish"), "not a key").expect("a file");
    let modes = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(pool.path("rubbish"), modes(0o644)).expect("modes");
    assert_eq!(exit_code(&with(&pool.path("rubbish"))), 10, "others can read it");
    std::fs::set_permissions(pool.path("rubbish"), modes(0o600)).expect("modes");
    assert_eq!(exit_code(&with(&pool.path("rubbish"))), 2);
    let without =
        pool.command().env_remove("STDCHK_POOL_KEY").args(["list"]).output().expect("the binary starts");
    assert_eq!(exit_code(&without), 2);
    for store in ["pool://", "pool://nowhere", "pool://127.0.0.1:99999", "pool://127.0.0.1:1/x"] {
        let bad =
            pool.command().env("STDCHK_STORE", store).args(["list"]).output().expect("the binary starts");
        assert_eq!(exit_code(&bad), 2, "{store}: {}", String::from_utf8_lossy(&bad.stderr));
    }
    let begun = Instant::now();
    let nobody =
        pool.command().env("STDCHK_STORE", "pool://127.0.0.1:1").args(["list"]).output().expect("starts");
    assert!(exit_code(&nobody) == 1 && begun.elapsed() < Duration::from_secs(10));
    let directory = pool.path("directory");
    let mut local = pool.command();
    local
        .env("STDCHK_STORE", &directory)
        .args(["save", "x", "--step", "1", "--durability", "replicated"])
        .arg(&other);
    assert_eq!(exit_code(&local.output().expect("the binary starts")), 6, "a directory keeps one copy");
}
