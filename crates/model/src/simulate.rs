//! A Monte Carlo simulation of a job that fails and restarts: it checks the closed forms where their assumptions hold, and
//! answers where they do not.

use crate::{Error, HOPELESS, Job, Result, positive};

/// How the times between failures are distributed; their mean is the job's mean time to interrupt.
#[derive(Clone, Debug, PartialEq)]
pub enum Failures {
    /// At a constant rate, as the closed forms assume.
    Exponential,
    /// Weibull with this shape: below 1, failures come in clusters.
    Weibull(f64),
    /// These times between failures in seconds, from a random one on, over and over. Their own mean counts.
    Trace(Vec<f64>),
}

/// What many runs came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// The mean time of the job in seconds.
    pub mean: f64,
    /// The standard error of that mean.
    pub error: f64,
    /// The time that nine in ten runs kept below.
    pub ninth_decile: f64,
    /// Failures in a run, on average.
    pub failures: f64,
}

/// Runs a job at an interval `runs` times. None where it hardly ever ends: it takes ten thousand times its work and more, or a
/// million stretches and failures in one run.
pub fn simulate(
    job: &Job,
    interval: f64,
    failures: &Failures,
    runs: u32,
    seed: u64,
) -> Result<Option<Simulated>> {
    job.check()?;
    positive(interval, "the interval")?;
    let mut gaps = Gaps::new(failures, job.mtti, seed)?;
    if runs == 0 {
        return Err(Error("at least one run is needed".into()));
    }
    let mut times = Vec::with_capacity(runs as usize);
    let mut met = 0u64;
    for _ in 0..runs {
        let Some((time, count)) = run(job, interval, &mut gaps) else { return Ok(None) };
        times.push(time);
        met += count;
    }
    let n = f64::from(runs);
    let mean = times.iter().sum::<f64>() / n;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    times.sort_by(f64::total_cmp);
    let ninth_decile = times[(times.len() * 9 / 10).min(times.len() - 1)];
    Ok(Some(Simulated { mean, error: (variance / n).sqrt(), ninth_decile, failures: met as f64 / n }))
}

/// Steps of one run: stretches of work, and failures.
const STEPS_MAX: u64 = 1_000_000;

/// One run: its time, and how many failures it met. None where it takes far too long.
fn run(job: &Job, interval: f64, gaps: &mut Gaps) -> Option<(f64, u64)> {
    gaps.begin();
    let (mut now, mut saved, mut failures) = (0.0, 0.0, 0);
    let mut next = gaps.next();
    let mut steps = 0u64;
    let mut step = || {
        steps += 1;
        (steps <= STEPS_MAX).then_some(())
    };
    loop {
        step()?;
        let work = interval.min(job.solve - saved);
        let is_last = saved + work >= job.solve;
        let end = now + work + if is_last { 0.0 } else { job.checkpoint };
        if end <= next {
            if is_last {
                return Some((end, failures));
            }
            (now, saved) = (end, saved + work);
            continue;
        }
        // What was done since the last checkpoint is lost; restarts fail, too.
        loop {
            step()?;
            now = next;
            failures += 1;
            next = now + gaps.next();
            if now > HOPELESS * job.solve {
                return None;
            }
            if now + job.restart <= next {
                now += job.restart;
                break;
            }
        }
    }
}

/// Times between failures.
struct Gaps<'a> {
    random: fastrand::Rng,
    failures: &'a Failures,
    /// The mean of the exponential, or the scale of the Weibull distribution.
    scale: f64,
    place: usize,
}

impl<'a> Gaps<'a> {
    fn new(failures: &'a Failures, mean: f64, seed: u64) -> Result<Gaps<'a>> {
        let scale = match failures {
            Failures::Exponential => mean,
            Failures::Weibull(shape) if (0.1..=10.0).contains(shape) => mean / gamma(1.0 + 1.0 / shape),
            Failures::Weibull(shape) => {
                return Err(Error(format!(
                    "the shape of a Weibull distribution must be from 0.1 to 10, not {shape}"
                )));
            }
            Failures::Trace(gaps) => {
                if gaps.is_empty() {
                    return Err(Error("the trace holds no failures".into()));
                }
                gaps.iter().try_for_each(|&gap| positive(gap, "a time between failures").map(drop))?;
                mean
            }
        };
        Ok(Gaps { random: fastrand::Rng::with_seed(seed), failures, scale, place: 0 })
    }

    /// A run begins somewhere in a trace.
    fn begin(&mut self) {
        if let Failures::Trace(gaps) = self.failures {
            self.place = self.random.usize(..gaps.len());
        }
    }

    fn next(&mut self) -> f64 {
        // Above 0 and at most 1, so that its logarithm is finite.
        let uniform = 1.0 - self.random.f64();
        match self.failures {
            Failures::Exponential => -uniform.ln() * self.scale,
            Failures::Weibull(shape) => (-uniform.ln()).powf(1.0 / shape) * self.scale,
            Failures::Trace(gaps) => {
                let gap = gaps[self.place];
                self.place = (self.place + 1) % gaps.len();
                gap
            }
        }
    }
}

/// The gamma function for arguments of 1 and more (Lanczos 1964, with g = 7 and nine terms).
fn gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum =
        TERMS[1..].iter().enumerate().fold(TERMS[0], |sum, (i, term)| sum + term / (x + i as f64 + 1.0));
    let t = x + 7.5;
    (2.0 * std::f64::consts::PI).sqrt() * t.powf(x + 0.5) * (-t).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interval;

