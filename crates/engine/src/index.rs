//! The fingerprint index: in which packs to look for a chunk. A cache, and nothing but a cache.
//!
//! It is sampled: one chunk in sixteen is listed, and the first of each member. A hit brings the footer of a
//! whole pack, and with it the neighbours, which is where the next hits are. So the index takes less than a byte
//! for each chunk, a lookup reads one bucket, and a save of a small change never reads the whole.
//!
//! Nothing is believed: a hit is opened, checked against its own root, against what is condemned and what is
//! damaged, and its hashes are compared in full. Segments may vanish or be rubbish at any time.
//!
//! A segment: `STDCHKIX`, u16 version 1, u8 bits, u8 0, u32 entries, u32 packs, u32 0; then `2^bits + 1` u32: where
//! each bucket begins; entries of u64 fingerprint and u32 pack, by fingerprint; 16 bytes for each pack: its name; 32 bytes: the hash of all that under the envelope context, for `verify`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use stdchk_object::envelope::is_sealed;
use stdchk_object::hash::Domain;
use stdchk_object::{Error, Hash, Kind, PackName, Result};
use stdchk_store::Objects;

const MAGIC: &[u8; 8] = b"STDCHKIX";
const HEAD_BYTES: usize = 24;
const ENTRY_BYTES: usize = 12;
/// Small segments beyond which they are merged into one.
const SEGMENTS_MAX: usize = 8;
/// A segment that is no longer small.
const SMALL_ENTRIES: usize = 256 << 10;
/// Entries that a merged segment may have; beyond, every other one is forgotten.
const ENTRIES_MAX: usize = 16 << 20;
/// Entries of a bucket, on average.
const BUCKET_ENTRIES: usize = 64;

/// Whether a chunk is one of those that are listed.
pub fn is_sampled(hash: &Hash) -> bool {
    hash.0[8] & 0x0f == 0
}

/// Collects what a session has to list.
#[derive(Default)]
pub struct IndexBuilder {
    packs: Vec<PackName>,
    entries: Vec<(u64, u32)>,
}

impl IndexBuilder {
    /// Lists a chunk.
    pub fn add(&mut self, hash: &Hash, pack: PackName) {
        if self.packs.last() != Some(&pack) {
            self.packs.push(pack);
        }
        self.entries.push((hash.prefix(), self.packs.len() as u32 - 1));
    }

    fn encode(mut self) -> Vec<u8> {
        self.entries.sort_unstable();
        self.entries.dedup();
        let buckets = (self.entries.len() / BUCKET_ENTRIES).max(1).next_power_of_two();
        let bits = buckets.trailing_zeros();
        let mut out = Vec::with_capacity(HEAD_BYTES + buckets * 4 + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[1, 0, bits as u8, 0]);
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.packs.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let mut at = 0;
        for bucket in 0..=buckets {
            while at < self.entries.len() && bucket_of(self.entries[at].0, bits) < bucket {
                at += 1;
            }
            out.extend_from_slice(&(at as u32).to_le_bytes());
        }
        for (fingerprint, pack) in &self.entries {
            out.extend_from_slice(&fingerprint.to_le_bytes());
            out.extend_from_slice(&pack.to_le_bytes());
        }
        self.packs.iter().for_each(|pack| out.extend_from_slice(&pack.to_bytes()));
        let hash = Domain::Envelope.hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }
}

fn bucket_of(fingerprint: u64, bits: u32) -> usize {
    if bits == 0 { 0 } else { (fingerprint >> (64 - bits)) as usize }
}

/// The head of a segment whose shape was checked.
struct Segment {
    name: String,
    bits: u32,
    entries: usize,
    packs: usize,
    starts: Vec<u32>,
}

impl Segment {
    fn open(objects: &dyn Objects, name: &str) -> Result<Option<Segment>> {
        let name = format!("index/{name}");
        let Some(head) = objects.get_range(&name, 0, HEAD_BYTES)? else { return Ok(None) };
        if head.len() < HEAD_BYTES || &head[..8] != MAGIC || head[8..10] != [1, 0] || head[10] > 24 {
            return Ok(None);
        }
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes")) as usize;
        let (bits, entries, packs) = (u32::from(head[10]), number(12), number(16));
        if entries > 2 * ENTRIES_MAX || packs > entries {
            return Ok(None);
        }
        let table_len = ((1usize << bits) + 1) * 4;
        let Some(table) = objects.get_range(&name, HEAD_BYTES as u64, table_len)? else { return Ok(None) };
        let starts: Vec<u32> =
            table.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes"))).collect();
        let sound = starts.len() == (1 << bits) + 1
            && starts.windows(2).all(|pair| pair[0] <= pair[1])
            && starts[1 << bits] as usize == entries;
        Ok(sound.then_some(Segment { name, bits, entries, packs, starts }))
    }

    fn entries_offset(&self) -> u64 {
        (HEAD_BYTES + self.starts.len() * 4) as u64
    }

