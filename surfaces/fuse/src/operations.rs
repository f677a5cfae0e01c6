//! What the kernel asks, one method for each question.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use stdchk::files::{Attributes, COMPLETE, Fault, NAME_BYTES_MAX};

use crate::answers::{Answer, BELIEVED, Operations, new_name, note_name, plain_name, special, text, told};
use crate::attributes::{attributes, kind, nanoseconds};
use crate::errno::errno;
use crate::handles::Handle;
use crate::process::process_of;
use crate::shown::is_shown;

/// What one request may write.
const WRITE_MAX: u32 = 1 << 20;
/// Numbers are never used again.
const GENERATION: Generation = Generation(0);
/// What `df` counts in.
const BLOCK: u32 = 4096;
/// How many more names there may be, as far as `df` is concerned: nobody counts them.
const NAMES_FREE: u64 = 1 << 40;
/// Of `setxattr(2)`.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// Of `lseek(2)`.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Of `fallocate(2)`.
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;

/// What is open is never in the kernel's cache: it knows only one content of a file, and there may be several.
const OPENED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;

impl Filesystem for Operations {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.set_max_background(64);
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!("the kernel does not know {wanted:?}");
            }
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(request, parent, name).and_then(|found| self.hold(parent.0, name, found)) {
            Ok(found) => reply.entry(&self.believed(found.ino.0), &found, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        if is_shown(number.0) {
            self.showcase.forget(number.0, times);
        }
    }

    fn getattr(&self, request: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.entry_for(request, number.0, handle) {
            Ok(entry) => reply.attr(&self.believed(number.0), &attributes(&entry)),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        len: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _change_noted: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let new = Attributes {
            mode,
            user,
            group,
            modified_ns: modified.map(nanoseconds),
            accessed_ns: accessed.map(nanoseconds),
        };
        match self.set_attributes(number.0, handle, len, &new) {
            Ok(set) => reply.attr(&self.believed(number.0), &set),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let target = match is_shown(number.0) {
            true => self.showcase.target(&self.files, number.0),
            false => self.files.target(number.0),
        };
        match told(target) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let new = self.of_new(request, parent.0, mode, umask);
        let made = new_name(name).and_then(|name| match special(mode)? {
            Some(special) => {
                let name = plain_name(name.as_ref())?;
                told(self.files.make_special(parent.0, name, (special, device), &new))
            }
            None => {
                let writing = told(self.files.create(parent.0, name, &new))?;
                told(self.files.close_writer(&writing))?;
                told(self.files.entry(writing.number))
            }
        });
        match made {
            Ok(entry) => reply.entry(&BELIEVED, &attributes(&entry), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = self.of_new_directory(request, parent.0, mode, umask);
        match plain_name(name).and_then(|name| told(self.files.make_directory(parent.0, name, &new))) {
            Ok(entry) => reply.entry(&BELIEVED, &attributes(&entry), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, text(name).and_then(|name| told(self.files.remove(parent.0, name))));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, text(name).and_then(|name| told(self.files.remove_directory(parent.0, name))));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let new = self.of_new(request, parent.0, 0o777, 0);
        let made = plain_name(name)
            .and_then(|name| told(self.files.make_link(parent.0, name, text(target.as_os_str())?, &new)));
        match made {
            Ok(entry) => reply.entry(&BELIEVED, &attributes(&entry), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if is_shown(parent.0) || is_shown(new_parent.0) {
            return reply.error(Errno::EXDEV);
        }
        let is_new = flags == RenameFlags::RENAME_NOREPLACE;
        if !is_new && !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = text(name).and_then(|name| {
            told(self.files.rename((parent.0, name), (new_parent.0, plain_name(to)?), is_new))
        });
        done(reply, renamed);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(request, number.0, flags) {
            Ok(handle) => reply.opened(handle, OPENED),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = self.of_new(request, parent.0, mode, umask);
        match self.create_file(request, parent, name, new, flags) {
            Ok((found, handle)) => {
                let believed = if name == COMPLETE { Duration::ZERO } else { self.believed(found.ino.0) };
                reply.created(&believed, &found, GENERATION, handle, OPENED);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let give = |bytes: &[u8]| reply.take().into_iter().for_each(|reply| reply.data(bytes));
        // Nobody reads it himself: the kernel fills a page.
        let read = match owner {
            None => self.fill_page(handle, offset, size, give),
            Some(_) => self.read_file(handle, offset, size, give),
        };
        if let (Err(error), Some(reply)) = (read, reply) {
            reply.error(error);
        }
    }

    fn write(
        &self,
        request: &Request,
        _number: INodeNo,
        handle_number: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.handle(handle_number).and_then(|handle| match &*handle {
            Handle::Write { writing, appends, .. } => {
                self.take_rights(request, writing);
                // The kernel may not know where the end is by now.
                told(match appends {
                    true => writing.append(&self.files, data),
                    false => writing.write_at(&self.files, offset, data),
                })
            }
            _ => self.written(handle_number).and_then(|file| told(file.write_at(&self.files, offset, data))),
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, request: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let flushed = self.handle(handle).and_then(|handle| match &*handle {
            Handle::Write { writing, opener, .. } => {
                self.flush_written(writing, *opener, process_of(request.pid()))
            }
            Handle::Complete { directory, .. } => {
                // It was a word, not a file.
                let _ = self.files.remove(*directory, COMPLETE);
                told(self.files.complete_all(*directory))
            }
            _ => Ok(()),
        });
        done(reply, flushed);
    }

    fn release(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let released = match self.handles.remove(handle).as_deref() {
            Some(Handle::Write { writing, is_closed, .. }) => {
                told(self.files.end_writer(writing, is_closed.load(Ordering::Relaxed)))
            }
            Some(Handle::Complete { writing, .. }) => told(self.files.close_writer(writing)),
            Some(Handle::Read { number, .. }) => {
                self.files.close_reader(*number);
                Ok(())
            }
            _ => Ok(()),
        };
        done(reply, released);
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        let synced = self.handle(handle).and_then(|handle| match &*handle {
            Handle::Write { writing, .. } => told(writing.sync(&self.files)),
            _ => Ok(()),
        });
        done(reply, synced);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        done(reply, told(self.files.sync_names()));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = Handle::Directory { number: number.0, names: Default::default() };
        reply.opened(self.handles.add(handle), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.names(handle, offset) {
            Err(error) => reply.error(error),
            Ok(names) => {
                for (next, (name, entry)) in (1..).zip(&*names).skip(offset as usize) {
                    if reply.add(INodeNo(entry.number), next, kind(entry.sort), name) {
                        break;
                    }
                }
                reply.ok();
            }
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.names(handle, offset) {
            Err(error) => reply.error(error),
            Ok(names) => {
                for (next, (name, entry)) in (1..).zip(&*names).skip(offset as usize) {
                    let number = INodeNo(entry.number);
                    let believed = self.believed(entry.number);
                    if reply.add(number, next, name, &believed, &attributes(entry), GENERATION) {
                        break;
                    }
                    // Of these the kernel takes no note.
                    if is_shown(directory.0) && ![".", ".."].contains(&name.as_str()) {
                        let _ = self.showcase.hold(directory.0, name);
                    }
                }
                reply.ok();
            }
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.remove(handle);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.files.room() {
            Ok(room) => {
                let blocks = |bytes: u64| bytes / u64::from(BLOCK);
                let free = blocks(room.free);
                reply.statfs(
                    blocks(room.all),
                    free,
                    free,
                    room.names + NAMES_FREE,
                    NAMES_FREE,
                    BLOCK,
                    NAME_BYTES_MAX as u32,
                    BLOCK,
                );
            }
            Err(fault) => reply.error(errno(fault)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let wants = match flags {
            XATTR_CREATE => Some(false),
            XATTR_REPLACE => Some(true),
            _ => None,
        };
        let set = note_name(name).and_then(|name| match name {
            None => Ok(()),
            Some(name) => match self.files.set_note(number.0, name, Some(value), wants) {
                Err(Fault::Missing) if wants == Some(true) => Err(Errno::ENODATA),
                set => told(set),
            },
        });
        done(reply, set);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match text(name).and_then(|name| self.note(number.0, name)) {
            Ok(value) => send_note(reply, size, &value),
            Err(error) => reply.error(error),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.notes(number.0) {
            Ok(notes) => {
                let names: Vec<u8> = notes.iter().flat_map(|(name, _)| name.bytes().chain([0])).collect();
                send_note(reply, size, &names);
            }
            Err(error) => reply.error(error),
        }
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = note_name(name).and_then(|name| match name {
            None => Ok(()),
            Some(name) => match self.files.set_note(number.0, name, None, Some(true)) {
                Err(Fault::Missing) => Err(Errno::ENODATA),
                removed => told(removed),
            },
        });
        done(reply, removed);
    }

    fn fallocate(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.written(handle).and_then(|file| {
            let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
            match mode {
                0 => told(file.grow(&self.files, end)),
                // Room is not kept for anybody.
                FALLOC_KEEP_SIZE => Ok(()),
                _ if mode == FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE => {
                    told(file.punch(&self.files, offset..end))
                }
                _ if mode & !FALLOC_KEEP_SIZE == FALLOC_ZERO_RANGE => {
                    if mode & FALLOC_KEEP_SIZE == 0 {
                        told(file.grow(&self.files, end))?;
                    }
                    told(file.punch(&self.files, offset..end))
                }
                _ => Err(Errno::EOPNOTSUPP),
            }
        });
        done(reply, allocated);
    }

    fn lseek(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.handle(handle).and_then(|handle| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let (len, place) = match &*handle {
                Handle::Read { opened: None, .. } => (0, 0),
                Handle::Read { opened: Some(opened), .. } | Handle::Version { opened, .. } => {
                    let place = match whence {
                        SEEK_DATA => opened.next_data(offset),
                        _ => opened.next_hole(offset),
                    };
                    (opened.len(), place)
                }
                Handle::Watch { writing }
                | Handle::Write { writing, .. }
                | Handle::Complete { writing, .. } => {
                    (writing.len(), told(writing.seek(&self.files, offset, whence == SEEK_HOLE))?)
                }
                Handle::Directory { .. } => return Err(Errno::EISDIR),
            };
            let is_past = offset >= len || (whence == SEEK_DATA && place >= len);
            if is_past { Err(Errno::ENXIO) } else { Ok(place) }
        });
        match found {
            Ok(place) => reply.offset(place as i64),
            Err(error) => reply.error(error),
        }
    }
}

fn send_note(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size {
        0 => reply.size(value.len() as u32),
        size if (size as usize) < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

fn done(reply: ReplyEmpty, outcome: Answer<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
