//! A catalog kept as objects with conditional create.
//!
//! Names: `log/<n>` for records, `snapshots/<n>` for states, `mark` for the newest snapshot, `beats/<session>` for
//! heartbeats. The order of steps, and why it is safe, is in `docs/COMMIT.md`, "Appending a record".
//!
//! What stays true:
//! - the end of the log is believed only if the mark, read afterwards, is not beyond it;
//! - records are trimmed only far behind a snapshot that the durable mark already points to.
#![forbid(unsafe_code)]

mod catalog;
mod log;

pub use catalog::ObjectCatalog;
