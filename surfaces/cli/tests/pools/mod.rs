//! Pools of real processes, for tests.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use stdchk_kit::Hosts;

/// A process that is ended with the test.
pub struct Process {
    pub child: Child,
    /// What it said first.
    pub said: String,
}

impl Process {
    pub fn start(command: Command) -> Process {
        Process::start_with(command, Stdio::null())
    }

    /// One whose errors go somewhere.
    pub fn start_with(mut command: Command, errors: Stdio) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().expect("the binary starts");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says where it listens");
        assert!(said.contains("\"listen\""), "it ended at once: {said}");
        Process { child, said }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.said
            .split("\"listen\":\"")
            .nth(1)
            .expect("an address")
            .split('"')
            .next()
            .expect("its end")
            .to_owned()
    }

    /// What it says of itself over HTTP: the number of a metric.
    pub fn metric(&self, name: &str) -> u64 {
        use std::io::{Read, Write};
        let at =
            self.said.split("\"metrics\":\"").nth(1).expect("metrics").split('"').next().expect("its end");
        let mut stream = std::net::TcpStream::connect(at).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("it listens");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{page}");
        assert!(page.contains(&format!("# TYPE {} ", name.split('{').next().expect("a name"))), "{page}");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing: {page}")).parse().expect("a number")
    }

    /// Waits until it ends by itself.
    pub fn output(mut self) -> Output {
        use std::io::Read;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.child.stdout.take().expect("piped").read_to_end(&mut stdout).expect("its words");
        self.child.stderr.take().expect("piped").read_to_end(&mut stderr).expect("its errors");
        Output { status: self.child.wait().expect("it ends"), stdout, stderr }
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    /// Ends it as a batch system does; whether it says that all went well.
    pub fn end(mut self) -> bool {
        self.signal("-TERM");
        self.child.wait().expect("it ends").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Pool {
    pub dir: tempfile::TempDir,
    /// What it promises.
    class: &'static [&'static str],
    pub manager: Option<Process>,
    /// How it is found.
    pub place: String,
    /// What its processes find in their environment besides.
    pub environment: Vec<(&'static str, String)>,
    /// Where they run, if not all on this host. The manager and those who save are at the hub.
    pub hosts: Option<Hosts>,
}

impl Pool {
    pub fn start(class: &'static [&'static str]) -> Pool {
        Pool::start_in(class, Vec::new())
    }

    pub fn start_in(class: &'static [&'static str], environment: Vec<(&'static str, String)>) -> Pool {
        let dir = tempfile::tempdir().expect("a directory");
        let mut pool = Pool {
            dir,
            class,
            manager: None,
            place: "pool://127.0.0.1:0".to_owned(),
            environment,
            hosts: None,
        };
        assert!(pool.run(&["pool", "key", pool.path("key").to_str().expect("text")]).status.success());
        pool.manage();
        pool
    }

    /// One whose benefactors have hosts of their own, from 1 on.
    pub fn start_on(hosts: Hosts, class: &'static [&'static str]) -> Pool {
        let dir = tempfile::tempdir().expect("a directory");
        let place = format!("pool://{}:0", hosts.address(0));
        let mut pool = Pool { dir, class, manager: None, place, environment: Vec::new(), hosts: Some(hosts) };
        pool.succeed(&["pool", "key", pool.path("key").to_str().expect("text")]);
        pool.manage();
        pool
    }

    /// One without a manager, whose names are in etcd.
    pub fn in_etcd(class: &'static [&'static str], place: String) -> Pool {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = Pool { dir, class, manager: None, place, environment: Vec::new(), hosts: None };
        assert!(pool.run(&["pool", "key", pool.path("key").to_str().expect("text")]).status.success());
        let found = ["pool", "start", "--catalog", &pool.place, "--patience", "4s"];
        pool.succeed(&[&found, class].concat());
        pool
    }

    /// A manager for names in etcd, which some may like to ask.
    pub fn manage_etcd(&self) -> Process {
        let mut command = self.command();
        command.args(["pool", "start", "--json", "--listen", "127.0.0.1:0", "--catalog", &self.place]);
        Process::start(command)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self) -> Command {
        self.command_on(0)
    }

    pub fn command_on(&self, host: usize) -> Command {
        let program = env!("CARGO_BIN_EXE_stdchk");
        let mut command = match &self.hosts {
            Some(hosts) => hosts.command(host, program),
            None => Command::new(program),
        };
        command.env("STDCHK_STORE", &self.place).env("STDCHK_POOL_KEY", self.path("key"));
        command.env_remove("STDCHK_LOG");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().expect("the binary starts")
    }

    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Starts the manager, or starts it again.
    pub fn manage(&mut self) {
        let mut command = self.command();
        let address = self.place.strip_prefix("pool://").expect("a manager's");
        command.args(["pool", "start", "--json", "--listen", address, "--patience", "4s"]);
        command.args(self.class).arg("--state").arg(self.path("state"));
        let manager = Process::start(command);
        self.place = format!("pool://{}", manager.address());
        self.manager = Some(manager);
    }

    pub fn join(&self, domain: usize, lend: &[&str]) -> Process {
        let mut command = self.command();
        command
            .args(["pool", "join", &self.place, "--json", "--domain", &format!("host={domain}")])
            .args(lend);
        Process::start(command)
    }

    /// A benefactor on a host of its own.
    pub fn join_on(&self, host: usize, lend: &[&str]) -> Process {
        let hosts = self.hosts.as_ref().expect("hosts");
        let mut command = self.command_on(host);
        command.args(["pool", "join", &self.place, "--json", "--domain", &format!("host={host}")]);
        command.args(["--listen", &format!("{}:0", hosts.address(host))]).args(lend);
        if let Some(way) = hosts.way_to(host) {
            command.args(["--advertise", &way.to_string()]);
        }
        let process = Process::start(command);
        hosts.runs(host, process.child.id());
        hosts.lead_to(host, process.address().parse().expect("an address"));
        process
    }

    pub fn lenders(&self, count: usize) -> Vec<Process> {
        (0..count).map(|domain| self.join(domain, &["--memory", "512MiB"])).collect()
    }

    pub fn settle(&self) {
        self.succeed(&["pool", "wait", "--patience", "60s"]);
    }

    pub fn save(&self, step: u64) -> Process {
        std::fs::write(self.path("state.bin"), state(step)).expect("a file");
        let mut command = self.command();
        command.args(["save", "melt", "--json", "--step", &step.to_string()]).arg(self.path("state.bin"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        Process { child, said: String::new() }
    }

    pub fn restore(&self, step: u64) -> Process {
        let mut command = self.command();
        command.args(["restore", &format!("melt@{step}"), "--overwrite", "--to"]).arg(self.path("restored"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        Process { child, said: String::new() }
    }

    /// Every checkpoint that is listed reads back as it was.
    pub fn check_all(&self) -> Vec<u64> {
        let listed = self.run(&["list", "melt", "--json"]);
        if exit_code(&listed) == 4 {
            // Nothing was ever committed.
            return Vec::new();
        }
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let listed = String::from_utf8(listed.stdout).expect("text");
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
pub fn state(step: u64) -> Vec<u8> {
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

pub fn exit_code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

/// Every file of a folder and of those in it.
pub fn files_below(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path().is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}
