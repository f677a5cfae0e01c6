//! A directory that protects its packs: any M of the shards of every pack may be lost or damaged, and everything is read all the same,
//! found by `verify`, and made again to the very bytes that were there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stdchk::{AppName, Code, Repository, SaveOptions, Spec};
use stdchk_kit::{Fault, Random, SimFs, generate};

fn open(fs: &Arc<SimFs>) -> stdchk::Result<Repository> {
    Repository::open_or_create_on(fs.clone(), Path::new("sim"))
}

fn code() -> Code {
    "4+2".parse().expect("a code")
}

fn save(repository: &Repository, step: u64, state: &[u8]) {
    let options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    let mut save = repository.save(&AppName::new("melt").expect("name"), step, options).expect("save");
    save.add_bytes("state", state).expect("add");
    save.commit().expect("commit");
}

fn scene(is_protected: bool) -> (Arc<SimFs>, Vec<Vec<u8>>) {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs).expect("create");
    if is_protected {
        repository.protect(Some(code())).expect("protect");
    }
    let mut random = Random::new(5);
    let mut image = generate::process_image(700_000, &mut random);
    let mut states = Vec::new();
    for step in 0..3 {
        save(&repository, step, &image);
        states.push(image.clone());
        generate::touch_pages(&mut image, 30, &mut random);
    }
    (fs, states)
}

fn packs(fs: &SimFs) -> BTreeMap<String, Vec<u8>> {
    fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/")).collect()
}

/// The files of each pack.
fn shards(fs: &SimFs) -> Vec<Vec<String>> {
    let mut by_pack: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in packs(fs).into_keys() {
        let (pack, _) = path.split_once('.').expect("every pack is in shards");
        by_pack.entry(pack.to_owned()).or_default().push(path.clone());
    }
    by_pack.into_values().collect()
}

