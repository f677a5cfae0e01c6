//! One version of the membership of a pool, and the order that it gives for a key.

use std::collections::BinaryHeap;

use crate::log::minus_log2;

/// One who lends memory or disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benefactor {
    /// Its identity, for as long as it lends: random, so that one who returns empty is another.
    pub id: u64,
    /// Its share, as [`weight_of`] has it.
    pub weight: u32,
    /// Its failure domain; those that are equal fail together.
    pub domain: u32,
}

/// Bytes of one unit of weight.
const WEIGHT_UNIT: u64 = 256 << 20;
/// Significant bits of a weight.
const WEIGHT_BITS: u32 = 3;

/// The weight of a capacity in bytes: in units of 256 MiB, rounded down to three significant bits, so that it does not follow every
/// small change. Less than a unit counts as one.
pub fn weight_of(capacity: u64) -> u32 {
    let units = (capacity / WEIGHT_UNIT).clamp(1, u64::from(u32::MAX)) as u32;
    let low = units.ilog2().saturating_sub(WEIGHT_BITS - 1);
    units >> low << low
}

/// What is placed: a number that says in which order the members come for it, and whom it prefers to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Drawn at random, or from a name.
    pub draw: u64,
    /// By [`home_of`] the member that comes first, if it is there; 0 for none.
    pub home: u16,
}

impl From<u64> for Key {
    fn from(draw: u64) -> Key {
        Key { draw, home: 0 }
    }
}

/// The number by which a key prefers a member. Few bits, so that a name has room for them: where there are tens of thousands of members, some have
/// the same.
pub fn home_of(member: u64) -> u16 {
    home_of_mixed(mix(member))
}

fn home_of_mixed(member: u64) -> u16 {
    ((member >> 48) as u16).max(1)
}

/// The members of a pool from one change to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Counts the epochs of a pool.
    pub number: u64,
    /// Who belongs to it.
    pub members: Vec<Benefactor>,
}

/// A member and how early it comes; the best is the greatest.
#[derive(Clone, Copy, PartialEq)]
struct Rank {
    is_home: bool,
    score: f64,
    id: u64,
    member: usize,
}

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Rank) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Rank) -> std::cmp::Ordering {
        let by_score = || self.score.total_cmp(&other.score).then(self.id.cmp(&other.id));
        self.is_home.cmp(&other.is_home).then_with(by_score)
    }
}

impl Epoch {
    /// All members, as places in the list, in the order of a key; what is not asked for is not sorted.
    pub fn order(&self, key: impl Into<Key>) -> Order {
        let key = key.into();
        let rank = |(member, benefactor): (usize, &Benefactor)| {
            let mixed = mix(benefactor.id);
            let draw = mix(key.draw ^ mixed).max(1);
            // A double holds both numbers exactly, and division is the same everywhere.
            let score = f64::from(benefactor.weight) / minus_log2(draw) as f64;
            Rank { is_home: key.home == home_of_mixed(mixed), score, id: benefactor.id, member }
        };
        Order(self.members.iter().enumerate().map(rank).collect::<Vec<_>>().into())
    }

    /// The `count` owners of a key: the first of its order that lie in different failure domains; where there are too few of these,
    /// the earliest of those passed over. Fewer only where there are not as many members.
    pub fn owners(&self, key: impl Into<Key>, count: usize) -> Vec<usize> {
        self.takers(key, count, |_| true)
    }

    /// The same among those that take it: `takes` is asked in the order of the key, until there are enough.
    pub fn takers(
        &self,
        key: impl Into<Key>,
        count: usize,
        mut takes: impl FnMut(usize) -> bool,
    ) -> Vec<usize> {
        let mut owners: Vec<usize> = Vec::with_capacity(count);
        let mut passed = Vec::new();
        let mut order = self.order(key).filter(|&member| takes(member));
        while owners.len() < count
            && let Some(member) = order.next()
        {
            let domain = self.members[member].domain;
            let is_taken = owners.iter().any(|&owner| self.members[owner].domain == domain);
            if is_taken { passed.push(member) } else { owners.push(member) }
        }
        let missing = count - owners.len();
        owners.extend(passed.into_iter().take(missing));
        owners
    }

    /// All members in the order of one shard of a key. Nobody is preferred: all shards but one would be elsewhere.
    pub fn shard_order(&self, key: u64, shard: u8) -> Order {
        self.order(mix(key ^ mix(u64::from(shard) + 1)))
    }

