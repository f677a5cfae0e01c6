//! One pack that lies in shards all over the pool.

use stdchk_erasure::{Healed, Layout, Shards, TAIL_BYTES, heal};
use stdchk_object::pack::check_whole;
use stdchk_object::{Error, Item, Kind, PackName, Result};

use super::View;
use super::peer::{Answer, Failure, Peer};
use crate::wire::Question;

/// The shards of one pack, wherever they are.
pub struct Spread<'v> {
    view: &'v View,
    name: PackName,
    /// Who has them by each epoch, the current one first.
    owners: Vec<Vec<Option<u64>>>,
}

impl<'v> Spread<'v> {
    /// Those of a pack that is cut into `count` at most.
    pub fn of(view: &'v View, name: PackName, count: u8) -> Spread<'v> {
        Spread { view, name, owners: view.shard_owners_ever(name, count) }
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
        for id in owners.chain(self.view.shard_overflow(self.name, index)) {
            if asked.contains(&id) {
                continue;
            }
            asked.push(id);
            let peer = self.view.peer(id);
            // The others bring it back faster than somebody who is not there says so.
            if peer.is_suspected() {
                let text = format!("{} did not answer a moment ago", peer.address());
                failure.get_or_insert_with(|| Error::new(Kind::Io, text));
                continue;
            }
            match ask(peer, item) {
                Ok(found) => return Ok((id, found)),
                Err(Failure::Refused(error)) if error.kind() == Kind::NotFound => {}
                Err(failed) => failure = Some(failed.into_error(peer.address())),
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::NotFound, format!("shard {item} is nowhere"))))
    }

    /// How long a shard is as it is stored, and how it says that the pack is cut; and who has it.
    fn look(&self, index: u8) -> Result<(u64, u64, Layout)> {
        let (id, answer) =
            self.ask(index, |peer, item| peer.try_ask(&Question::Length { epoch: 0, item }, &[], None))?;
        let (len, layout) = read_length(self.name, &answer)?;
        Ok((id, len, layout))
    }

    /// How the pack is cut, by the first shard that is found.
    pub fn layout(&self) -> Result<Layout> {
        let mut failure = None;
        for index in 0..self.owners[0].len() as u8 {
            match self.look(index) {
                Ok((_, _, layout)) => return Ok(layout),
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => failure = Some(error),
            }
        }
        let missing = || Error::new(Kind::NotFound, format!("no shard of pack {} is in the pool", self.name));
        Err(failure.unwrap_or_else(missing))
    }

    /// Who has a shard.
    pub fn holder(&self, index: u8) -> Option<u64> {
        self.look(index).ok().map(|(id, ..)| id)
    }

    /// A shard as it is stored.
    fn stored(&self, index: u8, len: u64) -> Option<Vec<u8>> {
        let read = |peer: &Peer, item| peer.try_ask(&Question::Read { item, offset: 0, len }, &[], None);
        self.ask(index, read).ok().map(|(_, answer)| answer.bulk)
    }

    /// The pack, and the shards that are missing or wrong. No more are read than are needed where these are right; all of them where the
    /// wrong ones are wanted.
    pub fn heal(&self, layout: &Layout, all: bool) -> Result<Option<Healed>> {
        let right = |pack: &[u8]| check_whole(self.name, pack).is_ok();
        let needed = usize::from(layout.code().data());
        let mut stored: Vec<Option<Vec<u8>>> = vec![None; layout.count().into()];
        for index in 0..layout.count() {
            if !all && stored.iter().flatten().count() == needed {
                break;
            }
            stored[usize::from(index)] = self.stored(index, layout.stored_len());
        }
        let healed = heal(self.name, &stored, right)?;
        if healed.is_some() || all { Ok(healed) } else { self.heal(layout, true) }
    }
}

/// The answer to how long a shard is: a u64, and its tail.
pub fn read_length(name: PackName, answer: &Answer) -> Result<(u64, Layout)> {
    let bad = || Error::corrupt(format!("what is said of a shard of pack {name} cannot be understood"));
    let (len, tail) = answer.body.split_first_chunk::<8>().ok_or_else(bad)?;
    let len = u64::from_le_bytes(*len);
    if tail.len() != TAIL_BYTES {
        return Err(bad());
    }
    Ok((len, Layout::of_tail(name, tail, len)?.0))
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
