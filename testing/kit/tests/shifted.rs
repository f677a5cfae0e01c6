//! States whose bytes move: what is inserted or cut out anywhere must cost little more than itself, and every version
//! must come back bit for bit.

use std::path::Path;
use std::sync::Arc;

use stdchk::{AppName, Chunking, ChunkingChoice, Repository, SaveOptions, Spec, Tally};
use stdchk_kit::{Random, SimFs, generate};

const MIB: usize = 1 << 20;

fn options(chunking: ChunkingChoice) -> SaveOptions {
    let mut options = SaveOptions { memory: 96 * MIB, ..SaveOptions::default() };
    options.chunking = Some(chunking);
    options
}

fn app() -> AppName {
    AppName::new("moving").expect("a name")
}

/// Saves a state as a file or as a stream; how much of it was new.
fn save(repository: &Repository, step: u64, state: &[u8], chunking: ChunkingChoice, as_file: bool) -> u64 {
    let mut save = repository.save(&app(), step, options(chunking)).expect("save");
    if as_file {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("state");
        std::fs::write(&file, state).expect("a file");
        save.add_paths(std::slice::from_ref(&file), &|_| {}).expect("add");
    } else {
        save.add_bytes("state", state).expect("add");
    }
    Tally::from(save.commit().expect("commit").entry.tally).new
}

fn read(repository: &Repository, step: u64) -> Vec<u8> {
    let reading = repository.read().expect("read");
    let spec = Spec::parse(&format!("moving@{step}")).expect("spec");
    let entry = spec.find(&reading.state).expect("there")[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
    let mut bytes = Vec::new();
    checkpoint
        .write_to(checkpoint.member("state", None).expect("a member"), &mut bytes, &|_| {})
        .expect("read");
    bytes
}

fn repository() -> Repository {
    Repository::open_or_create_on(Arc::new(SimFs::new()), Path::new("sim")).expect("create")
}

#[test]
fn an_unaligned_insertion_costs_little_more_than_itself() {
    for as_file in [true, false] {
        for (at, len) in
            [(0, 1), (0, 5000), (5 * MIB + 77, 1), (9 * MIB + 4095, 100_003), (MIB, 3 * MIB / 2 + 9)]
        {
            let repository = repository();
            let mut random = Random::new(at as u64 + len as u64);
            let mut state = random.bytes(24 * MIB);
            save(&repository, 1, &state, ChunkingChoice::Auto, as_file);
            let insertion = random.bytes(len);
            state.splice(at..at, insertion);
            let new = save(&repository, 2, &state, ChunkingChoice::Auto, as_file) as usize;
            // Every stretch of 4 MiB begins and ends within a page, and one or two are under way when it is found.
            assert!(new < len + 64 * 4096, "{new} bytes for {len} at {at}");
            let cut = 3 * MIB + 11..3 * MIB + 11 + len;
            state.drain(cut);
            let new = save(&repository, 3, &state, ChunkingChoice::Auto, as_file) as usize;
            assert!(new < 64 * 4096, "{new} bytes for {len} cut out");
            assert!(read(&repository, 3) == state);
        }
    }
}

#[test]
fn versions_that_move_and_change_cost_what_changed() {
    let repository = repository();
    let mut random = Random::new(3);
    let mut state = random.bytes(32 * MIB);
    let mut states = Vec::new();
    for step in 0..5 {
        let new = save(&repository, step, &state, ChunkingChoice::Auto, step % 2 == 0);
        states.push(state.clone());
        // Pages are rewritten where they are aligned in the file, which is not where the parent was cut.
        assert!(step == 0 || (new as usize) < state.len() / 5, "step {step}: {new}");
        generate::touch_pages(&mut state, 8, &mut random);
        generate::insert(&mut state, 2, 50_000, &mut random);
    }
    states.iter().enumerate().for_each(|(step, state)| assert!(read(&repository, step as u64) == *state));
}

/// Whatever is done to a state, it comes back.
#[test]
fn any_edits_come_back() {
    let rounds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 60 } else { 6 };
    for seed in 0..rounds {
        let mut random = Random::new(100 + seed);
        let repository = repository();
        let len = 1 + random.below(14 * MIB as u64) as usize;
        let mut state =
            if random.one_in(2) { random.bytes(len) } else { generate::process_image(len, &mut random) };
        let mut states = Vec::new();
        for step in 0..5 {
            let chunking = match random.below(8) {
                0 => ChunkingChoice::Fixed(Chunking::Page(4096)),
                1 => ChunkingChoice::Fixed(Chunking::Page(16384)),
                2 => ChunkingChoice::Fixed(Chunking::Cdc(4096)),
                _ => ChunkingChoice::Auto,
            };
            save(&repository, step, &state, chunking, random.one_in(2));
            states.push(state.clone());
            for _ in 0..=random.below(5) {
                edit(&mut state, &mut random);
            }
        }
        for (step, state) in states.iter().enumerate() {
            assert!(read(&repository, step as u64) == *state, "seed {seed}, step {step}");
        }
        let reading = repository.read().expect("read");
        assert!(repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean(), "seed {seed}");
    }
}

