//! What is answered: the words of the kernel are turned, `stdchk::files` does it, and what comes of it is turned back.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileHandle, INodeNo, OpenAccMode, OpenFlags, Request};
use stdchk::files::{
    Attributes, COMPLETE, Entry, Fault, Files, NAME_BYTES_MAX, NODES, Outcome, POLICY, Progress, Sort,
    Special, Writing,
};

use crate::attributes::attributes;
use crate::errno::errno;
use crate::handles::{Handle, Handles};
use crate::process::{has_open, is_killed, process_of};
use crate::shown::{STEPS, Showcase, VERSIONS, is_shown};
use crate::unmount::{PROCESS, WRITING};

/// How the notes begin that are not the users' own.
const KNOWN: &str = "user.stdchk.";

/// The note that says what the bytes of a file are.
const HASH: &str = "user.stdchk.hash";

/// What is answered, or why nothing can be.
pub type Answer<T> = Result<T, Errno>;

/// The answers.
pub struct Operations {
    pub files: Arc<Files>,
    pub handles: Handles,
    pub showcase: Showcase,
}

pub fn text(name: &OsStr) -> Answer<&str> {
    name.to_str().ok_or(Errno::EILSEQ)
}

/// A name for something new.
pub fn new_name(name: &OsStr) -> Answer<&str> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::ENAMETOOLONG) } else { text(name) }
}

/// What is said of a number that nothing has any more: the kernel then looks at the name again, which may lead to another one by now.
pub fn by_number<T>(outcome: Outcome<T>) -> Answer<T> {
    told(outcome.map_err(|fault| if matches!(fault, Fault::Missing) { Fault::Stale } else { fault }))
}

pub fn told<T>(outcome: Outcome<T>) -> Answer<T> {
    outcome.map_err(errno)
}

/// How long the kernel may believe what it was told of names and attributes.
pub const BELIEVED: Duration = Duration::from_millis(250);
/// Of a mode: who runs it is its owner, or of its group; what is made in it is of its group.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Of `open(2)`; the same on all machines that Linux runs on but for a few old ones.
const O_EXCL: i32 = 0o200;
const O_APPEND: i32 = 0o2000;

impl Operations {
    /// For some files.
    pub fn new(files: Arc<Files>) -> Operations {
        Operations { files, handles: Handles::default(), showcase: Showcase::default() }
    }

    pub fn handle(&self, handle: FileHandle) -> Answer<Arc<Handle>> {
        self.handles.get(handle).ok_or(Errno::EBADF)
    }

    pub fn find(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        // What is no text is the name of nothing.
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let found = match [VERSIONS, STEPS].contains(&name) || is_shown(parent.0) {
            true => self.showcase.find(&self.files, parent.0, name),
            false => self.files.find(parent.0, name),
        };
        let entry = told(found)?;
        match self.files.writing(entry.number).is_some() {
            true => self.entry_for(request, entry.number, None).map(|entry| attributes(&entry)),
            false => Ok(attributes(&entry)),
        }
    }

    /// Remembers what is shown for as long as the kernel knows it, which is told of it now.
    pub fn hold(&self, parent: u64, name: &OsStr, found: FileAttr) -> Answer<FileAttr> {
        if is_shown(found.ino.0) {
            told(self.showcase.hold(parent, text(name)?))?;
        }
        Ok(found)
    }

    pub fn entry(&self, number: u64) -> Answer<Entry> {
        by_number(match is_shown(number) {
            true => self.showcase.get(number).and_then(|shown| self.showcase.entry(&self.files, shown)),
            false => self.files.entry(number),
        })
    }

    /// Opens a version that is not the newest, or a file of a step.
    pub fn open_shown(&self, number: u64, flags: OpenFlags) -> Answer<FileHandle> {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let opened = told(self.showcase.open(&self.files, number))?;
        Ok(self.handles.add(Handle::Version { opened, progress: Progress::default() }))
    }

