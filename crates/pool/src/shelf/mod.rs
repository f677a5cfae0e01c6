//! What a benefactor lends: memory or a folder, with a limit.

mod disk;
mod memory;
mod room;

use stdchk_object::{Code, Item, PackName, Result};

pub use disk::LentDisk;
pub use memory::LentMemory;
pub use room::{Wish, WriterId};

use room::Room;

/// Bytes of a block, which has a sum of its own: small enough that little is read for little, and that little is lost at the end of a pack;
/// large enough that blocks cost nothing.
const BLOCK_BYTES: usize = 64 << 10;

/// Tells rot, not malice: those who read check hashes themselves.
fn sum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// How full a shelf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that it may hold.
    pub capacity: u64,
    /// Bytes that it holds.
    pub used: u64,
    /// Packs that it holds.
    pub packs: u64,
    /// Bytes that it keeps for packs to come.
    pub kept: u64,
}

/// Where the bytes of a pack come from.
pub trait Source {
    /// Fills a buffer with the next ones.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()>;
    /// Says whether all of them are what they should be. Until then nobody may see them.
    fn finish(&mut self) -> Result<()>;
}

/// Bytes that are here and checked already; there must be as many as are asked for.
impl Source for &[u8] {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let (some, rest) = self.split_at(buffer.len());
        buffer.copy_from_slice(some);
        *self = rest;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Bytes of a pack, wherever they lie.
pub trait Bulk: Send {
    /// In order.
    fn slices(&self) -> Vec<&[u8]>;
}

impl Bulk for Vec<u8> {
    fn slices(&self) -> Vec<&[u8]> {
        vec![self]
    }
}

/// A place for packs, and for shards of them, that is lent. Bytes are checked when they are given: what has rotted is an error, and never leaves.
pub trait Shelf: Send + Sync {
    /// Takes a pack, if there is room; over one of that name only if it `replaces`.
    fn take(&self, item: Item, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()>;
    /// Whether there would be room for a pack at this moment: nothing, or the error with which it would not be taken.
    fn check_room(&self, item: Item, len: u64) -> Result<()>;
    /// Keeps room for packs of a writer that are to come, for half a minute, if there is as much; how much there is.
    fn keep_room(&self, writer: WriterId, wish: Wish) -> u64;
    /// Gives some bytes of a pack.
    fn give(&self, item: Item, offset: u64, len: u64) -> Result<Box<dyn Bulk>>;
    /// The length of a pack.
    fn length(&self, item: Item) -> Result<u64>;
    /// Makes packs survive a power cut, where that is possible at all.
    fn sync(&self, items: &[Item]) -> Result<()>;
    /// At most `most` packs and their lengths, in order, behind one of them.
    fn list(&self, after: Option<Item>, most: usize) -> Result<Vec<(Item, u64)>>;
    /// Removes packs; those that are not there are passed over.
    fn remove(&self, items: &[Item]) -> Result<()>;
    /// What is here of one pack: all of it, or shards.
    fn items_of(&self, pack: PackName) -> Result<Vec<Item>> {
        let whole = Item::from(pack);
        let mut items = Vec::from_iter(self.length(whole).is_ok().then_some(whole));
        let shards = self.list(Some(whole), usize::from(Code::COUNT_MAX))?;
        items.extend(shards.into_iter().map(|(item, _)| item).take_while(|item| item.pack == pack));
        Ok(items)
    }
    /// Gives back some of what was got and is not needed any more. Called now and then.
    fn tidy(&self) {}
    /// Gets some of what the packs to come will need, while nobody waits for it. Called now and then.
    fn get_ahead(&self) {}
    /// How full it is.
    fn usage(&self) -> Usage;
}
