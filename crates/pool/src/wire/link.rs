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
    /// Receives some bytes, one at least; 0 where the other side has ended.
    fn receive_some(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// How long a single step may take before the other side counts as gone; for ever if there is no limit.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
    /// Whether the other side has not ended, as far as is known here.
    fn is_open(&mut self) -> bool;

    /// Fills a buffer.
    fn receive(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.receive_some(buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                some => buffer = &mut buffer[some..],
            }
        }
        Ok(())
    }
}

/// A link of which all must be over at some moment, however slowly bytes come.
pub struct Hurried<'l> {
    link: &'l mut dyn Link,
    deadline: Instant,
}

impl<'l> Hurried<'l> {
    /// So long from now.
    pub fn new(link: &'l mut dyn Link, patience: Duration) -> io::Result<Hurried<'l>> {
        link.set_patience(Some(patience))?;
        Ok(Hurried { link, deadline: Instant::now() + patience })
    }
}

impl Link for Hurried<'_> {
    fn send(&mut self, slices: &[&[u8]]) -> io::Result<()> {
        self.link.send(slices)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.link.set_patience(Some(left))?;
        self.link.receive_some(buffer)
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.link.set_patience(patience)
    }

    fn is_open(&mut self) -> bool {
        self.link.is_open()
    }
}

/// Bytes that go to the kernel with one call.
const SEND_BYTES: usize = 1 << 20;
/// How long nothing may be heard of a machine with which nothing is being talked about.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// TCP.
pub struct TcpLink {
    stream: TcpStream,
    /// What the kernel was told last.
    patience: Option<Duration>,
}

impl TcpLink {
    /// A connection that was made or accepted.
    pub fn new(stream: TcpStream) -> io::Result<TcpLink> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 4)?;
        Ok(TcpLink { stream, patience: None })
    }
}

impl Link for TcpLink {
    fn send(&mut self, slices: &[&[u8]]) -> io::Result<()> {
        write_pieces(&mut self.stream, slices, SEND_BYTES)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        if self.patience != patience {
            self.stream.set_read_timeout(patience)?;
            self.stream.set_write_timeout(patience)?;
            self.patience = patience;
        }
        Ok(())
    }

    fn is_open(&mut self) -> bool {
        // Nothing may come while nothing was asked: what can be read is the end.
        let nothing_comes = self.stream.set_nonblocking(true).is_ok()
            && self.stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_ok() && nothing_comes
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
