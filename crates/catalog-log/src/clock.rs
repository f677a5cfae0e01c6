//! The time, which in a simulation is what the simulation says.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

thread_local! {
    static SIMULATED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The moment at which simulated time begins.
fn beginning() -> Instant {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    *BEGINNING.get_or_init(Instant::now)
}

/// Now.
pub fn now() -> Instant {
    SIMULATED.get().map_or_else(Instant::now, |passed| beginning() + passed)
}

/// How long ago something was.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Waits; in a simulation the time passes at once.
pub fn sleep(time: Duration) {
    match SIMULATED.get() {
        Some(passed) => SIMULATED.set(Some(passed + time)),
        None => std::thread::sleep(time),
    }
}

/// Whether this thread is all there is, and nobody may wait for another one.
pub fn is_simulated() -> bool {
    SIMULATED.get().is_some()
}

/// Has this thread live in simulated time, until it is dropped.
pub struct Simulation(());

impl Simulation {
    /// From its beginning.
    pub fn begin() -> Simulation {
        SIMULATED.set(Some(Duration::ZERO));
        Simulation(())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SIMULATED.set(None);
    }
}
