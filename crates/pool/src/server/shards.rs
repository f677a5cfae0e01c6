//! Making shards of packs, and seeing to it that they lie where they belong.
//!
//! Whoever has a shard looks after the one that comes after it: if that is nowhere, all that are nowhere are made again from the others, by one of those who see it,
//! so the shards of a pack are all looked after as long as there is any, and nobody looks after the whole.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use stdchk_erasure::{Encoded, Layout, TAIL_BYTES};
use stdchk_object::{Code, Error, Item, Kind, PackName, Result};

use super::keeper::{Keeper, short_of};
use crate::client::{Failure, Peer, Spread, View};
use crate::wire::Question;

impl Keeper {
    /// Makes shards of a pack, and gives each to its owner; whether the pack itself must stay.
    pub(super) fn spread(&self, view: &View, name: PackName, code: Code) -> Result<bool> {
        let length = self.shelf.length(name.into())?;
        let layout = Layout::of(code, length);
        let bulk = self.shelf.give(name.into(), 0, length)?;
        let pieces = bulk.slices();
        let encoded = OnceCell::new();
        let shard = |index: u8| -> Result<Vec<&[u8]>> {
            if encoded.get().is_none() {
                let _ = encoded.set(Encoded::new(name, code, &pieces)?);
            }
            Ok(encoded.get().map(|encoded: &Encoded| encoded.shard(index)).unwrap_or_default())
        };
        let (mut failures, mut is_over) = (Vec::new(), false);
        let owners = view.shard_takers(name, layout.count(), |index, id| {
            // Shards that are placed by an epoch that is over would lie where nobody looks first.
            if is_over {
                return true;
            }
            let given = self.give_shard(view, id, Item::shard(name, index), &layout, &|| shard(index));
            let given = given.map_err(|error| {
                is_over |= error.kind() == Kind::Conflict;
                failures.push(error);
            });
            given.is_ok()
        });
        if is_over {
            return Err(failures.pop().unwrap_or_else(|| Error::new(Kind::Conflict, "the epoch is over")));
        }
        // It is given up only when readers find what was made of it.
        let found = Spread::lasting(view, name, code);
        if let Some(index) = (0..layout.count()).find(|&index| found.holder(index).is_none()) {
            let text = format!("shard {index} of pack {name} was given away, and is not found");
            return Err(Error::new(Kind::Io, text));
        }
        // A pack in one piece is safer than too few shards, or than two of them with one benefactor.
        let holders: BTreeSet<u64> = owners.iter().flatten().copied().collect();
        self.check_count(name, &layout, holders.len(), failures).map(|()| false)
    }

