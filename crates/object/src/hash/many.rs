//! Many short pieces at once.
//!
//! BLAKE3 compresses as many 1 KiB chunks side by side as the processor has lanes. A 4 KiB page alone has only four of
//! them, so most lanes stay empty. Here the lanes are filled with the same chunk of different pieces (BLAKE3 paper,
//! section 5.3, across inputs instead of within one), which about doubles the speed for pages.

use blake3::IncrementCounter;
use blake3::platform::{Platform, words_from_le_bytes_32};

use super::{Domain, Hash};

const CHUNK: usize = blake3::CHUNK_LEN;
const OUT: usize = blake3::OUT_LEN;
/// Pieces hashed side by side: as many as the widest processor has lanes.
const LANES: usize = 16;
/// Pieces with more chunks fill the lanes by themselves.
const CHUNKS_MAX: usize = 8;
/// How far behind an input BLAKE3's code for vectors reads (1.8.7), at most: there may be no memory. What it read there does not count.
const BEHIND: usize = 64;
/// With fewer pieces than this the lanes are filled better by one piece after the other.
const LANES_MIN: usize = 4;

// Domain separation flags of the BLAKE3 paper, table 3.
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

impl Domain {
    /// The hashes of pieces, in their order: the same as [`Domain::hash`] of each, but faster for many of one length.
    pub fn hash_each<'a>(self, pieces: impl IntoIterator<Item = &'a [u8]>, mut each: impl FnMut(Hash)) {
        let mut group: [&[u8]; LANES] = [&[]; LANES];
        let mut count = 0;
        for piece in pieces {
            if count == LANES || (count > 0 && group[0].len() != piece.len()) {
                self.hash_group(&group[..count], &mut each);
                count = 0;
            }
            group[count] = piece;
            count += 1;
        }
        self.hash_group(&group[..count], &mut each);
    }

    /// Hashes up to [`LANES`] pieces of one length.
    fn hash_group(self, group: &[&[u8]], each: &mut impl FnMut(Hash)) {
        let len = group.first().map_or(0, |piece| piece.len());
        let fits = len.is_power_of_two() && (CHUNK..=CHUNKS_MAX * CHUNK).contains(&len);
        if fits && group.len() >= LANES_MIN {
            side_by_side(self.key(), group, len / CHUNK, each);
        } else {
            group.iter().for_each(|piece| each(self.hash(piece)));
        }
    }
}

/// Hashes pieces of `chunks` whole chunks each, a power of two: chunks first, then parents, level by level.
fn side_by_side(key: &[u8; 32], group: &[&[u8]], chunks: usize, each: &mut impl FnMut(Hash)) {
    let platform = Platform::detect();
    let key = words_from_le_bytes_32(key);
    let count = group.len();
    // Chaining values: of the first chunk (later: subtree) of each piece, then of the second of each, and so on.
    let mut values = [0u8; CHUNKS_MAX * LANES * OUT];
    let mut copies = [[0u8; CHUNK + BEHIND]; 3];
    let root_if = |is: bool| if is { ROOT } else { 0 };
    for chunk in 0..chunks {
        let mut inputs: [&[u8; CHUNK]; LANES] = [&[0; CHUNK]; LANES];
        for (input, piece) in inputs.iter_mut().zip(group) {
            *input = piece[chunk * CHUNK..].first_chunk().expect("pieces consist of whole chunks");
        }
        if chunk == chunks - 1 {
            for (index, copy) in read_behind(count).zip(&mut copies) {
                let (to, _) = copy.split_first_chunk_mut().expect("it is longer");
                *to = *inputs[index];
                inputs[index] = to;
            }
        }
        platform.hash_many(
            &inputs[..count],
            &key,
            chunk as u64,
            IncrementCounter::No,
            KEYED_HASH,
            CHUNK_START,
            CHUNK_END | root_if(chunks == 1),
            &mut values[chunk * count * OUT..],
        );
    }
    let mut width = chunks;
    while width > 1 {
        let parents = width / 2 * count;
        let mut blocks = [[0u8; 2 * OUT]; CHUNKS_MAX / 2 * LANES];
        for (i, block) in blocks[..parents].iter_mut().enumerate() {
            let left = (i / count * 2 * count + i % count) * OUT;
            let right = left + count * OUT;
            block[..OUT].copy_from_slice(&values[left..left + OUT]);
            block[OUT..].copy_from_slice(&values[right..right + OUT]);
        }
        width /= 2;
        let inputs: [&[u8; 2 * OUT]; CHUNKS_MAX / 2 * LANES] = std::array::from_fn(|i| &blocks[i]);
        let flags = KEYED_HASH | PARENT | root_if(width == 1);
        platform.hash_many(&inputs[..parents], &key, 0, IncrementCounter::No, flags, 0, 0, &mut values);
    }
    let (hashes, _) = values[..count * OUT].as_chunks::<OUT>();
    hashes.iter().for_each(|hash| each(Hash(*hash)));
}

/// The inputs of which more is read than there is. They are taken by sixteen, eight, four, and two: the first and (with AVX2) the third of four are, and the
/// first of two.
fn read_behind(count: usize) -> impl Iterator<Item = usize> {
    let (four, two) = (count & !7, count & !3);
    let of_four = [four, four + 2].into_iter().filter(move |_| count & 4 != 0);
    of_four.chain([two].into_iter().filter(move |_| count & 2 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(lengths: &[usize]) {
        let bytes: Vec<u8> =
            (0..lengths.iter().sum::<usize>() as u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let mut rest = &bytes[..];
        let pieces: Vec<&[u8]> = lengths.iter().map(|&len| rest.split_off(..len).expect("enough")).collect();
        let mut hashes = Vec::new();
        Domain::Node.hash_each(pieces.iter().copied(), |hash| hashes.push(hash));
        let one_by_one: Vec<Hash> = pieces.iter().map(|piece| Domain::Node.hash(piece)).collect();
        assert_eq!(hashes, one_by_one, "{lengths:?}");
    }

    #[test]
    fn every_count_and_length_is_as_one_by_one() {
        for len in [0, 1, 64, 1023, 1024, 1025, 2048, 3072, 4096, 8192, 16384] {
            (0..=2 * LANES + 1).for_each(|count| check(&vec![len; count]));
        }
    }

    proptest! {
        #[test]
        fn mixed_lengths_are_as_one_by_one(
            runs in proptest::collection::vec((prop_oneof![Just(4096usize), Just(1024), Just(8192), 0usize..5000], 1usize..20), 0..6)
        ) {
            let lengths: Vec<usize> = runs.iter().flat_map(|&(len, count)| vec![len; count]).collect();
            check(&lengths);
        }
    }
}
