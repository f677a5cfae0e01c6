//! Choosing a coding by what it does to the data at hand, and by what the commit waits for.
//!
//! Some slices of a run are tried with a few codings. Each trial says how much would be left and how long it takes;
//! the pace of the save says what looking at the bytes and storing them costs. From both follows how long the commit would take
//! (docs/CODECS.md), and the preference says how much longer it may take for the sake of space. A trial serves
//! the runs that follow, and is repeated now and then, because data changes within a member.

use stdchk_object::Result;
use stdchk_object::pack::{Codec, Coding};

use crate::{Press, delta};

/// What matters more where time and space are at odds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Compress only where that does not make the commit longer.
    Time,
    /// Let the commit take a fourth longer for the sake of space.
    #[default]
    Balanced,
    /// As small as can be, whatever it costs.
    Space,
}

impl Prefer {
    /// How many times as long as the fastest way the commit may take.
    fn patience(self) -> f64 {
        match self {
            // Estimates are not exact: what is as good as equal counts as equal.
            Prefer::Time => 1.03,
            Prefer::Balanced => 1.25,
            Prefer::Space => f64::INFINITY,
        }
    }

    fn limit(self, raw_len: usize) -> usize {
        raw_len * if self == Prefer::Space { WORTH_SPACE } else { WORTH } / 256
    }
}

/// What the user wants of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Look at the data.
    Auto(Prefer),
    /// Always this, with the zstd level; runs that do not shrink are stored as they are.
    Fixed(Coding, i32),
}

impl Preference {
    /// Bytes below which a compressed run is kept; otherwise it is stored as it is.
    pub fn limit(self, raw_len: usize) -> usize {
        match self {
            Preference::Auto(prefer) => prefer.limit(raw_len),
            Preference::Fixed(..) => raw_len * WORTH_SPACE / 256,
        }
    }
}

/// What a byte of new data costs apart from its compression, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Threads that look at data and compress it.
    pub threads: f64,
    /// What one thread needs to read it, hash it and compare it, together with all the old bytes that come with it.
    pub look: f64,
    /// What the store needs for it.
    pub store: f64,
    /// Whether that was measured, or is a guess.
    pub store_known: bool,
    /// Whether so little was stored until now that its compression takes no time worth mentioning.
    pub little: bool,
    /// How many restores come to a save: what they take counts with it.
    pub restarts: f64,
}

/// A coding, and the level of its compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How runs are stored.
    pub coding: Coding,
    /// The level of zstd.
    pub level: i32,
}

impl Choice {
    /// Stored as it is.
    pub const NONE: Choice = Choice { coding: Coding::NONE, level: 0 };
}

/// What a coding did to a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The coding.
    pub choice: Choice,
    /// Bytes left of each byte.
    pub left: f64,
    /// Seconds that one thread needed for each byte.
    pub cost: f64,
    /// Seconds that one thread needs to bring each byte back.
    pub back: f64,
}

/// Seconds that one thread needs to check a byte that was read.
const CHECK_COST: f64 = 0.3e-9;

impl Trial {
    /// Nothing is done to the bytes.
    pub const NONE: Trial = Trial { choice: Choice::NONE, left: 1.0, cost: 0.0, back: 0.0 };

    /// Seconds for each new byte that are waited for: at the commit, and at as many restores as come to it. This is the viability paper's
    /// equation 1, for stages that overlap and restarts that are fewer than checkpoints.
    pub fn time(&self, pace: &Pace) -> f64 {
        self.commit_time(pace) + pace.restarts * self.restore_time(pace)
    }

    /// Seconds that a restore takes for each byte. The store is taken to give as fast as it takes.
    pub fn restore_time(&self, pace: &Pace) -> f64 {
        let work = (CHECK_COST + self.back) / pace.threads;
        work.max(self.left * pace.store)
    }