    const DAY: f64 = 86_400.0;

    #[test]
    fn the_closed_form_holds_within_two_per_cent() {
        for (checkpoint, mtti) in [(60.0, 6.0 * 3600.0), (300.0, DAY), (600.0, 4.0 * 3600.0), (164.0, 2406.0)]
        {
            let job = Job { solve: 7.0 * DAY, checkpoint, restart: checkpoint, mtti };
            let best = Interval::daly(&job).unwrap();
            for interval in [best.interval / 3.0, best.interval, best.interval * 2.0] {
                let simulated = simulate(&job, interval, &Failures::Exponential, 2000, 7).unwrap().unwrap();
                let expected = job.expected(interval).unwrap();
                let off = simulated.mean / expected - 1.0;
                assert!(off.abs() < 0.02, "delta {checkpoint} M {mtti} tau {interval}: {off}");
            }
        }
    }

    #[test]
    fn clustered_failures_are_another_story() {
        let job = Job { solve: 3.0 * DAY, checkpoint: 300.0, restart: 300.0, mtti: 4.0 * 3600.0 };
        let best = Interval::daly(&job).unwrap();
        let clustered = simulate(&job, best.interval, &Failures::Weibull(0.5), 2000, 3).unwrap().unwrap();
        // Many short gaps hit the same stretch again, so less is lost than with the same number spread evenly.
        assert!((clustered.mean / best.expected - 1.0).abs() > 0.02, "{clustered:?} {best:?}");
        let even = simulate(&job, best.interval, &Failures::Weibull(1.0), 2000, 3).unwrap().unwrap();
        assert!((even.mean / best.expected - 1.0).abs() < 0.02);
    }

    #[test]
    fn traces_are_followed() {
        let job = Job { solve: 1000.0, checkpoint: 10.0, restart: 5.0, mtti: 1.0 };
        let calm = simulate(&job, 100.0, &Failures::Trace(vec![1e9]), 3, 1).unwrap().unwrap();
        assert_eq!((calm.mean, calm.failures), (1090.0, 0.0));
        let rough = simulate(&job, 100.0, &Failures::Trace(vec![300.0]), 3, 1).unwrap().unwrap();
        assert!(rough.failures >= 3.0 && rough.mean > 1200.0, "{rough:?}");
    }

    #[test]
    fn nonsense_is_refused_and_the_hopeless_is_told() {
        let job = Job { solve: 1000.0, checkpoint: 10.0, restart: 5.0, mtti: 100.0 };
        assert!(simulate(&job, 0.0, &Failures::Exponential, 1, 1).is_err());
        assert!(simulate(&job, 10.0, &Failures::Exponential, 0, 1).is_err());
        assert!(simulate(&job, 10.0, &Failures::Weibull(f64::NAN), 1, 1).is_err());
        assert!(simulate(&job, 10.0, &Failures::Trace(vec![]), 1, 1).is_err());
        assert!(simulate(&job, 10.0, &Failures::Trace(vec![1.0, -1.0]), 1, 1).is_err());
        // Nothing that never ends: restarts longer than any gap, gaps too short for the clock, far too many stretches.
        let never =
            |job: &Job, interval, failures| simulate(job, interval, &failures, 1, 1).unwrap().is_none();
        assert!(never(&job, 10.0, Failures::Trace(vec![1.0])));
        assert!(never(&job, 10.0, Failures::Trace(vec![1e-300])));
        assert!(never(&Job { mtti: 1e9, ..job }, 1e-9, Failures::Exponential));
        assert!(never(&Job { mtti: 0.1, ..job }, 100.0, Failures::Exponential));
    }

    #[test]
    fn gamma_is_the_factorial() {
        for (x, value) in [(1.0, 1.0), (2.0, 1.0), (3.0, 2.0), (5.0, 24.0), (1.5, 0.886_226_925_452_758)] {
            assert!((gamma(x) / value - 1.0).abs() < 1e-12, "{x}");
        }
    }
}
