//! What a save's work costs on this machine and this store, measured while it goes on.

use std::sync::Mutex;
use std::time::Instant;

use stdchk_codec::Pace;

use crate::vault::locked;

/// Seconds for a byte, as long as nothing was measured: a gigabyte a second.
const STORE_GUESS: f64 = 1e-9;
/// Bytes that are looked at or stored before what was measured counts in full.
const SETTLED: f64 = (16 << 20) as f64;
/// Packs that are shorter say more about the latency of the store than about its speed.
const TELLING_BYTES: u64 = 1 << 20;
/// What is remembered of a store is not believed where whole saves took so many times as long.
const STALE: f64 = 8.0;
/// New bytes of a save whose compression takes no time worth mentioning.
const LITTLE_BYTES: u64 = 1 << 20;

/// A mean in which what was measured last counts most.
#[derive(Clone, Copy)]
struct Rate {
    per_byte: f64,
    bytes: f64,
}

impl Rate {
    fn add(&mut self, bytes: u64, seconds: f64) {
        let bytes = bytes as f64;
        self.bytes = (self.bytes + bytes).min(4.0 * SETTLED);
        self.per_byte += (seconds / bytes - self.per_byte) * (bytes / self.bytes).min(1.0);
    }
}

struct Measured {
    look: Rate,
    store: Rate,
    looked: u64,
    new: u64,
    under_way: u32,
}

/// The part of all work that trials may take, and seconds that they may take whatever happens.
const TRIALS_SHARE: f64 = 0.02;
const TRIALS_FIRST: f64 = 1e-3;

/// Shared by all who work on a save.
pub struct Meter {
    threads: f64,
    /// Restores that come to a save.
    restarts: f64,
    begun: Instant,
    measured: Mutex<Measured>,
}

/// A pack on its way into the store.
pub struct Storing {
    begun: Instant,
    beside: u32,
}

impl Meter {
    /// For so many threads, and so many restores for each save.
    pub fn new(threads: usize, restarts: f64) -> Meter {
        let store = Rate { per_byte: STORE_GUESS, bytes: 0.0 };
        let look = Rate { per_byte: 0.0, bytes: 0.0 };
        let measured = Measured { look, store, looked: 0, new: 0, under_way: 0 };
        Meter {
            threads: threads.max(1) as f64,
            restarts,
            begun: Instant::now(),
            measured: Mutex::new(measured),
        }
    }

    /// What the store needed for a byte when it was measured before, in seconds: that counts as much as a little that is
    /// measured now.
    pub fn remember_store(&self, per_byte: f64) {
        locked(&self.measured).store = Rate { per_byte, bytes: SETTLED };
    }

    /// The same by what the fastest of the last saves needed, everything included: that counts where nothing else is known, or cannot be true any more.
    pub fn expect_store(&self, most: f64) {
        let mut measured = locked(&self.measured);
        let known = measured.store;
        if known.bytes == 0.0 || known.per_byte > most || known.per_byte * STALE < most {
            measured.store = Rate { per_byte: most, bytes: SETTLED };
        }
    }

    /// Times how one thread looks at so many bytes.
    pub fn time<T>(&self, bytes: u64, look: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = look();
        self.looked(bytes, begun.elapsed().as_secs_f64());
        done
    }

    fn looked(&self, bytes: u64, seconds: f64) {
        if bytes > 0 {
            locked(&self.measured).look.add(bytes, seconds);
        }
    }

    /// So many bytes were passed, of which some are new.
    pub fn passed(&self, bytes: u64, new: u64) {
        let mut measured = locked(&self.measured);
        measured.looked += bytes;
        measured.new += new;
    }

    /// A pack begins to be stored.
    pub fn storing(&self) -> Storing {
        let mut measured = locked(&self.measured);
        measured.under_way += 1;
        Storing { begun: Instant::now(), beside: measured.under_way }
    }

    /// The pack is stored. Those that were under way at the same time had their share of the store.
    pub fn stored(&self, storing: Storing, bytes: u64) {
        let mut measured = locked(&self.measured);
        let beside = f64::from(storing.beside + measured.under_way) / 2.0;
        measured.under_way -= 1;
        if bytes >= TELLING_BYTES {
            measured.store.add(bytes, storing.begun.elapsed().as_secs_f64() / beside);
        }
    }

    /// Seconds that trials may have taken until now: a small part of all that was worked, and a few to begin with.
    pub fn trials_allowed(&self) -> f64 {
        TRIALS_FIRST + TRIALS_SHARE * self.threads * self.begun.elapsed().as_secs_f64()
    }

    pub fn pace(&self) -> Pace {
        let measured = locked(&self.measured);
        let new = measured.new.max(1);
        let share = measured.looked.max(new) as f64 / new as f64;
        Pace {
            threads: self.threads,
            look: measured.look.per_byte * share,
            store: measured.store.per_byte,
            store_known: measured.store.bytes > 0.0,
            little: measured.new <= LITTLE_BYTES,
            restarts: self.restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_bytes_pay_for_the_old_ones() {
        let meter = Meter::new(2, 0.0);
        meter.remember_store(3e-9);
        assert!(meter.pace().little);
        meter.looked(100 << 20, 0.1);
        meter.passed(100 << 20, 10 << 20);
        let pace = meter.pace();
        assert!((pace.look / (10.0 * 0.1 / f64::from(100 << 20)) - 1.0).abs() < 1e-9);
        assert_eq!((pace.threads, pace.store, pace.little), (2.0, 3e-9, false));
    }

    #[test]
    fn what_whole_saves_took_bounds_the_store() {
        let expects = |remembered: Option<f64>, most| {
            let meter = Meter::new(1, 0.0);
            remembered.into_iter().for_each(|store| meter.remember_store(store));
            meter.expect_store(most);
            assert!(meter.pace().store_known);
            meter.pace().store
        };
        assert_eq!(expects(None, 2e-9), 2e-9);
        assert_eq!(expects(Some(1e-9), 2e-9), 1e-9, "saves do more than to wait for the store");
        assert_eq!(expects(Some(3e-9), 2e-9), 2e-9, "it has become faster");
        assert_eq!(expects(Some(1e-9), 20e-9), 20e-9, "it has become slower");
    }

    #[test]
    fn a_rate_follows_what_is_measured() {
        let mut rate = Rate { per_byte: 5.0, bytes: 0.0 };
        rate.add(1 << 20, f64::from(1 << 20));
        assert_eq!(rate.per_byte, 1.0, "nothing was known before");
        (0..40).for_each(|_| rate.add(16 << 20, 3.0 * f64::from(16 << 20)));
        assert!((rate.per_byte - 3.0).abs() < 0.01);
        let meter = Meter::new(1, 0.0);
        assert!(!meter.pace().store_known);
        let storing = meter.storing();
        meter.stored(storing, 100);
        assert!(!meter.pace().store_known, "a short pack says nothing");
    }
}
