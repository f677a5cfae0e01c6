//! What a writer says of the packs that it will put, so that a store that others fill, too, can keep room for them.

use std::time::{Duration, Instant};

use stdchk_object::member::Content;

use super::PartWriter;
use crate::workers::Answer;

/// Less is not worth a word: it is put as soon as said.
const LEAST: u64 = 64 << 20;
/// Where it is not known how much comes, a quarter of what came is expected, up to this.
const UNKNOWN_PART: u64 = 4;
const UNKNOWN_MAX: u64 = 1 << 30;
/// As many packs are named at a time.
const PACKS_MAX: u32 = 1024;
/// So many packs that have begun are named again.
const ON_THEIR_WAY: u32 = 2;
/// How often it is said again that more is coming, at least.
const AGAIN: Duration = Duration::from_secs(10);

/// What was said, and what is known.
#[derive(Default)]
pub struct Ahead {
    /// Bytes of data that the member that is being added still needs, if it is long, and says how long.
    left: Option<u64>,
    /// Bytes of data that were put so far.
    put: u64,
    /// When it was said last, and the number of packs begun from which on it is to be said again.
    said: Option<(Instant, u32)>,
    /// Until the store has heard it.
    saying: Option<Answer<()>>,
}

impl Ahead {
    /// Takes note that so many bytes of data have left for the store.
    pub fn note_put(&mut self, bytes: u64) {
        self.put += bytes;
        self.left = self.left.map(|left| left.saturating_sub(bytes));
    }

    fn expected(&self) -> u64 {
        self.left.unwrap_or((self.put / UNKNOWN_PART).min(UNKNOWN_MAX))
    }

    fn is_due(&self, packs_begun: u32) -> bool {
        self.said.is_none_or(|(when, again)| packs_begun >= again || when.elapsed() > AGAIN)
    }

    fn wait(&mut self) {
        if let Some(answer) = self.saying.take() {
            // Whatever came of it: nothing is promised.
            let _ = answer.wait();
        }
    }
}

/// How many bytes of a member of this length will be new: as many as of its parent, a quarter more, and all that it is longer.
fn new_bytes(len: u64, parent: Option<&Content>) -> u64 {
    let Some(parent) = parent else { return len };
    let as_before = parent.tally.stored.saturating_add(parent.tally.stored / 4);
    as_before.saturating_add(len.saturating_sub(parent.blob.len)).min(len)
}

impl PartWriter {
    /// A member begins that is so long; 0 where that is not known.
    pub(super) fn expect_member(&mut self, len: u64, parent: Option<&Content>) {
        self.ahead.left = (len >= LEAST).then(|| new_bytes(len, parent));
        if self.ahead.left.is_some() {
            self.ahead.said = self.ahead.said.map(|(when, _)| (when, 0));
        }
        self.say_ahead();
    }

    /// Says which packs come next, unless that was said a moment ago.
    pub(super) fn say_ahead(&mut self) {
        let mut expected = self.ahead.expected();
        if expected < LEAST || !self.ahead.is_due(self.packs_begun) {
            return;
        }
        // Metadata has packs, too.
        expected += self.options.pack_bytes() as u64;
        // The last ones are being filled, or may not have arrived.
        let first = self.packs_begun.saturating_sub(ON_THEIR_WAY);
        let (mut packs, mut count) = (Vec::new(), first);
        while expected > 0 && count - first < PACKS_MAX {
            let bytes = self.options.pack_bytes_of(count);
            // With its footer.
            packs.push((self.pack_name(count), bytes + bytes / 64));
            if count >= self.packs_begun {
                expected = expected.saturating_sub(bytes);
            }
            count += 1;
        }
        self.ahead.said = Some((Instant::now(), self.packs_begun + (count - self.packs_begun).div_ceil(2)));
        self.ahead.wait();
        let (store, session, writer) = (self.vault.store().clone(), self.session, self.writer);
        self.ahead.saying = Some(self.io.ask(move |_| {
            store.expect(session, writer, &packs);
            Ok(())
        }));
    }

