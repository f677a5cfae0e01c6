//! A sorted list in chunks, which states share that differ little.
//!
//! Every process keeps a state of its own and an older one beside it, so one is copied with every record that it takes in. With this a
//! copy costs a pointer for each chunk, and the chunk that changes.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The longest chunk; one that would be longer becomes two.
pub(crate) const CHUNK_MAX: usize = 64;

/// What has a place in a sorted list.
pub trait Keyed {
    /// By what it is found.
    type Key;

    /// Its place.
    fn key(&self) -> Self::Key;

    /// Where it stands, compared with a place.
    fn compare(&self, key: &Self::Key) -> Ordering;
}

/// A sorted list.
#[derive(Clone, Debug)]
pub struct Chunked<T> {
    /// In order, none of them empty.
    chunks: Vec<Arc<Vec<Arc<T>>>>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Chunked<T> {
        Chunked { chunks: Vec::new(), len: 0 }
    }
}

impl<T: Keyed + Clone> Chunked<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All, in order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|item| &**item)
    }

    /// Those from a place on, in order.
    pub fn from<'a>(&'a self, key: &T::Key) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let first = self.chunk_of(key);
        let skipped = self.chunks.get(first).map_or(0, |chunk| before(chunk, key));
        let items = self.chunks[first.min(self.chunks.len())..].iter().flat_map(|chunk| chunk.iter());
        items.skip(skipped).map(|item| &**item)
    }

    /// The one at a place.
    pub fn get(&self, key: &T::Key) -> Option<&T> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let place = chunk.binary_search_by(|item| item.compare(key)).ok()?;
        Some(&chunk[place])
    }

    /// The chunk in which something is, if it is anywhere.
    fn chunk_of(&self, key: &T::Key) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last.compare(key).is_lt()))
    }

    /// Adds one, or replaces the one at its place.
    pub(crate) fn insert(&mut self, item: T) {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let (key, item) = (item.key(), Arc::new(item));
        let index = self.chunk_of(&key).min(self.chunks.len() - 1);
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        match chunk.binary_search_by(|there| there.compare(&key)) {
            Ok(place) => chunk[place] = item,
            Err(place) => {
                chunk.insert(place, item);
                self.len += 1;
            }
        }
        if chunk.len() > CHUNK_MAX {
            // Most are added at the end, where full chunks are to stay full.
            let half = if index + 1 == self.chunks.len() { CHUNK_MAX } else { CHUNK_MAX / 2 };
            let rest = Arc::make_mut(&mut self.chunks[index]).split_off(half);
            self.chunks.insert(index + 1, Arc::new(rest));
        }
    }

    /// Removes one.
    pub(crate) fn remove(&mut self, key: &T::Key) -> Option<Arc<T>> {
        let index = self.chunk_of(key);
        let place = self.chunks.get(index)?.binary_search_by(|item| item.compare(key)).ok()?;
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        let item = chunk.remove(place);
        if chunk.is_empty() {
            self.chunks.remove(index);
        }
        self.len -= 1;
        Some(item)
    }

    /// Changes one, which keeps its place.
    pub(crate) fn change(&mut self, key: &T::Key, change: impl FnOnce(&mut T)) {
        let index = self.chunk_of(key);
        let chunk = self.chunks.get(index);
        let place = chunk.and_then(|chunk| chunk.binary_search_by(|item| item.compare(key)).ok());
        if let Some(place) = place {
            change(Arc::make_mut(&mut Arc::make_mut(&mut self.chunks[index])[place]));
        }
    }

    #[cfg(test)]
    pub(crate) fn chunk_lens(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().map(|chunk| chunk.len())
    }
}

fn before<T: Keyed>(chunk: &[Arc<T>], key: &T::Key) -> usize {
    chunk.partition_point(|item| item.compare(key).is_lt())
}

/// Where the chunks end depends on the past, and says nothing.
impl<T: PartialEq + Keyed + Clone> PartialEq for Chunked<T> {
    fn eq(&self, other: &Chunked<T>) -> bool {
        self.len == other.len && self.values().eq(other.values())
    }
}

impl<T: Eq + Keyed + Clone> Eq for Chunked<T> {}

impl<T: Hash + Keyed + Clone> Hash for Chunked<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.values().for_each(|item| item.hash(state));
    }
}
