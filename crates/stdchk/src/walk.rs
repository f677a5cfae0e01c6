//! Turning the paths that a user names into members.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use stdchk_object::error::Context;
use stdchk_object::member::check_path;
use stdchk_object::{Error, Result};

use crate::file_source::{STAGING_PREFIX, mtime_ns};

/// Something to save.
#[derive(Clone, Debug)]
pub struct Found {
    /// The member's path.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub sort: Sort,
    /// Permission bits.
    pub mode: u32,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// The sorts of things that can be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link and its target.
    Link(String),
}

/// Finds everything below `paths`. Nothing is read; whatever cannot be saved is an error now, before anything is
/// stored. A path that is named itself is followed if it is a link; links below a directory are kept as links.
///
/// `skip` is the repository itself, which is never saved into itself.
pub fn find(paths: &[PathBuf], skip: Option<&Path>) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let skip = skip.and_then(|path| fs::metadata(path).ok()).map(|there| (there.dev(), there.ino()));
    for path in paths {
        let metadata = fs::metadata(path).context(|| format!("cannot read {}", path.display()))?;
        let name = member_name(path)?;
        if metadata.is_dir() {
            // A directory that is named is the root of its members: its own name is kept unless it is ".".
            walk(path, name.as_deref(), &metadata, skip, &mut found)?;
        } else {
            let name = name
                .ok_or_else(|| Error::invalid(format!("{} has no name to save it under", path.display())))?;
            found.push(describe(path, name, &metadata, true)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = found.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let text = format!(
            "{} and {} would both be the member {:?}",
            pair[0].path.display(),
            pair[1].path.display(),
            pair[0].name
        );
        return Err(Error::invalid(text));
    }
    Ok(found)
}

/// The name under which a path is saved: relative paths as they are, without `.`; of absolute ones, and of those
/// that climb out with `..`, the last component.
fn member_name(path: &Path) -> Result<Option<String>> {
    let climbs = path.is_absolute() || path.components().any(|part| part == Component::ParentDir);
    let kept: PathBuf = if climbs {
        match path.file_name() {
            Some(name) => PathBuf::from(name),
            None => return Ok(None),
        }
    } else {
        path.components().filter(|part| *part != Component::CurDir).collect()
    };
    if kept.as_os_str().is_empty() {
        return Ok(None);
    }
    text(&kept).map(Some)
}

fn text(path: &Path) -> Result<String> {
    let name = path.to_str().ok_or_else(|| {
        Error::invalid(format!("{} cannot be saved: its name is not UTF-8", path.display()))
    })?;
    Ok(name.to_owned())
}

fn walk(
    dir: &Path,
    name: Option<&str>,
    metadata: &Metadata,
    skip: Option<(u64, u64)>,
    found: &mut Vec<Found>,
) -> Result<()> {
    if skip == Some((metadata.dev(), metadata.ino())) {
        tracing::warn!("{} is the repository itself and is not saved", dir.display());
        return Ok(());
    }
    if let Some(name) = name {
        found.push(describe(dir, name.to_owned(), metadata, false)?);
    }
    let cannot = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).context(cannot)? {
        let entry = entry.context(cannot)?;
        let path = entry.path();
        let own = text(Path::new(&entry.file_name())).map_err(|error| error.within(cannot()))?;
        let child = name.map_or_else(|| own.clone(), |name| format!("{name}/{own}"));
        let metadata = fs::symlink_metadata(&path).context(|| format!("cannot read {}", path.display()))?;
        if own.starts_with(STAGING_PREFIX) {
            tracing::warn!("{} was left by a restore that was stopped, and is not saved", path.display());
            continue;
        }
        if metadata.is_dir() {
            walk(&path, Some(&child), &metadata, skip, found)?;
        } else {
            found.push(describe(&path, child, &metadata, false)?);
        }
    }
    Ok(())
}

fn describe(path: &Path, name: String, metadata: &Metadata, follow: bool) -> Result<Found> {
    check_path(&name)?;
    let file_type = metadata.file_type();
    let refuse =
        |what: &str| Err(Error::invalid(format!("{} is {what}, which cannot be saved", path.display())));
    let sort = if file_type.is_file() {
        Sort::File
    } else if file_type.is_dir() {
        Sort::Dir
    } else if file_type.is_symlink() && !follow {
        let target = fs::read_link(path).context(|| format!("cannot read {}", path.display()))?;
        Sort::Link(text(&target).map_err(|error| error.within(format!("cannot save {}", path.display())))?)
    } else if file_type.is_socket() {
        return refuse("a socket");
    } else if file_type.is_fifo() {
        return refuse("a named pipe (use - for standard input)");
    } else if file_type.is_block_device() || file_type.is_char_device() {
        return refuse("a device");
    } else {
        return refuse("of an unknown kind");
    };
    Ok(Found {
        name,
        path: path.to_owned(),
        sort,
        mode: metadata.mode() & 0o7777,
        mtime_ns: mtime_ns(metadata),
    })
}
