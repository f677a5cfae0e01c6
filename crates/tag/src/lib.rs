//! Tags: cheap keyed hashes by which a save recognizes what the parent has at the same place (docs/TAGS.md).
#![deny(unsafe_code)]

mod multiply;

use std::num::NonZeroU128;

use stdchk_object::hash::plain;

use multiply::{BLOCK, Block, Way};

/// The longest chunk that has a tag.
pub const TAGGED_MAX: usize = 4096;
/// Bytes of the secret.
pub const SECRET_BYTES: usize = 32;

const BLOCKS: usize = TAGGED_MAX / BLOCK;
/// The prime of the last step.
const PRIME: u128 = (1 << 127) - 1;

/// The tag of a chunk. It says something only beside another one by the same key, of a chunk of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(NonZeroU128);

impl Tag {
    /// As it is written.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_le_bytes()
    }

    /// Nothing where there are only zeros, which no tag is.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Tag> {
        NonZeroU128::new(u128::from_le_bytes(bytes)).map(Tag)
    }
}

/// Makes tags with one key.
pub struct Tagger {
    way: Way,
    blocks: Box<[[Block; 2]; BLOCKS]>,
    words: [u128; 5],
}

impl Tagger {
    /// By this secret; nothing on a processor that cannot multiply without carry.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Option<Tagger> {
        Some(Tagger::going(Way::all().next()?, secret))
    }

    fn going(way: Way, secret: &[u8; SECRET_BYTES]) -> Tagger {
        let mut count = 0u64;
        let mut next = || {
            count += 1;
            plain(&[&b"stdchk v1 tags"[..], secret, &count.to_le_bytes()].concat()).0
        };
        let mut blocks = Box::new([[[0; BLOCK]; 2]; BLOCKS]);
        blocks
            .as_flattened_mut()
            .as_flattened_mut()
            .chunks_mut(32)
            .for_each(|some| some.copy_from_slice(&next()));
        let words = [(); 5].map(|()| {
            let word = next().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
            word & PRIME
        });
        Tagger { way, blocks, words }
    }

    /// The tag of a chunk, unless it is too long to have one.
    pub fn tag(&self, chunk: &[u8]) -> Option<Tag> {
        if chunk.len() > TAGGED_MAX {
            return None;
        }
        let (whole, rest) = chunk.as_chunks::<BLOCK>();
        let mut sums = self.way.sums(whole, &self.blocks[..]);
        if !rest.is_empty() {
            let mut last = [0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            let more = self.way.sums(&[last], &self.blocks[whole.len()..]);
            sums = [sums[0] ^ more[0], sums[1] ^ more[1]];
        }
        let [a, b] = sums;
        let words = [a as u64, (a >> 64) as u64, b as u64, (b >> 64) as u64, chunk.len() as u64];
        let folded =
            words.iter().zip(&self.words).fold(0, |sum, (&word, &key)| add(sum, multiply(word, key)));
        // The prime is 0, too.
        let folded = if folded == PRIME { 0 } else { folded };
        Some(Tag(NonZeroU128::new(folded).unwrap_or(NonZeroU128::MIN)))
    }
}

/// A number that is the same modulo the prime, and below 2^127.
fn reduce(x: u128) -> u128 {
    let once = (x & PRIME) + (x >> 127);
    (once & PRIME) + (once >> 127)
}

fn add(a: u128, b: u128) -> u128 {
    reduce(a + b)
}

