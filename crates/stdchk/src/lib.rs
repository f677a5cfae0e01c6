//! stdchk: the checkpoint path of long-running programs.
//!
//! Save state as fast as memory and disk allow, store only what changed, and restart from the newest whole
//! checkpoint. This crate is the face for every surface, and the only one with a promise of stability.
//!
//! ```
//! # fn main() -> stdchk::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let place = dir.path().join("ckpt");
//! # let place = place.to_str().unwrap();
//! use stdchk::{AppName, Look, Repository, SaveOptions, Spec};
//!
//! let repository = Repository::open_or_create(place)?;
//! let app = AppName::new("melt")?;
//!
//! let mut save = repository.save(&app, 1000, SaveOptions::default())?;
//! save.add_bytes("positions", &[1, 2, 3])?;
//! let saved = save.commit()?; // from here on it exists, whole and durable
//! assert_eq!(saved.id.to_string(), "melt@1000");
//!
//! let reading = repository.read()?; // nothing that is read now goes away
//! let (newest, hurt) = repository.newest_whole(&reading, &Spec::parse("melt")?, Look::Quick)?;
//! assert!(hurt.is_empty());
//! let checkpoint = repository.checkpoint(&reading, &newest.expect("just saved"))?;
//! let mut bytes = Vec::new();
//! checkpoint.write_to(checkpoint.member("positions", None)?, &mut bytes, &|_| {})?;
//! assert_eq!(bytes, [1, 2, 3]);
//! # Ok(()) }
//! ```
//!
//! Of memory that the kernel watches only what was written to since the last save is looked at (docs/CAPTURE.md):
//!
//! ```
//! # fn main() -> stdchk::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let place = dir.path().join("ckpt");
//! # let place = place.to_str().unwrap();
//! use stdchk::{AppName, Memory, Repository, SaveOptions, Spec};
//!
//! let repository = Repository::open_or_create(place)?;
//! let app = AppName::new("melt")?;
//!
//! let mut state = Memory::zeroed(1 << 20)?; // used like any `&mut [u8]`
//! for step in 1..=3 {
//!     state[step * 5000] = 1;
//!     let mut save = repository.save(&app, step as u64, SaveOptions::default())?;
//!     save.add_memory("state", &mut state)?;
//!     save.commit()?;
//! }
//! // After a restart; the next save of it knows what it was.
//! let reading = repository.read()?;
//! let newest = Spec::parse("melt")?.find(&reading.state)?[0].clone();
//! let checkpoint = repository.checkpoint(&reading, &newest)?;
//! let again: Memory = checkpoint.memory(checkpoint.member("state", None)?)?;
//! assert_eq!(again[..], state[..]);
//! # Ok(()) }
//! ```
//!
//! Many writers add parts to one checkpoint, which becomes visible at once:
//!
//! ```
//! # fn main() -> stdchk::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let place = dir.path().join("ckpt");
//! # let place = place.to_str().unwrap();
//! use stdchk::{AppName, Repository, SCRIPT_LEASE, SaveOptions};
//!
//! let repository = Repository::open_or_create(place)?;
//! let session = repository.begin(&AppName::new("melt")?, 2000, Some(2), SCRIPT_LEASE)?;
//! for rank in 0..2 {
//!     let mut part = repository.add(session, SaveOptions { rank, ..SaveOptions::default() })?;
//!     part.add_stream("state", &mut &[rank as u8; 100][..], &|_| {})?;
//!     part.finish()?; // durable, immutable, and visible to nobody yet
//! }
//! let saved = repository.commit(session, "both ranks")?;
//! assert_eq!(saved.entry.member_count, 2);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod checkpoint;
mod explain;
mod file_source;
pub mod files;
mod host;
mod memory;
mod metrics;
mod naming;
pub mod pool;
mod repository;
mod save;
pub mod study;
pub mod tier;
mod transfer;
pub mod units;
mod walk;

/// Bytes of the regular files below some paths, for a progress bar.
pub fn total_bytes(paths: &[std::path::PathBuf]) -> u64 {
    let of = |path: &std::path::Path| {
        std::fs::symlink_metadata(path).map_or(0, |m| if m.is_file() { m.len() } else { 0 })
    };
    walk::find(paths, None).map_or(0, |found| found.iter().map(|found| of(&found.path)).sum())
}

pub use checkpoint::{Checkpoint, FileSpec, Look, Members, NamedFile, Passed, RankedMember};
pub use explain::{Explanation, explain};
pub use host::now_ns;
pub use memory::Memory;
pub use metrics::metrics_of;
pub use naming::{Conventional, Spec, by_convention};
pub use repository::{Reading, Repository, parse_durability};
pub use save::{Add, ParentChoice, SCRIPT_LEASE, Save, SaveOptions, Saved};
pub use stdchk_catalog::{
    App, CheckpointEntry, DrainOp, Durability, History, Op, OpenSession, Owner, Policy, SaveSample, Saving,
    SessionKind, State, Wanted,
};
pub use stdchk_codec::{Prefer, Preference};
pub use stdchk_engine::{ChunkingChoice, DiffRange, Options, Sink, Stretch};
pub use stdchk_model as model;
pub use stdchk_object::member::{Body, Chunking, Coded, Content, Member, Preferred, Tally, Way};
pub use stdchk_object::pack::{Codec, Coding};
pub use stdchk_object::{AppName, CheckpointId, Code, Error, Kind, PackName, Result, SessionId};
pub use stdchk_upkeep::{
    Drained, Drainer, GcPlan, Ground, Health, HurtMember, PrunePlan, Repaired, Share, Suspect, Target,
    Tiered, VerifyReport, collect, plan_gc, plan_prune, prune, repair, verify,
};
pub use transfer::Import;
