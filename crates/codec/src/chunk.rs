//! Cutting a stream into content-defined chunks.
//!
//! The algorithm is FastCDC as published in 2020 (Xia et al., IEEE TPDS), normalisation level 1, with the
//! gear table of the crate `fastcdc`. Cut points are part of the format's promise: golden ones are tested.

use fastcdc::v2020::{FastCDC, Normalization};

use stdchk_object::pack::CHUNK_BYTES_MAX;
use stdchk_object::{Error, Result};

/// Cuts buffers into content-defined chunks.
#[derive(Clone, Copy, Debug)]
pub struct Cutter {
    average: usize,
}

impl Cutter {
    /// Average sizes that are allowed, in bytes.
    pub const AVERAGE_RANGE: std::ops::RangeInclusive<u32> = 1024..=(1 << 20);

    /// A cutter for chunks of `average` bytes, a power of two.
    pub fn new(average: u32) -> Result<Cutter> {
        if !average.is_power_of_two() || !Self::AVERAGE_RANGE.contains(&average) {
            let text = format!("cdc:{average}: the average must be a power of two from 1 KiB to 1 MiB");
            return Err(Error::invalid(text));
        }
        Ok(Cutter { average: average as usize })
    }

    /// The longest chunk it makes.
    pub fn chunk_bytes_max(&self) -> usize {
        (self.average * 4).min(CHUNK_BYTES_MAX)
    }

    /// Cuts `bytes`; appends the chunks' lengths and returns how many bytes they cover. Unless this is the
    /// `end` of the stream the tail is left over: it must come again, with more behind it.
    pub fn cut(&self, bytes: &[u8], end: bool, lengths: &mut Vec<u32>) -> usize {
        let (min, max) = (self.average / 4, self.chunk_bytes_max());
        let cdc = FastCDC::with_level(bytes, min, self.average, max, Normalization::Level1);
        let mut start = 0;
        while start < bytes.len() && (end || bytes.len() - start >= max) {
            let (_, next) = cdc.cut(start, bytes.len() - start);
            lengths.push((next - start) as u32);
            start = next;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut out = Vec::with_capacity(len);
        for _ in 0..len {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            out.push((x >> 32) as u8);
        }
        out
    }

    #[test]
    fn golden_cut_points() {
        let mut lengths = Vec::new();
        Cutter::new(4096).unwrap().cut(&noise(40_000), true, &mut lengths);
        assert_eq!(lengths, GOLDEN);
    }

    const GOLDEN: &[u32] = &[7331, 6159, 3585, 4743, 4717, 11770, 1695];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn cuts_do_not_depend_on_buffers(step in 1usize..70_000, len in 0usize..300_000) {
            let bytes = noise(len);
            let cutter = Cutter::new(4096).unwrap();
            let mut whole = Vec::new();
            prop_assert_eq!(cutter.cut(&bytes, true, &mut whole), len);
            let (mut pieces, mut start, mut seen) = (Vec::new(), 0, 0);
            while seen < len {
                seen = (seen + step).min(len);
                start += cutter.cut(&bytes[start..seen], seen == len, &mut pieces);
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
