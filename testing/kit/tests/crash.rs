//! Power cuts and errors at every step of every operation that changes a repository.
//!
//! For each operation the steps are counted once; then it is run again and stopped at each step, the power is cut,
//! which keeps, drops or tears whatever was not synced, and what is left is opened and held against
//! `docs/COMMIT.md`: what was reported as committed is there bit for bit, nothing is there in part, and garbage
//! collection leaves nothing that is not needed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk::{AppName, Error, Kind, Look, Policy, Repository, Result, SCRIPT_LEASE, SaveOptions, Spec};
use stdchk_kit::{Fault, Random, SimFs, generate};

type Contents = BTreeMap<String, Vec<u8>>;

fn open(fs: &Arc<SimFs>) -> Result<Repository> {
    Repository::open_or_create_on(fs.clone(), Path::new("sim"))
}

fn options() -> SaveOptions {
    SaveOptions { memory: 64 << 20, ..SaveOptions::default() }
}

fn save(repository: &Repository, app: &str, step: u64, bytes: &[u8]) -> Result<()> {
    let mut save = repository.save(&AppName::new(app)?, step, options())?;
    save.add_bytes("state", bytes)?;
    save.add_bytes("small", format!("{app} {step}").as_bytes())?;
    save.commit().map(drop)
}

/// The bytes of `state` in every checkpoint that is offered; panics if any cannot be read.
fn contents(repository: &Repository) -> Contents {
    let reading = repository.read().expect("a repository can be read");
    let mut found = Contents::new();
    for entry in reading.state.checkpoints() {
        let checkpoint = repository.checkpoint(&reading, entry).expect("a checkpoint opens");
        let mut all = Vec::new();
        for member in checkpoint.members.iter().filter(|m| m.member.path == "state") {
            checkpoint.write_to(member, &mut all, &|_| {}).expect("a member can be read");
        }
        let small = checkpoint.members.iter().filter(|m| m.member.path == "small").count();
        assert!(small >= 1, "{} lacks a member", entry.id());
        found.insert(entry.id().to_string(), all);
    }
    found
}

type Step<'a> = &'a dyn Fn(&Repository) -> Result<()>;

fn nothing(_: &Repository) -> Result<()> {
    Ok(())
}

struct Scene {
    fs: Arc<SimFs>,
    /// What is committed before the operation.
    before: Contents,
    /// What is committed after it.
    after: Contents,
}

/// A repository with a history: two applications, versions that share, one with a policy.
fn scene(setup: Step, operation: Step) -> Scene {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs).expect("create");
    let mut random = Random::new(1);
    let mut image = generate::process_image(600 << 10, &mut random);
    for step in 1..=3 {
        save(&repository, "melt", step, &image).expect("save");
        generate::touch_pages(&mut image, 30, &mut random);
    }
    save(&repository, "other", 7, &image[..100_000]).expect("save");
    let policy = Policy { keep_last: Some(1), ..Policy::default() };
    repository.set_policy(&AppName::new("melt").expect("name"), &policy).expect("policy");
    setup(&repository).expect("the setup works");
    let before = contents(&repository);
    drop(repository);
    let fork = Arc::new(fs.fork());
    let repository = open(&fork).expect("open");
    operation(&repository).expect("the operation works where nothing fails");
    Scene { fs, before, after: contents(&repository) }
}

