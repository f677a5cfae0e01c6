//! The catalog as a log that one process keeps, for itself and for those whom it serves; or several processes do, in one [`Journal`].
//!
//! Many decisions are gathered into one write and one sync: whoever comes while the disk is busy goes with the next turn. What stays
//! true:
//! - decisions follow each other in memory, each against the state that all before it lead to;
//! - nobody is shown a record before it was handed to the journal, and nobody is told that his own is durable before it is;
//! - after a failure to write, the state is again what is on the medium, and those who built upon more are told so;
//! - where others write too, what they wrote comes first, and is found by whoever asks after it was written.
#![forbid(unsafe_code)]

mod catalog;
pub mod clock;
mod files;
mod journal;
mod signs;

pub use catalog::{LogCatalog, Submitted, Tail, Upon};
pub use journal::{Journal, Limits, Newer};
pub use signs::{HeardSigns, Signs};
