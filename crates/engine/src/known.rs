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
pub struct Known {
    slots: Vec<Option<Entry>>,
    next: Vec<u8>,
    used: usize,
    sets_max: usize,
    packs: Vec<PackName>,
}

const WAYS: usize = 8;
/// Sets at the start: most saves are small.
const SETS_MIN: usize = 64;

impl Known {
    /// A table that grows to about `bytes` bytes.
    pub fn new(bytes: usize) -> Known {
        let most = (bytes / (WAYS * size_of::<Option<Entry>>())).max(1);
        let sets_max = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        let sets = SETS_MIN.min(sets_max);
        Known { slots: vec![None; sets * WAYS], next: vec![0; sets], used: 0, sets_max, packs: Vec::new() }
    }

    /// Makes room for so many more at once, as far as the budget allows.
    pub fn reserve(&mut self, more: usize) {
        let mut sets = self.next.len();
        while sets < self.sets_max && (self.used + more) * 2 > sets * WAYS {
            sets *= 2;
        }
        if sets > self.next.len() {
            self.grow(sets);
        }
    }

    fn grow(&mut self, sets: usize) {
        let old = std::mem::replace(&mut self.slots, vec![None; sets * WAYS]);
        self.next = vec![0; sets];
        self.used = 0;
        old.into_iter().flatten().for_each(|entry| self.put(entry));
    }

    fn put(&mut self, entry: Entry) {
        let set = self.set(&entry.hash);
        let way = usize::from(self.next[set]) % WAYS;
        self.next[set] = (way as u8 + 1) % WAYS as u8;
        let slot = &mut self.slots[set * WAYS + way];
        self.used += usize::from(slot.is_none());
        *slot = Some(entry);
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
        let start = self.set(hash) * WAYS;
        let set = &self.slots[start..start + WAYS];
        set.iter().flatten().find(|entry| entry.hash == *hash && entry.len == len).map(|entry| entry.place)
    }

    /// Remembers a chunk, unless it is known.
    pub fn insert(&mut self, hash: &Hash, len: u32, place: Place) {
        if self.find(hash, len).is_some() {
            return;
        }
        if self.used * 2 >= self.slots.len() && self.next.len() < self.sets_max {
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
