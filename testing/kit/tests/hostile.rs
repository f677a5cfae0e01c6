//! The fuzz corpus, and mutations of well-formed objects, through every decoder.

use std::path::Path;
use std::sync::Arc;

use stdchk_catalog::conformance::{commit, pack, writer};
use stdchk_catalog::{Op, Record, State};
use stdchk_kit::hostile::{DECODERS, decode_anything, sealed_frames, unsealed_frames};
use stdchk_kit::{Random, SimFs, generate};
use stdchk_object::PackName;
use stdchk_object::envelope::OVERHEAD;
use stdchk_object::pack::{FooterBuilder, TRAILER_BYTES, Trailer};

/// Inputs that decode, one or more for each decoder.
fn seeds() -> Vec<Vec<u8>> {
    let ops = [writer(1, 5), commit(1, 5, &[pack(3, 4)]), Op::Condemn(vec![pack(9, 9)])];
    let record = Record { number: 1, nonce: [7; 16], time_ns: 5, ops: vec![ops[0].clone(), ops[2].clone()] };
    let mut state = State::default();
    state.apply(&record).expect("allowed");
    let body = |sealed: Vec<u8>| sealed[16..sealed.len() - (OVERHEAD - 16)].to_vec();
    let with = |decoder: &str, body: Vec<u8>| {
        let which = DECODERS.iter().position(|name| *name == decoder).expect("a decoder") as u8;
        [vec![which], body].concat()
    };
    let mut seeds = vec![with("record", body(record.encode())), with("snapshot", body(state.encode()))];
    let packs = packs();
    seeds.extend(packs.iter().map(|pack| with("footer", footer_of(pack))));
    seeds.extend(packs.iter().map(|pack| pack[pack.len().saturating_sub(1500)..].to_vec()).flat_map(
        |bytes| {
            ["leaf", "inner", "page", "part", "manifest", "forward", "blob", "lz4", "zstd", "import"]
                .map(|decoder| with(decoder, bytes.clone()))
        },
    ));
    seeds.push(with("frames", unsealed_frames(&exported())));
    seeds
}

/// An export with a member of each sort, and of two ranks.
fn exported() -> Vec<u8> {
    use stdchk::{AppName, Repository, SCRIPT_LEASE, SaveOptions};
    let repository = Repository::open_or_create_on(Arc::new(SimFs::new()), Path::new("sim")).expect("create");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    std::fs::create_dir(&state).expect("a folder");
    std::fs::write(state.join("field"), [&[1; 9000][..], &[0; 20_000], &[2; 100]].concat()).expect("a file");
    std::fs::write(state.join("empty"), []).expect("a file");
    std::os::unix::fs::symlink("field", state.join("link")).expect("a link");
    let session =
        repository.begin(&AppName::new("a").expect("name"), 7, Some(2), SCRIPT_LEASE).expect("begin");
    for rank in 0..2 {
        let mut part = repository.add(session, SaveOptions { rank, ..SaveOptions::default() }).expect("add");
        part.add_paths(std::slice::from_ref(&state), &|_| {}).expect("add");
        part.add_stream("stream", &mut &[rank as u8; 5000][..], &|_| {}).expect("add");
        part.finish().expect("finish");
    }
    repository.commit(session, "a note").expect("commit");
    let reading = repository.read().expect("read");
    let entry = reading.state.checkpoints().next().expect("one").clone();
    let mut export = Vec::new();
    repository
        .checkpoint(&reading, &entry)
        .and_then(|checkpoint| checkpoint.export(&mut export, &|_| {}))
        .expect("export");
    export
}

/// What [`exported`] gives must reach the end of an import, or the frames are fuzzed in vain.
#[test]
fn frames_are_sealed_as_an_export_seals_them() {
    let export = exported();
    assert_eq!(sealed_frames(&unsealed_frames(&export)), export);
}

/// Where the hashes of a pack begin, how many bytes they are, and its footer.
fn footer_of(pack: &[u8]) -> Vec<u8> {
    let end = pack.len() - TRAILER_BYTES;
    let name = pack[16..32].first_chunk().expect("a header");
    let trailer =
        Trailer::decode(PackName::from_bytes(*name), pack.len() as u64, &pack[end..]).expect("a pack");
    let footer = &pack[end - trailer.footer_len as usize..end];
    let offset = trailer.hashes_offset as u32;
    [&offset.to_le_bytes()[..], &trailer.hashes_len.to_le_bytes(), footer].concat()
}

