//! Ending a part: member pages, the head, and perhaps the manifest, in the last pack.

use std::collections::HashMap;
use std::sync::Arc;

use stdchk_object::manifest::Manifest;
use stdchk_object::member::{Body, Member, Tally, encode_page};
use stdchk_object::pack::ChunkKind;
use stdchk_object::part::{PageRef, Part, Reference};
use stdchk_object::{Error, Locator, PackName, PackRef, Result, SessionId};
use stdchk_store::Store;

use super::PartWriter;
use super::account;
use super::assembly::{Assembly, RunCost, SealedPack};
use super::coder::Coder;
use crate::buffers::Buffers;
use crate::index::IndexBuilder;
use crate::known::Known;
use crate::workers::Workers;

/// Members of a page: with the longest paths and targets still no longer than a chunk.
const PAGE_MEMBERS: usize = 1500;

/// Nothing but a directory can have members below it: what cannot be restored must not be saved.
fn check_nesting(members: &[Member]) -> Result<()> {
    let solid: std::collections::HashSet<&str> =
        members.iter().filter(|member| member.body != Body::Dir).map(|member| member.path.as_str()).collect();
    for member in members {
        let above = member
            .path
            .match_indices('/')
            .map(|(at, _)| &member.path[..at])
            .find(|path| solid.contains(path));
        if let Some(above) = above {
            let text =
                format!("{above:?} cannot be a member beside {:?}: it is not a directory", member.path);
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// A part that was written.
pub struct FinishedPart {
    /// Where its head lies.
    pub head: Locator,
    /// Where the manifest lies, if one was given.
    pub manifest: Option<Locator>,
    /// The head.
    pub part: Part,
    /// Packs of others that it refers to and that the parent refers to, too.
    pub of_parent: Vec<PackRef>,
    /// Packs of others that were found through the index.
    pub found: Vec<PackRef>,
    /// Bytes of the packs that were written.
    pub written: u64,
    /// What the fingerprint index may list once this is committed.
    pub listed: IndexBuilder,
}

impl PartWriter {
    /// How many members were added.
    pub fn member_count(&self) -> u64 {
        self.added.len() as u64
    }

    /// Writes what is left. With `manifest`, whose parts are ignored, this part becomes a whole checkpoint.
    pub fn finish(mut self, manifest: Option<Manifest>) -> Result<FinishedPart> {
        match self.finish_inner(manifest) {
            Ok(finished) => {
                self.part_with_writers();
                Ok(finished)
            }
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    fn finish_inner(&mut self, manifest: Option<Manifest>) -> Result<FinishedPart> {
        self.free_buffers();
        let mut last = self.last_assembly()?;
        let costs = self.run_costs(&mut last)?;
        let members = self.finished_members(&costs);
        check_nesting(&members)?;
        let mut tally = Tally::default();
        let mut bytes = 0u64;
        for member in &members {
            bytes = bytes
                .checked_add(member.bytes())
                .ok_or_else(|| Error::invalid("the members are too long"))?;
            member.body.content().iter().for_each(|content| tally.add(&content.tally));
        }
        let mut pages = Vec::new();
        for page in members.chunks(PAGE_MEMBERS) {
            let encoded = encode_page(page);
            self.refer(last.name, encoded.len() as u64);
            let (_, chunk) = last.push_meta(ChunkKind::MemberPage, encoded, &self.coder)?;
            pages.push(chunk);
        }
        let references = self.resolved_references(last.name)?;
        let home = references.iter().position(|r| r.pack.name == last.name).expect("added by name") as u32;
        let part = Part {
            rank: self.rank,
            member_count: members.len() as u64,
            bytes,
            tally,
            pages: pages.into_iter().map(|chunk| PageRef { reference: home, chunk }).collect(),
            references,
        };
        self.write_last(last, part, manifest)
    }

    /// Gives memory back while the rest is written: that takes a while, and nothing need wait for it.
    fn free_buffers(&mut self) {
        let buffers = std::mem::replace(&mut self.buffers, Buffers::new(0, 0));
        let known = std::mem::replace(&mut self.known, Known::new(0));
        drop(self.coder.workers.ask(move |_| {
            drop((buffers, known));
            Ok(())
        }));
    }

    /// The writers of packs have answered, and may be giving back memory still.
    fn part_with_writers(&mut self) {
        let io = std::mem::replace(&mut self.io, Workers::new(1, ""));
        drop(self.coder.workers.ask(move |_| {
            drop(io);
            Ok(())
        }));
    }

    /// The pack that takes the rest: that of the metadata, or where there is none yet, that of the data.
    fn last_assembly(&mut self) -> Result<Assembly> {
        let last = match self.meta.take() {
            Some(meta) => {
                self.end_data_pack()?;
                meta
            }
            None => match self.data.take() {
                Some(data) => data,
                None => self.new_assembly(),
            },
        };
        for sealing in std::mem::take(&mut self.sealing) {
            self.sealed.push(sealing.wait()?);
        }
        Ok(last)
    }

    /// What each run of each of our packs cost. What deltas in them were subtracted from is referred to from now on.
    fn run_costs(&mut self, last: &mut Assembly) -> Result<HashMap<PackName, Vec<RunCost>>> {
        let of_pack = |sealed: &mut SealedPack| (sealed.pack.name, std::mem::take(&mut sealed.runs));
        let mut costs: HashMap<_, _> = self.sealed.iter_mut().map(of_pack).collect();
        let (of_last, bases) = last.settle(&self.coder)?;
        costs.insert(last.name, of_last);
        let sealed = self.sealed.iter_mut().flat_map(|sealed| std::mem::take(&mut sealed.bases));
        let bases: Vec<(PackRef, u64)> = sealed.chain(bases).collect();
        bases.into_iter().for_each(|(pack, bytes)| self.refer_base(pack, bytes));
        Ok(costs)
    }

    fn finished_members(&mut self, costs: &HashMap<PackName, Vec<RunCost>>) -> Vec<Member> {
        let shares = std::mem::take(&mut self.shares);
        // What was added before its packs were stored knows the store only now.
        let now = self.coder.meter.pace();
        let finish = |mut added: super::Added| {
            if let Some(pace) = added.pace.as_mut().filter(|pace| !pace.store_known) {
                (pace.store, pace.store_known) = (now.store, now.store_known);
            }
            let runs = shares[added.shares.clone()]
                .iter()
                .map(|share| (&costs[&share.pack][share.run], share.bytes));
            let ways = account::ways(runs);
            if let Some(content) = added.member.body.content_mut() {
                content.tally.stored = ways.iter().map(|way| way.stored).sum();
                content.coded = account::coded(self.options.coding, &added.pace, ways);
            }
            added.member
        };
        let mut members: Vec<Member> = std::mem::take(&mut self.added).into_iter().map(finish).collect();
        members.sort_by(|a, b| a.path.cmp(&b.path));
        members
    }

    /// All packs that are named, with their roots; the last pack's own is not known yet.
    fn resolved_references(&self, last: PackName) -> Result<Vec<Reference>> {
        let ours: HashMap<PackName, PackRef> =
            self.sealed.iter().map(|sealed| (sealed.pack.name, sealed.pack)).collect();
        let mut named = self.references.clone();
        named.entry(last).or_default();
        let reference = |(name, bytes): (PackName, u64)| {
            let pack = if name == last {
                PackRef::to_itself(name)
            } else {
                *ours.get(&name).or_else(|| self.foreign.get(&name)).ok_or_else(|| {
                    Error::corrupt(format!("pack {name} is referred to, but nothing vouches for it"))
                })?
            };
            Ok(Reference { pack, bytes })
        };
        named.into_iter().map(reference).collect()
    }

    fn write_last(
        &mut self,
        mut last: Assembly,
        mut part: Part,
        manifest: Option<Manifest>,
    ) -> Result<FinishedPart> {
        let (name, head) = last.push_meta(ChunkKind::Part, part.encode(), &self.coder)?;
        let manifest = match manifest {
            None => None,
            Some(manifest) => {
                let itself = Locator { pack: PackRef::to_itself(name), chunk: head };
                let bytes = Manifest { parts: vec![itself], ..manifest }.encode();
                Some(last.push_meta(ChunkKind::Manifest, bytes, &self.coder)?.1)
            }
        };
        let (sealed, _) = last.close(&self.coder).write(&**self.vault.store(), self.options.durable)?;
        let home = sealed.pack;
        self.sealed.push(sealed);
        part.references.iter_mut().for_each(|reference| reference.pack = reference.pack.resolved(&home));
        let is_ours = |name: PackName| name.session == self.session && name.writer == self.writer;
        let packs = part.references.iter().map(|reference| reference.pack);
        let parent = self.parent.as_ref();
        let (of_parent, found) = packs
            .filter(|pack| !is_ours(pack.name))
            .partition(|pack| parent.is_some_and(|parent| parent.roots.contains_key(&pack.name)));
        Ok(FinishedPart {
            head: Locator { pack: home, chunk: head },
            manifest: manifest.map(|chunk| Locator { pack: home, chunk }),
            part,
            of_parent,
            found,
            written: self.sealed.iter().map(|sealed| sealed.pack.length).sum(),
            listed: std::mem::take(&mut self.listed),
        })
    }
}

/// Writes a pack that holds nothing but a manifest. Also says how long the pack is.
pub fn write_manifest(
    store: &Arc<dyn Store>,
    workers: &Arc<Workers>,
    session: SessionId,
    writer: u32,
    manifest: &Manifest,
    durable: bool,
) -> Result<Locator> {
    let name = PackName { session, writer, number: 0 };
    let coder = Coder::at_leisure(workers.clone());
    let mut assembly = Assembly::new(name, 0);
    let (_, chunk) = assembly.push_meta(ChunkKind::Manifest, manifest.encode(), &coder)?;
    let (SealedPack { pack, .. }, _) = assembly.close(&coder).write(&**store, durable)?;
    Ok(Locator { pack, chunk })
}