fn read_all(fs: &Arc<SimFs>, states: &[Vec<u8>], what: &str) {
    let repository = open(fs).expect("open");
    let reading = repository.read().expect("read");
    for (entry, state) in reading.state.checkpoints().zip(states) {
        let checkpoint =
            repository.checkpoint(&reading, entry).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut bytes = Vec::new();
        let member = checkpoint.member("state", None).expect("there");
        checkpoint.write_to(member, &mut bytes, &|_| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(bytes == *state, "{what}: wrong bytes of step {}", entry.step);
    }
}

fn verify_and_repair(fs: &Arc<SimFs>) -> stdchk::Result<(stdchk::VerifyReport, stdchk::Repaired)> {
    let repository = open(fs)?;
    let reading = repository.read()?;
    let report = repository.verify(&reading, None, &|_, _| {})?;
    let done = stdchk::repair(&repository.ground(), &reading.state, &report)?;
    Ok((report, done))
}

fn is_clean(fs: &Arc<SimFs>) -> bool {
    let repository = open(fs).expect("open");
    let reading = repository.read().expect("read");
    repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean()
        && repository.strangers().expect("list").is_empty()
}

fn hurt(fs: &SimFs, path: &str, how: u64, random: &mut Random) {
    let mut bytes = fs.files()[path].clone();
    let at = random.below(bytes.len() as u64) as usize;
    match how {
        0 => return fs.remove(path),
        1 => bytes.truncate(at),
        2 => bytes[at] ^= 1 << random.below(8),
        3 => bytes.push(0),
        _ => bytes[at / 2..].fill(0),
    }
    fs.overwrite(path, bytes);
}

/// Every pair of shards of every pack, hurt in every way.
#[test]
fn any_two_shards_of_a_pack_may_be_lost_torn_or_flipped() {
    let (whole, states) = scene(true);
    assert!(is_clean(&whole));
    let mut random = Random::new(3);
    let groups = shards(&whole);
    assert!(groups.iter().any(|group| group.len() == 6) && groups.iter().any(|group| group.len() == 3));
    for group in &groups {
        for (at, one) in group.iter().enumerate() {
            for two in &group[at + 1..] {
                let ways = (random.below(5), random.below(5));
                let what = format!("{one} hurt by {}, {two} by {}", ways.0, ways.1);
                let fs = Arc::new(whole.fork());
                hurt(&fs, one, ways.0, &mut random);
                hurt(&fs, two, ways.1, &mut random);
                if packs(&fs) == packs(&whole) {
                    continue;
                }
                read_all(&fs, &states, &what);
                let (report, done) = verify_and_repair(&fs).expect("repair");
                assert!(!report.is_clean() && report.damage.is_empty(), "{what}: {report:?}");
                assert_eq!((done.mended.len(), done.lost.len()), (1, 0), "{what}");
                assert!(packs(&fs) == packs(&whole), "{what}: made again to the very bytes");
                assert!(is_clean(&fs), "{what}");
            }
        }
    }
}

#[test]
fn what_has_lost_too_much_is_named_and_never_wrong() {
    let (whole, _) = scene(true);
    let group = shards(&whole).into_iter().max_by_key(Vec::len).expect("a pack");
    let fs = Arc::new(whole.fork());
    group.iter().take(3).for_each(|path| fs.remove(path));
    let (report, done) = verify_and_repair(&fs).expect("repair");
    assert!(!report.damage.is_empty() && done.lost.len() == 1);
    let repository = open(&fs).expect("open");
    let reading = repository.read().expect("read");
    // Not all of them refer to that pack; those that do say what is wrong.
    let read = |entry| {
        let checkpoint = repository.checkpoint(&reading, entry)?;
        checkpoint.write_to(checkpoint.member("state", None)?, &mut std::io::sink(), &|_| {})
    };
    let error = reading.state.checkpoints().find_map(|entry| read(entry).err()).expect("too few shards");
    assert_eq!(error.kind(), stdchk::Kind::Corrupt);
    assert!(error.to_string().contains("of the 4 shards that are needed"), "{error}");
}

/// Packs that were there before are read as they are, and repair cuts them, too; wherever that is cut off.
#[test]
fn packs_from_before_are_protected_by_repair() {
    let (plain, states) = scene(false);
    let repository = open(&plain).expect("open");
    repository.protect(Some(code())).expect("protect");
    save(&repository, 3, &states[0]);
    read_all(&plain, &states, "both kinds");
    assert!(!is_clean(&plain), "what is not protected yet is said");
    let counted = Arc::new(plain.fork());
    let (report, done) = verify_and_repair(&counted).expect("repair");
    assert_eq!((report.thin.len(), done.lost.len()), (done.mended.len(), 0));
    assert!(packs(&counted).keys().all(|path| path.contains('.')) && is_clean(&counted));
    read_all(&counted, &states, "after that");
    for step in (1..=counted.steps()).step_by(3) {
        for fault in [Fault::Stop, Fault::Errors(std::io::ErrorKind::StorageFull)] {
            let fs = Arc::new(plain.fork());
            fs.plan(step, fault);
            let _ = verify_and_repair(&fs);
            fs.power_cut(&mut Random::new(step));
            let what = format!("{fault:?} at step {step}");
            read_all(&fs, &states, &what);
            verify_and_repair(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(is_clean(&fs), "{what}");
        }
    }
}

/// What is dropped is collected with all its shards.
#[test]
fn nothing_is_left_of_what_was_collected() {
    let (fs, _) = scene(true);
    let repository = open(&fs).expect("open");
    let spec = Spec::parse("melt").expect("spec");
    let all: Vec<_> = {
        let reading = repository.read().expect("read");
        reading.state.checkpoints().filter(|entry| spec.matches(entry)).map(|entry| entry.id()).collect()
    };
    repository.forget(&all).expect("forget");
    for _ in 0..2 {
        stdchk::collect(&repository.ground(), true).expect("collect");
    }
    assert!(packs(&fs).is_empty(), "{:?}", packs(&fs).keys());
}
