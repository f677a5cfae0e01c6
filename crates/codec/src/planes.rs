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

/// Where planes are cut for an entropy coder, so that each part has statistics of its own: the ends of the parts. Neighbours that look alike stay together,
/// since what repeats may be in both, and since noise is passed over the faster the longer it is. The rest that fills no element belongs to the
/// last plane.
pub fn parts(width: u8, planes: &[u8]) -> Vec<usize> {
    let width = usize::from(width.max(1));
    let count = planes.len() / width;
    let mut ends = Vec::with_capacity(width);
    if width > 1 && count >= LOOK * LOOKS {
        let mut before = Face::of(&planes[..count]);
        for plane in 1..width {
            let face = Face::of(&planes[plane * count..(plane + 1) * count]);
            if !face.is_like(&before) {
                ends.push(plane * count);
            }
            before = face;
        }
    }
    ends.push(planes.len());
    ends
}

/// Bytes of each of the slices from which a plane is judged, and how many there are.
const LOOK: usize = 256;
const LOOKS: usize = 4;

/// What a plane looks like in some slices of it.
struct Face {
    counts: [u32; 256],
    /// Bytes that are like the one before.
    repeated: u32,
}

impl Face {
    fn of(plane: &[u8]) -> Face {
        let step = (plane.len() - LOOK) / (LOOKS - 1);
        let mut face = Face { counts: [0; 256], repeated: 0 };
        for look in 0..LOOKS {
            let slice = &plane[look * step..look * step + LOOK];
            slice.iter().for_each(|&byte| face.counts[usize::from(byte)] += 1);
            face.repeated += slice.iter().zip(&slice[1..]).map(|(a, b)| u32::from(a == b)).sum::<u32>();
        }
        face
    }

    /// Pairs of different bytes of the slices that have the same value: what a small sample shows of how often a value comes is left as it is.
    fn pairs(&self) -> u32 {
        self.counts.iter().map(|count| count * count.saturating_sub(1)).sum()
    }

    /// Whether the same values are about as frequent (the angle between both, of which the cosine is 0.9), and repeat as often: what counts through all
    /// values has them as often as noise does.
    fn is_like(&self, other: &Face) -> bool {
        let both: u32 = self.counts.iter().zip(&other.counts).map(|(a, b)| a * b).sum();
        let alone = f64::from(self.pairs()) * f64::from(other.pairs());
        let apart = self.repeated.abs_diff(other.repeated);
        f64::from(both) >= 0.9 * alone.sqrt() && apart < (LOOK * LOOKS / 16) as u32
    }
}

/// Elements whose bytes are exchanged together: a plane gets a word of eight bytes from them.
const LANES: usize = 8;

