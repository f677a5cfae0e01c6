//! The bytes that stdchk keeps: ids, packs, segment trees, members, parts and manifests.
//!
//! This crate is the ground floor: it encodes and decodes, and touches no file, clock, thread or
//! socket. `docs/FORMAT.md` is the prose of the same layouts; where they differ, one of them is wrong.
//!
//! Bytes from outside are never trusted: a decoder returns [`Error`] of kind [`Kind::Corrupt`], it does
//! not panic, and it allocates no more than the bytes that it was given can justify.
#![forbid(unsafe_code)]

pub mod code;
pub mod envelope;
pub mod error;
pub mod forward;
pub mod hash;
pub mod ids;
pub mod manifest;
pub mod member;
pub mod pack;
pub mod part;
pub mod tree;
pub mod wire;

pub use code::{Code, Item};
pub use error::{Error, Kind, Result};
pub use hash::Hash;
pub use ids::{AppName, CheckpointId, Locator, PackName, PackRef, SessionId};
