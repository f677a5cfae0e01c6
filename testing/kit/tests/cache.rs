//! What a store is told of its cache: durable packs go past it but for their ends, and readers say what they will read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use stdchk::{AppName, Durability, Repository, SaveOptions, Spec};
use stdchk_kit::{Advice, Random, SimFs, generate};

const MIB: usize = 1 << 20;
/// What is read first of a pack.
const END: usize = 144 << 10;

fn repository() -> (Arc<SimFs>, Repository) {
    let fs = Arc::new(SimFs::new());
    let repository = Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("create");
    (fs, repository)
}

fn save(repository: &Repository, step: u64, state: &[u8], durability: Durability) {
    let options = SaveOptions { memory: 96 * MIB, durability, ..SaveOptions::default() };
    let app = AppName::new("melt").expect("a name");
    let mut save = repository.save(&app, step, options).expect("save");
    save.add_bytes("state", state).expect("add");
    save.commit().expect("commit");
}

/// Packs that were put past the cache, and how many bytes of each were not.
fn past_cache(fs: &SimFs) -> BTreeMap<String, usize> {
    let advice = fs.take_advice().into_iter();
    advice
        .filter_map(|advice| match advice {
            Advice::PastCache { path, cached } => Some((path, cached)),
            Advice::WillRead { .. } => None,
        })
        .collect()
}

#[test]
fn durable_packs_go_past_the_cache_but_for_their_ends() {
    let (fs, repository) = repository();
    let state = Random::new(1).bytes(40 * MIB);
    save(&repository, 1, &state, Durability::Staged);
    assert_eq!(past_cache(&fs), BTreeMap::new());
    let mut state = state;
    generate::touch_pages(&mut state, 90, &mut Random::new(2));
    save(&repository, 2, &state, Durability::Local);
    let past = past_cache(&fs);
    let len = |path: &String| fs.files()[path].len();
    assert!(past.keys().map(len).sum::<usize>() > 32 * MIB, "{past:?}");
    assert!(past.iter().all(|(path, &cached)| cached >= END.min(len(path)) && cached < MIB), "{past:?}");
}

/// Bytes of ranges that may overlap.
fn covered(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let mut at = 0;
    ranges.into_iter().fold(0, |sum, range| {
        let new = range.end.saturating_sub(range.start.max(at));
        at = at.max(range.end);
        sum + new
    })
}

#[test]
fn readers_say_what_they_will_read_and_little_else() {
    let (fs, repository) = repository();
    let mut state = Random::new(3).bytes(32 * MIB);
    for step in 1..=4 {
        save(&repository, step, &state, Durability::Staged);
        generate::touch_pages(&mut state, 10, &mut Random::new(step));
    }
    fs.take_advice();
    let reading = repository.read().expect("read");
    let entry = Spec::parse("melt@4").expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    let member = checkpoint.member("state", None).expect("a member");
    let mut bytes = Vec::new();
    checkpoint.write_to(member, &mut bytes, &|_| {}).expect("read");
    assert_eq!(bytes.len(), state.len());

    let mut ranges: BTreeMap<String, Vec<Range<u64>>> = BTreeMap::new();
    for advice in fs.take_advice() {
        if let Advice::WillRead { path, range } = advice {
            ranges.entry(path).or_default().push(range);
        }
    }
    let files = fs.files();
    for (path, ranges) in &ranges {
        assert!(ranges.iter().all(|range| range.end <= files[path].len() as u64), "{path}");
    }
    let told: u64 = ranges.values().flatten().map(|range| range.end - range.start).sum();
    let covered: u64 = ranges.into_values().map(covered).sum();
    let (all, some) = (state.len() as u64, state.len() as u64 * 9 / 10);
    assert!(covered > some && told < all * 3 / 2, "{covered} and {told} of {all}");
}
