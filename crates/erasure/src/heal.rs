//! Making damaged and lost shards again.

use stdchk_object::{PackName, Result};

use crate::coder::restore;
use crate::layout::{BLOCK_BYTES, Layout, TAIL_BYTES, sum};
use crate::shard::Encoded;

/// How many ways are tried to leave out shards that lie: they fit their sums, and not the pack.
const TRIES_MAX: usize = 400;

/// A pack that was brought back.
pub struct Healed {
    /// Its bytes.
    pub pack: Vec<u8>,
    /// The shards that are not as they should be, as they are to be stored.
    pub bad: Vec<(u8, Vec<u8>)>,
}

/// A shard as it was found.
struct Found<'a> {
    index: u8,
    bytes: &'a [u8],
    /// Which of its blocks fit their sums.
    good: Vec<bool>,
}

/// Brings a pack back from what is stored of its shards, `None` for those that are gone, by place. `is_right` says whether a pack is
/// what it should be. `None` if there is no way.
pub fn heal(
    name: PackName,
    stored: &[Option<Vec<u8>>],
    is_right: impl Fn(&[u8]) -> bool,
) -> Result<Option<Healed>> {
    let Some(layout) = layout_of(name, stored) else { return Ok(None) };
    let found: Vec<Found> = (0..layout.count())
        .zip(stored)
        .filter_map(|(index, bytes)| look_at(&layout, index, bytes.as_deref()?))
        .collect();
    for without in ways_to_leave_out(layout.count(), layout.code().parity()) {
        let Some(pack) = assemble(&layout, &found, &without)? else { continue };
        if is_right(&pack) {
            let bad = bad_shards(name, &layout, &pack, stored)?;
            return Ok(Some(Healed { pack, bad }));
        }
    }
    Ok(None)
}

/// How the pack is cut, by what most of its shards say.
fn layout_of(name: PackName, stored: &[Option<Vec<u8>>]) -> Option<Layout> {
    let said = |bytes: &Vec<u8>| {
        let tail = &bytes[bytes.len().checked_sub(TAIL_BYTES)?..];
        Layout::of_tail(name, tail, bytes.len() as u64).ok().map(|(layout, _)| layout)
    };
    let said: Vec<Layout> = stored.iter().flatten().filter_map(said).collect();
    said.iter().copied().max_by_key(|layout| said.iter().filter(|other| *other == layout).count())
}

/// Whether what is stored of a shard is that shard, whole: its end, and every block by its sum.
pub fn is_whole(name: PackName, layout: &Layout, index: u8, stored: &[u8]) -> bool {
    let Some(sums_and_tail) = stored.get(layout.shard_len() as usize..) else { return false };
    let Some((sums, tail)) = sums_and_tail.split_last_chunk::<TAIL_BYTES>() else { return false };
    *tail == layout.tail(name, index, sums)
        && look_at(layout, index, stored).is_some_and(|found| found.good.iter().all(|good| *good))
}

/// A shard may be cut short, or lack its end: each block stands for itself, as far as its sum is there.
fn look_at<'a>(layout: &Layout, index: u8, bytes: &'a [u8]) -> Option<Found<'a>> {
    let sums = bytes.get(layout.shard_len() as usize..)?;
    let good = (0..layout.blocks()).map(|block| {
        let at = block as usize * BLOCK_BYTES;
        let known = sums.get(block as usize * 8..block as usize * 8 + 8);
        known.is_some_and(|known| sum(&bytes[at..at + layout.block_len(block)]).to_le_bytes() == *known)
    });
    Some(Found { index, bytes, good: good.collect() })
}

/// First nothing, then each shard, then each two, as far as the code allows.
fn ways_to_leave_out(count: u8, parity: u8) -> impl Iterator<Item = Vec<u8>> {
    let ones = (0..count).map(|one| vec![one]);
    let twos = (0..count).flat_map(move |one| (one + 1..count).map(move |two| vec![one, two]));
    let all = std::iter::once(Vec::new()).chain(ones).chain(twos);
    all.filter(move |without| without.len() <= parity.into()).take(TRIES_MAX)
}

/// The pack from blocks that fit their sums.
fn assemble(layout: &Layout, found: &[Found], without: &[u8]) -> Result<Option<Vec<u8>>> {
    let (data, shard_len) = (layout.code().data(), layout.shard_len() as usize);
    let mut pack = vec![0; usize::from(data) * shard_len];
    for block in 0..layout.blocks() {
        let (at, len) = (block as usize * BLOCK_BYTES, layout.block_len(block));
        let good = found.iter().filter(|shard| shard.good[block as usize] && !without.contains(&shard.index));
        let row: Vec<(u8, &[u8])> =
            good.map(|shard| (shard.index, &shard.bytes[at..at + len])).take(data.into()).collect();
        if row.len() < data.into() {
            return Ok(None);
        }
        let mut place = |index: u8, bytes: &[u8]| {
            let start = usize::from(index) * shard_len + at;
            pack[start..start + len].copy_from_slice(bytes);
        };
        let is_there = |index: &u8| row.iter().any(|(there, _)| there == index);
        let missing: Vec<u8> = (0..data).filter(|index| !is_there(index)).collect();
        row.iter().filter(|(index, _)| *index < data).for_each(|(index, bytes)| place(*index, bytes));
        if !missing.is_empty() {
            restore(layout.code(), &row, &missing, place)?;
        }
    }
    pack.truncate(layout.pack_len() as usize);
    Ok(Some(pack))
}

