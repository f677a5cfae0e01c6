//! The optimal interval between checkpoints, and the expected time of a job.

use crate::{Error, HOPELESS, Result, not_negative, positive};

/// A job that saves its state again and again, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// What it takes without any checkpoint or failure (T_s).
    pub solve: f64,
    /// What one checkpoint takes away from it (delta).
    pub checkpoint: f64,
    /// What it takes to begin again after a failure (R).
    pub restart: f64,
    /// The mean time to interrupt of the whole job (M): that of one node divided by their number.
    pub mtti: f64,
}

/// An interval, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Seconds of work between two checkpoints (tau).
    pub interval: f64,
    /// The expected time of the job, all losses included (T_w).
    pub expected: f64,
    /// The time of the checkpoints that a run without failures writes.
    pub saving: f64,
    /// The time lost to failures: restarts, and work and checkpoints done again.
    pub lost: f64,
}

impl Job {
    /// Fails unless every quantity makes sense.
    pub fn check(&self) -> Result<()> {
        positive(self.solve, "the solve time")?;
        not_negative(self.checkpoint, "the time of a checkpoint")?;
        not_negative(self.restart, "the time of a restart")?;
        positive(self.mtti, "the mean time to interrupt")?;
        Ok(())
    }

    /// The expected time at an interval: Daly 2006, eq. 20, as in the overlay report, eq. 3.1. It assumes failures that
    /// come at a constant rate, also during checkpoints and restarts; the last stretch of work is not saved.
    pub fn expected(&self, interval: f64) -> Result<f64> {
        self.check()?;
        let interval = positive(interval, "the interval")?;
        let (delta, m) = (self.checkpoint, self.mtti);
        let stretches = self.solve / interval - delta / (interval + delta);
        let expected = if self.solve <= interval {
            // A job shorter than its interval is one stretch, and never saved.
            m * (self.restart / m).exp() * (self.solve / m).exp_m1()
        } else {
            m * (self.restart / m).exp() * ((interval + delta) / m).exp_m1() * stretches
        };
        if expected <= HOPELESS * self.solve {
            return Ok(expected);
        }
        let text = "failures come so often that the job would practically never end: its parts fail faster than it can save";
        Err(Error(text.to_owned()))
    }

    /// What follows from an interval.
    pub fn at(&self, interval: f64) -> Result<Interval> {
        let expected = self.expected(interval)?;
        let stretches = (self.solve / interval).max(1.0).ceil() - 1.0;
        let saving = (stretches * self.checkpoint).min(expected - self.solve).max(0.0);
        Ok(Interval { interval, expected, saving, lost: (expected - self.solve - saving).max(0.0) })
    }

    /// The share of the expected time that is work, from 0 to 1.
    pub fn efficiency(&self, interval: f64) -> Result<f64> {
        Ok(self.solve / self.expected(interval)?)
    }
}

impl Interval {
    /// The optimal interval of the first order: Young 1974, sqrt(2 delta M).
    pub fn young(job: &Job) -> Result<Interval> {
        positive(job.checkpoint, "the time of a checkpoint")?;
        job.check()?;
        job.at(positive((2.0 * job.checkpoint * job.mtti).sqrt(), "the optimal interval")?)
    }

    /// The optimal interval of higher order: Daly 2006, eq. 37, as in the overlay report, eq. 3.2. Where a checkpoint takes
    /// twice the mean time to interrupt or more, it is that time, and hardly any job ends.
    pub fn daly(job: &Job) -> Result<Interval> {
        Interval::at_least(job, 0.0)
    }

    /// The same, but no shorter than `least`: a buffer must have drained before the next checkpoint comes (the report,
    /// section 4.2).
    pub fn at_least(job: &Job, least: f64) -> Result<Interval> {
        job.check()?;
        let (delta, m) = (positive(job.checkpoint, "the time of a checkpoint")?, job.mtti);
        let optimal = if delta < 2.0 * m {
            let ratio = delta / (2.0 * m);
            (2.0 * delta * m).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - delta
        } else {
            m
        };
        job.at(positive(optimal.max(least), "the optimal interval")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86_400.0;

    fn job(checkpoint: f64, mtti: f64) -> Job {
        Job { solve: 7.0 * DAY, checkpoint, restart: checkpoint, mtti }
    }

    #[test]
    fn the_optimum_is_one() {
        for (delta, m) in [(1.0, 3600.0), (60.0, 3600.0), (300.0, DAY), (900.0, 7200.0), (3000.0, 9000.0)] {
            let job = job(delta, m);
            let best = Interval::daly(&job).unwrap();
            for factor in [0.5, 0.8, 1.25, 2.0] {
                let other = job.expected(best.interval * factor).unwrap();
                assert!(other >= best.expected * 0.9995, "delta {delta} M {m}: {factor} is better");
            }
            let young = Interval::young(&job).unwrap();
            assert!(young.expected >= best.expected * 0.9999);
            let sum = job.solve + best.saving + best.lost;
            assert!((sum / best.expected - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn without_failures_only_saving_costs() {
        let job = job(60.0, 1e12);
        let at = job.at(3600.0).unwrap();
        assert!((at.expected / (job.solve + 168.0 * 60.0) - 1.0).abs() < 1e-3, "{at:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Interval::daly(&job(60.0, bad)).is_err());
            assert!(job(60.0, 3600.0).expected(bad).is_err());
        }
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Interval::daly(&job(bad, 3600.0)).is_err());
        }
        assert!(Interval::daly(&job(0.0, 3600.0)).is_err(), "what costs nothing can be done all the time");
        let hopeless = Interval::daly(&job(1e6, 10.0)).unwrap_err();
        assert!(hopeless.to_string().contains("never end"));
    }

    /// Figure 3.4 of the overlay report: at 64 Ki processors the petaflop system does no better than 70 %.
    #[test]
    fn the_petaflop_system_is_below_seventy_per_cent() {
        let processors = 65_536.0;
        let checkpoint = processors * 1.25e9 / 500e9;
        let mtti = 5.0 * 365.25 * DAY / processors;
        let job = Job { solve: 30.0 * DAY, checkpoint, restart: 0.0, mtti };
        let best = Interval::daly(&job).unwrap();
        let efficiency = job.efficiency(best.interval).unwrap();
        assert!((0.6..=0.7).contains(&efficiency), "{efficiency}");
    }
}