/// The product of a word and a number below 2^127, modulo the prime: below 2^127.
fn multiply(word: u64, key: u128) -> u128 {
    let low = u128::from(word) * (key & u128::from(u64::MAX));
    let high = u128::from(word) * (key >> 64);
    // 2^127 is 1: of high · 2^64 what is above bit 63 comes in again below.
    let turned = ((high & ((1 << 63) - 1)) << 64) + (high >> 63);
    add(reduce(low), reduce(turned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: [u8; SECRET_BYTES] = [7; SECRET_BYTES];

    fn taggers() -> impl Iterator<Item = Tagger> {
        Way::all().map(|way| Tagger::going(way, &SECRET))
    }

    fn words_of(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// A product without carry, bit by bit.
    fn product(x: u64, y: u64) -> u128 {
        (0..64).filter(|bit| y >> bit & 1 == 1).fold(0, |sum, bit| sum ^ (u128::from(x) << bit))
    }

    /// What the page of the documentation says, word by word, without any of what makes it fast.
    fn by_the_book(tagger: &Tagger, chunk: &[u8]) -> u128 {
        let mut padded = chunk.to_vec();
        padded.resize(chunk.len().next_multiple_of(BLOCK), 0);
        let words = words_of(&padded);
        let sum = |which: usize| {
            let key: Vec<u64> = tagger.blocks.iter().flat_map(|keys| words_of(&keys[which])).collect();
            words.chunks(2).zip(key.chunks(2)).fold(0, |sum, (m, k)| sum ^ product(m[0] ^ k[0], m[1] ^ k[1]))
        };
        let (a, b) = (sum(0), sum(1));
        // Multiplication modulo the prime by doubling.
        let times = |word: u128, key: u128| {
            (0..64).rev().fold(0u128, |so_far, bit| {
                let doubled = (so_far << 1) % PRIME;
                if word >> bit & 1 == 1 { (doubled + key) % PRIME } else { doubled }
            })
        };
        let low = |x: u128| x & u128::from(u64::MAX);
        let words = [low(a), a >> 64, low(b), b >> 64, chunk.len() as u128];
        let sum = words.into_iter().zip(tagger.words).fold(0, |sum, (w, k)| (sum + times(w, k)) % PRIME);
        sum.max(1)
    }

    fn check(chunk: &[u8]) {
        for tagger in taggers() {
            let tag = tagger.tag(chunk).expect("it is short enough");
            assert_eq!(tag.to_bytes(), by_the_book(&tagger, chunk).to_le_bytes(), "{:?}", tagger.way);
            assert_eq!(Tag::from_bytes(tag.to_bytes()), Some(tag));
        }
    }

    #[test]
    fn tags_of_every_length_are_what_the_documentation_says() {
        let bytes: Vec<u8> = (0..TAGGED_MAX as u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        (0..200).chain([1000, 4032, 4095, TAGGED_MAX]).for_each(|len| check(&bytes[..len]));
        check(&[0xff; TAGGED_MAX]);
    }

    proptest! {
        #[test]
        fn tags_are_what_the_documentation_says(chunk in proptest::collection::vec(any::<u8>(), 0..=TAGGED_MAX)) {
            check(&chunk);
        }

        #[test]
        fn whatever_differs_has_another_tag(
            chunk in proptest::collection::vec(any::<u8>(), 1..=TAGGED_MAX),
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let mut other = chunk.clone();
            other[at.index(chunk.len())] ^= flip;
            for tagger in taggers() {
                prop_assert_ne!(tagger.tag(&chunk), tagger.tag(&other));
            }
        }

        /// The sums that fold the words stay in the field, at its edges, too.
        #[test]
        fn products_are_those_of_the_field(word in any::<u64>(), key in prop_oneof![any::<u128>(), Just(PRIME), Just(PRIME - 1), Just(0)]) {
            let key = key & PRIME;
            let by_doubling = (0..64).rev().fold(0u128, |so_far, bit| {
                ((so_far << 1) % PRIME + if word >> bit & 1 == 1 { key % PRIME } else { 0 }) % PRIME
            });
            prop_assert_eq!(multiply(word, key) % PRIME, by_doubling);
        }
    }

    #[test]
    fn another_secret_gives_other_tags_and_what_is_long_has_none() {
        for tagger in taggers() {
            let other = Tagger::going(tagger.way, &[8; SECRET_BYTES]);
            assert_ne!(tagger.tag(b"page"), other.tag(b"page"));
            assert_ne!(tagger.tag(&[0; 64]), tagger.tag(&[0; 128]));
            assert_ne!(tagger.tag(&[0; 16]), tagger.tag(&[0; 32]));
            assert!(tagger.tag(&[0; TAGGED_MAX + 1]).is_none());
        }
        assert_eq!(Tag::from_bytes([0; 16]), None);
    }

    /// All of the key is used: every word of a chunk meets another one, in both passes.
    #[test]
    fn no_two_words_of_the_key_are_the_same() {
        for tagger in taggers() {
            let mut words = words_of(tagger.blocks.as_flattened().as_flattened());
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), 2 * TAGGED_MAX / 8);
        }
    }
}
