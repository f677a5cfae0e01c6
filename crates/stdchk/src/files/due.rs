//! When to look for steps that should be complete and are not: a mount is gone since their last file was closed, or failed to make the list.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stdchk_object::{Kind, SessionId};

use super::fault::Fault;

/// The first pause after a failure.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest where a store that is full, or cannot be reached, may be better at any time; and where something cannot be read, which hardly
/// ever mends itself.
const PAUSE_MAX: Duration = Duration::from_secs(30);
const PAUSE_MAX_DAMAGED: Duration = Duration::from_secs(600);

/// Whether something of a version cannot be read, rather than the store not be used.
pub(super) fn is_damage(fault: &Fault) -> bool {
    matches!(fault, Fault::Store(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound))
}

/// Whether there may be such steps, and when they are looked for.
pub(super) struct Due {
    mounts: BTreeSet<SessionId>,
    /// Which cause it is for which they are looked for, and up to which that was done.
    cause: u64,
    done: u64,
    /// After a failure not before this, and how long that was.
    pause: Option<(Instant, Duration)>,
}

impl Default for Due {
    fn default() -> Due {
        Due { mounts: BTreeSet::new(), cause: 1, done: 0, pause: None }
    }
}

impl Due {
    /// There is a new cause to look for them, at once.
    pub fn look(&mut self) {
        self.cause += 1;
        self.pause = None;
    }

    /// These mounts are there now: whether others are gone.
    pub fn have_gone(&mut self, mounts: BTreeSet<SessionId>) -> bool {
        !std::mem::replace(&mut self.mounts, mounts).is_subset(&self.mounts)
    }

    /// The cause to look for them now, if there is one.
    pub fn take(&self, now: Instant) -> Option<u64> {
        let may = self.pause.is_none_or(|(until, _)| now >= until);
        (may && self.done < self.cause).then_some(self.cause)
    }

    /// They were looked for because of that: all is well, or it is said whether that failed because of damage. Each failure is followed by a longer pause,
    /// unless there is a new cause by then.
    pub fn done(&mut self, cause: u64, is_damage: Option<bool>, now: Instant) {
        match is_damage {
            None => self.done = self.done.max(cause),
            Some(_) if cause < self.cause => {}
            Some(is_damage) => {
                let most = if is_damage { PAUSE_MAX_DAMAGED } else { PAUSE_MAX };
                let before = self.pause.map_or(Duration::ZERO, |(_, pause)| pause);
                let pause = (before * 2).clamp(PAUSE, most);
                self.pause = Some((now + pause, pause));
            }
        }
        if self.done == self.cause {
            self.pause = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses between failures, one after the other.
    fn pauses(due: &mut Due, mut now: Instant, is_damage: bool, count: usize) -> Vec<u64> {
        let mut pauses = Vec::new();
        for _ in 0..count {
            let cause = due.take(now).expect("it is time");
            due.done(cause, Some(is_damage), now);
            assert_eq!(due.take(now), None, "there is a pause");
            let begun = now;
            while due.take(now).is_none() {
                now += Duration::from_secs(1);
            }
            pauses.push((now - begun).as_secs());
        }
        pauses
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_seldom() {
        let now = Instant::now();
        assert_eq!(pauses(&mut Due::default(), now, true, 10), [2, 4, 8, 16, 32, 64, 128, 256, 512, 600]);
        assert_eq!(pauses(&mut Due::default(), now, false, 6), [2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_new_cause_ends_every_pause() {
        let now = Instant::now();
        let mut due = Due::default();
        pauses(&mut due, now, true, 5);
        due.look();
        assert!(due.take(now).is_some());
        assert_eq!(pauses(&mut due, now, true, 2), [2, 4]);
    }

    #[test]
    fn a_cause_that_comes_meanwhile_is_not_lost() {
        let now = Instant::now();
        for outcome in [None, Some(true), Some(false)] {
            let mut due = Due::default();
            let cause = due.take(now).expect("at first");
            due.look();
            due.done(cause, outcome, now);
            let next = due.take(now).expect("at once");
            assert!(next > cause);
            due.done(next, None, now);
            assert_eq!(due.take(now + PAUSE_MAX_DAMAGED), None, "all is done");
        }
    }

    #[test]
    fn mounts_that_are_gone_are_seen_once() {
        let mut due = Due::default();
        let some = |numbers: &[u64]| numbers.iter().map(|&number| SessionId(number)).collect();
        assert!(!due.have_gone(some(&[1, 2])));
        assert!(!due.have_gone(some(&[1, 2, 3])));
        assert!(due.have_gone(some(&[1, 3])));
        assert!(!due.have_gone(some(&[1, 3])));
    }
}
