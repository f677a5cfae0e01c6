//! A file system of the same library and mode as the mount that throws everything away: what the kernel, the library and a copy cost.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, Session, WriteFlags,
};

const BELIEVED: Duration = Duration::from_millis(250);
/// The only file.
const FILE: u64 = 2;

struct Discard;

fn attributes(number: u64) -> FileAttr {
    let kind = if number == FILE { FileType::RegularFile } else { FileType::Directory };
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 1 << 20,
        flags: 0,
    }
}

impl Filesystem for Discard {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(1 << 20);
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&BELIEVED, &attributes(number.0));
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(&BELIEVED, &attributes(FILE), Generation(0), FileHandle(1), flags);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Mounts it, and stays until it is unmounted.
pub fn run(directory: &Path) {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("discard".to_owned()), MountOption::DefaultPermissions];
    config.n_threads = Some(8);
    config.clone_fd = true;
    let session = Session::new(Discard, directory, &config).expect("it can be mounted");
    session.run().expect("it ends when it is unmounted");
}
