//! Exports and imports.

use stdchk::{Chunking, ChunkingChoice, Repository, Spec};
use stdchk_kit::Random;

use crate::{app, options, read, repository, save};

/// Exports a checkpoint and imports it elsewhere; the export.
fn carried(from: &Repository, to: &Repository, step: u64) -> Vec<u8> {
    let reading = from.read().expect("read");
    let entry =
        Spec::parse(&format!("melt@{step}")).expect("spec").find(&reading.state).expect("there")[0].clone();
    let checkpoint = from.checkpoint(&reading, &entry).expect("open");
    let mut export = Vec::new();
    checkpoint.export(&mut export, &|_| {}).expect("export");
    let mut input = &export[..];
    let import = stdchk::Import::open(&mut input).expect("an export");
    import.save_into(to, &app(), step, options(), &|_| {}).expect("import");
    export
}

#[test]
fn exports_of_long_pages_can_be_imported() {
    let (_, from) = repository();
    let (_, to) = repository();
    let mut options = options();
    options.chunking = Some(ChunkingChoice::Fixed(Chunking::Page(16 << 20)));
    options.memory = 256 << 20;
    let image = Random::new(8).bytes(17 << 20);
    save(&from, 1, &image, options);
    carried(&from, &to, 1);
    assert!(read(&to, 1).expect("read") == image);
}

#[test]
fn holes_are_exported_as_holes() {
    let (_, from) = repository();
    let (_, to) = repository();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state");
    let sparse = std::fs::File::create(&file).expect("a file");
    sparse.set_len(300 << 20).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"something", 200 << 20).expect("bytes");
    let mut save = from.save(&app(), 1, options()).expect("save");
    save.add_paths(std::slice::from_ref(&file), &|_| {}).expect("add");
    save.commit().expect("commit");
    assert!(carried(&from, &to, 1).len() < 5000);
    assert!(read(&to, 1).expect("read") == std::fs::read(file).expect("read"));
}
