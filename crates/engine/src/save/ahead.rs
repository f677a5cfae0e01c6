//! What a writer says of the packs that it will put, so that a store that others fill, too, can keep room for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use stdchk_object::member::Content;
use stdchk_object::{PackName, SessionId};
use stdchk_store::Store;

use super::PartWriter;

/// Less is not worth a word: it is put as soon as said.
const LEAST: u64 = 64 << 20;
/// Of a member of which nothing was seen yet no more is expected; and so much of it must have been seen to judge the rest by it, with a quarter more.
const UNSEEN_MAX: u64 = 1 << 30;
const SEEN_LEAST: u64 = 32 << 20;
/// Where it is not known how much comes, an eighth of what was new so far is expected, up to this.
const UNKNOWN_PART: u64 = 8;
const UNKNOWN_MAX: u64 = 256 << 20;
/// As many packs are named at a time.
const PACKS_MAX: u32 = 1024;
/// So many packs that have begun are named again.
const ON_THEIR_WAY: u32 = 2;
/// How often it is said again what is coming, at least; and where it is less than half of what was said.
const AGAIN: Duration = Duration::from_secs(10);
const LESS: Duration = Duration::from_millis(500);

type Packs = Vec<(PackName, u64)>;

/// What is known of what will come, and what was said of it. When this is dropped, what was not needed is given back.
#[derive(Default)]
pub struct Ahead {
    /// The member at hand: its length if that is known, how much of it was taken in, and what of that was new.
    len: u64,
    seen: u64,
    new: u64,
    /// What will be new of it, as long as little was seen.
    guess: u64,
    /// What was new of all members.
    put: u64,
    /// Of the packs that were written: their bytes before compression, and as they are.
    raw: u64,
    stored: u64,
    said: Option<Said>,
    /// To a thread that nobody waits for: a store may take long to hear something.
    voice: Option<Sender<Packs>>,
}

/// What was said last.
struct Said {
    when: Instant,
    bytes: u64,
    /// The number of packs begun from which on it is said again.
    again: u32,
}

impl Ahead {
    /// A member begins, of so many bytes if that is known, and else of 0.
    fn begin(&mut self, len: u64, parent: Option<&Content>) {
        (self.len, self.seen, self.new) = (len, 0, 0);
        self.guess = new_bytes(len, parent).min(UNSEEN_MAX);
        if let Some(said) = self.said.as_mut().filter(|_| len >= LEAST) {
            said.again = 0;
        }
    }

    /// Takes note that so many bytes were taken in, and some of them were new.
    fn pass(&mut self, len: u64, new: u64) {
        self.seen += len;
        self.new += new;
        self.put += new;
    }

    /// Takes note of a pack that was written.
    pub(super) fn note_pack(&mut self, raw: u64, stored: u64) {
        self.raw += raw;
        self.stored += stored;
    }

    /// Bytes that will be new, before compression.
    fn expected(&self) -> u64 {
        let left = self.len.saturating_sub(self.seen);
        match self.len < LEAST {
            true => (self.put / UNKNOWN_PART).min(UNKNOWN_MAX),
            false if self.seen < SEEN_LEAST => self.guess.saturating_sub(self.new).min(left),
            false => {
                let rest = u128::from(left) * u128::from(self.new) * 5 / (u128::from(self.seen) * 4);
                u64::try_from(rest).unwrap_or(left).min(left)
            }
        }
    }

    /// What a pack of so many bytes before compression will take, with its footer.
    fn packed(&self, raw: u64) -> u64 {
        let part = match self.raw {
            0 => raw,
            all => (u128::from(raw) * u128::from(self.stored) / u128::from(all)) as u64,
        };
        part.min(raw) + raw / 64
    }

    fn is_due(&self, expected: u64, packs_begun: u32) -> bool {
        let Some(said) = &self.said else { return expected >= LEAST };
        let age = said.when.elapsed();
        packs_begun >= said.again || age > AGAIN || (age > LESS && expected < said.bytes / 2)
    }

