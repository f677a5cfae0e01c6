//! Where the bytes of a pack lie in its shards, and what a shard says of itself.

use stdchk_object::wire::Reader;
use stdchk_object::{Code, Error, PackName, Result};

/// Bytes of a block, which has a sum of its own and is coded by itself.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Bytes at the end of a shard that say which one it is.
pub const TAIL_BYTES: usize = 56;
/// Shards are as long as a multiple of this.
const GRAIN: u64 = 64;
/// A pack that is no longer has one shard of data: cutting it would only make files.
const SMALL: u64 = 64 << 10;

const MAGIC: [u8; 8] = *b"STDCHKSH";
const VERSION: u16 = 1;

/// Tells rot, not malice: who reads a pack checks its hashes.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// How a pack is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    code: Code,
    pack_len: u64,
}

/// A stretch of a pack that lies in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which shard.
    pub index: u8,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Layout {
    /// How a pack of that length is cut where the code is `code`.
    pub fn of(code: Code, pack_len: u64) -> Layout {
        let code = match pack_len <= SMALL {
            true => Code::new(1, code.parity()).expect("parity as it was"),
            false => code,
        };
        Layout { code, pack_len }
    }

    /// How a pack in the place of one that was cut so is cut: the same way, if it is as long.
    pub fn again(self, pack_len: u64) -> Layout {
        if pack_len == self.pack_len { self } else { Layout::of(self.code, pack_len) }
    }

    /// The code that this pack has: one shard of data where it is small.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The length of the pack.
    pub fn pack_len(&self) -> u64 {
        self.pack_len
    }

    /// All shards.
    pub fn count(&self) -> u8 {
        self.code.count()
    }

    /// Bytes of a shard, without what it says of itself.
    pub fn shard_len(&self) -> u64 {
        self.pack_len.div_ceil(u64::from(self.code.data())).next_multiple_of(GRAIN).max(GRAIN)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.shard_len().div_ceil(BLOCK_BYTES as u64)
    }

    /// Bytes of a block.
    pub(crate) fn block_len(&self, block: u64) -> usize {
        (self.shard_len() - block * BLOCK_BYTES as u64).min(BLOCK_BYTES as u64) as usize
    }

    /// Bytes of a shard as it is stored: its own, a u64 sum of each block, and its tail.
    pub fn stored_len(&self) -> u64 {
        self.shard_len() + self.blocks() * 8 + TAIL_BYTES as u64
    }

    /// How many bytes of a shard as it is stored lie behind place `at` of the pack: those of a shard of parity are behind all.
    pub fn stored_behind(&self, index: u8, at: u64) -> u64 {
        let before = match index < self.code.data() {
            true => at.saturating_sub(u64::from(index) * self.shard_len()).min(self.shard_len()),
            false => self.shard_len(),
        };
        self.stored_len() - before
    }

    /// Where bytes of the pack lie; they must be its own.
    pub fn segments(&self, offset: u64, len: u64) -> impl Iterator<Item = Segment> + use<> {
        let (shard, end) = (self.shard_len(), offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            let (index, skip) = (at / shard, at % shard);
            let len = (shard - skip).min(end - at);
            at += len;
            (len > 0).then_some(Segment { index: index as u8, offset: skip, len })
        })
    }

    /// What a shard says of itself; `sums` are those of its blocks.
    pub(crate) fn tail(&self, name: PackName, index: u8, sums: &[u8]) -> [u8; TAIL_BYTES] {
        let mut tail = [0; TAIL_BYTES];
        tail[..8].copy_from_slice(&MAGIC);
        tail[8..10].copy_from_slice(&VERSION.to_le_bytes());
        tail[10..13].copy_from_slice(&[self.code.data(), self.code.parity(), index]);
        tail[16..32].copy_from_slice(&name.to_bytes());
        tail[32..40].copy_from_slice(&self.pack_len.to_le_bytes());
        let own = sum(&tail[..40]);
        tail[40..48].copy_from_slice(&own.to_le_bytes());
        tail[48..].copy_from_slice(&sum(sums).to_le_bytes());
        tail
    }

    /// What the end of a stored shard says: how its pack is cut, and which shard it is. `stored_len` is how long it is with all of that.
    pub fn of_tail(name: PackName, tail: &[u8], stored_len: u64) -> Result<(Layout, u8)> {
        let bad = |why: &str| Error::corrupt(format!("a shard of pack {name}: {why}"));
        if tail.len() != TAIL_BYTES || tail[..8] != MAGIC {
            return Err(bad("it is none"));
        }
        if tail[40..48] != sum(&tail[..40]).to_le_bytes() {
            return Err(bad("its end is damaged"));
        }
        let mut reader = Reader::new(&tail[8..40], "shard");
        let version = reader.u16()?;
        if version != VERSION {
            let text =
                format!("a shard of pack {name} has version {version}, which this program does not know");
            return Err(Error::new(stdchk_object::Kind::Unsupported, text));
        }
        let code = Code::decode(&mut reader)?;
        let index = reader.u8()?;
        reader.raw(3)?;
        let of = PackName::decode(&mut reader)?;
        let layout = Layout { code, pack_len: reader.u64()? };
        let fits = of == name && index < layout.count() && layout.pack_len <= 1 << 40;
        if fits && layout.stored_len() == stored_len {
            Ok((layout, index))
        } else {
            Err(bad("it is another one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::SessionId;

    #[test]
    fn bytes_are_found_in_their_shards() {
        let layout = Layout::of(Code::new(4, 2).unwrap(), 1_000_000);
        assert_eq!(layout.shard_len(), 250_048);
        let segments: Vec<Segment> = layout.segments(250_000, 300_000).collect();
        let segment = |index, offset, len| Segment { index, offset, len };
        assert_eq!(segments, [segment(0, 250_000, 48), segment(1, 0, 250_048), segment(2, 0, 49_904)]);
        assert_eq!(layout.segments(1_000_000, 0).count(), 0);
        let small = Layout::of(Code::new(4, 2).unwrap(), 100);
        assert_eq!((small.code().to_string().as_str(), small.shard_len()), ("1+2", 128));
    }

    #[test]
    fn what_lies_behind_a_place_is_known_of_each_shard() {
        let layout = Layout::of(Code::new(4, 2).unwrap(), 1_000_000);
        let (whole, end) = (layout.stored_len(), layout.stored_len() - layout.shard_len());
        let behind = |at| (0..6).map(|index| layout.stored_behind(index, at)).collect::<Vec<_>>();
        assert_eq!(behind(0), [whole, whole, whole, whole, end, end]);
        assert_eq!(behind(260_000), [end, whole - 9952, whole, whole, end, end]);
        assert_eq!(behind(1_000_000), [end, end, end, end + 192, end, end]);
    }

    #[test]
    fn tails_say_which_shard_it_is() {
        let name = PackName { session: SessionId(1), writer: 2, number: 3 };
        let layout = Layout::of(Code::new(8, 2).unwrap(), 1 << 20);
        let tail = layout.tail(name, 9, &[1; 24]);
        let stored = layout.stored_len();
        assert_eq!(Layout::of_tail(name, &tail, stored).unwrap(), (layout, 9));
        assert!(Layout::of_tail(PackName { writer: 4, ..name }, &tail, stored).is_err());
        assert!(Layout::of_tail(name, &tail, stored + 1).is_err());
        for at in 0..48 {
            let mut torn = tail;
            torn[at] ^= 4;
            assert!(Layout::of_tail(name, &torn, stored).is_err(), "byte {at}");
        }
        assert!(Layout::of_tail(name, &layout.tail(name, 10, &[]), stored).is_err(), "no such shard");
    }
}
