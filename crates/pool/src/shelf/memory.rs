//! Memory that is lent, in blocks: they are got when they are first needed, used again, and given back when the packs in them go.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use stdchk_object::{Error, Item, Kind, Result};

use super::{BLOCK_BYTES, Bulk, Room, Shelf, Source, Usage, Wish, WriterId, sum};

/// Blocks without a pack that are always kept, because memory that was never touched is slow to get.
const SPARE_BLOCKS: usize = 1024;
/// Of the others, one in so many is given back with each tidying.
const GIVEN_BACK: usize = 64;
/// Where packs come, so many are got ahead at a time, until there are as many as are always kept.
const GOT_AHEAD: usize = 256;

type Block = Box<[u8]>;

/// What is in memory that was got ahead. Were it zero, the kernel would only promise it.
const TOUCHED: u8 = 1;

/// A pack in memory.
struct Pack {
    len: u64,
    blocks: Vec<Block>,
    /// Of each block: what rots in memory does not leave it.
    sums: Vec<u64>,
    home: Arc<Mutex<Vec<Block>>>,
}

impl Drop for Pack {
    fn drop(&mut self) {
        self.home.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).append(&mut self.blocks);
    }
}

/// Memory as a shelf.
pub struct LentMemory {
    inner: Mutex<Inner>,
    spare: Arc<Mutex<Vec<Block>>>,
}

struct Inner {
    packs: BTreeMap<Item, Arc<Pack>>,
    /// By bytes of blocks.
    room: Room,
}

/// Bytes of blocks that a pack needs.
fn room_for(len: u64) -> u64 {
    len.div_ceil(BLOCK_BYTES as u64) * BLOCK_BYTES as u64
}

fn missing(item: Item) -> Error {
    Error::new(Kind::NotFound, format!("pack {item} is not here"))
}

