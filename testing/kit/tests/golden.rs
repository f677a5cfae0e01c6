//! What was written once stays readable: repositories that were committed with the version that wrote them, and
//! boundary vectors of the format in a file that any language can read.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use stdchk::{AppName, Body, Codec, Coding, Import, Preference, Repository, SaveOptions, Spec};
use stdchk_codec::Cutter;
use stdchk_kit::{Random, generate};
use stdchk_object::hash::Domain;
use stdchk_object::tree::height_for;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{PackName, SessionId};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden")
}

fn writing() -> bool {
    std::env::var_os("STDCHK_WRITE_GOLDEN").is_some()
}

/// The states that every golden repository holds, by step.
fn states() -> Vec<Vec<u8>> {
    let mut random = Random::new(77);
    let mut image = generate::process_image(60_000, &mut random);
    let mut states = Vec::new();
    for _ in 0..4 {
        states.push(image.clone());
        generate::touch_pages(&mut image, 20, &mut random);
    }
    // The last one is stored as differences.
    image.copy_from_slice(&states[3]);
    generate::drift(&mut image, 60, &mut random);
    states.push(image);
    states
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

fn write_repository(place: &Path) {
    let repository = Repository::open_or_create(place.to_str().expect("text")).expect("create");
    let app = AppName::new("golden").expect("name");
    for (step, state) in states().iter().enumerate() {
        let mut options = SaveOptions::default();
        if step == 4 {
            options.coding = Some(Preference::Fixed(Coding::new(Codec::Zstd, 8).of_delta(), 1));
        }
        let mut save = repository.save(&app, step as u64, options).expect("save");
        save.add_bytes("state", state).expect("add");
        save.commit().expect("commit");
    }
    let reading = repository.read().expect("read");
    let entry = Spec::parse("golden@1").expect("spec").find(&reading.state).expect("there")[0].clone();
    let mut stream = Vec::new();
    repository.checkpoint(&reading, &entry).expect("open").export(&mut stream, &|_| {}).expect("export");
    std::fs::write(place.with_extension("export"), stream).expect("a file");
    // It has no meaning, and need not be kept.
    std::fs::remove_file(place.join("ballast")).expect("a ballast");
}

#[test]
fn old_repositories_stay_readable() {
    let folder = golden().join("repositories");
    let current = folder.join(format!("v{}", env!("CARGO_PKG_VERSION")));
    if writing() {
        let _ = std::fs::remove_dir_all(&current);
        std::fs::create_dir_all(&folder).expect("a folder");
        write_repository(&current);
    }
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("golden repositories are committed") {
        let path = entry.expect("an entry").path();
        let dir = tempfile::tempdir().expect("a folder");
        if !path.is_dir() {
            check_export(&path, dir.path());
            continue;
        }
        // git keeps no empty folders, and reading writes: a copy is completed and opened.
        let place = dir.path().join("copy");
        copy(&path, &place);
        for folder in ["snapshots", "beats", "tmp", "index"] {
            std::fs::create_dir_all(place.join(folder)).expect("a folder");
        }
        let repository = Repository::open(place.to_str().expect("text")).expect("open");
        let reading = repository.read().expect("read");
        assert!(
            repository.verify(&reading, None, &|_, _| {}).expect("verify").is_clean(),
            "{}",
            path.display()
        );
        for (step, state) in states().iter().enumerate() {
            let entries = Spec::parse(&format!("golden@{step}")).expect("spec");
            let entry = entries.find(&reading.state).expect("there")[0].clone();
            let checkpoint = repository.checkpoint(&reading, &entry).expect("opens");
            let member = checkpoint.member("state", None).expect("a member");
            assert!(matches!(member.member.body, Body::Stream(_)));
            let mut bytes = Vec::new();
            checkpoint.write_to(member, &mut bytes, &|_| {}).expect("reads");
            assert!(bytes == *state, "{} step {step}", path.display());
        }
        count += 1;
    }
    assert!(count > 0, "no golden repository was found");
}

fn check_export(path: &Path, dir: &Path) {
    let repository = Repository::open_or_create(dir.join("import").to_str().expect("text")).expect("create");
    let mut file = std::fs::File::open(path).expect("a file");
    let import = Import::open(&mut file).expect("an export");
    assert_eq!((import.app.as_str(), import.step), ("golden", 1));
    let app = AppName::new("golden").expect("name");
    import.save_into(&repository, &app, 1, SaveOptions::default(), &|_| {}).expect("import");
    let reading = repository.read().expect("read");
    let entry = Spec::parse("golden").expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry).expect("opens");
    let mut bytes = Vec::new();
    checkpoint
        .write_to(checkpoint.member("state", None).expect("a member"), &mut bytes, &|_| {})
        .expect("reads");
    assert!(bytes == states()[1]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The vectors as this version computes them.
fn vectors() -> Value {
    let varints = [0u64, 1, 127, 128, 300, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
    let varints: Vec<Value> = varints
        .into_iter()
        .map(|value| {
            let mut out = Writer::new();
            out.varint(value);
            json!({ "value": value.to_string(), "bytes": hex(&out.into_bytes()) })
        })
        .collect();
    let zigzags: Vec<Value> = [0i64, -1, 1, -64, 64, i64::MIN, i64::MAX]
        .into_iter()
        .map(|value| {
            let mut out = Writer::new();
            out.zigzag(value);
            json!({ "value": value.to_string(), "bytes": hex(&out.into_bytes()) })
        })
        .collect();
    let domains = [
        ("data chunk", Domain::Data),
        ("tree node", Domain::Node),
        ("member page", Domain::MemberPage),
        ("part", Domain::Part),
        ("manifest", Domain::Manifest),
        ("forward table", Domain::Forward),
        ("pack root", Domain::PackRoot),
        ("stored run", Domain::StoredRun),
        ("envelope", Domain::Envelope),
    ];
    let hashes: Vec<Value> = domains
        .iter()
        .flat_map(|(name, domain)| {
            [0usize, 1, 1024, 4096, 4097].map(|len| {
                let input: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                json!({ "kind": name, "input_len": len, "hash": domain.hash(&input).to_string() })
            })
        })
        .collect();
    let name = PackName { session: SessionId(0x0123_4567_89ab_cdef), writer: 0xfedc_ba98, number: 7 };
    let heights: Vec<Value> =
        [0u64, 1, 4 << 20, (4 << 20) + 1, 1 << 30, (1 << 30) + 1, 1 << 38, (1 << 38) + 1, u64::MAX]
            .into_iter()
            .map(|len| json!({ "length": len.to_string(), "leaf_shift": 22, "height": height_for(len, 22) }))
            .collect();
    let cuts: Vec<Value> = [1024u32, 8192, 65536]
        .into_iter()
        .map(|average| {
            let mut lengths = Vec::new();
            let bytes = Random::new(1).bytes(300_000);
            Cutter::new(average).expect("a size").cut(&bytes, true, &mut lengths);
            json!({ "average": average, "seed": 1, "input_len": 300_000, "lengths": lengths })
        })
        .collect();
    json!({
        "about": "Boundary vectors of docs/FORMAT.md. Input bytes of hashes are i mod 251; those of cuts are xoshiro256** seeded by splitmix64.",
        "varint": varints,
        "zigzag": zigzags,
        "hash": hashes,
        "pack_name": { "session": "0123456789abcdef", "writer": "fedcba98", "number": 7, "text": name.to_string(), "bytes": hex(&name.to_bytes()) },
        "tree_height": heights,
        "cdc": cuts,
    })
}

#[test]
fn boundary_vectors_do_not_move() {
    let path = golden().join("vectors.json");
    let now = format!("{:#}\n", vectors());
    if writing() {
        std::fs::create_dir_all(golden()).expect("a folder");
        std::fs::write(&path, &now).expect("a file");
    }
    let then = std::fs::read_to_string(&path).expect("the vectors are committed");
    assert!(
        now == then,
        "the format's vectors differ from those that were committed: old repositories would not be read"
    );
    for case in vectors()["varint"].as_array().expect("a list") {
        let text = case["bytes"].as_str().expect("text");
        let bytes: Vec<u8> = (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex"))
            .collect();
        let value = Reader::new(&bytes, "vector").varint().expect("reads");
        assert_eq!(value.to_string(), case["value"].as_str().expect("text"));
    }
}
