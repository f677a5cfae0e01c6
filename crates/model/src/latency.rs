//! How long a checkpoint takes.

use crate::{Error, Result, not_negative, positive};

/// What bounds the writing of a checkpoint. Rates may be infinite where nothing is known of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Seconds before the first byte: files or objects that are created (alpha_c).
    pub startup: f64,
    /// Bytes of the whole checkpoint (n d).
    pub bytes: f64,
    /// The links of all nodes together (n beta_L).
    pub link: f64,
    /// The network's bisection (beta_n).
    pub bisection: f64,
    /// The store (beta_s).
    pub store: f64,
}

fn rate(value: f64, what: &str) -> Result<f64> {
    if value > 0.0 { Ok(value) } else { Err(Error(format!("{what} must be more than zero, not {value}"))) }
}

impl Latency {
    /// The rate of the network alone (beta_N): its links or its bisection.
    pub fn network(&self) -> Result<f64> {
        Ok(rate(self.link, "the bandwidth of the links")?
            .min(rate(self.bisection, "the bisection bandwidth")?))
    }

    /// The rate that the application sees (beta_chkpt).
    pub fn bandwidth(&self) -> Result<f64> {
        Ok(self.network()?.min(positive(self.store, "the bandwidth of the store")?))
    }

    /// Seconds for one checkpoint: the overlay report, eq. 3.3.
    pub fn time(&self) -> Result<f64> {
        let startup = not_negative(self.startup, "the start-up time")?;
        Ok(startup + not_negative(self.bytes, "the size of a checkpoint")? / self.bandwidth()?)
    }
}

/// Memory of other nodes that takes a checkpoint at the speed of the network and drains to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlay {
    /// Bytes of it (mu).
    pub memory: f64,
}

impl Overlay {
    /// What can be written at the speed of the network, with what drains meanwhile (k): mu / (1 - beta_s / beta_N).
    /// Infinite where the store keeps up with the network.
    pub fn effective(&self, latency: &Latency) -> Result<f64> {
        let memory = not_negative(self.memory, "the memory of the overlay")?;
        let share = positive(latency.store, "the bandwidth of the store")? / latency.network()?;
        Ok(if share >= 1.0 { f64::INFINITY } else { memory / (1.0 - share) })
    }

    /// Seconds for one checkpoint: the overlay report, eq. 4.1, with beta_N where the text prints beta_n.
    pub fn time(&self, latency: &Latency) -> Result<f64> {
        let network = latency.network()?;
        if network.is_infinite() {
            return Err(Error(
                "an overlay needs to know the speed of the network: give the bandwidth of links or bisection"
                    .into(),
            ));
        }
        let bytes = not_negative(latency.bytes, "the size of a checkpoint")?;
        let fast = bytes.min(self.effective(latency)?);
        Ok(not_negative(latency.startup, "the start-up time")?
            + fast / network
            + (bytes - fast) / latency.store)
    }

    /// The shortest interval in which the overlay drains: the overlay report, eq. 4.2.
    pub fn drain(&self, latency: &Latency) -> Result<f64> {
        let effective = self.effective(latency)?;
        let filled = if effective > 0.0 { (latency.bytes / effective).min(1.0) } else { 1.0 };
        Ok(self.memory / latency.store * filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interval, Job};

    /// Red Storm (the overlay report, table 3.1): half of 1 GB a processor, 4.8 GB/s links, 2.3 TB/s bisection, 50 GB/s store.
    fn red_storm(processors: f64) -> Latency {
        Latency {
            startup: 0.0,
            bytes: processors * 0.5e9,
            link: processors * 4.8e9,
            bisection: 2.3e12,
            store: 50e9,
        }
    }

    /// The share of the time that goes into checkpoints (figures 3.4 and 4.5).
    fn share(processors: f64, overlay: Option<Overlay>) -> f64 {
        let latency = red_storm(processors);
        let (checkpoint, least) = match overlay {
            None => (latency.time().unwrap(), 0.0),
            Some(overlay) => (overlay.time(&latency).unwrap(), overlay.drain(&latency).unwrap()),
        };
        let mtti = 5.0 * 365.25 * 86_400.0 / processors;
        let job = Job { solve: 30.0 * 86_400.0, checkpoint, restart: 0.0, mtti };
        let interval = Interval::at_least(&job, least).unwrap().interval;
        checkpoint / (interval + checkpoint)
    }

    #[test]
    fn small_jobs_are_bound_by_links_and_large_ones_by_the_store() {
        assert_eq!(red_storm(4.0).bandwidth().unwrap(), 4.0 * 4.8e9);
        assert_eq!(red_storm(1000.0).bandwidth().unwrap(), 50e9);
        assert!((red_storm(65_536.0).time().unwrap() - 655.36).abs() < 0.01);
    }

    /// Section 4.3: below 1 % up to 8 Ki processors; at 16 Ki the overlay's memory is exhausted. That is so with 1024 nodes
    /// of twice a compute node's memory, which for Red Storm is 4 GB each.
    #[test]
    fn an_overlay_hides_checkpoints_until_it_is_full() {
        let overlay = Overlay { memory: 1024.0 * 4e9 };
        for processors in [1024.0, 2048.0, 4096.0, 8192.0] {
            assert!(share(processors, Some(overlay)) < 0.01, "{processors}");
            assert!(share(processors, Some(overlay)) < share(processors, None) / 4.0);
        }
        let full = red_storm(16_384.0);
        assert!(full.bytes > overlay.effective(&full).unwrap());
        assert!(share(16_384.0, Some(overlay)) > 2.0 * share(8192.0, Some(overlay)));
    }

    #[test]
    fn nonsense_is_refused() {
        let sound = red_storm(100.0);
        for bad in [0.0, -5.0, f64::NAN] {
            assert!(Latency { store: bad, ..sound }.time().is_err());
            assert!(Latency { link: bad, ..sound }.time().is_err());
            assert!(Latency { bisection: bad, ..sound }.time().is_err());
        }
        assert!(Latency { bytes: -1.0, ..sound }.time().is_err());
        assert!(Latency { startup: f64::NAN, ..sound }.time().is_err());
        assert!(Overlay { memory: -1.0 }.time(&sound).is_err());
        let unknown = Latency { link: f64::INFINITY, bisection: f64::INFINITY, ..sound };
        assert!(Overlay { memory: 1e9 }.time(&unknown).is_err());
        assert_eq!(Overlay { memory: 0.0 }.time(&sound).unwrap(), sound.time().unwrap());
    }
}
