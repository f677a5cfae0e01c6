//! study: the papers' experiments on the user's own files.

mod compression;
mod similarity;

pub use compression::compression;
pub use similarity::similarity;
