//! Byte planes: byte i of every element together. Numbers that resemble each other have resembling high
//! bytes, which a compressor finds once they lie side by side.

/// Splits `raw` into planes of elements of `width` bytes; the rest that fills no element follows as it is.
pub fn split(width: u8, raw: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.resize(raw.len(), 0);
    match width {
        2 => split_width::<2>(raw, out),
        4 => split_width::<4>(raw, out),
        8 => split_width::<8>(raw, out),
        _ => out.copy_from_slice(raw),
    }
}

/// The inverse of [`split`].
pub fn join(width: u8, planes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.resize(planes.len(), 0);
    match width {
        2 => join_width::<2>(planes, out),
        4 => join_width::<4>(planes, out),
        8 => join_width::<8>(planes, out),
        _ => out.copy_from_slice(planes),
    }
}

/// Elements handled together: their planes stay within the first-level cache.
const BLOCK: usize = 64;

fn split_width<const W: usize>(raw: &[u8], out: &mut [u8]) {
    let count = raw.len() / W;
    let (body, rest) = raw.split_at(count * W);
    let (planes, tail) = out.split_at_mut(count * W);
    tail.copy_from_slice(rest);
    for (block, elements) in body.chunks(BLOCK * W).enumerate() {
        let n = elements.len() / W;
        for plane in 0..W {
            let start = plane * count + block * BLOCK;
            let lane = &mut planes[start..start + n];
            for (to, element) in lane.iter_mut().zip(elements.chunks_exact(W)) {
                *to = element[plane];
            }
        }
    }
}

fn join_width<const W: usize>(planes: &[u8], out: &mut [u8]) {
    let count = planes.len() / W;
    let (planes, rest) = planes.split_at(count * W);
    let (body, tail) = out.split_at_mut(count * W);
    tail.copy_from_slice(rest);
    for (block, elements) in body.chunks_mut(BLOCK * W).enumerate() {
        let n = elements.len() / W;
        for plane in 0..W {
            let start = plane * count + block * BLOCK;
            let lane = &planes[start..start + n];
            for (from, element) in lane.iter().zip(elements.chunks_exact_mut(W)) {
                element[plane] = *from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let mut out = Vec::new();
        split(4, &[0, 1, 2, 3, 10, 11, 12, 13, 99], &mut out);
        assert_eq!(out, [0, 10, 1, 11, 2, 12, 3, 13, 99]);
    }

    proptest! {
        #[test]
        fn bytes_come_back(raw in proptest::collection::vec(any::<u8>(), 0..2000), width in prop_oneof![Just(0u8), Just(2), Just(4), Just(8)]) {
            let (mut planes, mut back) = (Vec::new(), Vec::new());
            split(width, &raw, &mut planes);
            join(width, &planes, &mut back);
            prop_assert_eq!(back, raw);
        }
    }
}
