//! The beginning of a connection: version, and proof that both sides know the key.

use std::io;
use std::time::Duration;

use stdchk_object::{Error, Kind, Result};

use super::channel::{Channel, Direction};
use super::key::{CODE_BYTES, Key, NONCE_BYTES, Side, nonce, same};
use super::link::{Hurried, Link};
use super::tls::TlsLink;

const MAGIC: &[u8; 8] = b"STDCHKWR";
const VERSION: u16 = 1;
/// Frames are authenticated by codes.
const MODE_AUTHENTICATED: u8 = 0;
/// All that follows is within TLS.
const MODE_TLS: u8 = 1;
const HELLO_BYTES: usize = 12;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(5);

type Hello = [u8; HELLO_BYTES];

fn hello(key: &Key) -> Hello {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = if key.tls().is_some() { MODE_TLS } else { MODE_AUTHENTICATED };
    bytes
}

/// Whether the other side begins as this one does.
fn check(ours: &Hello, theirs: &Hello) -> Result<()> {
    if theirs[..8] != ours[..8] {
        return Err(Error::corrupt("the other side is not part of a pool"));
    }
    let version = u16::from_le_bytes([theirs[8], theirs[9]]);
    if version != VERSION {
        let text =
            format!("the other side speaks version {version} of the wire; this program speaks {VERSION}");
        return Err(Error::new(Kind::Unsupported, text));
    }
    if theirs[11] != 0 {
        return Err(Error::new(Kind::Unsupported, "the other side begins in a way that is not known here"));
    }
    if theirs[10] != ours[10] {
        let word = |mode| match mode {
            MODE_TLS => "TLS",
            MODE_AUTHENTICATED => "no encryption",
            _ => "another kind of protection",
        };
        let text = format!(
            "the other side wants {}, and this key {}: it belongs to another pool",
            word(theirs[10]),
            word(ours[10])
        );
        return Err(Error::new(Kind::Denied, text));
    }
    Ok(())
}

/// A channel of which each frame has a code.
fn coded(link: Box<dyn Link>, key: &Key, nonces: &[u8], side: Side) -> Channel {
    let other = if side == Side::Client { Side::Server } else { Side::Client };
    let direction = |side| Direction::coded(key.of_direction(side, nonces));
    Channel::new(link, direction(side), direction(other))
}

fn denied() -> Error {
    Error::new(Kind::Denied, "the other side has another key: it belongs to another pool")
}

fn not_greeted(error: io::Error) -> Error {
    Error::io("the pool does not greet back", error).with_kind(Kind::Io)
}

fn broken_off(error: io::Error) -> Error {
    Error::io("a greeting broke off", error).with_kind(Kind::Io)
}

/// Takes in the other side's word, and then its random bytes.
fn receive_nonce(link: &mut dyn Link) -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    link.receive(&mut nonce)?;
    Ok(nonce)
}

fn receive_proof(link: &mut dyn Link, key: &Key, side: Side, nonces: &[u8]) -> io::Result<bool> {
    let mut proof = [0; CODE_BYTES];
    link.receive(&mut proof)?;
    Ok(same(&proof, &key.proof(side, nonces)))
}

impl Channel {
    /// Begins a connection that this side made.
    pub fn begin(mut link: Box<dyn Link>, key: &Key) -> Result<Channel> {
        let ours = hello(key);
        let greeted = |hurried: &mut Hurried| {
            let mut theirs = [0; HELLO_BYTES];
            hurried.receive(&mut theirs).map_err(not_greeted)?;
            check(&ours, &theirs)
        };
        let mut hurried = Hurried::new(&mut *link, PATIENCE).map_err(not_greeted)?;
        if let Some(tls) = key.tls() {
            let mut session = tls.client();
            session.greet(&mut hurried, &ours).map_err(not_greeted)?;
            greeted(&mut hurried)?;
            session.shake_hands(&mut hurried)?;
            return Ok(Channel::new(
                Box::new(TlsLink::new(link, session)),
                Direction::bare(),
                Direction::bare(),
            ));
        }
        let nonce = nonce()?;
        hurried.send(&[&ours, &nonce]).map_err(not_greeted)?;
        greeted(&mut hurried)?;
        let theirs = receive_nonce(&mut hurried).map_err(not_greeted)?;
        let nonces = [nonce, theirs].concat();
        if !receive_proof(&mut hurried, key, Side::Server, &nonces).map_err(not_greeted)? {
            return Err(denied());
        }
        hurried.send(&[&key.proof(Side::Client, &nonces)]).map_err(not_greeted)?;
        Ok(coded(link, key, &nonces, Side::Client))
    }

    /// Begins a connection that the other side made.
    pub fn accept(mut link: Box<dyn Link>, key: &Key) -> Result<Channel> {
        let ours = hello(key);
        let mut hurried = Hurried::new(&mut *link, PATIENCE).map_err(broken_off)?;
        let mut theirs = [0; HELLO_BYTES];
        hurried.receive(&mut theirs).map_err(broken_off)?;
        if let Err(error) = check(&ours, &theirs) {
            // So that the other side can say what is wrong.
            let _ = hurried.send(&[&ours]);
            return Err(error);
        }
        if let Some(tls) = key.tls() {
            let mut session = tls.server();
            session.greet(&mut hurried, &ours).map_err(broken_off)?;
            session.shake_hands(&mut hurried)?;
            return Ok(Channel::new(
                Box::new(TlsLink::new(link, session)),
                Direction::bare(),
                Direction::bare(),
            ));
        }
        let theirs = receive_nonce(&mut hurried).map_err(broken_off)?;
        let nonce = nonce()?;
        let nonces = [theirs, nonce].concat();
        hurried.send(&[&ours, &nonce, &key.proof(Side::Server, &nonces)]).map_err(broken_off)?;
        if !receive_proof(&mut hurried, key, Side::Client, &nonces).map_err(broken_off)? {
            return Err(denied());
        }
        Ok(coded(link, key, &nonces, Side::Server))
    }
}
