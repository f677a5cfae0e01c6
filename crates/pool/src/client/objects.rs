//! Small objects: what a manager keeps, and the fingerprint index, which is spread over benefactors.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_object::{Error, Kind, Result};
use stdchk_store::Objects;

use super::peer::Answer;
use super::{Peer, PoolStore};
use crate::server::{SOFT_FOLDER, is_soft};
use crate::wire::Question;

/// Objects of a pool.
pub struct PoolObjects {
    manager: Arc<Peer>,
    packs: Arc<PoolStore>,
    /// With whom objects of the index were found or put.
    places: Mutex<HashMap<String, u64>>,
}

impl PoolObjects {
    /// The objects of a pool, with that manager and those benefactors.
    pub fn new(manager: Arc<Peer>, packs: Arc<PoolStore>) -> PoolObjects {
        PoolObjects { manager, packs, places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.places.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn get_some(&self, name: &str, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let question = Question::Get { name: name.to_owned(), offset, len };
        let found = |answer: Answer| (answer.body == [1]).then_some(answer.bulk);
        if !is_soft(name) {
            return self.manager.ask(&question, &[]).map(found);
        }
        // Whoever does not answer has nothing; what is missed only costs room.
        let asked = self.hosts(name).into_iter().filter_map(|(_, peer)| peer.ask(&question, &[]).ok());
        Ok(asked.filter_map(found).next())
    }

    /// Those who may have an object of the index, the likeliest first; those who did not answer a moment ago are left out.
    fn hosts(&self, name: &str) -> Vec<(u64, Arc<Peer>)> {
        let place = self.places().get(name).copied();
        let mut hosts = self.packs.view().index_hosts(name);
        hosts.retain(|(_, peer)| !peer.is_suspected());
        hosts.sort_by_key(|(id, _)| Some(*id) != place);
        hosts
    }

    /// Puts an object of the index with the first who takes it.
    fn put_soft(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let question = Question::Replace { name: name.to_owned(), durable: false };
        let mut refusal = None;
        for (id, peer) in self.hosts(name) {
            match peer.ask(&question, &[bytes]) {
                Ok(_) => {
                    self.places().insert(name.to_owned(), id);
                    return Ok(());
                }
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal
            .unwrap_or_else(|| Error::new(Kind::NotFound, "nobody is there to keep the fingerprint index")))
    }
}

impl Objects for PoolObjects {
    fn create(&self, name: &str, bytes: &[u8], durable: bool) -> Result<bool> {
        let answer = self.manager.ask(&Question::Create { name: name.to_owned(), durable }, &[bytes])?;
        Ok(answer.body == [1])
    }

    fn replace(&self, name: &str, bytes: &[u8], durable: bool) -> Result<()> {
        if is_soft(name) {
            return self.put_soft(name, bytes);
        }
        self.manager.ask(&Question::Replace { name: name.to_owned(), durable }, &[bytes]).map(drop)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.get_some(name, 0, u64::MAX)
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        self.get_some(name, offset, len as u64)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        if folder != SOFT_FOLDER {
            return Ok(Vec::new());
        }
        let question = Question::Names { folder: folder.to_owned() };
        let mut names = BTreeSet::new();
        for (id, peer) in self.hosts("") {
            let said = peer.ask_for(&question, |r| {
                (0..r.count(1)?).map(|_| r.string().map(str::to_owned)).collect::<Result<Vec<String>>>()
            });
            for name in said.unwrap_or_default() {
                let path = format!("{folder}/{name}");
                // Whoever says others is asked for nothing.
                if is_soft(&path) {
                    self.places().insert(path, id);
                    names.insert(name);
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        let (soft, others): (Vec<String>, Vec<String>) =
            names.iter().cloned().partition(|name| is_soft(name));
        if !others.is_empty() {
            self.manager.ask(&Question::Delete { names: others }, &[])?;
        }
        if !soft.is_empty() {
            // Who does not hear of it keeps what nobody needs, until it is merged again.
            for (_, peer) in self.hosts("") {
                let _ = peer.ask(&Question::Delete { names: soft.clone() }, &[]);
            }
            let mut places = self.places();
            soft.iter().for_each(|name| _ = places.remove(name));
        }
        Ok(())
    }

    /// What was created or replaced to be durable is; nothing here is built upon the rest.
    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>> {
        Err(Error::new(Kind::Unsupported, format!("a pool does not say how old the objects in {folder} are")))
    }
}
