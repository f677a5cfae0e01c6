//! What others may ask of a process, and at what rate it gives away what it holds.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stdchk_catalog_log::clock;
use stdchk_object::{Error, Kind, Result};

/// Connections of each machine.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<IpAddr, usize>>);

/// One connection of a machine, for as long as it is kept.
pub struct Client {
    all: Arc<Clients>,
    from: IpAddr,
}

impl Clients {
    fn locked(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of that machine, unless it has so many.
    pub fn enter(self: &Arc<Clients>, from: IpAddr, most: usize) -> Option<Client> {
        let mut all = self.locked();
        let count = all.entry(from).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Client { all: self.clone(), from })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut all = self.all.locked();
        if let Some(count) = all.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.from);
            }
        }
    }
}

/// Connections of those who have not shown yet that they know the key. There is always a place for one more: of the machine that has most of them, the one
/// that came first makes room, since whoever knows the key needs a moment only.
pub struct Strangers {
    most: usize,
    inner: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// How many have come so far.
    count: u64,
    /// By when they came: from where, and how they are sent away.
    there: BTreeMap<u64, (IpAddr, SendAway)>,
}

type SendAway = Box<dyn FnOnce() + Send>;

/// One of them, for as long as it is one.
pub struct Stranger {
    all: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    /// So many at a time.
    pub fn new(most: usize) -> Arc<Strangers> {
        Arc::new(Strangers { most: most.max(1), inner: Mutex::default() })
    }

    /// One more.
    pub fn enter(self: &Arc<Strangers>, from: IpAddr, send_away: SendAway) -> Stranger {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let number = inner.count;
        inner.count += 1;
        inner.there.insert(number, (from, send_away));
        let one_too_many = inner.there.len() > self.most;
        let leaves = one_too_many
            .then(|| inner.oldest_of_most())
            .flatten()
            .and_then(|oldest| inner.there.remove(&oldest));
        drop(inner);
        if let Some((from, send_away)) = leaves {
            tracing::debug!("a stranger from {from} makes room for another one");
            send_away();
        }
        Stranger { all: self.clone(), number }
    }
}

impl Waiting {
    /// Who came first from the machine that has most here.
    fn oldest_of_most(&self) -> Option<u64> {
        let mut machines: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (&number, (from, _)) in &self.there {
            machines.entry(*from).or_insert((0, number)).0 += 1;
        }
        let (_, oldest) = machines.into_values().max_by_key(|&(count, oldest)| (count, u64::MAX - oldest))?;
        Some(oldest)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.inner.lock().unwrap_or_else(PoisonError::into_inner).there.remove(&self.number);
    }
}

/// Memory for what has to be there as a whole before it is looked at, from however many it comes.
pub struct Gate {
    most: u64,
    taken: Mutex<u64>,
    given_back: Condvar,
}

/// Some of that memory.
pub struct Taken<'g> {
    gate: &'g Gate,
    bytes: u64,
}

impl Gate {
    /// So many bytes, or one thing that is longer.
    pub fn new(most: u64) -> Gate {
        Gate { most, taken: Mutex::new(0), given_back: Condvar::new() }
    }

    /// Waits for its turn, and so long at most.
    pub fn take(&self, bytes: u64, patience: Duration) -> Result<Taken<'_>> {
        let deadline = Instant::now() + patience;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken > 0 && *taken + bytes > self.most {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Kind::Io, "too many give something to this benefactor at once"));
            }
            let waited = self.given_back.wait_timeout(taken, left);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += bytes;
        Ok(Taken { gate: self, bytes })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.gate.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.gate.given_back.notify_all();
    }
}

/// A limit on bytes in a second, of which no more than one second is saved up.
pub struct Rate {
    bytes: u64,
    /// When what was counted is paid off.
    free: Mutex<Instant>,
}

impl Rate {
    /// So many bytes in a second.
    pub fn new(bytes: u64) -> Rate {
        Rate { bytes: bytes.max(1), free: Mutex::new(clock::now()) }
    }

    /// So many were given.
    pub fn count(&self, bytes: u64) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*free).max(clock::now().checked_sub(Duration::from_secs(1)).unwrap_or(*free));
        *free = begin + Duration::from_secs_f64(bytes as f64 / self.bytes as f64);
    }

    /// How long nothing more should be given.
    pub fn wait(&self) -> Duration {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).saturating_duration_since(clock::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_machine_takes_all_connections() {
        let (all, one, other) = (Arc::new(Clients::default()), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let entered: Vec<Client> = (0..3).filter_map(|_| all.enter(one, 2)).collect();
        assert_eq!(entered.len(), 2);
        let apart = all.enter(other, 2);
        assert!(apart.is_some());
        drop((entered, apart));
        assert!(all.enter(one, 1).is_some() && all.locked().is_empty());
    }

    /// Whoever keeps all places makes room himself, and nobody else.
    #[test]
    fn there_is_room_for_one_more_stranger() {
        let (all, left) = (Strangers::new(3), Arc::new(Mutex::new(Vec::new())));
        let enter = |from: [u8; 4], name: &'static str| {
            let left = left.clone();
            all.enter(from.into(), Box::new(move || left.lock().unwrap().push(name)))
        };
        let first = enter([10, 0, 0, 2], "alone");
        let many: Vec<Stranger> = ["a", "b", "c"].map(|name| enter([10, 0, 0, 1], name)).into();
        assert_eq!(*left.lock().unwrap(), ["a"]);
        let others = [enter([10, 0, 0, 3], "other"), enter([10, 0, 0, 4], "another")];
        assert_eq!(*left.lock().unwrap(), ["a", "b", "alone"]);
        drop((first, many, others));
        assert!(all.inner.lock().unwrap().there.is_empty());
    }

    #[test]
    fn memory_is_waited_for_and_no_longer_than_that() {
        let gate = Gate::new(100);
        let first = gate.take(60, Duration::ZERO).unwrap();
        let second = gate.take(40, Duration::ZERO).unwrap();
        assert_eq!(gate.take(1, Duration::from_millis(20)).map(drop).unwrap_err().kind(), Kind::Io);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.take(1000, Duration::from_secs(20)).map(drop));
            drop((first, second));
            assert!(waiting.join().unwrap().is_ok(), "what is longer than all has its turn alone");
        });
    }

    #[test]
    fn a_rate_is_kept_on_average() {
        let rate = Rate::new(1000);
        assert!(rate.wait().is_zero());
        // A second was saved up when it is full.
        *rate.free.lock().unwrap() = clock::now().checked_sub(Duration::from_secs(9)).unwrap();
        rate.count(1000);
        assert!(rate.wait().is_zero());
        rate.count(3000);
        let wait = rate.wait();
        assert!(wait > Duration::from_millis(2500) && wait <= Duration::from_secs(3), "{wait:?}");
    }
}
