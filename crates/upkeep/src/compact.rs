//! Compaction: packs of which much is dead are rewritten without it.
//!
//! Which chunks are live is read from the trees of the checkpoints that name the pack, newest first, and in that
//! order they are written, so that the newest checkpoint reads in long runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use stdchk_catalog::{CheckpointEntry, Op, OpenSession, SessionKind, State};
use stdchk_engine::{BaseState, OpenPack, Rewriter, Session, Vault, View};
use stdchk_object::forward::{ForwardTable, Moved};
use stdchk_object::pack::ChunkKind;
use stdchk_object::tree::Piece;
use stdchk_object::{Error, Kind, Locator, PackName, PackRef, Result};

use crate::Ground;
use crate::live::Live;
use crate::verify::{all_readable, writer_number};

/// Packs smaller than this are left alone: what they would free is not worth a record.
const PACK_BYTES_MIN: u64 = 64 << 10;
/// Raw bytes that one compaction rewrites at most; the rest waits for the next.
const RAW_BYTES_MAX: u64 = 4 << 30;
/// How often the live chunks are looked up again because others committed meanwhile.
const RETRIES_MAX: u32 = 20;

/// A pack that is rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The pack.
    pub pack: PackName,
    /// Its length as it is.
    pub bytes: u64,
    /// Bytes of its chunks, before compression.
    pub raw_bytes: u64,
    /// Bytes of those that are still live.
    pub live_bytes: u64,
}

/// Which chunks of some packs are live.
struct Marks {
    chunks: HashMap<PackName, Vec<bool>>,
    /// The live ones in the order in which they were first met.
    order: Vec<(PackName, u32)>,
    nodes: HashSet<(PackName, u32)>,
    checkpoints: HashSet<Locator>,
}

impl Marks {
    fn of(vault: &Vault, packs: &[PackRef]) -> Result<Marks> {
        let mut chunks = HashMap::new();
        for pack in packs {
            chunks.insert(pack.name, vec![false; vault.open(pack)?.footer.chunk_count() as usize]);
        }
        Ok(Marks { chunks, order: Vec::new(), nodes: HashSet::new(), checkpoints: HashSet::new() })
    }

    fn mark(&mut self, pack: PackName, chunk: u32) {
        if let Some(live) = self.chunks.get_mut(&pack).and_then(|chunks| chunks.get_mut(chunk as usize))
            && !std::mem::replace(live, true)
        {
            self.order.push((pack, chunk));
        }
    }

    /// Walks the trees of the checkpoints that were not walked yet, newest first.
    fn follow(&mut self, vault: &Vault, state: &State) -> Result<()> {
        let mut entries: Vec<&CheckpointEntry> =
            state.checkpoints().filter(|entry| !self.checkpoints.contains(&entry.manifest)).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.sequence));
        for entry in entries {
            self.checkpoints.insert(entry.manifest);
            for part in View::open(vault, &entry.manifest)?.parts {
                let named = |name: &PackName| self.chunks.contains_key(name) || is_forwarded(state, name);
                if !part.roots.keys().any(named) {
                    continue;
                }
                for member in part.members(vault)? {
                    let Some(content) = member.body.content() else { continue };
                    self.walk(vault, &part, &content.blob)?;
                }
            }
        }
        Ok(())
    }

    fn walk(
        &mut self,
        vault: &Vault,
        part: &stdchk_engine::PartView,
        blob: &stdchk_object::tree::Blob,
    ) -> Result<()> {
        vault.visit_nodes(&part.roots, blob, &mut |node, leaf| {
            if let Some(node) = node {
                let (open, chunk, _) = vault.resolve(&part.roots, node.pack, node.chunk)?;
                let pack = open.pack.name;
                self.mark(pack, chunk);
                return Ok(self.nodes.insert((pack, chunk)));
            }
            for piece in leaf.iter().flat_map(|leaf| &leaf.pieces) {
                let Piece::Data(extent) = piece else { continue };
                vault.spans(&part.roots, extent, |span| {
                    (span.from..span.to).for_each(|chunk| self.mark(span.open.pack.name, chunk));
                    vault.bases_of_run(&span.open, span.run(), |pack, from, to| {
                        (from..to).for_each(|chunk| self.mark(pack, chunk));
                    })
                })?;
            }
            Ok(true)
        })
    }
}

