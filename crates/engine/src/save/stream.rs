//! Feeding members through the pipeline: files that can be read at any place, and streams.

use std::io::Read;
use std::sync::Arc;

use stdchk_codec::Cutter;
use stdchk_lend::{Lent, lend};
use stdchk_object::member::{Chunking, Content};
use stdchk_object::tree::{Blob, LEAF_SHIFT, NodeRef};
use stdchk_object::{Error, Hash, PackRef, Result};
use stdchk_tag::TAGGED_MAX;

use super::PartWriter;
use super::assembly::data_hash;
use super::parent::Parent;
use super::past::Past;
use super::stretch::Stretch;
use super::tagging::Tagging;
use super::unit::{Known, Look, Source};
use super::window::{Pending, Trail, Window};
use crate::buffers::{Buffer, Buffers};
use crate::options::{ChunkingChoice, unit_for};
use crate::tags::RECORDS_MIN;
use crate::vault::{LeafAt, Roots};

/// What `auto` means where there is no parent.
const AUTO_PAGE: Chunking = Chunking::Page(4096);

/// Permission bits of what was no file.
const STREAM_MODE: u32 = 0o600;

type ParentContent = Option<(Arc<Roots>, Content)>;

impl PartWriter {
    /// Adds a file. `progress` is told of bytes that were taken in.
    pub fn add_file(
        &mut self,
        path: &str,
        source: Arc<dyn Source>,
        mode: u32,
        mtime_ns: i64,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        self.add_source(path, source, false, mode, mtime_ns, progress).map(drop)
    }

    /// Adds bytes in memory. What has not changed of them is looked at where it lies, by all workers.
    pub fn add_memory(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        let source = |lent| Arc::new(InMemory(lent));
        lend(bytes, |lent| self.add_source(path, source(lent), true, STREAM_MODE, 0, &|_| {})).map(drop)
    }

    /// Adds bytes in memory of which `past` knows where they were written to. What was not since it was equal to the parent is not looked at. From now on
    /// it is known to be equal to what was added.
    pub fn add_watched(&mut self, path: &str, bytes: &[u8], past: &mut Past) -> Result<()> {
        let parent = self.parent_member(path).map(|(roots, content)| (roots, content.blob));
        let added = lend(bytes, |lent| {
            let source = Arc::new(past.source(lent, parent));
            self.add_source(path, source, true, STREAM_MODE, 0, &|_| {})
        })?;
        past.is_now(&added);
        Ok(())
    }

    fn add_source(
        &mut self,
        path: &str,
        source: Arc<dyn Source>,
        is_stream: bool,
        mode: u32,
        mtime_ns: i64,
        progress: &dyn Fn(u64),
    ) -> Result<Blob> {
        self.claim(path)?;
        let shares = self.shares.len();
        let parent = self.parent_member(path);
        self.begin_member(&parent, source.len());
        let content = match self.chunking(&parent) {
            Chunking::Page(page) => self.pages_of_source(source, page, &parent, progress)?,
            Chunking::Cdc(average) => {
                let mut reader = SourceReader { source, at: 0 };
                self.chunks_of_stream(&mut reader, average, progress)?
            }
        };
        let blob = content.blob.clone();
        self.add_content(path, content, is_stream, mode, mtime_ns, shares);
        Ok(blob)
    }

    /// Adds what a stream gives until it ends.
    pub fn add_stream(&mut self, path: &str, stream: &mut dyn Read, progress: &dyn Fn(u64)) -> Result<()> {
        self.add_read(path, &mut Streamed(stream), true, STREAM_MODE, 0, progress)
    }

    /// Adds a file whose bytes come as a stream.
    pub fn add_file_stream(
        &mut self,
        path: &str,
        stream: &mut dyn Read,
        mode: u32,
        mtime_ns: i64,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        self.add_read(path, &mut Streamed(stream), false, mode, mtime_ns, progress)
    }

    /// Bytes that are looked at together: the best length of buffers for [`PartWriter::add_file_fed`].
    pub const STRETCH: usize = 1 << LEAF_SHIFT;

    /// Buffers for [`PartWriter::add_file_fed`], as many as that may hold at once and one more.
    pub fn buffers(&self) -> Buffers {
        Buffers::with_spares(self.options.buffer_count(), Self::STRETCH, self.coder.workers.spares())
    }

