//! Packs of a pool that keeps them in shards. What was just put is still in one piece, until its holder has made shards of it.

use std::cell::RefCell;

use stdchk_catalog_log::clock;
use stdchk_erasure::{Checked, Encoded, Layout, read};
use stdchk_object::{Code, Error, Item, Kind, PackName, Result};

use super::peer::{Failure, Peer};
use super::store::{CHANGES_MAX, MOVING, PAUSE, PoolStore, is_whole};
use super::{Spread, View};
use crate::wire::Question;

/// Layouts that are remembered.
const KNOWN_MAX: usize = 1 << 16;

impl PoolStore {
    fn known(&self, name: PackName) -> Option<Layout> {
        self.layouts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&name).copied()
    }

    fn know(&self, name: PackName, layout: Option<Layout>) {
        let mut layouts = self.layouts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if layouts.len() >= KNOWN_MAX {
            layouts.clear();
        }
        match layout {
            Some(layout) => _ = layouts.insert(name, layout),
            None => _ = layouts.remove(&name),
        }
    }

    /// Does something with a pack in one piece or with its shards, whichever there are. It may be made into shards at this moment, so that
    /// both are looked for again.
    fn either<T>(
        &self,
        name: PackName,
        code: Code,
        mut in_one: impl FnMut() -> Result<T>,
        mut in_shards: impl FnMut(&Spread, &Layout) -> Result<T>,
    ) -> Result<T> {
        let begun = clock::now();
        let mut is_second = false;
        loop {
            let view = self.view();
            let known = self.known(name);
            if known.is_none()
                && is_at_first_owner(&view, name)
                && let Ok(done) = in_one()
            {
                return Ok(done);
            }
            // What is not found where it should be is looked for everywhere.
            let spread = match is_second {
                false => Spread::of(&view, name, code),
                true => Spread::deep(&view, name, code),
            };
            let done = known.map_or_else(|| spread.layout(), Ok).and_then(|layout| {
                self.know(name, Some(layout));
                in_shards(&spread, &layout)
            });
            let failure = match done {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            self.know(name, None);
            if let Ok(done) = in_one() {
                return Ok(done);
            }
            let changed = self.refresh().unwrap_or(false);
            let is_moving = self.view().is_moving();
            if !changed && is_second && (!is_moving || clock::since(begun) > MOVING) {
                return Err(match failure.kind() {
                    Kind::NotFound => {
                        Error::new(Kind::NotFound, format!("pack {name} is nowhere in the pool"))
                    }
                    _ => failure.within(format!("pack {name}")),
                });
            }
            is_second = true;
            clock::sleep(PAUSE);
        }
    }

    pub(super) fn length_in_shards(&self, name: PackName, code: Code) -> Result<u64> {
        self.either(name, code, || self.length_in_one(name), |_, layout| Ok(layout.pack_len()))
    }

    /// Reads a pack. The first copy is what the shards of data say; the second one minds the sums; each further one does without one of the
    /// shards.
    pub(super) fn read_shards(
        &self,
        name: PackName,
        code: Code,
        copy: u32,
        offset: u64,
        buffers: &mut [&mut [u8]],
    ) -> Result<()> {
        let buffers = RefCell::new(buffers);
        self.either(
            name,
            code,
            || self.read_in_one(name, offset, &mut buffers.borrow_mut()),
            |spread, layout| match copy.checked_sub(2) {
                None if copy == 0 => read(layout, spread, &[], offset, &mut buffers.borrow_mut()),
                None => {
                    let checked = Checked { shards: spread, layout: *layout };
                    read(layout, &checked, &[], offset, &mut buffers.borrow_mut())
                }
                Some(without) => read(layout, spread, &[without as u8], offset, &mut buffers.borrow_mut()),
            },
        )
    }

    /// Sees to it that all shards of a pack are there, and synced. Whoever has the pack in one piece makes them; who has only a shard of it
    /// cannot speak for the others, so that all are asked.
    pub(super) fn sync_shards(&self, name: PackName, code: Code) -> Result<()> {
        let mut failure = None;
        for _ in 0..CHANGES_MAX {
            let view = self.view();
            let epoch = view.current().number;
            let sync = |id: u64| {
                let question = Question::Sync { epoch, names: vec![name] };
                view.peer(id).try_ask(&question, &[], None).map(drop)
            };
            let first = view.takers(name, |_| true).first().copied();
            let mut whole = first.filter(|&id| has_whole(&view, id, name));
            let spread = Spread::deep(&view, name, code);
            let layout =
                if whole.is_none() { spread.layout() } else { Err(Error::invalid("not looked for")) };
            if let Ok(layout) = &layout
                && Spread::lasting(&view, name, code).reach(layout, epoch) == usize::from(layout.count())
            {
                return Ok(());
            }
            if whole.is_none() {
                whole = view.holders(name).find(|&id| has_whole(&view, id, name));
            }
            let holder = whole.or_else(|| (0..code.count()).find_map(|index| spread.holder(index)));
            let missing = || Error::new(Kind::NotFound, format!("pack {name} is nowhere in the pool"));
            let holder = holder.ok_or_else(missing)?;
            match sync(holder) {
                Ok(()) if whole.is_some() => return Ok(()),
                // All shards are asked once more.
                Ok(()) | Err(Failure::Stale(_)) => _ = self.refresh()?,
                Err(Failure::Refused(error)) if error.kind() == Kind::NotFound => failure = Some(error),
                Err(failed) => return Err(failed.into_error(view.peer(holder).address())),
            }
        }
        Err(failure.unwrap_or_else(|| {
            Error::new(Kind::Conflict, "the pool changes faster than a pack can be made safe")
        }))
    }

    /// Whether all shards are there, and whole.
    pub(super) fn are_shards_there(&self, name: PackName, code: Code) -> Result<bool> {
        let view = self.view();
        let spread = Spread::deep(&view, name, code);
        match spread.layout() {
            Ok(layout) => Ok((0..layout.count()).all(|index| {
                let holder = spread.holder(index).map(|id| view.peer(id));
                holder.is_some_and(|peer| is_whole(peer, Item::shard(name, index)) == Some(true))
            })),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes missing and wrong shards again.
    pub(super) fn heal_shards(&self, name: PackName, code: Code) -> Result<()> {
        let view = self.view();
        let spread = Spread::deep(&view, name, code);
        let layout = match spread.layout() {
            // It may be in one piece still.
            Err(error) if error.kind() == Kind::NotFound => return self.sync_shards(name, code),
            layout => layout?,
        };
        let Some(healed) = spread.heal(&layout, true)? else { return Ok(()) };
        healed.bad.iter().try_for_each(|(index, bytes)| {
            self.put_shard(&view, &spread, &layout, Item::shard(name, *index), &[bytes])
        })
    }

    /// Puts a pack in the place of its shards.
    pub(super) fn replace_shards(&self, name: PackName, code: Code, pieces: &[&[u8]]) -> Result<()> {
        let view = self.view();
        let spread = Spread::deep(&view, name, code);
        let layout = match spread.layout() {
            Ok(layout) => layout,
            Err(error) if error.kind() == Kind::NotFound => return self.replace_in_one(name, pieces),
            Err(error) => return Err(error),
        };
        let layout = layout.again(pieces.iter().map(|piece| piece.len() as u64).sum());
        self.know(name, Some(layout));
        let encoded = Encoded::again(name, layout, pieces)?;
        encoded.shards().try_for_each(|(index, pieces)| {
            self.put_shard(&view, &spread, &layout, Item::shard(name, index), &pieces)
        })
    }

    /// Puts a shard where the wrong one is, or where it belongs.
    fn put_shard(
        &self,
        view: &View,
        spread: &Spread,
        layout: &Layout,
        item: Item,
        pieces: &[&[u8]],
    ) -> Result<()> {
        let index = item.shard.unwrap_or(0);
        let question = Question::Put { epoch: view.current().number, item, replaces: false, is_copy: true };
        let put = |peer: &Peer| {
            let asked = peer.try_ask(&question, pieces, None);
            asked.map(drop).map_err(|failure| failure.into_error(peer.address()))
        };
        if let Some(id) = spread.holder(index) {
            let peer = view.peer(id);
            // The wrong one has sums that fit, perhaps, so that it would not be replaced.
            peer.try_ask(&Question::Drop { item }, &[], None)
                .map_err(|failure| failure.into_error(peer.address()))?;
            return put(peer);
        }
        let mut failure = None;
        let takers = view.shard_takers(item.pack, layout.count(), |shard, id| {
            shard != index || put(view.peer(id)).map_err(|error| failure = Some(error)).is_ok()
        });
        match (takers.get(usize::from(index)).copied().flatten(), failure) {
            (Some(_), _) => Ok(()),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::new(Kind::Io, format!("nobody takes shard {item}"))),
        }
    }
}

/// Whether the first who should have a pack in one piece has it.
fn is_at_first_owner(view: &View, name: PackName) -> bool {
    view.takers(name, |_| true).first().is_some_and(|&id| has_whole(view, id, name))
}

/// Whether somebody has a pack in one piece, and says so at once.
fn has_whole(view: &View, id: u64, name: PackName) -> bool {
    let peer = view.peer(id);
    let question = Question::Length { epoch: 0, item: name.into() };
    !peer.is_suspected() && peer.try_ask(&question, &[], None).is_ok()
}