fn edit(state: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(state.len() as u64 + 1) as usize;
    let longest = [10, 5000, 300_000, 5 * MIB as u64][random.below(4) as usize];
    let len = random.below(longest) as usize;
    let end = (at + len).min(state.len());
    match random.below(7) {
        0 => drop(state.drain(at..end)),
        1 => drop(state.splice(at..at, random.bytes(len))),
        2 => drop(state.splice(at..at, vec![0; len])),
        3 => state[at..end].fill(0),
        4 => random.fill(&mut state[at..end]),
        5 => {
            // A piece moves elsewhere.
            let piece: Vec<u8> = state.drain(at..end).collect();
            let to = random.below(state.len() as u64 + 1) as usize;
            drop(state.splice(to..to, piece));
        }
        _ => generate::touch_pages(state, 1 + random.below(20), random),
    }
}

/// What is where it was before is found there again, however far other parts have moved in between.
#[test]
fn what_stays_in_place_behind_what_moved_is_found() {
    let repository = repository();
    let mut random = Random::new(9);
    let state = random.bytes(48 * MIB);
    save(&repository, 1, &state, ChunkingChoice::Auto, true);
    let mut moved = state[..MIB].to_vec();
    moved.extend(random.bytes(3584 * 1024 + 5));
    moved.extend_from_slice(&state[MIB..20 * MIB]);
    moved.truncate(24 * MIB);
    moved.extend_from_slice(&state[24 * MIB..]);
    // The rest has moved by half a MiB, in the other direction.
    let new = save(&repository, 2, &moved, ChunkingChoice::Auto, true) as usize;
    assert!(new < 12 * MIB, "{new} bytes");
    assert!(read(&repository, 2) == moved);
    // And now it is in place.
    let gap = random.bytes(state.len() - moved.len());
    let at = moved.len() - 24 * MIB;
    moved.splice(at..at, gap);
    assert!(moved[24 * MIB..] == state[24 * MIB..]);
    let mut save_beside = repository
        .save(
            &app(),
            3,
            SaveOptions {
                parent: stdchk::ParentChoice::Given(Spec::parse("moving@1").expect("spec")),
                ..options(ChunkingChoice::Auto)
            },
        )
        .expect("save");
    save_beside.add_bytes("state", &moved).expect("add");
    let new = Tally::from(save_beside.commit().expect("commit").entry.tally).new as usize;
    assert!(new < 12 * MIB, "{new} bytes");
    assert!(read(&repository, 3) == moved);
}

/// Many small insertions, version after version, do not wear the grid down.
#[test]
fn small_insertions_do_not_pile_up() {
    let versions = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 1000 } else { 120 };
    let repository = repository();
    let mut random = Random::new(10);
    let mut sections: Vec<Vec<u8>> = (0..16).map(|_| random.bytes(256 << 10)).collect();
    for step in 0..versions {
        let new = save(&repository, step, &sections.concat(), ChunkingChoice::Auto, false) as usize;
        assert!(step == 0 || new < MIB, "version {step}: {new} bytes");
        for section in &mut sections {
            let piece = random.bytes(24);
            section.splice(0..0, piece);
        }
    }
}

#[test]
fn pages_that_begin_alike_are_told_apart() {
    let repository = repository();
    let mut random = Random::new(11);
    let mut state = random.bytes(16 * MIB);
    let header = random.bytes(64);
    state.chunks_mut(4096).for_each(|page| page[..64].copy_from_slice(&header));
    save(&repository, 1, &state, ChunkingChoice::Auto, true);
    let piece = random.bytes(100 * 1024 + 5);
    state.splice(MIB..MIB, piece);
    let new = save(&repository, 2, &state, ChunkingChoice::Auto, true) as usize;
    assert!(new < MIB, "{new} bytes");
}
