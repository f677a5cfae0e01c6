//! Being told to end while something lies about that has to be removed first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use stdchk::{Error, Result};

/// While it lives, SIGINT, SIGTERM and SIGHUP set a flag; after that they end the program as ever.
pub struct Stops {
    /// Whether one came.
    pub asked: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Stops {
    pub fn new() -> Result<Stops> {
        let stops = Stops { asked: Arc::default(), signal: Arc::default(), over: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, stops.over.clone())
                .and_then(|_| flag::register_usize(signal, stops.signal.clone(), signal as usize))
                .and_then(|_| flag::register(signal, stops.asked.clone()))
                .map_err(|error| Error::io("cannot prepare for signals", error))?;
        }
        Ok(stops)
    }

    /// The exit code of a program that a signal ended, if one came.
    pub fn code(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Relaxed);
        (signal > 0).then_some(128 + signal as u8)
    }
}

impl Drop for Stops {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
