//! The side that asks.

mod ahead;
mod catalog;
mod host;
mod objects;
mod pace;
mod peer;
mod shards;
mod simulation;
mod spread;
mod store;
mod view;

pub use catalog::PoolCatalog;
pub use objects::PoolObjects;
pub use peer::{Failure, Peer};
pub use simulation::{Network, Simulated};
pub use spread::Spread;
pub use store::PoolStore;
pub use view::View;
