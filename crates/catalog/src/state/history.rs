//! What was measured of an application: how long saves and restores took, how often it saved, and how often it had to go on from
//! a checkpoint. It outlives the checkpoints that it was measured with.

use stdchk_object::Result;
use stdchk_object::wire::{Reader, Writer};

use crate::op::{CheckpointEntry, Restart};

/// Saves and restarts that are remembered one by one.
const REMEMBERED: usize = 32;
/// A pause of so many usual ones is no work: the application was not running.
const PAUSES_MAX: u64 = 10;

/// Saves that wrote less, or less than this part of what they looked at, say more about latencies and looking than about the speed of a store.
const TELLING_BYTES: u64 = 4 << 20;
const TELLING_PART: u64 = 4;

/// One save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SaveSample {
    /// Milliseconds that it took; 0 where that was not measured.
    pub took_ms: u64,
    /// Milliseconds since the save before; 0 for the first.
    pub pause_ms: u64,
    /// Its length.
    pub bytes: u64,
    /// What of that was new.
    pub new: u64,
    /// What it wrote.
    pub written: u64,
}

/// The history of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    saves: Vec<SaveSample>,
    restarts: Vec<Restart>,
    restart_count: u64,
    active_ms: u64,
    last_ns: i64,
}

impl History {
    pub(super) fn saved(&mut self, entry: &CheckpointEntry) {
        // Clocks may say anything.
        let pause = |last: i64| u64::try_from(entry.created_ns.saturating_sub(last) / 1_000_000).unwrap_or(0);
        let pause_ms = if self.saves.is_empty() { 0 } else { pause(self.last_ns) };
        // As long as no pause is known to be usual, none counts.
        let most = self.usual_pause_ms().map_or(0, |usual| usual.saturating_mul(PAUSES_MAX));
        self.active_ms = self.active_ms.saturating_add(pause_ms.min(most));
        self.last_ns = entry.created_ns;
        let (bytes, new, written, took_ms) = (entry.bytes, entry.tally.new, entry.written, entry.took_ms);
        remember(&mut self.saves, SaveSample { took_ms, pause_ms, bytes, new, written });
    }

    pub(super) fn restarted(&mut self, restart: Restart) {
        self.restart_count = self.restart_count.saturating_add(1);
        remember(&mut self.restarts, restart);
    }

    /// The last saves, the newest last.
    pub fn saves(&self) -> &[SaveSample] {
        &self.saves
    }

    /// How often it went on from a checkpoint.
    pub fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// Milliseconds from save to save, pauses left out in which it was not running.
    pub fn active_ms(&self) -> u64 {
        self.active_ms
    }

    /// When it saved last, in nanoseconds since 1970.
    pub fn last_ns(&self) -> Option<i64> {
        (!self.saves.is_empty()).then_some(self.last_ns)
    }

    /// The median of the milliseconds from save to save.
    pub fn usual_pause_ms(&self) -> Option<u64> {
        median(self.saves.iter().map(|save| save.pause_ms).filter(|&pause| pause > 0))
    }

    /// The median of the milliseconds that saves took. The first of all, which has nothing to share with, does not count where there
    /// are others.
    pub fn usual_save_ms(&self) -> Option<u64> {
        let measured = || self.saves.iter().filter(|save| save.took_ms > 0);
        let later = median(measured().filter(|save| save.pause_ms > 0).map(|save| save.took_ms));
        later.or_else(|| median(measured().map(|save| save.took_ms)))
    }

    /// Seconds for a byte that was written, everything included, in the fastest of the last saves that mostly wrote: the store is no slower than that.
    pub fn least_write_s_per_byte(&self) -> Option<f64> {
        let tells = |save: &&SaveSample| {
            save.took_ms > 0 && save.written >= TELLING_BYTES.max(save.bytes / TELLING_PART)
        };
        self.saves
            .iter()
            .filter(tells)
            .map(|save| save.took_ms as f64 / 1e3 / save.written as f64)
            .min_by(f64::total_cmp)
    }

    /// The median of the milliseconds that restores took.
    pub fn usual_restore_ms(&self) -> Option<u64> {
        median(self.restarts.iter().map(|restart| restart.took_ms))
    }

    /// Milliseconds of work between two interruptions, if there ever was one.
    pub fn mtti_ms(&self) -> Option<u64> {
        self.active_ms.checked_div(self.restart_count).filter(|&mtti| mtti > 0)
    }

