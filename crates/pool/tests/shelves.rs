//! What is lent: that it gives what it took, within its limits, and nothing that has rotted.

use std::sync::Arc;

use stdchk_kit::{Random, SimFs};
use stdchk_object::{Error, Item, Kind, PackName, Result, SessionId};
use stdchk_pool::{LentDisk, LentMemory, Shelf, Source};

/// Bytes that come, and whether they are what was sent.
struct Coming<'b>(&'b [u8], bool);

impl Source for Coming<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.0.fill(buffer)
    }

    fn finish(&mut self) -> Result<()> {
        if self.1 { Ok(()) } else { Err(Error::corrupt("not what was sent")) }
    }
}

fn name(number: u32) -> Item {
    PackName { session: SessionId(u64::from(number) << 58), writer: 1, number }.into()
}

fn take(shelf: &dyn Shelf, number: u32, bytes: &[u8]) -> Result<()> {
    shelf.take(name(number), bytes.len() as u64, false, &mut Coming(bytes, true))
}

fn give(shelf: &dyn Shelf, number: u32, offset: u64, len: u64) -> Result<Vec<u8>> {
    Ok(shelf.give(name(number), offset, len)?.slices().concat())
}

fn keeps_its_word(shelf: &dyn Shelf) {
    let bytes = Random::new(3).bytes(300_000);
    for number in 0..4 {
        take(shelf, number, &bytes[..number as usize * 90_001]).unwrap();
    }
    assert_eq!(take(shelf, 1, b"again").unwrap_err().kind(), Kind::Exists);
    let torn = shelf.take(name(9), 5, false, &mut Coming(b"wrong", false));
    assert_eq!(torn.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(shelf.length(name(9)).unwrap_err().kind(), Kind::NotFound);
    for (offset, len) in [(0, 270_003), (0, 0), (270_003, 0), (65_535, 2), (65_536, 131_072), (1, 270_002)] {
        let (from, to) = (offset as usize, (offset + len) as usize);
        assert!(give(shelf, 3, offset, len).unwrap() == bytes[from..to], "{offset}+{len}");
    }
    for (offset, len) in [(0, 270_004), (270_004, 0), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(give(shelf, 3, offset, len).unwrap_err().kind(), Kind::Corrupt, "{offset}+{len}");
    }
    assert_eq!(give(shelf, 7, 0, u64::MAX).unwrap_err().kind(), Kind::NotFound);
    assert!(give(shelf, 0, 0, 0).unwrap().is_empty());
    assert_eq!(shelf.list(None, 2).unwrap(), [(name(0), 0), (name(1), 90_001)]);
    assert_eq!(shelf.list(Some(name(1)), 9).unwrap(), [(name(2), 180_002), (name(3), 270_003)]);
    shelf.sync(&[name(1), name(2)]).unwrap();
    assert_eq!(shelf.sync(&[name(7)]).unwrap_err().kind(), Kind::NotFound);
    shelf.take(name(2), 3, true, &mut Coming(b"new", true)).unwrap();
    assert_eq!(give(shelf, 2, 0, 3).unwrap(), b"new");
    let pack = name(5).pack;
    for item in [Item::shard(pack, 40), Item::shard(pack, 3), pack.into()] {
        shelf.take(item, 3, false, &mut Coming(b"abc", true)).unwrap();
    }
    take(shelf, 6, b"of another pack").unwrap();
    assert_eq!(shelf.items_of(pack).unwrap(), [pack.into(), Item::shard(pack, 3), Item::shard(pack, 40)]);
    shelf.remove(&[Item::shard(pack, 3), name(6)]).unwrap();
    assert_eq!(shelf.items_of(pack).unwrap().len(), 2, "each for itself");
    shelf.remove(&shelf.items_of(pack).unwrap()).unwrap();
    let full = take(shelf, 8, &vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), Kind::Full);
    shelf.remove(&[name(0), name(1), name(3), name(7)]).unwrap();
    take(shelf, 8, &vec![0; 900_000]).unwrap();
    shelf.remove(&[name(2), name(8)]).unwrap();
    // What is kept for one is refused to others, also where a pack comes that is torn.
    let all = shelf.usage().capacity;
    let wish = |bytes| stdchk_pool::Wish { bytes, of_shards: false, at_least: false };
    let writer = |number: u32| (name(number).pack.session, name(number).pack.writer);
    let most = shelf.keep_room(writer(1), wish(all));
    assert!(most < all && shelf.usage().kept == 0, "not all of it, and nothing rather than a part");
    assert_eq!(shelf.keep_room(writer(1), wish(most)), most);
    assert_eq!(take(shelf, 2, &vec![0; (all - most) as usize + 1]).unwrap_err().kind(), Kind::Full);
    assert!(shelf.take(name(1), 5, false, &mut Coming(b"wrong", false)).is_err());
    take(shelf, 1, &bytes).unwrap();
    assert_eq!(shelf.keep_room(writer(1), wish(0)), 0);
    take(shelf, 2, b"other").unwrap();
    shelf.remove(&[name(1), name(2)]).unwrap();
    assert_eq!((shelf.usage().used, shelf.usage().packs, shelf.usage().kept), (0, 0, 0));
}

