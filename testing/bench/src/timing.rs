//! Timing whole processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A process to be timed.
pub struct Run {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

impl Run {
    pub fn new(program: &Path) -> Run {
        Run { program: program.to_owned(), args: Vec::new(), env: Vec::new() }
    }

    pub fn args(&mut self, args: &[&str]) -> &mut Run {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub fn env(&mut self, name: &str, value: impl Into<PathBuf>) -> &mut Run {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Runs it to its end; the seconds that it took.
    pub fn go(&self) -> f64 {
        self.go_measured().0
    }

    /// Runs it to its end; the seconds that it took, and its peak memory in KiB where the system tells.
    pub fn go_measured(&self) -> (f64, u64) {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let begun = Instant::now();
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{:?}: {e}", self.program));
        let mut peak = 0;
        let status = loop {
            peak = peak.max(peak_kib(child.id()).unwrap_or(0));
            match child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        assert!(status.success(), "{:?} {:?} failed", self.program, self.args);
        (begun.elapsed().as_secs_f64(), peak)
    }
}

fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a program is installed.
pub fn command_exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).exists())
}

/// Waits until nothing is left to be written, so that no contender pays for another.
pub fn sync_all() {
    Run::new(Path::new("sync")).go();
}

/// Figures by name.
#[derive(Default)]
pub struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    pub fn add(&mut self, name: &str, value: f64) {
        self.0.entry(name.to_owned()).or_default().push(value);
    }

    pub fn median(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|values| summary(values)[1])
    }

    /// Minimum, median and maximum of each.
    pub fn all(&self) -> impl Iterator<Item = (&str, [f64; 3])> {
        self.0.iter().map(|(name, values)| (name.as_str(), summary(values)))
    }
}

fn summary(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]]
}
