//! The checkpoints of an application, by step and generation.

use std::cmp::Ordering;
use std::sync::Arc;

use super::chunked::{Chunked, Keyed};
use crate::op::CheckpointEntry;

/// Step and generation.
type Key = (u64, u32);

impl Keyed for CheckpointEntry {
    type Key = Key;

    fn key(&self) -> Key {
        (self.step, self.generation)
    }

    fn compare(&self, key: &Key) -> Ordering {
        self.key().cmp(key)
    }
}

/// Checkpoints by step and generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checkpoints(Chunked<CheckpointEntry>);

impl Checkpoints {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All, by step and generation.
    pub fn values(&self) -> impl Iterator<Item = &CheckpointEntry> {
        self.0.values()
    }

    /// The generations of one step, the oldest first.
    pub fn of_step(&self, step: u64) -> impl Iterator<Item = &CheckpointEntry> {
        self.0.from(&(step, 0)).take_while(move |entry| entry.step == step)
    }

    /// The checkpoint of a step and generation.
    pub fn get(&self, at: Key) -> Option<&CheckpointEntry> {
        self.0.get(&at)
    }

    /// Adds one, or replaces the one of that step and generation.
    pub(crate) fn insert(&mut self, entry: CheckpointEntry) {
        self.0.insert(entry);
    }

    /// Removes one.
    pub(crate) fn remove(&mut self, at: Key) -> Option<Arc<CheckpointEntry>> {
        self.0.remove(&at)
    }

    /// Changes one.
    pub(crate) fn change(&mut self, at: Key, change: impl FnOnce(&mut CheckpointEntry)) {
        self.0.change(&at, change);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::chunked::CHUNK_MAX;
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
            assert!(list.0.chunk_lens().all(|len| (1..=CHUNK_MAX).contains(&len)));
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