    /// What something new is like: in a directory that hands on its group it has that.
    pub fn of_new(&self, request: &Request, parent: u64, mode: u32, umask: u32) -> Attributes {
        let above = self.entry(parent).ok().filter(|above| above.mode & SET_GROUP != 0);
        Attributes {
            mode: Some(mode & 0o7777 & !umask),
            user: Some(request.uid()),
            group: Some(above.map_or(request.gid(), |above| above.group)),
            ..Attributes::default()
        }
    }

    /// The same for a directory, which hands on the group itself.
    pub fn of_new_directory(&self, request: &Request, parent: u64, mode: u32, umask: u32) -> Attributes {
        let new = self.of_new(request, parent, mode, umask);
        let hands_on = self.entry(parent).map_or(0, |above| above.mode & SET_GROUP);
        Attributes { mode: new.mode.map(|mode| mode | hands_on), ..new }
    }

    /// What a process is told of a number: who does not write a file sees what it is like for others, so that what is read is as long as it
    /// says. Where somebody may have mapped it to write it all see what he does, since the kernel knows one length.
    pub fn entry_for(&self, request: &Request, number: u64, handle: Option<FileHandle>) -> Answer<Entry> {
        let entry = self.entry(number)?;
        let is_writers = handle.is_some_and(|handle| self.written(handle).is_ok());
        if entry.sort == Sort::File
            && !is_writers
            && let process = process_of(request.pid())
            && process != 0
            && self.handles.is_written_by_others(number, process)
            && let Ok(others) = self.files.entry_of_others(number)
        {
            return Ok(others);
        }
        Ok(entry)
    }

    /// How long the kernel may believe what is said of a file: not at all where that depends on who asks.
    pub fn believed(&self, number: u64) -> Duration {
        if self.files.writing(number).is_some() { Duration::ZERO } else { BELIEVED }
    }

    /// Takes the rights that a file gives to whoever runs it, where somebody else than root writes it.
    pub fn take_rights(&self, request: &Request, writing: &Writing) {
        if request.uid() == 0 {
            return;
        }
        let mode = writing.mode();
        if mode & (SET_USER | SET_GROUP) == 0 {
            return;
        }
        let taken = if mode & 0o010 == 0 { SET_USER } else { SET_USER | SET_GROUP };
        let new = Attributes { mode: Some(mode & !taken), ..Attributes::default() };
        if let Err(fault) = self.files.set(writing.number, &new) {
            tracing::warn!("a file that was written keeps its rights: {}", fault.into_error());
        }
    }

    pub fn open_file(&self, request: &Request, number: u64, flags: OpenFlags) -> Answer<FileHandle> {
        if is_shown(number) {
            return self.open_shown(number, flags);
        }
        if flags.acc_mode() == OpenAccMode::O_RDONLY {
            let mut opened = by_number(self.files.open_to_read(number))?;
            if opened.is_none() && self.files.writing(number).is_none() {
                // It may have been stored between two looks.
                self.files.close_reader(number);
                opened = by_number(self.files.open_to_read(number))?;
            }
            return Ok(self.handles.add(match (opened, self.files.writing(number)) {
                (None, Some(writing)) => {
                    self.files.close_reader(number);
                    Handle::Watch { writing }
                }
                (opened, _) => Handle::Read { number, opened, progress: Progress::default() },
            }));
        }
        let writing = by_number(self.files.open_to_write(number))?;
        Ok(self.writer(request, writing, flags.0))
    }

    pub fn writer(&self, request: &Request, writing: Arc<Writing>, flags: i32) -> FileHandle {
        let (opener, appends) = (process_of(request.pid()), flags & O_APPEND != 0);
        let may_map = OpenFlags(flags).acc_mode() == OpenAccMode::O_RDWR;
        let is_closed = AtomicBool::new(false);
        self.handles.add(Handle::Write { writing, opener, is_closed, appends, may_map })
    }

