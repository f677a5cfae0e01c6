//! Small objects that a benefactor keeps in memory, as long as it lives: segments of the fingerprint index. Whoever misses one only saves
//! more than is necessary.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stdchk_object::{Error, Kind, Result};

use super::manager::flag;
use super::serve::{Incoming, Reply};
use crate::shelf::Bulk;
use crate::wire::Question;

/// The folder of those objects.
pub const FOLDER: &str = "index";
/// The longest object.
const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// What part of what is lent they may take besides, and how much at most.
const PART: u64 = 16;
const BYTES_MAX: u64 = 512 << 20;

/// The objects.
pub struct SoftObjects {
    objects: Mutex<HashMap<String, Arc<[u8]>>>,
    bytes_max: u64,
}

/// A stretch of an object.
struct Stretch(Arc<[u8]>, std::ops::Range<usize>);

impl Bulk for Stretch {
    fn slices(&self) -> Vec<&[u8]> {
        vec![&self.0[self.1.clone()]]
    }
}

/// Whether something is a name of such an object.
pub fn is_soft(name: &str) -> bool {
    name.split_once('/').is_some_and(|(folder, name)| {
        folder == FOLDER
            && !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

impl SoftObjects {
    /// None yet, beside that much that is lent.
    pub fn new(lent: u64) -> SoftObjects {
        SoftObjects { objects: Mutex::default(), bytes_max: (lent / PART).min(BYTES_MAX) }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Arc<[u8]>>> {
        self.objects.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let mut objects = self.locked();
        let others: u64 =
            objects.iter().filter(|(other, _)| *other != name).map(|(_, bytes)| bytes.len() as u64).sum();
        if others + bytes.len() as u64 > self.bytes_max {
            return Err(Error::new(Kind::Full, format!("there is no room for {name} here")));
        }
        objects.insert(name.to_owned(), bytes.into());
        Ok(())
    }

    fn stretch(&self, name: &str, offset: u64, len: u64) -> Option<Stretch> {
        let bytes = self.locked().get(name)?.clone();
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let range = place(offset)..place(offset.saturating_add(len));
        Some(Stretch(bytes, range))
    }

    /// Answers what is asked about objects.
    pub fn answer(&self, question: Question, incoming: &mut Incoming) -> Result<Reply> {
        let check = |name: &str| match is_soft(name) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{name:?} is no name of an object that benefactors keep"))),
        };
        Ok(match question {
            Question::Replace { name, .. } => {
                check(&name)?;
                self.replace(&name, incoming.object(OBJECT_BYTES_MAX.min(self.bytes_max))?)?;
                Reply::default()
            }
            Question::Get { name, offset, len } => {
                check(&name)?;
                let found = self.stretch(&name, offset, len);
                let is_there = flag(found.is_some());
                Reply { bulk: found.map(|found| Box::new(found) as Box<dyn Bulk>), ..is_there }
            }
            Question::Names { folder } if folder == FOLDER => {
                let objects = self.locked();
                let names = objects.keys().filter_map(|name| name.split('/').nth(1));
                Reply::of(|w| {
                    w.varint(objects.len() as u64);
                    names.for_each(|name| w.string(name));
                })
            }
            Question::Delete { names } => {
                let mut objects = self.locked();
                names.iter().for_each(|name| _ = objects.remove(name));
                Reply::default()
            }
            _ => return Err(Error::new(Kind::Unsupported, "a benefactor keeps no names")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_take_no_more_than_their_part() {
        let objects = SoftObjects::new(1600);
        objects.replace("index/a", vec![1; 60]).unwrap();
        assert_eq!(objects.replace("index/b", vec![2; 60]).unwrap_err().kind(), Kind::Full);
        objects.replace("index/a", vec![3; 100]).unwrap();
        assert_eq!(objects.stretch("index/a", 98, u64::MAX).unwrap().slices(), [[3, 3]]);
        assert_eq!(objects.stretch("index/a", u64::MAX, u64::MAX).unwrap().slices()[0], []);
        assert!(objects.stretch("index/b", 0, 1).is_none());
    }

    #[test]
    fn names_are_plain() {
        assert!(is_soft("index/0a"));
        for bad in ["log/1", "index/", "index", "index/../x", "index/a/b", "named", "/index/a"] {
            assert!(!is_soft(bad), "{bad}");
        }
    }
}
