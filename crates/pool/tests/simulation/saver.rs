//! Whoever saves some packs under one name.

use std::sync::Arc;

use stdchk_catalog::{Catalog, conformance};
use stdchk_kit::generate;
use stdchk_object::{PackName, Result, SessionId};
use stdchk_pool::{PoolCatalog, PoolStore};
use stdchk_store::Store;

use crate::world::World;

/// In such pieces memory is lent.
const MEMORY_STEP: u64 = 64 << 10;

pub struct Saver {
    pub session: u64,
    pub packs: Vec<(PackName, Vec<u8>)>,
    catalog: Arc<PoolCatalog>,
    store: PoolStore,
}

impl Saver {
    /// One that has begun, with one to three packs.
    pub fn begin(world: &World, session: u64) -> Result<Saver> {
        let name = |number| PackName { session: SessionId(session), writer: 0, number };
        let long = world.one_in(4);
        let bytes = |number| {
            let len = if long { 70_000 + world.below(90_000) } else { 100 + world.below(5000) };
            generate::pack(name(number), &world.random.borrow_mut().bytes(len as usize))
        };
        let packs = (0..1 + world.below(3) as u32).map(|number| (name(number), bytes(number))).collect();
        let catalog = world.catalog();
        let store = PoolStore::open(catalog.clone(), world.key())?;
        catalog.append_as_saver(false, &mut |_| Ok(vec![conformance::writer(session, session)]))?;
        Ok(Saver { session, packs, catalog, store })
    }

    /// The bytes that it has kept for all its packs, one copy of each.
    pub fn wish(&self) -> u64 {
        self.wishes().iter().map(|(_, len)| len).sum()
    }

    fn wishes(&self) -> Vec<(PackName, u64)> {
        self.packs
            .iter()
            .map(|(name, bytes)| (*name, (bytes.len() as u64).next_multiple_of(MEMORY_STEP)))
            .collect()
    }

    /// Says what comes, and sometimes that more comes than will.
    pub fn say_ahead(&self, too_much: bool) {
        let mut wishes = self.wishes();
        let next = wishes.len() as u32;
        let more = |number| (PackName { number, ..wishes[0].0 }, 200_000);
        let more: Vec<_> = (next..next + 2 * u32::from(too_much)).map(more).collect();
        wishes.extend(more);
        self.store.expect(SessionId(self.session), 0, &wishes);
    }

    /// Whatever is kept for it and was not needed.
    pub fn give_back(&self) {
        self.store.expect(SessionId(self.session), 0, &[]);
    }

    pub fn put_all(&self) -> Result<()> {
        self.packs.iter().try_for_each(|(name, bytes)| self.store.put(*name, &[bytes]))?;
        self.store.sync(&self.packs.iter().map(|(name, _)| *name).collect::<Vec<_>>())
    }

    pub fn commit(&self) -> Result<()> {
        let commit = conformance::commit(self.session, self.session, &[]);
        self.catalog.append_as_saver(true, &mut |_| Ok(vec![commit.clone()])).map(drop)
    }
}
