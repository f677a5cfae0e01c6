//! Which versions are kept: what is noted of a file, or else of the nearest directory above it that says something.

use std::time::Duration;

use stdchk_catalog::State;
use stdchk_catalog::tree::Node;

use super::fault::{Fault, Outcome};
use crate::units::duration;

/// The note that says so.
pub const POLICY: &str = "user.stdchk.policy";

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The newest versions of each file that stay, whatever comes.
    pub most: usize,
    /// What is older goes.
    pub age: Option<Duration>,
}

/// Without a note: a file that is written anew every second must not fill the catalog, in which each record of a version names all others.
const UNSAID: Kept = Kept { most: 1000, age: None };

/// What a note says: `keep-all`, `replace` (only the newest), or `keep-last=N`; and behind it, or alone, `purge-after=TIME`.
pub fn parse(value: &[u8]) -> Outcome<Kept> {
    let text = std::str::from_utf8(value).map_err(|_| Fault::Invalid)?;
    let words: Vec<&str> = text.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let (most, age) = match words[..] {
        [one] => (count(one), time(one)),
        [one, other] => (count(one).filter(|_| time(other).is_some()), time(other)),
        _ => (None, None),
    };
    match (most, age) {
        (None, None) => Err(Fault::Invalid),
        (None, Some(_)) if words.len() > 1 => Err(Fault::Invalid),
        (most, age) => Ok(Kept { most: most.unwrap_or(usize::MAX), age }),
    }
}

fn count(word: &str) -> Option<usize> {
    match word.split_once('=') {
        None if word == "keep-all" => Some(usize::MAX),
        None if word == "replace" => Some(1),
        Some(("keep-last", count)) => count.parse().ok().filter(|&count| count > 0),
        _ => None,
    }
}

fn time(word: &str) -> Option<Duration> {
    duration(word.strip_prefix("purge-after=")?).ok()
}

fn noted(node: &Node) -> Option<Kept> {
    let (_, value) = node.notes.iter().find(|(name, _)| name == POLICY)?;
    parse(value).ok()
}

/// What is kept of a file that is in a directory.
pub fn kept(state: &State, node: &Node, directory: u64) -> Kept {
    let above = || state.tree().nodes_above(directory).find_map(noted);
    noted(node).or_else(above).unwrap_or(UNSAID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_notes_say() {
        let parsed = |text: &str| {
            parse(text.as_bytes()).ok().map(|kept| (kept.most, kept.age.map(|age| age.as_secs())))
        };
        assert_eq!(parsed("keep-all"), Some((usize::MAX, None)));
        assert_eq!((parsed("replace"), parsed("keep-last=3\n")), (Some((1, None)), Some((3, None))));
        assert_eq!(parsed("purge-after=2h"), Some((usize::MAX, Some(7200))));
        assert_eq!(parsed("keep-last=3, purge-after=90"), Some((3, Some(90))));
        for wrong in [
            "",
            "keep-last",
            "keep-last=0",
            "keep-last=x",
            "purge",
            "purge-after=",
            "purge-after=1h replace",
            "replace replace",
            "replace x",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
