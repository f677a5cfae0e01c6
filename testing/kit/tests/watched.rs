//! Memory that is watched: what is saved of it is what it was, whatever was written, saved, given up, forgotten and restored meanwhile.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stdchk::{
    AppName, CheckpointId, Chunking, ChunkingChoice, Memory, ParentChoice, Repository, SaveOptions, Spec,
    Tally,
};
use stdchk_kit::{Random, SimFs};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn repository() -> Repository {
    Repository::open_or_create_on(Arc::new(SimFs::new()), Path::new("sim")).expect("create")
}

fn app() -> AppName {
    AppName::new("melt").expect("a name")
}

fn options() -> SaveOptions {
    SaveOptions { memory: 96 * MIB, ..SaveOptions::default() }
}

fn save(repository: &Repository, step: u64, name: &str, memory: &mut Memory) -> (CheckpointId, Tally) {
    let mut save = repository.save(&app(), step, options()).expect("save");
    save.add_memory(name, memory).expect("add");
    let saved = save.commit().expect("commit");
    (saved.id.clone(), saved.entry.tally.into())
}

fn restored(repository: &Repository, id: &CheckpointId, name: &str) -> Memory {
    let reading = repository.read().expect("read");
    let entry = Spec::parse(&id.to_string()).expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    checkpoint.memory(checkpoint.member(name, None).expect("a member")).expect("read")
}

fn random_memory(len: usize, random: &mut Random) -> Memory {
    let mut memory = Memory::zeroed(len).expect("memory");
    random.fill(&mut memory);
    memory
}

#[test]
fn only_what_was_written_is_new() {
    let repository = repository();
    let mut random = Random::new(1);
    // The last page is not a whole one.
    let mut memory = random_memory(10 * MIB + 77, &mut random);
    let all = memory.len() as u64;
    assert_eq!(save(&repository, 1, "state", &mut memory).1.new, all);
    memory[5 * PAGE + 1] ^= 1;
    *memory.last_mut().expect("bytes") ^= 1;
    let (id, tally) = save(&repository, 2, "state", &mut memory);
    assert_eq!((tally.new, tally.shared), (PAGE as u64 + 77, all - PAGE as u64 - 77));
    let (_, tally) = save(&repository, 3, "state", &mut memory);
    assert_eq!((tally.new, tally.shared), (0, all));
    // A program that starts again knows what it was, too.
    let mut again = restored(&repository, &id, "state");
    assert!(again[..] == memory[..]);
    again[7 * PAGE..8 * PAGE].fill(0);
    let (id, tally) = save(&repository, 4, "state", &mut again);
    assert_eq!((tally.new, tally.zero), (0, PAGE as u64));
    assert!(restored(&repository, &id, "state")[..] == again[..]);
}

#[test]
fn what_has_moved_is_found_beside_what_was_not_written() {
    let repository = repository();
    let mut memory = random_memory(12 * MIB, &mut Random::new(5));
    save(&repository, 1, "state", &mut memory);
    for stretch in memory.chunks_mut(4 * MIB) {
        let end = stretch.len() - PAGE;
        stretch.copy_within(0..end - 100, 100);
    }
    let (id, tally) = save(&repository, 2, "state", &mut memory);
    assert!(tally.new < MIB as u64 / 4, "{} bytes are new", tally.new);
    assert!(restored(&repository, &id, "state")[..] == memory[..]);
}

#[test]
fn somebody_elses_save_between_is_not_taken_for_ours() {
    let repository = repository();
    let mut random = Random::new(2);
    let mut ours = random_memory(6 * MIB, &mut random);
    let mut theirs = random_memory(6 * MIB, &mut random);
    save(&repository, 1, "state", &mut ours);
    save(&repository, 2, "state", &mut theirs);
    ours[0] ^= 1;
    let (id, _) = save(&repository, 3, "state", &mut ours);
    assert!(restored(&repository, &id, "state")[..] == ours[..]);
    // The same memory under another name, beside another parent, and beside none.
    ours[PAGE] ^= 1;
    let (id, _) = save(&repository, 4, "other", &mut ours);
    assert!(restored(&repository, &id, "other")[..] == ours[..]);
    let mut alone =
        repository.save(&app(), 5, SaveOptions { parent: ParentChoice::None, ..options() }).expect("save");
    alone.add_memory("state", &mut ours).expect("add");
    let id = alone.commit().expect("commit").id;
    assert!(restored(&repository, &id, "state")[..] == ours[..]);
}

#[test]
fn nothing_and_little_can_be_watched() {
    let repository = repository();
    for (step, len) in [0, 1, PAGE - 1, PAGE + 1].into_iter().enumerate() {
        let mut memory = random_memory(len, &mut Random::new(3));
        for again in 0..2 {
            let (id, _) = save(&repository, (2 * step + again) as u64, "state", &mut memory);
            assert!(restored(&repository, &id, "state")[..] == memory[..]);
            memory.fill(again as u8);
        }
    }
}

/// Something that was saved: where, and what it was.
struct Kept {
    repository: usize,
    id: CheckpointId,
    name: &'static str,
    bytes: Vec<u8>,
}

/// Writes somewhere, as programs do: here and there, zeros, every other page, the same again, what was elsewhere.
fn write_somewhere(memory: &mut Memory, random: &mut Random) {
    let len = memory.len();
    for _ in 0..random.below(20) {
        let at = random.below(len as u64) as usize;
        let some = (1 + random.below(3 * PAGE as u64) as usize).min(len - at);
        match random.below(12) {
            0..4 => random.fill(&mut memory[at..at + some]),
            4..7 => memory[at] = memory[at].wrapping_add(1),
            7..9 => memory[at..at + some].fill(0),
            9 => memory.copy_within(at..at + some, random.below((len - some) as u64 + 1) as usize),
            10 => {
                let same = memory[at];
                memory[at..=at].fill(same);
            }
            _ => memory[at..].chunks_mut(2 * PAGE).take(100).for_each(|pages| pages[0] ^= 1),
        }
    }
}

