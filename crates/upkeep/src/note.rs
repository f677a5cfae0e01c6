//! The note of what manifests name: a cache for collections, sealed by a hash, and keyed by what the roots of manifests' packs
//! vouch for. Where it is missing or damaged, the manifests are read again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use stdchk_object::envelope::{self, Sort};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Locator, PackName, Result};
use stdchk_store::Objects;

/// The object that holds it.
const NAME: &str = "named";
const VERSION: u32 = 1;
/// Longer notes are not written: reading them would take as long as reading the manifests.
const BYTES_MAX: usize = 64 << 20;

/// What one checkpoint names, by places in the list of packs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Named {
    /// The packs of its manifest and of the heads of its parts.
    homes: Vec<u32>,
    /// The packs that its parts refer to, in order of their places, and the most bytes of each that one part names.
    packs: Vec<(u32, u64)>,
}

/// What is noted.
#[derive(Debug, Default)]
pub struct Note {
    names: Vec<PackName>,
    places: HashMap<PackName, u32>,
    by_manifest: HashMap<Locator, Named>,
    /// Bytes of the chunks of packs, before compression.
    raw_bytes: HashMap<PackName, u64>,
    /// Whether there is more or less than was read.
    changed: bool,
}

impl Note {
    /// What was noted last; nothing where that cannot be read.
    pub fn read(objects: &dyn Objects) -> Note {
        // One byte more than is ever written shows what is too long, and then the envelope does not close.
        let read = || match objects.get_range(NAME, 0, BYTES_MAX + envelope::OVERHEAD + 1)? {
            Some(bytes) => Note::decode(envelope::open(Sort::Named, &bytes)?),
            None => Ok(Note::default()),
        };
        read().unwrap_or_else(|error| {
            tracing::debug!("all manifests are read again: {error}");
            Note::default()
        })
    }

