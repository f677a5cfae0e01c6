//! Reading the end of a pack: trailer, then footer, checked against the reference.

use super::encode::root;
use super::footer::{BaseSlot, Lengths};
use super::{
    CHUNK_BYTES_MAX, ChunkKind, Coding, FOOTER_BYTES_MAX, Footer, HASH_BYTES, HEADER_BYTES, MAGIC_END,
    PACK_BYTES_MAX, RUN_BYTES_MAX, Run, TRAILER_BYTES, VERSION,
};
use crate::wire::Reader;
use crate::{Error, Hash, Kind, PackName, PackRef, Result};

/// The last bytes of a pack, checked for shape only.
#[derive(Clone, Copy, Debug)]
pub struct Trailer {
    /// The root that the pack claims.
    pub root: Hash,
    /// Where the hashes begin, which is where the runs end.
    pub hashes_offset: u64,
    /// Bytes of all hashes.
    pub hashes_len: u32,
    /// The footer's length.
    pub footer_len: u32,
}

impl Trailer {
    /// Reads the trailer of a pack that is `length` bytes long.
    pub fn decode(name: PackName, length: u64, bytes: &[u8]) -> Result<Trailer> {
        let bad = |why: &str| Error::corrupt(format!("pack {name}: {why}"));
        let mut reader = Reader::new(bytes, "pack trailer");
        let root = Hash(reader.array()?);
        let hashes_offset = reader.u64()?;
        let (hashes_len, footer_len) = (reader.u32()?, reader.u32()?);
        let version = reader.u16()?;
        let zero: [u8; 6] = reader.array()?;
        if reader.raw(8)? != MAGIC_END {
            return Err(bad("it has no end; it was not sealed, or is cut short"));
        }
        reader.finish()?;
        if version != VERSION {
            let text = format!("pack {name} has version {version}; this program knows {VERSION}");
            return Err(Error::new(Kind::Unsupported, text));
        }
        let footer_bytes = u64::from(hashes_len) + u64::from(footer_len);
        let end = hashes_offset.checked_add(footer_bytes + TRAILER_BYTES as u64);
        let sound = zero == [0; 6]
            && length <= PACK_BYTES_MAX + FOOTER_BYTES_MAX as u64
            && hashes_offset >= HEADER_BYTES as u64
            && footer_bytes <= FOOTER_BYTES_MAX as u64
            && end == Some(length);
        if !sound {
            return Err(bad("its trailer contradicts itself"));
        }
        Ok(Trailer { root, hashes_offset, hashes_len, footer_len })
    }

    /// Bytes of the footer and the trailer.
    pub fn end_len(&self) -> usize {
        self.footer_len as usize + TRAILER_BYTES
    }
}

/// How many bytes at the end of a pack of `length` to read first: mostly enough for the whole footer and the hashes, which are 32 bytes for each of the
/// pack's pages, and these are 4 KiB or more.
pub fn tail_length(length: u64) -> u64 {
    length.min(144 << 10)
}

/// The same by those who need no hashes.
pub fn footer_length(length: u64) -> u64 {
    length.min(8 << 10)
}

/// Opens the footer of a pack that is referred to: the root must be the one of the reference.
///
/// `end` is the footer and trailer: the last [`Trailer::end_len`] bytes of the pack.
pub fn open_footer(pack: &PackRef, end: &[u8]) -> Result<Footer> {
    let (opened, footer) = open_footer_unreferenced(pack.name, pack.length, end)?;
    if opened.root != pack.root {
        let text = format!("pack {}: it is not the pack that was referred to (its root differs)", pack.name);
        return Err(Error::corrupt(text));
    }
    Ok(footer)
}

/// Opens the footer of a pack found by name only. Its own root must match; the reference to it is returned.
pub fn open_footer_unreferenced(name: PackName, length: u64, end: &[u8]) -> Result<(PackRef, Footer)> {
    let bad = |why: &str| Error::corrupt(format!("pack {name}: {why}"));
    if end.len() < TRAILER_BYTES {
        return Err(bad("it is too short to be a pack"));
    }
    let (body, trailer_bytes) = end.split_at(end.len() - TRAILER_BYTES);
    let trailer = Trailer::decode(name, length, trailer_bytes)?;
    if body.len() != trailer.footer_len as usize {
        return Err(bad("the footer that was read has another length"));
    }
    if root(name, body, &trailer_bytes[HASH_BYTES..]) != trailer.root {
        return Err(bad("its footer does not match its root"));
    }
    let footer = decode_footer(body, trailer.hashes_len as usize)?;
    if footer.hashes_range().start != trailer.hashes_offset {
        return Err(bad("its runs do not fill it"));
    }
    Ok((PackRef { name, root: trailer.root, length }, footer))
}