/// One of the ways to save.
fn any_way(random: &mut Random, saved: &[Kept], repository: usize) -> SaveOptions {
    let chunking = match random.below(12) {
        0 => ChunkingChoice::Fixed(Chunking::Page(1024)),
        1 => ChunkingChoice::Fixed(Chunking::Page(64 << 10)),
        2 => ChunkingChoice::Fixed(Chunking::Page(1 << 20)),
        3 => ChunkingChoice::Fixed(Chunking::Cdc(16 << 10)),
        _ => ChunkingChoice::Auto,
    };
    let of_these: Vec<&Kept> = saved.iter().filter(|kept| kept.repository == repository).collect();
    let parent = match random.below(6) {
        0 => ParentChoice::None,
        1 if !of_these.is_empty() => {
            let id = &of_these[random.below(of_these.len() as u64) as usize].id;
            ParentChoice::Given(Spec::parse(&id.to_string()).expect("a spec"))
        }
        _ => ParentChoice::Newest,
    };
    SaveOptions { chunking: Some(chunking), parent, ..options() }
}

/// Any order of writes, saves in any way of memories of several lengths, to two repositories, for two applications, under names of which some are numbered;
/// saves that are refused or given up, and restarts.
fn any_order(seeds: u64, steps: u64, lens: Range<usize>, repositories: impl Fn() -> [Repository; 2]) {
    const NAMES: [&str; 5] = ["state", "other", "s.1", "s.2", "s.30"];
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let repositories = repositories();
        let len = |random: &mut Random| lens.start + random.below(lens.len() as u64) as usize;
        let mut memories: Vec<Memory> = (0..2)
            .map(|_| {
                let len = len(&mut random);
                random_memory(len, &mut random)
            })
            .collect();
        let mut saved: Vec<Kept> = Vec::new();
        for step in 0..steps {
            let memory = &mut memories[random.below(2) as usize];
            write_somewhere(memory, &mut random);
            let repository = random.below(2) as usize;
            let name = NAMES[random.below(NAMES.len() as u64) as usize];
            let app = AppName::new(["melt", "flow"][random.below(2) as usize]).expect("a name");
            if random.below(6) == 0 && !saved.is_empty() {
                let kept = &saved[random.below(saved.len() as u64) as usize];
                *memory = restored(&repositories[kept.repository], &kept.id, kept.name);
                assert!(memory[..] == kept.bytes[..], "seed {seed}, {}", kept.id);
                continue;
            }
            let way = any_way(&mut random, &saved, repository);
            let mut save = repositories[repository].save(&app, step, way).expect("save");
            save.add_memory(name, memory).expect("add");
            let ends = random.below(6);
            if ends == 0 {
                save.abort();
                continue;
            }
            if ends == 1 {
                assert!(save.add_memory(name, memory).is_err(), "two of one name");
            }
            let id = save.commit().expect("commit").id;
            saved.push(Kept { repository, id, name, bytes: memory.to_vec() });
        }
        for Kept { repository, id, name, bytes } in &saved {
            assert!(restored(&repositories[*repository], id, name)[..] == bytes[..], "seed {seed}, {id}");
        }
    }
}

#[test]
fn what_comes_back_is_what_was_saved() {
    let seeds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 300 } else { 16 };
    any_order(seeds, 24, 1..9 * MIB, || [repository(), repository()]);
}

/// Run by the one below, which gives it a place for tags.
#[test]
#[ignore = "needs a place for tags"]
fn inner_with_tags() {
    let folders = tempfile::tempdir().expect("a folder");
    let count = AtomicUsize::new(0);
    let repository = || {
        let place = folders.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        Repository::open_or_create(place.to_str().expect("text")).expect("create")
    };
    any_order(4, 16, 17 * MIB..22 * MIB, || [repository(), repository()]);
}

#[test]
fn what_comes_back_with_tags_is_what_was_saved() {
    let cache = tempfile::tempdir().expect("a folder");
    let mut inner = Command::new(std::env::current_exe().expect("this"));
    inner.args(["--exact", "inner_with_tags", "--ignored"]).env("STDCHK_CACHE", cache.path());
    let output = inner.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    let tags = std::fs::read_dir(cache.path().join("tags")).expect("a folder of tags");
    assert!(cfg!(not(target_arch = "x86_64")) || tags.count() > 0, "nothing was tagged");
}

#[test]
fn ranks_add_memory_too() {
    let repository = repository();
    let mut states: Vec<Memory> = (0..2).map(|rank| random_memory(5 * MIB, &mut Random::new(rank))).collect();
    for step in 1..=2 {
        let session = repository.begin(&app(), step, Some(2), stdchk::SCRIPT_LEASE).expect("begin");
        let mut new = Vec::new();
        for (rank, state) in states.iter_mut().enumerate() {
            let mut add =
                repository.add(session, SaveOptions { rank: rank as u32, ..options() }).expect("add");
            add.add_memory(&format!("rank.{rank}"), state).expect("add");
            new.push(add.finish().expect("a part"));
            state[rank * PAGE] ^= 1;
        }
        let saved = repository.commit(session, "").expect("commit");
        let expected = if step == 1 { 10 * MIB as u64 } else { 2 * PAGE as u64 };
        assert_eq!(Tally::from(saved.entry.tally).new, expected);
    }
}
