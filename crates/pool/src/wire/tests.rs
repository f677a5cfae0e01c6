//! Connections whose other side is not what it should be.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use stdchk_object::{Error, Kind, Result};

use super::{Channel, Key, Protection, TcpLink};

/// Two ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn link(stream: TcpStream) -> Box<TcpLink> {
    Box::new(TcpLink::new(stream).unwrap())
}

/// Bytes that a client sends before its first frame, before the server says anything, and after.
const GREETING: [usize; 2] = [44, 16];

/// Two sides that talk through somebody who may change what the client sends after the greeting.
fn through(meddle: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) -> (Channel, Channel) {
    let key = Key::random(Protection::Plain).unwrap();
    let ((client, mut near), (mut far, server)) = (pair(), pair());
    let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
    std::thread::spawn(move || {
        for part in GREETING {
            let mut greeting = vec![0; part];
            near.read_exact(&mut greeting).unwrap();
            far.write_all(&greeting).unwrap();
        }
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).unwrap();
        let _ = far.write_all(&meddle(rest));
        let _ = far.shutdown(std::net::Shutdown::Write);
    });
    let server_key = key.clone();
    let server = std::thread::spawn(move || Channel::accept(link(server), &server_key).unwrap());
    (Channel::begin(link(client), &key).unwrap(), server.join().unwrap())
}

/// All that arrives whole.
fn received(mut channel: Channel) -> Result<Vec<(u8, Vec<u8>, Vec<u8>)>> {
    let mut frames = Vec::new();
    while let Some(frame) = channel.receive(Some(Duration::from_secs(5)))? {
        let mut bulk = vec![0; frame.bulk as usize];
        if frame.bulk > 0 {
            channel.receive_bulk(&mut bulk)?;
            channel.finish()?;
        }
        frames.push((frame.kind, frame.body, bulk));
    }
    Ok(frames)
}

fn send_three(mut client: Channel) {
    client.send(1, b"first", &[]).unwrap();
    client.send(2, b"second", &[&[7; 300], &[8; 5]]).unwrap();
    client.send(3, b"", &[]).unwrap();
}

#[test]
fn what_is_sent_is_received() {
    let (client, server) = through(|bytes| bytes);
    send_three(client);
    let frames = received(server).unwrap();
    assert_eq!(frames[0], (1, b"first".to_vec(), vec![]));
    assert_eq!(frames[1].2, [&[7; 300][..], &[8; 5]].concat());
    assert_eq!((frames.len(), frames[2].0), (3, 3));
}

/// 37 bytes, 343 bytes and 32 bytes: heads of 16, bodies, bulk, codes of 16.
const LENGTHS: [usize; 3] = [16 + 5 + 16, 16 + 6 + 305 + 16, 32];

#[test]
fn what_is_changed_is_never_believed() {
    let total: usize = LENGTHS.iter().sum();
    for at in (0..total).step_by(3) {
        let (client, server) = through(move |mut bytes| {
            assert_eq!(bytes.len(), total);
            bytes[at] ^= 0x10;
            bytes
        });
        send_three(client);
        let error = received(server).unwrap_err();
        assert!(matches!(error.kind(), Kind::Corrupt | Kind::Io), "byte {at}: {error}");
    }
}

#[test]
fn frames_cannot_be_left_out_repeated_or_exchanged() {
    let [a, b, _] = LENGTHS;
    let tricks: [fn(Vec<u8>) -> Vec<u8>; 3] = [
        |bytes| bytes[LENGTHS[0]..].to_vec(),
        |bytes| [&bytes[..LENGTHS[0]], &bytes].concat(),
        |bytes| [&bytes[LENGTHS[0] + LENGTHS[1]..], &bytes].concat(),
    ];
    for trick in tricks {
        let (client, server) = through(trick);
        send_three(client);
        assert_eq!(received(server).unwrap_err().kind(), Kind::Corrupt);
    }
    // What breaks off between frames has ended; within one it is lost.
    let (client, server) = through(move |bytes| bytes[..a + b].to_vec());
    send_three(client);
    assert_eq!(received(server).unwrap().len(), 2);
    let (client, server) = through(move |bytes| bytes[..a + b - 1].to_vec());
    send_three(client);
    assert_eq!(received(server).unwrap_err().kind(), Kind::Io);
}

#[test]
fn who_has_another_key_gets_nowhere() {
    for (ours, theirs) in [
        (Protection::Plain, Protection::Plain),
        (Protection::Tls, Protection::Tls),
        (Protection::Tls, Protection::Plain),
        (Protection::Plain, Protection::Tls),
    ] {
        let (one, other) = pair();
        let server =
            std::thread::spawn(move || Channel::accept(link(other), &Key::random(theirs).unwrap()).map(drop));
        let refused = Channel::begin(link(one), &Key::random(ours).unwrap()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), Kind::Denied, "{refused}");
        assert!(server.join().unwrap().is_err(), "{ours:?} {theirs:?}");
    }
}