    fn entries(&self, objects: &dyn Objects, from: usize, to: usize) -> Result<Vec<(u64, u32)>> {
        let offset = self.entries_offset() + (from * ENTRY_BYTES) as u64;
        let bytes = objects.get_range(&self.name, offset, (to - from) * ENTRY_BYTES)?.unwrap_or_default();
        let entry = |bytes: &[u8]| {
            let fingerprint = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            (fingerprint, u32::from_le_bytes(bytes[8..].try_into().expect("4 bytes")))
        };
        Ok(bytes.chunks_exact(ENTRY_BYTES).map(entry).collect())
    }

    fn packs(&self, objects: &dyn Objects, from: usize, to: usize) -> Result<Vec<PackName>> {
        let offset = self.entries_offset() + (self.entries * ENTRY_BYTES + from * PackName::BYTES) as u64;
        let bytes = objects.get_range(&self.name, offset, (to - from) * PackName::BYTES)?.unwrap_or_default();
        let names = bytes.chunks_exact(PackName::BYTES);
        Ok(names.map(|name| PackName::from_bytes(name.try_into().expect("16 bytes"))).collect())
    }

    fn find(&self, objects: &dyn Objects, fingerprint: u64, found: &mut BTreeSet<PackName>) -> Result<()> {
        let bucket = bucket_of(fingerprint, self.bits);
        let (from, to) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        // A fair bucket is small; a huge one was made by somebody else's rubbish.
        if from == to || to - from > 64 * BUCKET_ENTRIES {
            return Ok(());
        }
        for (_, pack) in self.entries(objects, from, to)?.into_iter().filter(|entry| entry.0 == fingerprint) {
            if (pack as usize) < self.packs {
                found.extend(self.packs(objects, pack as usize, pack as usize + 1)?);
            }
        }
        Ok(())
    }
}

/// The segments of a repository.
pub struct Index {
    objects: Arc<dyn Objects>,
    segments: Vec<Segment>,
}

impl Index {
    /// Opens what is there.
    pub fn open(objects: Arc<dyn Objects>) -> Result<Index> {
        let mut segments = Vec::new();
        for name in objects.names("index")? {
            segments.extend(Segment::open(&*objects, &name)?);
        }
        Ok(Index { objects, segments })
    }

    /// Packs that may hold a chunk.
    pub fn find(&self, hash: &Hash) -> Result<BTreeSet<PackName>> {
        let mut found = BTreeSet::new();
        for segment in &self.segments {
            segment.find(&*self.objects, hash.prefix(), &mut found)?;
        }
        Ok(found)
    }

    /// How many chunks are listed.
    pub fn entry_count(&self) -> usize {
        self.segments.iter().map(|segment| segment.entries).sum()
    }

    /// Lists what a session has written. Merges the segments when there are many.
    pub fn publish(self, builder: IndexBuilder) -> Result<()> {
        if builder.entries.is_empty() {
            return Ok(());
        }
        self.objects.replace(&format!("index/{}", new_name()?), &builder.encode(), false)?;
        if self.segments.iter().filter(|segment| segment.entries <= SMALL_ENTRIES).count() < SEGMENTS_MAX {
            return Ok(());
        }
        let mut index = Index::open(self.objects)?;
        // Large segments are left to the garbage collection: a save must not pay for the size of the repository.
        index.segments.retain(|segment| segment.entries <= SMALL_ENTRIES);
        if index.segments.len() <= SEGMENTS_MAX { Ok(()) } else { index.merge(&HashSet::new()) }
    }

    /// Makes one segment of all, without the packs that are gone. What others publish meanwhile stays beside it.
    pub fn merge(self, gone: &HashSet<PackName>) -> Result<()> {
        let mut merged = IndexBuilder::default();
        let mut places: HashMap<PackName, u32> = HashMap::new();
        for segment in &self.segments {
            let packs = segment.packs(&*self.objects, 0, segment.packs)?;
            let entries = segment.entries(&*self.objects, 0, segment.entries)?;
            if (packs.len(), entries.len()) != (segment.packs, segment.entries) {
                // Another one has merged it away meanwhile: what it made must not be written over with less.
                return Ok(());
            }
            for (print, pack) in entries {
                let Some(name) = packs.get(pack as usize).filter(|name| !gone.contains(name)) else {
                    continue;
                };
                let place = *places.entry(*name).or_insert_with(|| {
                    merged.packs.push(*name);
                    merged.packs.len() as u32 - 1
                });
                merged.entries.push((print, place));
            }
        }
        // Several may merge the same segments at once, and what they made is merged in its turn.
        merged.entries.sort_unstable();
        merged.entries.dedup();
        while merged.entries.len() > ENTRIES_MAX {
            let mut odd = false;
            merged.entries.retain(|_| {
                odd = !odd;
                odd
            });
            merged.drop_unused_packs();
        }
        let mut old: Vec<String> = self.segments.into_iter().map(|segment| segment.name).collect();
        if !merged.entries.is_empty() {
            let name = merged_name(&mut old, gone);
            self.objects.replace(&name, &merged.encode(), false)?;
            old.retain(|old| *old != name);
        }
        self.objects.delete(&old)
    }