    /// Adds a file whose bytes come in order, in buffers of [`PartWriter::buffers`]: each but the last one has [`PartWriter::STRETCH`] bytes. Nothing
    /// comes after the first nothing.
    pub fn add_file_fed(
        &mut self,
        path: &str,
        feed: &mut dyn FnMut() -> Option<Buffer>,
        mode: u32,
        mtime_ns: i64,
    ) -> Result<()> {
        self.add_read(path, &mut Fed { feed, rest: None }, false, mode, mtime_ns, &|_| {})
    }

    fn add_read(
        &mut self,
        path: &str,
        stream: &mut dyn Feed,
        is_stream: bool,
        mode: u32,
        mtime_ns: i64,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        self.claim(path)?;
        let shares = self.shares.len();
        let parent = self.parent_member(path);
        self.begin_member(&parent, 0);
        let chunking = self.chunking(&parent);
        let content = match chunking {
            Chunking::Page(page) => self.pages_of_stream(stream, page, &parent, progress)?,
            Chunking::Cdc(average) => self.chunks_of_stream(stream.as_read(), average, progress)?,
        };
        self.add_content(path, content, is_stream, mode, mtime_ns, shares);
        Ok(())
    }

    /// A member begins, of so many bytes if that is known, and else of 0.
    fn begin_member(&mut self, parent: &ParentContent, len: u64) {
        self.expect_member(len, parent.as_ref().map(|(_, content)| content));
        let before = parent.as_ref().and_then(|(_, content)| content.coded.as_ref());
        self.coder.begin_member(self.options.coding, before);
    }

    /// Which chunking to use: what was asked for, or what the parent has.
    fn chunking(&self, parent: &ParentContent) -> Chunking {
        match (self.options.chunking, parent) {
            (ChunkingChoice::Fixed(chunking), _) => chunking,
            (ChunkingChoice::Auto, Some((_, content))) => self.inherited(content),
            (ChunkingChoice::Auto, None) => AUTO_PAGE,
        }
    }

    fn leaf_shift(page: u32) -> u8 {
        LEAF_SHIFT.max(page.trailing_zeros() as u8)
    }

    fn window(&self) -> usize {
        self.options.window(self.workers.count())
    }

    /// The parent's chunking, if the buffers are made for it.
    fn inherited(&self, content: &Content) -> Chunking {
        if unit_for(content.chunking) <= self.options.unit() { content.chunking } else { AUTO_PAGE }
    }

    /// How chunks of a member are recognized, of which `most` bytes are expected at most.
    fn tagging(&self, parent: &ParentContent, page: u32, most: u64) -> Tagging {
        let is_worth_it = page as usize <= TAGGED_MAX && most >= (RECORDS_MIN * TAGGED_MAX) as u64;
        let cache = if is_worth_it { (self.tags)() } else { None };
        let same = parent.as_ref().filter(|(_, content)| content.chunking == Chunking::Page(page));
        let tags = cache.as_ref().zip(same).and_then(|(cache, (_, content))| cache.find(&content.blob));
        if tags.is_some() {
            self.vault.expect_few_hashes();
        }
        Tagging { cache, parent: tags.map(Arc::new) }
    }

    /// How to look at the stretch at `offset`.
    fn look(
        &mut self,
        trail: &Trail,
        parent: &ParentContent,
        tags: &Tagging,
        page: u32,
        offset: u64,
    ) -> Look {
        let follow = self.options.chunking == ChunkingChoice::Auto;
        let parent = self.parent_at(trail, parent, page, offset);
        let search = follow && parent.is_some() && trail.may_search();
        let (page, tags) = (page as usize, tags.clone());
        Look { offset, page, parent, follow, search, known: Known::default(), tags }
    }

    fn parent_at(&mut self, trail: &Trail, parent: &ParentContent, page: u32, offset: u64) -> Option<Parent> {
        let (roots, content) = parent.as_ref()?;
        if content.chunking != Chunking::Page(page) {
            return None;
        }
        let leaf = if trail.shift == 0 { self.parent_leaf(roots, content, page, offset) } else { None };
        Some(Parent {
            roots: roots.clone(),
            blob: content.blob.clone(),
            leaf,
            shift: trail.shift,
            shifts: trail.shifts.clone(),
        })
    }