fn split_width<const W: usize>(raw: &[u8], out: &mut [u8]) {
    let count = raw.len() / W;
    let (body, rest) = raw.split_at(count * W);
    let (planes, tail) = out.split_at_mut(count * W);
    tail.copy_from_slice(rest);
    let whole = count / LANES * LANES;
    for (block, elements) in body.chunks_exact(LANES * W).enumerate() {
        let mut words = [0u64; W];
        for (word, bytes) in words.iter_mut().zip(elements.as_chunks::<LANES>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        to_planes(&mut words);
        for (plane, word) in words.iter().enumerate() {
            let at = plane * count + block * LANES;
            planes[at..at + LANES].copy_from_slice(&word.to_le_bytes());
        }
    }
    for (i, element) in body.chunks_exact(W).enumerate().skip(whole) {
        (0..W).for_each(|plane| planes[plane * count + i] = element[plane]);
    }
}

fn join_width<const W: usize>(planes: &[u8], out: &mut [u8]) {
    let count = planes.len() / W;
    let (planes, rest) = planes.split_at(count * W);
    let (body, tail) = out.split_at_mut(count * W);
    tail.copy_from_slice(rest);
    let whole = count / LANES * LANES;
    for (block, elements) in body.chunks_exact_mut(LANES * W).enumerate() {
        let mut words = [0u64; W];
        for (plane, word) in words.iter_mut().enumerate() {
            let at = plane * count + block * LANES;
            *word = u64::from_le_bytes(*planes[at..].first_chunk().expect("eight elements are left"));
        }
        from_planes(&mut words);
        for (bytes, word) in elements.as_chunks_mut::<LANES>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }
    for (i, element) in body.chunks_exact_mut(W).enumerate().skip(whole) {
        (0..W).for_each(|plane| element[plane] = planes[plane * count + i]);
    }
}

/// Eight elements of `W` bytes, one after the other, become `W` planes of eight bytes: a matrix of bytes is transposed by
/// exchanging ever larger squares, as in Hacker's Delight, section 7-3.
fn to_planes<const W: usize>(words: &mut [u64; W]) {
    if W <= 4 {
        words.iter_mut().for_each(|word| *word = within::<W>(*word));
    }
    exchanges::<W>().into_iter().flatten().for_each(|(apart, bits, mask)| between(words, apart, bits, mask));
}

/// The inverse: every step undoes itself, so they are taken backwards.
fn from_planes<const W: usize>(words: &mut [u64; W]) {
    let steps = exchanges::<W>();
    steps.into_iter().rev().flatten().for_each(|(apart, bits, mask)| between(words, apart, bits, mask));
    if W <= 4 {
        words.iter_mut().for_each(|word| *word = without::<W>(*word));
    }
}

/// Exchanges between words: how many words apart, by how many bits, and which bits of the first.
const fn exchanges<const W: usize>() -> [Option<(usize, u32, u64)>; 3] {
    let bytes = (1, 8, 0x00ff_00ff_00ff_00ff);
    let pairs = (if W == 8 { 2 } else { 1 }, 16, 0x0000_ffff_0000_ffff);
    let halves = (if W == 2 { 1 } else { W / 2 }, 32, 0x0000_0000_ffff_ffff);
    match W {
        8 => [Some(bytes), Some(pairs), Some(halves)],
        4 => [None, Some(pairs), Some(halves)],
        _ => [None, None, Some(halves)],
    }
}

fn between<const W: usize>(words: &mut [u64; W], apart: usize, bits: u32, mask: u64) {
    for i in (0..W).filter(|i| i & apart == 0) {
        let moved = ((words[i] >> bits) ^ words[i + apart]) & mask;
        words[i + apart] ^= moved;
        words[i] ^= moved << bits;
    }
}

/// Within a word that holds several elements, bytes of the same plane are brought together.
fn within<const W: usize>(word: u64) -> u64 {
    let word = if W == 4 { word } else { exchange(word, 8, 0x0000_ff00_0000_ff00) };
    let word = exchange(word, 16, 0x0000_0000_ffff_0000);
    if W == 4 { exchange(word, 8, 0x0000_ff00_0000_ff00) } else { word }
}

fn without<const W: usize>(word: u64) -> u64 {
    let word = if W == 4 { exchange(word, 8, 0x0000_ff00_0000_ff00) } else { word };
    let word = exchange(word, 16, 0x0000_0000_ffff_0000);
    if W == 4 { word } else { exchange(word, 8, 0x0000_ff00_0000_ff00) }
}

/// Exchanges the bits under the mask with those `bits` further up.
fn exchange(word: u64, bits: u32, mask: u64) -> u64 {
    let moved = (word ^ (word >> bits)) & mask;
    word ^ moved ^ (moved << bits)
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
        for width in [2usize, 4, 8] {
            let raw: Vec<u8> = (0..21 * width + 1).map(|i| (i * 7 % 251) as u8).collect();
            split(width as u8, &raw, &mut out);
            for (i, byte) in raw[..21 * width].iter().enumerate() {
                assert_eq!(out[i % width * 21 + i / width], *byte, "width {width}, byte {i}");
            }
        }
    }

    #[test]
    fn planes_are_cut_where_they_differ() {
        let mut x = 1u64;
        let mut noise = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as u8
        };
        let count = 4096;
        let mut planes: Vec<u8> = (0..2 * count).map(|_| noise()).collect();
        // As frequent as in noise, but in order; and few values.
        planes.extend((0..count).map(|i| (i / 16) as u8));
        planes.extend((0..count).map(|_| noise() % 7));
        assert_eq!(parts(4, &planes), [2 * count, 3 * count, 4 * count]);
        planes.extend([1, 2, 3]);
        assert_eq!(parts(4, &planes), [2 * count, 3 * count, 4 * count + 3]);
        assert_eq!(parts(0, &planes), [planes.len()]);
        // Too short for codes of their own, and all of one kind.
        assert_eq!(parts(4, &planes[..4000]), [4000]);
        assert_eq!(parts(8, &[]), [0]);
        assert_eq!(parts(2, &vec![7; 10_000]), [10_000]);
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
