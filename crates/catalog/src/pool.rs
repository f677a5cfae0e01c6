//! Who lends memory or disk to a pool, from one change to the next.

use std::collections::BTreeMap;

use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Code, Error, Kind, Result};

/// What a benefactor lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Medium {
    /// Memory: gone with the process.
    Memory = 0,
    /// A folder: there again when the machine is.
    Disk = 1,
}

impl Medium {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Disk => "disk",
        }
    }
}

/// A benefactor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its identity: random, so that one who returns empty is another.
    pub id: u64,
    /// Where it listens: a host and a port.
    pub address: String,
    /// What fails together with it: a machine, a rack.
    pub domain: String,
    /// What it lends.
    pub medium: Medium,
    /// Bytes that it lends.
    pub capacity: u64,
}

/// What a pool promises of every pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// Copies; 1 where there is a code.
    pub replicas: u8,
    /// The code by whose shards packs are kept, rather than by copies.
    pub code: Option<Code>,
    /// Benefactors among which a writer's packs are placed; 0 for all.
    pub stripe: u16,
}

impl Default for Class {
    fn default() -> Class {
        Class { replicas: 1, code: None, stripe: 0 }
    }
}

/// What can happen to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PoolOp {
    /// It is founded, with this promise and a random identity.
    Found(Class, u64),
    /// Somebody lends something; or is there again, perhaps elsewhere, with what it had.
    Join(Member),
    /// Somebody does not lend any more: he said so, or somebody else did.
    Leave(u64),
    /// Nothing was heard of somebody for too long. If he lives he may join again. Of one who had left before nobody expects any more that he gives away what
    /// he held.
    Lose(u64),
    /// Everything lies where this epoch has it.
    Settle(u64),
}

/// Epochs that are told apart, beside the settled one and all between.
const EPOCHS_TOLD_APART: usize = 8;
/// How many of those who were lost are remembered.
const LOST_MAX: usize = 1024;

/// How the members of an epoch differ from those of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Change {
    Joined(u64),
    Left(Member),
    /// What it was before.
    Changed(Member),
    /// No difference; but one of those who had left is given up, so all must look again where everything is.
    GivenUp(u64),
}

/// One who does not lend any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaver<'p> {
    /// What he was.
    pub member: &'p Member,
    /// The epoch that began when he left.
    pub epoch: u64,
    /// Whether it is expected that he gives away what he holds: he was not lost.
    pub gives: bool,
}

/// The members of a pool, and how they came to be these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    class: Option<Class>,
    id: u64,
    /// Those who were lost last, the newest at the end.
    lost: Vec<u64>,
    settled: u64,
    /// One for each epoch after the settled one.
    changes: Vec<Change>,
    members: BTreeMap<u64, Member>,
}

impl Pool {
    /// What is promised; `None` where there is no pool.
    pub fn class(&self) -> Option<Class> {
        self.class
    }

    /// Tells it from all other pools.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether somebody is no member only because nothing was heard of him.
    pub fn is_lost(&self, id: u64) -> bool {
        self.lost.contains(&id)
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.settled + self.changes.len() as u64
    }

    /// The newest epoch by which everything is known to lie where it belongs.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// The members now, by identity.
    pub fn members(&self) -> &BTreeMap<u64, Member> {
        &self.members
    }

