//! A pool's names in etcd: the log of its catalog, signs of life, and small objects. `docs/ETCD.md` has the keys.
//!
//! etcd is asked over the JSON gateway that every member serves. What stays true:
//! - every change is one transaction of etcd, conditional where others may be faster, so that asking again does no harm;
//! - a value is sealed with a key that follows from the pool's: whoever reads etcd learns no names, and nobody forges any.
#![forbid(unsafe_code)]

mod client;
mod journal;
mod objects;
mod seal;
mod signs;

pub use client::{Etcd, Login, SCHEMES};
pub use journal::EtcdJournal;
pub use objects::EtcdObjects;
pub use signs::EtcdSigns;
