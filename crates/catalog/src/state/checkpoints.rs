//! The checkpoints of an application: a sorted list in chunks, which states share that differ little.
//!
//! Every process keeps a state of its own and an older one beside it, so one is copied with every record that it takes in. With this a
//! copy costs a pointer for each chunk, and the chunk that changes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::op::CheckpointEntry;

/// The longest chunk; one that would be longer becomes two.
const CHUNK_MAX: usize = 64;

/// Step and generation.
type Key = (u64, u32);

fn key(entry: &CheckpointEntry) -> Key {
    (entry.step, entry.generation)
}

/// Checkpoints by step and generation.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    /// In order, none of them empty.
    chunks: Vec<Arc<Vec<Arc<CheckpointEntry>>>>,
    len: usize,
}

impl Checkpoints {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All, by step and generation.
    pub fn values(&self) -> impl Iterator<Item = &CheckpointEntry> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|entry| &**entry)
    }

    /// The generations of one step, the oldest first.
    pub fn of_step(&self, step: u64) -> impl Iterator<Item = &CheckpointEntry> {
        let from = self.chunk_of((step, 0));
        let entries = self.chunks[from.min(self.chunks.len())..].iter().flat_map(|chunk| chunk.iter());
        entries
            .map(|entry| &**entry)
            .skip_while(move |entry| entry.step < step)
            .take_while(move |entry| entry.step == step)
    }

    /// The checkpoint of a step and generation.
    pub fn get(&self, at: Key) -> Option<&CheckpointEntry> {
        let chunk = self.chunks.get(self.chunk_of(at))?;
        let place = chunk.binary_search_by_key(&at, |entry| key(entry)).ok()?;
        Some(&chunk[place])
    }

    /// The chunk in which something is, if it is anywhere.
    fn chunk_of(&self, at: Key) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| key(last) < at))
    }

    /// Adds one, or replaces the one of that step and generation.
    pub(crate) fn insert(&mut self, entry: CheckpointEntry) {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let (at, entry) = (key(&entry), Arc::new(entry));
        let index = self.chunk_of(at).min(self.chunks.len() - 1);
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        match chunk.binary_search_by_key(&at, |entry| key(entry)) {
            Ok(place) => chunk[place] = entry,
            Err(place) => {
                chunk.insert(place, entry);
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
    pub(crate) fn remove(&mut self, at: Key) -> Option<Arc<CheckpointEntry>> {
        let index = self.chunk_of(at);
        let place = self.chunks.get(index)?.binary_search_by_key(&at, |entry| key(entry)).ok()?;
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        let entry = chunk.remove(place);
        if chunk.is_empty() {
            self.chunks.remove(index);
        }
        self.len -= 1;
        Some(entry)
    }

    /// Changes one.
    pub(crate) fn change(&mut self, at: Key, change: impl FnOnce(&mut CheckpointEntry)) {
        let index = self.chunk_of(at);
        let place =
            self.chunks.get(index).and_then(|chunk| chunk.binary_search_by_key(&at, |entry| key(entry)).ok());
        if let Some(place) = place {
            change(Arc::make_mut(&mut Arc::make_mut(&mut self.chunks[index])[place]));
        }
    }
}

/// Where the chunks end depends on the past, and says nothing.
impl PartialEq for Checkpoints {
    fn eq(&self, other: &Checkpoints) -> bool {
        self.len == other.len && self.values().eq(other.values())
    }
}

impl Eq for Checkpoints {}

impl Hash for Checkpoints {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.values().for_each(|entry| entry.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Op;
    use crate::conformance;

    fn entry(at: Key, sequence: u64) -> CheckpointEntry {
        let Op::Commit(_, entry, _) = conformance::commit(1, at.0, &[]) else { unreachable!("a commit") };
        CheckpointEntry { generation: at.1, sequence, ..*entry }
    }

    #[test]
    fn it_is_a_sorted_map() {
        let (mut list, mut map) = (Checkpoints::default(), BTreeMap::new());
        let mut x: u64 = 88_172_645_463_325_252;
        for round in 0..20_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // First they come in order, then anyhow; at the end they go.
            let step = if round < 500 { round } else { x % 700 };
            let at = (step, (x >> 40) as u32 % 2);
            match (x >> 50) % 8 {
                _ if round > 18_000 => assert_eq!(list.remove(at).is_some(), map.remove(&at).is_some()),
                0 | 1 if round > 500 => assert_eq!(list.remove(at).is_some(), map.remove(&at).is_some()),
                2 => {
                    list.change(at, |entry| entry.bytes = round);
                    map.entry(at).and_modify(|entry: &mut CheckpointEntry| entry.bytes = round);
                }
                _ => {
                    list.insert(entry(at, round));
                    map.insert(at, entry(at, round));
                }
            }
            assert_eq!(list.get(at), map.get(&at));
            assert!(list.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
            if round % 100 == 0 {
                assert!(list.len() == map.len() && list.values().eq(map.values()));
                assert!(
                    list.of_step(step).eq(map.range((step, 0)..=(step, u32::MAX)).map(|(_, entry)| entry))
                );
            }
        }
        let mut again = Checkpoints::default();
        list.values().for_each(|entry| again.insert(entry.clone()));
        assert_eq!(list, again);
    }
}
