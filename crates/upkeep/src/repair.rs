//! Repair: damaged packs are made again, bit for bit, from whole copies of the same chunks elsewhere.
//!
//! A pack that was mended is the pack that was sealed: its root is the same, or nothing is written. So repair
//! changes no name and no tree, and cannot make anything worse.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stdchk_catalog::{ChunkRange, Op, State};
use stdchk_codec::{Press, delta};
use stdchk_engine::{Index, OpenPack, Vault};
use stdchk_object::hash::Domain;
use stdchk_object::pack::{ChunkKind, Codec, Run, header};
use stdchk_object::{Hash, Kind, PackName, Result};

use crate::Ground;
use crate::health::DamageMap;
use crate::verify::VerifyReport;

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Packs that are whole again.
    pub mended: Vec<PackName>,
    /// Packs of which chunks are lost for want of a copy.
    pub lost: Vec<PackName>,
    /// Whether the fingerprint index was made anew.
    pub index_rebuilt: bool,
}

/// Mends what was found: first by what the store itself keeps of a pack, copies and parity, then by chunks that are elsewhere.
pub fn repair(ground: &Ground, state: &Arc<State>, found: &VerifyReport) -> Result<Repaired> {
    let vault = ground.vault(state);
    let mut done = Repaired::default();
    let damage = &found.damage;
    for &name in found.thin.iter().chain(damage.keys().filter(|name| !found.thin.contains(name))) {
        // One that is hopeless must not keep others from being mended.
        if let Err(error) = ground.store.heal(name) {
            tracing::warn!("pack {name} cannot be healed: {error}");
        }
    }
    for &name in found.thin.iter().filter(|name| !damage.contains_key(name)) {
        match ground.store.is_sound(name).unwrap_or(false) {
            true => done.mended.push(name),
            false => done.lost.push(name),
        }
    }
    let copies = find_copies(ground, &vault, damage)?;
    for (&name, ranges) in damage {
        if mend(ground, &vault, name, ranges, &copies)? {
            done.mended.push(name)
        } else {
            done.lost.push(name)
        }
    }
    if !done.mended.is_empty() {
        ground.catalog.append(true, &mut |state| {
            let healed: Vec<PackName> =
                done.mended.iter().copied().filter(|name| state.damaged().contains_key(name)).collect();
            Ok(if healed.is_empty() { Vec::new() } else { vec![Op::Heal(healed)] })
        })?;
    }
    if !found.index.is_empty() {
        // It fills again as checkpoints are saved; losing it costs space, never truth.
        Index::clear(&*ground.objects)?;
        done.index_rebuilt = true;
    }
    Ok(done)
}

fn damaged_chunks(open: &OpenPack, ranges: &[ChunkRange]) -> impl Iterator<Item = u32> {
    let count = open.footer.chunk_count();
    ranges.iter().flat_map(move |&(from, to)| from..to.min(count))
}

/// Where whole copies of damaged chunks lie.
fn find_copies(ground: &Ground, vault: &Vault, damage: &DamageMap) -> Result<HashMap<Hash, (PackName, u32)>> {
    let mut wanted = BTreeMap::new();
    for (&name, ranges) in damage {
        let Ok(open) = vault.open_named(name) else { continue };
        let Ok(hashes) = vault.hashes(&open) else { continue };
        for chunk in damaged_chunks(&open, ranges) {
            wanted.insert(hashes[chunk as usize], ());
        }
    }
    let mut copies = HashMap::new();
    if wanted.is_empty() {
        return Ok(copies);
    }
    let mut names = Vec::new();
    ground.store.list(&mut |name, _| names.push(name))?;
    for name in names {
        let Ok(open) = vault.open_named(name) else { continue };
        let Ok(hashes) = vault.hashes(&open) else { continue };
        for (chunk, hash) in hashes.iter().enumerate() {
            let chunk = chunk as u32;
            let bad =
                damage.get(&name).is_some_and(|r| r.iter().any(|&(from, to)| (from..to).contains(&chunk)));
            if wanted.contains_key(hash) && !bad {
                copies.insert(*hash, (name, chunk));
            }
        }
    }
    Ok(copies)
}

