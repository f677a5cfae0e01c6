//! Small objects that a manager keeps: the fingerprint index, and what collections note.

use std::sync::Arc;
use std::time::Duration;

use stdchk_object::Result;
use stdchk_store::Objects;

use super::Peer;
use crate::wire::Question;

/// Objects in a manager's folder.
pub struct PoolObjects {
    manager: Arc<Peer>,
}

impl PoolObjects {
    /// The objects of a manager.
    pub fn new(manager: Arc<Peer>) -> PoolObjects {
        PoolObjects { manager }
    }

    fn get_some(&self, name: &str, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let answer = self.manager.ask(&Question::Get { name: name.to_owned(), offset, len }, &[])?;
        Ok((answer.body == [1]).then_some(answer.bulk))
    }
}

impl Objects for PoolObjects {
    fn create(&self, name: &str, bytes: &[u8], durable: bool) -> Result<bool> {
        let answer = self.manager.ask(&Question::Create { name: name.to_owned(), durable }, &[bytes])?;
        Ok(answer.body == [1])
    }

    fn replace(&self, name: &str, bytes: &[u8], durable: bool) -> Result<()> {
        self.manager.ask(&Question::Replace { name: name.to_owned(), durable }, &[bytes]).map(drop)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.get_some(name, 0, u64::MAX)
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        self.get_some(name, offset, len as u64)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let question = Question::Names { folder: folder.to_owned() };
        self.manager.ask_for(&question, |r| (0..r.count(1)?).map(|_| r.string().map(str::to_owned)).collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        self.manager.ask(&Question::Delete { names: names.to_vec() }, &[]).map(drop)
    }

    /// What was created or replaced to be durable is; nothing here is built upon the rest.
    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>> {
        let question = Question::Ages { folder: folder.to_owned() };
        self.manager.ask_for(&question, |r| {
            let age = |r: &mut stdchk_object::wire::Reader| {
                Ok((r.string()?.to_owned(), Duration::from_millis(r.varint()?)))
            };
            (0..r.count(2)?).map(|_| age(r)).collect()
        })
    }
}
