//! How many versions are kept: what is noted of a file, or else of the nearest directory above it that says something.

use stdchk_catalog::State;
use stdchk_catalog::tree::Node;

use super::fault::{Fault, Outcome};

/// The note that says so.
pub const POLICY: &str = "user.stdchk.policy";

/// What a note says: `keep-all`, `replace` (only the newest), or `keep-last=N`.
pub fn parse(value: &[u8]) -> Outcome<usize> {
    let text = std::str::from_utf8(value).map_err(|_| Fault::Invalid)?.trim();
    match text.split_once('=') {
        None if text == "keep-all" => Ok(usize::MAX),
        None if text == "replace" => Ok(1),
        Some(("keep-last", count)) => count.parse().ok().filter(|&count| count > 0).ok_or(Fault::Invalid),
        _ => Err(Fault::Invalid),
    }
}

fn noted(node: &Node) -> Option<usize> {
    let (_, value) = node.notes.iter().find(|(name, _)| name == POLICY)?;
    parse(value).ok()
}

/// How many versions are kept of a file that is in a directory.
pub fn kept(state: &State, node: &Node, directory: u64) -> usize {
    let above = || state.tree().above(directory).find_map(|above| noted(&above.node));
    noted(node).or_else(above).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_notes_say() {
        let parsed = |text: &str| parse(text.as_bytes()).ok();
        assert_eq!(parsed("keep-all"), Some(usize::MAX));
        assert_eq!((parsed("replace"), parsed("keep-last=3\n")), (Some(1), Some(3)));
        for wrong in ["", "keep-last", "keep-last=0", "keep-last=x", "purge"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