impl LentMemory {
    /// Lends so many bytes.
    pub fn new(capacity: u64) -> LentMemory {
        let inner = Inner { packs: BTreeMap::new(), room: Room::new(capacity) };
        LentMemory { inner: Mutex::new(inner), spare: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn find(&self, item: Item) -> Result<Arc<Pack>> {
        self.inner().packs.get(&item).cloned().ok_or_else(|| missing(item))
    }

    fn block(&self) -> Block {
        let spare = self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        spare.unwrap_or_else(|| vec![0; BLOCK_BYTES].into())
    }

    fn fill(&self, len: u64, source: &mut dyn Source) -> Result<Pack> {
        let mut pack = Pack { len, blocks: Vec::new(), sums: Vec::new(), home: self.spare.clone() };
        let mut left = len;
        while left > 0 {
            let mut block = self.block();
            let some = left.min(BLOCK_BYTES as u64) as usize;
            source.fill(&mut block[..some])?;
            pack.sums.push(sum(&block[..some]));
            pack.blocks.push(block);
            left -= some as u64;
        }
        source.finish()?;
        Ok(pack)
    }
}

impl Pack {
    /// The bytes of a block, as far as the pack reaches.
    fn block(&self, at: usize) -> &[u8] {
        let begin = (at * BLOCK_BYTES) as u64;
        &self.blocks[at][..(self.len - begin).min(BLOCK_BYTES as u64) as usize]
    }
}

/// Some bytes of a pack, which stays as long as they are needed.
struct Part {
    pack: Arc<Pack>,
    offset: u64,
    len: u64,
}

impl Bulk for Part {
    fn slices(&self) -> Vec<&[u8]> {
        let (mut at, end) = (self.offset, self.offset + self.len);
        let mut slices = Vec::new();
        while at < end {
            let (block, skip) = ((at / BLOCK_BYTES as u64) as usize, (at % BLOCK_BYTES as u64) as usize);
            let bytes = &self.pack.block(block)[skip..];
            let bytes = &bytes[..bytes.len().min((end - at) as usize)];
            slices.push(bytes);
            at += bytes.len() as u64;
        }
        slices
    }
}

impl Shelf for LentMemory {
    fn take(&self, item: Item, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()> {
        let room = room_for(len);
        {
            let mut inner = self.inner();
            if inner.packs.contains_key(&item) && !replaces {
                return Err(Error::new(Kind::Exists, format!("pack {item} is here already")));
            }
            // Room is taken before bytes come, so that all who are under way have theirs.
            inner.room.take(item, len, room)?;
        }
        let taken = self.fill(len, source);
        let mut inner = self.inner();
        let outcome = match taken {
            Ok(_) if inner.packs.contains_key(&item) && !replaces => {
                Err(Error::new(Kind::Exists, format!("pack {item} is here already")))
            }
            Ok(pack) => Ok(inner.packs.insert(item, Arc::new(pack))),
            Err(error) => Err(error),
        };
        match &outcome {
            Ok(old) => inner.room.give(old.as_ref().map_or(0, |old| room_for(old.len))),
            Err(_) => inner.room.give(room),
        }
        outcome.map(drop)
    }

    fn check_room(&self, item: Item, len: u64) -> Result<()> {
        self.inner().room.check(item, len, room_for(len))
    }

    fn keep_room(&self, writer: WriterId, wish: Wish) -> u64 {
        self.inner().room.keep(writer, wish)
    }

    fn give(&self, item: Item, offset: u64, len: u64) -> Result<Box<dyn Bulk>> {
        let pack = self.find(item)?;
        let Some(end) = offset.checked_add(len).filter(|&end| end <= pack.len) else {
            return Err(Error::corrupt(format!("pack {item} ends before byte {offset}+{len}")));
        };
        let block = BLOCK_BYTES as u64;
        for at in (offset / block) as usize..end.div_ceil(block) as usize {
            if sum(pack.block(at)) != pack.sums[at] {
                // It is none any more: others are asked, and whoever looks for copies sees that one is missing.
                self.remove(&[item])?;
                return Err(Error::corrupt(format!("pack {item} has rotted in memory")));
            }
        }
        Ok(Box::new(Part { pack, offset, len }))
    }

    fn length(&self, item: Item) -> Result<u64> {
        self.find(item).map(|pack| pack.len)
    }

    fn sync(&self, items: &[Item]) -> Result<()> {
        items.iter().try_for_each(|&item| self.find(item).map(drop))
    }

    fn list(&self, after: Option<Item>, most: usize) -> Result<Vec<(Item, u64)>> {
        let inner = self.inner();
        let behind = inner.packs.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        Ok(behind.take(most).map(|(item, pack)| (*item, pack.len)).collect())
    }

    fn remove(&self, items: &[Item]) -> Result<()> {
        let mut inner = self.inner();
        let gone: Vec<Arc<Pack>> = items.iter().filter_map(|item| inner.packs.remove(item)).collect();
        inner.room.give(gone.iter().map(|pack| room_for(pack.len)).sum());
        // Their memory is given back when the last reader is done, and not under this lock.
        drop(inner);
        drop(gone);
        Ok(())
    }

    fn tidy(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let kept = spare.len() - spare.len().saturating_sub(SPARE_BLOCKS).div_ceil(GIVEN_BACK);
        let given = spare.split_off(kept);
        drop(spare);
        drop(given);
    }

    fn get_ahead(&self) {
        let spare = || self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Usage { capacity, used, .. } = self.usage();
        let room = (capacity.saturating_sub(used) / BLOCK_BYTES as u64).min(SPARE_BLOCKS as u64) as usize;
        let missing = room.saturating_sub(spare().len()).min(GOT_AHEAD);
        if used == 0 || missing == 0 {
            return;
        }
        let got: Vec<Block> = (0..missing).map(|_| vec![TOUCHED; BLOCK_BYTES].into()).collect();
        // Used last, as those that lie in no cache.
        spare().splice(..0, got);
    }

    fn usage(&self) -> Usage {
        let inner = self.inner();
        inner.room.usage(inner.packs.len())
    }
}
