//! An etcd cluster on this machine, for one test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a cluster may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Members of one cluster, each of which can be killed and started again. They end, and their folders go, when it is dropped.
pub struct EtcdCluster {
    folder: PathBuf,
    members: Vec<Member>,
    arguments: Vec<String>,
}

struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl EtcdCluster {
    /// Starts a cluster, and waits until every member answers.
    pub fn start(members: usize) -> EtcdCluster {
        let cluster = EtcdCluster::start_with(members, &[]);
        cluster.wait();
        cluster
    }

    /// The same with further arguments for each member; nobody waits, since it may want to be spoken to otherwise.
    pub fn start_with(members: usize, arguments: &[&str]) -> EtcdCluster {
        // All are taken at once, so that they differ.
        let listeners: Vec<TcpListener> =
            (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().expect("an address").port()).collect();
        drop(listeners);
        let folder = std::env::temp_dir().join(format!("stdchk-etcd-{}-{}", std::process::id(), ports[0]));
        std::fs::create_dir_all(&folder).expect("a folder");
        let members =
            ports.chunks(2).map(|pair| Member { client: pair[0], peer: pair[1], process: None }).collect();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut cluster = EtcdCluster { folder, members, arguments };
        (0..cluster.members.len()).for_each(|at| cluster.start_member(at));
        cluster
    }

    /// Starts one that was killed.
    pub fn start_member(&mut self, at: usize) {
        let scheme = if self.arguments.iter().any(|argument| argument.starts_with("--cert-file")) {
            "https"
        } else {
            "http"
        };
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| format!("m{at}=http://127.0.0.1:{}", member.peer))
            .collect();
        let member = &mut self.members[at];
        let (client, peer) =
            (format!("{scheme}://127.0.0.1:{}", member.client), format!("http://127.0.0.1:{}", member.peer));
        let process = Command::new("etcd")
            .args(["--name", &format!("m{at}"), "--data-dir"])
            .arg(self.folder.join(format!("m{at}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd: 'scripts/setup test' installs it");
        member.process = Some(process);
    }

    /// Kills a member, which cannot say anything to the others before.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Waits until all members that run answer.
    pub fn wait(&self) {
        let begun = Instant::now();
        for member in self.members.iter().filter(|member| member.process.is_some()) {
            while !is_healthy(member.client) {
                assert!(begun.elapsed() < PATIENCE, "etcd does not come up");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// `host:port` of each member, with commas between them.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        hosts.join(",")
    }

    /// The place of a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.hosts())
    }
}

fn is_healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"true\""))
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
