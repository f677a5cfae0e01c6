//! Giving what is here to another one: it is offered first, so that nothing is sent for nothing.

use std::cell::Cell;
use std::time::Duration;

use stdchk_catalog_log::clock;
use stdchk_object::{Error, Item, Kind, Result};

use super::Keeper;
use super::rounds::REST;
use crate::client::{Failure, View};
use crate::wire::{Offered, Question};

/// How long, and how often, somebody is waited for who gives the same to the same.
const GIVING_WAIT: Duration = Duration::from_millis(10);
const GIVING_WAITS: u32 = 200;

/// Calls what it is given with the bytes of something.
type Give<'g> = dyn FnMut(&dyn Fn(&[&[u8]]) -> std::result::Result<(), Failure>) -> Result<std::result::Result<(), Failure>>
    + 'g;

thread_local! {
    /// Bytes that this thread has given to others.
    pub(super) static GIVEN: Cell<u64> = const { Cell::new(0) };
}

impl Keeper {
    /// Sees to it that another one has what is here, too: whole, and synced.
    pub(in crate::server) fn give_to(&self, view: &View, id: u64, item: Item) -> Result<()> {
        let length = self.shelf.length(item)?;
        self.give_bytes(view, id, item, length, &mut |put| {
            let bulk = self.shelf.give(item, 0, length)?;
            Ok(put(&bulk.slices()))
        })
    }

    /// The same of bytes that `with` has; it is asked for them only where they are missing.
    pub(in crate::server) fn give_bytes(
        &self,
        view: &View,
        id: u64,
        item: Item,
        length: u64,
        with: &mut Give,
    ) -> Result<()> {
        let peer = view.peer(id);
        let failed = |failure: Failure| failure.into_error(peer.address());
        let epoch = view.current().number;
        let (mut is_late, mut waits) = (false, 0);
        loop {
            let replaces = match peer.offer(epoch, item, length) {
                Ok(Offered::There) => return Ok(()),
                Ok(offered) => offered == Offered::Replaces,
                // Another one is giving it at this moment; in a simulation he cannot go on while he is waited for.
                Err(Failure::Refused(error)) if error.kind() == Kind::Conflict => {
                    if waits < GIVING_WAITS && !clock::is_simulated() {
                        waits += 1;
                        clock::sleep(GIVING_WAIT);
                        continue;
                    }
                    false
                }
                Err(failure) => return Err(failed(failure)),
            };
            if item.shard.is_none() && peer.is_slow() {
                return Err(Error::new(Kind::Io, format!("{} was slow a while ago", peer.address())));
            }
            let question = Question::Put { epoch, item, replaces, is_copy: true };
            match with(&|pieces| peer.try_ask(&question, pieces, None).map(drop))? {
                Ok(_) => {
                    GIVEN.set(GIVEN.get() + length);
                    self.locked().rest = REST;
                    return Ok(());
                }
                // Another one has given it meanwhile; whether that is synced is asked again.
                Err(Failure::Refused(error)) if error.kind() == Kind::Exists && !is_late => is_late = true,
                Err(failure @ Failure::Stale(_)) => return Err(failed(failure)),
                Err(Failure::Refused(error)) if matches!(error.kind(), Kind::Fenced | Kind::Full) => {
                    return Err(error.within(peer.address().to_owned()));
                }
                // Whatever it lacks, it is not the pack that it was to get.
                Err(failure) => return Err(failed(failure).with_kind(Kind::Io)),
            }
        }
    }
}