fn is_forwarded(state: &State, name: &PackName) -> bool {
    state.forwards().contains_key(name)
}

/// Packs that may be worth it: no checkpoint names even half of their bytes.
fn candidates(
    vault: &Vault,
    state: &State,
    packs: &BTreeMap<PackName, u64>,
    live: &mut Live,
) -> Result<Vec<PackRef>> {
    let mut named = live.named();
    for (old, forward) in state.forwards() {
        if named.contains_key(old) {
            let table = vault.table(*old, &forward.table)?;
            table.packs.iter().for_each(|pack| _ = named.entry(pack.name).or_insert(0));
        }
    }
    let homes = live.homes();
    let mut found = Vec::new();
    for (name, most) in named {
        let Some(&bytes) = packs.get(&name) else { continue };
        let barred =
            homes.contains(&name) || is_forwarded(state, &name) || state.damaged().contains_key(&name);
        if barred || bytes < PACK_BYTES_MIN {
            continue;
        }
        let is_worth_it = live.raw_bytes(vault, name).is_some_and(|raw| most < raw / 2);
        if is_worth_it
            && let Ok(open) = vault.open_named(name)
            && bases_are_sound(vault, &open)
        {
            found.push(open.pack);
        }
    }
    Ok(found)
}

fn chunk_bytes(footer: &stdchk_object::pack::Footer, chunk: u32) -> u64 {
    footer.run_of(chunk).map_or(0, |run| u64::from(run.chunk_len(chunk)))
}

/// Whether a save that is under way may still take a forward back. Then the old pack counts again, and if it holds deltas, so
/// do their bases, which nothing marks as live meanwhile: no chunk may be given up before that save has ended.
fn may_be_taken_back(state: &State) -> bool {
    let newest = state.forwards().values().map(|forward| forward.since).max().unwrap_or(0);
    let is_older = |session: &OpenSession| session.entry.kind.writes() && session.opened_at < newest;
    state.sessions().values().any(is_older)
}

/// Whether a pack can be read as far as its deltas go: one with a damaged base is left until that is mended.
fn bases_are_sound(vault: &Vault, open: &OpenPack) -> bool {
    open.footer
        .runs()
        .iter()
        .all(|run| !run.coding.delta || vault.base_state(open, run) != BaseState::Damaged)
}

/// The packs to rewrite, with their live chunks marked.
fn choose(
    ground: &Ground,
    state: &Arc<State>,
    packs: &BTreeMap<PackName, u64>,
    live: &mut Live,
) -> Result<(Vec<Compaction>, Marks, Vault)> {
    let vault = ground.vault(state);
    let candidates = match may_be_taken_back(state) {
        true => Vec::new(),
        false => candidates(&vault, state, packs, live)?,
    };
    let mut marks = Marks::of(&vault, &candidates)?;
    if !candidates.is_empty() {
        marks.follow(&vault, state)?;
    }
    let mut chosen = Vec::new();
    let mut total = 0;
    for pack in candidates {
        let open = vault.open(&pack)?;
        let raw = live.raw_bytes(&vault, pack.name).unwrap_or(0);
        let live_chunks = marks.chunks[&pack.name].iter().enumerate().filter(|(_, live)| **live);
        let live_bytes = live_chunks.map(|(chunk, _)| chunk_bytes(&open.footer, chunk as u32)).sum::<u64>();
        // Rewriting frees more than it costs only while the dead outweigh the living.
        if live_bytes * 2 < raw && total + live_bytes <= RAW_BYTES_MAX {
            total += live_bytes;
            chosen.push(Compaction { pack: pack.name, bytes: pack.length, raw_bytes: raw, live_bytes });
        }
    }
    Ok((chosen, marks, vault))
}

