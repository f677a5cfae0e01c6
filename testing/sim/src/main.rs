//! `stdchk-sim [places|names] [BENEFACTORS ...]`: every benefactor also saves one gibibyte, in packs of 16 MiB, with two copies or in six shards of 4+2, with the
//! project's own placement; then one joins, and one is lost. And what checkpoints ask of a manager. Without arguments for 100, 1 000 and 10 000 of them;
//! 100000 takes half an hour.
#![forbid(unsafe_code)]

mod names;

use std::collections::HashMap;

use stdchk_kit::Random;
use stdchk_placement::{Benefactor, Epoch, weight_of};

const PACK: f64 = (16 << 20) as f64;
const PACKS_EACH: u64 = 64;
/// What a pool may do for the safety of packs: how many pieces of each there are, and what each is of the pack.
const SAFETIES: [Safety; 2] = [
    Safety { name: "2 copies", pieces: 2, part: 1.0, are_shards: false },
    Safety { name: "4+2", pieces: 6, part: 0.25, are_shards: true },
];
/// Benefactors that share a failure domain.
const RACK: u64 = 32;
/// Bytes that a benefactor pushes in a second while it repairs.
const PUSH_RATE: f64 = 100e6;
/// Stripe widths; none places each pack among all.
const STRIPES: [Option<usize>; 3] = [Some(8), Some(32), None];
/// What a benefactor may hold, as a multiple of its share.
const BOUND: f64 = 1.25;
/// And packs that it may hold beyond its share in any case: a pool that is nearly empty is balanced enough.
const SLACK: f64 = 4.0;
/// Comparisons of a key with a member that can be made in reasonable time.
const DRAWS_MAX: u64 = 40_000_000_000;
/// Moves below which their number says nothing.
const MOVES_TELLING: f64 = 30.0;

#[derive(Clone, Copy)]
struct Safety {
    name: &'static str,
    pieces: u8,
    part: f64,
    are_shards: bool,
}

impl Safety {
    /// How often all benefactors are compared for the packs of a writer.
    fn draws(self, stripe: Option<usize>) -> u64 {
        match (stripe, self.are_shards) {
            (Some(_), _) => 1,
            (None, false) => PACKS_EACH,
            (None, true) => PACKS_EACH * u64::from(self.pieces),
        }
    }
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let only = words.first().filter(|word| ["places", "names"].contains(&word.as_str())).cloned();
    words.drain(..usize::from(only.is_some()));
    let counts: Vec<u64> = words.iter().map(|text| text.parse().expect("a number")).collect();
    let counts = if counts.is_empty() { vec![100, 1000, 10_000] } else { counts };
    if only.as_deref() != Some("names") {
        places(&counts);
    }
    if only.as_deref() != Some("places")
        && let Err(error) = names::report(&counts)
    {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn places(counts: &[u64]) {
    println!(
        "| benefactors | safety | stripe | fullest over mean | the same, bounded | questions for a piece | joins: moved over optimum | lost: pushed over optimum | pushers | repair s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for &count in counts {
        for safety in SAFETIES {
            for stripe in STRIPES {
                report(count, safety, stripe);
            }
        }
    }
    println!();
}

/// A fourth lend twice as much as the others.
fn pool(count: u64) -> Epoch {
    let lend = |i: u64| if i.is_multiple_of(4) { 16 << 30 } else { 8 << 30 };
    let member = |i| Benefactor { id: i, weight: weight_of(lend(i)), domain: (i / RACK) as u32 };
    Epoch { number: 1, members: (0..count).map(member).collect() }
}

/// The packs of a writer.
struct Writer<'e> {
    epoch: &'e Epoch,
    stripe: Option<Epoch>,
    safety: Safety,
    key: u64,
}

impl<'e> Writer<'e> {
    fn new(epoch: &'e Epoch, safety: Safety, stripe: Option<usize>, key: u64) -> Writer<'e> {
        // Shards want as many benefactors as there are of them.
        let width = stripe.map(|width| width.max(safety.pieces.into()));
        Writer { epoch, stripe: width.map(|width| epoch.stripe(key, width)), safety, key }
    }

    /// The owners of a pack's pieces among those that take them.
    fn owners(&self, number: u64, mut takes: impl FnMut(&Benefactor) -> bool) -> Vec<u64> {
        let among = self.stripe.as_ref().unwrap_or(self.epoch);
        let key = self.key.wrapping_mul(0x9e37_79b9).wrapping_add(number);
        let mut takes = |member: usize| takes(&among.members[member]);
        let owners = match self.safety.are_shards {
            false => among.takers(key, self.safety.pieces.into(), takes),
            true => among
                .shard_takers(key, self.safety.pieces, |_, member| takes(member))
                .into_iter()
                .flatten()
                .collect(),
        };
        owners.into_iter().map(|owner| among.members[owner].id).collect()
    }
}

/// What everybody holds.
struct Load {
    held: Vec<u64>,
    total: u64,
    weights: f64,
    /// Questions that were asked for all packs.
    asked: u64,
}

impl Load {
    fn new(epoch: &Epoch) -> Load {
        let weights = epoch.members.iter().map(|member| f64::from(member.weight)).sum();
        Load { held: vec![0; epoch.members.len()], total: 0, weights, asked: 0 }
    }

    /// Whether one holds so much more than its share.
    fn exceeds(&self, member: &Benefactor, bound: f64) -> bool {
        let share = (self.total + 1) as f64 * f64::from(member.weight) / self.weights;
        (self.held[member.id as usize] + 1) as f64 > (bound * share).max(share + SLACK)
    }