#[test]
fn within_tls_nothing_is_seen_and_nothing_changed_is_believed() {
    let key = Key::random(Protection::Tls).unwrap();
    let secret = vec![b'S'; 300_000];
    // Everything that the client sends, with one bit changed, in the session or before it.
    let attempt = |flip: Option<usize>| -> (Vec<u8>, Result<Vec<(u8, Vec<u8>, Vec<u8>)>>) {
        let ((client, mut near), (mut far, server)) = (pair(), pair());
        let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
        let carrier = std::thread::spawn(move || {
            let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(some @ 1..) = near.read(&mut buffer) {
                let at = flip.and_then(|at| at.checked_sub(seen.len())).filter(|at| *at < some);
                if let Some(at) = at {
                    buffer[at] ^= 0x10;
                }
                seen.extend_from_slice(&buffer[..some]);
                if far.write_all(&buffer[..some]).is_err() {
                    break;
                }
            }
            let _ = far.shutdown(std::net::Shutdown::Write);
            seen
        });
        let server_key = key.clone();
        let server =
            std::thread::spawn(move || Channel::accept(link(server), &server_key).and_then(received));
        if let Ok(mut client) = Channel::begin(link(client), &key) {
            let _ = client.send(1, &secret, &[&secret, b"more"]);
            let _ = client.send(2, b"next", &[]);
        }
        (carrier.join().unwrap(), server.join().unwrap())
    };
    let (seen, frames) = attempt(None);
    assert_eq!(
        frames.unwrap(),
        [(1, secret.clone(), [&secret[..], b"more"].concat()), (2, b"next".to_vec(), vec![])]
    );
    assert!(seen.len() > 600_000 && !seen.windows(8).any(|window| window == [b'S'; 8]));
    for at in [0, 9, 11, 20, 60, 200, 300, 500, 800, 2000, 300_000, seen.len() - 3] {
        let (_, frames) = attempt(Some(at));
        // The last frame may be hurt, and those before it have come; but nothing that is wrong.
        if let Ok(frames) = frames {
            assert!(frames.iter().all(|(_, body, _)| *body == secret || body == b"next"), "byte {at}");
            assert!(frames.len() < 2, "byte {at}: all came as if nothing had been changed");
        }
    }
}

const FINGERPRINT: &str = "ca549c7fa0258937b3c4a759372cebfc2e25ea6b9ff4d441d6f1c00cc38c99ce";

#[test]
fn all_members_make_the_same_certificate_and_show_no_other() {
    let key = Key::random(Protection::Tls).unwrap();
    let again: Key = key.to_string().parse().unwrap();
    assert_eq!(key.certificate(), again.certificate());
    assert!(Key::random(Protection::Plain).unwrap().certificate().is_none());
    // In every version the same bytes, or members of different ones would not know each other.
    let fixed: Key = format!("tls {}", "07".repeat(32)).parse().unwrap();
    assert_eq!(fixed.certificate_fingerprint().unwrap(), FINGERPRINT);
}

#[test]
fn rubbish_and_silence_are_not_waited_for_long() {
    let key = Key::random(Protection::Plain).unwrap();
    let greet = |bytes: &'static [u8], slowly: bool| -> (Error, Duration) {
        let (mut one, other) = pair();
        let begun = Instant::now();
        let writer = std::thread::spawn(move || {
            for byte in bytes {
                if one.write_all(&[*byte]).is_err() {
                    return;
                }
                if slowly {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            std::thread::sleep(Duration::from_secs(8));
        });
        let error = Channel::accept(link(other), &key).map(drop).unwrap_err();
        let took = begun.elapsed();
        drop(writer);
        (error, took)
    };
    let (error, took) = greet(&[b'x'; 44], false);
    assert!(error.kind() == Kind::Corrupt && took < Duration::from_secs(4), "{error}");
    let (error, _) = greet(b"STDCHKWR\x07\x00\x00\x00abcdefghijklmnopqrstuvwxyz123456", false);
    assert_eq!(error.kind(), Kind::Unsupported);
    // A byte now and then does not make it longer.
    let (_, took) = greet(&[b'S'; 44], true);
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[test]
fn heads_that_cannot_be_cost_nothing() {
    for head in [[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [255; 16], {
        let mut head = [0; 16];
        head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        head
    }] {
        let (client, server) = through(move |_| head.to_vec());
        send_three(client);
        assert_eq!(received(server).unwrap_err().kind(), Kind::Corrupt);
    }
}
