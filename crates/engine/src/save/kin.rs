//! Which member of the parent a member is the next version of: the one of the same path; or else, since many programs number
//! their files (`melt.1000.restart`, `melt.2000.restart`), the one whose path differs from it in the fewest numbers, and of
//! these in the smallest steps.

use std::collections::HashMap;
use std::sync::OnceLock;

use stdchk_object::member::{Content, Member};

/// The members of the parent that have content.
pub struct Kin {
    contents: HashMap<String, Content>,
    /// Their paths by what these are without their numbers; made when it is first asked for.
    families: OnceLock<HashMap<String, Vec<String>>>,
}

/// In a family with more than these nobody is looked for: that would take longer than it saves.
const FAMILY_MAX: usize = 1000;

impl Kin {
    pub fn new(members: Vec<Member>) -> Kin {
        let content = |member: Member| Some((member.path, member.body.content()?.clone()));
        Kin { contents: members.into_iter().filter_map(content).collect(), families: OnceLock::new() }
    }

    /// The content that the member at `path` continues.
    pub fn of(&self, path: &str) -> Option<&Content> {
        self.contents.get(path).or_else(|| self.contents.get(self.nearest(path)?))
    }

    fn nearest(&self, path: &str) -> Option<&str> {
        let (family, numbers) = split(path);
        if numbers.is_empty() {
            return None;
        }
        let paths = self.families().get(&family).filter(|paths| paths.len() <= FAMILY_MAX)?;
        let nearest = paths.iter().min_by_key(|path| (distance(&numbers, &split(path).1), *path));
        nearest.map(String::as_str)
    }

    fn families(&self) -> &HashMap<String, Vec<String>> {
        self.families.get_or_init(|| {
            let mut families: HashMap<String, Vec<String>> = HashMap::new();
            for path in self.contents.keys() {
                families.entry(split(path).0).or_default().push(path.clone());
            }
            families
        })
    }
}

/// A path with a zero for each of its numbers, and the numbers.
fn split(path: &str) -> (String, Vec<u128>) {
    let (mut family, mut numbers) = (String::with_capacity(path.len()), Vec::new());
    let is_digit = |letter: &u8| letter.is_ascii_digit();
    for part in path.as_bytes().chunk_by(|a, b| is_digit(a) == is_digit(b)) {
        let part = std::str::from_utf8(part).expect("cut between digits and others, never within a letter");
        if part.starts_with(|letter: char| letter.is_ascii_digit()) {
            family.push('0');
            // Longer than any step: all such numbers are as good as equal.
            numbers.push(part.parse().unwrap_or(u128::MAX));
        } else {
            family.push_str(part);
        }
    }
    (family, numbers)
}

/// How many numbers differ, and by how much in all.
fn distance(ours: &[u128], theirs: &[u128]) -> (usize, u128) {
    let apart = ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b)).filter(|apart| *apart > 0);
    apart.fold((0, 0), |(count, sum): (usize, u128), apart| (count + 1, sum.saturating_add(apart)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::member::{Body, Chunking, Tally};
    use stdchk_object::tree::{Blob, Root};

    /// Members that can be told apart by their page.
    fn kin(paths: &[&str]) -> Kin {
        let member = |(at, path): (usize, &&str)| {
            let chunking = Chunking::Page(1 << (12 + at));
            let blob = Blob { len: 0, leaf_shift: 22, root: Root::Hole };
            let content = Content { blob, chunking, tally: Tally::default(), coded: None };
            Member { path: (*path).into(), body: Body::File(content), mode: 0, mtime_ns: 0 }
        };
        Kin::new(paths.iter().enumerate().map(member).collect())
    }

    fn found<'p>(paths: &[&'p str], path: &str) -> Option<&'p str> {
        let page = |content: &Content| match content.chunking {
            Chunking::Page(page) => page.trailing_zeros() as usize - 12,
            Chunking::Cdc(_) => unreachable!("only pages above"),
        };
        kin(paths).of(path).map(|content| paths[page(content)])
    }

    #[test]
    fn the_same_path_is_best_and_numbers_may_go_on() {
        assert_eq!(found(&["a.1", "a.2"], "a.1"), Some("a.1"));
        assert_eq!(found(&["melt.1000.restart"], "melt.2000.restart"), Some("melt.1000.restart"));
        assert_eq!(found(&["c.1", "c.3", "c.2"], "c.4"), Some("c.3"));
        assert_eq!(found(&["1000/rank.0", "1000/rank.1"], "1500/rank.1"), Some("1000/rank.1"));
        assert_eq!(found(&["dump.0998"], "dump.1002"), Some("dump.0998"));
        assert_eq!(found(&["x.5", "x.7"], "x.6"), Some("x.5"), "always the same of two");
    }

    #[test]
    fn what_is_not_numbered_alike_is_not_kin() {
        assert_eq!(found(&["melt.1000.restart"], "melt.1000.data"), None);
        assert_eq!(found(&["a"], "b"), None);
        assert_eq!(found(&["a.1"], "a.1.1"), None);
        assert_eq!(found(&["ä1"], "ö1"), None);
        let huge = "9".repeat(60);
        assert_eq!(found(&["n.1", "m"], &format!("n.{huge}")), Some("n.1"));
    }
}
