//! A new mount in the place of one whose process is gone, so that nobody ever sees the directory below.

use std::io;
use std::path::Path;

use fuser::{Config, Session};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use crate::answers::Operations;

/// Of `move_mount(2)`, since Linux 6.5: under what is mounted there, not on it.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// Mounts somewhere else, puts that under the dead mount, and takes the dead one away. Needs the rights of root.
pub fn mount(operations: Operations, directory: &Path, config: &Config) -> io::Result<Session<Operations>> {
    let aside = std::env::temp_dir().join(format!("stdchk-mount-{}", std::process::id()));
    std::fs::create_dir(&aside)?;
    let mounted = Session::new(operations, &aside, config).and_then(|session| {
        move_beneath(&aside, directory)?;
        Ok(session)
    });
    let _ = unmount(&aside, UnmountFlags::DETACH);
    let _ = std::fs::remove_dir(&aside);
    mounted
}

fn move_beneath(aside: &Path, directory: &Path) -> io::Result<()> {
    let tree = open_tree(CWD, aside, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    move_mount(&tree, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | BENEATH)?;
    unmount(directory, UnmountFlags::DETACH)?;
    Ok(())
}
