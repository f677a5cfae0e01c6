//! Which checkpoints of an application there were: what is made of files must not come back by itself because they are still there.

use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Result};

/// Steps that are told apart at most.
const REMEMBERED: usize = 64;

/// How far in commit order checkpoints were dropped, by step.
///
/// What stays true: steps rise, and their places in commit order fall. What lies below both numbers of another one says nothing more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dropped(Vec<(u64, u64)>);

impl Dropped {
    /// The last place in commit order of those that were dropped of a step or later ones.
    pub fn since(&self, step: u64) -> Option<u64> {
        let at = self.0.partition_point(|&(known, _)| known < step);
        self.0.get(at).map(|&(_, sequence)| sequence)
    }

    pub(super) fn add(&mut self, step: u64, sequence: u64) {
        if self.since(step).is_some_and(|known| known >= sequence) {
            return;
        }
        self.0.retain(|&(known, at)| known > step || at > sequence);
        let at = self.0.partition_point(|&(known, _)| known < step);
        self.0.insert(at, (step, sequence));
        if let [.., (_, before), (last, _)] = self.0[..]
            && self.0.len() > REMEMBERED
        {
            // Rather too many than too few.
            self.0.truncate(REMEMBERED - 1);
            self.0.push((last, before));
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.varint(self.0.len() as u64);
        self.0.iter().flat_map(|&(step, sequence)| [step, sequence]).for_each(|n| out.varint(n));
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Dropped> {
        let count = reader.count(2)?;
        let all: Vec<(u64, u64)> =
            (0..count).map(|_| Ok((reader.varint()?, reader.varint()?))).collect::<Result<_>>()?;
        let is_sorted = all.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1);
        match is_sorted && count <= REMEMBERED {
            true => Ok(Dropped(all)),
            false => Err(Error::corrupt("dropped checkpoints that are not in order")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_last_of_that_step_or_later_ones() {
        let (mut dropped, mut all) = (Dropped::default(), Vec::<(u64, u64)>::new());
        let mut x: u64 = 88_172_645_463_325_252;
        for _ in 0..2000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (step, sequence) = (x % 50, (x >> 20) % 1000);
            dropped.add(step, sequence);
            all.push((step, sequence));
            for step in 0..52 {
                let last = all.iter().filter(|(known, _)| *known >= step).map(|(_, at)| *at).max();
                assert_eq!(dropped.since(step), last, "{step}");
            }
        }
    }

    #[test]
    fn there_are_never_too_many_and_none_is_forgotten() {
        let mut dropped = Dropped::default();
        for i in 0..1000 {
            dropped.add(i, 5000 - i);
            assert!(dropped.0.len() <= REMEMBERED);
            assert!((0..=i).all(|step| dropped.since(step) >= Some(5000 - step)));
        }
        assert_eq!((dropped.since(0), dropped.since(1000)), (Some(5000), None));
        let mut out = Writer::new();
        dropped.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(Dropped::decode(&mut Reader::new(&bytes, "dropped")).expect("it was encoded"), dropped);
    }

    #[test]
    fn what_is_out_of_order_is_refused() {
        for wrong in [[(1, 5), (1, 4)], [(1, 5), (2, 5)], [(2, 5), (1, 4)]] {
            let mut out = Writer::new();
            Dropped(wrong.to_vec()).encode(&mut out);
            assert!(Dropped::decode(&mut Reader::new(&out.into_bytes(), "dropped")).is_err(), "{wrong:?}");
        }
    }
}