    /// Seconds that the commit takes for each new byte: looking and compressing on all threads, while the store takes what is
    /// left. The slower of the two counts.
    pub fn commit_time(&self, pace: &Pace) -> f64 {
        let work = (pace.look + self.cost) / pace.threads;
        work.max(self.left * pace.store)
    }
}

/// Seconds that reading and checking the base of a byte takes at least, and what a delta leaves of it at best: only for deciding
/// whether to try.
const DELTA_COST: f64 = 0.5e-9;
const DELTA_LEFT: f64 = 0.1;

/// Runs for which a trial serves, at first and at most.
const KEPT_MIN: u32 = 12;
const KEPT_MAX: u32 = 96;
/// Bytes of each of the slices that are tried.
const SLICE: usize = 8192;
const SLICES: usize = 4;
/// A run must shrink below this many 256ths to be worth reading it whole later on; and where space is what is asked for.
const WORTH: usize = 236;
const WORTH_SPACE: usize = 252;
/// Bits of a byte, if single bytes were all that is seen, from which on there is nothing to be found.
const NOISE_BITS: f64 = 7.9;

/// Decides for the runs of one member, one after the other.
#[derive(Clone)]
pub struct Advisor {
    preference: Preference,
    trials: Vec<Trial>,
    /// How many more runs the trials serve, and for how many the next ones will.
    left: u32,
    keep: u32,
    /// How much longer real runs take than trials say.
    drag: f64,
    /// Seconds that trials took.
    spent: f64,
    /// Whether anything is known of the member.
    is_new: bool,
}

impl Advisor {
    /// An advisor for one member.
    pub fn new(preference: Preference) -> Advisor {
        Advisor {
            preference,
            trials: Vec::new(),
            left: 0,
            keep: KEPT_MIN,
            drag: 1.0,
            spent: 0.0,
            is_new: true,
        }
    }

    /// Which preference asks for trials now; others go on with what is known meanwhile. Where not only space counts, all trials together
    /// may take no more than `allowed` seconds.
    pub fn wants_trial(&mut self, allowed: f64) -> Option<Prefer> {
        let Preference::Auto(prefer) = self.preference else { return None };
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        (prefer == Prefer::Space || self.spent <= allowed).then(|| {
            self.left = self.keep;
            prefer
        })
    }

    /// Whether nothing was tried yet, and nothing is known from before: then a trial is worth waiting for.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// So much time was spent on trials.
    pub fn spend(&mut self, seconds: f64) {
        self.spent += seconds;
    }

    /// Goes on with what another one, begun as a copy of this one, has tried in so many seconds.
    pub fn take_over(&mut self, other: &Advisor, seconds: f64) {
        *self = Advisor { spent: self.spent + seconds, ..other.clone() };
    }

    /// Takes what was tried.
    pub fn tried(&mut self, trials: Vec<Trial>) {
        let names = |trials: &[Trial]| {
            let of_bytes = trials.iter().map(|trial| trial.choice).filter(|choice| !choice.coding.delta);
            of_bytes.collect::<Vec<_>>()
        };
        let alike = names(&trials) == names(&self.trials);
        self.keep = match self.preference {
            // Where only space counts every run is worth its own trial.
            Preference::Auto(Prefer::Space) => 0,
            _ if alike => (self.keep * 2).min(KEPT_MAX),
            _ => KEPT_MIN,
        };
        self.left = self.keep;
        self.drag = 1.0;
        self.trials = trials;
        self.is_new = false;
    }

    /// How to store the next run; `has_base` where most of it replaces something.
    pub fn choose(&self, pace: &Pace, has_base: bool) -> Choice {
        let prefer = match self.preference {
            Preference::Fixed(coding, level) if has_base => return Choice { coding, level },
            Preference::Fixed(coding, level) => return Choice { coding: coding.of_bytes(), level },
            Preference::Auto(prefer) => prefer,
        };
        let bearable = self.trials.iter().filter(|trial| self.is_bearable(trial, prefer, pace));
        let possible = bearable.filter(|trial| has_base || !trial.choice.coding.delta);
        let smallest = possible.min_by(|a, b| a.left.total_cmp(&b.left));
        smallest.map_or(Choice::NONE, |trial| trial.choice)
    }

