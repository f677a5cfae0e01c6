//! A store in memory: for tests, and as the plainest statement of the contracts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_object::{Error, Kind, PackName, Result};

use crate::{Objects, Store};

/// Packs and objects in memory.
#[derive(Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    packs: BTreeMap<PackName, Vec<u8>>,
    objects: BTreeMap<String, (Vec<u8>, Instant)>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

fn missing(name: PackName) -> Error {
    Error::new(Kind::NotFound, format!("pack {name} is not there"))
}

impl Store for MemoryStore {
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        let mut inner = self.inner();
        if inner.packs.contains_key(&name) {
            return Err(Error::new(Kind::Exists, format!("pack {name} is there already")));
        }
        inner.packs.insert(name, pieces.concat());
        Ok(())
    }

    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.inner().packs.insert(name, pieces.concat());
        Ok(())
    }

    fn sync(&self, names: &[PackName]) -> Result<()> {
        let inner = self.inner();
        match names.iter().find(|name| !inner.packs.contains_key(name)) {
            Some(&name) => Err(missing(name)),
            None => Ok(()),
        }
    }

    fn length(&self, name: PackName) -> Result<u64> {
        self.inner().packs.get(&name).map(|bytes| bytes.len() as u64).ok_or_else(|| missing(name))
    }

    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let inner = self.inner();
        let bytes = inner.packs.get(&name).ok_or_else(|| missing(name))?;
        let start = usize::try_from(offset).ok();
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = start.and_then(|start| bytes.get(start..start.checked_add(len)?));
        let Some(mut range) = range else {
            return Err(Error::corrupt(format!("pack {name} ends before byte {offset}+{len}")));
        };
        for buffer in buffers {
            let (head, tail) = range.split_at(buffer.len());
            buffer.copy_from_slice(head);
            range = tail;
        }
        Ok(())
    }

    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
        self.inner().packs.iter().for_each(|(&name, bytes)| each(name, bytes.len() as u64));
        Ok(())
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        let mut inner = self.inner();
        names.iter().for_each(|name| drop(inner.packs.remove(name)));
        Ok(())
    }
}

impl Objects for MemoryStore {
    fn create(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<bool> {
        let mut inner = self.inner();
        if inner.objects.contains_key(name) {
            return Ok(false);
        }
        inner.objects.insert(name.to_owned(), (bytes.to_vec(), Instant::now()));
        Ok(true)
    }

    fn replace(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<()> {
        self.inner().objects.insert(name.to_owned(), (bytes.to_vec(), Instant::now()));
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.inner().objects.get(name).map(|(bytes, _)| bytes.clone()))
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        Ok(self.get(name)?.map(|bytes| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            bytes[start..start.saturating_add(len).min(bytes.len())].to_vec()
        }))
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.ages(folder)?.into_iter().map(|(name, _)| name).collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        let mut inner = self.inner();
        names.iter().for_each(|name| drop(inner.objects.remove(name)));
        Ok(())
    }

    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>> {
        let prefix = format!("{folder}/");
        let inner = self.inner();
        let found = inner.objects.iter().filter_map(|(name, (_, written))| {
            Some((name.strip_prefix(&prefix)?.to_owned(), written.elapsed()))
        });
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_the_conformance_suite() {
        crate::conformance::store(&MemoryStore::new());
        crate::conformance::objects(&MemoryStore::new());
    }
}