    /// Gives a shard to somebody, perhaps to this very benefactor.
    fn give_shard<'b>(
        &self,
        view: &View,
        id: u64,
        item: Item,
        layout: &Layout,
        shard: &dyn Fn() -> Result<Vec<&'b [u8]>>,
    ) -> Result<()> {
        if id != self.id {
            let with = &mut |put: &dyn Fn(&[&[u8]]) -> _| Ok(put(&shard()?));
            return self.give_bytes(view, id, item, layout.stored_len(), with);
        }
        if self.is_removed(item.pack) {
            return Err(Error::new(Kind::NotFound, format!("pack {} was removed", item.pack)));
        }
        if self.shelf.length(item).is_err() {
            let bytes = shard()?.concat();
            match self.shelf.take(item, bytes.len() as u64, false, &mut &bytes[..]) {
                Err(error) if error.kind() != Kind::Exists => return Err(error),
                _ => {}
            }
        }
        self.shelf.sync(&[item])
    }

    fn check_count(&self, name: PackName, layout: &Layout, count: usize, failures: Vec<Error>) -> Result<()> {
        if count == usize::from(layout.count()) {
            return Ok(());
        }
        let text = format!("pack {name} has shards with {count} of {} benefactors", layout.count());
        Err(short_of(text, failures))
    }

    /// Gives a shard to its owner, and makes again those after it that are nowhere; whether it must stay here.
    pub(super) fn secure_shard(&self, view: &View, name: PackName, index: u8) -> Result<bool> {
        let item = Item::shard(name, index);
        let layout = self.layout_of(name, index)?;
        let mut failure = None;
        let ideals = view.shard_owners(name, layout.count());
        let ideal = ideals[usize::from(index)];
        let mut owner_among = |may: &dyn Fn(u64) -> bool| {
            let owners = view.shard_takers(name, layout.count(), |of, id| {
                let mut given =
                    || self.give_to(view, id, item).map_err(|error| failure = Some(error)).is_ok();
                of != index || may(id) && (id == self.id || given())
            });
            owners[usize::from(index)]
        };
        // Whoever is to have another shard, or has one that is nowhere else, is no place for one whose own is full: he would have two.
        let is_crowded = self.has_another_alone(view, name, index)?;
        let has_none = |id| Some(id) == ideal || !(ideals.contains(&Some(id)) || is_crowded && id == self.id);
        let owner = owner_among(&has_none).or_else(|| owner_among(&|_| true));
        let stays = view.members().any(|(id, _)| id == self.id);
        let next = self.secure_next(view, name, index, &layout, false);
        // Who leaves is not kept by what a pool lacks that is too small. Otherwise it goes when all is made: whoever gets this shard looks after the others
        // in the next epoch only.
        if stays || view.members().count() >= layout.count().into() {
            next?;
        }
        match owner {
            Some(id) if stays && id == self.id && self.has_another_alone(view, name, index)? => {
                let few = || Error::new(Kind::Io, "the pool has too few benefactors");
                Err(failure.unwrap_or_else(few).within(format!("two shards of pack {name} are here")))
            }
            Some(id) if id == self.id => Ok(true),
            // It may go only to whoever has it where nobody refuses: he never gives it up himself.
            Some(id) if stays && ideal != Some(id) => Ok(true),
            Some(id) => self.check_spread(view, name, index, id, &ideals).map(|()| false),
            None if stays => Ok(true),
            None => {
                Err(failure.unwrap_or_else(|| Error::new(Kind::Io, format!("nobody takes shard {item}"))))
            }
        }
    }

    /// A shard must not be given up to somebody who has another one, and nobody else that: whoever is lost then would take two along. Where
    /// there are fewer members than shards that cannot be helped.
    fn check_spread(
        &self,
        view: &View,
        name: PackName,
        index: u8,
        taker: u64,
        ideals: &[Option<u64>],
    ) -> Result<()> {
        if view.current().members.len() < ideals.len() {
            return Ok(());
        }
        for (other, &ideal) in (0..).zip(ideals).filter(|(other, _)| *other != index) {
            let item = Item::shard(name, other);
            if self.has(view, taker, item) && !self.is_with_another_than(view, taker, item, ideal) {
                let text = format!(
                    "shard {index} of pack {name} waits until {taker:016x} has given away shard {other}"
                );
                return Err(Error::new(Kind::Io, text));
            }
        }
        Ok(())
    }

    /// Whether a member, perhaps this very one, has a shard.
    fn has(&self, view: &View, id: u64, item: Item) -> bool {
        match id == self.id {
            true => self.shelf.length(item).is_ok(),
            false => view.peer(id).try_ask(&Question::Length { epoch: 0, item }, &[], None).is_ok(),
        }
    }

    /// Whether anybody but one member has a shard; who should have it is asked first.
    fn is_with_another_than(&self, view: &View, one: u64, item: Item, ideal: Option<u64>) -> bool {
        let others = view.members().map(|(id, _)| id).filter(|id| Some(*id) != ideal);
        let mut likely = ideal.into_iter().chain(others).filter(|id| *id != one);
        likely.any(|id| self.has(view, id, item))
    }

    /// Whether one more shard of a pack is here, and nowhere else.
    fn has_another_alone(&self, view: &View, name: PackName, index: u8) -> Result<bool> {
        let items = self.shelf.items_of(name)?;
        let mut others = items.into_iter().filter(|item| item.shard.is_some_and(|other| other != index));
        Ok(others.any(|item| !self.is_with_another_than(view, self.id, item, None)))
    }

    /// Sees to it that all shards of a pack are there, each with another benefactor, of which one is here.
    pub(super) fn secure_all(&self, name: PackName, index: u8) -> Result<()> {
        let view = self.view();
        let layout = self.layout_of(name, index)?;
        self.secure_next(&view, name, index, &layout, true)?;
        let spread = Spread::lasting(&view, name, view.class.code.unwrap_or(layout.code()));
        self.check_count(name, &layout, spread.reach(&layout, 0), Vec::new())
    }

    /// How the pack is cut of which a shard is here.
    fn layout_of(&self, name: PackName, index: u8) -> Result<Layout> {
        let item = Item::shard(name, index);
        let length = self.shelf.length(item)?;
        let at = length.checked_sub(TAIL_BYTES as u64);
        let at = at.ok_or_else(|| Error::corrupt(format!("shard {item} is too short")))?;
        let tail = self.shelf.give(item, at, TAIL_BYTES as u64)?.slices().concat();
        Ok(Layout::of_tail(name, &tail, length)?.0)
    }

    /// Makes shards again that are nowhere, if the one after `index` is one of them: all of the pack, because that costs hardly more than one. What cannot be made
    /// again is lost, and no trying helps. Where `all` must be there before somebody is answered it is not left to others.
    fn secure_next(&self, view: &View, name: PackName, index: u8, layout: &Layout, all: bool) -> Result<()> {
        let count = layout.count();
        let code = view.class.code.unwrap_or(layout.code());
        let spread = Spread::lasting(view, name, code).with(&*self.shelf);
        let is_next_there = || spread.has((index + 1) % count);
        if !all && is_next_there() || self.is_in_one_piece(view, name) {
            return Ok(());
        }
        let missing: Vec<u8> = (0..count).filter(|&other| !spread.has(other)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if !all && maker_of(&missing, count) != Some(index) && self.may_leave_to_others(name) {
            let text = format!("pack {name} lacks {} shards, which another one makes", missing.len());
            return Err(Error::new(Kind::Io, text));
        }
        // Of one that is lost there is nothing to be taken.
        let is_lost = count - (missing.len() as u8) < layout.code().data();
        let may = |other: &u8| self.may_make_again(Item::shard(name, *other));
        let (missing, made): (Vec<u8>, Vec<u8>) = missing.into_iter().partition(may);
        if !missing.is_empty() {
            tracing::debug!("shards {missing:?} of pack {name} are made again");
            // Those who were given up may still be read from.
            let any = Spread::deep(view, name, code).with(&*self.shelf);
            let wanted = if is_lost { Ok(()) } else { self.check_wanted(view, name, &missing, layout) };
            match wanted.and_then(|()| self.make_again(view, &any, name, &missing, layout)) {
                Err(error) if error.kind() == Kind::Corrupt && !all => {
                    tracing::warn!("{error}");
                    return Ok(());
                }
                Err(error) if error.kind() == Kind::Full => {
                    missing.iter().for_each(|&index| self.was_not_made(Item::shard(name, index)));
                    return Err(error);
                }
                done => done?,
            }
        }
        if made.is_empty() {
            return Ok(());
        }
        let text = format!("shards {made:?} of pack {name} were made a moment ago, and are not found");
        Err(Error::new(Kind::Io, text))
    }

    /// Whether somebody has the pack itself, and is making shards of it.
    fn is_in_one_piece(&self, view: &View, name: PackName) -> bool {
        let question = Question::Length { epoch: 0, item: name.into() };
        self.shelf.length(name.into()).is_ok()
            || view
                .takers(name, |_| true)
                .iter()
                .any(|&id| id != self.id && view.peer(id).try_ask(&question, &[], None).is_ok())
    }

    /// Whether anybody would take one of the shards that are missing: others are not read for nothing.
    fn check_wanted(&self, view: &View, name: PackName, missing: &[u8], layout: &Layout) -> Result<()> {
        let (len, mut failures) = (layout.stored_len(), Vec::new());
        let wants = |item: Item, id: u64| match id == self.id {
            true => self.shelf.check_room(item, len),
            false => {
                let peer = view.peer(id);
                let offered = peer.offer(view.current().number, item, len);
                offered.map(drop).map_err(|failure| failure.into_error(peer.address()))
            }
        };
        let takers = view.shard_takers(name, layout.count(), |of, id| {
            !missing.contains(&of)
                || wants(Item::shard(name, of), id).map_err(|error| failures.push(error)).is_ok()
        });
        match missing.iter().any(|&index| takers[usize::from(index)].is_some()) {
            true => Ok(()),
            false => Err(short_of(format!("nobody takes shards {missing:?} of pack {name}"), failures)),
        }
    }

    fn make_again(
        &self,
        view: &View,
        spread: &Spread,
        name: PackName,
        missing: &[u8],
        layout: &Layout,
    ) -> Result<()> {
        let healed = spread.heal(layout, false)?;
        // Members who are not reached may come back with what they have.
        let is_silent = |(id, peer): (u64, &Arc<Peer>)| {
            let item = Item::shard(name, missing[0]);
            let question = Question::Length { epoch: 0, item };
            id != self.id && matches!(peer.try_ask(&question, &[], None), Err(Failure::Lost(_)))
        };
        if healed.is_none() && view.members().any(is_silent) {
            return Err(Error::new(
                Kind::Io,
                format!("too few shards of pack {name} can be read at the moment"),
            ));
        }
        let lost = || Error::corrupt(format!("pack {name} has lost more shards than it may"));
        let pack = healed.ok_or_else(lost)?.pack;
        let pieces = [&pack[..]];
        let encoded = Encoded::again(name, *layout, &pieces)?;
        let mut failures = Vec::new();
        let owners = view.shard_takers(name, layout.count(), |of, id| {
            let given =
                || self.give_shard(view, id, Item::shard(name, of), layout, &|| Ok(encoded.shard(of)));
            !missing.contains(&of) || given().map_err(|error| failures.push(error)).is_ok()
        });
        let without = missing.iter().filter(|&&index| owners[usize::from(index)].is_none()).count();
        self.check_count(name, layout, usize::from(layout.count()) - without, failures)
    }
}

/// Whose holder makes all shards that are missing: the one before the first of them, so that two do not make the same.
fn maker_of(missing: &[u8], count: u8) -> Option<u8> {
    let first = *missing.first()?;
    (1..count).map(|back| (first + count - back) % count).find(|other| !missing.contains(other))
}
