//! Pools: keeping the names of one, lending to one, and looking at one. Saving to a pool is [`Repository`](crate::Repository)'s,
//! as to any other place.

mod lender;
mod manager;
mod names;
mod owner;
mod status;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};

pub use stdchk_catalog::{Class, Medium};
pub use stdchk_pool::{Key, Protection};

pub use lender::{Lender, LenderOptions, Lent};
pub use manager::{Catalog, Manager, ManagerOptions, found};
pub(crate) use names::catalog_of;
pub(crate) use names::way_to_names;
pub use names::{check_place, is_pool};
pub use owner::{Owner, YieldWhen};
pub use status::{Heard, MemberStatus, Status, evict, leave, status, wait_settled};

/// How a pool's address begins.
pub const SCHEME: &str = "pool://";
/// How often a manager looks who was not heard of.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Writes a new key to a file that must not exist, and that only its owner may read.
pub fn make_key(path: &Path, protection: Protection) -> Result<Key> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let cannot = || format!("cannot write a key to {}", path.display());
    let key = Key::random(protection)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).context(cannot)?;
    file.write_all(format!("{key}\n").as_bytes()).and_then(|()| file.sync_all()).context(cannot)?;
    Ok(key)
}

/// Makes sure that a folder has one user.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).context(|| format!("cannot write {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let text = format!("another process uses {}", folder.display());
            Err(Error::new(Kind::Conflict, text))
        }
        Err(error) => Err(Error::io(format!("cannot lock {}", path.display()), error.into())),
    }
}
