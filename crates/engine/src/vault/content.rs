//! What the bytes of a blob are, told without reading them: a hash over the hashes of their chunks.

use stdchk_object::hash::Domain;
use stdchk_object::tree::{Blob, Piece};
use stdchk_object::{Hash, Result};

use super::{LeafAt, Roots, Vault};

impl Vault {
    /// A hash of the chunks of a blob, their lengths, and the holes between them. Blobs of the same hash have the same bytes; the same bytes, cut
    /// otherwise, have another one.
    pub fn content_hash(&self, roots: &Roots, blob: &Blob) -> Result<Hash> {
        let mut hash = Domain::Content.hash(&blob.len.to_le_bytes());
        // Leaf by leaf, each with what was before it: so a blob may be of any length.
        self.walk(roots, blob, 0..blob.len, &mut |_, at, len| {
            let mut told = hash.as_bytes().to_vec();
            match at {
                LeafAt::Hole => tell_hole(&mut told, len),
                _ => {
                    for piece in self.leaf(roots, blob, &at, len)?.pieces {
                        self.tell_piece(&mut told, roots, &piece)?;
                    }
                }
            }
            hash = Domain::Content.hash(&told);
            Ok(())
        })?;
        Ok(hash)
    }

    fn tell_piece(&self, told: &mut Vec<u8>, roots: &Roots, piece: &Piece) -> Result<()> {
        let extent = match piece {
            Piece::Hole(len) => {
                tell_hole(told, *len);
                return Ok(());
            }
            Piece::Data(extent) => extent,
        };
        self.spans(roots, extent, |span| {
            let (run, mut skip, mut left) = (span.run(), span.skip, span.len);
            let hashes = self.hashes(&span.open)?;
            for chunk in span.from..span.to {
                let len = u64::from(run.chunk_len(chunk) - skip).min(left);
                told.push(1);
                told.extend(skip.to_le_bytes());
                told.extend(len.to_le_bytes());
                told.extend(hashes[chunk as usize].as_bytes());
                left -= len;
                skip = 0;
            }
            Ok(())
        })
    }
}

fn tell_hole(told: &mut Vec<u8>, len: u64) {
    told.push(0);
    told.extend(len.to_le_bytes());
}
