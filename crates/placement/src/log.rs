//! Logarithms that are the same on every machine: integers, a table, and a line between two of its entries.

/// Bits behind the point.
pub const POINT: u32 = 32;
const TABLE_BITS: u32 = 8;
const ENTRIES: usize = (1 << TABLE_BITS) + 1;

/// log2(1 + i/256), with [`POINT`] bits behind the point.
static TABLE: [u64; ENTRIES] = table();

const fn table() -> [u64; ENTRIES] {
    let mut table = [0; ENTRIES];
    let mut i = 0;
    while i < ENTRIES {
        table[i] = log2_of((1 << 32) + ((i as u64) << (32 - TABLE_BITS)));
        i += 1;
    }
    table
}

/// The logarithm of a number from 1 to 2, both included, that has 32 bits behind the point: by squaring, a bit of the result at a time.
const fn log2_of(mut number: u64) -> u64 {
    if number >= 2 << 32 {
        return 1 << POINT;
    }
    let (mut result, mut bit) = (0, POINT);
    while bit > 0 {
        bit -= 1;
        number = ((number as u128 * number as u128) >> 32) as u64;
        if number >= 2 << 32 {
            number >>= 1;
            result |= 1 << bit;
        }
    }
    result
}

/// -log2(x / 2^64) for x > 0, with [`POINT`] bits behind the point, off by less than 2^-17. At least 1, so that one can divide by it.
pub fn minus_log2(x: u64) -> u64 {
    let zeros = x.leading_zeros();
    // The leading one is dropped; what follows is the fraction.
    let fraction = (x << zeros) << 1;
    let entry = (fraction >> (64 - TABLE_BITS)) as usize;
    let rest = (fraction << TABLE_BITS) >> 32;
    let (low, high) = (TABLE[entry], TABLE[entry + 1]);
    let log = low + (((high - low) * rest) >> 32);
    ((u64::from(zeros) + 1) << POINT).saturating_sub(log).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right() {
        let near = |x: u64| {
            let ours = minus_log2(x) as f64 / 2f64.powi(32);
            let theirs = 64.0 - (x as f64).log2();
            assert!((ours - theirs).abs() < 8e-6, "{x}: {ours} {theirs}");
        };
        let odd = [1, 2, 3, 1 << 20, (1 << 63) - 1, 1 << 63, u64::MAX, u64::MAX - (1 << 40)];
        odd.into_iter().for_each(near);
        (1..100_000u64).for_each(|i| near(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    }

    #[test]
    fn larger_numbers_have_smaller_ones() {
        let mut last = u64::MAX;
        for i in 1..1_000_000u64 {
            let log = minus_log2(i << 44);
            assert!(log <= last);
            last = log;
        }
        assert_eq!(minus_log2(1), 64 << POINT);
        assert!(minus_log2(u64::MAX) >= 1);
    }
}
