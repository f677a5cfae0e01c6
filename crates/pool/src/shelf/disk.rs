//! A folder that is lent.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use stdchk_object::{Error, Kind, PackName, Result};
use stdchk_store::Store;
use stdchk_store_dir::DirStore;

use super::{Bulk, Shelf, Source, Usage};

/// Packs in a folder, of which this process is the only user.
pub struct LentDisk {
    store: DirStore,
    capacity: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    packs: BTreeMap<PackName, u64>,
    /// Bytes of packs that are there, and of those that are being taken.
    used: u64,
}

impl LentDisk {
    /// Lends so many bytes of what `store` has room for. What is there from before is there again.
    pub fn open(store: DirStore, capacity: u64) -> Result<LentDisk> {
        store.prepare()?;
        let mut inner = Inner::default();
        store.list(&mut |name, len| {
            inner.packs.insert(name, len);
            inner.used += len;
        })?;
        Ok(LentDisk { store, capacity, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Shelf for LentDisk {
    fn take(&self, name: PackName, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()> {
        {
            let mut inner = self.inner();
            if inner.packs.contains_key(&name) && !replaces {
                return Err(Error::new(Kind::Exists, format!("pack {name} is here already")));
            }
            if len > self.capacity.saturating_sub(inner.used) {
                return Err(Error::new(Kind::Full, format!("no room for the {len} bytes of pack {name}")));
            }
            inner.used += len;
        }
        let mut bytes = Vec::new();
        let taken = receive(len, source, &mut bytes).and_then(|()| match replaces {
            true => self.store.replace(name, &[&bytes]),
            false => self.store.put(name, &[&bytes]),
        });
        let mut inner = self.inner();
        inner.used -= match &taken {
            Ok(()) => inner.packs.insert(name, len).unwrap_or(0),
            Err(_) => len,
        };
        drop(inner);
        if let Err(error) = &taken
            && error.kind() != Kind::Exists
            && !replaces
        {
            // What was written in part is nobody's.
            let _ = self.store.remove(&[name]);
        }
        taken
    }

    fn give(&self, name: PackName, offset: u64, len: u64) -> Result<Box<dyn Bulk>> {
        if offset.checked_add(len).is_none_or(|end| self.length(name).is_ok_and(|length| end > length)) {
            return Err(Error::corrupt(format!("pack {name} ends before byte {offset}+{len}")));
        }
        let mut bytes = vec![0; len as usize];
        self.store.read(name, offset, &mut bytes)?;
        Ok(Box::new(bytes))
    }

    fn length(&self, name: PackName) -> Result<u64> {
        self.store.length(name)
    }

    fn sync(&self, names: &[PackName]) -> Result<()> {
        self.store.sync(names)
    }

    fn list(&self, after: Option<PackName>, most: usize) -> Result<Vec<(PackName, u64)>> {
        let inner = self.inner();
        let behind = inner.packs.iter().filter(|(name, _)| after.is_none_or(|after| **name > after));
        Ok(behind.take(most).map(|(name, len)| (*name, *len)).collect())
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        self.store.remove(names)?;
        let mut inner = self.inner();
        let gone: u64 = names.iter().filter_map(|name| inner.packs.remove(name)).sum();
        inner.used -= gone;
        Ok(())
    }

    fn usage(&self) -> Usage {
        let inner = self.inner();
        Usage { capacity: self.capacity, used: inner.used, packs: inner.packs.len() as u64 }
    }
}

/// Receives all bytes of a pack; memory grows only with what has come.
fn receive(len: u64, source: &mut dyn Source, bytes: &mut Vec<u8>) -> Result<()> {
    const STEP: u64 = 1 << 20;
    while (bytes.len() as u64) < len {
        let start = bytes.len();
        bytes.resize((start as u64 + STEP).min(len) as usize, 0);
        source.fill(&mut bytes[start..])?;
    }
    source.finish()
}
