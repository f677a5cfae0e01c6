//! The side that answers.

mod benefactor;
mod keeper;
mod manager;
mod serve;
mod shards;
mod traffic;

pub use benefactor::{Benefactor, Lend};
pub use manager::ManagerService;
pub use serve::{Server, Service};
pub use traffic::Traffic;
