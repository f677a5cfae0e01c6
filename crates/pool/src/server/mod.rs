//! The side that answers.

mod benefactor;
mod keeper;
mod manager;
mod serve;
mod shards;
mod traffic;

pub use benefactor::{Benefactor, Lend};
pub use manager::ManagerService;
pub(crate) use serve::{Refusal, answer_here};
pub use serve::{Server, Service};
pub use traffic::Traffic;
