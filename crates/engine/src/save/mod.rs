//! Writing one part of a checkpoint.
//!
//! The way of the bytes, page by page or chunk by chunk:
//!
//! ```text
//! caller          workers                    caller, in order             workers       writers of packs
//! read or ask ->  read, find zeros, hash, -> deduplicate, cut into   ->   compress  ->  put, sync
//!                 compare with the parent    runs and packs, build trees
//! ```
//!
//! What stays true:
//! - results are taken in the order of the bytes, so what is stored does not depend on threads;
//! - a chunk's place is known as soon as it is deduplicated, because packs are cut by raw bytes;
//! - every buffer comes from one bounded supply, and every stage that holds buffers goes on without needing more.

mod account;
mod ahead;
mod assembly;
mod base;
mod blob;
mod coder;
mod compare;
mod cover;
mod finish;
mod grid;
mod kin;
mod meter;
mod parent;
mod past;
mod rewrite;
mod stream;
mod stretch;
mod tagging;
mod unit;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use stdchk_codec::Pace;
use stdchk_object::hash::Domain;
use stdchk_object::member::{Body, Chunking, Content, Member, Tally, check_path, check_target};
use stdchk_object::pack::{ChunkKind, Run};
use stdchk_object::tree::{NodeRef, NodeSink};
use stdchk_object::{Error, Hash, PackName, PackRef, Result, SessionId};

use crate::buffers::{Buffers, Bytes};
use crate::index::{Index, IndexBuilder};
use crate::known::{Known, Place};
use crate::options::{Options, RUN_BYTES};
use crate::tags::TagCache;
use crate::vault::{BaseState, OpenPack, Roots, Vault};
use crate::view::PartView;
use crate::workers::{Answer, Workers};

use ahead::Ahead;
use assembly::{Assembly, SealedPack};
use coder::Coder;
pub use finish::{FinishedPart, write_manifest};
use kin::Kin;
pub use past::Past;
pub use rewrite::Rewriter;
pub use unit::{Held, Source};

/// Chunks of the parent that are looked up by hash from the start; a larger parent is found through the index.
const PARENT_CHUNKS_PRELOADED: u64 = 16 << 10;

/// The parent's part of the same rank: what to compare with.
pub struct Parent {
    roots: Arc<Roots>,
    members: Kin,
}

/// A member that was added, until the sizes of its runs are known.
struct Added {
    member: Member,
    /// What was measured when it had been taken in.
    pace: Option<Pace>,
    /// Which of [`PartWriter::shares`] are its own.
    shares: std::ops::Range<usize>,
}

/// How many raw bytes of a run belong to the member being written.
struct Share {
    pack: PackName,
    run: usize,
    bytes: u64,
}

/// Writes one part: members are added, then it is finished. Dropped before, it leaves packs that nothing
/// refers to; [`PartWriter::abandon`] removes them.
pub struct PartWriter {
    options: Options,
    vault: Arc<Vault>,
    workers: Arc<Workers>,
    io: Workers,
    buffers: Buffers,
    parent: Option<Parent>,
    /// Packs of the parent that become known as soon as something is not where the parent has it.
    unloaded: Vec<PackRef>,
    rank: u32,
    known: Known,
    loaded: HashSet<PackName>,
    index: Option<Index>,
    /// Where tags are, asked as soon as anything is large enough for them.
    tags: fn() -> Option<Arc<TagCache>>,
    listed: IndexBuilder,
    session: SessionId,
    writer: u32,
    /// The number of the first pack.
    first_pack: u32,
    packs_begun: u32,
    data: Option<Assembly>,
    meta: Option<Assembly>,
    sealing: Vec<Answer<SealedPack>>,
    sealed: Vec<SealedPack>,
    references: BTreeMap<PackName, u64>,
    foreign: HashMap<PackName, PackRef>,
    /// Those of them in which there are deltas.
    with_deltas: HashMap<PackName, Arc<OpenPack>>,
    /// Runs of these whose bases are referred to already.
    deltas_referred: HashSet<(PackName, usize)>,
    nodes: HashMap<Hash, NodeRef>,
    added: Vec<Added>,
    shares: Vec<Share>,
    paths: HashSet<String>,
    coder: Coder,
    ahead: Ahead,
}

