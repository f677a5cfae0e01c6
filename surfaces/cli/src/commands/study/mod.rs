//! study: the papers' experiments on the user's own files.

mod compression;
mod similarity;
mod stops;
mod stores;

pub use compression::compression;
pub use similarity::similarity;

use stdchk::study::Input;

use crate::output::size;

/// What is to be said where only the beginnings of files are read.
fn only_read<'i>(inputs: impl Iterator<Item = &'i Input>) -> String {
    let cut = inputs.filter(|input| input.len() < input.whole_len());
    cut.map(Input::len).max().map_or(String::new(), |limit| {
        format!(", of each of which the first {} were read at most (--limit)", size(limit))
    })
}
