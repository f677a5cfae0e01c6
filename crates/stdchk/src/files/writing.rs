//! A file that is being written: what all who have it open for that make together.
//!
//! What stays true:
//! - what was written is in `layers`, or on its way in `stream`, which then has all of the file;
//! - what is published leaves the file as it is, with the version below it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stdchk_catalog::State;
use stdchk_catalog::tree::{Node, Version};
use stdchk_engine::session::Session;
use stdchk_engine::{FinishedPart, PartView, PartWriter};
use stdchk_object::manifest::Manifest;
use stdchk_object::{AppName, Error, Kind, Result, SessionId};

use super::fault::{Fault, Outcome};
use super::layered::Layered;
use super::memory::{Kept, Loan};
use super::opened::{Opened, member_path};
use super::shared::Joined;
use super::stream::Stream;
use super::{Files, manifest, now};

/// A file that is written from its beginning is streamed from this length on.
const STREAM_FROM: u64 = 4 << 20;
/// Zeros to be written.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
/// The longest file.
const LEN_MAX: u64 = 1 << 50;

/// A file that is being written.
pub struct Writing {
    /// Its number.
    pub number: u64,
    /// Whether it will not become a version; to be known without waiting for those who write it.
    has_failed: Arc<AtomicBool>,
    /// Whether it was closed, and waits to be gathered.
    pub(super) waits: AtomicBool,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    /// What it is like but for its bytes: new files have nothing else.
    pub node: Node,
    /// Where it will be, until it has a name that everybody knows.
    pub place: Option<(u64, String)>,
    /// Whether it was moved there, so that what is there by then gives way to it.
    pub gets_place: bool,
    /// The number of the file that it is a version of: another one where somebody else had made that meanwhile.
    pub target: u64,
    /// Whether its name is gone.
    pub is_removed: bool,
    /// Whether a process was killed that had it open.
    is_torn: bool,
    /// Whether what is below was dropped by others, so that nothing may be shared with it.
    is_base_gone: bool,
    pub layers: Layered,
    /// What the bytes in them take of the memory of all files.
    pub kept: Option<Kept>,
    stream: Option<Stream>,
    /// Packs are written under it until it ends in a version.
    pub session: Option<Arc<Session>>,
    /// Whether other mounts may write it, too.
    pub is_shared: bool,
    /// Then this is the part of this mount in it, until it has closed the file.
    pub joined: Option<Joined>,
    /// Whether there is something to publish.
    pub is_dirty: bool,
    /// When it was written last here, in nanoseconds since 1970.
    pub written_ns: i64,
    /// When it was changed last, as its name said when this began.
    pub modified_before_ns: i64,
    /// The version that those who write now have published already.
    pub published: Option<Version>,
    /// Why it will not become a version.
    failed: Option<(Kind, String)>,
    has_failed: Arc<AtomicBool>,
    /// How many have it open, and how many of these have closed it, so that only the kernel still has it.
    pub opens: u32,
    pub closed: u32,
}

/// A part to be published, and what it was written under.
pub(super) struct Ready {
    pub session: SessionId,
    pub finished: FinishedPart,
    pub manifest: Manifest,
    pub len: u64,
    /// What it continues.
    pub base: Option<Arc<Opened>>,
}

impl Writing {
    pub(super) fn new(node: Node, place: Option<(u64, String)>, layers: Layered) -> Writing {
        let (is_dirty, number) = (place.is_some(), node.number);
        let (written_ns, modified_before_ns) = (node.modified_ns, node.modified_ns);
        let inner = Inner {
            node,
            place,
            gets_place: false,
            target: number,
            is_removed: false,
            is_torn: false,
            is_base_gone: false,
            layers,
            kept: None,
            stream: None,
            session: None,
            is_shared: false,
            joined: None,
            is_dirty,
            written_ns,
            modified_before_ns,
            published: None,
            failed: None,
            has_failed: Arc::default(),
            opens: 0,
            closed: 0,
        };
        let (has_failed, waits) = (inner.has_failed.clone(), AtomicBool::new(false));
        Writing { number, has_failed, waits, inner: Mutex::new(inner) }
    }