/// What [`compact`] would do.
pub fn plan(
    ground: &Ground,
    state: &Arc<State>,
    packs: &BTreeMap<PackName, u64>,
    live: &mut Live,
) -> Result<Vec<Compaction>> {
    Ok(choose(ground, state, packs, live)?.0)
}

/// Rewrites packs of which most is dead; they are garbage afterwards.
pub fn compact(
    ground: &Ground,
    state: &Arc<State>,
    packs: &BTreeMap<PackName, u64>,
    live: &mut Live,
) -> Result<Vec<Compaction>> {
    if choose(ground, state, packs, live)?.0.is_empty() {
        return Ok(Vec::new());
    }
    let session = Session::open(ground.catalog.clone(), SessionKind::Upkeep, &ground.owner)?;
    let state = session.state().clone();
    let mut live = all_readable(ground, &state)?;
    let (chosen, mut marks, vault) = choose(ground, &state, packs, &mut live)?;
    let mut rewriter =
        Rewriter::new(ground.store.clone(), ground.workers.clone(), session.id(), writer_number()?);
    let moved = rewrite(&vault, &chosen, &marks, &mut rewriter)
        .and_then(|moved| Ok((write_tables(&vault, &state, &moved, &mut rewriter)?, moved)));
    let (tables, moved) = match moved {
        Ok(done) => done,
        Err(error) => {
            rewriter.abandon();
            return Err(error);
        }
    };
    publish(ground, session, &state, &mut marks, tables, &moved, rewriter)?;
    let still: HashSet<PackName> = ground.catalog.state()?.forwards().keys().copied().collect();
    Ok(chosen.into_iter().filter(|compaction| still.contains(&compaction.pack)).collect())
}

/// Old place to new place.
type MovedTo = HashMap<PackName, BTreeMap<u32, (PackName, u32)>>;

fn rewrite(vault: &Vault, chosen: &[Compaction], marks: &Marks, rewriter: &mut Rewriter) -> Result<MovedTo> {
    let mut moved: MovedTo = chosen.iter().map(|c| (c.pack, BTreeMap::new())).collect();
    // Data and nodes do not share packs: who walks a tree should not read past data.
    for kind in [ChunkKind::Data, ChunkKind::Node] {
        for &(pack, chunk) in &marks.order {
            let Some(places) = moved.get_mut(&pack) else { continue };
            let open = vault.open_named(pack)?;
            if open.footer.run_of(chunk).is_some_and(|run| run.kind == kind) {
                places.insert(chunk, rewriter.push(kind, vault.chunk(&open, chunk, kind)?)?);
            }
        }
        rewriter.end_pack()?;
    }
    Ok(moved)
}

/// Tables for the packs that were rewritten, and for those whose forwards led into them.
fn write_tables(
    vault: &Vault,
    state: &State,
    moved: &MovedTo,
    rewriter: &mut Rewriter,
) -> Result<Vec<(PackName, Locator)>> {
    let new: HashMap<PackName, PackRef> = rewriter.flush()?.iter().map(|pack| (pack.name, *pack)).collect();
    let mut tables = Vec::new();
    for (&old, places) in moved {
        tables.push(table_of(old, places.iter().map(|(&from, &to)| (from, to)), &new)?);
    }
    for (&old, forward) in state.forwards() {
        let before = vault.table(old, &forward.table)?;
        if !before.packs.iter().any(|pack| moved.contains_key(&pack.name)) {
            continue;
        }
        let mut known = new.clone();
        known.extend(before.packs.iter().map(|pack| (pack.name, *pack)));
        let places = before.ranges.iter().flat_map(|range| {
            let pack = before.packs[range.pack as usize].name;
            (0..range.count).filter_map(move |i| match moved.get(&pack) {
                None => Some((range.from + i, (pack, range.to + i))),
                // A chunk that was dead there is dead under its older name, too.
                Some(places) => places.get(&(range.to + i)).map(|&to| (range.from + i, to)),
            })
        });
        tables.push(table_of(old, places, &known)?);
    }
    let mut placed = Vec::new();
    for table in &tables {
        placed.push((table.old, rewriter.push(ChunkKind::Forward, table.encode())?));
    }
    let all: HashMap<PackName, PackRef> = rewriter.flush()?.iter().map(|pack| (pack.name, *pack)).collect();
    Ok(placed.into_iter().map(|(old, (pack, chunk))| (old, Locator { pack: all[&pack], chunk })).collect())
}

