//! The room of a shelf: what is taken of it, and what is kept for writers who have said that they will need it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use stdchk_catalog_log::clock;
use stdchk_object::{Error, Item, Kind, Result, SessionId};

use super::Usage;

/// How long room is kept for a writer of whom nothing is heard.
const KEPT: Duration = Duration::from_secs(30);
/// For so many writers at once room is kept.
const WRITERS_MAX: usize = 4096;
/// One part in so many of what is lent is never kept for anybody: lost copies must be made again, and what collects garbage needs room, too.
const OPEN_PART: u64 = 16;

/// A writer of a session, by which the names of its packs begin.
pub type WriterId = (SessionId, u32);

/// What a writer wants to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// So many bytes.
    pub bytes: u64,
    /// For shards of packs, and not for packs that are whole for a moment.
    pub of_shards: bool,
    /// Or as many as were kept before, if that was more; else instead of these.
    pub at_least: bool,
}

/// Whose something is.
fn writer_of(item: Item) -> WriterId {
    (item.pack.session, item.pack.writer)
}

/// Bytes, and for whom.
pub struct Room {
    capacity: u64,
    /// Bytes of packs that are there, and of those that are being taken.
    used: u64,
    kept: HashMap<WriterId, Kept>,
}

struct Kept {
    bytes: u64,
    since: Instant,
    /// For shards of packs, and not for packs that are whole for a moment.
    of_shards: bool,
}

impl Room {
    /// All of it free.
    pub fn new(capacity: u64) -> Room {
        Room { capacity, used: 0, kept: HashMap::new() }
    }

    /// Bytes that are kept for writers.
    fn kept(&self) -> u64 {
        self.kept_but_for(None)
    }

    /// Bytes that are kept for writers, but for one.
    fn kept_but_for(&self, writer: Option<WriterId>) -> u64 {
        let others = self.kept.iter().filter(|(other, kept)| Some(**other) != writer && kept.is_fresh());
        others.map(|(_, kept)| kept.bytes).sum()
    }

    /// How full a shelf is that has so many packs.
    pub fn usage(&self, packs: usize) -> Usage {
        Usage { capacity: self.capacity, used: self.used, packs: packs as u64, kept: self.kept() }
    }

    /// What a writer may take: all but what is taken, and what is kept for others.
    fn free_for(&self, writer: WriterId) -> u64 {
        self.capacity.saturating_sub(self.used).saturating_sub(self.kept_but_for(Some(writer)))
    }

    /// Whether something of `len` bytes that needs `bytes` could be taken.
    pub fn check(&self, item: Item, len: u64, bytes: u64) -> Result<()> {
        let writer = writer_of(item);
        if bytes <= self.free_for(writer) {
            return Ok(());
        }
        let kept = match self.kept_but_for(Some(writer)) {
            0 => String::new(),
            kept => format!("; {kept} bytes are kept for others who save"),
        };
        Err(Error::new(Kind::Full, format!("no room for the {len} bytes of pack {item}{kept}")))
    }

    /// Takes room for something of `len` bytes that needs `bytes`: of what is kept for its writer first.
    pub fn take(&mut self, item: Item, len: u64, bytes: u64) -> Result<()> {
        self.check(item, len, bytes)?;
        self.used += bytes;
        if let Some(kept) = self.kept.get_mut(&writer_of(item))
            && kept.of_shards == item.shard.is_some()
        {
            kept.bytes = kept.bytes.saturating_sub(bytes);
        }
        Ok(())
    }

