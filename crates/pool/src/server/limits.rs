//! What others may ask of a process, and at what rate it gives away what it holds.

use std::collections::HashMap;
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