fn table_of(
    old: PackName,
    places: impl Iterator<Item = (u32, (PackName, u32))>,
    known: &HashMap<PackName, PackRef>,
) -> Result<ForwardTable> {
    let mut packs: Vec<PackRef> = Vec::new();
    let mut ranges: Vec<Moved> = Vec::new();
    for (from, (pack, to)) in places {
        let index = packs.iter().position(|p| p.name == pack).unwrap_or_else(|| {
            packs.push(known[&pack]);
            packs.len() - 1
        }) as u32;
        match ranges.last_mut() {
            Some(last)
                if last.pack == index && last.from + last.count == from && last.to + last.count == to =>
            {
                last.count += 1
            }
            _ => ranges.push(Moved { from, count: 1, pack: index, to }),
        }
    }
    Ok(ForwardTable { old, packs, ranges })
}

/// Makes the forwards valid, but only for packs of which nothing more has become live meanwhile. After an error it may
/// be unknown whether they are, so what was written is left to the next collection.
fn publish(
    ground: &Ground,
    session: Session,
    base: &State,
    marks: &mut Marks,
    tables: Vec<(PackName, Locator)>,
    moved: &MovedTo,
    rewriter: Rewriter,
) -> Result<()> {
    let id = session.id();
    for _ in 0..RETRIES_MAX {
        let state = ground.catalog.state()?;
        // Somebody else forwarded one of these packs, or a commit took a forward back: the tables are of no use.
        let moved_on = |name: &PackName| state.forwards().get(name) != base.forwards().get(name);
        if tables.iter().any(|(old, _)| moved_on(old)) {
            rewriter.abandon();
            return Ok(());
        }
        let vault = ground.vault(&state);
        marks.follow(&vault, &state)?;
        let covered = |name: &PackName| {
            let Some(places) = moved.get(name) else { return true };
            let live = marks.chunks[name].iter().enumerate().filter(|(_, live)| **live);
            live.map(|(chunk, _)| chunk as u32).all(|chunk| places.contains_key(&chunk))
        };
        // An older forward stays as it is unless everything that it led to has moved.
        let all = moved.keys().all(covered);
        let valid: Vec<(PackName, Locator)> = tables
            .iter()
            .filter(|(old, _)| all || (moved.contains_key(old) && covered(old)))
            .filter(|(old, _)| all || !leads_through(&vault, &state, old, moved))
            .copied()
            .collect();
        if valid.is_empty() {
            rewriter.abandon();
            return Ok(());
        }
        let commits = state.commits();
        let mut done = false;
        ground.catalog.append(true, &mut |state| {
            done = state.commits() == commits;
            Ok(if done { vec![Op::Forward(id, valid.clone())] } else { Vec::new() })
        })?;
        if done {
            return Ok(());
        }
    }
    rewriter.abandon();
    Err(Error::new(Kind::Conflict, "others commit too often for a compaction; try again later"))
}

/// Whether forwards lead into a pack that was rewritten: it can only be forwarded together with their tables.
fn leads_through(vault: &Vault, state: &State, name: &PackName, moved: &MovedTo) -> bool {
    moved.contains_key(name)
        && state.forwards().iter().any(|(&old, forward)| {
            let table = vault.table(old, &forward.table);
            table.map_or(true, |table| table.packs.iter().any(|pack| pack.name == *name))
        })
}