    fn place(&mut self, writer: &Writer, number: u64, bound: Option<f64>) -> Vec<u64> {
        let mut asked = 0;
        let takes = |member: &Benefactor| {
            asked += 1;
            bound.is_none_or(|bound| !self.exceeds(member, bound))
        };
        let mut owners = writer.owners(number, takes);
        if owners.len() < usize::from(writer.safety.pieces) {
            // A stripe that is full throughout widens.
            owners = writer.owners(number, |_| true);
        }
        owners.iter().for_each(|&owner| self.held[owner as usize] += 1);
        self.total += owners.len() as u64;
        self.asked += asked;
        owners
    }

    fn fullest_over_mean(&self, epoch: &Epoch) -> f64 {
        let filled = |(member, held): (&Benefactor, &u64)| *held as f64 / f64::from(member.weight);
        let fullest = epoch.members.iter().zip(&self.held).map(filled).fold(0.0, f64::max);
        fullest / (self.total as f64 / self.weights)
    }
}

fn report(count: u64, safety: Safety, stripe: Option<usize>) {
    let before = pool(count);
    let name = stripe.map_or("none".to_owned(), |width| width.to_string());
    let draws = count * count * safety.draws(stripe);
    let title = format!("{count} | {} | {name}", safety.name);
    if draws > DRAWS_MAX {
        println!("| {title} | not computed: every pack would be compared with everybody | | | | | | |");
        return;
    }
    let mut random = Random::new(count);
    let keys: Vec<u64> = (0..count).map(|_| random.number()).collect();
    let lost = 1;
    let (mut free, mut bounded) = (Load::new(&before), Load::new(&before));
    let mut of_lost = Vec::new();
    // All save at once: pack by pack, not writer by writer.
    let writers: Vec<Writer> = keys.iter().map(|&key| Writer::new(&before, safety, stripe, key)).collect();
    for number in 0..PACKS_EACH {
        for writer in &writers {
            bounded.place(writer, number, Some(BOUND));
            let owners = free.place(writer, number, None);
            if owners.contains(&lost) {
                of_lost.push((writer.key, number, owners));
            }
        }
    }
    let (pushed, pushers, most) = repair(&before, safety, stripe, lost, &of_lost);
    let joins = joins(&before, safety, stripe, &keys, free.weights);
    println!(
        "| {title} | {:.2} | {:.2} | {:.2} | {} | {:.2} | {pushers} | {:.1} |",
        free.fullest_over_mean(&before),
        bounded.fullest_over_mean(&before),
        bounded.asked as f64 / (count * PACKS_EACH * u64::from(safety.pieces)) as f64,
        joins.map_or(String::new(), |ratio| format!("{ratio:.2}")),
        pushed as f64 / of_lost.len().max(1) as f64,
        most as f64 * safety.part * PACK / PUSH_RATE,
    );
}

/// One joins: copies that move, over those that its share would be. Nothing where so few would move that a sample says nothing.
fn joins(before: &Epoch, safety: Safety, stripe: Option<usize>, keys: &[u64], weights: f64) -> Option<f64> {
    let mut after = before.clone();
    let weight = before.members[1].weight;
    after.members.push(Benefactor { id: u64::MAX, weight, domain: u32::MAX });
    let mut random = Random::new(7);
    // As many writers as can be looked at in reasonable time.
    let draws = 2 * before.members.len() as u64 * safety.draws(stripe);
    let writers = (DRAWS_MAX / draws).clamp(1, keys.len() as u64);
    let (mut moved, mut all) = (0u64, 0u64);
    for _ in 0..writers {
        let key = keys[random.below(keys.len() as u64) as usize];
        let (old, new) = (Writer::new(before, safety, stripe, key), Writer::new(&after, safety, stripe, key));
        for number in 0..PACKS_EACH {
            let had = old.owners(number, |_| true);
            moved += new.owners(number, |_| true).iter().filter(|owner| !had.contains(owner)).count() as u64;
            all += had.len() as u64;
        }
    }
    let wanted = all as f64 * f64::from(weight) / (weights + f64::from(weight));
    (wanted >= MOVES_TELLING).then_some(moved as f64 / wanted)
}

/// One is lost: copies that are pushed, by how many, and how many the busiest pushes or takes.
fn repair(
    before: &Epoch,
    safety: Safety,
    stripe: Option<usize>,
    lost: u64,
    packs: &[(u64, u64, Vec<u64>)],
) -> (u64, usize, u64) {
    let mut after = before.clone();
    after.members.retain(|member| member.id != lost);
    let (mut pushes, mut takes): (HashMap<u64, u64>, HashMap<u64, u64>) = Default::default();
    let mut writers: HashMap<u64, Writer> = HashMap::new();
    for (key, number, had) in packs {
        let writer = writers.entry(*key).or_insert_with(|| Writer::new(&after, safety, stripe, *key));
        let survivor = had.iter().find(|&&owner| owner != lost).copied().unwrap_or(lost);
        let owners = writer.owners(*number, |_| true);
        for owner in owners.into_iter().filter(|owner| !had.contains(owner)) {
            *pushes.entry(survivor).or_default() += 1;
            *takes.entry(owner).or_default() += 1;
        }
    }
    let most = pushes.values().chain(takes.values()).copied().max().unwrap_or(0);
    (pushes.values().sum(), pushes.len(), most)
}
