//! The papers' experiments on the user's own data (`docs/STUDY.md`).
//!
//! - [`similarity`]: how much of a file is found in the one before it, by several ways to cut (the stdchk paper, section V.C).
#![forbid(unsafe_code)]

pub mod cuts;
pub mod rabin;
pub mod similarity;

pub use cuts::{Cuts, WindowHash};
pub use similarity::{Figures, Progress, similarity};
