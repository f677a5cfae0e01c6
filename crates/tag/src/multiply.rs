//! Multiplication without carry, by the processor's own instructions: the island of this crate.
#![allow(unsafe_code)]

/// What is looked at together.
pub const BLOCK: usize = 64;
pub type Block = [u8; BLOCK];

/// Which instructions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Four products at once.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// One product.
    #[cfg(target_arch = "x86_64")]
    Narrow,
}

impl Way {
    /// All that this processor can go, the fastest first.
    #[cfg(target_arch = "x86_64")]
    pub fn all() -> impl Iterator<Item = Way> {
        let is_wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
        let is_narrow = is_x86_feature_detected!("sse2") && is_x86_feature_detected!("pclmulqdq");
        is_wide.then_some(Way::Wide).into_iter().chain(is_narrow.then_some(Way::Narrow))
    }

    /// None is known for other processors.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn all() -> impl Iterator<Item = Way> {
        std::iter::empty()
    }

    /// Of blocks and two keys for each: the sums of the products of the two words of 64 bits in each 16 bytes, a word of the key added to each, all
    /// without carry.
    pub fn sums(self, blocks: &[Block], keys: &[[Block; 2]]) -> [u128; 2] {
        match self {
            // SAFETY: `all` gives this way, and nobody else does, only where there are these instructions.
            #[cfg(target_arch = "x86_64")]
            Way::Wide => unsafe { x86::wide(blocks, keys) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Narrow => unsafe { x86::narrow(blocks, keys) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;

    /// How far ahead memory is asked for: whoever tags one chunk mostly tags the one behind it next, and what the processor asks for by itself ends with
    /// each page.
    const AHEAD: usize = 2048;

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub fn wide(blocks: &[Block], keys: &[[Block; 2]]) -> [u128; 2] {
        let mut sums = [_mm512_setzero_si512(); 2];
        for (block, keys) in blocks.iter().zip(keys) {
            _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD).cast());
            let block = load(block);
            for (sum, key) in sums.iter_mut().zip(keys) {
                let keyed = _mm512_xor_si512(block, load(key));
                *sum = _mm512_xor_si512(*sum, _mm512_clmulepi64_epi128::<0x10>(keyed, keyed));
            }
        }
        sums.map(|sum| {
            let mut lanes = [0u128; 4];
            // SAFETY: four lanes of 16 bytes are the 64 bytes that are stored.
            unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), sum) };
            lanes.into_iter().fold(0, |all, lane| all ^ lane)
        })
    }

    #[target_feature(enable = "avx512f")]
    fn load(block: &Block) -> __m512i {
        // SAFETY: a block has the 64 bytes that are loaded.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    #[target_feature(enable = "sse2,pclmulqdq")]
    pub fn narrow(blocks: &[Block], keys: &[[Block; 2]]) -> [u128; 2] {
        let mut sums = [_mm_setzero_si128(); 2];
        for (block, keys) in blocks.iter().zip(keys) {
            for (lane, pair) in block.as_chunks().0.iter().enumerate() {
                for (sum, key) in sums.iter_mut().zip(keys) {
                    let keyed = _mm_xor_si128(load_lane(pair), load_lane(&key.as_chunks().0[lane]));
                    *sum = _mm_xor_si128(*sum, _mm_clmulepi64_si128::<0x10>(keyed, keyed));
                }
            }
        }
        sums.map(|sum| {
            let mut lane = 0u128;
            // SAFETY: a lane is the 16 bytes that are stored.
            unsafe { _mm_storeu_si128((&raw mut lane).cast(), sum) };
            lane
        })
    }

    #[target_feature(enable = "sse2")]
    fn load_lane(lane: &[u8; 16]) -> __m128i {
        // SAFETY: a lane has the 16 bytes that are loaded.
        unsafe { _mm_loadu_si128(lane.as_ptr().cast()) }
    }
}