#[test]
fn shelves_keep_their_word() {
    keeps_its_word(&LentMemory::new(1 << 20));
    // What is got ahead, as soon as packs come, is neither seen in them nor counted.
    let ahead = LentMemory::new(1 << 20);
    take(&ahead, 20, b"a first one").unwrap();
    ahead.get_ahead();
    ahead.remove(&[name(20)]).unwrap();
    keeps_its_word(&ahead);
    let fs = Arc::new(SimFs::new());
    keeps_its_word(&LentDisk::open(fs.clone(), "sim", 1 << 20).unwrap());
    assert!(fs.files().is_empty(), "nothing is left behind");
}

#[test]
fn a_power_cut_leaves_packs_whole_or_none() {
    for seed in 0..60 {
        let fs = Arc::new(SimFs::new());
        let disk = LentDisk::open(fs.clone(), "sim", 1 << 30).unwrap();
        let bytes = Random::new(seed).bytes(150_000);
        take(&disk, 1, &bytes).unwrap();
        disk.sync(&[name(1)]).unwrap();
        take(&disk, 2, &bytes[7..]).unwrap();
        fs.power_cut(&mut Random::new(seed));
        let disk = LentDisk::open(fs, "sim", 1 << 30).unwrap();
        assert!(give(&disk, 1, 0, 150_000).unwrap() == bytes, "synced");
        match give(&disk, 2, 0, 149_993) {
            Ok(read) => assert!(read == bytes[7..], "seed {seed}"),
            Err(error) => assert!(matches!(error.kind(), Kind::NotFound | Kind::Corrupt), "{error}"),
        }
        // What was found to be torn is none any more, and may come again.
        if disk.length(name(2)).is_err() {
            take(&disk, 2, &bytes[7..]).unwrap();
            assert!(give(&disk, 2, 5, 100).unwrap() == bytes[12..112]);
        }
    }
}

#[test]
fn what_has_rotted_on_disk_does_not_leave_it() {
    let fs = Arc::new(SimFs::new());
    let disk = LentDisk::open(fs.clone(), "sim", 1 << 30).unwrap();
    let bytes = Random::new(1).bytes(200_000);
    take(&disk, 1, &bytes).unwrap();
    let (path, whole) = fs.files().into_iter().next().unwrap();
    for at in (0..whole.len()).step_by(997).chain(whole.len() - 16..whole.len()) {
        let mut rotten = whole.clone();
        rotten[at] ^= 4;
        fs.overwrite(&path, rotten);
        let disk = LentDisk::open(fs.clone(), "sim", 1 << 30).unwrap();
        match give(&disk, 1, 0, 200_000) {
            Ok(_) => panic!("byte {at} is not looked at"),
            Err(_) => assert_eq!(disk.length(name(1)).unwrap_err().kind(), Kind::NotFound, "byte {at}"),
        }
    }
}
