//! Upkeep: retention, garbage collection, compaction, verification, repair.
//!
//! Each is a plan first, which can be shown, and then applied. The rules that make it safe beside savers and
//! readers are in `docs/COMMIT.md`; what this crate adds is only *what* to condemn, fence, move and mend.
#![forbid(unsafe_code)]

mod compact;
mod drain;
mod gc;
mod health;
mod live;
mod note;
mod prune;
mod repair;
mod tiered;
mod verify;

use std::sync::Arc;

use stdchk_catalog::{Catalog, Owner, State};
use stdchk_engine::{Vault, Workers};
use stdchk_store::{Objects, Store};

pub use drain::{Drained, Drainer, Share, Target, make_durable};
pub use gc::{GcPlan, Suspect, collect, fence, plan_gc};
pub use health::{Health, HurtMember, check_quick};
pub use prune::{PrunePlan, plan_prune, prune};
pub use repair::{Repaired, repair};
pub use tiered::{OpenTarget, Tiered};
pub use verify::{CheckpointReport, VerifyReport, verify};

/// What upkeep works on, and on whose behalf.
#[derive(Clone)]
pub struct Ground {
    /// The packs.
    pub store: Arc<dyn Store>,
    /// The small objects beside the catalog: the fingerprint index.
    pub objects: Arc<dyn Objects>,
    /// The names.
    pub catalog: Arc<dyn Catalog>,
    /// This process.
    pub owner: Owner,
    /// Whether the process behind a session is provably gone.
    pub is_gone: Arc<dyn Fn(&Owner) -> bool + Send + Sync>,
    /// Bytes of memory to use, about.
    pub memory: usize,
    /// Threads that read and verify.
    pub workers: Arc<Workers>,
}

impl Ground {
    /// A reader of the store in one state of the catalog.
    pub fn vault(&self, state: &Arc<State>) -> Vault {
        Vault::new(self.store.clone(), state.clone(), self.memory / 4)
    }
}