/// Checks what is left, then collects garbage and checks again.
fn check(fs: &Arc<SimFs>, scene: &Scene, succeeded: bool, what: &str) {
    // Long enough for every lease and for stale temporary files.
    fs.pass(SCRIPT_LEASE * 2);
    let repository = open(fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = contents(&repository);
    for (id, bytes) in &found {
        let known = scene.before.get(id).or(scene.after.get(id));
        assert!(known == Some(bytes), "{what}: {id} has wrong bytes");
    }
    let must: Vec<&String> = if succeeded {
        assert!(found.keys().all(|id| scene.after.contains_key(id)), "{what}: {:?}", found.keys());
        scene.after.keys().collect()
    } else {
        scene.before.keys().filter(|id| scene.after.contains_key(*id)).collect()
    };
    for id in must {
        assert!(found.contains_key(id), "{what}: {id} is lost");
    }
    let ground = repository.ground();
    stdchk::collect(&ground, true).unwrap_or_else(|error| panic!("{what}: gc: {error}"));
    let second = stdchk::collect(&ground, false).unwrap_or_else(|error| panic!("{what}: second gc: {error}"));
    repository.remove_stale_temporaries(true).expect("temporaries");
    assert!(second.waiting.is_empty() && second.removed.len() <= 2, "{what}: {second:?}");
    assert!(contents(&repository) == found, "{what}: garbage collection changed what is there");
    let packs = fs.files().keys().filter(|path| path.starts_with("packs/")).count() as u64;
    assert_eq!(packs, second.live.0, "{what}: packs are left that nothing needs");
    assert!(!fs.files().keys().any(|path| path.starts_with("tmp/")), "{what}: temporary files are left");
    let reading = repository.read().expect("read");
    let report = repository.verify(&reading, None, &|_, _| {}).expect("verify");
    assert!(report.is_clean(), "{what}: {report:?}");
}

fn seeds() -> u64 {
    if std::env::var_os("STDCHK_TEST_LONG").is_some() { 40 } else { 3 }
}

fn every_power_cut(setup: Step, operation: Step) {
    let scene = scene(setup, operation);
    let counted = Arc::new(scene.fs.fork());
    operation(&open(&counted).expect("open")).expect("the operation works");
    let steps = counted.steps();
    assert!(steps > 3, "only {steps} steps were counted");
    let mut finished = 0;
    for step in 1..=steps {
        for seed in 0..seeds() {
            let fs = Arc::new(scene.fs.fork());
            let succeeded = match open(&fs) {
                Ok(repository) => {
                    fs.plan(fs.steps() + step, Fault::Stop);
                    operation(&repository).is_ok()
                }
                Err(error) => panic!("{error}"),
            };
            finished += u64::from(succeeded);
            fs.power_cut(&mut Random::new(step * 1000 + seed));
            check(&fs, &scene, succeeded, &format!("power cut at step {step} of {steps}, seed {seed}"));
        }
    }
    assert!(finished < steps * seeds(), "the fault never struck");
}

fn every_error(setup: Step, operation: Step) {
    let scene = scene(setup, operation);
    let counted = Arc::new(scene.fs.fork());
    operation(&open(&counted).expect("open")).expect("the operation works");
    let kinds = [io::ErrorKind::Other, io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    for step in 1..=counted.steps() {
        for kind in kinds {
            for fault in [Fault::Error(kind), Fault::Errors(kind)] {
                let fs = Arc::new(scene.fs.fork());
                let repository = open(&fs).expect("open");
                fs.plan(fs.steps() + step, fault);
                let done = operation(&repository);
                if let Err(error) = &done {
                    assert!(!error.to_string().is_empty());
                }
                drop(repository);
                let healthy = Arc::new(fs.fork());
                check(&healthy, &scene, done.is_ok(), &format!("{fault:?} at step {step}"));
            }
        }
    }
}

fn saving(repository: &Repository) -> Result<()> {
    let mut random = Random::new(9);
    let mut image = generate::process_image(600 << 10, &mut Random::new(1));
    generate::touch_pages(&mut image, 20, &mut random);
    save(repository, "melt", 4, &image)
}

fn collecting(repository: &Repository) -> Result<()> {
    stdchk::prune(&repository.ground(), None, stdchk::now_ns())?;
    stdchk::collect(&repository.ground(), false).map(drop)
}

/// Leaves packs mostly dead, so that compaction has something to do.
fn much_dead(repository: &Repository) -> Result<()> {
    let mut random = Random::new(5);
    let mut image = generate::process_image(600 << 10, &mut Random::new(1));
    generate::touch_pages(&mut image, 80, &mut random);
    save(repository, "melt", 9, &image)?;
    generate::touch_pages(&mut image, 5, &mut random);
    save(repository, "melt", 10, &image)?;
    stdchk::prune(&repository.ground(), None, stdchk::now_ns()).map(drop)
}

fn compacting(repository: &Repository) -> Result<()> {
    let plan = stdchk::collect(&repository.ground(), true)?;
    // A compaction that fails does not fail the collection; here it counts as a failure all the same.
    if plan.compacted.is_empty() {
        return Err(Error::new(Kind::Io, "nothing was compacted"));
    }
    Ok(())
}

fn in_parts(repository: &Repository) -> Result<()> {
    let session = repository.begin(&AppName::new("parts")?, 1, Some(2), SCRIPT_LEASE)?;
    for rank in 0..2 {
        let mut part = repository.add(session, SaveOptions { rank, ..options() })?;
        part.add_stream("state", &mut &Random::new(u64::from(rank)).bytes(20_000)[..], &|_| {})?;
        part.add_stream("small", &mut &b"x"[..], &|_| {})?;
        part.finish()?;
    }
    repository.commit(session, "").map(drop)
}

#[test]
fn power_cuts_while_saving() {
    every_power_cut(&nothing, &saving);
}

#[test]
fn power_cuts_while_collecting() {
    every_power_cut(&nothing, &collecting);
}

#[test]
fn power_cuts_while_compacting() {
    every_power_cut(&much_dead, &compacting);
}

#[test]
fn power_cuts_while_parts_are_added() {
    every_power_cut(&nothing, &in_parts);
}

#[test]
fn errors_while_saving() {
    every_error(&nothing, &saving);
}

#[test]
fn errors_while_collecting() {
    every_error(&nothing, &collecting);
}

#[test]
fn errors_while_compacting() {
    every_error(&much_dead, &compacting);
}

#[test]
fn power_cuts_while_a_repository_is_made() {
    let run = |fs: &Arc<SimFs>| open(fs).and_then(|repository| save(&repository, "first", 1, &[7; 50_000]));
    let counted = Arc::new(SimFs::new());
    run(&counted).expect("works");
    for step in 1..=counted.steps() {
        for seed in 0..seeds() {
            let fs = Arc::new(SimFs::new());
            fs.plan(step, Fault::Stop);
            let succeeded = run(&fs).is_ok();
            fs.power_cut(&mut Random::new(step * 1000 + seed));
            let repository = open(&fs).unwrap_or_else(|error| panic!("step {step}: {error}"));
            let found = contents(&repository);
            assert!(!succeeded || found.len() == 1, "step {step}: a reported commit is lost");
            found.values().for_each(|bytes| assert_eq!(bytes, &[7; 50_000]));
            fs.pass(Duration::from_secs(3600));
            save(&repository, "first", 2, &[8; 50_000]).expect("saving goes on");
            let reading = repository.read().expect("read");
            let (newest, _) = repository
                .newest_whole(&reading, &Spec::parse("first").expect("spec"), Look::Deep)
                .expect("latest");
            assert_eq!(newest.map(|entry| entry.step), Some(2));
        }
    }
}