    /// Nothing comes any more.
    pub(super) fn end_ahead(&mut self) {
        if self.ahead.said.take().is_some() {
            self.ahead.wait();
            self.vault.store().expect(self.session, self.writer, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use stdchk_catalog::State;
    use stdchk_object::member::{Chunking, Tally};
    use stdchk_object::tree::{Blob, LEAF_SHIFT, Root};
    use stdchk_object::{PackName, Result, SessionId};
    use stdchk_store::{MemoryStore, Store};

    use super::*;
    use crate::options::Options;
    use crate::vault::{Vault, locked};
    use crate::workers::Workers;

    #[test]
    fn what_is_new_is_guessed_from_the_parent() {
        let blob = Blob { len: 1000, leaf_shift: LEAF_SHIFT, root: Root::Hole };
        let tally = Tally { new: 200, stored: 100, ..Tally::default() };
        let parent = Content { blob, chunking: Chunking::Page(4096), tally, coded: None };
        assert_eq!(new_bytes(1000, None), 1000);
        assert_eq!(new_bytes(1000, Some(&parent)), 125);
        assert_eq!(new_bytes(1100, Some(&parent)), 225);
        assert_eq!(new_bytes(60, Some(&parent)), 60);
    }

    /// What was expected, with the number of packs put before it.
    #[derive(Default)]
    struct Noting {
        packs: MemoryStore,
        said: Mutex<Vec<Vec<(PackName, u64)>>>,
    }

    impl Store for Noting {
        fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
            self.packs.put(name, pieces)
        }
        fn expect(&self, session: SessionId, writer: u32, packs: &[(PackName, u64)]) {
            assert_eq!((session, writer), (SessionId(7), 3));
            locked(&self.said).push(packs.to_vec());
        }
        fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
            self.packs.replace(name, pieces)
        }
        fn sync(&self, names: &[PackName]) -> Result<()> {
            self.packs.sync(names)
        }
        fn length(&self, name: PackName) -> Result<u64> {
            self.packs.length(name)
        }
        fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
            self.packs.read_into(name, offset, buffers)
        }
        fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
            self.packs.list(each)
        }
        fn remove(&self, names: &[PackName]) -> Result<()> {
            self.packs.remove(names)
        }
    }

    /// Saves noise of these lengths; what was said meanwhile, and every pack that was put, with its length.
    fn saved(lens: &[usize]) -> (Vec<Vec<(PackName, u64)>>, Vec<(PackName, u64)>) {
        let store = Arc::new(Noting::default());
        let vault = Arc::new(Vault::new(store.clone(), Arc::new(State::default()), 64 << 20));
        let (options, workers) = (Options::default(), Arc::new(Workers::new(2, "test")));
        let mut part =
            PartWriter::new(options, vault, workers, None, None, SessionId(7), 3, 0).expect("a part");
        let mut noise = vec![0u8; lens.iter().copied().max().unwrap_or(0)];
        getrandom::fill(&mut noise).expect("noise");
        let mut at = 0;
        for (index, &len) in lens.iter().enumerate() {
            noise[at..at + 8].copy_from_slice(&(index as u64).to_le_bytes());
            noise.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
            at = (at + 8) % 4096;
            part.add_memory(&format!("member{index}"), &noise[..len]).expect("saved");
        }
        drop(part.finish(None).expect("finished"));
        let mut packs = Vec::new();
        store.list(&mut |name, len| packs.push((name, len))).expect("listed");
        (std::mem::take(&mut locked(&store.said)), packs)
    }

    #[test]
    fn a_store_hears_of_packs_before_they_come_and_when_no_more_do() {
        let (said, packs) = saved(&[200 << 20]);
        let (first, last) = (said.first().expect("it was said"), said.last().expect("more"));
        assert!(last.is_empty(), "what is not needed is given back");
        // All of its data at once, each pack by its name, and none longer than was said.
        let expected: u64 = first.iter().map(|(_, len)| len).sum();
        assert!((200 << 20..240 << 20).contains(&expected), "{expected}");
        let data = packs.iter().filter(|(_, len)| *len > 3 << 20);
        for (name, len) in data {
            let most = first.iter().find(|(expected, _)| expected == name).map_or(0, |(_, most)| *most);
            assert!(*len <= most, "pack {name} has {len} bytes, {most} were expected");
        }
    }

    #[test]
    fn of_many_small_members_a_part_of_what_came_is_expected() {
        let (said, _) = saved(&[20 << 20; 20]);
        let most: u64 = said.iter().map(|packs| packs.iter().map(|(_, len)| len).sum()).max().unwrap_or(0);
        assert!(said.last().is_some_and(Vec::is_empty) && (64 << 20..250 << 20).contains(&most), "{most}");
        let (said, _) = saved(&[20 << 20]);
        assert!(said.is_empty(), "little is not worth a word");
    }
}
