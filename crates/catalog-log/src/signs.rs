//! Who is alive.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use stdchk_object::Result;

/// Signs of life that sessions or benefactors give, by their numbers, with a few bytes of what they have to say.
pub trait Signs: Send + Sync {
    /// Somebody is alive.
    fn say(&self, id: u64, what: &[u8]) -> Result<()>;

    /// What those said last whose signs are not too old.
    fn present(&self) -> Result<BTreeMap<u64, Vec<u8>>>;

    /// How long ago they said so.
    fn ages(&self) -> Result<BTreeMap<u64, Duration>>;

    /// Somebody begins at this moment, and will say so later.
    fn begins(&self, id: u64);

    /// Somebody has ended. Called where nothing may take long.
    fn ends(&self, id: u64);

    /// For how long nothing may have been heard of somebody who is not among them, and who says that he began so long ago.
    fn unheard(&self, age: Duration) -> Duration;

    /// Some do not matter any more.
    fn forget(&self, ids: &[u64]) -> Result<()>;

    /// The one who listens was held up, and could not hear anybody for a while.
    fn forgive(&self) {}
}

/// What this process has heard.
pub struct HeardSigns {
    signs: Mutex<HashMap<u64, (Vec<u8>, Instant)>>,
    lasts: Duration,
    begun: Instant,
}

impl HeardSigns {
    /// Nothing yet. A sign is too old after so long.
    pub fn new(lasts: Duration) -> HeardSigns {
        HeardSigns { signs: Mutex::default(), lasts, begun: clock::now() }
    }

    fn signs(&self) -> MutexGuard<'_, HashMap<u64, (Vec<u8>, Instant)>> {
        self.signs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Signs for HeardSigns {
    fn say(&self, id: u64, what: &[u8]) -> Result<()> {
        self.signs().insert(id, (what.to_vec(), clock::now()));
        Ok(())
    }

    fn present(&self) -> Result<BTreeMap<u64, Vec<u8>>> {
        let signs = self.signs();
        let fresh = signs.iter().filter(|(_, (_, at))| clock::since(*at) <= self.lasts);
        Ok(fresh.map(|(&id, (what, _))| (id, what.clone())).collect())
    }

    fn ages(&self) -> Result<BTreeMap<u64, Duration>> {
        Ok(self.signs().iter().map(|(&id, (_, at))| (id, clock::since(*at))).collect())
    }

    fn begins(&self, id: u64) {
        self.signs().insert(id, (Vec::new(), clock::now()));
    }

    fn ends(&self, id: u64) {
        self.signs().remove(&id);
    }

    /// Nobody could say that he is alive while there was nobody to hear it.
    fn unheard(&self, _age: Duration) -> Duration {
        clock::since(self.begun)
    }

    fn forget(&self, ids: &[u64]) -> Result<()> {
        let mut signs = self.signs();
        ids.iter().for_each(|id| _ = signs.remove(id));
        Ok(())
    }

    fn forgive(&self) {
        self.signs().values_mut().for_each(|(_, at)| *at = clock::now());
    }
}
