//! Which packs checkpoints refer to: read from manifests and heads of parts, never from trees.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stdchk_catalog::State;
use stdchk_engine::{Vault, View};
use stdchk_object::error::Context;
use stdchk_object::{Locator, PackName, PackRef, Result};

use crate::Ground;

/// What one checkpoint names.
#[derive(Clone, Default)]
struct Named {
    packs: Vec<(PackRef, u64)>,
}

/// The packs that the checkpoints of a state name. It can follow the state as that goes on, and then reads only
/// the manifests that are new.
pub struct Live {
    by_manifest: HashMap<Locator, Arc<Named>>,
}

impl Live {
    /// Nothing read yet.
    pub fn new() -> Live {
        Live { by_manifest: HashMap::new() }
    }

    /// Reads what is new in `state`. Fails if any manifest cannot be read: then nothing may be called garbage.
    pub fn follow(&mut self, ground: &Ground, state: &Arc<State>) -> Result<()> {
        let vault = ground.vault(state);
        let mut followed = HashMap::new();
        for entry in state.checkpoints() {
            let named = match self.by_manifest.remove(&entry.manifest) {
                Some(named) => named,
                None => Arc::new(named(&vault, &entry.manifest).context(|| {
                    format!(
                        "nothing was collected, because checkpoint {0} cannot be read; 'stdchk verify {0}' says more, \
                         'stdchk forget {0}' gives it up",
                        entry.id()
                    )
                })?),
            };
            followed.insert(entry.manifest, named);
        }
        self.by_manifest = followed;
        Ok(())
    }

    /// Every pack that is named, and the most bytes of it that any one checkpoint names.
    pub fn named(&self) -> BTreeMap<PackName, u64> {
        let mut all: BTreeMap<PackName, u64> = BTreeMap::new();
        for (pack, bytes) in self.by_manifest.values().flat_map(|named| &named.packs) {
            let most = all.entry(pack.name).or_default();
            *most = (*most).max(*bytes);
        }
        all
    }

    /// The packs that must stay: those named, or where their chunks went.
    pub fn needed(&self, ground: &Ground, state: &Arc<State>) -> Result<BTreeMap<PackName, u64>> {
        let vault = ground.vault(state);
        let mut needed = BTreeMap::new();
        for (name, bytes) in self.named() {
            let Some(forward) = state.forwards().get(&name) else {
                needed.insert(name, bytes);
                continue;
            };
            let table = vault.table(name, &forward.table)?;
            for pack in table.packs.iter().chain([&forward.table.pack]) {
                needed.entry(pack.name).or_insert(0);
            }
        }
        Ok(needed)
    }
}

fn named(vault: &Vault, manifest: &Locator) -> Result<Named> {
    let view = View::open(vault, manifest)?;
    let mut packs = vec![(manifest.pack, 0)];
    for (part, at) in view.parts.iter().zip(&view.manifest.parts) {
        packs.push((at.pack.resolved(&manifest.pack), 0));
        packs.extend(part.references());
    }
    Ok(Named { packs })
}
