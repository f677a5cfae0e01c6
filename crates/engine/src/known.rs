//! Chunks known to be stored, by hash: a table of fixed size that forgets what it must.

use stdchk_object::{Hash, PackName};

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the pack in [`Known`].
    pub pack: u32,
    /// The chunk in it.
    pub chunk: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: Hash,
    len: u32,
    place: Place,
}

/// A set-associative table: a hash can only be in one small set of slots, and pushes out the one that was put
/// there longest ago. Forgetting costs space, never truth: every hit compares the whole hash.
///
/// Most hashes that are looked for are new. That they are is told by the tags of their set, a byte for each slot, which are
/// few enough for the processor's cache.
pub struct Known {
    /// A set's tags; where a tag is zero, the slot is empty.
    tags: Vec<[u8; WAYS]>,
    /// Which entries a set's slots lead to.
    slots: Vec<[u32; WAYS]>,
    /// The slot of a set that is used next, once all are in use.
    next: Vec<u8>,
    entries: Vec<Entry>,
    sets_max: usize,
    packs: Vec<PackName>,
}

const WAYS: usize = 8;
/// What a slot in use takes: its entry, and its share of the sets.
const SLOT_BYTES: usize = size_of::<Entry>() + size_of::<u32>() + 1;
/// Sets at the start: most saves are small.
const SETS_MIN: usize = 64;

/// A byte of a hash that does not choose its set, and is not zero.
fn tag(hash: &Hash) -> u8 {
    hash.0[31].max(1)
}

impl Known {
    /// A table that grows to about `bytes` bytes.
    pub fn new(bytes: usize) -> Known {
        let most = (bytes / (WAYS * SLOT_BYTES)).max(1);
        let sets_max = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        let mut known = Known {
            tags: Vec::new(),
            slots: Vec::new(),
            next: Vec::new(),
            entries: Vec::new(),
            sets_max,
            packs: Vec::new(),
        };
        known.grow(SETS_MIN.min(sets_max));
        known
    }

    /// Makes room for so many more at once, as far as the budget allows.
    pub fn reserve(&mut self, more: usize) {
        let mut sets = self.next.len();
        while sets < self.sets_max && (self.entries.len() + more) * 2 > sets * WAYS {
            sets *= 2;
        }
        if sets > self.next.len() {
            self.grow(sets);
        }
    }

    /// Makes it so many sets, twice as many or more: what shared one finds room again.
    fn grow(&mut self, sets: usize) {
        self.tags = vec![[0; WAYS]; sets];
        self.slots = vec![[0; WAYS]; sets];
        self.next = vec![0; sets];
        for index in 0..self.entries.len() {
            let hash = self.entries[index].hash;
            if let Some(empty) = self.empty_slot(&hash) {
                self.lead(&hash, empty, index);
            }
        }
    }

    fn empty_slot(&self, hash: &Hash) -> Option<usize> {
        self.tags[self.set(hash)].iter().position(|&tag| tag == 0)
    }

    fn lead(&mut self, hash: &Hash, slot: usize, entry: usize) {
        let set = self.set(hash);
        self.tags[set][slot] = tag(hash);
        self.slots[set][slot] = entry as u32;
    }

    fn put(&mut self, entry: Entry) {
        let hash = entry.hash;
        if let Some(empty) = self.empty_slot(&hash) {
            self.lead(&hash, empty, self.entries.len());
            self.entries.push(entry);
            return;
        }
        let set = self.set(&hash);
        let oldest = usize::from(self.next[set]);
        self.next[set] = ((oldest + 1) % WAYS) as u8;
        let index = self.slots[set][oldest] as usize;
        self.lead(&hash, oldest, index);
        self.entries[index] = entry;
    }

    /// Makes a pack known; its index.
    pub fn add_pack(&mut self, name: PackName) -> u32 {
        self.packs.push(name);
        self.packs.len() as u32 - 1
    }

    /// The pack of a place.
    pub fn pack(&self, place: Place) -> PackName {
        self.packs[place.pack as usize]
    }

    fn set(&self, hash: &Hash) -> usize {
        hash.prefix() as usize & (self.next.len() - 1)
    }

    /// Where a chunk of that hash and length lies.
    pub fn find(&self, hash: &Hash, len: u32) -> Option<Place> {
        let (set, tag) = (self.set(hash), tag(hash));
        let alike = self.tags[set].iter().zip(&self.slots[set]).filter(|(of, _)| **of == tag);
        let mut alike = alike.map(|(_, slot)| &self.entries[*slot as usize]);
        alike.find(|entry| entry.hash == *hash && entry.len == len).map(|entry| entry.place)
    }

    /// Remembers a chunk, unless it is known.
    pub fn insert(&mut self, hash: &Hash, len: u32, place: Place) {
        if self.find(hash, len).is_some() {
            return;
        }
        if self.entries.len() * 2 >= self.next.len() * WAYS && self.next.len() < self.sets_max {
            self.grow(self.next.len() * 2);
        }
        self.put(Entry { hash: *hash, len, place });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::SessionId;
    use stdchk_object::hash::Domain;

    #[test]
    fn it_finds_what_it_kept_and_never_lies() {
        let mut known = Known::new(100 << 10);
        let pack = known.add_pack(PackName { session: SessionId(1), writer: 0, number: 0 });
        let hash = |i: u32| Domain::Data.hash(&i.to_le_bytes());
        let most = known.sets_max * WAYS;
        let total = most as u32 * 2;
        for i in 0..total {
            known.insert(&hash(i), 4, Place { pack, chunk: i });
        }
        let found: Vec<u32> = (0..total).filter(|&i| known.find(&hash(i), 4).is_some()).collect();
        assert!(found.len() > most * 9 / 10);
        for i in found {
            assert_eq!(known.find(&hash(i), 4), Some(Place { pack, chunk: i }));
            assert_eq!(known.find(&hash(i), 5), None);
        }
    }
}
