//! What goes through a process that serves, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::wire::Load;

/// Over how long a load is an average, at least.
const WINDOW: Duration = Duration::from_secs(1);

/// Counts since the process began.
pub struct Traffic {
    questions: [AtomicU64; 64],
    refusals: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Default for Traffic {
    fn default() -> Traffic {
        let zero = || AtomicU64::new(0);
        let questions = std::array::from_fn(|_| zero());
        Traffic { questions, refusals: zero(), received: zero(), sent: zero() }
    }
}

impl Traffic {
    pub(super) fn asked(&self, kind: u8, bytes: u64) {
        if let Some(count) = self.questions.get(usize::from(kind)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn answered(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Questions by their kind, those that were asked at all.
    pub fn questions(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = (0u8..).zip(&self.questions).map(|(kind, count)| (kind, count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Questions that were refused.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Bytes of bulk that came, and that went.
    pub fn bytes(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }
}

/// How much goes through a process at the moment.
pub(super) struct Meter {
    traffic: Arc<Traffic>,
    since: Instant,
    counted: Load,
    load: Load,
}

impl Meter {
    /// Of what is counted there, from now on.
    pub fn new(traffic: Arc<Traffic>) -> Meter {
        let counted = count(&traffic);
        Meter { traffic, since: Instant::now(), counted, load: Load::default() }
    }

    /// The load of the last window that is over.
    pub fn load(&mut self) -> Load {
        let took = self.since.elapsed();
        if took >= WINDOW {
            let (now, before) = (count(&self.traffic), self.counted);
            let rate = |now: u64, before: u64| ((now - before) as f64 / took.as_secs_f64()) as u64;
            self.load = Load {
                came: rate(now.came, before.came),
                went: rate(now.went, before.went),
                asked: rate(now.asked, before.asked),
            };
            (self.since, self.counted) = (Instant::now(), now);
        }
        self.load
    }
}

/// All that was counted.
fn count(traffic: &Traffic) -> Load {
    let (came, went) = traffic.bytes();
    Load { came, went, asked: traffic.questions().map(|(_, count)| count).sum() }
}
