//! How fast others are, so that nobody waits for one who is much slower than they are.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_object::{Error, Kind, Result};

/// Less than this says nothing about who is fast.
const BYTES_MIN: u64 = 256 << 10;
/// Transfers from which is known what is usual, and how many are needed for that.
const REMEMBERED: usize = 15;
const KNOWN: usize = 3;
/// How many times slower than usual somebody may be.
const TIMES: u32 = 16;
/// How long everybody may take, whatever he brings.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes in a second below which somebody is slow of whom nothing is known, nor of anybody else; and after how long that is said.
const SLOW: u64 = 1 << 20;
const GRACE_UNKNOWN: Duration = Duration::from_secs(4);

/// What is known of the last transfers between this process and all others.
#[derive(Default)]
pub struct Pace {
    /// Nanoseconds for a MiB.
    last: Mutex<VecDeque<u64>>,
}

impl Pace {
    fn last(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What a MiB usually takes, where that is known.
    fn usual(&self) -> Option<Duration> {
        let mut last: Vec<u64> = self.last().iter().copied().collect();
        if last.len() < KNOWN {
            return None;
        }
        last.sort_unstable();
        Some(Duration::from_nanos(last[last.len() / 2]))
    }

    /// How long so many bytes may take at most.
    fn allowed(&self, bytes: u64) -> Duration {
        match self.usual() {
            Some(usual) => GRACE.max(times(usual, bytes) * TIMES),
            None => GRACE_UNKNOWN.max(Duration::from_secs(bytes / SLOW)),
        }
    }
}

/// What so many bytes take, if a MiB takes that long.
fn times(per_mebibyte: Duration, bytes: u64) -> Duration {
    per_mebibyte.mul_f64(bytes as f64 / f64::from(1 << 20))
}

/// One transfer that is being watched.
pub struct Watch<'p> {
    pace: Option<&'p Pace>,
    /// Whether it is given up where others would have been faster.
    may_end: bool,
    begun: Instant,
    bytes: u64,
    is_over: bool,
}

impl<'p> Watch<'p> {
    /// Of bytes from which it is known how fast `pace` is; where it `may_end`, no slower than that allows.
    pub fn begin(pace: Option<&'p Pace>, may_end: bool) -> Watch<'p> {
        Watch { pace, may_end, begun: Instant::now(), bytes: 0, is_over: false }
    }

    /// It begins, or begins anew.
    pub fn restart(&mut self) {
        (self.begun, self.bytes) = (Instant::now(), 0);
    }

    /// So many bytes more have come or gone. An error where others would have been so much faster that they should be asked.
    pub fn moved(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        let took = self.begun.elapsed();
        // How long it may take is looked up only when it takes long.
        let is_slow = |pace: &Pace| took > GRACE && took > pace.allowed(self.bytes);
        self.is_over = self.may_end && self.pace.is_some_and(is_slow);
        match self.is_over {
            false => Ok(()),
            true => {
                let took = took.as_secs_f64();
                let text = format!("only {} bytes in {took:.1} s: others are faster", self.bytes);
                Err(Error::new(Kind::Io, text))
            }
        }
    }

    /// How long an answer may take, when everything was sent.
    pub fn left(&self, most: Duration) -> Duration {
        let Some(pace) = self.pace.filter(|_| self.may_end && self.bytes >= BYTES_MIN) else { return most };
        pace.allowed(self.bytes).saturating_sub(self.begun.elapsed()).clamp(GRACE.min(most), most)
    }

    /// Nothing comes or goes any more: from this it is known what is usual. Whether it went as it should, and says anything.
    pub fn done(self, is_whole: bool) -> bool {
        // What was given up took at least as long as it did until then.
        let tells = self.bytes >= BYTES_MIN || self.is_over && self.bytes > 0;
        if let Some(pace) = self.pace.filter(|_| tells && (is_whole || self.is_over)) {
            let took = self.begun.elapsed().as_nanos().saturating_mul(1 << 20) / u128::from(self.bytes);
            let mut last = pace.last();
            if last.len() == REMEMBERED {
                last.pop_front();
            }
            last.push_back(u64::try_from(took).unwrap_or(u64::MAX));
        }
        tells && is_whole
    }

    /// Whether it was given up, or was not answered in the time that others would have taken.
    pub fn is_over(&self) -> bool {
        let is_late = |pace: &Pace| self.begun.elapsed() >= pace.allowed(self.bytes);
        self.is_over || self.may_end && self.bytes >= BYTES_MIN && self.pace.is_some_and(is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace_of(each: Duration, count: usize) -> Pace {
        let pace = Pace::default();
        pace.last().extend(std::iter::repeat_n(each.as_nanos() as u64, count));
        pace
    }

    #[test]
    fn much_slower_than_usual_is_too_slow() {
        let pace = pace_of(Duration::from_millis(10), 5);
        assert_eq!(pace.allowed(1 << 20), GRACE);
        assert_eq!(pace.allowed(100 << 20), Duration::from_millis(16_000));
        let since = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).expect("a past");
        let watch = |pace, begun| Watch { begun, ..Watch::begin(pace, true) };
        assert!(watch(Some(&pace), since(3)).moved(1 << 20).is_err());
        // 3 s for 30 MiB are well within 16 times 300 ms.
        assert!(watch(Some(&pace), since(3)).moved(30 << 20).is_ok());
        assert!(watch(None, since(1000)).moved(1).is_ok());
        let mut borne = Watch { begun: since(1000), ..Watch::begin(Some(&pace), false) };
        assert!(borne.moved(1 << 20).is_ok());
        assert_eq!(borne.left(Duration::from_secs(10)), Duration::from_secs(10));
    }

    #[test]
    fn before_anything_is_known_only_the_very_slow_are() {
        let pace = pace_of(Duration::from_millis(1), KNOWN - 1);
        assert_eq!(pace.allowed(1 << 20), GRACE_UNKNOWN);
        assert_eq!(pace.allowed(64 << 20), Duration::from_secs(64));
        let watch = Watch { bytes: 1 << 20, ..Watch::begin(Some(&pace), true) };
        assert!(watch.done(true) && pace.usual().is_some());
    }

    /// When everything has become slow that is what is usual.
    #[test]
    fn what_is_given_up_tells_something_too() {
        let pace = pace_of(Duration::from_millis(1), REMEMBERED);
        for _ in 0..REMEMBERED {
            let begun = Instant::now().checked_sub(Duration::from_secs(3)).expect("a past");
            let mut watch = Watch { begun, ..Watch::begin(Some(&pace), true) };
            if watch.moved(64 << 10).is_ok() {
                break;
            }
            assert!(watch.is_over() && !watch.done(false));
        }
        assert!(pace.usual().expect("it is known") > Duration::from_secs(10));
    }
}
