//! The contracts of storage: [`Store`] for packs, [`Objects`] for the small named objects of a catalog.
//!
//! Both are small, take batches where it matters, and block; an adapter owns its own concurrency. Every
//! implementation and every wrapper runs the same [`conformance`] suite.
#![forbid(unsafe_code)]

pub mod conformance;
mod memory;
mod pieces;

pub use memory::MemoryStore;
pub use pieces::write_pieces;

use std::ops::Range;
use std::time::Duration;

use stdchk_object::{Error, Kind, PackName, Result, SessionId};

/// A place for packs. A pack is written once, whole, under a name that is never used again.
pub trait Store: Send + Sync {
    /// Writes a new pack made of `pieces`. Fails with [`Kind::Exists`](stdchk_object::Kind::Exists) if the
    /// name is taken. After any other failure the name may be there, torn; nothing refers to it.
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()>;

    /// The same, of a pack that is synced next, and of which only the last piece is read again soon: it need not go through a cache.
    fn put_past_cache(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.put(name, pieces)
    }

    /// Whether it is filled by others, too, and keeps room for those who say what comes.
    fn keeps_room(&self) -> bool {
        false
    }

    /// Says which packs a writer is likely to put next, and how long each will be at most: a store that others fill, too, may keep room for them, instead of
    /// what it has kept for this writer before, for a little while after it was last heard of. With none, what was not needed is given back.
    fn expect(&self, session: SessionId, writer: u32, packs: &[(PackName, u64)]) {
        let _ = (session, writer, packs);
    }

    /// Puts a pack in the place of a damaged one of that name, durably and at once: readers see the old or the
    /// new bytes. Only for repair, which makes the very bytes that were sealed.
    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()>;

    /// Makes packs durable: when it returns, their bytes and their names survive a power cut.
    fn sync(&self, names: &[PackName]) -> Result<()>;

    /// The length of a pack in bytes.
    fn length(&self, name: PackName) -> Result<u64>;

    /// Fills `buffers`, one after the other, with the pack's bytes from `offset` on. A pack that ends before is corrupt.
    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()>;

    /// Fills one buffer.
    fn read(&self, name: PackName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_into(name, offset, &mut [buffer])
    }

    /// Says what will be read soon: a store may fetch it meanwhile.
    fn will_read(&self, name: PackName, range: Range<u64>) {
        let _ = (name, range);
    }

    /// The number from which on a writer counts the packs that should lie close to it: a store of many places has one for each. 0 where
    /// they are all the same.
    fn near(&self) -> u32 {
        0
    }

    /// How many copies of a pack there may be.
    fn copies(&self) -> u32 {
        1
    }

    /// Fills a buffer from a certain copy, counted from 0, where the copy that [`Store::read`] takes is not what it should be. The first
    /// is as good as any.
    fn read_copy(&self, name: PackName, copy: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match copy {
            0 => self.read(name, offset, buffer),
            _ => Err(Error::new(Kind::NotFound, format!("there is no other copy of pack {name}"))),
        }
    }

    /// Says that some copy of a pack is not what it should be, and another one is: the store may look at all of them, and make anew those that
    /// are not whole.
    fn mend(&self, name: PackName) {
        let _ = name;
    }

    /// Whether all that is kept of a pack is there and as it should be, also what reading it does not touch: parity, other copies.
    fn is_sound(&self, name: PackName) -> Result<bool> {
        let _ = name;
        Ok(true)
    }

    /// Makes anew what is kept of a pack and is not as it should be, from what is. Whether that was enough is for [`Store::is_sound`] to say.
    fn heal(&self, name: PackName) -> Result<()> {
        let _ = name;
        Ok(())
    }

    /// Calls `each` with every pack and its length. What comes and goes meanwhile may be missed.
    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()>;

    /// Removes packs; those that are not there are passed over.
    fn remove(&self, names: &[PackName]) -> Result<()>;
}

/// A place for small objects with names like `log/0000000000000001`: one folder, one name.
pub trait Objects: Send + Sync {
    /// Creates an object unless it exists; says whether it did. Exactly one of several that try succeeds.
    /// An object is never visible in part, not even after a power cut. If `durable`, it survives one on return.
    fn create(&self, name: &str, bytes: &[u8], durable: bool) -> Result<bool>;

    /// Creates or replaces an object; readers see the old or the new one, never a mixture.
    fn replace(&self, name: &str, bytes: &[u8], durable: bool) -> Result<()>;

    /// The bytes of an object, or `None` if it is not there.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Some bytes of an object, fewer if it ends before, or `None` if it is not there.
    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>>;

    /// The names in a folder, without the folder, in any order. May lag behind what others do.
    fn names(&self, folder: &str) -> Result<Vec<String>>;

    /// Removes objects; those that are not there are passed over.
    fn delete(&self, names: &[String]) -> Result<()>;

    /// Makes all names in a folder durable.
    fn sync_folder(&self, folder: &str) -> Result<()>;

    /// Keeps some room for records that free space, where a place can be full. Doing it again does nothing.
    fn keep_room(&self) -> Result<()> {
        Ok(())
    }

    /// Whether as much room is kept as should be.
    fn keeps_room(&self) -> Result<bool> {
        Ok(true)
    }

    /// Gives up some of the room that was kept, enough for `bytes` more; says whether there was any.
    fn give_room(&self, bytes: u64) -> Result<bool> {
        let _ = bytes;
        Ok(false)
    }

    /// Time since each object of a folder was written last, by the store's own clock.
    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>>;
}
