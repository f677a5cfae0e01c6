//! Ways to cut a file into chunks.

use std::io::Read;

use sha1::{Digest, Sha1};
use stdchk_codec::Cutter;
use stdchk_object::{Error, Result};

use crate::rabin::Rabin;

/// How the bytes of a window are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowHash {
    /// SHA-1, anew for each window; its lowest bits are those of its last bytes.
    Sha1,
    /// A Rabin fingerprint, rolled where windows overlap.
    Rabin,
}

/// A way to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Blocks of so many bytes: the paper's FsCH.
    Fixed(usize),
    /// After every window of `m` bytes of whose hash the lowest `k` bits are zero: the paper's CbCH. Windows begin at every
    /// byte, or do not overlap.
    Window {
        /// The hash.
        hash: WindowHash,
        /// Bytes of a window.
        m: usize,
        /// Bits that are zero.
        k: u32,
        /// Whether windows overlap.
        overlap: bool,
    },
    /// FastCDC, of so many bytes on average.
    FastCdc(u32),
}

/// The longest chunk: where no window says so, a chunk ends here.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;

impl std::fmt::Display for Cuts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cuts::Fixed(bytes) if bytes % 1024 == 0 => write!(f, "fixed {} KiB", bytes / 1024),
            Cuts::Fixed(bytes) => write!(f, "fixed {bytes} B"),
            Cuts::FastCdc(bytes) => write!(f, "FastCDC {} KiB", f64::from(*bytes) / 1024.0),
            Cuts::Window { hash, m, k, overlap } => {
                let hash = if *hash == WindowHash::Sha1 { "SHA-1" } else { "Rabin" };
                let overlap = if *overlap { "overlapping" } else { "apart" };
                write!(f, "{hash} windows {overlap}, m={m} k={k}")
            }
        }
    }
}

impl Cuts {
    /// Checks sizes.
    pub fn check(&self) -> Result<()> {
        let sound = match *self {
            Cuts::Fixed(bytes) => (1..=CHUNK_BYTES_MAX).contains(&bytes),
            Cuts::Window { m, k, .. } => (1..=65_536).contains(&m) && (1..=32).contains(&k),
            Cuts::FastCdc(average) => return Cutter::new(average).map(drop),
        };
        if sound {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{self}: a block has 1 byte to 8 MiB, a window 1 to 65536 bytes, and 1 to 32 bits are zero"
        )))
    }

    /// Cuts what `input` gives until it ends, and shows each chunk.
    pub fn each(&self, input: &mut dyn Read, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.check()?;
        let finder = Finder::new(self)?;
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let wanted = (4 * CHUNK_BYTES_MAX - buffer.len()) as u64;
            let read = (&mut *input).take(wanted).read_to_end(&mut buffer);
            let read = read.map_err(|error| Error::io("cannot read the input", error))?;
            let ended = (read as u64) < wanted;
            let mut start = 0;
            for len in finder.lengths(&buffer, ended) {
                each(&buffer[start..start + len]);
                start += len;
            }
            buffer.drain(..start);
            if ended {
                return Ok(());
            }
        }
    }
}

/// What is made once for a way to cut.
enum Finder {
    Fixed(usize),
    Sha1 { m: usize, mask: u32, step: usize },
    Rabin { rabin: Box<Rabin>, mask: u64, overlap: bool },
    FastCdc(Box<Cutter>),
}

impl Finder {
    fn new(cuts: &Cuts) -> Result<Finder> {
        Ok(match *cuts {
            Cuts::Fixed(bytes) => Finder::Fixed(bytes),
            Cuts::Window { hash: WindowHash::Sha1, m, k, overlap } => {
                let mask = ((1u64 << k) - 1) as u32;
                Finder::Sha1 { m, mask, step: if overlap { 1 } else { m } }
            }
            Cuts::Window { hash: WindowHash::Rabin, m, k, overlap } => {
                Finder::Rabin { rabin: Box::new(Rabin::new(m)), mask: (1 << k) - 1, overlap }
            }
            Cuts::FastCdc(average) => Finder::FastCdc(Box::new(Cutter::new(average)?)),
        })
    }

    /// The lengths of the chunks of `bytes`. Unless the file ends with them, a tail is left over that may belong to a longer
    /// chunk.
    fn lengths(&self, bytes: &[u8], ended: bool) -> Vec<usize> {
        if let Finder::FastCdc(cutter) = self {
            let mut lengths = Vec::new();
            cutter.cut(bytes, ended, &mut lengths);
            return lengths.into_iter().map(|len| len as usize).collect();
        }
        let (mut lengths, mut start) = (Vec::new(), 0);
        while start < bytes.len() && (ended || bytes.len() - start >= CHUNK_BYTES_MAX) {
            let len = self.first(&bytes[start..]);
            lengths.push(len);
            start += len;
        }
        lengths
    }

