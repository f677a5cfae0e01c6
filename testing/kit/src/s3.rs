//! A server that speaks S3, on this machine, for one test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stdchk_store_s3::S3Store;

const BUCKET: &str = "stdchk";

/// A server with one empty bucket; it ends when it is dropped.
pub struct S3Server {
    child: Child,
    port: u16,
}

/// Where `make test` has put it, or wherever it is found.
fn program() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join(target).join("tools/s3/bin/moto_server");
    if installed.exists() { installed } else { "moto_server".into() }
}

impl S3Server {
    /// Starts one.
    pub fn start() -> S3Server {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let child = Command::new(program())
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server that speaks S3: 'scripts/setup test' installs one");
        let server = S3Server { child, port };
        let begun = Instant::now();
        while !server.make_bucket() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not come up");
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn make_bucket(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            write!(stream, "PUT /{BUCKET} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
    }

    /// The variables by which a process finds it.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
        ]
    }

    /// The place of a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// A prefix, in this process.
    pub fn store(&self, prefix: &str) -> stdchk_object::Result<S3Store> {
        S3Store::open_by(&self.url(prefix), format!("test-{}", std::process::id()), self.environment())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