    /// The names of segments that are not as they were written.
    pub fn verify(objects: &dyn Objects) -> Result<Vec<String>> {
        let mut damaged = Vec::new();
        for name in objects.names("index")? {
            let Some(bytes) = objects.get(&format!("index/{name}"))? else { continue };
            if !is_sealed(&bytes) {
                damaged.push(format!("index/{name}"));
            }
        }
        Ok(damaged)
    }

    /// Removes every segment, also those that cannot be read.
    pub fn clear(objects: &dyn Objects) -> Result<()> {
        let names: Vec<String> = objects.names("index")?.iter().map(|name| format!("index/{name}")).collect();
        objects.delete(&names)
    }
}

impl IndexBuilder {
    fn drop_unused_packs(&mut self) {
        let mut places = vec![u32::MAX; self.packs.len()];
        let mut kept = Vec::new();
        for (_, pack) in &mut self.entries {
            let place = &mut places[*pack as usize];
            if *place == u32::MAX {
                *place = kept.len() as u32;
                kept.push(self.packs[*pack as usize]);
            }
            *pack = *place;
        }
        self.packs = kept;
    }
}

/// The name of what is made of some segments: whoever merges the same ones writes the same.
fn merged_name(segments: &mut [String], gone: &HashSet<PackName>) -> String {
    segments.sort();
    let mut gone: Vec<&PackName> = gone.iter().collect();
    gone.sort();
    let said = format!("{segments:?} {gone:?}");
    format!("index/{:016x}", Domain::Envelope.hash(said.as_bytes()).prefix())
}

fn new_name() -> Result<String> {
    let number = getrandom::u64().map_err(|e| Error::new(Kind::Io, format!("no random numbers: {e}")))?;
    Ok(format!("{number:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::SessionId;
    use stdchk_store::MemoryStore;

    fn pack(number: u32) -> PackName {
        PackName { session: SessionId(5), writer: 0, number }
    }

    fn hash(i: u32) -> Hash {
        Domain::Data.hash(&i.to_le_bytes())
    }

    #[test]
    fn what_is_listed_is_found_across_merges() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryStore::new());
        for session in 0..20u32 {
            let mut builder = IndexBuilder::default();
            (0..1000).for_each(|i| builder.add(&hash(session * 1000 + i), pack(session)));
            Index::open(objects.clone()).unwrap().publish(builder).unwrap();
        }
        assert!(objects.names("index").unwrap().len() <= SEGMENTS_MAX + 1);
        let index = Index::open(objects.clone()).unwrap();
        assert_eq!(index.entry_count(), 20_000);
        for i in (0..20_000).step_by(7) {
            assert!(index.find(&hash(i)).unwrap().contains(&pack(i / 1000)));
        }
        assert!(index.find(&hash(20_001)).unwrap().is_empty());
        index.merge(&HashSet::from([pack(3)])).unwrap();
        let index = Index::open(objects).unwrap();
        assert!(index.find(&hash(3_500)).unwrap().is_empty());
        assert!(index.find(&hash(4_500)).unwrap().contains(&pack(4)));
    }

    #[test]
    fn merging_the_same_twice_makes_nothing_larger() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryStore::new());
        for session in 0..4u32 {
            let mut builder = IndexBuilder::default();
            (0..500).for_each(|i| builder.add(&hash(session * 500 + i), pack(session)));
            Index::open(objects.clone()).unwrap().publish(builder).unwrap();
        }
        for _ in 0..5 {
            // A second merger has read the segments before the first removed them.
            let segments: Vec<(String, Vec<u8>)> = objects
                .names("index")
                .unwrap()
                .into_iter()
                .map(|name| format!("index/{name}"))
                .map(|name| (name.clone(), objects.get(&name).unwrap().unwrap()))
                .collect();
            Index::open(objects.clone()).unwrap().merge(&HashSet::new()).unwrap();
            segments.iter().for_each(|(name, bytes)| objects.replace(name, bytes, false).unwrap());
            Index::open(objects.clone()).unwrap().merge(&HashSet::from([pack(9)])).unwrap();
        }
        let index = Index::open(objects.clone()).unwrap();
        assert_eq!((index.segments.len(), index.entry_count(), index.segments[0].packs), (1, 2000, 4));
        (0..2000).for_each(|i| assert!(index.find(&hash(i)).unwrap().contains(&pack(i / 500))));
    }

    #[test]
    fn rubbish_is_passed_over() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryStore::new());
        let mut builder = IndexBuilder::default();
        (0..1000).for_each(|i| builder.add(&hash(i), pack(i)));
        let whole = builder.encode();
        for cut in (0..whole.len()).step_by(13) {
            objects.replace("index/cut", &whole[..cut], false).unwrap();
            let index = Index::open(objects.clone()).unwrap();
            (0..10).for_each(|i| drop(index.find(&hash(i)).unwrap()));
        }
        for at in 0..whole.len().min(600) {
            let mut torn = whole.clone();
            torn[at] ^= 0xff;
            objects.replace("index/cut", &torn, false).unwrap();
            let index = Index::open(objects.clone()).unwrap();
            (0..10).for_each(|i| drop(index.find(&hash(i)).unwrap()));
        }
    }
}