/// What the fuzzer makes of a real footer must be read, or nothing behind the root is fuzzed.
#[test]
fn footers_are_sealed_as_packs_seal_them() {
    for pack in packs() {
        let body = footer_of(&pack);
        let (offset, hashes) = (body[..4].first_chunk().unwrap(), body[4..8].first_chunk().unwrap());
        let (offset, hashes) = (u32::from_le_bytes(*offset), u32::from_le_bytes(*hashes));
        let name = PackName::from_bytes(*pack[16..32].first_chunk().expect("a header"));
        let (end, length) = FooterBuilder::reseal(name, u64::from(offset), hashes, &body[8..]);
        assert!(pack.ends_with(&end) && length == pack.len() as u64);
    }
}

/// Real packs, one of them with deltas; their ends hold nodes, pages, parts and manifests.
fn packs() -> Vec<Vec<u8>> {
    use stdchk::{AppName, Codec, Coding, Preference, Repository, SaveOptions};
    let fs = std::sync::Arc::new(SimFs::new());
    let repository = Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("create");
    let mut options =
        SaveOptions { coding: Some(Preference::Fixed(Coding::NONE, 1)), ..SaveOptions::default() };
    let mut image = generate::process_image(40_000, &mut Random::new(1));
    for step in 0..4 {
        if step == 3 {
            options.coding = Some(Preference::Fixed(Coding::new(Codec::Zstd, 8).of_delta(), 1));
        }
        let mut save =
            repository.save(&AppName::new("a").expect("name"), step, options.clone()).expect("save");
        save.add_bytes("state", &image).expect("add");
        save.commit().expect("commit");
        match step {
            2 => generate::drift(&mut image, 60, &mut Random::new(step)),
            _ => generate::touch_pages(&mut image, 40, &mut Random::new(step)),
        }
    }
    fs.files().into_iter().filter(|(path, _)| path.starts_with("packs/")).map(|(_, bytes)| bytes).collect()
}

#[test]
fn mutations_of_sound_objects_are_read_or_refused() {
    let rounds = if std::env::var_os("STDCHK_TEST_LONG").is_some() { 200_000 } else { 3000 };
    let mut random = Random::new(4);
    for seed in seeds() {
        decode_anything(&seed);
        for _ in 0..rounds / 10 {
            let mut bytes = seed.clone();
            for _ in 0..=random.below(4) {
                let at = 1 + random.below(bytes.len().max(2) as u64 - 1) as usize;
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                    2 => bytes.truncate(at.max(2)),
                    _ => {
                        let from = 1 + random.below(bytes.len() as u64 - 1) as usize;
                        let piece = bytes[from..].to_vec();
                        bytes.truncate(at);
                        bytes.extend(piece);
                        bytes.truncate(20_000);
                    }
                }
                if bytes.len() < 3 {
                    break;
                }
            }
            decode_anything(&bytes);
        }
    }
}

#[test]
fn random_bytes_are_read_or_refused() {
    let mut random = Random::new(5);
    for i in 0..20_000u64 {
        let len = random.below(300) as usize;
        let mut bytes = random.bytes(len + 1);
        bytes[0] = i as u8;
        // Small numbers reach further than large ones.
        bytes[1..].iter_mut().filter(|_| i % 3 > 0).for_each(|byte| *byte &= 0x0f);
        decode_anything(&bytes);
    }
}

/// What fuzzing found interesting is kept in `testing/fuzz/seeds`, and stays harmless.
#[test]
fn the_corpus_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is committed") {
        decode_anything(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

/// With STDCHK_WRITE_CORPUS set, writes the inputs that decode to `testing/fuzz/seeds`, for when a format changes.
#[test]
fn write_corpus() {
    if std::env::var_os("STDCHK_WRITE_CORPUS").is_none() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (i, seed) in seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{i:03}")), seed).expect("a file");
    }
}
