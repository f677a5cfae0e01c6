//! The catalog as a log that one process keeps, for itself and for those whom it serves.
//!
//! Many decisions are gathered into one write and one sync: whoever comes while the disk is busy goes with the next turn. What stays
//! true:
//! - decisions follow each other in memory, each against the state that all before it lead to;
//! - nobody is shown a record before it was handed to the file system, and nobody is told that his own is durable before it is;
//! - after a failure to write, the state is again what is on the medium, and those who built upon more are told so.
#![forbid(unsafe_code)]

mod catalog;
mod files;

pub use catalog::{LogCatalog, Submitted, Tail};
