//! What lies in the page cache: whoever is measured finds there what was meant, not what happened to be left.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

/// All files below a folder, or the file itself.
pub fn files(path: &Path) -> Vec<PathBuf> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().flat_map(|entry| files(&entry.path())).collect(),
        Err(_) if path.is_file() => vec![path.to_owned()],
        Err(_) => Vec::new(),
    }
}

/// Reads everything once.
pub fn warm(path: &Path) {
    for file in files(path) {
        let mut file = File::open(file).expect("it is there");
        std::io::copy(&mut file, &mut std::io::sink()).expect("it can be read");
    }
}

/// Drops everything, so that it must be read from the disk.
pub fn chill(path: &Path) {
    for file in files(path) {
        let file = File::open(file).expect("it is there");
        file.sync_all().expect("it can be synced");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the kernel takes advice");
    }
}