    /// Whether neither the commit nor commit and restores together take longer than the preference allows.
    fn is_bearable(&self, trial: &Trial, prefer: Prefer, pace: &Pace) -> bool {
        // Where everything is bearable it does not matter what is fastest, and that may be nothing at all.
        if pace.little || prefer == Prefer::Space {
            return true;
        }
        let dragged = |trial: &Trial| Trial { cost: trial.cost * self.drag, ..*trial };
        [Trial::commit_time, Trial::time].into_iter().all(|time| {
            let all = self.trials.iter().map(|other| time(&dragged(other), pace));
            time(&dragged(trial), pace) <= all.fold(time(&Trial::NONE, pace), f64::min) * prefer.patience()
        })
    }

    /// Whether it is worth trying what a delta gives: even one that leaves little has to be bearable.
    pub fn may_want_delta(&self, pace: &Pace) -> bool {
        let Preference::Auto(prefer) = self.preference else { return false };
        let cheapest = self.trials.iter().map(|trial| trial.cost).fold(f64::INFINITY, f64::min);
        let cost = if cheapest.is_finite() { cheapest + DELTA_COST } else { 2.0 * DELTA_COST };
        let hoped = Trial { left: DELTA_LEFT, cost, back: DELTA_COST, ..Trial::NONE };
        self.is_bearable(&hoped, prefer, pace)
    }

    /// Adds what was tried of deltas.
    pub fn tried_delta(&mut self, trials: Vec<Trial>) {
        self.trials.extend(trials);
    }

    /// What was asked for.
    pub fn preference(&self) -> Preference {
        self.preference
    }

    /// Goes on from what was found for the same member before. The first trial that finds the same serves longer; a delta that paid is
    /// gone on with at once, because trying it costs reading what it is subtracted from.
    pub fn remember(&mut self, trials: Vec<Trial>) {
        let delta_paid = trials.iter().any(|trial| trial.choice.coding.delta);
        self.left = if delta_paid { KEPT_MIN / 2 } else { 0 };
        self.is_new = trials.is_empty();
        self.trials = trials;
    }

    /// Tells how a run went: whether it shrank as it should, and the seconds that each byte took. A surprise makes it look at
    /// the data again.
    pub fn learn(&mut self, choice: Choice, shrank: bool, cost: f64) {
        if !shrank {
            // Until it was looked at again nothing is known.
            self.left = 0;
            self.keep = KEPT_MIN;
            self.trials.clear();
        } else if let Some(trial) = self.trials.iter().find(|trial| trial.choice == choice)
            && trial.cost > 0.0
        {
            let drag = (cost / trial.cost).clamp(0.1, 10.0);
            self.drag += (drag - self.drag) / 4.0;
        }
    }
}

/// Slices spread over the run, aligned so that elements stay whole.
fn slices(raw: &[u8]) -> Vec<u8> {
    if raw.len() <= SLICE * SLICES {
        return raw.to_vec();
    }
    let step = (raw.len() - SLICE) / (SLICES - 1) / 8 * 8;
    (0..SLICES).flat_map(|i| raw[i * step..i * step + SLICE].iter().copied()).collect()
}

/// Tries codings on a sample of a run; those that would be worth it. `clock` tells seconds from whenever on.
pub fn try_codings(
    prefer: Prefer,
    press: &mut Press,
    raw: &[u8],
    clock: &dyn Fn() -> f64,
) -> Result<Vec<Trial>> {
    let sample = slices(raw);
    let limit = prefer.limit(sample.len());
    let tried = candidates(prefer, &sample).into_iter();
    let trials = tried.map(|choice| try_one(choice, press, &sample, limit, clock));
    trials.filter_map(Result::transpose).collect()
}

