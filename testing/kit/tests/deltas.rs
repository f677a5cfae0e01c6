//! Checkpoints that are stored as differences to older ones: what they were subtracted from stays as long as they do, wherever
//! it is moved, and is itself always whole.

use std::path::Path;
use std::sync::Arc;

use stdchk::{
    AppName, Codec, Coding, Look, Prefer, Preference, Repository, Result, SaveOptions, Spec, collect, repair,
};
use stdchk_kit::{Random, SimFs, generate};

fn open(fs: &Arc<SimFs>) -> Repository {
    Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open")
}

fn save_as(repository: &Repository, step: u64, image: &[u8], coding: Preference) {
    let mut options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    options.coding = Some(coding);
    let mut save = repository.save(&AppName::new("train").expect("a name"), step, options).expect("save");
    save.add_bytes("state", image).expect("add");
    save.commit().expect("commit");
}

fn save(repository: &Repository, step: u64, image: &[u8]) {
    save_as(repository, step, image, Preference::Fixed(Coding::new(Codec::Zstd, 8).of_delta(), 1));
}

fn checkpoint<T>(
    repository: &Repository,
    step: u64,
    look: impl FnOnce(&stdchk::Checkpoint) -> Result<T>,
) -> Result<T> {
    let reading = repository.read()?;
    let entry = Spec::parse(&format!("train@{step}"))?.find(&reading.state)?[0].clone();
    look(&repository.checkpoint(&reading, &entry)?)
}

fn read(repository: &Repository, step: u64) -> Result<Vec<u8>> {
    checkpoint(repository, step, |checkpoint| {
        let mut bytes = Vec::new();
        checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
        Ok(bytes)
    })
}

fn has_deltas(repository: &Repository, step: u64) -> bool {
    let codecs =
        checkpoint(repository, step, |checkpoint| checkpoint.codecs(checkpoint.member("state", None)?));
    codecs.expect("codecs").iter().any(|codec| codec.starts_with("delta+"))
}

fn forget(repository: &Repository, step: u64) {
    let reading = repository.read().expect("read");
    let id =
        Spec::parse(&format!("train@{step}")).expect("spec").find(&reading.state).expect("there")[0].id();
    drop(reading);
    repository.forget(&[id]).expect("forget");
}

fn is_clean(repository: &Repository) -> bool {
    let reading = repository.read().expect("read");
    repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean()
}

#[test]
fn a_base_stays_as_long_as_what_was_subtracted_from_it() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(1);
    let mut image = random.bytes(200 * 4096);
    let mut states = Vec::new();
    for step in 0..4 {
        save(&repository, step, &image);
        states.push(image.clone());
        generate::drift(&mut image, 70, &mut random);
    }
    assert!(!has_deltas(&repository, 0) && has_deltas(&repository, 1) && has_deltas(&repository, 3));
    for dropped in 0..3 {
        forget(&repository, dropped);
        collect(&repository.ground(), true).expect("gc");
        collect(&repository.ground(), true).expect("gc");
        for step in dropped + 1..4 {
            assert!(
                read(&repository, step).expect("read") == states[step as usize],
                "{step} after {dropped}"
            );
        }
        assert!(is_clean(&repository));
    }
    forget(&repository, 3);
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    let left = fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/")).count();
    assert_eq!(left, 0, "nothing refers to the bases any more");
}