    /// What is there already, from before.
    pub fn take_in(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Gives room back.
    pub fn give(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    /// Keeps room for a writer, if there is as much; how much there is. Where that is less, what was kept before still is.
    pub fn keep(&mut self, writer: WriterId, wish: Wish) -> u64 {
        self.kept.retain(|_, kept| kept.is_fresh() && kept.bytes > 0);
        let own = self.kept.get_mut(&writer).map(|kept| {
            kept.since = clock::now();
            kept.bytes
        });
        let bytes = if wish.at_least { wish.bytes.max(own.unwrap_or(0)) } else { wish.bytes };
        let free = self.free_for(writer).saturating_sub(self.capacity / OPEN_PART).max(own.unwrap_or(0));
        if bytes > free || (own.is_none() && self.kept.len() >= WRITERS_MAX) {
            return free.min(wish.bytes.saturating_sub(1));
        }
        self.kept.insert(writer, Kept { bytes, since: clock::now(), of_shards: wish.of_shards });
        wish.bytes
    }
}

impl Kept {
    fn is_fresh(&self) -> bool {
        clock::since(self.since) < KEPT
    }
}

#[cfg(test)]
mod tests {
    use stdchk_object::PackName;

    use super::*;

    fn item(session: u64, number: u32) -> Item {
        Item::from(PackName { session: SessionId(session), writer: 0, number })
    }

    fn writer(session: u64) -> WriterId {
        (SessionId(session), 0)
    }

    fn wish(bytes: u64, of_shards: bool) -> Wish {
        Wish { bytes, of_shards, at_least: false }
    }

    #[test]
    fn what_is_kept_for_one_is_taken_by_nobody_else() {
        let mut room = Room::new(160);
        assert_eq!(room.keep(writer(1), wish(90, false)), 90);
        assert_eq!(room.keep(writer(2), wish(61, false)), 60, "a part is open to all");
        assert_eq!(room.kept(), 90, "nothing is kept where it is not all that is wanted");
        assert_eq!(room.keep(writer(2), wish(60, false)), 60);
        // Who has nothing kept finds it full, and hears why; but for the part that is open to all.
        room.take(item(3, 0), 10, 10).expect("open to all");
        let refused = room.take(item(3, 1), 1, 1).unwrap_err();
        assert!(
            refused.kind() == Kind::Full && refused.to_string().contains("150 bytes are kept"),
            "{refused}"
        );
        room.take(item(1, 0), 60, 60).expect("of its own");
        assert_eq!((room.used, room.kept()), (70, 90));
        assert!(room.take(item(1, 1), 31, 31).is_err(), "30 are left of it");
        // More is not to be had, and what there was stays.
        assert!(room.keep(writer(1), wish(40, false)) < 40);
        assert_eq!(room.kept(), 90);
        assert_eq!(room.keep(writer(1), Wish { at_least: true, ..wish(10, false) }), 10);
        assert_eq!(room.kept(), 90, "no less");
        // Less is needed than was thought.
        assert_eq!(room.keep(writer(2), wish(10, false)), 10);
        room.take(item(3, 1), 50, 50).expect("given back");
        room.take(item(1, 1), 30, 30).expect("still kept");
        assert_eq!(room.keep(writer(1), wish(0, false)), 0);
        room.give(150);
        assert_eq!((room.used, room.kept()), (0, 10));
    }

    #[test]
    fn a_writer_takes_more_than_is_kept_for_it_where_there_is_more() {
        let mut room = Room::new(100);
        room.keep(writer(1), wish(10, false));
        room.take(item(1, 0), 50, 50).expect("free");
        assert_eq!((room.used, room.kept()), (50, 0));
    }

    #[test]
    fn packs_that_are_whole_for_a_moment_take_nothing_of_what_is_kept_for_shards() {
        let mut room = Room::new(100);
        room.keep(writer(1), wish(10, true));
        room.take(item(1, 0), 20, 20).expect("free");
        assert_eq!(room.kept(), 10);
        room.take(Item::shard(item(1, 0).pack, 3), 5, 5).expect("kept");
        assert_eq!(room.kept(), 5);
    }

    #[test]
    fn there_is_an_end_to_what_is_kept_and_to_writers() {
        let _time = clock::Simulation::begin();
        let mut room = Room::new(u64::MAX);
        for session in 0..WRITERS_MAX as u64 {
            assert_eq!(room.keep(writer(session), wish(1, false)), 1);
        }
        assert_eq!(room.keep(writer(u64::MAX), wish(1, false)), 0);
        assert_eq!(room.keep(writer(7), wish(2, false)), 2, "who is there already is not one more");
        room.take(item(8, 0), 1, 1).expect("kept");
        assert_eq!(room.keep(writer(u64::MAX), wish(1, false)), 1);
        clock::sleep(KEPT / 2);
        room.keep(writer(7), wish(3, false));
        clock::sleep(KEPT / 2);
        assert_eq!(room.kept(), 3, "of the others nothing was heard");
    }
}
