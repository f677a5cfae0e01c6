//! Feeding members through the pipeline: files that can be read at any place, and streams.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex};

use stdchk_codec::{Advisor, Cutter};
use stdchk_object::member::{Chunking, Content};
use stdchk_object::tree::{LEAF_SHIFT, NodeRef};
use stdchk_object::{Error, Hash, PackRef, Result};

use super::assembly::data_hash;
use super::blob::BlobWriter;
use super::unit::{ParentLeaf, Source, Unit, look};
use super::{PartWriter, empty_content};
use crate::buffers::Buffer;
use crate::options::{ChunkingChoice, unit_for};
use crate::vault::{LeafAt, Roots};
use crate::workers::Answer;

/// Pages of a file that are compared with the parent to choose a chunking.
const SAMPLED_PAGES: u64 = 64;
/// The chunkings that `auto` chooses from.
const AUTO_PAGE: Chunking = Chunking::Page(4096);
const AUTO_CDC: Chunking = Chunking::Cdc(8192);

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
        self.claim(path)?;
        let shares = self.shares.len();
        let parent = self.parent_member(path);
        self.begin_member();
        let content = match self.choose(&*source, &parent)? {
            Chunking::Page(page) => self.pages_of_source(source, page, &parent, progress)?,
            Chunking::Cdc(average) => {
                let mut reader = SourceReader { source, at: 0 };
                self.chunks_of_stream(&mut reader, average, progress)?
            }
        };
        self.add_content(path, content, false, mode, mtime_ns, shares);
        Ok(())
    }

    /// Adds what a stream gives until it ends.
    pub fn add_stream(&mut self, path: &str, stream: &mut dyn Read, progress: &dyn Fn(u64)) -> Result<()> {
        self.add_read(path, stream, true, 0o600, 0, progress)
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
        self.add_read(path, stream, false, mode, mtime_ns, progress)
    }

    fn add_read(
        &mut self,
        path: &str,
        stream: &mut dyn Read,
        is_stream: bool,
        mode: u32,
        mtime_ns: i64,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        self.claim(path)?;
        let shares = self.shares.len();
        let parent = self.parent_member(path);
        self.begin_member();
        let chunking = match (self.options.chunking, &parent) {
            (ChunkingChoice::Fixed(chunking), _) => chunking,
            (ChunkingChoice::Auto, Some((_, content))) => self.inherited(content),
            (ChunkingChoice::Auto, None) => AUTO_PAGE,
        };
        let content = match chunking {
            Chunking::Page(page) => self.pages_of_stream(stream, page, &parent, progress)?,
            Chunking::Cdc(average) => self.chunks_of_stream(stream, average, progress)?,
        };
        self.add_content(path, content, is_stream, mode, mtime_ns, shares);
        Ok(())
    }

    fn begin_member(&mut self) {
        self.advisor = Arc::new(Mutex::new(Advisor::new(self.options.coding)));
    }

    /// Which chunking to use. A file that changed in place is told by pages that are where they were; one that
    /// grew or shrank by an odd number of bytes, and has lost its place, by content.
    fn choose(&self, source: &dyn Source, parent: &ParentContent) -> Result<Chunking> {
        if let ChunkingChoice::Fixed(chunking) = self.options.chunking {
            return Ok(chunking);
        }
        let Some((roots, content)) = parent else { return Ok(AUTO_PAGE) };
        let inherited = self.inherited(content);
        let Chunking::Page(page) = inherited else { return Ok(inherited) };
        let step = u64::from(page);
        let (ours, theirs) = (source.len(), content.blob.len);
        if ours.abs_diff(theirs).is_multiple_of(step) || ours.min(theirs) < SAMPLED_PAGES * step {
            return Ok(inherited);
        }
        let pages = ours.min(theirs) / step;
        let (mut same, mut looked) = (0, 0);
        let mut bytes = vec![0; page as usize];
        for i in 0..SAMPLED_PAGES {
            let offset = i * pages / SAMPLED_PAGES * step;
            source.read_at(offset, &mut bytes)?;
            if bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            looked += 1;
            let mut then = vec![0; page as usize];
            let read = self.vault.read_range(roots, &content.blob, offset, &mut then);
            same += u32::from(read.is_ok() && then == bytes);
        }
        Ok(if looked > 0 && same * 8 < looked { AUTO_CDC } else { inherited })
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

    fn ask_for(&self, page: u32, buffer: Buffer, parent: Option<ParentLeaf>) -> Answer<Unit> {
        let vault = self.vault.clone();
        self.workers.ask(move |_| look(&vault, parent.as_ref(), page as usize, buffer, |_, _| Ok(())))
    }

    fn parent_leaf(&mut self, parent: &ParentContent, offset: u64, leaf_shift: u8) -> Option<ParentLeaf> {
        let (roots, content) = parent.as_ref()?;
        if content.blob.leaf_shift != leaf_shift || offset >= content.blob.len {
            return None;
        }
        let mut leaf = None;
        let vault = self.vault.clone();
        let mut seen = Vec::new();
        let found = vault
            .find_leaf(roots, &content.blob, offset, &mut |hash, pack, chunk| seen.push((hash, pack, chunk)));
        seen.into_iter().for_each(|node| self.know_node(node));
        if let Ok((at, start, len)) = found
            && at != LeafAt::Hole
            && start == offset
        {
            leaf = Some(ParentLeaf { roots: roots.clone(), blob: content.blob.clone(), at, len });
        }
        leaf
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
        let mut blob = BlobWriter::new(leaf_shift);
        let mut window: VecDeque<Pending> = VecDeque::new();
        let (len, limit) = (source.len(), self.window());
        let mut offset = 0;
        while offset < len {
            let size = step.min(len - offset);
            if window.len() >= limit
                && let Some(oldest) = window.pop_front()
            {
                oldest.absorb(self, &mut blob, progress)?;
            }
            if source.next_data(offset) >= offset + size {
                window.push_back(Pending::Hole(size));
            } else {
                let parent = self.parent_leaf(parent, offset, leaf_shift);
                let buffer = self.buffers.take(size as usize);
                let (source, vault) = (source.clone(), self.vault.clone());
                let read = move |at, bytes: &mut [u8]| source.read_at(offset + at as u64, bytes);
                let answer =
                    self.workers.ask(move |_| look(&vault, parent.as_ref(), page as usize, buffer, read));
                window.push_back(Pending::Unit(answer, size));
            }
            offset += size;
        }
        for pending in window {
            pending.absorb(self, &mut blob, progress)?;
        }
        self.end_member(blob, Chunking::Page(page))
    }

    fn pages_of_stream(
        &mut self,
        stream: &mut dyn Read,
        page: u32,
        parent: &ParentContent,
        progress: &dyn Fn(u64),
    ) -> Result<Content> {
        let leaf_shift = Self::leaf_shift(page);
        let mut blob = BlobWriter::new(leaf_shift);
        let mut window: VecDeque<Pending> = VecDeque::new();
        let limit = self.window();
        let mut offset = 0;
        loop {
            if window.len() >= limit
                && let Some(oldest) = window.pop_front()
            {
                oldest.absorb(self, &mut blob, progress)?;
            }
            let mut buffer = self.buffers.take(1 << leaf_shift);
            let filled = fill(stream, &mut buffer)?;
            buffer.truncate(filled);
            if filled == 0 {
                break;
            }
            let parent = self.parent_leaf(parent, offset, leaf_shift);
            window.push_back(Pending::Unit(self.ask_for(page, buffer, parent), filled as u64));
            offset += filled as u64;
        }
        for pending in window {
            pending.absorb(self, &mut blob, progress)?;
        }
        self.end_member(blob, Chunking::Page(page))
    }

    fn chunks_of_stream(
        &mut self,
        stream: &mut dyn Read,
        average: u32,
        progress: &dyn Fn(u64),
    ) -> Result<Content> {
        let cutter = Cutter::new(average)?;
        let mut blob = BlobWriter::new(LEAF_SHIFT);
        let mut window: VecDeque<Pending> = VecDeque::new();
        let limit = self.window();
        let mut carried: Vec<u8> = Vec::new();
        let mut ended = false;
        while !ended {
            if window.len() >= limit
                && let Some(oldest) = window.pop_front()
            {
                oldest.absorb(self, &mut blob, progress)?;
            }
            let mut buffer = self.buffers.take(unit_for(Chunking::Cdc(average)));
            buffer[..carried.len()].copy_from_slice(&carried);
            let filled = carried.len() + fill(stream, &mut buffer[carried.len()..])?;
            ended = filled < buffer.len();
            let mut lengths = Vec::new();
            let cut = cutter.cut(&buffer[..filled], ended, &mut lengths);
            carried.clear();
            carried.extend_from_slice(&buffer[cut..filled]);
            buffer.truncate(cut);
            let answer = self.workers.ask(move |_| {
                let mut start = 0;
                let chunk = |len: u32| {
                    let bytes = &buffer[start..start + len as usize];
                    start += len as usize;
                    (len, data_hash(bytes))
                };
                let chunks: Vec<(u32, Hash)> = lengths.into_iter().map(chunk).collect();
                Ok((Arc::new(buffer), chunks))
            });
            window.push_back(Pending::Chunks(answer, cut as u64));
        }
        for pending in window {
            pending.absorb(self, &mut blob, progress)?;
        }
        self.end_member(blob, Chunking::Cdc(average))
    }

    fn end_member(&mut self, blob: BlobWriter, chunking: Chunking) -> Result<Content> {
        let (blob, tally) = blob.finish(self)?;
        Ok(Content { tally, ..empty_content(chunking, blob) })
    }
}

/// A stretch that is being looked at.
enum Pending {
    Hole(u64),
    Unit(Answer<Unit>, u64),
    Chunks(Answer<(Arc<Buffer>, Vec<(u32, Hash)>)>, u64),
}

impl Pending {
    fn absorb(self, part: &mut PartWriter, blob: &mut BlobWriter, progress: &dyn Fn(u64)) -> Result<()> {
        let len = match self {
            Pending::Hole(len) => {
                blob.hole(part, len)?;
                len
            }
            Pending::Unit(answer, len) => {
                blob.unit(part, answer.wait()?)?;
                len
            }
            Pending::Chunks(answer, len) => {
                let (buffer, chunks) = answer.wait()?;
                blob.chunks(part, buffer, &chunks)?;
                len
            }
        };
        progress(len);
        Ok(())
    }
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
