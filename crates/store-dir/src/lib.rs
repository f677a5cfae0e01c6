//! A directory as a store: packs and small objects as files, made durable in the order of `docs/COMMIT.md`.
//!
//! What stays true: a pack is created exclusively under its own name; an object is written elsewhere, synced,
//! and then linked or renamed to its name, so that it is never seen in part. All access to the file system
//! goes through [`Fs`], so that tests can put a failing one in its place.
#![forbid(unsafe_code)]

mod dir;
mod direct;
pub mod fs;
mod real;
mod shards;

pub use dir::DirStore;
pub use real::{RealFs, WRITE_BYTES};