    /// One that other mounts may write, too.
    pub(super) fn shared(node: Node, layers: Layered, joined: Option<Joined>) -> Writing {
        let writing = Writing::new(node, None, layers);
        let mut inner = writing.inner();
        (inner.is_shared, inner.joined) = (true, joined);
        drop(inner);
        writing
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether it will not become a version.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Fails if it will not become a version.
    pub fn check(&self) -> Outcome<()> {
        if self.has_failed() { self.inner().check() } else { Ok(()) }
    }

    /// Who may do what with it: the lower twelve bits of its mode.
    pub fn mode(&self) -> u32 {
        self.inner().node.mode
    }

    /// How long it is.
    pub fn len(&self) -> u64 {
        self.inner().len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes bytes at an offset.
    pub fn write_at(&self, files: &Files, offset: u64, data: &[u8]) -> Outcome<()> {
        self.write(files, Some(offset), data)
    }

    /// Writes bytes at the end.
    pub fn append(&self, files: &Files, data: &[u8]) -> Outcome<()> {
        self.write(files, None, data)
    }

    fn write(&self, files: &Files, offset: Option<u64>, data: &[u8]) -> Outcome<()> {
        let mut inner = self.inner();
        inner.begin(files)?;
        if offset.is_none() {
            inner.catch_up(files)?;
        }
        let offset = offset.unwrap_or(inner.len());
        let end =
            offset.checked_add(data.len() as u64).filter(|&end| end <= LEN_MAX).ok_or(Fault::TooLong)?;
        inner.touch();
        if inner.stream.as_ref().is_some_and(|stream| stream.len != offset) {
            inner.attempt(|inner| inner.settle(files))?;
        }
        if let Some(stream) = &mut inner.stream {
            let written = stream.write(data);
            inner.layers.len = end;
            return Ok(inner.attempt(|inner| written.map_err(|error| inner.why_stream_failed(error)))?);
        }
        inner.layers.write(offset, data);
        if inner.is_sequential()
            && let Some(memory) = files.memory.stream()
        {
            inner.attempt(|inner| inner.begin_stream(files, memory))?;
            return Ok(());
        }
        inner.make_room(files)
    }

    /// Bytes from an offset on, fewer where it ends.
    pub fn read_at(&self, files: &Files, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut inner = self.inner();
        inner.check()?;
        inner.catch_up(files)?;
        if inner.stream.is_some() {
            inner.attempt(|inner| inner.settle(files))?;
        }
        // A base can be read without holding up those who write.
        let layers = match inner.layers.overlay.is_empty() {
            true => inner.layers.clone(),
            false => return Ok(inner.layers.read(offset, len)?),
        };
        drop(inner);
        Ok(layers.read(offset, len)?)
    }

    /// Cuts it off, or makes it longer by zeros.
    pub fn set_len(&self, files: &Files, len: u64) -> Outcome<()> {
        if len > LEN_MAX {
            return Err(Fault::TooLong);
        }
        let mut inner = self.inner();
        inner.begin(files)?;
        inner.catch_up(files)?;
        if len == inner.len() {
            return Ok(());
        }
        inner.touch();
        let is_shorter = len < inner.len();
        if let Some(joined) = &mut inner.joined {
            if is_shorter {
                joined.undone.cut = joined.undone.cut.min(len);
            }
            joined.undone.grown = len;
            inner.layers.set_len(len);
            // What others write from now on must not be cut off later.
            return Ok(inner.attempt(|inner| inner.lay(files))?);
        }
        match len {
            // What was written so far is wanted no more.
            0 => inner.stream.take().into_iter().for_each(Stream::abandon),
            _ => inner.attempt(|inner| inner.end_stream(files))?,
        }
        inner.layers.set_len(len);
        Ok(())
    }

    /// Makes it as long as that at least, by zeros.
    pub fn grow(&self, files: &Files, len: u64) -> Outcome<()> {
        {
            let mut inner = self.inner();
            inner.begin(files)?;
            inner.catch_up(files)?;
            if len <= inner.len() {
                return Ok(());
            }
        }
        self.set_len(files, len)
    }

    /// Makes a range zeros; the length stays.
    pub fn punch(&self, files: &Files, range: std::ops::Range<u64>) -> Outcome<()> {
        let mut inner = self.inner();
        inner.begin(files)?;
        inner.touch();
        if inner.joined.is_some() {
            return inner.write_zeros(files, range);
        }
        inner.attempt(|inner| inner.end_stream(files))?;
        let range = range.start..range.end.min(inner.layers.len);
        if !range.is_empty() {
            inner.layers.punch(range);
        }
        Ok(())
    }

    /// The next place from an offset on that may not be zeros, or with `wants_hole` that may be.
    pub fn seek(&self, files: &Files, offset: u64, wants_hole: bool) -> Outcome<u64> {
        let mut inner = self.inner();
        inner.check()?;
        inner.attempt(|inner| inner.end_stream(files))?;
        Ok(inner.layers.seek(offset, wants_hole))
    }

    /// Gives up what was written: there will be no version of it, and who goes on writing gets an error.
    pub fn abandon(&self, why: &str) {
        self.inner().abandon(why);
    }

    /// Notes that a process was killed that had it open: unless the one that opened it closes it, there will be no version.
    pub fn note_killed(&self) {
        self.inner().is_torn = true;
    }

    /// Puts what was written where the durability of the tree wants it.
    pub fn sync(&self, files: &Files) -> Outcome<()> {
        let mut inner = self.inner();
        inner.check()?;
        if inner.joined.is_some() {
            inner.attempt(|inner| inner.lay(files))?;
        } else if inner.is_dirty && !inner.is_removed {
            inner.attempt(|inner| inner.settle(files))?;
        }
        Ok(())
    }
}

impl Inner {
    /// Refuses a file of which something could not be stored: it will be no version.
    pub fn check(&self) -> Outcome<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, why)) => Err(Fault::Store(Error::new(*kind, why.clone()))),
        }
    }

    /// Gives up what was written, if anything was.
    pub fn abandon(&mut self, why: &str) {
        if self.is_dirty || self.joined.is_some() {
            self.fail(&Error::new(Kind::Io, why));
        }
    }

    /// Refuses what [`Inner::check`] does, and takes part in writing if that has ended.
    fn begin(&mut self, files: &Files) -> Outcome<()> {
        self.check()?;
        self.join_again(files)
    }

    pub fn len(&self) -> u64 {
        self.layers.len
    }

    /// Whether all of it is in memory, and it is of no part, and of no version yet.
    pub fn is_plain(&self) -> bool {
        let is_stored = self.stream.is_some() || self.session.is_some() || self.published.is_some();
        !is_stored && !self.is_shared
    }

    /// Whether other mounts may write it, and this one has closed it.
    pub fn has_left(&self) -> bool {
        self.is_shared && self.joined.is_none()
    }

    fn write_zeros(&mut self, files: &Files, range: std::ops::Range<u64>) -> Outcome<()> {
        self.catch_up(files)?;
        let (mut at, end) = (range.start, range.end.min(self.len()));
        while at < end {
            let some = (end - at).min(ZEROS.len() as u64);
            self.layers.write(at, &ZEROS[..some as usize]);
            at += some;
            self.make_room(files)?;
        }
        Ok(())
    }

    /// Has what is kept in memory stored if that is too much.
    fn make_room(&mut self, files: &Files) -> Outcome<()> {
        let kept = self.kept.get_or_insert_with(|| files.memory.keep());
        if kept.note(self.layers.overlay.memory()) {
            self.attempt(|inner| inner.settle(files))?;
        }
        Ok(())
    }

    /// From now on there is nothing to be published, and all who have it open hear why.
    pub fn fail(&mut self, why: &Error) {
        self.failed = Some((why.kind(), why.to_string()));
        self.has_failed.store(true, Ordering::Relaxed);
        self.joined.take().into_iter().for_each(Joined::abort);
        self.give_up();
    }

    /// Whether a process was killed that had it open; with `forgives` that is forgotten.
    pub fn was_torn(&mut self, forgives: bool) -> bool {
        let was = self.is_torn;
        self.is_torn &= !forgives;
        was
    }

    pub fn touch(&mut self) {
        let now = now();
        (self.node.modified_ns, self.node.changed_ns, self.written_ns) = (now, now, now);
        self.is_dirty = true;
    }

    /// Does something after whose failure there is nothing left to be published.
    fn attempt<T>(&mut self, step: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let done = step(self);
        if let Err(error) = &done {
            self.fail(error);
        }
        done
    }

    /// Forgets what was written; the store forgets it with its next collection at the latest.
    pub fn give_up(&mut self) {
        (self.layers, self.kept) = (Layered::default(), None);
        self.let_go();
    }

    /// The same, but for what can be read.
    pub fn let_go(&mut self) {
        self.stream.take().into_iter().for_each(Stream::abandon);
        self.session = None;
        self.joined = None;
        self.is_dirty = false;
    }

    fn why_stream_failed(&mut self, error: Error) -> Error {
        self.stream.take().map_or(error, |stream| {
            stream
                .end()
                .err()
                .unwrap_or_else(|| Error::new(Kind::Io, "what was written before could not be stored"))
        })
    }

    /// Whether it was written from its beginning, with nothing below, and is long.
    fn is_sequential(&self) -> bool {
        let layers = &self.layers;
        layers.base_len == 0
            && self.joined.is_none()
            && self.session.is_none()
            && layers.overlay.bytes() as u64 >= STREAM_FROM
            && layers.overlay.bytes() as u64 == layers.len
            && layers.overlay.run_from_start().is_some()
    }

    fn session(&mut self, files: &Files) -> Result<Arc<Session>> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let session = Arc::new(files.open_writer()?);
        // What the new version shares with the old one is there as long as the old one was when this began.
        if let Some(entry) = self.layers.base.as_ref().and_then(|base| base.entry.as_ref())
            && session.state().checkpoint(&entry.id()).is_none()
        {
            self.is_base_gone = true;
        }
        self.session = Some(session.clone());
        Ok(session)
    }

    fn part_writer(&mut self, files: &Files) -> Result<PartWriter> {
        let session = self.session(files)?;
        // Also of what was cut off: whoever writes a file anew mostly writes much of it again.
        let base = self.layers.base.as_ref().filter(|_| self.is_base_there());
        let parent = base.map(|base| base.part.clone());
        let parent = parent.map(|part| PartView { part: part.part.clone(), roots: part.roots.clone() });
        let app = AppName::files();
        let options = &files.save;
        files.repository.part_writer_after(session.id(), session.state(), &app, options, |_| parent)
    }

    /// Whether a new version may refer to what the one below it has.
    fn may_refer(&self) -> bool {
        self.layers.base_len > 0 && self.is_base_there()
    }

    /// Whether there is one below it, and it stays.
    fn is_base_there(&self) -> bool {
        self.layers.base.as_ref().is_some_and(|base| !self.is_base_gone && !base.is_doubtful)
    }

    fn begin_stream(&mut self, files: &Files, memory: Loan) -> Result<()> {
        let mut part = self.part_writer(files)?;
        if self.is_base_there() {
            // What is written again and again is recognized sooner; what is new would only be slower.
            part.use_tags(files.repository.tags);
        }
        let layers = std::mem::take(&mut self.layers);
        self.kept = None;
        let mut stream = Stream::begin(part, member_path(self.node.number), self.node.mode, memory)?;
        for (_, bytes) in layers.overlay.into_ranges() {
            stream.write(&bytes)?;
        }
        // What it is compared with stays as long as it is written.
        self.layers = Layered { base: layers.base, len: stream.len, ..Layered::default() };
        self.stream = Some(stream);
        Ok(())
    }

    /// Ends a stream, if there is one; what it had becomes what is below.
    fn end_stream(&mut self, files: &Files) -> Result<()> {
        if self.stream.is_some() { self.settle(files) } else { Ok(()) }
    }

    /// Makes all that was written a part that nobody sees, and that what comes next is written above.
    fn settle(&mut self, files: &Files) -> Result<()> {
        if self.joined.is_some() {
            return self.lay(files);
        }
        if self.stream.is_none() && self.layers.is_base() && self.layers.base.is_some() {
            return Ok(());
        }
        let finished = self.finish_part(files, None)?;
        let session = self.session(files)?;
        self.stand_on(files, session, &finished)
    }

    /// Stores all that was written. What was in memory of it is not any more: from here on it lies below, or is given up.
    fn finish_part(&mut self, files: &Files, manifest: Option<Manifest>) -> Result<FinishedPart> {
        if let Some(stream) = self.stream.take() {
            return stream.end()?.finish(manifest);
        }
        let _memory = files.memory.to_store(self.layers.len, self.layers.overlay.bytes());
        let part = self.part_writer(files)?;
        let is_base_kept = self.may_refer();
        let source = Layered { is_base_kept, ..std::mem::take(&mut self.layers) };
        let part = self.add_to(part, source)?;
        self.kept = None;
        part.finish(manifest)
    }

    fn add_to(&self, mut part: PartWriter, source: Layered) -> Result<PartWriter> {
        let (path, mode) = (member_path(self.node.number), self.node.mode);
        match part.add_file(&path, Arc::new(source), mode, self.node.modified_ns, &|_| {}) {
            Ok(()) => Ok(part),
            Err(error) => {
                part.abandon();
                Err(error)
            }
        }
    }

    /// Goes on above a part that was just written.
    pub fn stand_on(&mut self, files: &Files, keeper: Arc<Session>, finished: &FinishedPart) -> Result<()> {
        let vault = files.vault_of(keeper.state().clone());
        let part = PartView::open(&vault, &finished.head)?;
        let opened = Opened::part(vault, keeper, part, self.node.number)?;
        self.layers = Layered::of(Arc::new(opened));
        self.is_base_gone = false;
        Ok(())
    }

    /// Makes a part of all that was written that can be published.
    pub(super) fn ready(&mut self, files: &Files) -> Result<Ready> {
        self.attempt(|inner| {
            let len = inner.layers.len;
            let manifest = manifest(AppName::files(), inner.node.number);
            let base = inner.layers.base.clone();
            let finished = inner.finish_part(files, Some(manifest.clone()))?;
            let session = inner.session(files)?.id();
            Ok(Ready { session, finished, manifest, len, base })
        })
    }

    /// The same of what several mounts have written, which lies below what was written here.
    pub(super) fn ready_together(&mut self, files: &Files, state: &Arc<State>) -> Result<Ready> {
        let session = self.joined.as_ref().expect("it takes part").of;
        let is_there = |base: &Arc<Opened>| {
            base.entry.as_ref().is_some_and(|entry| state.checkpoint(&entry.id()).is_some())
        };
        self.is_base_gone |= !self.layers.base.as_ref().is_some_and(is_there);
        let source = Layered { is_base_kept: self.may_refer(), ..self.layers.clone() };
        let manifest = manifest(AppName::files(), self.node.number);
        let app = AppName::files();
        let _memory = files.memory.to_store(self.layers.len, self.layers.overlay.bytes());
        let part = files.repository.part_writer_after(session, state, &app, &files.save, |_| None)?;
        let finished = self.add_to(part, source)?.finish(Some(manifest.clone()))?;
        Ok(Ready { session, finished, manifest, len: self.layers.len, base: self.layers.base.clone() })
    }
}
