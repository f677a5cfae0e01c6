//! Chunkers, filters and compressors: bytes in, bytes out. No file, clock or thread.
#![forbid(unsafe_code)]

pub mod advise;
pub mod chunk;
pub mod delta;
pub mod planes;
pub mod press;

pub use advise::{Advisor, Choice, Pace, Prefer, Preference, Trial, try_codings, try_delta};
pub use chunk::Cutter;
pub use press::Press;
