//! Checking all of a pack by what it says of itself: for those who get one from somebody whom they need not trust.

use super::{HEADER_BYTES, Run, TRAILER_BYTES, Trailer, check_header, open_footer_unreferenced};
use crate::hash::Domain;
use crate::{Error, Hash, PackName, Result};

/// Whether every byte of a pack is covered by a hash that leads to its root, and fits it. Which root is the right one only those know
/// who refer to it.
pub fn check_whole(name: PackName, bytes: &[u8]) -> Result<()> {
    let bad = |why: &str| Error::corrupt(format!("pack {name}: {why}"));
    if bytes.len() < HEADER_BYTES + TRAILER_BYTES {
        return Err(bad("it is too short to be a pack"));
    }
    check_header(name, &bytes[..HEADER_BYTES])?;
    let trailer = Trailer::decode(name, bytes.len() as u64, &bytes[bytes.len() - TRAILER_BYTES..])?;
    // The trailer's own lengths were found to fit together and the pack.
    let (runs, end) = bytes.split_at(trailer.hashes_offset as usize);
    let (hashes, end) = end.split_at(trailer.hashes_len as usize);
    let (_, footer) = open_footer_unreferenced(name, bytes.len() as u64, end)?;
    let hashes = footer.open_hashes(hashes).ok_or_else(|| bad("its hashes are damaged"))?;
    match footer.runs().iter().position(|run| !is_sound(run, &hashes, runs)) {
        None => Ok(()),
        Some(run) => Err(bad(&format!("run {run} is damaged"))),
    }
}

fn is_sound(run: &Run, hashes: &[Hash], bytes: &[u8]) -> bool {
    let start = run.offset as usize;
    let Some(stored) = bytes.get(start..start + run.stored_len as usize) else { return false };
    if let Some(hash) = run.stored_hash {
        return Domain::StoredRun.hash(stored).half() == hash;
    }
    let mut rest = stored;
    let pieces = (run.first_chunk..run.end_chunk()).map(|chunk| {
        let (piece, after) = rest.split_at(run.chunk_len(chunk) as usize);
        rest = after;
        piece
    });
    let (mut chunk, mut all_fit) = (run.first_chunk, true);
    run.kind.domain().hash_each(pieces, |hash| {
        all_fit &= hashes.get(chunk as usize) == Some(&hash);
        chunk += 1;
    });
    all_fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use crate::pack::{ChunkKind, Codec, Coding, FooterBuilder, header};

    #[test]
    fn every_byte_is_looked_at() {
        let name = PackName { session: SessionId(1), writer: 2, number: 3 };
        let (plain, coded) = ([1u8; 600], [2u8; 90]);
        let chunks = plain.chunks(256).map(|chunk| (chunk.len() as u32, Domain::Data.hash(chunk)));
        let mut builder = FooterBuilder::new(name);
        builder.push(ChunkKind::Data, Coding::NONE, &[&plain], &chunks.collect::<Vec<_>>(), &[]);
        let coding = Coding::new(Codec::Zstd, 0);
        builder.push(ChunkKind::Node, coding, &[&coded], &[(400, Domain::Node.hash(b"whatever"))], &[]);
        let whole = [&header(name)[..], &plain, &coded, &builder.seal().bytes].concat();
        check_whole(name, &whole).unwrap();
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            assert!(check_whole(name, &torn).is_err(), "byte {at}");
            assert!(check_whole(name, &whole[..at]).is_err());
        }
        assert!(check_whole(PackName { number: 4, ..name }, &whole).is_err());
    }
}
