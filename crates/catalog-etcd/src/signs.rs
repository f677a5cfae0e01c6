//! Signs of life: keys that live by a lease.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_catalog_log::Signs;
use stdchk_object::{Error, Kind, Result};

use crate::client::{Etcd, Is};

/// The shortest lease that etcd grants with its usual settings, in seconds.
const LEASE_MIN: u64 = 2;
/// How often a sign is put again because others put it, too, or it has just ended.
const TRIES: u32 = 10;

/// Signs of life under one folder. A sign is put once, and where it changes; that somebody is still alive costs etcd's disk nothing.
pub struct EtcdSigns {
    etcd: Arc<Etcd>,
    folder: &'static str,
    lasts: Duration,
    /// Whose signs were given here.
    said: Mutex<HashSet<u64>>,
    /// Those who have ended. If nobody says anything any more their signs end by themselves.
    over: Mutex<Vec<u64>>,
}

impl EtcdSigns {
    /// Signs that last for so long.
    pub fn new(etcd: Arc<Etcd>, folder: &'static str, lasts: Duration) -> EtcdSigns {
        let lasts = lasts.max(Duration::from_secs(LEASE_MIN));
        EtcdSigns { etcd, folder, lasts, said: Mutex::default(), over: Mutex::default() }
    }

    fn said(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn over(&self) -> MutexGuard<'_, Vec<u64>> {
        self.over.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn key(&self, id: u64) -> String {
        format!("{}/{id:016x}", self.folder)
    }

    fn entries(&self) -> Result<Vec<(u64, Vec<u8>, i64)>> {
        let (from, to) = (format!("{}/", self.folder), format!("{}0", self.folder));
        let entries = self.etcd.range(&from, &to, 0)?.into_iter();
        let id = |key: &str| u64::from_str_radix(key.strip_prefix(&from)?, 16).ok();
        Ok(entries.filter_map(|entry| Some((id(&entry.key)?, entry.value, entry.lease))).collect())
    }

    /// Renews the very lease by which a sign lives, whoever has put it; whether there is one.
    fn renew(&self, key: &str, what: &[u8]) -> Result<bool> {
        let Some(entry) = self.etcd.get(key)? else { return Ok(false) };
        if !self.etcd.renew(entry.lease)? {
            return Ok(false);
        }
        Ok(entry.value == what || self.etcd.put(key, what, entry.lease)?)
    }
}

impl Signs for EtcdSigns {
    fn say(&self, id: u64, what: &[u8]) -> Result<()> {
        let over = std::mem::take(&mut *self.over());
        self.forget(&over)?;
        self.said().insert(id);
        let key = self.key(id);
        for _ in 0..TRIES {
            if self.renew(&key, what)? {
                return Ok(());
            }
            let lease = self.etcd.grant(self.lasts.as_secs())?;
            if self.etcd.put_if(&[(&key, Is::At(0))], &[(key.clone(), what)], lease)? {
                return Ok(());
            }
            // Somebody else has said it at the same moment.
            self.etcd.revoke(lease)?;
        }
        Err(Error::new(Kind::Conflict, format!("{key} changes faster than it can be renewed")))
    }

    fn present(&self) -> Result<BTreeMap<u64, Vec<u8>>> {
        Ok(self.entries()?.into_iter().map(|(id, what, _)| (id, what)).collect())
    }

    fn ages(&self) -> Result<BTreeMap<u64, Duration>> {
        let mut ages = BTreeMap::new();
        for (id, _, lease) in self.entries()? {
            if let Some(age) = self.etcd.age(lease)? {
                ages.insert(id, age);
            }
        }
        Ok(ages)
    }

    /// Most that begins ends soon, and never gives a sign.
    fn begins(&self, _id: u64) {}

    fn ends(&self, id: u64) {
        if self.said().remove(&id) {
            self.over().push(id);
        }
    }

    /// By the clock of whoever began: one who is so old has given signs, and they have ended; or it has not yet had to give any.
    fn unheard(&self, age: Duration) -> Duration {
        age
    }

    fn forget(&self, ids: &[u64]) -> Result<()> {
        for &id in ids {
            self.said().remove(&id);
            if let Some(entry) = self.etcd.get(&self.key(id))? {
                self.etcd.revoke(entry.lease)?;
            }
        }
        Ok(())
    }
}
