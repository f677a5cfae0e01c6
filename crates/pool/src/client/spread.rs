//! One pack that lies in shards all over the pool.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_erasure::{Healed, Layout, Shards, heal};
use stdchk_object::pack::{PACK_BYTES_MAX, check_whole};
use stdchk_object::{Code, Error, Item, Kind, PackName, Result};

use super::View;
use super::peer::{Answer, Failure, Peer};
use crate::shelf::Shelf;
use crate::wire::Question;

/// The shards of one pack, wherever they are.
pub struct Spread<'v> {
    view: &'v View,
    name: PackName,
    code: Code,
    /// Whether everybody is asked before a shard is said to be nowhere.
    is_deep: bool,
    /// Whether what those have who were given up counts as nowhere.
    is_lasting: bool,
    /// Who has them by each epoch, the current one first.
    owners: Vec<Vec<Option<u64>>>,
    /// What is in this very process needs no way.
    here: Option<&'v dyn Shelf>,
}

impl<'v> Spread<'v> {
    /// Those of a pack of a pool that keeps packs by this code. Shards are looked for where they are most likely; the others bring back what is not
    /// found there.
    pub fn of(view: &'v View, name: PackName, code: Code) -> Spread<'v> {
        let owners = view.shard_owners_ever(name, code.count());
        Spread { view, name, code, is_deep: false, is_lasting: false, owners, here: None }
    }

    /// The same, for those who must know whether a shard is anywhere.
    pub fn deep(view: &'v View, name: PackName, code: Code) -> Spread<'v> {
        Spread { is_deep: true, ..Spread::of(view, name, code) }
    }

    /// The same, where only those shards count that will be there when the current epoch is settled.
    pub fn lasting(view: &'v View, name: PackName, code: Code) -> Spread<'v> {
        Spread { is_lasting: true, ..Spread::deep(view, name, code) }
    }

    /// For somebody who has some of them himself.
    pub fn with(self, here: &'v dyn Shelf) -> Spread<'v> {
        Spread { here: Some(here), ..self }
    }

    /// A shard that is here.
    fn own(&self, index: u8) -> Option<Vec<u8>> {
        let (shelf, item) = (self.here?, Item::shard(self.name, index));
        let given = shelf.give(item, 0, shelf.length(item).ok()?).ok()?;
        Some(given.slices().concat())
    }

    /// Whether a shard is anywhere.
    pub fn has(&self, index: u8) -> bool {
        let item = Item::shard(self.name, index);
        self.here.is_some_and(|shelf| shelf.length(item).is_ok()) || self.holder(index).is_some()
    }

    /// Who may have a shard, each once, the likeliest first.
    fn candidates(&self, index: u8) -> impl Iterator<Item = u64> {
        let owners = self.owners.iter().filter_map(move |owners| *owners.get(usize::from(index))?);
        let overflow = self.view.shard_overflow(self.name, index, self.is_deep);
        let mut asked: Vec<u64> = Vec::new();
        owners.chain(overflow).filter(move |&id| {
            let is_new = !(asked.contains(&id) || self.is_lasting && self.view.is_given_up(id));
            asked.extend(is_new.then_some(id));
            is_new
        })
    }

    /// Asks one after the other who may have a shard, until one does; who that is, and what he says.
    fn ask<T>(
        &self,
        index: u8,
        ask: impl Fn(&Peer, Item) -> std::result::Result<T, Failure>,
    ) -> Result<(u64, T)> {
        let item = Item::shard(self.name, index);
        let mut failure: Option<Error> = None;
        for id in self.candidates(index) {
            let peer = self.view.peer(id);
            // The others bring it back faster than somebody who is not there says so.
            if peer.is_suspected() && !self.is_deep {
                let text = format!("{} did not answer a moment ago", peer.address());
                failure.get_or_insert_with(|| Error::new(Kind::Io, text));
                continue;
            }
            if self.is_deep {
                peer.bear();
            }
            match ask(peer, item) {
                Ok(found) => return Ok((id, found)),
                Err(Failure::Refused(error)) if error.kind() == Kind::NotFound => {}
                Err(failed) => failure = Some(failed.into_error(peer.address())),
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::NotFound, format!("shard {item} is nowhere"))))
    }

    /// How a shard says that its pack is cut, and who has it; with an epoch it is also synced, and that is known where it is.
    fn look(&self, index: u8, epoch: u64) -> Result<(u64, Layout)> {
        let (id, answer) =
            self.ask(index, |peer, item| peer.try_ask(&Question::Length { epoch, item }, &[], None))?;
        Ok((id, self.read_length(&answer)?))
    }

    /// How the pack is cut: by the first shard that is found, or where everybody is asked by what most of them say, since one may lie.
    pub fn layout(&self) -> Result<Layout> {
        let (mut failure, mut said) = (None, Vec::new());
        for index in 0..self.code.count() {
            match self.look(index, 0) {
                Ok((_, layout)) if !self.is_deep => return Ok(layout),
                Ok((_, layout)) => said.push(layout),
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => failure = Some(error),
            }
        }
        let most = said.iter().copied().max_by_key(|one| said.iter().filter(|other| *other == one).count());
        let missing = || Error::new(Kind::NotFound, format!("no shard of pack {} is in the pool", self.name));
        most.ok_or_else(|| failure.unwrap_or_else(missing))
    }

    /// Who has a shard.
    pub fn holder(&self, index: u8) -> Option<u64> {
        self.look(index, 0).ok().map(|(id, _)| id)
    }

    /// How many shards of those that a pack is cut into are there, each with another one; with an epoch, and synced, with those who know no newer one.
    pub fn reach(&self, layout: &Layout, epoch: u64) -> usize {
        let all = 0..layout.count();
        let found = |index| self.look(index, epoch).map_or(Vec::new(), |(id, _)| vec![id]);
        let firsts: Vec<Vec<u64>> = all.clone().map(found).collect();
        let reach = distinct(&firsts);
        if reach == firsts.len() || firsts.iter().any(Vec::is_empty) {
            return reach;
        }
        // Some may have several, of which others have one, too.
        distinct(&all.map(|index| self.holders(index, epoch)).collect::<Vec<_>>())
    }

    /// All who have a shard.
    fn holders(&self, index: u8, epoch: u64) -> Vec<u64> {
        let question = Question::Length { epoch, item: Item::shard(self.name, index) };
        let has = |id: &u64| {
            let answer = self.view.peer(*id).try_ask(&question, &[], None);
            answer.is_ok_and(|answer| self.read_length(&answer).is_ok())
        };
        self.candidates(index).filter(has).collect()
    }

    /// A shard as it is stored.
    fn stored(&self, index: u8, len: u64) -> Option<Vec<u8>> {
        let read = |peer: &Peer, item| peer.try_ask(&Question::Read { item, offset: 0, len }, &[], None);
        let bulk = self.own(index).or_else(|| Some(self.ask(index, read).ok()?.1.bulk));
        bulk.filter(|bulk| bulk.len() as u64 == len)
    }

    /// The pack, and the shards that are missing or wrong. No more are read than are needed where these are right; all of them where the
    /// wrong ones are wanted.
    pub fn heal(&self, layout: &Layout, all: bool) -> Result<Option<Healed>> {
        let right =
            |pack: &[u8]| pack.len() as u64 == layout.pack_len() && check_whole(self.name, pack).is_ok();
        let needed = usize::from(layout.code().data());
        let mut stored: Vec<Option<Vec<u8>>> = vec![None; layout.count().into()];
        // Those that are here come first: they cost nothing.
        let is_away =
            |index: &u8| self.here.is_none_or(|shelf| shelf.length(Item::shard(self.name, *index)).is_err());
        let mut order: Vec<u8> = (0..layout.count()).collect();
        order.sort_by_key(is_away);
        for index in order {
            if !all && stored.iter().flatten().count() == needed {
                break;
            }
            stored[usize::from(index)] = self.stored(index, layout.stored_len());
        }
        let healed = heal(self.name, &stored, right)?;
        let healed = healed.filter(|healed| healed.bad.iter().all(|(index, _)| *index < layout.count()));
        if healed.is_some() || all { Ok(healed) } else { self.heal(layout, true) }
    }

    /// The answer to how long a shard is: a u64, and its tail. It must say what the pool's code makes of a pack.
    fn read_length(&self, answer: &Answer) -> Result<Layout> {
        let bad = || Error::corrupt(format!("what is said of a shard of pack {} makes no sense", self.name));
        let (len, tail) = answer.body.split_first_chunk::<8>().ok_or_else(bad)?;
        let (layout, _) = Layout::of_tail(self.name, tail, u64::from_le_bytes(*len))?;
        let fits = layout.pack_len() <= PACK_BYTES_MAX && layout == Layout::of(self.code, layout.pack_len());
        if fits { Ok(layout) } else { Err(bad()) }
    }
}

impl Shards for Spread<'_> {
    fn read(&self, index: u8, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let buffers = std::cell::RefCell::new(buffers);
        let read = |peer: &Peer, item| {
            peer.try_ask(&Question::Read { item, offset, len }, &[], Some(&mut buffers.borrow_mut()))
                .map(drop)
        };
        self.ask(index, read).map(drop)
    }
}

/// To how many of those who are named, each for several things, a thing can be given such that each has one: a maximum bipartite matching, by augmenting
/// paths.
fn distinct(holders: &[Vec<u64>]) -> usize {
    /// Finds a holder for a thing; those who have another one already pass that on, if they can.
    fn place(
        at: usize,
        holders: &[Vec<u64>],
        given: &mut BTreeMap<u64, usize>,
        tried: &mut BTreeSet<u64>,
    ) -> bool {
        holders[at].iter().any(|&id| {
            let is_free = tried.insert(id)
                && given.get(&id).copied().is_none_or(|other| place(other, holders, given, tried));
            if is_free {
                given.insert(id, at);
            }
            is_free
        })
    }
    let mut given = BTreeMap::new();
    (0..holders.len()).filter(|&at| place(at, holders, &mut given, &mut BTreeSet::new())).count()
}

#[cfg(test)]
mod tests {
    use super::distinct;

    #[test]
    fn each_has_one_where_that_is_possible() {
        assert_eq!(distinct(&[vec![1], vec![2], vec![3]]), 3);
        assert_eq!(distinct(&[vec![1, 2], vec![1], vec![3]]), 3, "the first passes its own on");
        assert_eq!(distinct(&[vec![1, 2], vec![1, 3], vec![1]]), 3, "and both do");
        assert_eq!(distinct(&[vec![1, 2], vec![1, 2], vec![1, 2], vec![4]]), 3);
        assert_eq!(distinct(&[vec![], vec![2], vec![2]]), 1);
    }
}
