//! Every decoder of the house behind one door, for fuzzing: `testing/fuzz` feeds it new bytes, `make test` the corpus.

use std::path::Path;
use std::sync::Arc;

use stdchk::{Import, Repository, SaveOptions};
use stdchk_catalog::{Record, State};
use stdchk_codec::Press;
use stdchk_object::envelope::{self, Sort};
use stdchk_object::forward::ForwardTable;
use stdchk_object::manifest::Manifest;
use stdchk_object::member::decode_page;
use stdchk_object::pack::{self, Coding, FooterBuilder};
use stdchk_object::part::Part;
use stdchk_object::tree::{Blob, Node};
use stdchk_object::wire::Reader;
use stdchk_object::{PackName, SessionId};

use crate::SimFs;

/// The decoders, by the first byte of an input.
pub const DECODERS: [&str; 14] = [
    "record", "snapshot", "footer", "leaf", "inner", "blob", "page", "part", "manifest", "forward", "lz4",
    "zstd", "import", "frames",
];

/// Bytes of kinds that are sealed by a hash are sealed here, so that what lies behind the hash is reached, too.
fn sealed(sort: Sort, body: &[u8]) -> Vec<u8> {
    envelope::seal(sort, body)
}

/// Decodes the bytes behind the first by the decoder that the first chooses. It must return: no panic, no hang, and no
/// more memory than the input can justify.
pub fn decode_anything(bytes: &[u8]) {
    let Some((&which, body)) = bytes.split_first() else { return };
    let mut out = Vec::new();
    match DECODERS[usize::from(which) % DECODERS.len()] {
        "record" => {
            let record = Record::decode(1, &sealed(Sort::Record, body));
            if let Ok(record) = record {
                assert!(Record::decode(1, &record.encode()).is_ok_and(|again| again == record));
                let _ = State::default().apply(&record);
            }
        }
        "snapshot" => {
            if let Ok(state) = State::decode(1, &sealed(Sort::Snapshot, body)) {
                assert!(State::decode(1, &state.encode()).is_ok_and(|again| again == state));
            }
        }
        "footer" => footer(body),
        "leaf" => drop(Node::decode(body, 0, 4 << 20)),
        "inner" => drop(Node::decode(body, 1, 4 << 20)),
        "blob" => drop(Blob::decode(&mut Reader::new(body, "fuzz"))),
        "page" => drop(decode_page(body)),
        "part" => drop(Part::decode(body)),
        "manifest" => drop(Manifest::decode(body)),
        "forward" => {
            if let Ok(table) = ForwardTable::decode(body) {
                let ends = table.ranges.iter().flat_map(|range| [range.from, range.from + range.count - 1]);
                ends.for_each(|chunk| assert!(table.lookup(chunk).is_some()));
                let _ = table.lookup(u32::MAX);
            }
        }
        "lz4" => coded(1, body, &mut out),
        "zstd" => coded(2, body, &mut out),
        "import" => drop(Import::open(&mut { body })),
        _ => frames(body),
    }
}

fn coded(codec: u8, body: &[u8], out: &mut Vec<u8>) {
    let planes = [0, 2, 4, 8][body.len() % 4];
    if let Some(coding) = Coding::decode(codec, planes) {
        let _ = Press::new().decompress(coding, body, 100_000, out);
    }
}

/// A footer, behind where its hashes begin and how many there are, in a pack whose root fits it, so that the decoder behind the root is reached.
fn footer(body: &[u8]) {
    let name = PackName { session: SessionId(1), writer: 2, number: 3 };
    let Some((offset, rest)) = body.split_first_chunk::<4>() else { return };
    let Some((hashes, rest)) = rest.split_first_chunk::<4>() else { return };
    let (offset, hashes) = (u32::from_le_bytes(*offset), u32::from_le_bytes(*hashes));
    let mut end = FooterBuilder::reseal(name, u64::from(offset), hashes, rest);
    if let Ok((_, footer)) = pack::open_footer_unreferenced(name, end.1, &end.0) {
        for run in footer.runs() {
            let chunks = run.first_chunk..run.end_chunk();
            let sum: u64 = chunks.clone().take(100_000).map(|chunk| u64::from(run.chunk_len(chunk))).sum();
            assert!(sum <= u64::from(run.raw_len));
            chunks.take(100).for_each(|chunk| {
                assert!(run.chunk_start(chunk) < run.raw_len);
                assert!(footer.base_of_chunk(chunk).is_none() || run.coding.delta);
            });
            let covered: u64 = footer.base_of(run).map(|span| u64::from(span.count)).sum();
            assert_eq!(covered, if run.coding.delta { u64::from(run.chunk_count) } else { 0 });
        }
    }
    end.0.truncate(end.0.len() / 2);
    let _ = pack::open_footer_unreferenced(name, end.1, &end.0);
}

/// Bytes of an export before its first frame.
const PREAMBLE: usize = 10;
/// Bytes of the running hash behind each frame.
const CHECK: usize = 16;

/// The frames of an export without what seals them: for each its sort, the length of its body in two bytes, and the body.
pub fn unsealed_frames(export: &[u8]) -> Vec<u8> {
    let mut rest = &export[PREAMBLE..];
    let mut out = Vec::new();
    while let [sort, a, b, 0, 0, body @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*a, *b]));
        out.extend([*sort, *a, *b]);
        out.extend_from_slice(&body[..len]);
        rest = &body[len + CHECK..];
    }
    out
}

/// An export of these frames, sealed as if they were sound, so that what lies behind the running hash is reached.
pub fn sealed_frames(mut frames: &[u8]) -> Vec<u8> {
    let mut export = b"STDCHKEX\x01\x00".to_vec();
    let mut chain = blake3::Hasher::new();
    chain.update(&export);
    while let [sort, a, b, rest @ ..] = frames {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes([*a, *b])).min(rest.len()));
        frames = rest;
        let length = (body.len() as u32).to_le_bytes();
        for piece in [&[*sort][..], &length, body] {
            chain.update(piece);
            export.extend_from_slice(piece);
        }
        export.extend_from_slice(&chain.finalize().as_bytes()[..CHECK]);
    }
    export
}

/// Imports frames into a repository in memory. What is taken in must be whole, what is refused must leave nothing.
fn frames(body: &[u8]) {
    // Every frame can be a hole of 4 MiB, so many of them only take long.
    let export = sealed_frames(&body[..body.len().min(4096)]);
    let mut input = &export[..];
    let Ok(import) = Import::open(&mut input) else { return };
    let repository =
        Repository::open_or_create_on(Arc::new(SimFs::new()), Path::new("sim")).expect("a repository");
    let options = SaveOptions { memory: 64 << 20, ..SaveOptions::default() };
    let (app, step) = (import.app.clone(), import.step);
    let imported = import.save_into(&repository, &app, step, options, &|_| {});
    let reading = repository.read().expect("a state");
    let saved: Vec<_> = reading.state.checkpoints().cloned().collect();
    assert_eq!(saved.len(), usize::from(imported.is_ok()));
    for entry in saved {
        let checkpoint = repository.checkpoint(&reading, &entry).expect("what was saved can be opened");
        checkpoint.export(&mut std::io::sink(), &|_| {}).expect("and read");
    }
}
