//! A cache that forgets what was not used for longest once it holds too many bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The cache.
pub struct Lru<K, V> {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<K, (V, usize, u64)>,
    by_use: BTreeMap<u64, K>,
}

impl<K: Hash + Eq + Copy, V: Clone> Lru<K, V> {
    /// Holds values of about `limit` bytes.
    pub fn new(limit: usize) -> Lru<K, V> {
        Lru { limit, bytes: 0, clock: 0, entries: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// The value of a key, which counts as a use. Who is among the most recently used fourth anyway is not moved up for it.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let recent = self.entries.len() as u64 / 4;
        let (value, _, used) = self.entries.get_mut(key)?;
        if self.clock - *used >= recent {
            self.by_use.remove(used);
            self.clock += 1;
            *used = self.clock;
            self.by_use.insert(self.clock, *key);
        }
        Some(value.clone())
    }

    /// Adds a value of so many bytes. One that is larger than the whole limit is kept until the next comes.
    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        self.remove(&key);
        self.make_room(bytes);
        self.clock += 1;
        self.by_use.insert(self.clock, key);
        self.entries.insert(key, (value, bytes, self.clock));
        self.bytes += bytes;
    }

    /// A value has become so many bytes larger: it is put anew, if it is still there.
    pub fn grow(&mut self, key: K, more: usize) {
        if let Some((value, bytes, _)) = self.entries.get(&key) {
            let (value, bytes) = (value.clone(), bytes + more);
            self.put(key, value, bytes);
        }
    }

    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some((_, bytes, used)) = self.entries.remove(key) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_goes_first() {
        let mut lru = Lru::new(30);
        (0..3).for_each(|i| lru.put(i, i, 10));
        assert_eq!(lru.get(&0), Some(0));
        lru.put(3, 3, 10);
        assert_eq!((lru.get(&0), lru.get(&1), lru.get(&2), lru.get(&3)), (Some(0), None, Some(2), Some(3)));
        lru.grow(2, 5);
        assert_eq!((lru.get(&0), lru.get(&2), lru.get(&3)), (None, Some(2), Some(3)));
        lru.grow(0, 5);
        assert_eq!(lru.bytes, 25);
        lru.put(4, 4, 1000);
        assert_eq!((lru.get(&3), lru.get(&4)), (None, Some(4)));
        lru.put(5, 5, 1);
        assert_eq!((lru.get(&4), lru.get(&5)), (None, Some(5)));
    }
}
