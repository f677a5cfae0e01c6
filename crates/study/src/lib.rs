//! The papers' experiments on the user's own data (`docs/STUDY.md`).
//!
//! - [`compression`]: how well and how fast compressors do (the compression paper, section IV).
//! - [`successive`]: what stdchk would leave of a file beside the one before it.
//! - [`similarity`]: how much of a file is found in the one before it, by several ways to cut (the stdchk paper, section V.C).
#![forbid(unsafe_code)]

pub mod compression;
pub mod cuts;
pub mod input;
pub mod rabin;
pub mod similarity;
pub mod successive;

pub use compression::{Pressed, Tool, compression, write_rate};
pub use cuts::{Cuts, WindowHash};
pub use input::Input;
pub use similarity::{Figures, Progress, similarity};
pub use successive::successive;
