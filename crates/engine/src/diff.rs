//! Comparing two blobs by what is stored of them, without reading their bytes.

use stdchk_object::tree::{Blob, Extent, Piece};
use stdchk_object::{Hash, Result};

use crate::vault::{Roots, Vault};

/// A range of bytes that differ, or that lie beyond the end of the shorter blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffRange {
    /// Where it begins.
    pub start: u64,
    /// One past its end.
    pub end: u64,
}

/// What a stretch of a blob is: equal tokens mean equal bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Zero,
    /// A chunk, and how far into it the stretch begins.
    Chunk(Hash, u32),
}

/// The stretches of one leaf: lengths and what they are.
fn stretches(vault: &Vault, roots: &Roots, pieces: &[Piece]) -> Result<Vec<(u64, Token)>> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Hole(len) => out.push((*len, Token::Zero)),
            Piece::Data(extent) => chunks(vault, roots, extent, &mut out)?,
        }
    }
    Ok(out)
}

fn chunks(vault: &Vault, roots: &Roots, extent: &Extent, out: &mut Vec<(u64, Token)>) -> Result<()> {
    vault.spans(roots, extent, |span| {
        let run = &span.open.footer.runs()[span.run];
        let hashes = vault.hashes(&span.open)?;
        let (mut skip, mut left) = (span.skip, span.len);
        for chunk in span.from..span.to {
            let len = u64::from(run.chunk_len(chunk) - skip).min(left);
            out.push((len, Token::Chunk(hashes[chunk as usize], skip)));
            left -= len;
            skip = 0;
        }
        Ok(())
    })
}

/// The ranges in which two blobs differ, ascending and not touching. Where they were cut into chunks in
/// different ways, a range may be reported whole that differs only in part.
pub fn diff_blobs(
    vault: &Vault,
    (roots_a, a): (&Roots, &Blob),
    (roots_b, b): (&Roots, &Blob),
) -> Result<Vec<DiffRange>> {
    let mut ranges: Vec<DiffRange> = Vec::new();
    let mut differs = |start: u64, end: u64| match ranges.last_mut() {
        _ if start >= end => {}
        Some(last) if last.end >= start => last.end = end.max(last.end),
        _ => ranges.push(DiffRange { start, end }),
    };
    let common = a.len.min(b.len);
    // Leaves may have different sizes; the larger one of either is compared at a time.
    let step = a.leaf_bytes().max(b.leaf_bytes());
    let mut start = 0;
    while start < common {
        let end = (start + step).min(common);
        let (left, same_a) = section(vault, roots_a, a, start..end)?;
        let (right, same_b) = section(vault, roots_b, b, start..end)?;
        if !(same_a.is_some() && same_a == same_b && a.leaf_shift == b.leaf_shift) {
            let left = stretches(vault, roots_a, &left)?;
            let right = stretches(vault, roots_b, &right)?;
            compare(&left, &right, start, end, &mut differs);
        }
        start = end;
    }
    differs(common, a.len.max(b.len));
    Ok(ranges)
}

/// The pieces of a blob in a range that is aligned to its leaves; and, where it is one leaf, which.
fn section(
    vault: &Vault,
    roots: &Roots,
    blob: &Blob,
    range: std::ops::Range<u64>,
) -> Result<(Vec<Piece>, Option<crate::vault::LeafAt>)> {
    let mut pieces = Vec::new();
    let mut only = None;
    let mut count = 0;
    vault.walk(roots, blob, range.clone(), &mut |start, at, len| {
        let (from, to) = (range.start.max(start), (start + len).min(range.end.max(start)));
        match at {
            crate::vault::LeafAt::Hole => pieces.push(Piece::Hole(to - from)),
            _ => pieces.extend(vault.leaf(roots, blob, &at, len)?.pieces),
        }
        only = Some(at);
        count += 1;
        Ok(())
    })?;
    Ok((pieces, only.filter(|_| count == 1)))
}

fn compare(
    left: &[(u64, Token)],
    right: &[(u64, Token)],
    start: u64,
    end: u64,
    differs: &mut impl FnMut(u64, u64),
) {
    // Stretches that begin and end together are compared; others differ as far as they overlap.
    let (mut i, mut j) = (0, 0);
    let (mut at_i, mut at_j) = (start, start);
    while let (Some(&(len_i, token_i)), Some(&(len_j, token_j))) = (left.get(i), right.get(j)) {
        let (end_i, end_j) = (at_i + len_i, at_j + len_j);
        let stop = end_i.min(end_j);
        let both_zero = token_i == Token::Zero && token_j == Token::Zero;
        let same = both_zero || (at_i == at_j && token_i == token_j && len_i == len_j);
        if !same {
            differs(at_i.max(at_j), stop.min(end));
        }
        if end_i == stop {
            (i, at_i) = (i + 1, end_i);
        }
        if end_j == stop {
            (j, at_j) = (j + 1, end_j);
        }
    }
}
