//! The side that answers.

mod benefactor;
mod keeper;
mod limits;
mod manager;
mod serve;
mod shards;
mod soft;
mod traffic;

pub use benefactor::{Benefactor, Lend, Station};
pub use manager::ManagerService;
pub(crate) use serve::{Refusal, answer_here};
pub use serve::{Server, Service};
pub(crate) use soft::{FOLDER as SOFT_FOLDER, is_soft};
pub use traffic::Traffic;
