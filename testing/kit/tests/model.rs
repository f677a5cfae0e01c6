//! Random sequences of operations against an obvious model: a map from names to bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use stdchk::{
    AppName, Chunking, ChunkingChoice, Codec, Coding, Import, Look, Policy, Prefer, Preference, Repository,
    SCRIPT_LEASE, SaveOptions, Spec,
};
use stdchk_kit::{Random, SimFs, generate};

/// One operation on the repository.
#[derive(Clone, Debug)]
enum Action {
    /// Save the image of an application after changing it.
    Save {
        app: usize,
        step: u64,
        change: Change,
        how: How,
    },
    /// Save it in two parts.
    SaveParts {
        app: usize,
        step: u64,
    },
    /// Begin a save and give it up.
    Abort {
        app: usize,
    },
    SetPolicy {
        app: usize,
        keep_last: u32,
    },
    Prune,
    Forget {
        index: usize,
    },
    Gc {
        compact: bool,
    },
    ExportImport {
        index: usize,
        step: u64,
    },
    Reopen,
}

/// How an image changes before it is saved.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Pages { percent: u64 },
    Insert { at: usize, len: usize },
    Cut { at: usize, len: usize },
    Zero { at: usize, len: usize },
    CopyFrom { app: usize },
}

/// How it is saved.
#[derive(Clone, Debug)]
struct How {
    chunking: usize,
    coding: usize,
}

const APPS: [&str; 3] = ["melt", "cm1", "train"];

const CHUNKINGS: [ChunkingChoice; 5] = [
    ChunkingChoice::Auto,
    ChunkingChoice::Fixed(Chunking::Page(4096)),
    ChunkingChoice::Fixed(Chunking::Page(512)),
    ChunkingChoice::Fixed(Chunking::Page(65536)),
    ChunkingChoice::Fixed(Chunking::Cdc(2048)),
];

const CODINGS: [Preference; 5] = [
    Preference::Auto(Prefer::Space),
    Preference::Fixed(Coding::NONE, 1),
    Preference::Fixed(Coding::new(Codec::Lz4, 4), 1),
    Preference::Fixed(Coding::new(Codec::Zstd, 8), 1),
    Preference::Fixed(Coding::new(Codec::Zstd, 2).of_delta(), 1),
];

