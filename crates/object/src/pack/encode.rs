//! Making the footer and trailer of a pack.

use super::footer::{BaseSlot, Lengths};
use super::{
    BaseSpan, CHUNK_BYTES_MAX, ChunkKind, Coding, Footer, HASH_BYTES, HEADER_BYTES, MAGIC_END,
    PACK_BYTES_MAX, RUN_BYTES_MAX, Run, TRAILER_BYTES, VERSION, header,
};
use crate::hash::{Domain, plain};
use crate::wire::Writer;
use crate::{Hash, PackName, PackRef};

/// Collects the runs of a pack in the order in which they are written.
pub struct FooterBuilder {
    name: PackName,
    bases: Vec<PackRef>,
    runs: Vec<Run>,
    hashes: Vec<Hash>,
    offset: u64,
}

/// A finished pack's end: what to write after the runs, and what others need to know.
pub struct SealedFooter {
    /// Hashes, footer and trailer, to be written after the last run.
    pub bytes: Vec<u8>,
    /// How to refer to the pack.
    pub pack: PackRef,
    /// The table itself.
    pub footer: Footer,
}

impl FooterBuilder {
    /// A pack of that name, still empty.
    pub fn new(name: PackName) -> FooterBuilder {
        FooterBuilder {
            name,
            bases: Vec::new(),
            runs: Vec::new(),
            hashes: Vec::new(),
            offset: HEADER_BYTES as u64,
        }
    }

    /// How many chunks were added.
    pub fn chunk_count(&self) -> u32 {
        self.hashes.len() as u32
    }

    /// Adds a run of `chunks` (length and hash of each) that is stored in `stored` bytes. If it is a delta, `base` says to
    /// what, for all chunks.
    ///
    /// # Panics
    /// If a limit of the format is broken; the engine cuts its runs far below them.
    pub fn push(
        &mut self,
        kind: ChunkKind,
        coding: Coding,
        stored: &[&[u8]],
        chunks: &[(u32, Hash)],
        base: &[BaseSpan],
    ) {
        let stored_len: usize = stored.iter().map(|piece| piece.len()).sum();
        let raw_len: usize = chunks.iter().map(|&(length, _)| length as usize).sum();
        assert!(!chunks.is_empty() && raw_len <= RUN_BYTES_MAX && stored_len <= raw_len);
        assert!(chunks.iter().all(|&(length, _)| length > 0 && length as usize <= CHUNK_BYTES_MAX));
        assert!(!coding.is_none() || stored_len == raw_len);
        let covered: usize = base.iter().map(|span| span.count as usize).sum();
        assert_eq!(covered, if coding.delta { chunks.len() } else { 0 });
        let base = base.iter().map(|span| self.slot_of(span)).collect();
        let stored_hash = (!coding.is_none()).then(|| Domain::StoredRun.hash_pieces(stored).half());
        self.runs.push(Run {
            kind,
            coding,
            offset: self.offset,
            stored_len: stored_len as u32,
            raw_len: raw_len as u32,
            first_chunk: self.hashes.len() as u32,
            chunk_count: chunks.len() as u32,
            stored_hash,
            lengths: Lengths::of(chunks),
            base,
        });
        self.hashes.extend(chunks.iter().map(|&(_, hash)| hash));
        self.offset += stored_len as u64;
        assert!(self.offset <= PACK_BYTES_MAX);
    }

    fn slot_of(&mut self, span: &BaseSpan) -> BaseSlot {
        let Some((pack, first)) = span.at else { return BaseSlot { slot: 0, first: 0, count: span.count } };
        let known = self.bases.iter().rposition(|known| *known == pack);
        let slot = known.unwrap_or_else(|| {
            self.bases.push(pack);
            self.bases.len() - 1
        });
        BaseSlot { slot: slot as u32 + 1, first, count: span.count }
    }

    /// Seals the pack.
    pub fn seal(self) -> SealedFooter {
        let mut bytes: Vec<u8> = Vec::with_capacity(self.hashes.len() * HASH_BYTES);
        self.hashes.iter().for_each(|hash| bytes.extend_from_slice(hash.as_bytes()));
        let footer = Footer { bases: self.bases, runs: self.runs, seal: plain(&bytes) };
        let (end, pack) = seal_at(self.name, self.offset, bytes.len() as u32, &encode_footer(&footer));
        bytes.extend_from_slice(&end);
        SealedFooter { bytes, pack, footer }
    }

    /// The end of a pack with footer bytes of any kind, whose root fits them, behind `hashes_len` bytes of hashes at `offset`: for tests of what lies
    /// behind the root. And the length of the whole.
    pub fn reseal(name: PackName, offset: u64, hashes_len: u32, footer: &[u8]) -> (Vec<u8>, u64) {
        let (end, pack) = seal_at(name, offset, hashes_len, footer);
        (end, pack.length)
    }
}

/// The end of a pack whose hashes begin at `offset`: its footer, and the trailer.
fn seal_at(name: PackName, offset: u64, hashes_len: u32, footer: &[u8]) -> (Vec<u8>, PackRef) {
    let mut tail = Writer::new();
    tail.u64(offset);
    tail.u32(hashes_len);
    tail.u32(footer.len() as u32);
    tail.u16(VERSION);
    tail.raw(&[0; 6]);
    tail.raw(MAGIC_END);
    let tail = tail.into_bytes();
    let root = root(name, footer, &tail);
    let length = offset + u64::from(hashes_len) + (footer.len() + TRAILER_BYTES) as u64;
    ([footer, root.as_bytes(), &tail].concat(), PackRef { name, root, length })
}

/// The root of a pack: everything but the hashes, which the footer's seal covers, and the runs, which these cover.
pub(super) fn root(name: PackName, footer: &[u8], tail: &[u8]) -> Hash {
    Domain::PackRoot.hash_pieces(&[&header(name), plain(footer).as_bytes(), tail])
}

impl Lengths {
    fn of(chunks: &[(u32, Hash)]) -> Lengths {
        let (first, last) = (chunks[0].0, chunks[chunks.len() - 1].0);
        if chunks[..chunks.len() - 1].iter().all(|&(length, _)| length == first) {
            return Lengths::Uniform(first, last);
        }
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        let mut at = 0;
        starts.push(at);
        for &(length, _) in chunks {
            at += length;
            starts.push(at);
        }
        Lengths::Listed(starts)
    }
}

fn encode_footer(footer: &Footer) -> Vec<u8> {
    let mut out = Writer::new();
    out.raw(footer.seal.as_bytes());
    out.varint(footer.bases.len() as u64);
    footer.bases.iter().for_each(|pack| pack.encode(&mut out));
    out.varint(footer.runs.len() as u64);
    for run in &footer.runs {
        out.u8(run.kind as u8);
        out.raw(&run.coding.encode());
        out.varint(u64::from(run.stored_len));
        out.varint(u64::from(run.chunk_count));
        match &run.lengths {
            Lengths::Uniform(each, last) => {
                out.varint(u64::from(*each));
                out.varint(u64::from(*last));
            }
            Lengths::Listed(starts) => {
                out.varint(0);
                starts.windows(2).for_each(|pair| out.varint(u64::from(pair[1] - pair[0])));
            }
        }
        if let Some(hash) = &run.stored_hash {
            out.raw(hash);
        }
        for base in &run.base {
            out.varint(u64::from(base.slot));
            out.varint(u64::from(base.count));
            if base.slot > 0 {
                out.varint(u64::from(base.first));
            }
        }
    }
    out.into_bytes()
}