    /// Has the store told, unless it is still being told something else.
    fn say(&mut self, store: &Arc<dyn Store>, session: SessionId, writer: u32, packs: Packs) {
        let voice = self.voice.get_or_insert_with(|| {
            let (voice, heard) = bounded::<Packs>(1);
            let store = store.clone();
            let speak = move || {
                heard.iter().for_each(|packs| store.expect(session, writer, &packs));
                store.expect(session, writer, &[]);
            };
            if let Err(error) = std::thread::Builder::new().name("stdchk-ahead".into()).spawn(speak) {
                tracing::debug!("no room is kept: {error}");
            }
            voice
        });
        let _ = voice.try_send(packs);
    }
}

/// How many bytes of a member of this length will be new: as many as of its parent, a quarter more, and all that it is longer.
fn new_bytes(len: u64, parent: Option<&Content>) -> u64 {
    let Some(parent) = parent else { return len };
    let as_before = parent.tally.new.saturating_add(parent.tally.new / 4);
    as_before.saturating_add(len.saturating_sub(parent.blob.len)).min(len)
}

impl PartWriter {
    /// A member begins, of so many bytes if that is known, and else of 0.
    pub(super) fn expect_member(&mut self, len: u64, parent: Option<&Content>) {
        self.ahead.begin(len, parent);
        self.say_ahead();
    }

    /// So many bytes of a member were taken in, and some of them were new.
    pub(super) fn note_passed(&mut self, len: u64, new: u64) {
        self.ahead.pass(len, new);
        self.say_ahead();
    }

    /// Says which packs come next, if the store wants to know, unless that was said a moment ago.
    fn say_ahead(&mut self) {
        let expected = self.ahead.expected();
        if !self.ahead.is_due(expected, self.packs_begun) || !self.vault.store().keeps_room() {
            return;
        }
        // Metadata has packs, too.
        let mut left = expected + self.options.pack_bytes() as u64;
        // The last ones are being filled, or may not have arrived.
        let first = self.packs_begun.saturating_sub(ON_THEIR_WAY);
        let (mut packs, mut count) = (Vec::new(), first);
        while left > 0 && count - first < PACKS_MAX {
            let bytes = self.options.pack_bytes_of(count);
            packs.push((self.pack_name(count), self.ahead.packed(bytes)));
            if count >= self.packs_begun {
                left = left.saturating_sub(bytes);
            }
            count += 1;
        }
        let again = self.packs_begun + (count - self.packs_begun).div_ceil(2);
        self.ahead.said = Some(Said { when: Instant::now(), bytes: expected, again });
        let store = self.vault.store().clone();
        self.ahead.say(&store, self.session, self.writer, packs);
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
        let tally = Tally { new: 100, ..Tally::default() };
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
        fn keeps_room(&self) -> bool {
            true
        }
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
        let begun = Instant::now();
        while locked(&store.said).last().is_some_and(|said| !said.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "what is not needed is given back");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut packs = Vec::new();
        store.list(&mut |name, len| packs.push((name, len))).expect("listed");
        (std::mem::take(&mut locked(&store.said)), packs)
    }

    #[test]
    fn a_store_hears_of_packs_before_they_come() {
        let (said, packs) = saved(&[200 << 20]);
        let first = said.first().expect("it was said");
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
        let mut ahead = Ahead::default();
        for _ in 0..100 {
            ahead.begin(20 << 20, None);
            ahead.pass(20 << 20, 20 << 20);
        }
        assert_eq!(ahead.expected(), (2000 << 20) / UNKNOWN_PART);
        assert!(saved(&[20 << 20]).0.is_empty(), "little is not worth a word");
    }

    #[test]
    fn what_was_seen_of_a_member_says_what_its_rest_needs() {
        let mut ahead = Ahead::default();
        ahead.begin(100 << 30, None);
        assert_eq!(ahead.expected(), UNSEEN_MAX);
        // Of its first gigabyte a hundredth was new.
        ahead.pass(1000 << 20, 10 << 20);
        let expected = ahead.expected() >> 20;
        assert!((1100..1300).contains(&expected), "{expected} MiB");
        // All new, and compressed to a third.
        ahead.begin(2 << 30, None);
        ahead.pass(1 << 30, 1 << 30);
        ahead.note_pack(300, 100);
        assert_eq!((ahead.expected(), ahead.packed(48 << 20) >> 20), (1 << 30, 16));
        ahead.pass(1 << 30, 0);
        assert_eq!(ahead.expected(), 0);
    }
}
