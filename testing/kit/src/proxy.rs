//! A way to a server that can be made slow, where the kernel's own means are not to be had.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::net::sockopt;

/// Bytes that are handed on at a time.
const STEP: usize = 16 << 10;
/// What the kernel may hold on its way besides. Much more would be taken at once, and come long after whoever sent it has given up.
const UNDER_WAY: usize = 64 << 10;
/// How long whoever connects waits until it is known where to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens, and hands on what comes to a server and what that answers, at most so many bytes in a second each way, for each
/// connection: what is still on its way of one that was given up holds up no other. It is gone when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    way: Arc<Way>,
}

#[derive(Default)]
struct Way {
    /// Where it leads, as soon as that is known.
    to: Mutex<Option<SocketAddr>>,
    is_known: Condvar,
    /// Bytes in a second, or 0 for as fast as it goes.
    rate: AtomicU64,
    is_over: AtomicBool,
}

impl Proxy {
    /// Listens at any free port of an address.
    pub fn start(host: &str) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind((host, 0))?;
        // Connections take it over.
        sockopt::set_socket_recv_buffer_size(&listener, UNDER_WAY)?;
        let address = listener.local_addr()?;
        let way = Arc::new(Way::default());
        let ours = way.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ours.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let way = ours.clone();
                std::thread::spawn(move || way.connect(&stream));
            }
        });
        Ok(Proxy { address, way })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whoever connects from now on is led there.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.way.to.lock().expect("nobody panics here") = Some(server);
        self.way.is_known.notify_all();
    }

    /// So many bytes a second each way, for each connection.
    pub fn limit(&self, bytes: u64) {
        self.way.rate.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::Relaxed);
        // Wakes the one that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Way {
    fn connect(&self, stream: &TcpStream) {
        let to = self.to.lock().expect("nobody panics here");
        let (to, _) =
            self.is_known.wait_timeout_while(to, PATIENCE, |to| to.is_none()).expect("nobody panics here");
        let server = *to;
        drop(to);
        let Some(Ok(server)) = server.map(TcpStream::connect) else { return };
        let _ = sockopt::set_socket_recv_buffer_size(&server, UNDER_WAY);
        let _ = sockopt::set_socket_send_buffer_size(&server, UNDER_WAY);
        let _ = sockopt::set_socket_send_buffer_size(stream, UNDER_WAY);
        std::thread::scope(|scope| {
            scope.spawn(|| self.hand_on(stream, &server));
            self.hand_on(&server, stream);
        });
    }

    /// Until one side has no more to say; the other one hears that.
    fn hand_on(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = [0; STEP];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let rate = self.rate.load(Ordering::Relaxed);
            if rate > 0 {
                std::thread::sleep(Duration::from_secs_f64(len as f64 / rate as f64));
            }
            if to.write_all(&buffer[..len]).is_err() {
                let _ = from.shutdown(Shutdown::Read);
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn everything_comes_through_as_slowly_as_it_may() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::start("127.0.0.1").unwrap();
        let echo = std::thread::spawn({
            let at = server.local_addr().unwrap();
            proxy.limit(1 << 20);
            let mut client = TcpStream::connect(proxy.address()).unwrap();
            proxy.lead_to(at);
            move || {
                client.write_all(&[7; 200 << 10]).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).unwrap();
                answer
            }
        });
        let begun = Instant::now();
        let (mut stream, _) = server.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all == [7; 200 << 10]);
        assert!(begun.elapsed() > Duration::from_millis(150), "{:?}", begun.elapsed());
        stream.write_all(b"done").unwrap();
        drop(stream);
        assert_eq!(echo.join().unwrap(), b"done");
    }
}
