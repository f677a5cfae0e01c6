//! The beginning of a connection: version, and proof that both sides know the key.

use std::time::{Duration, Instant};

use stdchk_object::{Error, Kind, Result};

use super::channel::{Channel, Direction};
use super::key::{CODE_BYTES, Key, NONCE_BYTES, Side, nonce, same};
use super::link::Link;

const MAGIC: &[u8; 8] = b"STDCHKWR";
const VERSION: u16 = 1;
/// Frames are authenticated by codes.
const MODE_AUTHENTICATED: u8 = 0;
const HELLO_BYTES: usize = 12 + NONCE_BYTES;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(5);

fn hello() -> Result<[u8; HELLO_BYTES]> {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = MODE_AUTHENTICATED;
    bytes[12..].copy_from_slice(&nonce()?);
    Ok(bytes)
}

fn check(theirs: &[u8; HELLO_BYTES]) -> Result<()> {
    if &theirs[..8] != MAGIC {
        return Err(Error::corrupt("the other side is not part of a pool"));
    }
    let version = u16::from_le_bytes([theirs[8], theirs[9]]);
    if version != VERSION {
        let text =
            format!("the other side speaks version {version} of the wire; this program speaks {VERSION}");
        return Err(Error::new(Kind::Unsupported, text));
    }
    if theirs[10] != MODE_AUTHENTICATED {
        return Err(Error::new(Kind::Unsupported, "the other side wants another kind of security"));
    }
    Ok(())
}

fn channel(link: Box<dyn Link>, key: &Key, nonces: &[u8], side: Side) -> Channel {
    let other = if side == Side::Client { Side::Server } else { Side::Client };
    let direction = |side| Direction::new(key.of_direction(side, nonces));
    Channel::new(link, direction(side), direction(other))
}

fn nonces(client: &[u8; HELLO_BYTES], server: &[u8; HELLO_BYTES]) -> Vec<u8> {
    [&client[12..], &server[12..]].concat()
}

fn denied() -> Error {
    Error::new(Kind::Denied, "the other side has another key: it belongs to another pool")
}

impl Channel {
    /// Begins a connection that this side made.
    pub fn begin(mut link: Box<dyn Link>, key: &Key) -> Result<Channel> {
        let lost = |error| Error::io("the pool does not greet back", error).with_kind(Kind::Io);
        link.set_patience(Some(PATIENCE)).map_err(lost)?;
        let deadline = Instant::now() + PATIENCE;
        let ours = hello()?;
        link.send(&[&ours]).map_err(lost)?;
        let mut theirs = [0; HELLO_BYTES];
        link.receive_until(&mut theirs, deadline).map_err(lost)?;
        check(&theirs)?;
        let nonces = nonces(&ours, &theirs);
        let mut proof = [0; CODE_BYTES];
        link.receive_until(&mut proof, deadline).map_err(lost)?;
        if !same(&proof, &key.proof(Side::Server, &nonces)) {
            return Err(denied());
        }
        link.send(&[&key.proof(Side::Client, &nonces)]).map_err(lost)?;
        Ok(channel(link, key, &nonces, Side::Client))
    }

    /// Begins a connection that the other side made.
    pub fn accept(mut link: Box<dyn Link>, key: &Key) -> Result<Channel> {
        let lost = |error| Error::io("a greeting broke off", error).with_kind(Kind::Io);
        link.set_patience(Some(PATIENCE)).map_err(lost)?;
        let deadline = Instant::now() + PATIENCE;
        let mut theirs = [0; HELLO_BYTES];
        link.receive_until(&mut theirs, deadline).map_err(lost)?;
        let ours = hello()?;
        if let Err(error) = check(&theirs) {
            // So that the other side can say what is wrong.
            let _ = link.send(&[&ours]);
            return Err(error);
        }
        let nonces = nonces(&theirs, &ours);
        link.send(&[&ours, &key.proof(Side::Server, &nonces)]).map_err(lost)?;
        let mut proof = [0; CODE_BYTES];
        link.receive_until(&mut proof, deadline).map_err(lost)?;
        if !same(&proof, &key.proof(Side::Client, &nonces)) {
            return Err(denied());
        }
        Ok(channel(link, key, &nonces, Side::Server))
    }
}
