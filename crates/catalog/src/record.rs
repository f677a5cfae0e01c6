//! Records: the entries of the log.

use std::time::SystemTime;

use stdchk_object::envelope::{Sort, open, seal};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Kind, Result};

use crate::Op;

/// One entry of the log: operations that take effect together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Its place in the log, from 1.
    pub number: u64,
    /// Random: tells two writers of the same number apart.
    pub nonce: [u8; 16],
    /// When it was made, in nanoseconds since 1970. Nothing depends on it.
    pub time_ns: i64,
    /// What it does.
    pub ops: Vec<Op>,
}

impl Record {
    /// What an encoded record begins with.
    pub const MAGIC: &'static [u8; 8] = Sort::Record.magic();

    /// A record of this moment.
    pub fn new(number: u64, ops: Vec<Op>) -> Result<Record> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time_ns = since.map_or(0, |since| since.as_nanos() as i64);
        Ok(Record { number, nonce: random()?, time_ns, ops })
    }

    /// The number of an encoded record, all of which is checked to be as it was sealed.
    pub fn number_of(bytes: &[u8]) -> Result<u64> {
        Reader::new(open(Sort::Record, bytes)?, "log record").varint()
    }

    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.varint(self.number);
        out.raw(&self.nonce);
        out.zigzag(self.time_ns);
        out.varint(self.ops.len() as u64);
        self.ops.iter().for_each(|op| op.encode(&mut out));
        seal(Sort::Record, &out.into_bytes())
    }

    /// Reads record `number`.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<Record> {
        let body = open(Sort::Record, bytes)?;
        let mut reader = Reader::new(body, "log record");
        if reader.varint()? != number {
            return Err(Error::corrupt(format!("log record {number} says it is another one")));
        }
        let nonce = reader.array()?;
        let time_ns = reader.zigzag()?;
        let count = reader.count(2)?;
        let mut ops = Vec::with_capacity(count);
        for _ in 0..count {
            ops.push(Op::decode(&mut reader)?);
        }
        reader.finish()?;
        Ok(Record { number, nonce, time_ns, ops })
    }
}

/// Random bytes of the system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::new(Kind::Io, format!("the system gives no random numbers: {error}"))),
    }
}