    /// Replaces what was noted before, unless it says the same.
    pub fn write(&self, objects: &dyn Objects) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let body = self.encode();
        if body.len() > BYTES_MAX {
            return objects.delete(&[NAME.to_owned()]);
        }
        objects.replace(NAME, &envelope::seal(Sort::Named, &body), false)
    }

    /// Whether it says what is named there.
    pub fn knows(&self, manifest: &Locator) -> bool {
        self.by_manifest.contains_key(manifest)
    }

    /// Notes what a checkpoint names: the packs that hold its manifest and heads, and those that parts refer to, with bytes.
    pub fn add(&mut self, manifest: Locator, homes: &[PackName], packs: &[(PackName, u64)]) {
        let homes = homes.iter().map(|home| self.place(*home)).collect();
        let mut most: BTreeMap<u32, u64> = BTreeMap::new();
        for &(pack, bytes) in packs {
            let most = most.entry(self.place(pack)).or_default();
            *most = (*most).max(bytes);
        }
        self.by_manifest.insert(manifest, Named { homes, packs: most.into_iter().collect() });
        self.changed = true;
    }

    /// Forgets every checkpoint but these.
    pub fn keep_only(&mut self, manifests: &HashSet<Locator>) {
        let before = self.by_manifest.len();
        self.by_manifest.retain(|manifest, _| manifests.contains(manifest));
        self.changed |= self.by_manifest.len() < before;
    }

    fn place(&mut self, name: PackName) -> u32 {
        *self.places.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() as u32 - 1
        })
    }

    /// By place, the most bytes of a pack that any one checkpoint names; none where none names it.
    fn most(&self) -> Vec<Option<u64>> {
        let mut most: Vec<Option<u64>> = vec![None; self.names.len()];
        for named in self.by_manifest.values() {
            let homes = named.homes.iter().map(|&home| (home, 0));
            for (place, bytes) in homes.chain(named.packs.iter().copied()) {
                let most = &mut most[place as usize];
                *most = Some(most.unwrap_or(0).max(bytes));
            }
        }
        most
    }

    /// Every pack that is named, and the most bytes of it that any one checkpoint names.
    pub fn named(&self) -> BTreeMap<PackName, u64> {
        let most = self.names.iter().zip(self.most());
        most.filter_map(|(name, most)| Some((*name, most?))).collect()
    }

    /// Packs that hold manifests and heads of parts.
    pub fn homes(&self) -> BTreeSet<PackName> {
        let homes = self.by_manifest.values().flat_map(|named| &named.homes);
        homes.map(|&home| self.names[home as usize]).collect()
    }

    /// Bytes of a pack's chunks before compression, if they are noted.
    pub fn raw_bytes(&self, pack: &PackName) -> Option<u64> {
        self.raw_bytes.get(pack).copied()
    }

    /// Notes them.
    pub fn add_raw_bytes(&mut self, pack: PackName, bytes: u64) {
        self.raw_bytes.insert(pack, bytes);
        // Those that are only reached through forwards are not written.
        self.changed |= self.places.contains_key(&pack);
    }

    /// Only packs that are still named.
    fn encode(&self) -> Vec<u8> {
        let used: Vec<bool> = self.most().iter().map(Option::is_some).collect();
        let mut next = 0;
        let places: Vec<u32> = used
            .iter()
            .map(|&used| {
                let place = next;
                next += u32::from(used);
                place
            })
            .collect();
        let mut out = Writer::new();
        out.u32(VERSION);
        out.varint(u64::from(next));
        for (name, _) in self.names.iter().zip(&used).filter(|(_, used)| **used) {
            out.raw(&name.to_bytes());
            // One more, so that zero says that it is not known.
            out.varint(self.raw_bytes.get(name).map_or(0, |raw| raw.saturating_add(1)));
        }
        out.varint(self.by_manifest.len() as u64);
        for (manifest, named) in &self.by_manifest {
            manifest.encode(&mut out);
            out.varint(named.homes.len() as u64);
            named.homes.iter().for_each(|&home| out.varint(u64::from(places[home as usize])));
            out.varint(named.packs.len() as u64);
            let mut next = 0;
            for &(pack, bytes) in &named.packs {
                let place = places[pack as usize];
                out.varint(u64::from(place - next));
                out.varint(bytes);
                next = place + 1;
            }
        }
        out.into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Note> {
        let mut reader = Reader::new(bytes, "note");
        if reader.u32()? != VERSION {
            return Err(reader.corrupt("it is of another version"));
        }
        let mut note = Note::default();
        for _ in 0..reader.count(PackName::BYTES + 1)? {
            let name = PackName::decode(&mut reader)?;
            if note.place(name) as usize + 1 != note.names.len() {
                return Err(reader.corrupt("it lists a pack twice"));
            }
            if let Some(raw) = reader.varint()?.checked_sub(1) {
                note.raw_bytes.insert(name, raw);
            }
        }
        let limit = note.names.len() as u64;
        let place = |from: u64, reader: &mut Reader| {
            let place = reader.varint()?.saturating_add(from);
            if place < limit {
                Ok(place as u32)
            } else {
                Err(reader.corrupt("it names a pack that it does not list"))
            }
        };
        for _ in 0..reader.count(Locator::BYTES_MIN)? {
            let manifest = Locator::decode(&mut reader)?;
            let mut named = Named::default();
            for _ in 0..reader.count(1)? {
                named.homes.push(place(0, &mut reader)?);
            }
            let mut next = 0;
            for _ in 0..reader.count(2)? {
                let place = place(next, &mut reader)?;
                named.packs.push((place, reader.varint()?));
                next = u64::from(place) + 1;
            }
            note.by_manifest.insert(manifest, named);
        }
        reader.finish()?;
        Ok(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::{Hash, PackRef, SessionId};
    use stdchk_store::MemoryStore;

    fn pack(number: u32) -> PackName {
        PackName { session: SessionId(7), writer: 1, number }
    }

    fn manifest(i: u32) -> Locator {
        Locator { pack: PackRef { name: pack(i), root: Hash([i as u8; 32]), length: 5 }, chunk: i }
    }

    fn note() -> Note {
        let mut note = Note::default();
        for i in 0..20 {
            let packs: Vec<_> = (0..i).rev().map(|other| (pack(other * 3), u64::from(i) << other)).collect();
            note.add(manifest(i), &[pack(i), pack(i / 2)], &packs);
            note.add_raw_bytes(pack(i), u64::from(i));
        }
        note
    }

    fn is_nothing(note: &Note) -> bool {
        note.names.is_empty() && note.by_manifest.is_empty() && note.raw_bytes.is_empty()
    }

    #[test]
    fn what_was_noted_is_read() {
        let objects = MemoryStore::new();
        assert!(is_nothing(&Note::read(&objects)));
        let mut note = note();
        note.write(&objects).unwrap();
        let same = |a: &Note, b: &Note| (a.named(), a.homes()) == (b.named(), b.homes());
        let mut again = Note::read(&objects);
        assert!(same(&again, &note) && again.raw_bytes(&pack(7)) == Some(7) && again.knows(&manifest(19)));
        assert_eq!(again.named()[&pack(12)], 19 << 4, "the most that one names");
        // What is not named any more is not written again.
        let few = HashSet::from([manifest(3), manifest(5)]);
        note.keep_only(&few);
        again.keep_only(&few);
        again.write(&objects).unwrap();
        let last = Note::read(&objects);
        assert!(same(&last, &note) && !last.knows(&manifest(19)));
        assert_eq!((last.names.len(), last.raw_bytes(&pack(19))), (last.named().len(), None));
    }

    #[test]
    fn what_is_damaged_is_nothing() {
        let objects = MemoryStore::new();
        note().write(&objects).unwrap();
        let whole = objects.get(NAME).unwrap().unwrap();
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            objects.replace(NAME, &torn, false).unwrap();
            assert!(is_nothing(&Note::read(&objects)), "byte {at}");
        }
        // Whoever forges the hash, too, is met by a decoder that believes nothing.
        let body = note().encode();
        for at in 0..body.len() {
            for to in [0, 0x7f, 0x80, 0xff] {
                let mut forged = body.clone();
                forged[at] = to;
                let _ = Note::decode(&forged);
            }
            assert!(Note::decode(&body[..at]).is_err());
        }
    }
}
