//! One pack that lies in shards all over the pool.

use std::collections::BTreeSet;

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

    /// Asks one after the other who may have a shard, until one does; who that is, and what he says.
    fn ask<T>(
        &self,
        index: u8,
        ask: impl Fn(&Peer, Item) -> std::result::Result<T, Failure>,
    ) -> Result<(u64, T)> {
        let item = Item::shard(self.name, index);
        let owners = self.owners.iter().filter_map(|owners| *owners.get(usize::from(index))?);
        let (mut asked, mut failure): (Vec<u64>, Option<Error>) = (Vec::new(), None);
        for id in owners.chain(self.view.shard_overflow(self.name, index, self.is_deep)) {
            if asked.contains(&id) || self.is_lasting && self.view.is_given_up(id) {
                continue;
            }
            asked.push(id);
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

    /// Whether all shards are there, each with another one, and synced, with those who know no newer epoch.
    pub fn is_safe(&self, layout: &Layout, epoch: u64) -> bool {
        let mut holders = BTreeSet::new();
        (0..layout.count()).all(|index| self.look(index, epoch).is_ok_and(|(id, _)| holders.insert(id)))
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