    /// The parent's leaf at the very same place. The nodes on the way to it become known.
    fn parent_leaf(
        &mut self,
        roots: &Roots,
        content: &Content,
        page: u32,
        offset: u64,
    ) -> Option<(LeafAt, u64)> {
        if content.blob.leaf_shift != Self::leaf_shift(page) || offset >= content.blob.len {
            return None;
        }
        let vault = self.vault.clone();
        let mut seen = Vec::new();
        let found = vault
            .find_leaf(roots, &content.blob, offset, &mut |hash, pack, chunk| seen.push((hash, pack, chunk)));
        seen.into_iter().for_each(|node| self.know_node(node));
        let (at, start, len) = found.ok()?;
        (at != LeafAt::Hole && start == offset).then_some((at, len))
    }

    /// A node that the parent has and that was read whole: the same bytes need not be stored again.
    pub(super) fn know_node(&mut self, (hash, pack, chunk): (Hash, PackRef, u32)) {
        self.nodes.entry(hash).or_insert_with(|| {
            self.foreign.insert(pack.name, pack);
            NodeRef { pack: pack.name, chunk }
        });
    }

    fn pages_of_source(
        &mut self,
        source: Arc<dyn Source>,
        page: u32,
        parent: &ParentContent,
        progress: &dyn Fn(u64),
    ) -> Result<Content> {
        let leaf_shift = Self::leaf_shift(page);
        let step = 1u64 << leaf_shift;
        let mut window = Window::new(self.window(), leaf_shift, parent.is_some(), progress);
        let len = source.len();
        let tags = self.tagging(parent, page, len);
        window.write_tags(tags.writer(leaf_shift, parent.as_ref().map(|(_, content)| &content.blob)));
        let mut offset = 0;
        while offset < len {
            let mut size = step.min(len - offset);
            window.make_room(self)?;
            let data = source.next_data(offset).min(len);
            if data >= offset + size {
                // As many leaves at once as there is nothing in.
                size = if data == len { len - offset } else { (data - offset) / step * step };
                window.push(Pending::Hole(size));
            } else {
                let mut look = self.look(&window.trail, parent, &tags, page, offset);
                let held = source.held(offset..offset + size);
                if !held.is_empty() {
                    // What is held lies at its own place: little has moved here, wherever what came before was found.
                    look.parent.iter_mut().for_each(|parent| parent.shift = 0);
                    let theirs = look.parent.as_ref().map(|parent| &parent.blob);
                    look.known = Known::new(held, theirs, offset, size);
                    // All of it must be read to see whether the rest has moved; of memory that is worth it where the rest is most of it.
                    look.search &= source.memory().is_some() && look.known.is_little(size);
                }
                let buffer = self.buffers.take();
                let (source, vault, meter) = (source.clone(), self.vault.clone(), self.coder.meter.clone());
                // What is known to be unchanged is not read, so it cannot be kept.
                let packed = window.trail.some_old || !look.known.is_nothing();
                let answer = self.workers.ask(move |tools| {
                    let mut read = |at, bytes: &mut [u8]| source.read_at(offset + at as u64, bytes);
                    let room = packed.then_some(&mut tools.room);
                    let stretch = match source.memory().filter(|_| packed) {
                        Some(all) => Stretch::in_memory(buffer, &all[offset as usize..][..size as usize]),
                        None => Stretch::to_be_read(buffer, size as usize, room, &mut read),
                    };
                    meter.time(size, || look.at(&vault, stretch))
                });
                window.push(Pending::Unit(answer, size));
            }
            offset += size;
        }
        window.finish(self, Chunking::Page(page))
    }

    fn pages_of_stream(
        &mut self,
        stream: &mut dyn Feed,
        page: u32,
        parent: &ParentContent,
        progress: &dyn Fn(u64),
    ) -> Result<Content> {
        let leaf_shift = Self::leaf_shift(page);
        let mut window = Window::new(self.window(), leaf_shift, parent.is_some(), progress);
        let tags = self.tagging(parent, page, u64::MAX);
        window.write_tags(tags.writer(leaf_shift, parent.as_ref().map(|(_, content)| &content.blob)));
        let mut offset = 0;
        loop {
            window.make_room(self)?;
            let Some(buffer) = stream.next(&self.buffers, 1 << leaf_shift)? else { break };
            let filled = buffer.len();
            let look = self.look(&window.trail, parent, &tags, page, offset);
            let (vault, meter) = (self.vault.clone(), self.coder.meter.clone());
            let answer = self
                .workers
                .ask(move |_| meter.time(filled as u64, || look.at(&vault, Stretch::there(buffer))));
            window.push(Pending::Unit(answer, filled as u64));
            offset += filled as u64;
        }
        window.finish(self, Chunking::Page(page))
    }