    pub fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        attributes_of_new: Attributes,
        flags: i32,
    ) -> Answer<(FileAttr, FileHandle)> {
        let name = new_name(name)?;
        let writing = match self.files.create(parent.0, name, &attributes_of_new) {
            // Somebody was faster.
            Err(Fault::Exists) if flags & O_EXCL == 0 => {
                let number = told(self.files.find(parent.0, name))?.number;
                let handle = self.open_file(request, number, OpenFlags(flags))?;
                return Ok((attributes(&self.entry(number)?), handle));
            }
            created => told(created)?,
        };
        let entry = match self.files.entry(writing.number) {
            Ok(entry) => entry,
            Err(fault) => {
                let _ = self.files.remove(parent.0, name);
                let _ = self.files.close_writer(&writing);
                return Err(errno(fault));
            }
        };
        let handle = match name == COMPLETE {
            true => self.handles.add(Handle::Complete { directory: parent.0, writing }),
            false => self.writer(request, writing, flags),
        };
        Ok((attributes(&entry), handle))
    }

    pub fn read_file(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        give: impl FnOnce(&[u8]),
    ) -> Answer<()> {
        match &*self.handle(handle)? {
            Handle::Read { opened: None, .. } => {
                give(&[]);
                Ok(())
            }
            Handle::Read { opened: Some(opened), progress, .. } | Handle::Version { opened, progress } => {
                told(self.files.read_version(opened, progress, offset, size as usize, give))
            }
            Handle::Watch { writing } | Handle::Write { writing, .. } | Handle::Complete { writing, .. } => {
                self.read_written(writing, offset, size, give)
            }
            Handle::Directory { .. } => Err(Errno::EISDIR),
        }
    }

    /// Reads for a page of the kernel, which has one set of them for a file: where somebody may have mapped it to write it, all have what he
    /// writes, or he would write back what others have read.
    pub fn fill_page(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        give: impl FnOnce(&[u8]),
    ) -> Answer<()> {
        let written = match &*self.handle(handle)? {
            Handle::Read { number, .. } => self.handles.mapped(*number),
            _ => None,
        };
        match written {
            Some(writing) => self.read_written(&writing, offset, size, give),
            None => self.read_file(handle, offset, size, give),
        }
    }

    fn read_written(
        &self,
        writing: &Writing,
        offset: u64,
        size: u32,
        give: impl FnOnce(&[u8]),
    ) -> Answer<()> {
        told(writing.read_at(&self.files, offset, size as usize)).map(|bytes| give(&bytes))
    }

    pub fn written(&self, handle: FileHandle) -> Answer<Arc<Writing>> {
        match &*self.handle(handle)? {
            Handle::Write { writing, .. } | Handle::Complete { writing, .. } => Ok(writing.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// What there is to be done when a process closes a descriptor of a file that `opener` opened to write it.
    pub fn flush_written(&self, writing: &Arc<Writing>, opener: u32, process: u32) -> Answer<()> {
        told(writing.check())?;
        match is_killed(process) {
            // Nobody can say that what it wrote is whole.
            true if process == opener => {
                let name = self.files.name_of(writing).unwrap_or_default();
                tracing::warn!("{name:?} has no new version: process {process}, which wrote it, was killed");
                writing.abandon("a process that wrote it was killed");
            }
            // The one that it got it from can.
            true => writing.note_killed(),
            // Others who got it from the one that opened it may go on with it, and so may that one, and others that have opened it.
            false
                if process != opener
                    || has_open(opener, writing.number, self.files.name_of(writing).as_deref()) => {}
            false => {
                let closed = self.handles.close(writing, opener);
                return told(self.files.flush(writing, closed));
            }
        }
        Ok(())
    }

    pub fn set_attributes(
        &self,
        number: u64,
        handle: Option<FileHandle>,
        len: Option<u64>,
        new: &Attributes,
    ) -> Answer<FileAttr> {
        if is_shown(number) {
            return Err(Errno::EROFS);
        }
        if let Some(len) = len {
            match handle.map(|handle| self.written(handle)) {
                Some(writing) => told(writing?.set_len(&self.files, len))?,
                None => self.cut(number, len)?,
            }
        }
        // Cutting it off says when by itself.
        let is_said =
            len.is_some() && *new == Attributes { modified_ns: new.modified_ns, ..Attributes::default() };
        if !new.is_empty() && !is_said {
            by_number(self.files.set(number, new))?;
        }
        by_number(self.files.entry(number)).map(|entry| attributes(&entry))
    }

    /// Cuts off a file that nobody has opened for it: that is a version of its own.
    pub fn cut(&self, number: u64, len: u64) -> Answer<()> {
        let writing = by_number(self.files.open_to_write(number))?;
        let cut = writing.set_len(&self.files, len);
        let closed = self.files.close_writer(&writing);
        told(cut.and(closed))
    }

    /// The names of a directory from an offset on. The first two are those of the directory itself and the one above.
    pub fn names(&self, handle: FileHandle, offset: u64) -> Answer<Arc<Vec<(String, Entry)>>> {
        let handle = self.handle(handle)?;
        let Handle::Directory { number, names } = &*handle else { return Err(Errno::ENOTDIR) };
        let mut names = names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if offset == 0 {
            *names = None;
        }
        if let Some(names) = &*names {
            return Ok(names.clone());
        }
        if is_shown(*number) {
            return Ok(names.insert(Arc::new(told(self.showcase.list(&self.files, *number))?)).clone());
        }
        let mut all = Vec::new();
        let above = told(self.files.parent(*number))?;
        for (name, directory) in [(".", *number), ("..", above)] {
            all.push((name.to_owned(), told(self.files.entry(directory))?));
        }
        all.extend(told(self.files.list(*number, "", usize::MAX))?);
        Ok(names.insert(Arc::new(all)).clone())
    }

    /// What users noted, and what is known of the newest version.
    pub fn notes(&self, number: u64) -> Answer<Vec<(String, Vec<u8>)>> {
        if is_shown(number) {
            return Ok(Vec::new());
        }
        let mut notes = told(self.files.notes(number))?;
        let known = self.files.versions(number).unwrap_or_default();
        if let Some(newest) = known.last() {
            let stored = newest.written.to_string();
            for (name, value) in [
                ("version", newest.sequence.to_string().as_str()),
                ("versions", known.len().to_string().as_str()),
                ("durability", newest.durability.as_str()),
                ("stored_bytes", stored.as_str()),
            ] {
                notes.push((format!("{KNOWN}{name}"), value.as_bytes().to_vec()));
            }
            // It takes time to tell, so only who asks for it is told.
            notes.push((HASH.to_owned(), Vec::new()));
        }
        Ok(notes)
    }

    pub fn note(&self, number: u64, name: &str) -> Answer<Vec<u8>> {
        match name {
            PROCESS => return Ok(std::process::id().to_string().into_bytes()),
            HASH if !is_shown(number) => {
                let hash = self.files.hash(number).map_err(|fault| match fault {
                    Fault::Missing => Errno::ENODATA,
                    fault => errno(fault),
                });
                return hash.map(|hash| hash.to_string().into_bytes());
            }
            WRITING => return Ok(self.files.writing_count().to_string().into_bytes()),
            _ => {}
        }
        let notes = self.notes(number)?;
        notes.into_iter().find(|(known, _)| known == name).map(|(_, value)| value).ok_or(Errno::ENODATA)
    }
}

/// What a mode says that is to be made; nothing for a file.
pub fn special(mode: u32) -> Answer<Option<Special>> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Ok(None),
        0o010_000 => Ok(Some(Special::Fifo)),
        0o140_000 => Ok(Some(Special::Socket)),
        0o020_000 => Ok(Some(Special::CharDevice)),
        0o060_000 => Ok(Some(Special::BlockDevice)),
        _ => Err(Errno::EINVAL),
    }
}

/// Notes that users may make: those of the system mean nothing here. What is known of a version they may not, but who copies notes along
/// with files must not fail: nothing comes of it.
pub fn note_name(name: &OsStr) -> Answer<Option<&str>> {
    let name = text(name)?;
    match name.strip_prefix(KNOWN) {
        Some("version" | "versions" | "durability" | "stored_bytes" | "hash") => Ok(None),
        Some(_) if ![POLICY, NODES].contains(&name) => Err(Errno::EPERM),
        _ if name.starts_with("user.") => Ok(Some(name)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// A name for something that is no file of bytes: there are some that mean something.
pub fn plain_name(name: &OsStr) -> Answer<&str> {
    let name = new_name(name)?;
    if [COMPLETE, VERSIONS, STEPS].contains(&name) { Err(Errno::EPERM) } else { Ok(name) }
}