/// A footer of a pack that has so many bytes of hashes.
fn decode_footer(bytes: &[u8], hashes_len: usize) -> Result<Footer> {
    let mut reader = Reader::new(bytes, "pack footer");
    let seal = Hash(reader.array()?);
    let base_count = reader.count(PackRef::BYTES_MIN)?;
    let bases = (0..base_count).map(|_| PackRef::decode(&mut reader)).collect::<Result<Vec<PackRef>>>()?;
    let run_count = reader.count(6)?;
    let mut runs = Vec::with_capacity(run_count);
    let (mut offset, mut first_chunk) = (HEADER_BYTES as u64, 0u32);
    for _ in 0..run_count {
        // Every chunk has a hash, so these bound how many there can be.
        let most = hashes_len / HASH_BYTES - first_chunk as usize;
        let run = decode_run(&mut reader, offset, first_chunk, bases.len(), most)?;
        offset += u64::from(run.stored_len);
        first_chunk = run.end_chunk();
        runs.push(run);
    }
    if hashes_len != first_chunk as usize * HASH_BYTES {
        return Err(reader.corrupt("the number of hashes is not the number of chunks"));
    }
    reader.finish()?;
    Ok(Footer { bases, runs, seal })
}

fn decode_run(
    reader: &mut Reader,
    offset: u64,
    first_chunk: u32,
    bases: usize,
    chunks_max: usize,
) -> Result<Run> {
    let kind = ChunkKind::decode(reader.u8()?).ok_or_else(|| reader.corrupt("unknown kind of run"))?;
    let (codec, planes) = (reader.u8()?, reader.u8()?);
    let coding = Coding::decode(codec, planes).ok_or_else(|| reader.corrupt("unknown codec or filter"))?;
    let stored_len = reader.bounded(RUN_BYTES_MAX as u64, "a stored length")? as u32;
    let chunk_count = reader.bounded(chunks_max as u64, "a number of chunks")? as usize;
    if chunk_count == 0 {
        return Err(reader.corrupt("a run without chunks"));
    }
    let (lengths, raw_len) = decode_lengths(reader, chunk_count)?;
    if stored_len > raw_len || (coding.is_none() && stored_len != raw_len) {
        return Err(reader.corrupt("a run is stored in more bytes than it has"));
    }
    let stored_hash = if coding.is_none() { None } else { Some(reader.array()?) };
    let chunk_count = chunk_count as u32;
    let base = if coding.delta { decode_base(reader, chunk_count, bases)? } else { Vec::new() };
    if coding.delta && kind != ChunkKind::Data {
        return Err(reader.corrupt("a delta of what is no data"));
    }
    Ok(Run {
        kind,
        coding,
        offset,
        stored_len,
        raw_len,
        first_chunk,
        chunk_count,
        stored_hash,
        lengths,
        base,
    })
}

/// The bases of all chunks of a delta, in order.
fn decode_base(reader: &mut Reader, chunk_count: u32, bases: usize) -> Result<Vec<BaseSlot>> {
    let mut slots = Vec::new();
    let mut left = chunk_count;
    while left > 0 {
        let slot = reader.bounded(bases as u64, "a base")? as u32;
        let count = reader.bounded(u64::from(left), "a number of chunks")? as u32;
        let first = if slot > 0 { reader.varint32("a chunk index")? } else { 0 };
        if count == 0 || first.checked_add(count).is_none() {
            return Err(reader.corrupt("a base without chunks"));
        }
        slots.push(BaseSlot { slot, first, count });
        left -= count;
    }
    Ok(slots)
}

fn decode_lengths(reader: &mut Reader, chunk_count: usize) -> Result<(Lengths, u32)> {
    let chunk_max = CHUNK_BYTES_MAX as u64;
    let length = |reader: &mut Reader| match reader.bounded(chunk_max, "a chunk's length")? {
        0 => Err(reader.corrupt("an empty chunk")),
        length => Ok(length),
    };
    let each = reader.bounded(chunk_max, "a chunk's length")?;
    if each > 0 {
        let last = length(reader)?;
        let raw = each.saturating_mul(chunk_count as u64 - 1).saturating_add(last);
        check_raw(reader, raw)?;
        return Ok((Lengths::Uniform(each as u32, last as u32), raw as u32));
    }
    let mut starts = Vec::with_capacity(chunk_count.min(reader.remaining()) + 1);
    let mut at = 0u64;
    starts.push(0);
    for _ in 0..chunk_count {
        at += length(reader)?;
        check_raw(reader, at)?;
        starts.push(at as u32);
    }
    Ok((Lengths::Listed(starts), at as u32))
}

