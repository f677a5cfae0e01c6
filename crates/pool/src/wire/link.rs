//! Transports: all that the rest of the wire needs of them.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use stdchk_object::error::Context;
use stdchk_object::{Error, Result};
use stdchk_store::write_pieces;

/// A connection to another process.
pub trait Link: Send {
    /// Sends all of some slices.
    fn send(&mut self, slices: &[&[u8]]) -> io::Result<()>;
    /// Fills a buffer.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()>;
    /// Waits for the first byte of what comes next, for ever if there is no limit; `None` where the other side has ended.
    fn receive_first(&mut self) -> io::Result<Option<u8>>;
    /// How long a single step may take before the other side counts as gone.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
    /// Fills a buffer until a moment at the latest, however slowly it comes.
    fn receive_until(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<()>;
    /// Whether the other side has not ended, as far as is known here.
    fn is_open(&mut self) -> bool;
}

/// Bytes that go to the kernel with one call.
const SEND_BYTES: usize = 1 << 20;
/// How long nothing may be heard of a machine with which nothing is being talked about.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// TCP.
pub struct TcpLink(TcpStream);

impl TcpLink {
    /// A connection that was made or accepted.
    pub fn new(stream: TcpStream) -> io::Result<TcpLink> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 4)?;
        Ok(TcpLink(stream))
    }
}

impl Link for TcpLink {
    fn send(&mut self, slices: &[&[u8]]) -> io::Result<()> {
        write_pieces(&mut self.0, slices, SEND_BYTES)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(buffer)
    }

    fn receive_first(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            match self.0.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(patience)?;
        self.0.set_write_timeout(patience)
    }

    fn receive_until(&mut self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.0.set_read_timeout(Some(left))?;
            match self.0.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(some) => buffer = &mut buffer[some..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_open(&mut self) -> bool {
        // Nothing may come while nothing was asked: what can be read is the end.
        let nothing_comes = self.0.set_nonblocking(true).is_ok()
            && self.0.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.0.set_nonblocking(false).is_ok() && nothing_comes
    }
}

/// Connects to `address`, a host and a port; the first of its addresses that answers.
pub fn connect(address: &str, patience: Duration) -> Result<TcpLink> {
    let cannot = || format!("cannot connect to {address}");
    let mut last = Error::invalid(format!("{address} has no address"));
    for address in address.to_socket_addrs().context(cannot)? {
        match TcpStream::connect_timeout(&address, patience).and_then(TcpLink::new) {
            Ok(link) => return Ok(link),
            Err(error) => last = Error::io(cannot(), error),
        }
    }
    Err(last)
}

/// Listens at `address`, a host and a port, where port 0 is any that is free.
pub fn listen(address: &str) -> Result<(TcpListener, SocketAddr)> {
    let cannot = || format!("cannot listen at {address}");
    let listener = TcpListener::bind(address).context(cannot)?;
    let bound = listener.local_addr().context(cannot)?;
    Ok((listener, bound))
}
