//! Seeded generators: the same seed gives the same bytes on every machine.

use stdchk_object::PackName;
use stdchk_object::hash::Domain;
use stdchk_object::pack::{self, ChunkKind, Coding, FooterBuilder};

/// A small random generator: xoshiro256** (Blackman and Vigna), seeded by splitmix64.
#[derive(Clone)]
pub struct Random([u64; 4]);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Random {
        let mut x = seed;
        Random(std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(limit)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            eight.copy_from_slice(&self.number().to_le_bytes()[..eight.len()]);
        }
    }

    /// So many bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// The size of a page of a memory image.
pub const PAGE: usize = 4096;

/// Rewrites `percent` of the pages of an image at random places, as a program does between two checkpoints.
pub fn touch_pages(image: &mut [u8], percent: u64, random: &mut Random) {
    let pages = image.len() / PAGE;
    let mut order: Vec<usize> = (0..pages).collect();
    let count = pages * percent as usize / 100;
    for i in 0..count {
        let j = i + random.below((pages - i) as u64) as usize;
        order.swap(i, j);
        let start = order[i] * PAGE;
        random.fill(&mut image[start..start + PAGE]);
    }
}

/// Changes `percent` of the pages of an image a little: 64-bit numbers grow by less than a thousand.
pub fn drift(image: &mut [u8], percent: u64, random: &mut Random) {
    for page in image.chunks_exact_mut(PAGE) {
        if random.below(100) < percent {
            for element in page.as_chunks_mut::<8>().0 {
                *element = (u64::from_le_bytes(*element).wrapping_add(random.below(1000))).to_le_bytes();
            }
        }
    }
}

/// Inserts `count` pieces of up to `longest` bytes at random places, none of them aligned to anything.
pub fn insert(image: &mut Vec<u8>, count: usize, longest: usize, random: &mut Random) {
    for _ in 0..count {
        let at = random.below(image.len() as u64 + 1) as usize;
        let len = 1 + random.below(longest as u64) as usize;
        image.splice(at..at, random.bytes(len));
    }
}

/// An image that looks like a process: noise, numbers, text and untouched pages.
pub fn process_image(len: usize, random: &mut Random) -> Vec<u8> {
    let mut image = Vec::with_capacity(len);
    while image.len() < len {
        match random.below(5) {
            0 => image.resize(image.len() + PAGE * (1 + random.below(64) as usize), 0),
            1 => {
                let pages = 1 + random.below(32) as usize;
                image.extend(random.bytes(PAGE * pages));
            }
            2 => {
                let base = random.below(1000) as f64;
                for i in 0..2048 {
                    let value = base + f64::from(i) * 0.001 + random.below(1000) as f64 * 1e-9;
                    image.extend_from_slice(&value.to_le_bytes());
                }
            }
            3 => (0..500).for_each(|i| image.extend(format!("line {i} of {}\n", random.below(100)).bytes())),
            _ => {
                let word = random.number().to_le_bytes();
                (0..512).for_each(|_| image.extend_from_slice(&word));
            }
        }
    }
    image.truncate(len);
    image
}

/// A pack of one run of a few chunks.
pub fn pack(name: PackName, data: &[u8]) -> Vec<u8> {
    let chunks = data.chunks(4096).map(|chunk| (chunk.len() as u32, Domain::Data.hash(chunk)));
    let mut builder = FooterBuilder::new(name);
    builder.push(ChunkKind::Data, Coding::NONE, &[data], &chunks.collect::<Vec<_>>(), &[]);
    [&pack::header(name)[..], data, &builder.seal().bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        assert_eq!(Random::new(7).bytes(100), Random::new(7).bytes(100));
        assert_ne!(Random::new(7).bytes(100), Random::new(8).bytes(100));
        assert_eq!(Random::new(1).number(), 0xb3f2_af6d_0fc7_10c5, "the generator must not change");
    }

    #[test]
    fn exactly_the_asked_share_of_pages_changes() {
        let mut random = Random::new(3);
        let before = random.bytes(PAGE * 200);
        let mut after = before.clone();
        touch_pages(&mut after, 10, &mut random);
        let changed = before.chunks(PAGE).zip(after.chunks(PAGE)).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 20);
    }
}