#[test]
fn a_base_may_be_moved_by_compaction() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(2);
    let first = random.bytes(400 * 4096);
    save(&repository, 0, &first);
    // Most pages are rewritten; those left drift, so that little of the first pack is needed, as bases only.
    let mut second = first.clone();
    random.fill(&mut second[80 * 4096..]);
    generate::drift(&mut second[..80 * 4096], 100, &mut random);
    save(&repository, 1, &second);
    assert!(has_deltas(&repository, 1));
    forget(&repository, 0);
    let done = collect(&repository.ground(), true).expect("gc");
    assert!(!done.compacted.is_empty(), "the first pack is mostly dead");
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    assert!(read(&repository, 1).expect("read") == second);
    assert!(is_clean(&repository));
    // What comes next is subtracted from the base where it lies now.
    let mut third = second.clone();
    generate::drift(&mut third, 50, &mut random);
    save(&repository, 2, &third);
    assert!(has_deltas(&repository, 2));
    forget(&repository, 1);
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    assert!(read(&repository, 2).expect("read") == third);
    assert!(is_clean(&repository));
    // Packs with deltas are compacted, too.
    let mut fourth = third.clone();
    random.fill(&mut fourth[40 * 4096..]);
    save(&repository, 3, &fourth);
    forget(&repository, 2);
    (0..4).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    assert!(read(&repository, 3).expect("read") == fourth);
    assert!(is_clean(&repository));
}

#[test]
fn what_is_kept_for_bases_does_not_grow() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(3);
    let mut image = random.bytes(300 * 4096);
    for step in 0..12 {
        save_as(&repository, step, &image, Preference::Auto(Prefer::Space));
        assert!(read(&repository, step).expect("read") == image, "step {step}");
        if step > 0 {
            forget(&repository, step - 1);
        }
        generate::drift(&mut image, 60, &mut random);
    }
    assert!(has_deltas(&repository, 11));
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    let packs = fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/"));
    let bytes: usize = packs.map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < image.len() * 3, "{bytes} bytes are kept for an image of {}", image.len());
    assert!(is_clean(&repository));
}

#[test]
fn a_damaged_base_hurts_all_that_need_it_and_is_not_built_upon() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(4);
    let first = random.bytes(100 * 4096);
    save(&repository, 0, &first);
    let (path, sealed) = first_pack(&fs);
    let mut second = first.clone();
    generate::drift(&mut second, 100, &mut random);
    save(&repository, 1, &second);
    let mut torn = sealed.clone();
    torn[50_000] ^= 1;
    fs.overwrite(&path, torn);
    let repository = open(&fs);
    assert!(read(&repository, 1).is_err());
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    assert_eq!(report.damage.len(), 1, "the base is damaged, not what was subtracted from it");
    assert!(report.checkpoints.iter().all(|checkpoint| !checkpoint.health.is_whole()));
    drop(reading);
    let reading = repository.read().expect("read");
    let offered = repository.newest_whole(&reading, &Spec::parse("train").expect("spec"), Look::Quick);
    assert!(offered.expect("a look").0.is_none());
    drop(reading);
    // The same state again needs nothing of what is damaged.
    save(&repository, 2, &second);
    assert!(read(&repository, 2).expect("read") == second);
    // Once the old bytes are there again, all is mended.
    save_as(&repository, 3, &first, Preference::Fixed(Coding::NONE, 1));
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    let done = repair(&repository.ground(), &reading.state, &report).expect("repair");
    assert_eq!((done.mended.len(), done.lost.len()), (1, 0));
    assert!(fs.files()[&path] == sealed);
    drop(reading);
    assert!(is_clean(&repository) && read(&repository, 1).expect("read") == second);
}

#[test]
fn a_damaged_difference_is_made_again_from_its_base() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(5);
    let first = random.bytes(100 * 4096);
    save(&repository, 0, &first);
    let before: Vec<String> = fs.files().into_keys().collect();
    let mut second = first.clone();
    generate::drift(&mut second, 100, &mut random);
    save(&repository, 1, &second);
    let mut files = fs.files().into_iter();
    let is_new = |path: &String| path.starts_with("packs/") && !before.contains(path);
    let (path, sealed) = files.find(|(path, _)| is_new(path)).expect("a pack");
    let mut torn = sealed.clone();
    torn[1000] ^= 1;
    fs.overwrite(&path, torn);
    let repository = open(&fs);
    assert!(read(&repository, 1).is_err() && read(&repository, 0).expect("whole") == first);
    let reading = repository.read().expect("read");
    assert!(!repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean());
    drop(reading);
    save_as(&repository, 2, &second, Preference::Fixed(Coding::NONE, 1));
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    let done = repair(&repository.ground(), &reading.state, &report).expect("repair");
    assert_eq!((done.mended.len(), done.lost.len()), (1, 0));
    assert!(fs.files()[&path] == sealed);
    assert!(read(&repository, 1).expect("read") == second);
}