/// Compresses a sample and brings it back; nothing where it does not shrink enough.
fn try_one(
    choice: Choice,
    press: &mut Press,
    sample: &[u8],
    limit: usize,
    clock: &dyn Fn() -> f64,
) -> Result<Option<Trial>> {
    let begun = clock();
    let Some(packed) = press.compress(choice.coding, choice.level, sample, limit)? else { return Ok(None) };
    let compressed = clock();
    let packed = packed.to_vec();
    let copied = clock();
    press.decompress(choice.coding, &packed, sample.len(), &mut Vec::new())?;
    let bytes = sample.len() as f64;
    let (cost, back) = ((compressed - begun) / bytes, (clock() - copied) / bytes);
    Ok(Some(Trial { choice, left: packed.len() as f64 / bytes, cost, back }))
}

/// Tries what is left when the old bytes of a run are subtracted first, by the width that leaves least. `read_cost` is what
/// reading the old bytes took, in seconds for each. Nothing where it would not be worth it.
pub fn try_delta(
    prefer: Prefer,
    press: &mut Press,
    raw: &[u8],
    old: &[u8],
    read_cost: f64,
    clock: &dyn Fn() -> f64,
) -> Result<Vec<Trial>> {
    let (sample, old) = (slices(raw), slices(old));
    let mut differences = Vec::new();
    let mut best: Option<(u8, f64)> = None;
    for (planes, at) in DELTA_WIDTHS {
        delta::subtract(usize::from(planes.max(1)), &sample, &old, &mut differences);
        let bits = plane_bits(&differences)[at];
        // Wider elements have to leave clearly less: planes take time, and where much is the same bytes say that as well.
        if best.is_none_or(|(_, least)| bits < least * CLEARLY) {
            best = Some((planes, bits));
        }
    }
    let Some((planes, _)) = best.filter(|&(_, bits)| bits < NOISE_BITS) else { return Ok(Vec::new()) };
    let level = if prefer == Prefer::Space { SPACE_LEVEL } else { 1 };
    let begun = clock();
    delta::subtract(usize::from(planes.max(1)), &sample, &old, &mut differences);
    let subtracting = (clock() - begun) / sample.len() as f64;
    let mut trials = Vec::new();
    for (codec, level) in [(Codec::Lz4, 0), (Codec::Zstd, level)] {
        let choice = Choice { coding: Coding::new(codec, planes).of_delta(), level };
        if let Some(trial) = try_one(choice, press, &differences, prefer.limit(sample.len()), clock)? {
            // Both ways the old bytes are read, and subtracted or added.
            let more = subtracting + read_cost;
            trials.push(Trial { cost: trial.cost + more, back: trial.back + more, ..trial });
        }
    }
    Ok(trials)
}

/// Bytes of elements that are subtracted and split into planes, none for single bytes, and where [`plane_bits`] has them.
const DELTA_WIDTHS: [(u8, usize); 4] = [(0, 0), (8, 3), (4, 2), (2, 1)];
/// How much less a width must leave than another to be preferred to it.
const CLEARLY: f64 = 0.97;

/// What is worth trying: LZ4 finds what repeats; where single bytes say enough, an entropy coder too, after the planes that make
/// them say most.
fn candidates(prefer: Prefer, sample: &[u8]) -> Vec<Choice> {
    let widths = WIDTHS.into_iter().zip(plane_bits(sample));
    let narrower = |best: (u8, f64), wide: (u8, f64)| if wide.1 < best.1 * LESS { wide } else { best };
    let (planes, best) = widths.reduce(narrower).expect("widths");
    let choice = |codec, planes, level| Choice { coding: Coding::new(codec, planes), level };
    let mut candidates = vec![choice(Codec::Lz4, 0, 0)];
    if best < NOISE_BITS {
        candidates.push(choice(Codec::Zstd, 0, 1));
        if planes > 0 {
            candidates.push(choice(Codec::Lz4, planes, 0));
            candidates.push(choice(Codec::Zstd, planes, 1));
        }
        if prefer == Prefer::Space {
            WIDTHS.into_iter().for_each(|planes| candidates.push(choice(Codec::Zstd, planes, SPACE_LEVEL)));
        }
    }
    candidates
}