/// Makes a pack again; says whether that was possible.
fn mend(
    ground: &Ground,
    vault: &Vault,
    name: PackName,
    ranges: &[ChunkRange],
    copies: &HashMap<Hash, (PackName, u32)>,
) -> Result<bool> {
    // Without its footer nobody knows what was in it.
    let Ok(open) = vault.open_named(name) else { return Ok(false) };
    let length = open.pack.length as usize;
    let mut bytes = vec![0; length];
    if !read_what_can_be(ground, &open, &mut bytes)? {
        return Ok(false);
    }
    bytes[..header(name).len()].copy_from_slice(&header(name));
    let mut damaged: Vec<u32> = damaged_chunks(&open, ranges).collect();
    damaged.dedup();
    for run in open.footer.runs() {
        let hit = |chunk: &&u32| (run.first_chunk..run.end_chunk()).contains(*chunk);
        if !damaged.iter().any(|chunk| hit(&chunk)) {
            continue;
        }
        let start = run.offset as usize;
        let range = start..start + run.stored_len as usize;
        match run_again(vault, &open, run, &bytes[range.clone()], copies)? {
            Some(stored) => bytes[range].copy_from_slice(&stored),
            None => return Ok(false),
        }
    }
    ground.store.replace(name, &[&bytes])?;
    Ok(true)
}

/// Reads a pack run by run; runs that the medium cannot read any more stay zero, and are made again like others that
/// are damaged. Says whether at least its end could be read.
fn read_what_can_be(ground: &Ground, open: &OpenPack, bytes: &mut [u8]) -> Result<bool> {
    let name = open.pack.name;
    let mut end = header(name).len();
    for run in open.footer.runs() {
        let start = run.offset as usize;
        end = start + run.stored_len as usize;
        match ground.store.read(name, run.offset, &mut bytes[start..end]) {
            Err(error) if error.kind() != Kind::Corrupt => return Err(error),
            _ => {}
        }
    }
    match ground.store.read(name, end as u64, &mut bytes[end..]) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Kind::Corrupt => Ok(false),
        Err(error) => Err(error),
    }
}

/// The stored bytes of a run, made from chunks that are whole here or elsewhere.
fn run_again(
    vault: &Vault,
    open: &OpenPack,
    run: &Run,
    stored: &[u8],
    copies: &HashMap<Hash, (PackName, u32)>,
) -> Result<Option<Vec<u8>>> {
    if run.stored_hash.is_some_and(|hash| Domain::StoredRun.hash(stored).half() == hash) {
        return Ok(Some(stored.to_vec()));
    }
    let Ok(hashes) = vault.hashes(open) else { return Ok(None) };
    let mut raw = Vec::with_capacity(run.raw_len as usize);
    for chunk in run.first_chunk..run.end_chunk() {
        let hash = hashes[chunk as usize];
        let at = raw.len();
        if run.coding.is_none() {
            let here = &stored[at..at + run.chunk_len(chunk) as usize];
            if run.kind.domain().hash(here) == hash {
                raw.extend_from_slice(here);
                continue;
            }
        }
        match copy_of(vault, run.kind, &hash, copies) {
            Some(bytes) if bytes.len() == run.chunk_len(chunk) as usize => raw.extend_from_slice(&bytes),
            _ => return Ok(None),
        }
    }
    if run.coding.is_none() {
        return Ok(Some(raw));
    }
    if !run.coding.delta {
        return press_again(run, &raw);
    }
    let Ok(base) = vault.base(open, run) else { return Ok(None) };
    let mut differences = Vec::new();
    delta::subtract(run.coding.width(), &raw, &base, &mut differences);
    press_again(run, &differences)
}

fn copy_of(
    vault: &Vault,
    kind: ChunkKind,
    hash: &Hash,
    copies: &HashMap<Hash, (PackName, u32)>,
) -> Option<Vec<u8>> {
    let &(pack, chunk) = copies.get(hash)?;
    let open = vault.open_named(pack).ok()?;
    vault.chunk(&open, chunk, kind).ok()
}

/// Compresses a run as it was, trying the levels that it may have been made with.
fn press_again(run: &Run, raw: &[u8]) -> Result<Option<Vec<u8>>> {
    let levels: Vec<i32> = if run.coding.codec == Codec::Zstd { (1..=19).collect() } else { vec![1] };
    let mut press = Press::new();
    for level in levels {
        if let Some(packed) = press.compress(run.coding, level, raw, usize::MAX)?
            && run.stored_hash == Some(Domain::StoredRun.hash(packed).half())
        {
            return Ok(Some(packed.to_vec()));
        }
    }
    Ok(None)
}