const PAGE: usize = 4096;

fn options() -> SaveOptions {
    let mut options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    options.coding = Some(Preference::Fixed(Coding::new(Codec::Zstd, 8).of_delta(), 1));
    options
}

fn app(name: &str) -> AppName {
    AppName::new(name).expect("a name")
}

/// Some pages, and the same a little later with many new ones behind them.
fn drifted_and_longer(random: &mut Random) -> [Vec<u8>; 2] {
    let first = random.bytes(128 * PAGE);
    let mut second = first.clone();
    generate::drift(&mut second, 100, random);
    second.extend(random.bytes(1024 * PAGE));
    [first, second]
}

/// The only pack there is: its path, and its bytes.
fn first_pack(fs: &SimFs) -> (String, Vec<u8>) {
    fs.files().into_iter().find(|(path, _)| path.starts_with("packs/")).expect("a pack")
}

/// Step 3 needs deltas whose pack a long save may take back from compaction: their bases must not go meanwhile. Where `moved`, these
/// had been moved before the long save began.
fn a_forward_is_taken_back(moved: bool) {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(1);
    let (x, y) = (128 * PAGE, 768 * PAGE);
    let first = random.bytes(y);
    save(&repository, 1, &first);
    let mut second = first.clone();
    generate::drift(&mut second[..x], 100, &mut random);
    second.extend(random.bytes(512 * PAGE));
    save(&repository, 2, &second);
    if moved {
        // Somebody else needs most of the second pack, so that only the first is compacted now.
        let parent = stdchk::ParentChoice::Given(Spec::parse("train@2").expect("spec"));
        let mut others = second.clone();
        others[..y].fill(0);
        let mut save = repository.save(&app("other"), 1, SaveOptions { parent, ..options() }).expect("save");
        save.add_bytes("state", &others).expect("add");
        save.commit().expect("commit");
    }
    let mut third = second.clone();
    third[x..y].fill(0);
    third[y + 64 * PAGE..].fill(0);
    save(&repository, 3, &third);
    forget(&repository, 2);
    if moved {
        forget(&repository, 1);
        assert!(!collect(&repository.ground(), true).expect("gc").compacted.is_empty());
    }
    // The long save needs nothing but whole pages of the pack with the deltas.
    let mut fourth = third.clone();
    fourth[..x].fill(0);
    let mut slow = repository.save(&app("train"), 4, options()).expect("save");
    slow.add_bytes("state", &fourth).expect("add");
    if moved {
        let reading = repository.read().expect("read");
        let id = Spec::parse("other@1").expect("spec").find(&reading.state).expect("there")[0].id();
        drop(reading);
        repository.forget(&[id]).expect("forget");
    }
    assert!(!collect(&repository.ground(), true).expect("gc").compacted.is_empty(), "the deltas move");
    if !moved {
        forget(&repository, 1);
    }
    let done = collect(&repository.ground(), true).expect("gc");
    assert!(done.compacted.is_empty(), "their bases wait for the long save");
    slow.commit().expect("commit");
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    assert!(read(&repository, 4).expect("4") == fourth);
    assert!(read(&repository, 3).expect("3") == third);
    assert!(is_clean(&repository));
}

#[test]
fn bases_outlive_a_forward_that_is_taken_back() {
    a_forward_is_taken_back(false);
}

#[test]
fn moved_bases_outlive_a_forward_that_is_taken_back() {
    a_forward_is_taken_back(true);
}

