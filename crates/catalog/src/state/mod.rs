//! The state that the records up to a number lead to.
//!
//! What stays true, and what `docs/COMMIT.md` builds on:
//! - a session is in `sessions` from its `Open` to its `Commit`, `End`, `Fence` or `Forward`, and never again;
//! - a condemned pack may come to be referred to again only through a session opened before its condemnation;
//! - a condemned pack is swept only when every open session that keeps anything was opened after its condemnation;
//! - a file of no versions is being written by several (`shared`).

mod apply;
mod checkpoints;
mod chunked;
mod dropped;
mod encode;
mod history;
mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;

use stdchk_object::{AppName, CheckpointId, Locator, PackName, SessionId};

use crate::drain::Drain;
use crate::op::{CheckpointEntry, ChunkRange, Op, PartEntry, SessionEntry, SessionKind};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::tree::Tree;

pub use checkpoints::Checkpoints;
pub use chunked::{Chunked, Keyed};
pub use dropped::Dropped;
pub use history::{History, SaveSample};

/// A session that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenSession {
    /// As it was opened.
    pub entry: SessionEntry,
    /// The number of the record that opened it.
    pub opened_at: u64,
    /// The parts added so far.
    pub parts: Vec<PartEntry>,
}

/// Where the table lies that says where a pack's chunks went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The table.
    pub table: Locator,
    /// The record that made it valid.
    pub since: u64,
}

/// What is known of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct App {
    /// Its policy, where one was set.
    pub policy: Policy,
    /// Its checkpoints by step and generation.
    pub checkpoints: Checkpoints,
    /// What was measured of it.
    pub history: History,
    /// Which checkpoints there were.
    pub dropped: Dropped,
}

impl App {
    /// The checkpoints, newest first in commit order.
    pub fn newest_first(&self) -> Vec<&CheckpointEntry> {
        let mut all: Vec<&CheckpointEntry> = self.checkpoints.values().collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.sequence));
        all
    }

    /// Whether there is anything of it that somebody wants to know: checkpoints, or a policy for those to come.
    pub fn is_known(&self) -> bool {
        !self.checkpoints.is_empty() || self.policy != Policy::default()
    }
}

/// Everything the catalog knows after some record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) number: u64,
    pub(crate) commits: u64,
    pub(crate) sessions: BTreeMap<SessionId, OpenSession>,
    /// Shared between states, since most do not change from one to the next.
    pub(crate) apps: BTreeMap<AppName, Arc<App>>,
    pub(crate) condemned: BTreeMap<PackName, u64>,
    pub(crate) forwards: BTreeMap<PackName, Forward>,
    pub(crate) damaged: BTreeMap<PackName, Vec<ChunkRange>>,
    pub(crate) pool: Pool,
    pub(crate) drain: Drain,
    pub(crate) tree: Tree,
}

impl State {
    /// The number of the last record.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many commits and forwards there ever were: unchanged means that what is referred to has not grown.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// The open sessions.
    pub fn sessions(&self) -> &BTreeMap<SessionId, OpenSession> {
        &self.sessions
    }

    /// The applications.
    pub fn apps(&self) -> &BTreeMap<AppName, Arc<App>> {
        &self.apps
    }

    /// All checkpoints.
    pub fn checkpoints(&self) -> impl Iterator<Item = &CheckpointEntry> {
        self.apps.values().flat_map(|app| app.checkpoints.values())
    }

    /// One checkpoint.
    pub fn checkpoint(&self, id: &CheckpointId) -> Option<&CheckpointEntry> {
        self.apps.get(&id.app)?.checkpoints.get((id.step, id.generation))
    }

    /// Condemned packs, and the record that condemned each.
    pub fn condemned(&self) -> &BTreeMap<PackName, u64> {
        &self.condemned
    }

    /// Where the tables lie that say what compaction moved.
    pub fn forwards(&self) -> &BTreeMap<PackName, Forward> {
        &self.forwards
    }

    /// Chunks known to be damaged.
    pub fn damaged(&self) -> &BTreeMap<PackName, Vec<ChunkRange>> {
        &self.damaged
    }

    /// Who lends memory and disk, where that is how things are kept.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where checkpoints are drained to, and how far that is.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// The names of files.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Which of `packs` a commit must list as revived, because they were condemned or forwarded meanwhile.
    pub fn to_revive(&self, packs: impl Iterator<Item = PackName>) -> Vec<PackName> {
        packs.filter(|pack| self.condemned.contains_key(pack) || self.forwards.contains_key(pack)).collect()
    }

    /// Whether an operation only leads to less being stored: such ones must be possible where nothing else is. Whoever ends keeps nothing any more.
    pub fn frees(&self, op: &Op) -> bool {
        match op {
            Op::Fence(..)
            | Op::Drop(..)
            | Op::SetPolicy(..)
            | Op::Condemn(..)
            | Op::Swept(..)
            | Op::Unforward(..)
            | Op::End(..)
            | Op::Unname(..) => true,
            // In a mount things are removed.
            Op::Open(entry) => entry.kind == SessionKind::Mount,
            _ => false,
        }
    }

    /// The record that opened the oldest session that may keep anything.
    fn oldest_keeper(&self) -> u64 {
        let keeping = self.sessions.values().filter(|session| session.entry.kind.keeps());
        keeping.map(|session| session.opened_at).min().unwrap_or(u64::MAX)
    }

    /// Condemned packs whose files may be removed now.
    pub fn sweepable(&self) -> Vec<PackName> {
        let oldest = self.oldest_keeper();
        self.condemned.iter().filter(|&(_, &at)| at < oldest).map(|(&pack, _)| pack).collect()
    }
}