fn bad_shards(
    name: PackName,
    layout: &Layout,
    pack: &[u8],
    stored: &[Option<Vec<u8>>],
) -> Result<Vec<(u8, Vec<u8>)>> {
    let pieces = [pack];
    let encoded = Encoded::again(name, *layout, &pieces)?;
    let wanted = encoded.shards().map(|(index, pieces)| (index, pieces.concat()));
    let is_bad = |(index, bytes): &(u8, Vec<u8>)| {
        stored.get(usize::from(*index)).and_then(Option::as_ref) != Some(bytes)
    };
    Ok(wanted.filter(is_bad).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checked, Shards, read};
    use proptest::prelude::*;
    use stdchk_object::{Code, Error, Kind, SessionId};

    const NAME: PackName = PackName { session: SessionId(7), writer: 1, number: 2 };

    struct Held(Vec<Option<Vec<u8>>>);

    impl Shards for Held {
        fn read(&self, index: u8, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
            let bytes = self.0[usize::from(index)].as_ref();
            let bytes = bytes.ok_or_else(|| Error::new(Kind::NotFound, "gone"))?;
            let mut rest = bytes.get(offset as usize..).ok_or_else(|| Error::corrupt("short"))?;
            for buffer in buffers {
                let (head, tail) =
                    rest.split_at_checked(buffer.len()).ok_or_else(|| Error::corrupt("short"))?;
                buffer.copy_from_slice(head);
                rest = tail;
            }
            Ok(())
        }
    }

    fn pack(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
    }

    fn shards(code: Code, pack: &[u8]) -> (Layout, Held) {
        // Uneven pieces, as packs are made of.
        let pieces: Vec<&[u8]> = pack.chunks(10_007).collect();
        let encoded = Encoded::new(NAME, code, &pieces).unwrap();
        let held = encoded.shards().map(|(_, pieces)| Some(pieces.concat())).collect();
        (encoded.layout(), Held(held))
    }

    fn read_all(layout: &Layout, shards: &dyn Shards) -> Result<Vec<u8>> {
        let mut bytes = vec![0; layout.pack_len() as usize];
        let (one, two) = bytes.split_at_mut(layout.pack_len() as usize / 3);
        read(layout, shards, &[], 0, &mut [one, &mut [], two])?;
        Ok(bytes)
    }

    /// The same on every machine and in every version: what is stored must stay readable.
    #[test]
    fn parity_does_not_change() {
        let (_, held) = shards(Code::new(4, 2).unwrap(), &pack(300_000));
        let sums: Vec<u64> = held.0.iter().flatten().map(|shard| sum(shard)).collect();
        assert_eq!(sums, GOLDEN);
    }
    const GOLDEN: [u64; 6] = [
        2751425894892762474,
        15954163696377255644,
        1453652333900769811,
        16060783772426546185,
        8226127882814262271,
        14567328720201485708,
    ];

    #[test]
    fn liars_are_found_out() {
        let original = pack(200_000);
        let (layout, mut held) = shards(Code::new(4, 2).unwrap(), &original);
        for liar in [1, 5] {
            let bytes = held.0[liar].as_mut().unwrap();
            bytes[70] ^= 1;
            let at = layout.shard_len() as usize;
            let own = sum(&bytes[..at]).to_le_bytes();
            bytes[at..at + 8].copy_from_slice(&own);
        }
        let healed = heal(NAME, &held.0, |pack| pack == original).unwrap().unwrap();
        assert!(healed.pack == original);
        assert_eq!(healed.bad.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 5]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Up to M shards are gone, cut short or flipped at many places: the pack is read all the same, and healed.
        #[test]
        fn any_m_shards_may_be_lost(
            data in 1u8..10, parity in 1u8..5, len in 1usize..1_500_000,
            hurt in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<prop::sample::Index>()), 0..4),
        ) {
            let code = Code::new(data, parity).unwrap();
            let original = pack(len);
            let (layout, whole) = shards(code, &original);
            let mut held = Held(whole.0.clone());
            let mut hit = std::collections::BTreeSet::new();
            for (at, how, place) in hurt.iter().take(parity.into()) {
                let index = at.index(held.0.len());
                hit.insert(index as u8);
                let Some(bytes) = held.0[index].as_mut() else { continue };
                let place = place.index(bytes.len());
                match how {
                    0 => held.0[index] = None,
                    1 => bytes.truncate(place),
                    2 => bytes[place] ^= 0x20,
                    _ => bytes[place / 2..].fill(0xff),
                }
            }
            let checked = Checked { shards: &held, layout };
            prop_assert!(read_all(&layout, &checked).unwrap() == original);
            let healed = heal(NAME, &held.0, |pack| pack == original).unwrap().unwrap();
            prop_assert!(healed.pack == original);
            prop_assert!(healed.bad.iter().all(|(index, _)| hit.contains(index)));
            for (index, shard) in (0..).zip(&held.0) {
                let is_bad = healed.bad.iter().any(|(bad, _)| *bad == index);
                let is_whole = shard.as_ref().is_some_and(|shard| is_whole(NAME, &layout, index, shard));
                prop_assert_eq!(is_whole, !is_bad);
            }
            for (index, bytes) in healed.bad {
                held.0[usize::from(index)] = Some(bytes);
            }
            prop_assert!(held.0 == whole.0, "all shards are as they were");
        }

        #[test]
        fn without_k_shards_nothing_comes(data in 1u8..6, parity in 1u8..4, len in 1usize..300_000) {
            let original = pack(len);
            let (layout, mut held) = shards(Code::new(data, parity).unwrap(), &original);
            held.0.iter_mut().take(usize::from(layout.code().parity()) + 1).for_each(|shard| *shard = None);
            prop_assert!(read_all(&layout, &held).is_err());
            prop_assert!(heal(NAME, &held.0, |pack| pack == original).unwrap().is_none());
        }
    }
}