/// The parent refers to the pack with the deltas, but for its whole pages only: nobody vouches for the bases.
#[test]
fn what_the_parent_does_not_vouch_for_is_not_built_upon() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(1);
    let [first, second] = drifted_and_longer(&mut random);
    save(&repository, 1, &first);
    save(&repository, 2, &second);
    let mut third = second.clone();
    random.fill(&mut third[..first.len()]);
    save(&repository, 3, &third);
    forget(&repository, 1);
    forget(&repository, 2);
    // A long restore keeps what is condemned from being removed.
    let reading = repository.read().expect("read");
    collect(&repository.ground(), false).expect("gc");
    save(&repository, 4, &second);
    drop(reading);
    (0..3).for_each(|_| drop(collect(&repository.ground(), true).expect("gc")));
    assert!(read(&repository, 4).expect("4") == second);
}

/// The base of a delta was only staged, and a power cut tore it; the durable parent needs none of it.
#[test]
fn a_durable_save_does_not_build_upon_a_staged_base() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(1);
    let [first, second] = drifted_and_longer(&mut random);
    let staged = |step: u64, image: &[u8]| {
        let options = SaveOptions { durability: stdchk::Durability::Staged, ..options() };
        let mut save = repository.save(&app("train"), step, options).expect("save");
        save.add_bytes("state", image).expect("add");
        save.commit().expect("commit");
    };
    staged(1, &first);
    let (path, sealed) = first_pack(&fs);
    staged(2, &second);
    let mut third = second.clone();
    random.fill(&mut third[..first.len()]);
    save(&repository, 3, &third);
    let mut torn = sealed.clone();
    torn[40_960..45_056].fill(0);
    fs.overwrite(&path, torn);
    let repository = open(&fs);
    assert!(read(&repository, 3).expect("3 is durable") == third);
    save(&repository, 4, &second);
    assert!(read(&repository, 4).expect("4 is durable") == second);
}

#[test]
fn a_damaged_base_stops_no_other_compaction() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(1);
    let [first, second] = drifted_and_longer(&mut random);
    save(&repository, 1, &first);
    let (path, sealed) = first_pack(&fs);
    save(&repository, 2, &second);
    let mut third = second.clone();
    third[first.len()..].fill(0);
    save(&repository, 3, &third);
    let more = random.bytes(1100 * PAGE);
    for (step, len) in [(1, more.len()), (2, 100 * PAGE)] {
        let mut save = repository.save(&app("other"), step, options()).expect("save");
        let mut bytes = more.clone();
        bytes[len..].fill(0);
        save.add_bytes("state", &bytes).expect("add");
        save.commit().expect("commit");
    }
    forget(&repository, 2);
    let reading = repository.read().expect("read");
    let id = Spec::parse("other@1").expect("spec").find(&reading.state).expect("there")[0].id();
    drop(reading);
    repository.forget(&[id]).expect("forget");
    let mut torn = sealed.clone();
    torn[50_000] ^= 1;
    fs.overwrite(&path, torn);
    let repository = open(&fs);
    assert!(!is_clean(&repository));
    assert!(!collect(&repository.ground(), true).expect("gc").compacted.is_empty());
}

/// Many programs put the step into the names of their files.
#[test]
fn a_file_with_the_step_in_its_name_continues_the_one_before() {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    let mut random = Random::new(9);
    let mut image = random.bytes(300 * PAGE);
    let save = |step: u64, image: &[u8]| {
        let mut save = repository.save(&app("train"), step, options()).expect("save");
        save.add_bytes(&format!("melt.{step}.restart"), image).expect("add");
        save.commit().expect("commit");
    };
    save(900, &image);
    generate::drift(&mut image, 100, &mut random);
    save(1000, &image);
    let (codecs, bytes) = checkpoint(&repository, 1000, |checkpoint| {
        let member = checkpoint.member("melt.1000.restart", None)?;
        let mut bytes = Vec::new();
        checkpoint.write_to(member, &mut bytes, &|_| {})?;
        Ok((checkpoint.codecs(member)?, bytes))
    })
    .expect("a checkpoint");
    assert!(codecs.iter().any(|codec| codec.starts_with("delta+")), "{codecs:?}");
    assert!(bytes == image);
}
