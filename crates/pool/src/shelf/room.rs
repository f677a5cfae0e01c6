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

/// A writer of a session, by which the names of its packs begin.
pub type WriterId = (SessionId, u32);

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
}

impl Room {
    /// All of it free.
    pub fn new(capacity: u64) -> Room {
        Room { capacity, used: 0, kept: HashMap::new() }
    }

    /// Bytes that are kept for writers.
    fn kept(&self) -> u64 {
        self.kept.values().filter(|kept| kept.is_fresh()).map(|kept| kept.bytes).sum()
    }

    /// How full a shelf is that has so many packs.
    pub fn usage(&self, packs: usize) -> Usage {
        Usage { capacity: self.capacity, used: self.used, packs: packs as u64, kept: self.kept() }
    }

    /// What a writer may take: all but what is taken, and what is kept for others.
    fn free_for(&self, writer: WriterId) -> u64 {
        let own = self.kept.get(&writer).filter(|kept| kept.is_fresh()).map_or(0, |kept| kept.bytes);
        self.capacity.saturating_sub(self.used).saturating_sub(self.kept() - own)
    }

    /// Takes room for something of `len` bytes that needs `bytes`: of what is kept for its writer first.
    pub fn take(&mut self, item: Item, len: u64, bytes: u64) -> Result<()> {
        let writer = (item.pack.session, item.pack.writer);
        if bytes > self.free_for(writer) {
            let kept = match self.kept() {
                0 => String::new(),
                kept => format!("; {kept} bytes are kept for others who save"),
            };
            return Err(Error::new(Kind::Full, format!("no room for the {len} bytes of pack {item}{kept}")));
        }
        self.used += bytes;
        if let Some(kept) = self.kept.get_mut(&writer) {
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

    /// Keeps so many bytes for a writer, instead of what was kept for it before, or as many as are free; how many that are.
    pub fn keep(&mut self, writer: WriterId, bytes: u64) -> u64 {
        self.kept.retain(|_, kept| kept.is_fresh() && kept.bytes > 0);
        let bytes = bytes.min(self.free_for(writer));
        self.kept.remove(&writer);
        if bytes == 0 || self.kept.len() >= WRITERS_MAX {
            return 0;
        }
        self.kept.insert(writer, Kept { bytes, since: clock::now() });
        bytes
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

    #[test]
    fn what_is_kept_for_one_is_taken_by_nobody_else() {
        let mut room = Room::new(100);
        assert_eq!(room.keep(writer(1), 60), 60);
        assert_eq!(room.keep(writer(2), 60), 40);
        assert_eq!(room.keep(writer(3), 1), 0);
        // Who has nothing kept finds it full, and hears why.
        let refused = room.take(item(3, 0), 1, 1).unwrap_err();
        assert!(
            refused.kind() == Kind::Full && refused.to_string().contains("100 bytes are kept"),
            "{refused}"
        );
        room.take(item(1, 0), 30, 30).expect("of its own");
        assert_eq!((room.used, room.kept()), (30, 70));
        assert!(room.take(item(1, 1), 31, 31).is_err(), "30 are left of it");
        // Less is needed than was thought.
        assert_eq!(room.keep(writer(2), 10), 10);
        room.take(item(3, 0), 30, 30).expect("given back");
        room.take(item(1, 1), 30, 30).expect("still kept");
        assert_eq!(room.keep(writer(1), 0), 0);
        room.give(30);
        assert_eq!((room.used, room.kept()), (60, 10));
        assert_eq!(room.keep(writer(1), 1000), 30, "no more than is free");
    }

    #[test]
    fn a_writer_takes_more_than_is_kept_for_it_where_there_is_more() {
        let mut room = Room::new(100);
        room.keep(writer(1), 10);
        room.take(item(1, 0), 50, 50).expect("free");
        assert_eq!((room.used, room.kept()), (50, 0));
    }

    #[test]
    fn there_is_an_end_to_writers() {
        let mut room = Room::new(u64::MAX);
        for session in 0..WRITERS_MAX as u64 {
            assert_eq!(room.keep(writer(session), 1), 1);
        }
        assert_eq!(room.keep(writer(u64::MAX), 1), 0);
        assert_eq!(room.keep(writer(7), 2), 2, "who is there already is not one more");
        assert_eq!(room.keep(writer(8), 0), 0);
        assert_eq!(room.keep(writer(u64::MAX), 1), 1);
    }
}