    /// Those who have left since the settled epoch, and may still hold something that nobody else has.
    pub fn leavers(&self) -> impl Iterator<Item = Leaver<'_>> {
        let mut leavers = BTreeMap::new();
        for (epoch, change) in (self.settled + 1..).zip(&self.changes) {
            match change {
                Change::Left(member) => {
                    leavers.insert(member.id, Leaver { member, epoch, gives: !self.is_lost(member.id) });
                }
                Change::GivenUp(id) => _ = leavers.get_mut(id).map(|leaver| leaver.gives = false),
                Change::Joined(_) | Change::Changed(_) => {}
            }
        }
        leavers.into_values().filter(|leaver| !self.members.contains_key(&leaver.member.id))
    }

    /// Whether somebody lends, or is one of those.
    pub fn belongs(&self, id: u64) -> bool {
        let has_left = |change: &Change| matches!(change, Change::Left(member) if member.id == id);
        self.members.contains_key(&id) || self.changes.iter().any(has_left)
    }

    /// The epochs in which something may lie, the current first, the settled last, each with its members. Of those in between a few are told apart, the newest;
    /// the others count as one, in which all of their members are: thousands may join before anything is settled, and each process would know as many lists.
    pub fn epochs(&self) -> Vec<(u64, Vec<Member>)> {
        let list = |members: &BTreeMap<u64, Member>| members.values().cloned().collect::<Vec<_>>();
        let (mut members, mut number) = (self.members.clone(), self.epoch());
        let mut epochs = vec![(number, list(&members))];
        let mut between = BTreeMap::new();
        for change in self.changes.iter().rev() {
            number -= 1;
            match change {
                Change::Joined(id) => _ = members.remove(id),
                Change::Left(member) | Change::Changed(member) => {
                    members.insert(member.id, member.clone());
                }
                Change::GivenUp(_) => {}
            }
            if number == self.settled || epochs.len() < EPOCHS_TOLD_APART {
                epochs.push((number, list(&members)));
                continue;
            }
            match change {
                // Everybody who was there in the newest of these.
                _ if between.is_empty() => between = members.clone(),
                Change::Joined(_) | Change::GivenUp(_) => {}
                Change::Left(member) | Change::Changed(member) => {
                    between.entry(member.id).or_insert_with(|| member.clone());
                }
            }
        }
        if !between.is_empty() {
            epochs.insert(epochs.len() - 1, (self.settled + 1, list(&between)));
        }
        epochs
    }

    pub(crate) fn check(&self, op: &PoolOp) -> Result<()> {
        match op {
            PoolOp::Found(class, _) if class.replicas == 0 => {
                Err(Error::invalid("a pool keeps at least one copy"))
            }
            PoolOp::Found(class, _) if class.code.is_some() && class.replicas > 1 => {
                Err(Error::invalid("a pool keeps copies or shards, not copies of shards"))
            }
            PoolOp::Found(Class { code: Some(code), stripe, .. }, _)
                if (1..u16::from(code.count())).contains(stripe) =>
            {
                Err(Error::invalid(format!("{code} wants a stripe of at least {} benefactors", code.count())))
            }
            PoolOp::Found(..) if self.class.is_some() => {
                Err(Error::new(Kind::Conflict, "this pool was founded before"))
            }
            PoolOp::Join(_) if self.class.is_none() => Err(Error::invalid("there is no pool to join")),
            PoolOp::Lose(id) if self.leavers().any(|leaver| leaver.gives && leaver.member.id == *id) => {
                Ok(())
            }
            PoolOp::Leave(id) | PoolOp::Lose(id) if !self.members.contains_key(id) => {
                Err(Error::new(Kind::NotFound, format!("there is no benefactor {id:016x}")))
            }
            PoolOp::Settle(epoch) if *epoch > self.epoch() => {
                Err(Error::invalid(format!("there is no epoch {epoch} yet")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn carry_out(&mut self, op: &PoolOp) {
        match op {
            PoolOp::Found(class, id) => (self.class, self.id) = (Some(*class), *id),
            PoolOp::Join(member) => {
                self.lost.retain(|lost| *lost != member.id);
                let before = self.members.insert(member.id, member.clone());
                self.changes.push(before.map_or(Change::Joined(member.id), Change::Changed));
            }
            PoolOp::Leave(id) | PoolOp::Lose(id) => {
                let Some(member) = self.members.remove(id) else {
                    self.changes.push(Change::GivenUp(*id));
                    return;
                };
                self.changes.push(Change::Left(member));
                if matches!(op, PoolOp::Lose(_)) {
                    self.lost.push(*id);
                    let long_ago = self.lost.len().saturating_sub(LOST_MAX);
                    self.lost.drain(..long_ago);
                }
            }
            PoolOp::Settle(epoch) => {
                let passed = epoch.saturating_sub(self.settled).min(self.changes.len() as u64);
                self.changes.drain(..passed as usize);
                self.settled += passed;
            }
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        match &self.class {
            None => out.u8(0),
            Some(class) => {
                out.u8(1);
                class.encode(out);
            }
        }
        out.u64(self.id);
        out.varint(self.lost.len() as u64);
        self.lost.iter().for_each(|id| out.u64(*id));
        out.varint(self.settled);
        out.varint(self.changes.len() as u64);
        for change in &self.changes {
            match change {
                Change::Joined(id) => {
                    out.u8(0);
                    out.u64(*id);
                }
                Change::Left(member) => {
                    out.u8(1);
                    member.encode(out);
                }
                Change::Changed(member) => {
                    out.u8(2);
                    member.encode(out);
                }
                Change::GivenUp(id) => {
                    out.u8(3);
                    out.u64(*id);
                }
            }
        }
        out.varint(self.members.len() as u64);
        self.members.values().for_each(|member| member.encode(out));
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Pool> {
        let class = match reader.u8()? {
            0 => None,
            1 => Some(Class::decode(reader)?),
            _ => return Err(reader.corrupt("neither a pool nor none")),
        };
        let id = reader.u64()?;
        let lost = (0..reader.count(8)?).map(|_| reader.u64()).collect::<Result<_>>()?;
        let mut pool = Pool { class, id, lost, settled: reader.varint()?, ..Pool::default() };
        for _ in 0..reader.count(9)? {
            let change = match reader.u8()? {
                0 => Change::Joined(reader.u64()?),
                1 => Change::Left(Member::decode(reader)?),
                2 => Change::Changed(Member::decode(reader)?),
                3 => Change::GivenUp(reader.u64()?),
                _ => return Err(reader.corrupt("an unknown change of a pool")),
            };
            pool.changes.push(change);
        }
        for _ in 0..reader.count(12)? {
            let member = Member::decode(reader)?;
            pool.members.insert(member.id, member);
        }
        Ok(pool)
    }
}

impl Member {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.id);
        out.string(&self.address);
        out.string(&self.domain);
        out.u8(self.medium as u8);
        out.varint(self.capacity);
    }

    fn decode(reader: &mut Reader) -> Result<Member> {
        Ok(Member {
            id: reader.u64()?,
            address: reader.string()?.to_owned(),
            domain: reader.string()?.to_owned(),
            medium: match reader.u8()? {
                0 => Medium::Memory,
                1 => Medium::Disk,
                _ => return Err(reader.corrupt("an unknown medium")),
            },
            capacity: reader.varint()?,
        })
    }
}

impl Class {
    fn encode(&self, out: &mut Writer) {
        out.u8(self.replicas);
        out.u16(self.stripe);
        out.u8(u8::from(self.code.is_some()));
        if let Some(code) = self.code {
            code.encode(out);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Class> {
        let (replicas, stripe) = (reader.u8()?, reader.u16()?);
        let code = match reader.u8()? {
            0 => None,
            1 => Some(Code::decode(reader)?),
            _ => return Err(reader.corrupt("neither a code nor none")),
        };
        Ok(Class { replicas, code, stripe })
    }
}

impl PoolOp {
    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            PoolOp::Found(class, id) => {
                out.u8(1);
                class.encode(out);
                out.u64(*id);
            }
            PoolOp::Join(member) => {
                out.u8(2);
                member.encode(out);
            }
            PoolOp::Leave(id) => {
                out.u8(3);
                out.u64(*id);
            }
            PoolOp::Lose(id) => {
                out.u8(5);
                out.u64(*id);
            }
            PoolOp::Settle(epoch) => {
                out.u8(4);
                out.varint(*epoch);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<PoolOp> {
        Ok(match reader.u8()? {
            1 => PoolOp::Found(Class::decode(reader)?, reader.u64()?),
            2 => PoolOp::Join(Member::decode(reader)?),
            3 => PoolOp::Leave(reader.u64()?),
            4 => PoolOp::Settle(reader.varint()?),
            5 => PoolOp::Lose(reader.u64()?),
            _ => return Err(reader.corrupt("an unknown change of a pool")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> Member {
        let address = format!("10.0.0.{id}:7000");
        Member { id, address, domain: format!("rack={id}"), medium: Medium::Memory, capacity: id << 30 }
    }

    fn done(pool: &mut Pool, op: PoolOp) {
        pool.check(&op).unwrap();
        let mut out = Writer::new();
        op.encode(&mut out);
        let bytes = out.into_bytes();
        pool.carry_out(&PoolOp::decode(&mut Reader::new(&bytes, "test")).unwrap());
    }

    #[test]
    fn who_dies_while_it_leaves_is_given_up() {
        let mut pool = Pool::default();
        done(&mut pool, PoolOp::Found(Class { replicas: 2, code: None, stripe: 0 }, 77));
        (1..=3).for_each(|id| done(&mut pool, PoolOp::Join(member(id))));
        done(&mut pool, PoolOp::Settle(3));
        done(&mut pool, PoolOp::Leave(2));
        let leavers = |pool: &Pool| -> Vec<(u64, u64, bool)> {
            pool.leavers().map(|Leaver { member, epoch, gives }| (member.id, epoch, gives)).collect()
        };
        assert_eq!((leavers(&pool), pool.belongs(2)), (vec![(2, 4, true)], true));
        let before = pool.epochs();
        done(&mut pool, PoolOp::Lose(2));
        // All look again, and what it had is looked for where it was.
        assert_eq!((pool.epoch(), leavers(&pool), pool.is_lost(2)), (5, vec![(2, 4, false)], false));
        assert_eq!(pool.epochs()[1..], before);
        assert_eq!(pool.epochs()[0].1, before[0].1);
        assert!(pool.check(&PoolOp::Lose(2)).is_err(), "once");
        let mut out = Writer::new();
        pool.encode(&mut out);
        assert_eq!(Pool::decode(&mut Reader::new(&out.into_bytes(), "test")).unwrap(), pool);
        // It may live, and come back.
        done(&mut pool, PoolOp::Join(member(2)));
        done(&mut pool, PoolOp::Leave(2));
        assert_eq!(leavers(&pool), [(2, 7, true)]);
        done(&mut pool, PoolOp::Settle(7));
        assert!(!pool.belongs(2));
    }

    #[test]
    fn epochs_are_known_back_to_the_settled_one() {
        let mut pool = Pool::default();
        assert!(pool.check(&PoolOp::Join(member(1))).is_err(), "nothing to join");
        let found = |replicas, code: &str, stripe| {
            PoolOp::Found(Class { replicas, code: code.parse().ok(), stripe }, 77)
        };
        assert!(pool.check(&found(2, "4+2", 0)).is_err() && pool.check(&found(1, "4+2", 5)).is_err());
        done(&mut pool.clone(), found(1, "4+2", 6));
        done(&mut pool, found(2, "", 8));
        for id in 1..=3 {
            done(&mut pool, PoolOp::Join(member(id)));
        }
        done(&mut pool, PoolOp::Settle(2));
        done(&mut pool, PoolOp::Lose(1));
        assert!(pool.is_lost(1) && !pool.is_lost(2) && pool.id() == 77);
        assert!(pool.check(&PoolOp::Leave(1)).is_err() && pool.check(&PoolOp::Settle(5)).is_err());
        assert!(pool.check(&PoolOp::Lose(1)).is_err(), "it is lost already");
        let ids = |pool: &Pool| -> Vec<(u64, Vec<u64>)> {
            let epochs = pool.epochs().into_iter();
            epochs
                .map(|(number, members)| (number, members.iter().map(|member| member.id).collect()))
                .collect()
        };
        assert_eq!(ids(&pool), [(4, vec![2, 3]), (3, vec![1, 2, 3]), (2, vec![1, 2])]);
        let mut out = Writer::new();
        pool.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(Pool::decode(&mut Reader::new(&bytes, "test")).unwrap(), pool);
        let moved = Member { address: "10.0.0.9:1".into(), ..member(2) };
        done(&mut pool, PoolOp::Join(moved.clone()));
        assert_eq!((pool.epoch(), &pool.members()[&2]), (5, &moved));
        assert_eq!(pool.epochs()[1].1[0], member(2), "it was elsewhere before");
        done(&mut pool, PoolOp::Settle(5));
        assert_eq!(ids(&pool), [(5, vec![2, 3])]);
        assert_eq!((pool.epoch(), pool.settled()), (5, 5));
    }

    /// Nobody who may hold something is left out, however many changes there were.
    #[test]
    fn many_epochs_are_told_as_few() {
        let mut pool = Pool::default();
        done(&mut pool, PoolOp::Found(Class::default(), 7));
        done(&mut pool, PoolOp::Join(member(1)));
        done(&mut pool, PoolOp::Settle(1));
        (2..=100).for_each(|id| done(&mut pool, PoolOp::Join(member(id))));
        done(&mut pool, PoolOp::Leave(50));
        (101..=120).for_each(|id| done(&mut pool, PoolOp::Join(member(id))));
        let epochs = pool.epochs();
        assert_eq!(epochs.len(), EPOCHS_TOLD_APART + 2);
        assert_eq!(epochs.iter().map(|(number, _)| *number).take(3).collect::<Vec<_>>(), [121, 120, 119]);
        assert_eq!((epochs.last().unwrap().0, epochs.last().unwrap().1.len()), (1, 1));
        let between = &epochs[EPOCHS_TOLD_APART].1;
        let ids: Vec<u64> = between.iter().map(|member| member.id).collect();
        assert_eq!(ids, (1..=112).collect::<Vec<_>>(), "also 50, who was there for a while");
    }
}
