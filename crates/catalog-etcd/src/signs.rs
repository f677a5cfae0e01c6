//! Signs of life: keys that live by a lease.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stdchk_catalog_log::Signs;
use stdchk_object::Result;

use crate::client::Etcd;

/// The shortest lease that etcd grants with its usual settings, in seconds.
const LEASE_MIN: u64 = 2;

/// Signs of life under one folder. A sign is put once, and where it changes; that somebody is still alive costs etcd's disk nothing.
pub struct EtcdSigns {
    etcd: Arc<Etcd>,
    folder: &'static str,
    lasts: Duration,
    /// What was said here: by which lease, and what.
    said: Mutex<HashMap<u64, (i64, Vec<u8>)>>,
    /// Leases of those who have ended. If nobody says anything any more they end by themselves.
    over: Mutex<Vec<i64>>,
}

impl EtcdSigns {
    /// Signs that last for so long.
    pub fn new(etcd: Arc<Etcd>, folder: &'static str, lasts: Duration) -> EtcdSigns {
        let lasts = lasts.max(Duration::from_secs(LEASE_MIN));
        EtcdSigns { etcd, folder, lasts, said: Mutex::default(), over: Mutex::default() }
    }

    fn said(&self) -> MutexGuard<'_, HashMap<u64, (i64, Vec<u8>)>> {
        self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn over(&self) -> MutexGuard<'_, Vec<i64>> {
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

    /// The lease by which a sign lives, whoever has said it.
    fn lease_of(&self, id: u64) -> Result<Option<i64>> {
        if let Some((lease, _)) = self.said().get(&id) {
            return Ok(Some(*lease));
        }
        Ok(self.etcd.get(&self.key(id))?.map(|entry| entry.lease).filter(|&lease| lease != 0))
    }
}

impl Signs for EtcdSigns {
    fn say(&self, id: u64, what: &[u8]) -> Result<()> {
        let over = std::mem::take(&mut *self.over());
        over.into_iter().try_for_each(|lease| self.etcd.revoke(lease))?;
        let known = self.lease_of(id)?;
        if let Some(lease) = known
            && self.etcd.renew(lease)?
        {
            let is_news = self.said().get(&id).is_none_or(|(_, said)| said != what);
            if !is_news || self.etcd.put(&self.key(id), what, lease)? {
                self.said().insert(id, (lease, what.to_vec()));
                return Ok(());
            }
        }
        let lease = self.etcd.grant(self.lasts.as_secs())?;
        self.etcd.put(&self.key(id), what, lease)?;
        self.said().insert(id, (lease, what.to_vec()));
        Ok(())
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
        if let Some((lease, _)) = self.said().remove(&id) {
            self.over().push(lease);
        }
    }

    /// By the clock of whoever began: one who is so old has given signs, and they have ended; or it has not yet had to give any.
    fn unheard(&self, age: Duration) -> Duration {
        age
    }

    fn forget(&self, ids: &[u64]) -> Result<()> {
        // What others said here ends by itself.
        let said: Vec<i64> = {
            let mut all = self.said();
            ids.iter().filter_map(|id| all.remove(id)).map(|(lease, _)| lease).collect()
        };
        said.into_iter().try_for_each(|lease| self.etcd.revoke(lease))
    }
}
