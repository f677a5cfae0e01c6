//! The catalog: which checkpoints exist, who is writing, what may be removed.
//!
//! It is one ordered log of [`Record`]s. A record is made only against the state that all records before it
//! lead to, so every decision is made once, in one order, for everybody. `docs/COMMIT.md` states the protocol;
//! [`State`] is its arithmetic, pure, and the model checker in `tests/model.rs` drives that very code.
#![forbid(unsafe_code)]

pub mod conformance;
mod drain;
pub mod op;
pub mod policy;
mod pool;
mod record;
mod state;
pub mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stdchk_object::{Result, SessionId};

pub use drain::{Drain, DrainOp, Mirror};
pub use op::{
    CheckpointEntry, ChunkRange, Durability, Op, Owner, PartEntry, Restart, SessionEntry, SessionKind,
};
pub use policy::{Policy, Saving, Wanted};
pub use pool::{Class, Leaver, Medium, Member, Pool, PoolOp};
pub use record::{Record, random};
pub use state::{App, Chunked, Forward, History, Keyed, OpenSession, SaveSample, State};

/// Decides what to append, given the newest state. It may be called again when others were faster.
pub type Decide<'a> = dyn FnMut(&State) -> Result<Vec<Op>> + 'a;

/// The names of everything, in one order for everybody.
pub trait Catalog: Send + Sync {
    /// The newest state.
    fn state(&self) -> Result<Arc<State>>;

    /// Appends one record with the operations that `decide` returns, validated against the very state that
    /// it was given; if another record came first, `decide` is asked again. No operations: nothing is
    /// appended. If `durable`, the record and all before it survive a power cut on return.
    fn append(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>>;

    /// The same for those decisions that stay right whatever savers do between the state that `decide` was given and the one that the
    /// record follows: open sessions, add parts, commit, and end. Each operation is checked against the latter. Where many save at
    /// once, they need not wait for each other.
    fn append_as_saver(&self, durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        self.append(durable, decide)
    }

    /// Says that a session is alive. One that was opened a moment ago is known to be.
    fn beat(&self, session: SessionId) -> Result<()>;

    /// How long ago each session was last said to be alive, by the catalog's own clock. Only a suggestion.
    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>>;

    /// Reads everything that is stored of the catalog, also what no longer matters; says what is wrong with it.
    fn verify(&self) -> Result<Vec<String>>;

    /// Says that a session will be opened at once, where that has to be known before.
    fn begins(&self, session: SessionId) -> Result<()> {
        let _ = session;
        Ok(())
    }

    /// Says that a session has ended, where the catalog does not see that in the log.
    fn ended(&self, session: SessionId) -> Result<()> {
        let _ = session;
        Ok(())
    }

    /// Forgets the heartbeats of sessions that have ended long ago.
    fn forget_beats(&self, sessions: &[SessionId]) -> Result<()>;
}
