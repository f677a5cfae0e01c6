//! What workers do with a stretch of a file: read it, find zeros, hash its pages, compare with the parent.

use std::sync::Arc;

use stdchk_object::hash::Domain;
use stdchk_object::tree::{Blob, Piece};
use stdchk_object::{Hash, PackRef, Result};

use crate::buffers::Buffer;
use crate::vault::{LeafAt, Roots, Vault};

/// Bytes that can be read at any place, from several threads.
pub trait Source: Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from `offset` on. Bytes that are no longer there are an error: what is saved must be
    /// what was there when the save began.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The first place at or after `offset` that may not be zero: file systems know their holes.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }
}

/// What a page turned out to be.
#[derive(Clone, Copy)]
pub enum Page {
    /// Zeros.
    Zero,
    /// What the parent has there: index into the unit's packs, chunk.
    Same(u32, u32),
    /// Something else.
    Other(Hash),
}

/// A stretch that was read and looked at.
pub struct Unit {
    pub buffer: Arc<Buffer>,
    pub page: usize,
    pub pages: Vec<Page>,
    /// Packs of the parent that pages are the same as.
    pub packs: Vec<PackRef>,
    /// The parent's leaf, if it was read whole: hash, pack, chunk.
    pub leaf: Option<(Hash, PackRef, u32)>,
}

/// Where the parent's leaf for a stretch lies.
pub struct ParentLeaf {
    pub roots: Arc<Roots>,
    pub blob: Blob,
    pub at: LeafAt,
    pub len: u64,
}

pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

/// The chunks that the parent has where the pages of this unit are, if they were cut alike.
fn parent_pages(vault: &Vault, parent: &ParentLeaf, page: usize, len: usize) -> Result<Theirs> {
    let mut packs: Vec<PackRef> = Vec::new();
    let mut pages = vec![None; len.div_ceil(page)];
    let leaf = vault.leaf(&parent.roots, &parent.blob, &parent.at, parent.len)?;
    let node = leaf_node(vault, parent)?;
    let mut at = 0usize;
    for piece in &leaf.pieces {
        let Piece::Data(extent) = piece else {
            at += piece.bytes() as usize;
            continue;
        };
        vault.spans(&parent.roots, extent, |span| {
            let run = span.run();
            let name = span.open.pack.name;
            let slot = packs.iter().rposition(|pack| pack.name == name).unwrap_or_else(|| {
                packs.push(span.open.pack);
                packs.len() - 1
            });
            let (mut skip, mut left) = (span.skip, span.len);
            for chunk in span.from..span.to {
                let chunk_len = run.chunk_len(chunk);
                let part = u64::from(chunk_len - skip).min(left);
                let expected = page.min(len.saturating_sub(at));
                let whole = skip == 0 && part == u64::from(chunk_len) && chunk_len as usize == expected;
                if whole && at.is_multiple_of(page) && !vault.is_damaged(name, chunk) {
                    pages[at / page] = Some((slot as u32, chunk, span.open.footer.hashes()[chunk as usize]));
                }
                at += part as usize;
                left -= part;
                skip = 0;
            }
            Ok(())
        })?;
    }
    Ok(Theirs { packs, pages, node })
}

/// Where a leaf that was read lies, unless it is known to be damaged or is kept in the blob itself.
fn leaf_node(vault: &Vault, parent: &ParentLeaf) -> Result<Option<(Hash, PackRef, u32)>> {
    let LeafAt::Node(node) = parent.at else { return Ok(None) };
    let (open, chunk, _) = vault.resolve(&parent.roots, node.pack, node.chunk)?;
    let hash = open.footer.hash(chunk).copied();
    Ok(hash.filter(|_| !vault.is_damaged(open.pack.name, chunk)).map(|hash| (hash, open.pack, chunk)))
}

/// What the parent has where a stretch is.
#[derive(Default)]
struct Theirs {
    packs: Vec<PackRef>,
    /// For each page: index of the pack, chunk, hash.
    pages: Vec<Option<(u32, u32, Hash)>>,
    node: Option<(Hash, PackRef, u32)>,
}

/// Bytes that are read, looked at and hashed together, while they are in the processor's cache.
const GROUP_BYTES: usize = 256 << 10;
/// With fewer pages the lanes of the hash stay empty.
const GROUP_PAGES_MIN: usize = 16;

/// The hash of each page; `None` for zeros.
fn page_hashes(
    bytes: &mut [u8],
    page: usize,
    read: &mut dyn FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<Vec<Option<Hash>>> {
    const PENDING: Hash = Hash([0; 32]);
    let group_bytes = GROUP_BYTES.max(GROUP_PAGES_MIN * page);
    let mut hashes = Vec::with_capacity(bytes.len().div_ceil(page));
    for (i, group) in bytes.chunks_mut(group_bytes).enumerate() {
        read(i * group_bytes, group)?;
        let first = hashes.len();
        let mut pieces = Vec::with_capacity(group_bytes / page);
        for bytes in group.chunks(page) {
            let is_data = !is_zero(bytes);
            hashes.push(is_data.then_some(PENDING));
            pieces.extend(is_data.then_some(bytes));
        }
        let mut pending = hashes[first..].iter_mut().flatten();
        let found = |hash| *pending.next().expect("one for each piece") = hash;
        Domain::Data.hash_each(pieces, found);
    }
    Ok(hashes)
}

/// Looks at a stretch page by page. `read` brings the bytes at an offset of the stretch; it may do nothing where they are
/// in the buffer already.
pub fn look(
    vault: &Vault,
    parent: Option<&ParentLeaf>,
    page: usize,
    mut buffer: Buffer,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<Unit> {
    let compared = parent.map(|parent| parent_pages(vault, parent, page, buffer.len()));
    let Theirs { packs, pages: theirs, node } = match compared {
        Some(Ok(known)) => known,
        Some(Err(error)) => {
            tracing::warn!("a part of the parent cannot be read, so nothing is shared with it: {error}");
            Default::default()
        }
        None => Default::default(),
    };
    let look_at = |(i, hash): (usize, Option<Hash>)| match (hash, theirs.get(i)) {
        (None, _) => Page::Zero,
        (Some(hash), Some(&Some((pack, chunk, same)))) if same == hash => Page::Same(pack, chunk),
        (Some(hash), _) => Page::Other(hash),
    };
    let hashes = page_hashes(&mut buffer, page, &mut read)?;
    let pages = hashes.into_iter().enumerate().map(look_at).collect();
    Ok(Unit { buffer: Arc::new(buffer), page, pages, packs, leaf: node })
}
