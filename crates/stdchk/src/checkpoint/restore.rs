//! Restoring members into a directory: everything is written beside it, and moved to its place at the end.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdchk_engine::Sink;
use stdchk_engine::session::random_u64;
use stdchk_object::error::Context;
use stdchk_object::member::Body;
use stdchk_object::{Error, Kind, Result};

use super::{Members, RankedMember};
use crate::file_source::{FileSink, STAGING_PREFIX, set_metadata};

impl Members<'_> {
    /// Restores all members into a directory, which is made if it is not there. Everything is written beside it
    /// and moved to its place at the end, so that what fails leaves the directory as it was. Members of several
    /// ranks go to `rank-<n>/`, unless their names tell them apart anyway.
    pub fn restore_to(&self, target: &Path, overwrite: bool, progress: &dyn Fn(u64)) -> Result<Vec<PathBuf>> {
        self.repository.check_outside(target)?;
        let places = self.places()?;
        let made = !target.exists();
        let cannot = |error: std::io::Error| {
            Error::io(format!("cannot create {}", target.display()), error).with_kind(Kind::Io)
        };
        fs::create_dir_all(target).map_err(cannot)?;
        for (member, place) in self.members.iter().zip(&places) {
            check_place(target, place, member.member.body == Body::Dir, overwrite)?;
        }
        let staging = Staging::new(target)?;
        let done = self.restore_staged(&staging.path, target, &places, progress);
        drop(staging);
        if done.is_err() && made {
            let _ = fs::remove_dir(target);
        }
        done.map(|()| places.iter().map(|place| target.join(place)).collect())
    }

    /// Where each member goes, relative to the target: by its path, or where ranks would be in each other's way, below
    /// a folder for its rank.
    fn places(&self) -> Result<Vec<PathBuf>> {
        let plain = |m: &RankedMember| PathBuf::from(&m.member.path);
        let ranked = |m: &RankedMember| PathBuf::from(format!("rank-{}", m.rank)).join(&m.member.path);
        let places: Vec<PathBuf> = self.members.iter().map(plain).collect();
        if self.in_the_way(&places).is_none() {
            return Ok(places);
        }
        let places: Vec<PathBuf> = self.members.iter().map(ranked).collect();
        match self.in_the_way(&places) {
            None => Ok(places),
            Some(place) => Err(Error::corrupt(format!(
                "{} has {} both as a directory and as something else",
                self.of,
                place.display()
            ))),
        }
    }

    /// A place that two members have, or that is no directory though another member lies below it.
    fn in_the_way<'p>(&self, places: &'p [PathBuf]) -> Option<&'p Path> {
        let mut taken: HashSet<&Path> = HashSet::new();
        if let Some(twice) = places.iter().find(|place| !taken.insert(place.as_path())) {
            return Some(twice);
        }
        let members = self.members.iter().zip(places);
        let solid: HashSet<&Path> =
            members.filter(|(m, _)| m.member.body != Body::Dir).map(|(_, place)| place.as_path()).collect();
        places.iter().flat_map(|place| place.ancestors().skip(1)).find(|above| solid.contains(above))
    }

    fn restore_staged(
        &self,
        staging: &Path,
        target: &Path,
        places: &[PathBuf],
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let cannot = |path: &Path| format!("cannot create {}", path.display());
        // Files first, under numbers, so that no name of a member can be in the way of another.
        for (number, ranked) in self.members.iter().enumerate() {
            let path = staging.join(number.to_string());
            let member = &ranked.member;
            match &member.body {
                Body::Dir => {}
                Body::Link(link) => std::os::unix::fs::symlink(link, &path).context(|| cannot(&path))?,
                Body::File(content) | Body::Stream(content) => {
                    // What was zeros becomes holes, which take no room.
                    let has_holes = content.tally.zero > 0;
                    let sink: Arc<dyn Sink> =
                        Arc::new(FileSink::create(&path, content.blob.len, !has_holes)?);
                    self.read_into(ranked, &sink, progress)?;
                }
            }
            let is_stream = matches!(member.body, Body::Stream(_));
            if member.body != Body::Dir && !is_stream {
                set_metadata(&path, member.mode, member.mtime_ns, matches!(member.body, Body::Link(_)))?;
            }
        }
        for (number, place) in places.iter().enumerate() {
            let path = target.join(place);
            if self.members[number].member.body == Body::Dir {
                fs::create_dir_all(&path).context(|| cannot(&path))?;
                continue;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).context(|| cannot(parent))?;
            }
            fs::rename(staging.join(number.to_string()), &path).context(|| cannot(&path))?;
        }
        // Directories last and deepest first, since what is put into them changes their times.
        for (number, place) in places.iter().enumerate().rev() {
            let member = &self.members[number].member;
            if member.body == Body::Dir {
                set_metadata(&target.join(place), member.mode, member.mtime_ns, false)?;
            }
        }
        Ok(())
    }
}

/// Where a restore is put together, readable by nobody else. Locked as long as its process lives, so that what a
/// process left that was killed can be told and removed.
struct Staging {
    path: PathBuf,
    _lock: fs::File,
}

impl Staging {
    fn new(target: &Path) -> Result<Staging> {
        remove_stale(target);
        let path = target.join(format!("{STAGING_PREFIX}{:016x}", random_u64()?));
        let cannot = || format!("cannot create {}", path.display());
        fs::DirBuilder::new().mode(0o700).create(&path).context(cannot)?;
        let lock = fs::File::open(&path).context(cannot)?;
        let _ = lock.try_lock();
        Ok(Staging { path, _lock: lock })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_stale(target: &Path) {
    for entry in fs::read_dir(target).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(STAGING_PREFIX) {
            continue;
        }
        let unlocked = fs::File::open(entry.path()).is_ok_and(|dir| dir.try_lock().is_ok());
        if unlocked {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What is there already must not be in the way of a member, and no link below the target may lead it out.
fn check_place(target: &Path, place: &Path, is_dir: bool, overwrite: bool) -> Result<()> {
    check_parents(target, place)?;
    let path = target.join(place);
    let Ok(there) = path.symlink_metadata() else { return Ok(()) };
    if is_dir != there.is_dir() {
        let text = format!(
            "{} is there already, and is {}a directory",
            path.display(),
            if is_dir { "not " } else { "" }
        );
        return Err(Error::new(Kind::Exists, text));
    }
    if !is_dir && !overwrite {
        let text = format!("{} is there already; --overwrite replaces it", path.display());
        return Err(Error::new(Kind::Exists, text));
    }
    Ok(())
}

fn check_parents(target: &Path, place: &Path) -> Result<()> {
    let mut path = target.to_owned();
    for part in place.parent().into_iter().flat_map(Path::components) {
        path.push(part);
        if path.symlink_metadata().is_ok_and(|there| there.is_symlink()) {
            let text = format!("{} is a link, through which nothing is restored", path.display());
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}
