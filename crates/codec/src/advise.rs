//! Choosing a coding by sampling.
//!
//! From a few slices of a run each candidate's size is measured; the smallest wins, a faster one is preferred
//! where it is nearly as good, and nothing is done where little would be gained. The answer is kept for the
//! runs that follow, and asked again now and then, because data changes within a member.

use stdchk_object::Result;
use stdchk_object::pack::{Codec, Coding};

use crate::Press;

/// What the user wants of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Look at the data.
    Auto,
    /// Always this, with the zstd level; runs that do not shrink are stored as they are.
    Fixed(Coding, i32),
}

/// Runs for which an answer is kept before the data is looked at again.
const KEPT_RUNS: u32 = 24;
/// Bytes of each of the slices that are sampled.
const SLICE: usize = 4096;
const SLICES: usize = 4;
/// A run must shrink below this many 256ths to be worth reading it whole later on.
const WORTH: usize = 236;

const CANDIDATES: [Coding; 5] = [
    Coding { codec: Codec::Lz4, planes: 0 },
    Coding { codec: Codec::Zstd, planes: 0 },
    Coding { codec: Codec::Zstd, planes: 4 },
    Coding { codec: Codec::Zstd, planes: 8 },
    Coding { codec: Codec::Zstd, planes: 2 },
];

/// Decides for the runs of one member, one after the other.
pub struct Advisor {
    preference: Preference,
    answer: Coding,
    kept: u32,
}

impl Advisor {
    /// An advisor for one member.
    pub fn new(preference: Preference) -> Advisor {
        Advisor { preference, answer: Coding::NONE, kept: 0 }
    }

    /// The coding and level for this run.
    pub fn advise(&mut self, press: &mut Press, raw: &[u8]) -> Result<(Coding, i32)> {
        match self.preference {
            Preference::Fixed(coding, level) => Ok((coding, level)),
            Preference::Auto => {
                if self.kept == 0 {
                    self.answer = sample(press, raw)?;
                    self.kept = KEPT_RUNS;
                }
                self.kept -= 1;
                Ok((self.answer, 1))
            }
        }
    }

    /// Bytes below which a compressed run is kept; otherwise it is stored as it is.
    pub fn limit(raw_len: usize) -> usize {
        raw_len * WORTH / 256
    }

    /// Tells how the run went: a surprise makes it look at the data again.
    pub fn learn(&mut self, kept: bool) {
        if !kept && self.preference == Preference::Auto {
            self.kept = 0;
        }
    }
}

/// Slices spread over the run, aligned so that elements stay whole.
fn slices(raw: &[u8]) -> Vec<u8> {
    if raw.len() <= SLICE * SLICES {
        return raw.to_vec();
    }
    let step = (raw.len() - SLICE) / (SLICES - 1) / 8 * 8;
    (0..SLICES).flat_map(|i| raw[i * step..i * step + SLICE].iter().copied()).collect()
}

fn sample(press: &mut Press, raw: &[u8]) -> Result<Coding> {
    let sample = slices(raw);
    let mut out = Vec::new();
    let mut sizes = [usize::MAX; CANDIDATES.len()];
    for (size, coding) in sizes.iter_mut().zip(CANDIDATES) {
        if press.compress(coding, 1, &sample, usize::MAX, &mut out)? {
            *size = out.len();
        }
    }
    let (best, &size) = sizes.iter().enumerate().min_by_key(|&(_, size)| *size).expect("candidates");
    if size >= Advisor::limit(sample.len()) {
        return Ok(Coding::NONE);
    }
    // LZ4 decompresses several times as fast: it may be a tenth larger.
    let lz4_is_near = sizes[0] < sample.len() && sizes[0] - size.min(sizes[0]) <= size / 10;
    Ok(if lz4_is_near { CANDIDATES[0] } else { CANDIDATES[best] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(raw: &[u8]) -> Coding {
        Advisor::new(Preference::Auto).advise(&mut Press::new(), raw).unwrap().0
    }

    #[test]
    fn noise_is_left_alone_and_text_is_not() {
        let mut x = 1u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as u32
        };
        let noise: Vec<u8> = (0..65536).flat_map(|_| next().to_le_bytes()).collect();
        assert!(advice(&noise).is_none());
        let text: Vec<u8> = (0..20_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        assert!(!advice(&text).is_none());
        let floats: Vec<u8> = (0..65536)
            .flat_map(|i| (1.0 + f64::from(next()) * 1e-14 + f64::from(i) * 1e-9).to_le_bytes())
            .collect();
        assert_eq!(advice(&floats).planes, 8);
    }
}
