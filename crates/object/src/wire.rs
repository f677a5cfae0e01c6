//! Reading and writing the primitives of the format: fixed integers, varints, strings.

use crate::{Error, Result};

/// Appends primitives to a byte vector.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// An unsigned number in LEB128.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A signed number: zigzag, then LEB128.
    pub fn zigzag(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }

    /// Bytes as they are, without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A length and bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.raw(bytes);
    }

    /// A length and UTF-8.
    pub fn string(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}

/// Reads primitives from bytes that nobody vouches for.
#[derive(Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; `what` names them in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    /// An error about these bytes.
    pub fn corrupt(&self, problem: &str) -> Error {
        Error::corrupt(format!("{}: {problem}", self.what))
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Fails unless everything was read.
    pub fn finish(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.corrupt("bytes after the end")) }
    }

    /// The next `n` bytes.
    pub fn raw(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(self.corrupt("ends too early"));
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.raw(N)?.try_into().expect("raw returns what was asked for"))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// An unsigned number in LEB128, shortest form only.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.corrupt("a number is not in its shortest form"));
                }
                return Ok(value);
            }
        }
        Err(self.corrupt("a number is too long"))
    }

    /// A number of at most `limit`; `name` says what it counts.
    pub fn bounded(&mut self, limit: u64, name: &str) -> Result<u64> {
        let value = self.varint()?;
        if value > limit {
            return Err(self.corrupt(&format!("{name} is {value}, more than {limit}")));
        }
        Ok(value)
    }

    /// How many items follow, each of at least `item_bytes_min` bytes: never more than the rest can hold.
    pub fn count(&mut self, item_bytes_min: usize) -> Result<usize> {
        let limit = (self.rest.len() / item_bytes_min.max(1)) as u64;
        Ok(self.bounded(limit, "a count")? as usize)
    }

    /// A 32-bit number as a varint.
    pub fn varint32(&mut self, name: &str) -> Result<u32> {
        Ok(self.bounded(u64::from(u32::MAX), name)? as u32)
    }

    /// A signed number: LEB128 of zigzag.
    pub fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A length and as many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.count(1)?;
        self.raw(length)
    }

    /// A length and UTF-8.
    pub fn string(&mut self) -> Result<&'a str> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.corrupt("a string is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(u in any::<u64>(), i in any::<i64>(), s in ".*") {
            let mut w = Writer::new();
            w.varint(u);
            w.zigzag(i);
            w.string(&s);
            let bytes = w.into_bytes();
            let mut r = Reader::new(&bytes, "test");
            prop_assert_eq!(r.varint().unwrap(), u);
            prop_assert_eq!(r.zigzag().unwrap(), i);
            prop_assert_eq!(r.string().unwrap(), s);
            r.finish().unwrap();
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut r = Reader::new(&bytes, "test");
            while r.remaining() > 0 && r.string().is_ok() {}
            let _ = Reader::new(&bytes, "test").varint();
        }
    }

    #[test]
    fn long_forms_are_refused() {
        assert!(Reader::new(&[0x80, 0x00], "test").varint().is_err());
        let mut max = vec![0xff; 9];
        max.push(0x01);
        assert_eq!(Reader::new(&max, "test").varint().unwrap(), u64::MAX);
        max[9] = 0x02;
        assert!(Reader::new(&max, "test").varint().is_err());
    }
}
