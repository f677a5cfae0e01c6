//! A checkpoint that can be read.

use std::sync::Arc;

use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Member, decode_page};
use stdchk_object::pack::ChunkKind;
use stdchk_object::part::Part;
use stdchk_object::{Error, Locator, PackRef, Result};

use crate::vault::{Roots, Vault};

/// A part that can be read.
pub struct PartView {
    /// Its head.
    pub part: Part,
    /// What it vouches for.
    pub roots: Arc<Roots>,
}

impl PartView {
    /// Opens the part whose head lies at `at`.
    pub fn open(vault: &Vault, at: &Locator) -> Result<PartView> {
        let open = vault.open(&at.pack)?;
        let part = Part::decode(&vault.chunk(&open, at.chunk, ChunkKind::Part)?)?;
        let resolved = part.references.iter().map(|reference| reference.pack.resolved(&at.pack));
        let roots = resolved.map(|pack| (pack.name, pack)).collect();
        Ok(PartView { part, roots: Arc::new(roots) })
    }

    /// The packs that it refers to, with the bytes of chunks named in each.
    pub fn references(&self) -> impl Iterator<Item = (PackRef, u64)> + '_ {
        self.part.references.iter().map(|reference| (self.roots[&reference.pack.name], reference.bytes))
    }

    /// Its members, in order of their paths.
    pub fn members(&self, vault: &Vault) -> Result<Vec<Member>> {
        let mut members: Vec<Member> = Vec::new();
        for page in &self.part.pages {
            let pack = self.part.references[page.reference as usize].pack;
            let (open, chunk, _) = vault.resolve(&self.roots, pack.name, page.chunk)?;
            let page = decode_page(&vault.chunk(&open, chunk, ChunkKind::MemberPage)?)?;
            if let (Some(last), Some(first)) = (members.last(), page.first())
                && last.path >= first.path
            {
                return Err(Error::corrupt("the member pages of a part are not in order"));
            }
            members.extend(page);
        }
        if members.len() as u64 != self.part.member_count {
            return Err(Error::corrupt("a part has not as many members as it says"));
        }
        Ok(members)
    }
}

/// A checkpoint that can be read.
pub struct View {
    /// What joins its parts.
    pub manifest: Manifest,
    /// The parts, in the manifest's order.
    pub parts: Vec<PartView>,
}

impl View {
    /// Opens the checkpoint whose manifest lies at `at`.
    pub fn open(vault: &Vault, at: &Locator) -> Result<View> {
        let open = vault.open(&at.pack)?;
        let manifest = Manifest::decode(&vault.chunk(&open, at.chunk, ChunkKind::Manifest)?)?;
        let part = |part: &Locator| {
            let part = Locator { pack: part.pack.resolved(&at.pack), chunk: part.chunk };
            PartView::open(vault, &part)
        };
        let parts = manifest.parts.iter().map(part).collect::<Result<_>>()?;
        Ok(View { manifest, parts })
    }
}
