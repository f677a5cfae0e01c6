//! What is kept of how new bytes were coded: for the next version of the member, and for those who want to know why.

use stdchk_codec::{Choice, Pace, Prefer, Preference, Trial};
use stdchk_object::member::{Coded, Member, Preferred, Way};

use super::assembly::RunCost;

const PICO: f64 = 1e12;

/// The codings of runs of which so many bytes belong to a member, the most frequent first.
pub fn ways<'r>(runs: impl Iterator<Item = (&'r RunCost, u64)>) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for (run, bytes) in runs {
        let stored = (u128::from(run.stored) * u128::from(bytes)).div_ceil(u128::from(run.raw)) as u64;
        let cost = (f64::from(run.seconds) * PICO / f64::from(run.raw)) as u64;
        let Choice { coding, level } = run.choice;
        let level = level as i8;
        match ways.iter_mut().find(|way| (way.coding, way.level) == (coding, level)) {
            Some(way) => {
                way.raw += bytes;
                way.stored += stored;
                // The mean over all runs, by their bytes.
                way.cost = (way.cost as f64 + (cost as f64 - way.cost as f64) * bytes as f64 / way.raw as f64)
                    as u64;
            }
            None => ways.push(Way { coding, level, raw: bytes, stored, cost }),
        }
    }
    ways.sort_by_key(|way| std::cmp::Reverse(way.raw));
    ways
}

/// The account of a member; none where nothing is new.
pub fn coded(preference: Preference, pace: &Option<Pace>, ways: Vec<Way>) -> Option<Coded> {
    let pace = pace.as_ref().filter(|_| !ways.is_empty())?;
    let preferred = match preference {
        Preference::Fixed(..) => Preferred::Given,
        Preference::Auto(Prefer::Time) => Preferred::Time,
        Preference::Auto(Prefer::Balanced) => Preferred::Balance,
        Preference::Auto(Prefer::Space) => Preferred::Space,
    };
    Some(Coded {
        preferred,
        threads: pace.threads as u32,
        look: (pace.look * PICO) as u64,
        store: if pace.store_known { (pace.store * PICO) as u64 } else { 0 },
        ways,
    })
}

/// What the account of the version before says about codings.
pub fn trials(coded: &Coded) -> Vec<Trial> {
    let compressed = coded.ways.iter().filter(|way| !way.coding.is_none() && way.raw > 0);
    compressed
        .map(|way| Trial {
            choice: Choice { coding: way.coding, level: i32::from(way.level) },
            left: way.stored as f64 / way.raw as f64,
            cost: way.cost as f64 / PICO,
            // That is not kept; codecs take about half as long for the way back.
            back: way.cost as f64 / PICO / 2.0,
        })
        .collect()
}

/// Seconds that the store needed for a byte, as the member with the most new bytes met it.
pub fn store_speed(members: &[Member]) -> Option<f64> {
    let measured = members.iter().filter_map(|member| member.body.content()?.coded.as_ref());
    let by_bytes = |coded: &&Coded| coded.ways.iter().map(|way| way.stored).sum::<u64>();
    let telling = measured.filter(|coded| coded.store > 0).max_by_key(by_bytes)?;
    Some(telling.store as f64 / PICO)
}
