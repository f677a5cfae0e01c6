//! Rabin fingerprints of a sliding window: polynomials over GF(2), taken modulo an irreducible one (Rabin 1981; Broder 1993).

/// The irreducible polynomial of degree 63 that LBFS uses; the top bit is its leading term.
const POLYNOMIAL: u64 = 0xbfe6_b8a5_bf37_8d83;
const DEGREE: u32 = 63;

/// Fingerprints of windows of one length.
pub struct Rabin {
    window: usize,
    /// The multiples of x^63 that a byte pushes out, reduced.
    reduced: [u64; 256],
    /// What the oldest byte of a window contributes.
    oldest: [u64; 256],
    /// A one before the window, so that zeros have a fingerprint that is not zero.
    leading: u64,
}

/// `high` times x^63, modulo the polynomial; `high` has at most 8 bits.
fn reduce(high: u64) -> u64 {
    let mut value = u128::from(high) << DEGREE;
    for bit in (DEGREE..DEGREE + 8).rev() {
        if value >> bit & 1 == 1 {
            value ^= u128::from(POLYNOMIAL) << (bit - DEGREE);
        }
    }
    value as u64
}

impl Rabin {
    /// For windows of so many bytes.
    pub fn new(window: usize) -> Rabin {
        let reduced = std::array::from_fn(|high| reduce(high as u64));
        let mut rabin = Rabin { window, reduced, oldest: [0; 256], leading: 0 };
        let shifted = |byte: u64, bytes: usize| (0..bytes).fold(byte, |value, _| rabin.append(value, 0));
        let oldest = std::array::from_fn(|byte| shifted(byte as u64, window - 1));
        let leading = shifted(1, window);
        rabin.oldest = oldest;
        rabin.leading = leading;
        rabin
    }

    fn append(&self, value: u64, byte: u8) -> u64 {
        let high = value >> (DEGREE - 8);
        (((value << 8) & ((1 << DEGREE) - 1)) | u64::from(byte)) ^ self.reduced[high as usize]
    }

    /// The fingerprint of a whole window.
    pub fn of(&self, window: &[u8]) -> u64 {
        window.iter().fold(0, |value, &byte| self.append(value, byte)) ^ self.leading
    }

    /// The fingerprint of the window that begins one byte later.
    pub fn roll(&self, value: u64, leaves: u8, enters: u8) -> u64 {
        let rest = (value ^ self.leading) ^ self.oldest[usize::from(leaves)];
        self.append(rest, enters) ^ self.leading
    }

    /// The length of its windows.
    pub fn window(&self) -> usize {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_gives_what_hashing_anew_gives() {
        let bytes: Vec<u8> = (0..500u32).map(|i| (i * i % 251) as u8).collect();
        for window in [1, 2, 8, 20, 63, 256] {
            let rabin = Rabin::new(window);
            let mut value = rabin.of(&bytes[..window]);
            for at in 1..=bytes.len() - window {
                value = rabin.roll(value, bytes[at - 1], bytes[at + window - 1]);
                assert_eq!(value, rabin.of(&bytes[at..at + window]), "window {window} at {at}");
            }
        }
    }

    #[test]
    fn it_is_linear_and_zeros_are_not_zero() {
        let rabin = Rabin::new(20);
        let (a, b) = ([0x5a; 20], [0x13; 20]);
        let sum: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ b).collect();
        assert_eq!(rabin.of(&a) ^ rabin.of(&b) ^ rabin.of(&[0; 20]), rabin.of(&sum));
        assert_ne!(rabin.of(&[0; 20]), 0);
    }

    #[test]
    fn the_low_bits_are_spread() {
        let rabin = Rabin::new(32);
        let bytes: Vec<u8> =
            (0..200_000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let hits = bytes.windows(32).filter(|window| rabin.of(window) & 0xff == 0).count();
        assert!((600..1000).contains(&hits), "{hits} of 200 000, expected 781");
    }
}
