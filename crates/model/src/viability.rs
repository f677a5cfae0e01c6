//! Whether compression pays.

use crate::{Error, Result, not_negative, positive};

/// A codec on some data. Speeds are those of the bytes before compression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compression {
    /// The share of the bytes that goes away (alpha), from 0 to below 1: a ratio of 2 is 0.5.
    pub saved: f64,
    /// Bytes compressed in a second.
    pub compress: f64,
    /// Bytes brought back in a second.
    pub decompress: f64,
}

impl Compression {
    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.saved) {
            return Err(Error(format!("compression saves a share from 0 to below 1, not {}", self.saved)));
        }
        positive(self.compress, "the speed of compression")?;
        positive(self.decompress, "the speed of decompression")?;
        Ok(())
    }

    /// The rate of the store below which compression shortens one checkpoint and one restart together, when they wait for it: the
    /// compression paper, eq. 1, from c/r_c + 2 (1-a) c/r + c/r_d < 2 c/r. (As printed the reduced form is turned round:
    /// it is the store's rate that must be the smaller.)
    pub fn break_even(&self) -> Result<f64> {
        self.break_even_of(1.0)
    }

    /// The same with so many checkpoints for each restart, as section V.C of the paper has it: from
    /// n c/r_c + (n+1) (1-a) c/r + c/r_d < (n+1) c/r.
    pub fn break_even_of(&self, checkpoints: f64) -> Result<f64> {
        self.check()?;
        let n = not_negative(checkpoints, "the number of checkpoints for each restart")?;
        Ok((n + 1.0) * self.saved / (n / self.compress + 1.0 / self.decompress))
    }

    /// The rate of the store below which compression shortens a commit that overlaps with it, whether anybody waits for it or not: the
    /// speed of compression, if anything is saved at all.
    pub fn break_even_overlapped(&self) -> Result<f64> {
        self.check()?;
        Ok(if self.saved > 0.0 { self.compress } else { 0.0 })
    }

    /// Seconds to commit so many bytes to a store of that rate when writing waits for compression (the compression paper, III).
    pub fn waited(&self, bytes: f64, store: f64) -> Result<f64> {
        self.check()?;
        Ok(bytes / self.compress + self.stored_time(bytes, store)?)
    }

    /// Seconds to bring them back when decompression waits for reading.
    pub fn waited_back(&self, bytes: f64, store: f64) -> Result<f64> {
        self.check()?;
        Ok(bytes / self.decompress + self.stored_time(bytes, store)?)
    }

    fn stored_time(&self, bytes: f64, store: f64) -> Result<f64> {
        Ok(bytes * (1.0 - self.saved) / positive(store, "the bandwidth of the store")?)
    }

    /// Seconds to commit so many bytes to a store of that rate when compressing and writing overlap: the slower counts.
    pub fn overlapped(&self, bytes: f64, store: f64) -> Result<f64> {
        self.check()?;
        Ok((bytes / self.compress).max(self.stored_time(bytes, store)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_break_even_both_ways_take_as_long() {
        let codec = Compression { saved: 0.6, compress: 500e6, decompress: 1500e6 };
        let (bytes, rate) = (1e9, codec.break_even().unwrap());
        let with = bytes / codec.compress + 2.0 * 0.4 * bytes / rate + bytes / codec.decompress;
        assert!((with / (2.0 * bytes / rate) - 1.0).abs() < 1e-12);
        assert!((rate / 450e6 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn restarts_weigh_what_decompression_costs() {
        let codec = Compression { saved: 0.5, compress: 100e6, decompress: 400e6 };
        for n in [0.0, 1.0, 3.0, 100.0] {
            let rate = codec.break_even_of(n).unwrap();
            let (raw, packed) = ((n + 1.0) / rate, (n + 1.0) * 0.5 / rate);
            let with = n / codec.compress + packed + 1.0 / codec.decompress;
            assert!((with / raw - 1.0).abs() < 1e-12, "{n}");
        }
        assert_eq!(codec.break_even_of(1.0).unwrap(), codec.break_even().unwrap());
        assert!(codec.break_even_of(100.0).unwrap() < codec.break_even_of(1.0).unwrap());
        assert!(codec.break_even_of(-1.0).is_err());
        assert_eq!(codec.break_even_overlapped().unwrap(), 100e6);
    }

    #[test]
    fn overlapped_stages_cost_the_slower() {
        let codec = Compression { saved: 0.5, compress: 1e9, decompress: 1e9 };
        assert_eq!(codec.overlapped(1e9, 0.1e9).unwrap(), 5.0);
        assert_eq!(codec.overlapped(1e9, 10e9).unwrap(), 1.0);
    }

    #[test]
    fn nonsense_is_refused() {
        let sound = Compression { saved: 0.5, compress: 1e9, decompress: 1e9 };
        for saved in [-0.1, 1.0, f64::NAN] {
            assert!(Compression { saved, ..sound }.break_even().is_err());
        }
        assert!(Compression { compress: 0.0, ..sound }.break_even().is_err());
        assert!(sound.overlapped(1.0, f64::NAN).is_err());
    }
}