impl PartWriter {
    /// A writer for one part of `session`. `writer` must differ between the session's writers. `parent` is the
    /// part to compare with; it must be pinned by the session.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        options: Options,
        vault: Arc<Vault>,
        workers: Arc<Workers>,
        index: Option<Index>,
        parent: Option<&PartView>,
        session: SessionId,
        writer: u32,
        rank: u32,
    ) -> Result<PartWriter> {
        options.check()?;
        let coder = Coder::for_save(workers.clone(), vault.clone(), &options);
        let first_pack = if options.local_first { vault.store().near() } else { 0 };
        let mut part = PartWriter {
            known: Known::new(options.known_bytes()),
            buffers: Buffers::with_spares(options.buffer_count(), options.unit(), coder.workers.spares()),
            io: Workers::new(8, "stdchk-pack"),
            options,
            vault,
            workers,
            parent: None,
            unloaded: Vec::new(),
            rank,
            loaded: HashSet::new(),
            index,
            tags: || None,
            listed: IndexBuilder::default(),
            session,
            writer,
            first_pack,
            packs_begun: 0,
            data: None,
            meta: None,
            sealing: Vec::new(),
            sealed: Vec::new(),
            references: BTreeMap::new(),
            foreign: HashMap::new(),
            with_deltas: HashMap::new(),
            deltas_referred: HashSet::new(),
            nodes: HashMap::new(),
            added: Vec::new(),
            shares: Vec::new(),
            paths: HashSet::new(),
            coder,
            ahead: Ahead::default(),
        };
        if let Some(view) = parent {
            part.take_parent(view);
        }
        Ok(part)
    }

    /// Recognizes what has not changed by tags, and writes down those of what is added.
    pub fn use_tags(&mut self, tags: fn() -> Option<Arc<TagCache>>) {
        self.tags = tags;
    }

    /// Says how long the store needs for a byte at most, in seconds, by how long whole saves took: what their parts say of it is never seen in saves that
    /// are written in one piece.
    pub fn expect_store(&mut self, most: f64) {
        self.coder.meter.expect_store(most);
    }

    /// A parent that cannot be read is no reason not to save: then there is less to share.
    fn take_parent(&mut self, view: &PartView) {
        let members = match view.members(&self.vault) {
            Ok(members) => members,
            Err(error) => {
                return tracing::warn!("the parent cannot be read, so nothing is shared with it: {error}");
            }
        };
        if let Some(store) = account::store_speed(&members) {
            self.coder.meter.remember_store(store);
        }
        self.parent = Some(Parent { roots: view.roots.clone(), members: Kin::new(members) });
        if view.part.bytes / 4096 <= PARENT_CHUNKS_PRELOADED {
            self.unloaded = view.references().map(|(pack, _)| pack).collect();
        }
    }

    /// Makes the chunks of the parent known.
    fn load_parent(&mut self) {
        std::mem::take(&mut self.unloaded).iter().for_each(|pack| self.load_pack(pack.name, Some(pack)));
    }

    /// Makes the chunks of a stored pack known, unless there is anything wrong with it.
    fn load_pack(&mut self, name: PackName, pack: Option<&PackRef>) {
        let state = self.vault.state();
        let usable = !state.condemned().contains_key(&name) && !state.forwards().contains_key(&name);
        if !usable || !self.loaded.insert(name) {
            return;
        }
        let opened = pack.map_or_else(|| self.vault.open_named(name), |pack| self.vault.open(pack));
        let Ok(open) = opened else { return };
        let Ok(hashes) = self.vault.hashes(&open) else { return };
        let index = self.known.add_pack(name);
        self.known.reserve(hashes.len());
        // What a delta was subtracted from is sure to stay, and to be as durable as it must, only where the parent refers to it.
        let roots = self.parent.as_ref().map(|parent| parent.roots.clone()).unwrap_or_default();
        let is_vouched = |run: &Run| {
            let mut bases = open.footer.base_of(run).filter_map(|span| span.at);
            bases.all(|(base, _)| roots.get(&base.name) == Some(&base))
        };
        let base_is_sound = |run: &Run| {
            !run.coding.delta || (is_vouched(run) && self.vault.base_state(&open, run) == BaseState::Sound)
        };
        let usable = |run: &&Run| run.kind == ChunkKind::Data && base_is_sound(run);
        for run in open.footer.runs().iter().filter(usable) {
            for chunk in run.first_chunk..run.end_chunk() {
                if !self.vault.is_damaged(name, chunk) {
                    self.known.insert(
                        &hashes[chunk as usize],
                        run.chunk_len(chunk),
                        Place { pack: index, chunk },
                    );
                }
            }
        }
        self.know_pack(&open);
    }

    /// A pack of others that may be referred to.
    fn know_pack(&mut self, open: &Arc<OpenPack>) {
        let name = open.pack.name;
        self.foreign.insert(name, open.pack);
        if !open.footer.bases().is_empty() {
            self.with_deltas.entry(name).or_insert_with(|| open.clone());
        }
    }

    /// Looks a chunk up in the repository's index, and makes the packs known that may have it.
    fn consult_index(&mut self, hash: &Hash) {
        let Some(index) = &self.index else { return };
        match index.find(hash) {
            Ok(packs) => packs.into_iter().for_each(|pack| self.load_pack(pack, None)),
            Err(error) => {
                tracing::warn!("the fingerprint index cannot be read: {error}");
                self.index = None;
            }
        }
    }

    /// Adds a directory or a link.
    pub fn add_plain(&mut self, path: &str, body: Body, mode: u32, mtime_ns: i64) -> Result<()> {
        self.claim(path)?;
        if let Body::Link(target) = &body {
            check_target(target)?;
        }
        let member = Member { path: path.to_owned(), body, mode: mode & 0o7777, mtime_ns };
        self.added.push(Added { member, pace: None, shares: 0..0 });
        Ok(())
    }

    /// Adds a file whose bytes are those of a member of another part, which the session must keep. Nothing of them is read.
    pub fn add_content_of(
        &mut self,
        path: &str,
        content: &Content,
        part: &PartView,
        mode: u32,
        mtime_ns: i64,
    ) -> Result<()> {
        self.claim(path)?;
        for (pack, bytes) in part.references() {
            self.foreign.entry(pack.name).or_insert(pack);
            self.refer(pack.name, bytes);
        }
        let tally = Tally { shared: content.blob.len, ..Tally::default() };
        let content = Content { tally, coded: None, ..content.clone() };
        let member =
            Member { path: path.to_owned(), body: Body::File(content), mode: mode & 0o7777, mtime_ns };
        self.added.push(Added { member, pace: None, shares: 0..0 });
        Ok(())
    }

    fn claim(&mut self, path: &str) -> Result<()> {
        check_path(path)?;
        if !self.paths.insert(path.to_owned()) {
            return Err(Error::invalid(format!("two members would be named {path:?}")));
        }
        Ok(())
    }

    fn add_content(
        &mut self,
        path: &str,
        content: Content,
        stream: bool,
        mode: u32,
        mtime_ns: i64,
        shares: usize,
    ) {
        let body = if stream { Body::Stream(content) } else { Body::File(content) };
        let member = Member { path: path.to_owned(), body, mode: mode & 0o7777, mtime_ns };
        let pace = Some(self.coder.meter.pace());
        self.added.push(Added { member, pace, shares: shares..self.shares.len() });
    }

    fn parent_member(&self, path: &str) -> Option<(Arc<Roots>, Content)> {
        let parent = self.parent.as_ref()?;
        let content = parent.members.of(path)?.clone();
        Some((parent.roots.clone(), content))
    }

    /// The name of a pack, as they are counted.
    fn pack_name(&self, count: u32) -> PackName {
        let number = self.first_pack.wrapping_add(count);
        PackName { session: self.session, writer: self.writer, number }
    }

    fn next_pack(&mut self) -> PackName {
        self.packs_begun += 1;
        self.pack_name(self.packs_begun - 1)
    }

    fn new_assembly(&mut self) -> Assembly {
        let name = self.next_pack();
        let index = self.known.add_pack(name);
        Assembly::new(name, index)
    }

    /// Stores a chunk of data that is new; where it lies.
    fn store_data(
        &mut self,
        hash: Hash,
        bytes: ChunkBytes,
        base: Option<(PackRef, u32)>,
        first_of_member: bool,
    ) -> Result<Place> {
        let len = bytes.len() as u32;
        if self.data.as_ref().is_some_and(|data| {
            let count = data.name.number.wrapping_sub(self.first_pack);
            data.raw_bytes() + u64::from(len) > self.options.pack_bytes_of(count)
        }) {
            self.end_data_pack()?;
        }
        if self.data.is_none() {
            self.data = Some(self.new_assembly());
        }
        let data = self.data.as_mut().expect("just made");
        let place = Place { pack: data.index, chunk: data.chunk_count() };
        let pack = data.name;
        let run = data.push(hash, bytes, base, RUN_BYTES, &self.coder);
        match self.shares.last_mut() {
            Some(share) if share.pack == pack && share.run == run && !first_of_member => {
                share.bytes += u64::from(len)
            }
            _ => self.shares.push(Share { pack, run, bytes: u64::from(len) }),
        }
        self.known.insert(&hash, len, place);
        if first_of_member || crate::index::is_sampled(&hash) {
            self.listed.add(&hash, pack);
        }
        Ok(place)
    }

    /// Whether the pack that is being filled may keep this buffer: a loose one, or one that is mostly full, and of these
    /// not too many. This is what makes sure that the supply of buffers never runs dry while a pack waits for more bytes.
    fn may_keep(&self, buffer: &Arc<crate::buffers::Buffer>) -> bool {
        if buffer.is_loose() {
            return true;
        }
        let kept = self.data.as_ref().map_or(0, Assembly::buffers_kept);
        buffer.len() * 2 >= self.options.unit() && kept < self.options.buffers_kept()
    }

    fn end_data_pack(&mut self) -> Result<()> {
        if let Some(data) = self.data.take() {
            self.seal(data)?;
        }
        Ok(())
    }

    /// Has a pack written. Waits while too many are on their way.
    fn seal(&mut self, assembly: Assembly) -> Result<()> {
        while self.sealing.len() >= Options::PACKS_QUEUED {
            let oldest = self.sealing.remove(0);
            let sealed = oldest.wait()?;
            let raw = sealed.runs.iter().map(|run| u64::from(run.raw)).sum();
            self.ahead.note_pack(raw, sealed.pack.length);
            self.sealed.push(sealed);
        }
        let (store, durable) = (self.vault.store().clone(), self.options.durable);
        let closed = assembly.close(&self.coder);
        self.sealing.push(self.io.ask_leaving(move |_| closed.write(&*store, durable)));
        Ok(())
    }

    /// Stores a chunk that is not data.
    fn store_meta(&mut self, kind: ChunkKind, bytes: Vec<u8>) -> Result<(PackName, u32)> {
        if self.meta.as_ref().is_some_and(|meta| meta.raw_bytes() > self.options.pack_bytes() as u64) {
            let full = self.meta.take().expect("just looked at");
            self.seal(full)?;
        }
        if self.meta.is_none() {
            self.meta = Some(self.new_assembly());
        }
        let meta = self.meta.as_mut().expect("just made");
        meta.push_meta(kind, bytes, &self.coder)
    }

    /// Refers to chunks of data that lie side by side, and to all that their runs were subtracted from.
    fn refer_chunks(&mut self, pack: PackName, first: u32, count: u32, bytes: u64) {
        self.refer(pack, bytes);
        let Some(open) = self.with_deltas.get(&pack).cloned() else { return };
        let mut chunk = first;
        while chunk < first + count
            && let Some(index) = open.footer.run_index(chunk)
        {
            let run = &open.footer.runs()[index];
            chunk = run.end_chunk();
            if !self.deltas_referred.insert((pack, index)) {
                continue;
            }
            let chunk_bytes = u64::from(run.raw_len / run.chunk_count);
            for span in open.footer.base_of(run) {
                if let Some((base, _)) = span.at {
                    self.refer_base(base, chunk_bytes * u64::from(span.count));
                }
            }
        }
    }

    fn refer_base(&mut self, base: PackRef, bytes: u64) {
        self.foreign.entry(base.name).or_insert(base);
        self.refer(base.name, bytes);
    }

    fn refer(&mut self, pack: PackName, bytes: u64) {
        *self.references.entry(pack).or_default() += bytes;
    }

    /// Ends the part without a trace, as far as that is possible.
    pub fn abandon(mut self) {
        let store = self.vault.store().clone();
        let names: Vec<PackName> = (0..self.packs_begun).map(|count| self.pack_name(count)).collect();
        // The writers of packs must have ended, or they would write what was just removed.
        self.sealing.drain(..).for_each(|answer| drop(answer.wait()));
        drop(self);
        if let Err(error) = store.remove(&names) {
            tracing::warn!("packs of a save that failed are left for garbage collection: {error}");
        }
    }
}

