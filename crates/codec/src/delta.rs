//! Differences: element by element, what must be added to the old bytes to get the new ones. Numbers that changed a little leave small
//! differences, whose high bytes are all alike. Subtracting leaves fewer bits than exchanging by XOR does, because a carry stays small.

/// `new` minus `old`, by elements of `width` bytes, modulo their range; the rest that fills no element by bytes. Both are of the same length.
pub fn subtract(width: usize, new: &[u8], old: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.resize(new.len(), 0);
    out.copy_from_slice(new);
    combine(width, out, old, u64::wrapping_sub);
}

/// Adds `old` to the differences again.
pub fn add(width: usize, differences: &mut [u8], old: &[u8]) {
    combine(width, differences, old, u64::wrapping_add);
}

fn combine(width: usize, bytes: &mut [u8], old: &[u8], with: impl Fn(u64, u64) -> u64 + Copy) {
    match width {
        2 => elements::<2>(bytes, old, with),
        4 => elements::<4>(bytes, old, with),
        8 => elements::<8>(bytes, old, with),
        _ => elements::<1>(bytes, old, with),
    }
}

fn elements<const W: usize>(bytes: &mut [u8], old: &[u8], with: impl Fn(u64, u64) -> u64) {
    let number = |element: &[u8; W]| {
        let mut wide = [0; 8];
        wide[..W].copy_from_slice(element);
        u64::from_le_bytes(wide)
    };
    let (news, news_rest) = bytes.as_chunks_mut::<W>();
    let (olds, olds_rest) = old.as_chunks::<W>();
    for (new, old) in news.iter_mut().zip(olds) {
        let result = with(number(new), number(old)).to_le_bytes();
        new.copy_from_slice(&result[..W]);
    }
    for (new, old) in news_rest.iter_mut().zip(olds_rest) {
        *new = with(u64::from(*new), u64::from(*old)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_changes_leave_small_numbers() {
        let bytes =
            |numbers: [u32; 3]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let mut out = Vec::new();
        subtract(4, &bytes([300, 7, 0]), &bytes([255, 7, 1]), &mut out);
        assert_eq!(out, bytes([45, 0, u32::MAX]));
    }

    proptest! {
        #[test]
        fn what_is_subtracted_comes_back(
            pairs in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..200),
            width in prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        ) {
            let (new, old): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let mut out = Vec::new();
            subtract(width, &new, &old, &mut out);
            add(width, &mut out, &old);
            prop_assert_eq!(out, new);
        }
    }
}