    fn chunks_of_stream(
        &mut self,
        stream: &mut dyn Read,
        average: u32,
        progress: &dyn Fn(u64),
    ) -> Result<Content> {
        let cutter = Cutter::new(average)?;
        let mut window = Window::new(self.window(), LEAF_SHIFT, false, progress);
        let mut carried: Vec<u8> = Vec::new();
        let mut ended = false;
        while !ended {
            window.make_room(self)?;
            let mut buffer = self.buffers.take();
            let unit = unit_for(Chunking::Cdc(average));
            buffer.set_len(carried.len());
            buffer.copy_from_slice(&carried);
            let filled = fill_buffer(stream, &mut buffer, carried.len(), unit)?;
            ended = filled < unit;
            let mut lengths = Vec::new();
            let cut = cutter.cut(&buffer[..filled], ended, &mut lengths);
            carried.clear();
            carried.extend_from_slice(&buffer[cut..filled]);
            buffer.set_len(cut);
            let meter = self.coder.meter.clone();
            let answer = self.workers.ask(move |_| {
                let mut start = 0;
                let chunk = |len: u32| {
                    let bytes = &buffer[start..start + len as usize];
                    start += len as usize;
                    (len, data_hash(bytes))
                };
                let chunks: Vec<(u32, Hash)> =
                    meter.time(cut as u64, || lengths.into_iter().map(chunk).collect());
                Ok((Arc::new(buffer), chunks))
            });
            window.push(Pending::Chunks(answer, cut as u64));
        }
        window.finish(self, Chunking::Cdc(average))
    }
}

/// Bytes that come in order, by buffers.
trait Feed {
    /// The next buffer, with so many bytes unless it is the last one.
    fn next(&mut self, buffers: &Buffers, len: usize) -> Result<Option<Buffer>>;

    fn as_read(&mut self) -> &mut dyn Read;
}

/// A stream, read into buffers.
struct Streamed<'a>(&'a mut dyn Read);

impl Feed for Streamed<'_> {
    fn next(&mut self, buffers: &Buffers, len: usize) -> Result<Option<Buffer>> {
        let mut buffer = buffers.take();
        let filled = fill_buffer(self.0, &mut buffer, 0, len)?;
        buffer.set_len(filled);
        Ok((filled > 0).then_some(buffer))
    }

    fn as_read(&mut self) -> &mut dyn Read {
        self.0
    }
}

/// Buffers that somebody else has filled.
struct Fed<'a> {
    feed: &'a mut dyn FnMut() -> Option<Buffer>,
    /// What is left of one, and from where on, if they are not taken as they are.
    rest: Option<(Buffer, usize)>,
}

impl Feed for Fed<'_> {
    fn next(&mut self, buffers: &Buffers, len: usize) -> Result<Option<Buffer>> {
        match len == PartWriter::STRETCH {
            true => Ok((self.feed)()),
            false => Streamed(self).next(buffers, len),
        }
    }

    fn as_read(&mut self) -> &mut dyn Read {
        self
    }
}

impl Read for Fed<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let rest = self.rest.take().or_else(|| Some(((self.feed)()?, 0)));
        let Some((buffer, at)) = rest else { return Ok(0) };
        let some = target.len().min(buffer.len() - at);
        target[..some].copy_from_slice(&buffer[at..at + some]);
        self.rest = (at + some < buffer.len()).then_some((buffer, at + some));
        Ok(some)
    }
}

/// What is read first: many streams are short, and memory for a long one takes its time to get.
const FIRST_BYTES: usize = 64 << 10;

/// Reads from `filled` on until the buffer has so many bytes or the stream ends; how many it has.
fn fill_buffer(stream: &mut dyn Read, buffer: &mut Buffer, mut filled: usize, most: usize) -> Result<usize> {
    for len in [most.min(filled + FIRST_BYTES), most] {
        buffer.set_len(len);
        filled += fill(stream, &mut buffer[filled..])?;
        if filled < len {
            break;
        }
    }
    Ok(filled)
}

/// Reads until the buffer is full or the stream ends.
fn fill(stream: &mut dyn Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("cannot read the input", error)),
        }
    }
    Ok(filled)
}

/// Memory that somebody lends for as long as it is saved.
struct InMemory(Lent);

impl Source for InMemory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.copy_from_slice(&self.0[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn memory(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
}

/// A source read from front to back.
struct SourceReader {
    source: Arc<dyn Source>,
    at: u64,
}

impl Read for SourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.source.len() - self.at;
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.source.read_at(self.at, &mut buffer[..len]).map_err(std::io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}
