//! A version of a file that can be read.

use std::sync::{Arc, OnceLock};

use stdchk_catalog::tree::Version;
use stdchk_catalog::{CheckpointEntry, State};
use stdchk_engine::{Held, LeafAt, PartView, Roots, Vault, View};
use stdchk_object::member::Content;
use stdchk_object::{Error, Hash, Result};

/// The path of the only member of what was written as a file of that number.
pub fn member_path(number: u64) -> String {
    format!("{number:016x}")
}

/// A part with the bytes of a file, and what keeps it from being removed.
pub struct Opened {
    vault: Arc<Vault>,
    /// A pin, or the session that wrote it.
    _keeper: Arc<dyn Send + Sync>,
    /// The part.
    pub part: Arc<PartView>,
    /// The bytes.
    pub content: Content,
    /// The version, if that is what it is.
    pub entry: Option<CheckpointEntry>,
    hash: OnceLock<Hash>,
    /// Whether it was never synced, by another boot of the machine: some of it may be gone.
    pub is_doubtful: bool,
}

impl Opened {
    /// A version as the catalog has it.
    pub fn version(
        vault: Arc<Vault>,
        keeper: Arc<dyn Send + Sync>,
        state: &State,
        version: Version,
    ) -> Result<Opened> {
        let entry = state
            .checkpoint(&version.id())
            .ok_or_else(|| Error::corrupt("the version of the file is lost"))?;
        let (part, content) = version_in(&vault, entry)?;
        Ok(Opened::of_step(vault, keeper, Arc::new(part), content, entry.clone()))
    }

    /// A member of a checkpoint.
    pub fn of_step(
        vault: Arc<Vault>,
        keeper: Arc<dyn Send + Sync>,
        part: Arc<PartView>,
        content: Content,
        entry: CheckpointEntry,
    ) -> Opened {
        Opened {
            vault,
            _keeper: keeper,
            part,
            content,
            entry: Some(entry),
            hash: OnceLock::new(),
            is_doubtful: false,
        }
    }

    /// A part that was just written for a file of that number.
    pub fn part(
        vault: Arc<Vault>,
        keeper: Arc<dyn Send + Sync>,
        part: PartView,
        number: u64,
    ) -> Result<Opened> {
        let path = member_path(number);
        let content = content_of(&vault, &part, &path)?;
        let content = content.ok_or_else(|| Error::corrupt("a part without the member that was written"))?;
        Ok(Opened {
            vault,
            _keeper: keeper,
            part: Arc::new(part),
            content,
            entry: None,
            hash: OnceLock::new(),
            is_doubtful: false,
        })
    }

    /// Says of a range that its bytes are these.
    pub fn held(&self, range: std::ops::Range<u64>) -> Held {
        Held { range, roots: self.roots().clone(), blob: self.content.blob.clone() }
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.content.blob.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn roots(&self) -> &Arc<Roots> {
        &self.part.roots
    }

    /// The next place from an offset on that may not be zeros, as far as that is known without reading bytes.
    pub fn next_data(&self, offset: u64) -> u64 {
        let mut at = offset;
        while at < self.len() {
            match self.vault.find_leaf(self.roots(), &self.content.blob, at, &mut |_, _, _| {}) {
                Ok((LeafAt::Hole, start, len)) if start + len > at => at = start + len,
                _ => break,
            }
        }
        at
    }

    /// The next hole from an offset on, of those that are known without reading bytes; or its end.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        while at < self.len() {
            match self.vault.find_leaf(self.roots(), &self.content.blob, at, &mut |_, _, _| {}) {
                Ok((leaf, start, len)) if leaf != LeafAt::Hole && start + len > at => at = start + len,
                _ => break,
            }
        }
        at.min(self.len())
    }

    /// What its bytes are: versions of the same hash have the same bytes.
    pub fn hash(&self) -> Result<Hash> {
        if let Some(hash) = self.hash.get() {
            return Ok(*hash);
        }
        let hash = self.vault.content_hash(self.roots(), &self.content.blob)?;
        Ok(*self.hash.get_or_init(|| hash))
    }

    /// Fills a buffer from an offset on; as many bytes must be there.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.vault.read_range(self.roots(), &self.content.blob, offset, buffer)
    }
}

/// The bytes that a version of a file has, and the part that they are in.
pub fn version_in(vault: &Vault, entry: &CheckpointEntry) -> Result<(PartView, Content)> {
    let path = member_path(entry.step);
    for part in View::open(vault, &entry.manifest)?.parts {
        if let Some(content) = content_of(vault, &part, &path)? {
            return Ok((part, content));
        }
    }
    Err(Error::corrupt(format!("checkpoint {} has no member {path}", entry.id())))
}

/// The member of a part of that path.
pub(super) fn content_of(vault: &Vault, part: &PartView, path: &str) -> Result<Option<Content>> {
    let member = part.members(vault)?.into_iter().find(|member| member.path == path);
    Ok(member.and_then(|member| member.body.content().cloned()))
}