/// The level of zstd where space is all that counts: beyond it minutes buy little.
const SPACE_LEVEL: i32 = 9;
/// Widths of elements, zero for no planes.
const WIDTHS: [u8; 4] = [0, 2, 4, 8];
/// How much less a wider element must leave than a narrower one to be preferred: twice the width always leaves as little, by chance less.
const LESS: f64 = 0.995;

/// Bits of a byte that are left when every plane is coded for itself, for each of the widths.
fn plane_bits(sample: &[u8]) -> [f64; 4] {
    let mut counts = [[0u32; 256]; 8];
    for element in sample.as_chunks::<8>().0 {
        element.iter().zip(&mut counts).for_each(|(&byte, counts)| counts[usize::from(byte)] += 1);
    }
    WIDTHS.map(|width| {
        let width = usize::from(width.max(1));
        let plane = |plane: usize| {
            let mut sum = [0u32; 256];
            for counts in counts.iter().skip(plane).step_by(width) {
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            entropy(&sum)
        };
        (0..width).map(plane).sum::<f64>() / width as f64
    })
}

/// Bits of a symbol that comes as often as counted. Few symbols seem to have fewer bits than many of the same kind have, which is made up for
/// (Miller 1955): otherwise the widest elements, of which there are the fewest, would always seem best.
fn entropy(counts: &[u32; 256]) -> f64 {
    let total = f64::from(counts.iter().sum::<u32>().max(1));
    let bits = |&count: &u32| f64::from(count) / total * (total / f64::from(count)).log2();
    let seen = counts.iter().filter(|count| **count > 0);
    let missed = (seen.clone().count() as f64 - 1.0).max(0.0) / (2.0 * total * std::f64::consts::LN_2);
    seen.map(bits).sum::<f64>() + missed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn random() -> impl FnMut() -> u32 {
        let mut x = 1u64;
        move || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as u32
        }
    }

    fn advice(prefer: Prefer, raw: &[u8], pace: &Pace) -> Choice {
        let mut advisor = Advisor::new(Preference::Auto(prefer));
        assert_eq!(advisor.wants_trial(1.0), Some(prefer));
        let begun = Instant::now();
        let clock = || begun.elapsed().as_secs_f64();
        advisor.tried(try_codings(prefer, &mut Press::new(), raw, &clock).unwrap());
        // Where only space counts every run is tried.
        assert_eq!(advisor.wants_trial(1.0).is_some(), prefer == Prefer::Space);
        advisor.choose(pace, false)
    }

    /// A store that is slower than any compressor, and one that is faster.
    const SLOW: Pace =
        Pace { threads: 2.0, look: 1e-9, store: 1e-3, store_known: true, little: false, restarts: 0.0 };
    /// Nothing costs anything.
    const NOTHING: Pace =
        Pace { threads: 1.0, look: 0.0, store: 0.0, store_known: false, little: true, restarts: 0.0 };
    const FAST: Pace =
        Pace { threads: 2.0, look: 1e-9, store: 1e-15, store_known: true, little: false, restarts: 0.0 };

    #[test]
    fn noise_is_left_alone_and_text_is_not() {
        let mut next = random();
        let noise: Vec<u8> = (0..65536).flat_map(|_| (next() >> 3).to_le_bytes()).collect();
        let noise: Vec<u8> = noise.chunks_exact(4).flat_map(|word| word[..3].to_vec()).collect();
        assert_eq!(advice(Prefer::Space, &noise, &SLOW), Choice::NONE);
        let text: Vec<u8> = (0..20_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        assert_ne!(advice(Prefer::Time, &text, &SLOW), Choice::NONE);
        let floats: Vec<u8> = (0..65536)
            .flat_map(|i| (1.0 + f64::from(next()) * 1e-14 + f64::from(i) * 1e-9).to_le_bytes())
            .collect();
        assert_eq!(advice(Prefer::Balanced, &floats, &SLOW).coding.planes, 8);
    }

    #[test]
    fn weights_compress_by_what_their_exponents_give() {
        let mut next = random();
        // About normal: the sum of twelve that are even.
        let mut normal = || (0..12).map(|_| f64::from(next()) / f64::from(1u32 << 31)).sum::<f64>() - 6.0;
        let weights: Vec<u8> = (0..65536).flat_map(|_| ((normal() * 0.02) as f32).to_le_bytes()).collect();
        for prefer in [Prefer::Time, Prefer::Balanced, Prefer::Space] {
            let choice = advice(prefer, &weights, &SLOW);
            assert_eq!(choice.coding.planes, 4, "{prefer:?}: {choice:?}");
            let mut press = Press::new();
            let packed = press.compress(choice.coding, choice.level, &weights, weights.len()).unwrap();
            // The fraction, 23 of 32 bits, is noise, and so is the sign.
            let left = packed.unwrap().len() as f64 / weights.len() as f64;
            assert!((0.80..0.86).contains(&left), "{left}");
        }
    }

    #[test]
    fn a_fast_store_is_not_kept_waiting_unless_space_is_asked_for() {
        let text: Vec<u8> = (0..20_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        assert_eq!(advice(Prefer::Time, &text, &FAST), Choice::NONE);
        assert_ne!(advice(Prefer::Space, &text, &FAST), Choice::NONE);
        assert_ne!(advice(Prefer::Time, &text, &Pace { little: true, ..FAST }), Choice::NONE);
        assert_ne!(advice(Prefer::Balanced, &text, &NOTHING), Choice::NONE);
    }

    #[test]
    fn of_two_ways_the_smaller_is_taken_as_long_as_it_is_bearable() {
        let way = |codec, left, cost| Trial {
            choice: Choice { coding: Coding::new(codec, 0), level: 1 },
            left,
            cost,
            back: cost / 2.0,
        };
        let chosen = |prefer, store| {
            let mut advisor = Advisor::new(Preference::Auto(prefer));
            advisor.tried(vec![way(Codec::Lz4, 0.6, 1.0), way(Codec::Zstd, 0.4, 3.0)]);
            let pace =
                Pace { threads: 1.0, look: 1.0, store, store_known: true, little: false, restarts: 0.0 };
            advisor.choose(&pace, false).coding.codec
        };
        // Raw takes 1, LZ4 2, zstd 4.
        assert_eq!(chosen(Prefer::Time, 0.5), Codec::None);
        assert_eq!(chosen(Prefer::Balanced, 0.5), Codec::None);
        assert_eq!(chosen(Prefer::Space, 0.5), Codec::Zstd);
        // Raw takes 2, as LZ4 does.
        assert_eq!(chosen(Prefer::Time, 2.0), Codec::Lz4);
        // Raw takes 5.4, LZ4 3.24, zstd 4.
        assert_eq!(chosen(Prefer::Time, 5.4), Codec::Lz4);
        assert_eq!(chosen(Prefer::Balanced, 5.4), Codec::Zstd);
        // Raw takes 10, LZ4 6, zstd 4.
        assert_eq!(chosen(Prefer::Time, 10.0), Codec::Zstd);
    }

    #[test]
    fn restores_count_as_often_as_they_come() {
        // The store takes and gives a byte a second; the coding is fast one way and slow the other.
        let choice = Choice { coding: Coding::new(Codec::Zstd, 0), level: 1 };
        let mut advisor = Advisor::new(Preference::Auto(Prefer::Time));
        advisor.tried(vec![Trial { choice, left: 0.5, cost: 0.5, back: 3.0 }]);
        let pace = |restarts| Pace {
            threads: 1.0,
            look: 0.0,
            store: 1.0,
            store_known: true,
            little: false,
            restarts,
        };
        assert_eq!(advisor.choose(&pace(0.0), false), choice);
        assert_eq!(advisor.choose(&pace(0.1), false), choice);
        assert_eq!(advisor.choose(&pace(1.0), false), Choice::NONE);
        // What restores gain does not make up for a commit that takes longer.
        advisor.tried(vec![Trial { choice, left: 0.2, cost: 1.3, back: 0.2 }]);
        assert_eq!(advisor.choose(&pace(1.0), false), Choice::NONE);
        // With as many restores as saves and stages side by side, equation 1 for these speeds.
        let trial = Trial { choice, left: 0.5, cost: 0.5, back: 0.5 };
        assert!(trial.time(&pace(1.0)) < Trial::NONE.time(&pace(1.0)));
    }

    #[test]
    fn a_delta_is_tried_where_it_may_pay_and_taken_where_it_does() {
        let mut next = random();
        let old: Vec<u8> = (0..65536).flat_map(|_| (f64::from(next()) * 1e-3).to_le_bytes()).collect();
        let changed = |element: &[u8; 8]| (u64::from_le_bytes(*element) + 1000).to_le_bytes();
        let new: Vec<u8> = old.as_chunks::<8>().0.iter().flat_map(changed).collect();
        let begun = Instant::now();
        let clock = || begun.elapsed().as_secs_f64();
        let mut advisor = Advisor::new(Preference::Auto(Prefer::Balanced));
        advisor.tried(try_codings(Prefer::Balanced, &mut Press::new(), &new, &clock).unwrap());
        assert!(!advisor.may_want_delta(&FAST) && advisor.may_want_delta(&SLOW));
        let trials = try_delta(Prefer::Balanced, &mut Press::new(), &new, &old, 1e-9, &clock).unwrap();
        assert!(trials.iter().any(|trial| trial.left < 0.05), "{trials:?}");
        advisor.tried_delta(trials);
        let coding = advisor.choose(&SLOW, true).coding;
        assert!(coding.delta && coding.planes == 8, "{coding}");
        assert!(!advisor.choose(&SLOW, false).coding.delta, "nothing to subtract from");
        let noise: Vec<u8> = (0..65536).flat_map(|_| (next() >> 3).to_le_bytes()).collect();
        let noise: Vec<u8> = noise.chunks_exact(4).flat_map(|word| word[..3].to_vec()).collect();
        let none = try_delta(Prefer::Space, &mut Press::new(), &noise, &new[..noise.len()], 0.0, &clock);
        assert_eq!(none.unwrap(), []);
        // Where parts are the same and parts are new, planes would only take time.
        let mut half = noise.clone();
        half.as_chunks_mut::<3000>().0.iter_mut().step_by(2).for_each(|part| part.fill_with(|| next() as u8));
        let trials = try_delta(Prefer::Balanced, &mut Press::new(), &half, &noise, 0.0, &clock).unwrap();
        assert!(trials.iter().all(|trial| trial.choice.coding.planes == 0 && trial.left < 0.6), "{trials:?}");
    }

    #[test]
    fn what_runs_take_corrects_what_trials_said() {
        let choice = Choice { coding: Coding::new(Codec::Zstd, 0), level: 1 };
        let mut advisor = Advisor::new(Preference::Auto(Prefer::Time));
        advisor.tried(vec![Trial { choice, left: 0.5, cost: 1.0, back: 0.5 }]);
        let pace =
            Pace { threads: 1.0, look: 0.0, store: 2.0, store_known: true, little: false, restarts: 0.0 };
        assert_eq!(advisor.choose(&pace, false), choice);
        (0..20).for_each(|_| advisor.learn(choice, true, 3.0));
        assert_eq!(advisor.choose(&pace, false), Choice::NONE);
        // What was slow once is not slow for ever.
        advisor.tried(vec![Trial { choice, left: 0.5, cost: 1.0, back: 0.5 }]);
        assert_eq!(advisor.choose(&pace, false), choice);
    }
}
