//! Memory and disk that many machines lend, as one store (`docs/POOL.md`), over connections (`docs/WIRE.md`).
//!
//! ```text
//! saver, reader              benefactor                     manager
//! PoolStore    -- packs -->  BenefactorService -> Shelf
//! PoolCatalog  -- decisions ------------------------------> ManagerService -> LogCatalog
//! PoolObjects  -- index, notes ---------------------------> ManagerService -> folder
//! ```
#![forbid(unsafe_code)]

mod client;
mod server;
mod shelf;
mod wire;

pub use client::{Network, Peer, PoolCatalog, PoolObjects, PoolStore, Simulated};
pub use server::{Benefactor, Lend, ManagerService, Server, Service, Station, Traffic};
pub use shelf::{Bulk, LentDisk, LentMemory, Shelf, Source, Usage, Wish, WriterId};
pub use wire::{Key, Load, Protection, Report, question_word};