fn change() -> impl Strategy<Value = Change> {
    let (at, len) = (0usize..200_000, 1usize..40_000);
    prop_oneof![
        Just(Change::Nothing),
        (1u64..60).prop_map(|percent| Change::Pages { percent }),
        (at.clone(), len.clone()).prop_map(|(at, len)| Change::Insert { at, len }),
        (at.clone(), len.clone()).prop_map(|(at, len)| Change::Cut { at, len }),
        (at, len).prop_map(|(at, len)| Change::Zero { at, len }),
        (0..APPS.len()).prop_map(|app| Change::CopyFrom { app }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let app = 0..APPS.len();
    let how = (0..CHUNKINGS.len(), 0..CODINGS.len()).prop_map(|(chunking, coding)| How { chunking, coding });
    prop_oneof![
        6 => (app.clone(), 0u64..20, change(), how)
            .prop_map(|(app, step, change, how)| Action::Save { app, step, change, how }),
        1 => (app.clone(), 0u64..20).prop_map(|(app, step)| Action::SaveParts { app, step }),
        1 => app.clone().prop_map(|app| Action::Abort { app }),
        1 => (app, 1u32..4).prop_map(|(app, keep_last)| Action::SetPolicy { app, keep_last }),
        2 => Just(Action::Prune),
        1 => any::<usize>().prop_map(|index| Action::Forget { index }),
        3 => any::<bool>().prop_map(|compact| Action::Gc { compact }),
        1 => (any::<usize>(), 0u64..20).prop_map(|(index, step)| Action::ExportImport { index, step }),
        1 => Just(Action::Reopen),
    ]
}

/// What should be there: for each application its checkpoints in commit order, each with its parts' bytes.
#[derive(Default)]
struct Model {
    checkpoints: BTreeMap<usize, Vec<(u64, u32, Vec<Vec<u8>>)>>,
    policies: BTreeMap<usize, u32>,
    images: [Vec<u8>; APPS.len()],
}

impl Model {
    fn commit(&mut self, app: usize, step: u64, parts: Vec<Vec<u8>>) -> u32 {
        let all = self.checkpoints.entry(app).or_default();
        let newest = all.iter().filter(|entry| entry.0 == step).map(|entry| entry.1).max();
        let generation = newest.unwrap_or(0) + 1;
        all.push((step, generation, parts));
        generation
    }

    fn prune(&mut self) {
        for (app, all) in &mut self.checkpoints {
            if let Some(&keep) = self.policies.get(app) {
                all.drain(..all.len().saturating_sub(keep as usize));
            }
        }
    }

    fn nth(&self, index: usize) -> Option<(usize, u64, u32, Vec<Vec<u8>>)> {
        let all: Vec<_> = self
            .checkpoints
            .iter()
            .flat_map(|(&app, list)| {
                list.iter().map(move |(step, generation, parts)| (app, *step, *generation, parts))
            })
            .collect();
        let count = all.len();
        all.get(index % count.max(1))
            .map(|&(app, step, generation, parts)| (app, step, generation, parts.clone()))
    }
}

fn apply(images: &mut [Vec<u8>; APPS.len()], app: usize, change: &Change, random: &mut Random) {
    let other = match change {
        Change::CopyFrom { app } => images[*app].clone(),
        _ => Vec::new(),
    };
    let image = &mut images[app];
    match *change {
        Change::Nothing => {}
        Change::Pages { percent } => generate::touch_pages(image, percent, random),
        Change::Insert { at, len } => {
            let at = at.min(image.len());
            let bytes = random.bytes(len);
            image.splice(at..at, bytes);
            image.truncate(400_000);
        }
        Change::Cut { at, len } => {
            let at = at.min(image.len());
            image.drain(at..(at + len).min(image.len()));
        }
        Change::Zero { at, len } => {
            let at = at.min(image.len());
            let end = (at + len).min(image.len());
            image[at..end].fill(0);
        }
        Change::CopyFrom { .. } => *image = other,
    }
}

fn options(how: Option<&How>) -> SaveOptions {
    let mut options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    if let Some(how) = how {
        options.chunking = Some(CHUNKINGS[how.chunking]);
        options.coding = Some(CODINGS[how.coding]);
    }
    options
}

fn app_name(app: usize) -> AppName {
    AppName::new(APPS[app]).expect("a name")
}

fn read_parts(repository: &Repository, id: &str) -> Vec<Vec<u8>> {
    let reading = repository.read().expect("read");
    let spec = Spec::parse(id).expect("spec");
    let (found, passed) = repository.newest_whole(&reading, &spec, Look::Quick).expect("find");
    assert!(passed.is_empty(), "{passed:?}");
    let checkpoint = repository.checkpoint(&reading, &found.expect("whole")).expect("open");
    let bytes = |member| {
        let mut bytes = Vec::new();
        checkpoint.write_to(member, &mut bytes, &|_| {}).expect("read");
        bytes
    };
    checkpoint.members.iter().map(bytes).collect()
}

fn compare(repository: &Repository, model: &Model) {
    let state = repository.state().expect("state");
    let there: Vec<String> = state.checkpoints().map(|entry| entry.id().to_string()).collect();
    let mut expected = Vec::new();
    for (&app, list) in &model.checkpoints {
        for (step, generation, parts) in list {
            let id = format!("{}@{step}.{generation}", APPS[app]);
            assert!(read_parts(repository, &id) == *parts, "{id} has other bytes");
            expected.push(id.trim_end_matches(".1").to_owned());
        }
        if let Some((step, _, parts)) = list.last() {
            assert!(
                read_parts(repository, APPS[app]) == *parts,
                "the newest of {} is not step {step}",
                APPS[app]
            );
        }
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(there), sorted(expected));
}

fn run(actions: Vec<Action>, seed: u64) {
    let fs = Arc::new(SimFs::new());
    let open = || Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open");
    let mut repository = open();
    let mut random = Random::new(seed);
    let mut model = Model::default();
    model.images.iter_mut().for_each(|image| *image = generate::process_image(150_000, &mut random));
    for action in actions {
        match action {
            Action::Save { app, step, change, how } => {
                apply(&mut model.images, app, &change, &mut random);
                let mut save = repository.save(&app_name(app), step, options(Some(&how))).expect("save");
                save.add_bytes("state", &model.images[app]).expect("add");
                let saved = save.commit().expect("commit");
                let image = model.images[app].clone();
                assert_eq!(saved.id.generation, model.commit(app, step, vec![image]));
                let tally = stdchk::Tally::from(saved.entry.tally);
                assert_eq!(tally.new + tally.shared + tally.zero, saved.entry.bytes);
            }
            Action::SaveParts { app, step } => {
                let session = repository.begin(&app_name(app), step, Some(2), SCRIPT_LEASE).expect("begin");
                let (left, right) = model.images[app].split_at(model.images[app].len() / 2);
                for (rank, bytes) in [left, right].into_iter().enumerate() {
                    let options = SaveOptions { rank: rank as u32, ..options(None) };
                    let mut part = repository.add(session, options).expect("add");
                    part.add_stream("state", &mut { bytes }, &|_| {}).expect("stream");
                    part.finish().expect("finish");
                }
                let saved = repository.commit(session, "").expect("commit");
                let parts = vec![left.to_vec(), right.to_vec()];
                assert_eq!(saved.id.generation, model.commit(app, step, parts));
            }
            Action::Abort { app } => {
                let mut save = repository.save(&app_name(app), 1, options(None)).expect("save");
                save.add_bytes("state", &random.bytes(5000)).expect("add");
                save.abort();
            }
            Action::SetPolicy { app, keep_last } => {
                let policy = Policy { keep_last: Some(keep_last), ..Policy::default() };
                repository.set_policy(&app_name(app), &policy).expect("policy");
                model.policies.insert(app, keep_last);
            }
            Action::Prune => {
                stdchk::prune(&repository.ground(), None, stdchk::now_ns()).expect("prune");
                model.prune();
            }
            Action::Forget { index } => {
                if let Some((app, step, generation, _)) = model.nth(index) {
                    let id = stdchk::CheckpointId { app: app_name(app), step, generation };
                    repository.forget(&[id]).expect("forget");
                    let list = model.checkpoints.get_mut(&app).expect("it has checkpoints");
                    list.retain(|entry| (entry.0, entry.1) != (step, generation));
                }
            }
            Action::Gc { compact } => drop(stdchk::collect(&repository.ground(), compact).expect("gc")),
            Action::ExportImport { index, step } => {
                if let Some((app, from, generation, parts)) = model.nth(index) {
                    let mut stream = Vec::new();
                    let reading = repository.read().expect("read");
                    let spec = Spec::parse(&format!("{}@{from}.{generation}", APPS[app])).expect("spec");
                    let entry = spec.find(&reading.state).expect("find")[0].clone();
                    let checkpoint = repository.checkpoint(&reading, &entry).expect("open");
                    checkpoint.export(&mut stream, &|_| {}).expect("export");
                    drop(reading);
                    let mut input = &stream[..];
                    let import = Import::open(&mut input).expect("import");
                    import
                        .save_into(&repository, &app_name(app), step, options(None), &|_| {})
                        .expect("import");
                    model.commit(app, step, parts);
                }
            }
            Action::Reopen => repository = open(),
        }
        compare(&repository, &model);
    }
    stdchk::collect(&repository.ground(), true).expect("gc");
    compare(&repository, &model);
    let reading = repository.read().expect("read");
    assert!(repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("STDCHK_TEST_LONG").is_some() { 1000 } else { 48 },
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_repository_is_a_map(actions in proptest::collection::vec(action(), 1..25), seed in any::<u64>()) {
        run(actions, seed);
    }
}
