//! Bugs that were found, each as the smallest story that shows it.

mod budget;
mod damage;
mod durability;
mod exports;
mod files;
mod parts;
mod room;

use std::path::Path;
use std::sync::Arc;

use stdchk::{AppName, Repository, SaveOptions, Spec};
use stdchk_kit::SimFs;

fn repository() -> (Arc<SimFs>, Repository) {
    let fs = Arc::new(SimFs::new());
    let repository = open(&fs);
    (fs, repository)
}

fn open(fs: &Arc<SimFs>) -> Repository {
    Repository::open_or_create_on(fs.clone(), Path::new("sim")).expect("open")
}

fn app() -> AppName {
    AppName::new("melt").expect("a name")
}

fn options() -> SaveOptions {
    SaveOptions { memory: 64 << 20, ..SaveOptions::default() }
}

fn save(repository: &Repository, step: u64, bytes: &[u8], options: SaveOptions) {
    let mut save = repository.save(&app(), step, options).expect("save");
    save.add_bytes("state", bytes).expect("add");
    save.commit().expect("commit");
}

fn read(repository: &Repository, step: u64) -> stdchk::Result<Vec<u8>> {
    let reading = repository.read()?;
    let spec = Spec::parse(&format!("melt@{step}"))?;
    let entry = spec.find(&reading.state)?[0].clone();
    let checkpoint = repository.checkpoint(&reading, &entry)?;
    let mut bytes = Vec::new();
    checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
    Ok(bytes)
}