    /// A member for each of `count` shards of a key, `None` where nobody takes one. Each shard has an order of its own, and goes to the first who
    /// takes it and has none, in a failure domain that has not its part yet: as many as each has to have where they are shared evenly, rounded up. So
    /// a small domain does not get as much as a large one, and of a change of the membership hardly more shards hear than those that it is about.
    /// Where nobody is left like that, it is one who has fewest himself, and of these the one with the fewest in his domain: two with one member are worse than
    /// one too many in a domain.
    pub fn shard_takers(
        &self,
        key: u64,
        count: u8,
        mut takes: impl FnMut(u8, usize) -> bool,
    ) -> Vec<Option<usize>> {
        let part = usize::from(count).div_ceil(self.domains(count.into()).max(1));
        let mut owners: Vec<Option<usize>> = Vec::with_capacity(count.into());
        for shard in 0..count {
            let mine = |at: &Option<usize>, member: usize| *at == Some(member);
            let shares = |at: &Option<usize>, member: usize| {
                at.is_some_and(|at| self.members[at].domain == self.members[member].domain)
            };
            let crowd = |member: usize| {
                let in_domain = owners.iter().filter(|at| shares(at, member)).count();
                (in_domain, owners.iter().filter(|at| mine(at, member)).count())
            };
            let mut passed = Vec::new();
            let mut owner = None;
            for member in self.shard_order(key, shard) {
                let (in_domain, own) = crowd(member);
                if in_domain >= part || own > 0 {
                    passed.push(((in_domain, own), member));
                } else if takes(shard, member) {
                    owner = Some(member);
                    break;
                }
            }
            if owner.is_none() {
                passed.sort_by_key(|((in_domain, own), _)| (*own, *in_domain));
                owner = passed.iter().map(|(_, member)| *member).find(|&member| takes(shard, member));
            }
            owners.push(owner);
        }
        owners
    }

    /// How many failure domains there are, or as many as are asked for.
    fn domains(&self, most: usize) -> usize {
        let mut known = Vec::with_capacity(most);
        for member in &self.members {
            if known.len() == most {
                break;
            }
            if !known.contains(&member.domain) {
                known.push(member.domain);
            }
        }
        known.len()
    }

    /// The `width` members among which the packs of a writer are placed, as an epoch of its own.
    pub fn stripe(&self, writer: impl Into<Key>, width: usize) -> Epoch {
        let members = self.order(writer).take(width).map(|member| self.members[member].clone());
        Epoch { number: self.number, members: members.collect() }
    }
}

/// Members in the order of a key, the first first.
pub struct Order(BinaryHeap<Rank>);

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.0.pop().map(|rank| rank.member)
    }
}