    /// How many restarts come to a save, from none to one.
    pub fn restarts_per_save(&self) -> f64 {
        match (self.usual_pause_ms(), self.mtti_ms()) {
            (Some(pause), Some(mtti)) => (pause as f64 / mtti as f64).min(1.0),
            _ => 0.0,
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.varint(self.saves.len() as u64);
        for save in &self.saves {
            let SaveSample { took_ms, pause_ms, bytes, new, written } = *save;
            [took_ms, pause_ms, bytes, new, written].into_iter().for_each(|n| out.varint(n));
        }
        out.varint(self.restarts.len() as u64);
        self.restarts.iter().for_each(|restart| restart.encode(out));
        out.varint(self.restart_count);
        out.varint(self.active_ms);
        out.zigzag(self.last_ns);
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<History> {
        let count = reader.count(5)?;
        let save = |reader: &mut Reader| -> Result<SaveSample> {
            let (took_ms, pause_ms) = (reader.varint()?, reader.varint()?);
            Ok(SaveSample {
                took_ms,
                pause_ms,
                bytes: reader.varint()?,
                new: reader.varint()?,
                written: reader.varint()?,
            })
        };
        let saves = (0..count).map(|_| save(reader)).collect::<Result<_>>()?;
        let count = reader.count(2)?;
        let restarts = (0..count).map(|_| Restart::decode(reader)).collect::<Result<_>>()?;
        Ok(History {
            saves,
            restarts,
            restart_count: reader.varint()?,
            active_ms: reader.varint()?,
            last_ns: reader.zigzag()?,
        })
    }
}

fn remember<T>(kept: &mut Vec<T>, one: T) {
    let surplus = (kept.len() + 1).saturating_sub(REMEMBERED);
    kept.drain(..surplus);
    kept.push(one);
}

fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use crate::conformance::commit;

    const SECOND: i64 = 1_000_000_000;

    fn saved_at(history: &mut History, second: i64, took_ms: u64) {
        let Op::Commit(_, entry, _) = commit(1, 1, &[]) else { unreachable!() };
        history.saved(&CheckpointEntry { created_ns: second * SECOND, took_ms, ..*entry });
    }

    #[test]
    fn nights_are_no_work_and_restarts_divide_what_is() {
        let mut history = History::default();
        assert_eq!((history.usual_save_ms(), history.mtti_ms(), history.last_ns()), (None, None, None));
        saved_at(&mut history, 0, 9000);
        assert_eq!(history.usual_save_ms(), Some(9000));
        (1..=4).for_each(|i| saved_at(&mut history, 60 * i, 1000));
        assert_eq!((history.usual_pause_ms(), history.usual_save_ms()), (Some(60_000), Some(1000)));
        assert_eq!(history.mtti_ms(), None);
        history.restarted(Restart { time_ns: 0, took_ms: 500 });
        // A night counts as ten minutes at most.
        saved_at(&mut history, 240 + 8 * 3600, 1000);
        // Of the first pause nobody knew whether it was one.
        assert_eq!(history.active_ms(), 180_000 + 600_000);
        history.restarted(Restart { time_ns: 0, took_ms: 700 });
        assert_eq!((history.mtti_ms(), history.usual_restore_ms()), (Some(390_000), Some(700)));
    }

    #[test]
    fn the_fastest_save_says_what_a_store_takes() {
        let mut history = History::default();
        let mut saved = |written, took_ms| {
            let Op::Commit(_, entry, _) = commit(1, 1, &[]) else { unreachable!() };
            history.saved(&CheckpointEntry { bytes: 20_000_000, written, took_ms, ..*entry });
            history.least_write_s_per_byte()
        };
        assert_eq!(saved(4_900_000, 1), None, "that is little");
        assert_eq!(saved(10_000_000, 0), None, "that was not measured");
        assert_eq!(saved(10_000_000, 1000), Some(1e-7));
        assert_eq!(saved(10_000_000, 100), Some(1e-8));
        assert_eq!(saved(10_000_000, 500), Some(1e-8));
    }

    #[test]
    fn it_comes_back_and_stays_small() {
        let mut history = History::default();
        for i in 0..1000 {
            saved_at(&mut history, i * 10, 5);
            history.restarted(Restart { time_ns: i, took_ms: 1 });
        }
        assert_eq!((history.saves().len(), history.restart_count()), (REMEMBERED, 1000));
        let mut out = Writer::new();
        history.encode(&mut out);
        let bytes = out.into_bytes();
        let mut reader = Reader::new(&bytes, "history");
        assert_eq!(History::decode(&mut reader).unwrap(), history);
        // A clock that goes back does no harm.
        saved_at(&mut history, -5, 5);
        assert_eq!(history.saves().last().unwrap().pause_ms, 0);
    }
}
