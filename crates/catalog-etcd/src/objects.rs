//! Small objects.

use std::sync::Arc;
use std::time::Duration;

use stdchk_object::{Error, Kind, Result};
use stdchk_store::Objects;

use crate::client::Etcd;

/// The longest one.
const BYTES_MAX: usize = 1 << 20;

/// Objects among the keys of a prefix. They are small and few: what a pool says of itself.
pub struct EtcdObjects {
    etcd: Arc<Etcd>,
}

impl EtcdObjects {
    /// The objects there.
    pub fn new(etcd: Arc<Etcd>) -> EtcdObjects {
        EtcdObjects { etcd }
    }

    fn key(&self, name: &str, bytes: &[u8]) -> Result<String> {
        if bytes.len() > BYTES_MAX {
            let text =
                format!("{name} has {} bytes, which is too much for {}", bytes.len(), self.etcd.place());
            return Err(Error::invalid(text));
        }
        Ok(format!("objects/{name}"))
    }
}

impl Objects for EtcdObjects {
    fn create(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<bool> {
        let key = self.key(name, bytes)?;
        if self.etcd.put_unless(&key, &[(key.clone(), bytes)])? {
            return Ok(true);
        }
        // The answer to what succeeded may have been lost, and the question asked again.
        Ok(self.etcd.get(&key)?.is_some_and(|entry| entry.value == bytes))
    }

    fn replace(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<()> {
        self.etcd.put(&self.key(name, bytes)?, bytes, 0).map(drop)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.etcd.get(&self.key(name, &[])?)?.map(|entry| entry.value))
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.get(name)? else { return Ok(None) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Some(bytes[from..from.saturating_add(len).min(bytes.len())].to_vec()))
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let (from, to) = (format!("objects/{folder}/"), format!("objects/{folder}0"));
        let keys = self.etcd.keys(&from, &to)?;
        Ok(keys.iter().filter_map(|key| key.strip_prefix(&from)).map(str::to_owned).collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.etcd.remove(&self.key(name, &[])?))
    }

    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    fn ages(&self, _folder: &str) -> Result<Vec<(String, Duration)>> {
        Err(Error::new(Kind::Unsupported, format!("{} does not say how old objects are", self.etcd.place())))
    }
}
