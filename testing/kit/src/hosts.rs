//! Several hosts on this machine, whose network can be cut and slowed down.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::proxy::Proxy;

/// Hosts with addresses of their own: network namespaces on one bridge where this process may make them, and elsewhere addresses of
/// 127.0.0.x, where a host is cut off by stopping its processes, and slow because a proxy before it is. They are gone when it is dropped. Host 0 is the hub.
pub struct Hosts {
    /// What the names of the namespaces begin with, where there are some.
    prefix: Option<String>,
    count: usize,
    /// Processes of hosts that have no network of their own.
    processes: Mutex<Vec<(usize, u32)>>,
    /// The ways to them.
    proxies: Mutex<BTreeMap<usize, Proxy>>,
}

const PREFIX: &str = "stdchk-test";

fn ip(args: &[&str]) -> bool {
    tool("ip", args)
}

fn tool(name: &str, args: &[&str]) -> bool {
    let mut command = Command::new(name);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Hosts {
    /// A hub, and so many others.
    pub fn new(others: usize) -> Hosts {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        clear_remains();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}-{}-{number}", std::process::id());
        let mut hosts = Hosts::on_loopback(others);
        hosts.prefix = Some(prefix);
        if !hosts.build() {
            hosts.take_down();
            hosts.prefix = None;
        }
        hosts
    }

    /// The same where nobody may make networks.
    pub fn on_loopback(others: usize) -> Hosts {
        Hosts { prefix: None, count: others + 1, processes: Mutex::default(), proxies: Mutex::default() }
    }

    /// Whether they have networks of their own.
    pub fn are_apart(&self) -> bool {
        self.prefix.is_some()
    }

    /// The address of one of them.
    pub fn address(&self, host: usize) -> String {
        match self.are_apart() {
            true => format!("10.117.0.{}", host + 1),
            false => format!("127.0.0.{}", host + 1),
        }
    }

    /// A command that runs on one of them.
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        match self.name(host) {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &name]).arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    /// Must be said of processes of a host that is to be cut off.
    pub fn runs(&self, host: usize, process: u32) {
        self.processes.lock().expect("no test panics here").push((host, process));
    }

    /// Where a server of a host that has no network of its own is to be asked for by others, so that the way there can be made slow; `None` where there is no need.
    pub fn way_to(&self, host: usize) -> Option<SocketAddr> {
        if self.are_apart() {
            return None;
        }
        let mut proxies = self.proxies.lock().expect("no test panics here");
        let start = || Proxy::start(&self.address(host)).expect("a free port");
        Some(proxies.entry(host).or_insert_with(start).address())
    }

    /// Where that server listens.
    pub fn lead_to(&self, host: usize, server: SocketAddr) {
        if let Some(proxy) = self.proxies.lock().expect("no test panics here").get(&host) {
            proxy.lead_to(server);
        }
    }

    /// Nothing goes to a host any more, nor comes from it; nobody is told.
    pub fn cut(&self, host: usize) {
        match self.name(0) {
            Some(hub) => assert!(ip(&["-n", &hub, "link", "set", &port(host), "down"])),
            None => self.signal(host, "-STOP"),
        }
    }

    /// The end of it.
    pub fn mend(&self, host: usize) {
        match self.name(0) {
            Some(hub) => assert!(ip(&["-n", &hub, "link", "set", &port(host), "up"])),
            None => self.signal(host, "-CONT"),
        }
    }

    /// Two hosts that do not hear each other any more, though others hear both. Whether that is so.
    pub fn part(&self, one: usize, other: usize) -> bool {
        let deafen = |of: usize, to: usize| {
            let Some(name) = self.name(of) else { return false };
            let way = if of == 0 { "bridge0" } else { "eth0" };
            // What is sent to nobody's address is heard by nobody.
            let nobody = ["lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", way];
            ip(&[&["-n", &name, "neigh", "replace", &self.address(to)][..], &nobody].concat())
        };
        deafen(one, other) && deafen(other, one)
    }

    /// So many bytes come and go in a second, of a host that cannot do more. Whether that is so.
    pub fn slow(&self, host: usize, bytes: u64) -> bool {
        let (Some(hub), Some(name)) = (self.name(0), self.name(host)) else {
            let proxies = self.proxies.lock().expect("no test panics here");
            return proxies.get(&host).map(|proxy| proxy.limit(bytes)).is_some();
        };
        let rate = format!("{}bit", bytes * 8);
        let limit = ["root", "tbf", "rate", &rate, "burst", "64k", "latency", "200ms"];
        let shape = |of: &str, way: &str| {
            tool("tc", &[&["-n", of, "qdisc", "replace", "dev", way][..], &limit].concat())
        };
        shape(&hub, &port(host)) && shape(&name, "eth0")
    }

    fn name(&self, host: usize) -> Option<String> {
        self.prefix.as_ref().map(|prefix| format!("{prefix}-{host}"))
    }

    fn signal(&self, host: usize, signal: &str) {
        let processes = self.processes.lock().expect("no test panics here");
        for (_, process) in processes.iter().filter(|(of, _)| *of == host) {
            tool("kill", &[signal, &process.to_string()]);
        }
    }

    fn build(&self) -> bool {
        let hub = self.name(0).expect("they are apart");
        let mut all = ip(&["netns", "add", &hub])
            && ip(&["-n", &hub, "link", "set", "lo", "up"])
            && ip(&["-n", &hub, "link", "add", "bridge0", "type", "bridge"])
            && ip(&["-n", &hub, "addr", "add", &format!("{}/24", self.address(0)), "dev", "bridge0"])
            && ip(&["-n", &hub, "link", "set", "bridge0", "up"]);
        for host in 1..self.count {
            let (name, port) = (self.name(host).expect("they are apart"), port(host));
            all = all
                && ip(&["netns", "add", &name])
                && ip(&["-n", &name, "link", "set", "lo", "up"])
                && ip(&[
                    &["-n", &hub, "link", "add", &port, "type", "veth"][..],
                    &["peer", "name", "eth0", "netns", &name],
                ]
                .concat())
                && ip(&["-n", &hub, "link", "set", &port, "master", "bridge0", "up"])
                && ip(&["-n", &name, "addr", "add", &format!("{}/24", self.address(host)), "dev", "eth0"])
                && ip(&["-n", &name, "link", "set", "eth0", "up"]);
        }
        all
    }

    fn take_down(&self) {
        (0..self.count).filter_map(|host| self.name(host)).for_each(|name| _ = ip(&["netns", "del", &name]));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.take_down();
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}

/// Takes down what was left by processes that were killed.
fn clear_remains() {
    let Ok(names) = std::fs::read_dir("/run/netns") else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        if owner.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            ip(&["netns", "del", &name]);
        }
    }
}