    /// The length of the first chunk of `bytes`, which go on for longer than a chunk may, or to the end of the file.
    fn first(&self, bytes: &[u8]) -> usize {
        let most = bytes.len().min(CHUNK_BYTES_MAX);
        match self {
            Finder::Fixed(len) => most.min(*len),
            Finder::Sha1 { m, mask, step } => {
                let ends = (*m..=most).step_by(*step);
                let is_boundary = |end: &usize| {
                    let hash = Sha1::digest(&bytes[end - m..*end]);
                    u32::from_be_bytes(*hash.last_chunk().expect("20 bytes")) & mask == 0
                };
                { ends }.find(is_boundary).unwrap_or(most)
            }
            Finder::Rabin { rabin, mask, overlap: false } => {
                let m = rabin.window();
                let ends = (m..=most).step_by(m);
                { ends }.find(|end| rabin.of(&bytes[end - m..*end]) & mask == 0).unwrap_or(most)
            }
            Finder::Rabin { rabin, mask, overlap: true } => rolled(rabin, *mask, &bytes[..most]),
            Finder::FastCdc(_) => most,
        }
    }
}

fn rolled(rabin: &Rabin, mask: u64, bytes: &[u8]) -> usize {
    let m = rabin.window();
    if bytes.len() < m {
        return bytes.len();
    }
    let mut value = rabin.of(&bytes[..m]);
    let mut end = m;
    while value & mask != 0 && end < bytes.len() {
        value = rabin.roll(value, bytes[end - m], bytes[end]);
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 40) as u8
            })
            .collect()
    }

    fn chunks(cuts: Cuts, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        cuts.each(&mut { bytes }, &mut |chunk| all.push(chunk.to_vec())).unwrap();
        all
    }

    fn ways() -> Vec<Cuts> {
        let window = |hash, overlap| Cuts::Window { hash, m: 20, k: 8, overlap };
        vec![
            Cuts::Fixed(1000),
            window(WindowHash::Sha1, false),
            window(WindowHash::Sha1, true),
            window(WindowHash::Rabin, false),
            window(WindowHash::Rabin, true),
            Cuts::FastCdc(1024),
        ]
    }

    #[test]
    fn chunks_are_the_file() {
        for bytes in [vec![], vec![7], noise(100_000, 3)] {
            for cuts in ways() {
                assert_eq!(chunks(cuts, &bytes).concat(), bytes, "{cuts}");
            }
        }
        // Longer than what is read at once, and nowhere a boundary: chunks end where they must.
        let zeros = vec![0; 5 * CHUNK_BYTES_MAX + 77];
        let lens: Vec<usize> = chunks(ways()[3], &zeros).iter().map(Vec::len).collect();
        assert_eq!(lens.iter().sum::<usize>(), zeros.len());
        assert!(lens.iter().all(|&len| len <= CHUNK_BYTES_MAX));
    }

    #[test]
    fn windows_find_their_boundaries_again_behind_an_insertion() {
        let bytes = noise(300_000, 9);
        let moved = [&[1, 2, 3], &bytes[..]].concat();
        for cuts in ways() {
            let before: std::collections::HashSet<_> = chunks(cuts, &bytes).into_iter().collect();
            let found: usize =
                chunks(cuts, &moved).iter().filter(|chunk| before.contains(*chunk)).map(Vec::len).sum();
            let survives = matches!(cuts, Cuts::FastCdc(_) | Cuts::Window { overlap: true, .. });
            assert_eq!(found > 250_000, survives, "{cuts}: {found}");
        }
    }

    #[test]
    fn chunks_are_as_long_as_the_bits_say() {
        let bytes = noise(1 << 20, 5);
        for hash in [WindowHash::Sha1, WindowHash::Rabin] {
            let cuts = Cuts::Window { hash, m: 32, k: 10, overlap: true };
            let mean = bytes.len() / chunks(cuts, &bytes).len();
            assert!((850..1300).contains(&mean), "{cuts}: {mean}, expected 1024 and half a window");
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let window = |m, k| Cuts::Window { hash: WindowHash::Rabin, m, k, overlap: true };
        for bad in [
            Cuts::Fixed(0),
            Cuts::Fixed(9 << 20),
            window(0, 8),
            window(20, 0),
            window(20, 40),
            Cuts::FastCdc(3),
        ] {
            assert!(bad.check().is_err(), "{bad}");
        }
    }
}