impl NodeSink for PartWriter {
    fn node(&mut self, _height: u8, bytes: Vec<u8>) -> Result<NodeRef> {
        let hash = Domain::Node.hash(&bytes);
        let len = bytes.len() as u64;
        let node = match self.nodes.get(&hash) {
            Some(&node) => node,
            None => {
                let (pack, chunk) = self.store_meta(ChunkKind::Node, bytes)?;
                let node = NodeRef { pack, chunk };
                self.nodes.insert(hash, node);
                node
            }
        };
        self.refer(node.pack, len);
        Ok(node)
    }
}

/// The bytes of a chunk that is to be stored.
enum ChunkBytes {
    /// A range of a buffer whose bytes are all new: it is kept as it is.
    Kept(Arc<crate::buffers::Buffer>, std::ops::Range<usize>),
    /// A range of a buffer of which little is new: it is copied, so that the buffer can go.
    Copied(Arc<crate::buffers::Buffer>, std::ops::Range<usize>),
}

impl ChunkBytes {
    fn len(&self) -> usize {
        match self {
            ChunkBytes::Kept(_, range) | ChunkBytes::Copied(_, range) => range.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            ChunkBytes::Kept(buffer, range) | ChunkBytes::Copied(buffer, range) => &buffer[range.clone()],
        }
    }
}

/// Adds a chunk to the bytes of a run, if it can be.
fn append(run: &mut Bytes, chunk: ChunkBytes) -> std::result::Result<(), ChunkBytes> {
    match (run, chunk) {
        (Bytes::Own(bytes), chunk @ ChunkBytes::Copied(..)) => {
            bytes.extend_from_slice(chunk.bytes());
            Ok(())
        }
        (Bytes::Shared(buffer, range), ChunkBytes::Kept(other, more))
            if Arc::ptr_eq(buffer, &other) && range.end == more.start =>
        {
            range.end = more.end;
            Ok(())
        }
        (_, chunk) => Err(chunk),
    }
}

/// The content of a member that has no bytes.
fn empty_content(chunking: Chunking, blob: stdchk_object::tree::Blob) -> Content {
    Content { blob, chunking, tally: Tally::default(), coded: None }
}