/// Spreads bits over a whole word: the finaliser of splitmix64 (Steele, Lea and Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(count: u64) -> Epoch {
        let member =
            |i: u64| Benefactor { id: i * 7 + 1, weight: 1 + (i % 4) as u32, domain: (i / 2) as u32 };
        Epoch { number: 1, members: (0..count).map(member).collect() }
    }

    #[test]
    fn shares_follow_weights() {
        let pool = pool(20);
        let mut counts = vec![0u32; pool.members.len()];
        let keys = 200_000u32;
        for key in 0..keys {
            counts[pool.owners(u64::from(key), 1)[0]] += 1;
        }
        let sum: u32 = pool.members.iter().map(|member| member.weight).sum();
        for (member, count) in pool.members.iter().zip(counts) {
            let wanted = f64::from(keys) * f64::from(member.weight) / f64::from(sum);
            // Five standard deviations of a count.
            assert!(
                (f64::from(count) - wanted).abs() < 5.0 * wanted.sqrt(),
                "{member:?}: {count}, not {wanted}"
            );
        }
    }

    #[test]
    fn who_joins_takes_from_all_and_nothing_moves_among_the_others() {
        let small = pool(30);
        let mut large = small.clone();
        large.members.push(Benefactor { id: 9999, weight: 5, domain: 99 });
        let keys = 50_000;
        let mut moved = 0;
        for key in 0..keys {
            let (before, after) = (small.owners(key, 1)[0], large.owners(key, 1)[0]);
            if before != after {
                assert_eq!(after, 30);
                moved += 1;
            }
        }
        let sum: u32 = large.members.iter().map(|member| member.weight).sum();
        let wanted = f64::from(keys as u32) * 5.0 / f64::from(sum);
        assert!((f64::from(moved) - wanted).abs() < 5.0 * wanted.sqrt(), "{moved}, not {wanted}");
    }

    #[test]
    fn copies_lie_in_different_domains_where_there_are_enough() {
        let pool = pool(8);
        for key in 0..2000 {
            let owners = pool.owners(key, 4);
            let mut domains: Vec<u32> = owners.iter().map(|&owner| pool.members[owner].domain).collect();
            domains.sort_unstable();
            domains.dedup();
            assert_eq!(domains.len(), 4);
            let mut all = pool.owners(key, 8);
            assert_eq!(all[..4], owners, "the first do not change because more are asked for");
            all.sort_unstable();
            assert_eq!(all, (0..8).collect::<Vec<_>>());
            assert_eq!(pool.owners(key, 100).len(), 8);
        }
    }

    #[test]
    fn shards_keep_to_different_domains_and_share_them_where_they_must() {
        let pool = pool(8);
        for key in 0..500 {
            let most = |count: u8| {
                let owners = pool.shard_takers(key, count, |_, _| true);
                let domains: Vec<u32> = owners.iter().map(|at| pool.members[at.unwrap()].domain).collect();
                let of = |domain| domains.iter().filter(|there| **there == domain).count();
                let mut members = owners.clone();
                members.sort_unstable();
                members.dedup();
                (domains.iter().map(|&domain| of(domain)).max().unwrap(), members.len())
            };
            assert_eq!([most(4), most(6), most(8), most(10)], [(1, 4), (2, 6), (2, 8), (3, 8)]);
            let four = pool.shard_takers(key, 4, |_, _| true);
            let refused = four[0].unwrap();
            let passed_over = pool.shard_takers(key, 2, |_, member| member != refused);
            assert!(!passed_over.contains(&Some(refused)) && passed_over.iter().all(Option::is_some));
            assert_eq!(pool.shard_takers(key, 2, |_, _| false), [None, None]);
        }
    }

    /// A rack with one machine in it does not get as much as each of the others.
    #[test]
    fn small_domains_get_a_small_part() {
        let mut pool = pool(25);
        (0..).zip(&mut pool.members).for_each(|(i, member)| (member.domain, member.weight) = (i / 8, 4));
        let (keys, count) = (3000, 6);
        let mut held = vec![0; pool.members.len()];
        for key in 0..keys {
            let owners = pool.shard_takers(key, count, |_, _| true);
            owners.iter().for_each(|at| held[at.unwrap()] += 1);
        }
        let mean = keys as f64 * f64::from(count) / 25.0;
        let fullest = f64::from(*held.iter().max().unwrap()) / mean;
        assert!(fullest < 1.5, "{fullest}: {held:?}");
        // And it is not joined by as much as that.
        let mut before = pool.clone();
        before.members.pop();
        let owners = |epoch: &Epoch, key| {
            let owners = epoch.shard_takers(key, count, |_, _| true);
            owners.iter().map(|at| epoch.members[at.unwrap()].id).collect::<Vec<_>>()
        };
        let differ = |key: &u64| {
            owners(&before, *key).iter().zip(owners(&pool, *key)).filter(|(a, b)| *a != b).count()
        };
        let moved: usize = (0..keys).map(|key| differ(&key)).sum();
        assert!((moved as f64) < 2.5 * mean, "{moved} of {mean}");
    }

    #[test]
    fn nobody_has_two_shards_while_somebody_has_none() {
        for sizes in [&[8, 8, 1][..], &[8, 1], &[3, 2, 1], &[4, 2], &[3, 1, 1, 1], &[6]] {
            let domains = sizes.iter().zip(0..).flat_map(|(&size, domain)| std::iter::repeat_n(domain, size));
            let member = |(id, domain)| Benefactor { id, weight: 4, domain };
            let pool = Epoch { number: 1, members: (1..).zip(domains).map(member).collect() };
            for key in 0..300 {
                let mut owners = pool.shard_takers(key, 6, |_, _| true);
                owners.sort_unstable();
                owners.dedup();
                assert!(owners.len() == 6 && owners[0].is_some(), "{sizes:?}: {owners:?}");
            }
        }
    }

    /// A loss moves the shards of who is lost, and few others.
    #[test]
    fn few_shards_move() {
        let mut all = pool(60);
        (0..).zip(&mut all.members).for_each(|(i, member)| member.domain = i);
        let mut less = all.clone();
        let gone = less.members.remove(17).id;
        let (mut moved, mut lost) = (0, 0);
        for key in 0..2000 {
            let ids = |epoch: &Epoch| -> Vec<u64> {
                let owners = epoch.shard_takers(key, 6, |_, _| true);
                owners.iter().map(|at| epoch.members[at.unwrap()].id).collect()
            };
            let (before, after) = (ids(&all), ids(&less));
            lost += before.iter().filter(|&&id| id == gone).count();
            moved += before.iter().zip(&after).filter(|(before, after)| before != after).count();
        }
        assert!(lost > 50 && moved * 10 < lost * 12, "{moved} move for {lost}");
    }

    #[test]
    fn who_refuses_is_passed_over() {
        let pool = pool(20);
        for key in 0..500 {
            let first = pool.owners(key, 1)[0];
            let order: Vec<usize> = pool.order(key).collect();
            assert_eq!(pool.takers(key, 1, |member| member != first), order[1..2]);
            assert_eq!(pool.takers(key, 3, |member| member < 2).len(), 2);
            assert!(pool.takers(key, 3, |_| false).is_empty());
        }
    }

    #[test]
    fn who_is_preferred_comes_first_and_nothing_else_changes() {
        let pool = pool(20);
        let home = home_of(pool.members[7].id);
        for draw in 0..500 {
            let plain: Vec<usize> = pool.order(draw).collect();
            let near: Vec<usize> = pool.order(Key { draw, home }).collect();
            assert_eq!(near[0], 7);
            let others = |order: &[usize]| order.iter().copied().filter(|&at| at != 7).collect::<Vec<_>>();
            assert_eq!(others(&near), others(&plain));
            assert_eq!(pool.stripe(Key { draw, home }, 4).members[0], pool.members[7]);
            assert_eq!(pool.shard_takers(draw, 6, |_, _| true).len(), 6);
            // A copy goes elsewhere, and where the preferred one is gone the order is as without.
            assert_ne!(pool.members[pool.owners(Key { draw, home }, 2)[1]].domain, pool.members[7].domain);
            let mut less = pool.clone();
            less.members.remove(7);
            assert_eq!(
                less.order(Key { draw, home }).collect::<Vec<_>>(),
                less.order(draw).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_writer_keeps_to_its_stripe() {
        let pool = pool(50);
        let stripe = pool.stripe(7, 4);
        assert_eq!((stripe.members.len(), stripe.number), (4, 1));
        assert_ne!(stripe, pool.stripe(8, 4));
        assert_eq!(pool.stripe(7, 100).members.len(), 50);
    }

    /// The same on every machine and in every version: packs are found by it.
    #[test]
    fn the_order_does_not_change() {
        let pool = pool(12);
        assert_eq!(pool.order(0).collect::<Vec<_>>(), ORDER_0);
        assert_eq!(pool.order(0xdead_beef).collect::<Vec<_>>(), ORDER_1);
    }
    const ORDER_0: [usize; 12] = [6, 11, 9, 7, 5, 3, 2, 1, 0, 10, 8, 4];
    const ORDER_1: [usize; 12] = [3, 7, 11, 2, 9, 1, 10, 8, 6, 0, 5, 4];

    #[test]
    fn weights_are_coarse() {
        for (capacity, weight) in [(0, 1), (256 << 20, 1), (1 << 30, 4), (9 << 30, 32), (11 << 30, 40)] {
            assert_eq!(weight_of(capacity), weight);
        }
        assert!(weight_of(u64::MAX) > 1 << 31);
    }

    proptest! {
        #[test]
        fn the_order_of_those_who_stay_stays(key: u64, gone in 0usize..20) {
            let all = pool(20);
            let mut less = all.clone();
            less.members.remove(gone);
            let ids = |epoch: &Epoch| epoch.order(key).map(|m| epoch.members[m].id).collect::<Vec<_>>();
            let before: Vec<u64> = ids(&all).into_iter().filter(|&id| id != all.members[gone].id).collect();
            prop_assert_eq!(before, ids(&less));
        }
    }
}
