//! study: the papers' experiments on the user's own files.

mod compression;
mod similarity;
mod stops;
mod stores;

pub use compression::compression;
pub use similarity::similarity;
