//! Small named objects.

use std::time::Duration;

use object_store::{ObjectMeta, PutMode};
use stdchk_object::{Error, Kind, Result};
use stdchk_store::Objects;

use crate::bucket::{Got, S3Store};

impl Objects for S3Store {
    fn create(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<bool> {
        match self.put(name, &[bytes], PutMode::Create) {
            Ok(()) => Ok(true),
            // The answer to a request that succeeded may have been lost, and the request sent again: read back.
            Err(error) if matches!(error.kind(), Kind::Exists | Kind::Io) => {
                match Objects::get(self, name)? {
                    Some(there) => Ok(there == bytes),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8], _durable: bool) -> Result<()> {
        self.put(name, &[bytes], PutMode::Overwrite)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(match S3Store::get(self, name, 0, u64::MAX)? {
            Got::Bytes(bytes) => Some(bytes.into()),
            Got::Ended => Some(Vec::new()),
            Got::Nothing => None,
        })
    }

    fn get_range(&self, name: &str, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        Ok(match S3Store::get(self, name, offset, len as u64)? {
            Got::Bytes(bytes) => Some(bytes.into()),
            Got::Ended => Some(Vec::new()),
            Got::Nothing => None,
        })
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.folder(folder)?.into_iter().map(|(name, _)| name).collect())
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        // Records go in the order in which they are given, and one that stays stops those after it: a hole in the log would be filled.
        let (records, others): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|name| name.starts_with("log/"));
        records.into_iter().try_for_each(|name| self.delete_all(std::iter::once(name.clone())))?;
        self.delete_all(others.into_iter().cloned())
    }

    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    /// By the store's own clock: an object that is written now says what time it is there.
    fn ages(&self, folder: &str) -> Result<Vec<(String, Duration)>> {
        let objects = self.folder(folder)?;
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let probe = format!("tmp/clock-{}", self.tag);
        self.put(&probe, &[b"now"], PutMode::Overwrite)?;
        let now = self.head(&probe)?;
        self.delete_all(std::iter::once(probe))?;
        let vanished = || Error::new(Kind::Io, format!("{} does not say what time it is", self.place));
        let now = now.ok_or_else(vanished)?.last_modified;
        let age = |meta: ObjectMeta| (now - meta.last_modified).to_std().unwrap_or_default();
        Ok(objects.into_iter().map(|(name, meta)| (name, age(meta))).collect())
    }
}
