//! The engine: bytes in, deduplicated and compressed into packs; and the way back, verified.
//!
//! - [`Vault`] reads: footers, chunks, trees, forwards. Every byte it gives was checked against its hash.
//! - [`PartWriter`] writes one part: a pipeline of readers and hashers, a coordinator that deduplicates in order,
//!   compressors, and writers of packs, all within one memory budget.
//! - [`View`] is a checkpoint that can be read: manifest, parts, members.
//!
//! The engine knows stores and states, not files, names of hosts, or sessions' lives; `stdchk` does.
#![forbid(unsafe_code)]

mod buffers;
mod diff;
mod index;
mod known;
mod options;
mod restore;
mod save;
pub mod session;
mod tags;
mod vault;
mod view;
mod workers;

pub use buffers::{Buffer, Buffers};
pub use diff::{DiffRange, diff_blobs};
pub use index::{Index, IndexBuilder};
pub use options::{ChunkingChoice, Options};
pub use restore::{Reader, Sink, Stretch};
pub use save::{FinishedPart, Held, PartWriter, Past, Rewriter, Source, write_manifest};
pub use session::Session;
pub use tags::TagCache;
pub use vault::{BaseState, Damaged, LeafAt, OpenPack, Roots, Scratch, Span, Vault};
pub use view::{PartView, View};
pub use workers::{Answer, Workers};
