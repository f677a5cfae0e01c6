//! Timing whole processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A process to be timed.
pub struct Run {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

/// Seconds of processor time that a process took, both in it and for it in the kernel; of its children that were waited for, if `of_children`.
pub fn processor_seconds(process: &str, of_children: bool) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let behind = stat.rsplit(')').next().unwrap_or_default().to_owned();
    let fields = behind.split_whitespace().skip(if of_children { 13 } else { 11 }).take(2);
    // A tick is a hundredth of a second.
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
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
        let begun = Instant::now();
        let status = self.start().wait().expect("a child can be waited for");
        let seconds = begun.elapsed().as_secs_f64();
        assert!(status.success(), "{:?} {:?} failed", self.program, self.args);
        seconds
    }

    /// Starts it, and does not wait.
    pub fn start(&self) -> Child {
        self.start_with(Stdio::null())
    }

    /// The same, with something to read.
    pub fn start_with(&self, input: Stdio) -> Child {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let quiet = command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", self.program))
    }

    /// Runs it to its end; the seconds that it took, and its peak memory in KiB where the system tells.
    pub fn go_measured(&self) -> (f64, u64) {
        let begun = Instant::now();
        let mut child = self.start();
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

    /// Takes in those of a round.
    pub fn take(&mut self, others: Figures) {
        for (name, values) in others.0 {
            values.into_iter().for_each(|value| self.add(&name, value));
        }
    }

    pub fn median(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|values| summary(values)[1])
    }

    /// The median of one over that of another.
    pub fn ratio(&self, over: &str, under: &str) -> f64 {
        let median = |name| self.median(name).unwrap_or_else(|| panic!("{name:?} was not measured"));
        median(over) / median(under)
    }

    /// Prints a table of all.
    pub fn print(&self, what: &str) {
        println!("| {what} | median | least | most |\n|---|---|---|---|");
        for (name, values) in &self.0 {
            let [least, median, most] = summary(values);
            println!("| {name} | {median:.3} | {least:.3} | {most:.3} |");
        }
        println!();
    }
}

fn summary(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]]
}