fn check_raw(reader: &Reader, raw: u64) -> Result<()> {
    if raw > RUN_BYTES_MAX as u64 { Err(reader.corrupt("a run is too long")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use crate::hash::Domain;
    use crate::pack::{BaseSpan, Codec, FooterBuilder};

    /// The hashes of a pack, its end, and what both should be.
    fn sample() -> (Vec<u8>, Vec<u8>, PackRef, Footer) {
        let name = PackName { session: SessionId(1), writer: 2, number: 3 };
        let mut builder = FooterBuilder::new(name);
        let data = vec![7u8; 5000];
        let chunk = |a: usize, b: usize| ((b - a) as u32, Domain::Data.hash(&data[a..b]));
        builder.push(ChunkKind::Data, Coding::NONE, &[&data], &[chunk(0, 4096), chunk(4096, 5000)], &[]);
        let coding = Coding::new(Codec::Zstd, 4);
        let chunks = [chunk(0, 10), chunk(10, 15), chunk(15, 40)];
        builder.push(ChunkKind::Node, coding, &[b"xyz"], &chunks, &[]);
        let other = |number| PackRef { name: PackName { number, ..name }, root: Hash([9; 32]), length: 300 };
        let base = [
            BaseSpan { at: Some((other(7), 40)), count: 1 },
            BaseSpan { at: None, count: 1 },
            BaseSpan { at: Some((other(8), 2)), count: 1 },
        ];
        builder.push(ChunkKind::Data, coding.of_delta(), &[b"uvw"], &chunks, &base);
        let mut sealed = builder.seal();
        let end = sealed.bytes.split_off(8 * HASH_BYTES);
        (sealed.bytes, end, sealed.pack, sealed.footer)
    }

    #[test]
    fn a_footer_comes_back() {
        let (hashes, end, pack, footer) = sample();
        let opened = open_footer(&pack, &end).unwrap();
        assert_eq!(opened, footer);
        let trailer = Trailer::decode(pack.name, pack.length, &end[end.len() - TRAILER_BYTES..]).unwrap();
        assert_eq!(trailer.end_len(), end.len());
        assert_eq!(opened.hashes_range(), trailer.hashes_offset..trailer.hashes_offset + hashes.len() as u64);
        assert_eq!(opened.open_hashes(&hashes).unwrap()[3], Domain::Data.hash(&[7; 5]));
        assert_eq!(opened.chunk_count(), 8);
        assert_eq!(opened.bases().len(), 2);
        let base = |chunk| opened.base_of_chunk(chunk).map(|(pack, at)| (pack.name.number, at));
        assert_eq!([base(5), base(6), base(7), base(3)], [Some((7, 40)), None, Some((8, 2)), None]);
        let run = opened.run_of(3).unwrap();
        assert_eq!((run.chunk_start(3), run.chunk_len(3), run.chunk_len(4)), (10, 5, 25));
        assert_eq!(opened.run_of(1).unwrap().chunk_len(1), 904);
        assert!(opened.run_of(8).is_none());
        // Chunks of one length but for the last, and of lengths of their own: 10, 5 and 25 bytes.
        let first = opened.run_of(0).unwrap();
        assert_eq!(
            [1, 4096, 4097, 9999].map(|bytes| first.chunks_for(0, 2, bytes)),
            [(1, 4096), (1, 4096), (2, 5000), (2, 5000)]
        );
        assert_eq!([10, 11, 15, 16].map(|bytes| run.chunks_for(2, 5, bytes).0), [3, 4, 4, 5]);
        assert_eq!([run.chunks_for(3, 4, 99), run.chunks_for(3, 3, 1)], [(4, 5), (3, 0)]);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (hashes, end, pack, footer) = sample();
        for bit in 0..end.len() * 8 {
            let mut torn = end.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(open_footer(&pack, &torn).is_err(), "bit {bit}");
        }
        let mut other = pack;
        other.root.0[0] ^= 1;
        assert!(open_footer(&other, &end).is_err());
        for cut in 0..end.len() {
            assert!(open_footer(&pack, &end[cut + 1..]).is_err());
        }
        for bit in 0..hashes.len() * 8 {
            let mut torn = hashes.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(footer.open_hashes(&torn).is_none(), "bit {bit}");
        }
        assert!(footer.open_hashes(&hashes[32..]).is_none() && footer.open_hashes(&[]).is_none());
    }

    #[test]
    fn claims_do_not_allocate() {
        let footer = |hashes, rest: &[u8]| decode_footer(&[&[0; 32], rest].concat(), hashes * HASH_BYTES);
        // A run that claims four billion chunks, in a footer of a few bytes; and more chunks than there are hashes.
        let claim = [0, 1, 1, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(footer(1, &claim).is_err());
        assert!(footer(1, &[0, 1, 1, 0, 0, 10, 2, 5, 5]).is_err());
        assert!(footer(2, &[0, 1, 1, 0, 0, 10, 2, 5, 5]).is_ok());
        assert!(footer(3, &[0, 1, 1, 0, 0, 10, 2, 5, 5]).is_err());
        // Lengths one by one that are not there, of as many chunks as a footer may have.
        assert!(footer(1 << 20, &[0, 1, 1, 0, 0, 10, 0x80, 0x80, 0x40, 0, 1]).is_err());
        // As many bases, and a delta whose bases never end.
        assert!(footer(0, &claim[6..]).is_err());
        let mut bytes = vec![0, 1, 1, 2, 0x84, 1, 1, 0, 5, 1];
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&[0; 40]);
        assert!(footer(1, &bytes).is_err());
    }
}
