//! The mount: the files of a repository as the kernel wants them.
//!
//! What a file is, and when what was written becomes a version, is in `stdchk::files` and `docs/MOUNT.md`; here are only the words of the kernel for it.
#![forbid(unsafe_code)]

mod answers;
mod attributes;
mod beneath;
mod errno;
mod handles;
mod operations;
mod place;
mod process;
mod shown;
mod unmount;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use stdchk::files::Files;

use answers::Operations;
pub use place::is_mount;
pub use unmount::{is_alive, is_dead, leave_session, server_of, unmount, users_of, wait_stored};

/// Threads that answer the kernel. Some may wait for the store.
const THREADS: usize = 8;

/// How often what is kept at hand is looked through.
const TIDIED: Duration = Duration::from_secs(1);
/// How often policies act.
const KEPT_UP: Duration = Duration::from_secs(5);

/// How a mount is made.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Whether other users may use it, too.
    pub allow_other: bool,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Whether it takes the place of a mount whose process is gone.
    pub replaces: bool,
}

/// A mount that the kernel knows, and that nobody answers for yet.
pub struct Mount {
    session: Session<Operations>,
    files: Arc<Files>,
}

impl Mount {
    /// Mounts files on a directory.
    pub fn new(files: Files, directory: &Path, options: &MountOptions) -> io::Result<Mount> {
        let place = files.repository().place().display().to_string();
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(place.replace(',', "_")),
            MountOption::Subtype("stdchk".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
            if options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let files = Arc::new(files);
        files.make_room_when_full();
        let operations = || Operations::new(files.clone());
        let session = match options.replaces {
            true => beneath::mount(operations(), directory, &config).or_else(|error| {
                tracing::debug!("a gap between two mounts cannot be avoided: {error}");
                unmount(directory, true)?;
                Session::new(operations(), directory, &config)
            }),
            false => {
                place::check_free(directory)?;
                let store = files.repository().place();
                if store.is_dir() && place::lie_in_each_other(store, directory) {
                    let text = "the store lies there, and could not be reached any more";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
                Session::new(operations(), directory, &config)
            }
        }?;
        Ok(Mount { session, files })
    }

    /// What it shows.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Answers the kernel until it is unmounted.
    pub fn run(self) -> io::Result<()> {
        let Mount { session, files } = self;
        now_and_then(&files, Duration::ZERO, "stdchk-gather", |files| files.gather_next(TIDIED));
        now_and_then(&files, TIDIED, "stdchk-tidy", Files::tidy);
        now_and_then(&files, KEPT_UP, "stdchk-upkeep", |files| {
            if let Err(error) = files.keep_up() {
                tracing::warn!("what is not needed any more cannot be removed: {error}");
            }
        });
        let ended = run_until_unmounted(session);
        if let Err(error) = files.gather() {
            tracing::error!(
                "small files that were closed are in the journal until the store is mounted again: {error}"
            );
        }
        match files.writing_count() {
            0 => {}
            count => {
                tracing::error!("{count} files were not closed before the end, and have no new versions")
            }
        }
        ended
    }
}

/// Answers. The library unmounts the directory at the end of that, though it is unmounted already: something else may be mounted there by then, so it is
/// kept from it.
fn run_until_unmounted(session: Session<Operations>) -> io::Result<()> {
    let mut background = session.spawn()?;
    let nothing = std::thread::spawn(|| Ok(()));
    let answers = std::mem::replace(&mut background.guard, nothing);
    std::mem::forget(background);
    answers.join().unwrap_or_else(|_| Err(io::Error::other("the thread that answers has panicked")))
}

/// Does something again and again for as long as there are files.
fn now_and_then(files: &Arc<Files>, pause: Duration, name: &str, job: impl Fn(&Files) + Send + 'static) {
    let files = Arc::downgrade(files);
    let run = move || {
        while let Some(files) = files.upgrade() {
            job(&files);
            drop(files);
            std::thread::sleep(pause);
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(run) {
        tracing::error!("nothing is done by itself, since no thread can be begun: {error}");
    }
}
