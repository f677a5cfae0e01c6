//! Why the new bytes of a member were coded as they were, from what was measured then.

use stdchk_codec::{Pace, Trial};
use stdchk_object::member::{Coded, Way};

const PICO: f64 = 1e-12;

/// What the commit of a member's new bytes took, by the model of `docs/CODECS.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Bytes a second that all threads together looked at, counting only new ones; the old ones around them cost what they cost.
    pub look_rate: f64,
    /// Bytes a second of the store, where that was measured.
    pub store_rate: Option<f64>,
    /// Seconds that the member would have taken if nothing had been compressed.
    pub raw_s: f64,
    /// Seconds that it took as it was coded.
    pub coded_s: f64,
    /// Whether what was left of it waited for the store, rather than for work.
    pub store_bound: bool,
}

/// Explains the account of a member.
pub fn explain(coded: &Coded) -> Explanation {
    let look = coded.look as f64 * PICO;
    let store = (coded.store > 0).then_some(coded.store as f64 * PICO);
    let pace = Pace {
        threads: f64::from(coded.threads.max(1)),
        look,
        store: store.unwrap_or(0.0),
        store_known: store.is_some(),
        little: false,
        restarts: 0.0,
    };
    let raw: u64 = coded.ways.iter().map(|way| way.raw).sum();
    let mean = |of: fn(&Way) -> f64| coded.ways.iter().map(of).sum::<f64>() / raw.max(1) as f64;
    let whole = Trial {
        left: mean(|way| way.stored as f64),
        cost: mean(|way| way.raw as f64 * way.cost as f64 * PICO),
        ..Trial::NONE
    };
    let seconds = |trial: &Trial| trial.commit_time(&pace) * raw as f64;
    Explanation {
        look_rate: pace.threads / look.max(PICO),
        store_rate: store.map(|store| 1.0 / store),
        raw_s: seconds(&Trial::NONE),
        coded_s: seconds(&whole),
        store_bound: whole.commit_time(&pace) <= whole.left * pace.store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_object::member::Preferred;
    use stdchk_object::pack::Coding;

    #[test]
    fn times_are_those_of_the_slower_stage() {
        let way = |raw, stored, cost| Way { coding: Coding::NONE, level: 0, raw, stored, cost };
        // 3 GB of which 2 are halved at 1 GB/s by each of two threads, before a store of 0.5 GB/s.
        let coded = Coded {
            preferred: Preferred::Time,
            threads: 2,
            look: 500,
            store: 2000,
            ways: vec![way(2_000_000_000, 1_000_000_000, 1000), way(1_000_000_000, 1_000_000_000, 0)],
        };
        let why = explain(&coded);
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(why.raw_s, 6.0) && near(why.coded_s, 4.0) && why.store_bound, "{why:?}");
        assert!(near(why.look_rate, 4e9) && near(why.store_rate.unwrap(), 5e8));
        let why = explain(&Coded { store: 0, ..coded });
        assert!(
            why.store_rate.is_none() && near(why.raw_s, 0.75) && near(why.coded_s, 1.75) && !why.store_bound
        );
    }
}
