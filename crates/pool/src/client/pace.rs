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
    /// Where nobody else could bring the bytes it is not watched.
    pace: Option<&'p Pace>,
    begun: Instant,
    bytes: u64,
}

impl<'p> Watch<'p> {
    /// Of bytes that `pace` allows to come and go; without it they may take for ever.
    pub fn begin(pace: Option<&'p Pace>) -> Watch<'p> {
        Watch { pace, begun: Instant::now(), bytes: 0 }
    }

    /// So many bytes more have come or gone. An error where others would have been so much faster that they should be asked.
    pub fn moved(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        if !self.is_over() {
            return Ok(());
        }
        let took = self.begun.elapsed().as_secs_f64();
        Err(Error::new(Kind::Io, format!("only {} bytes in {took:.1} s: others are faster", self.bytes)))
    }

    /// Whether it takes longer than it may.
    pub fn is_over(&self) -> bool {
        let took = self.begun.elapsed();
        self.pace.is_some_and(|pace| self.bytes > 0 && took >= GRACE && took > pace.allowed(self.bytes))
    }

    /// How long all of it may take that is left, when everything was sent.
    pub fn left(&self, most: Duration) -> Duration {
        let Some(pace) = self.pace.filter(|_| self.bytes >= BYTES_MIN) else { return most };
        pace.allowed(self.bytes).saturating_sub(self.begun.elapsed()).clamp(GRACE.min(most), most)
    }

    /// All has come or gone: from this it is known what is usual. Whether it says anything.
    pub fn done(self) -> bool {
        if self.bytes < BYTES_MIN {
            return false;
        }
        if let Some(pace) = self.pace {
            let took = self.begun.elapsed().as_nanos().saturating_mul(1 << 20) / u128::from(self.bytes);
            let mut last = pace.last();
            if last.len() == REMEMBERED {
                last.pop_front();
            }
            last.push_back(u64::try_from(took).unwrap_or(u64::MAX));
        }
        true
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
        let mut watch = Watch { pace: Some(&pace), begun: since(3), bytes: 0 };
        assert!(watch.moved(1 << 20).is_err());
        // 3 s for 30 MiB are well within 16 times 300 ms.
        let mut watch = Watch { pace: Some(&pace), begun: since(3), bytes: 0 };
        assert!(watch.moved(30 << 20).is_ok());
        let mut watch = Watch { pace: None, begun: since(1000), bytes: 0 };
        assert!(watch.moved(1).is_ok());
    }

    #[test]
    fn before_anything_is_known_only_the_very_slow_are() {
        let pace = pace_of(Duration::from_millis(1), KNOWN - 1);
        assert_eq!(pace.allowed(1 << 20), GRACE_UNKNOWN);
        assert_eq!(pace.allowed(64 << 20), Duration::from_secs(64));
        let watch = Watch { pace: Some(&pace), begun: Instant::now(), bytes: 1 << 20 };
        assert!(watch.done() && pace.usual().is_some());
    }
}
