//! Which packs checkpoints refer to: read from manifests and heads of parts, never from trees. What was read is noted for
//! the next time, because manifests do not change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stdchk_catalog::State;
use stdchk_engine::{Vault, View};
use stdchk_object::error::Context;
use stdchk_object::{PackName, Result};

use crate::Ground;
use crate::note::Note;

/// The packs that the checkpoints of a state name. It can follow the state as that goes on, and then reads only
/// the manifests that are new.
#[derive(Default)]
pub struct Live {
    note: Note,
}

impl Live {
    /// Nothing read yet: every manifest will be.
    pub fn new() -> Live {
        Live::default()
    }

    /// Goes on from what was noted before.
    pub fn remembered(ground: &Ground) -> Live {
        Live { note: Note::read(&*ground.objects) }
    }

    /// Notes what was read, for the next time.
    pub fn remember(&self, ground: &Ground) {
        if let Err(error) = self.note.write(&*ground.objects) {
            tracing::debug!("the next collection has to read all manifests again: {error}");
        }
    }

    /// Reads what is new in `state`. Fails if any manifest cannot be read: then nothing may be called garbage.
    pub fn follow(&mut self, ground: &Ground, state: &Arc<State>) -> Result<()> {
        let vault = ground.vault(state);
        let mut there = HashSet::new();
        for entry in state.checkpoints() {
            there.insert(entry.manifest);
            if self.note.knows(&entry.manifest) {
                continue;
            }
            let view = View::open(&vault, &entry.manifest).context(|| {
                format!(
                    "nothing was collected, because checkpoint {0} cannot be read; 'stdchk verify {0}' says more, \
                     'stdchk forget {0}' gives it up",
                    entry.id()
                )
            })?;
            let parts = view.manifest.parts.iter().map(|at| at.pack.name);
            let homes: Vec<PackName> = [entry.manifest.pack.name].into_iter().chain(parts).collect();
            let references = view.parts.iter().flat_map(|part| part.references());
            let packs: Vec<_> = references.map(|(pack, bytes)| (pack.name, bytes)).collect();
            self.note.add(entry.manifest, &homes, &packs);
        }
        self.note.keep_only(&there);
        Ok(())
    }

    /// Every pack that is named, and the most bytes of it that any one checkpoint names.
    pub fn named(&self) -> BTreeMap<PackName, u64> {
        self.note.named()
    }

    /// Packs that hold manifests and heads of parts: these are found by locators, which forwards do not move.
    pub fn homes(&self) -> BTreeSet<PackName> {
        self.note.homes()
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

    /// Bytes of a pack's chunks before compression, as its footer says; nothing where it cannot be read.
    pub fn raw_bytes(&mut self, vault: &Vault, pack: PackName) -> Option<u64> {
        if let Some(raw) = self.note.raw_bytes(&pack) {
            return Some(raw);
        }
        let open = vault.open_named(pack).ok()?;
        let raw = open.footer.runs().iter().map(|run| u64::from(run.raw_len)).sum();
        self.note.add_raw_bytes(pack, raw);
        Some(raw)
    }
}
