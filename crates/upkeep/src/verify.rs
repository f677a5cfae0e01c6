//! Reading everything, and saying what is hurt and what is whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use stdchk_catalog::{CheckpointEntry, Op, State};
use stdchk_engine::session::random_u64;
use stdchk_engine::{Index, Vault};
use stdchk_object::{CheckpointId, Error, Kind, PackName, PackRef, Result};

use crate::Ground;
use crate::health::{DamageMap, Health, hurt_members, open_all};
use crate::live::Live;

/// What was found about one checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointReport {
    /// Which.
    pub id: CheckpointId,
    /// How it is.
    pub health: Health,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// The checkpoints that were asked for.
    pub checkpoints: Vec<CheckpointReport>,
    /// Damage, by pack.
    pub damage: DamageMap,
    /// Packs of which copies or parity are missing or damaged, although what was read of them is right, or was made again.
    pub thin: Vec<PackName>,
    /// What is wrong with the catalog.
    pub catalog: Vec<String>,
    /// Segments of the fingerprint index that are not as they were written: harmless, and made anew by repair.
    pub index: Vec<String>,
    /// Packs that were read, and their bytes.
    pub packs: u64,
    /// Bytes that were read and checked.
    pub bytes: u64,
    /// Packs that nothing refers to: the next garbage collection's.
    pub unreferenced: u64,
}

impl VerifyReport {
    /// Whether everything that was looked at is as it should be. The index does not count: it is a cache that a power
    /// cut may tear, and that nothing depends on.
    pub fn is_clean(&self) -> bool {
        self.checkpoints.iter().all(|report| report.health.is_whole())
            && self.damage.is_empty()
            && self.thin.is_empty()
            && self.catalog.is_empty()
    }
}

/// Reads and checks the checkpoints that `wanted` chooses, or with none the whole repository. Damage that is found,
/// and damage that is gone, is recorded. `progress` is told of bytes done and bytes in all.
pub fn verify(
    ground: &Ground,
    state: &Arc<State>,
    wanted: Option<&dyn Fn(&CheckpointEntry) -> bool>,
    record: bool,
    progress: &dyn Fn(u64, u64),
) -> Result<VerifyReport> {
    let vault = Arc::new(ground.vault(state));
    let mut report = VerifyReport::default();
    let entries: Vec<&CheckpointEntry> =
        state.checkpoints().filter(|e| wanted.is_none_or(|w| w(e))).collect();
    let packs = packs_of(&vault, &entries)?;
    check_packs(ground, &vault, packs.values(), progress, &mut report)?;
    for entry in entries {
        let health = health(&vault, entry, &report.damage)?;
        report.checkpoints.push(CheckpointReport { id: entry.id(), health });
    }
    if wanted.is_none() {
        report.catalog = ground.catalog.verify()?;
        report.index = Index::verify(&*ground.objects)?;
        ground.store.list(&mut |name, _| {
            let expected = packs.contains_key(&name) || state.sessions().contains_key(&name.session);
            report.unreferenced += u64::from(!expected);
        })?;
    }
    if record {
        record_damage(ground, &packs, &report.damage)?;
    }
    Ok(report)
}

/// The packs that checkpoints refer to; a checkpoint that cannot be opened adds what could be found.
fn packs_of(vault: &Vault, entries: &[&CheckpointEntry]) -> Result<BTreeMap<PackName, PackRef>> {
    let mut packs = BTreeMap::new();
    for entry in entries {
        packs.insert(entry.manifest.pack.name, entry.manifest.pack);
        let mut bad = BTreeSet::new();
        let Ok((view, _)) = open_all(vault, entry, &mut bad) else { continue };
        for (part, at) in view.parts.iter().zip(&view.manifest.parts) {
            let home = at.pack.resolved(&entry.manifest.pack);
            packs.insert(home.name, home);
            for (pack, _) in part.references() {
                match vault.state().forwards().get(&pack.name) {
                    None => _ = packs.insert(pack.name, pack),
                    Some(forward) => {
                        packs.insert(forward.table.pack.name, forward.table.pack);
                        let Ok(table) = vault.table(pack.name, &forward.table) else { continue };
                        packs.extend(table.packs.iter().map(|pack| (pack.name, *pack)));
                    }
                }
            }
        }
    }
    Ok(packs)
}

/// What was found of one pack.
struct Found {
    damage: Vec<(u32, u32)>,
    is_sound: bool,
}

/// Reads packs whole, several at once.
fn check_packs<'a>(
    ground: &Ground,
    vault: &Arc<Vault>,
    packs: impl Iterator<Item = &'a PackRef> + Clone,
    progress: &dyn Fn(u64, u64),
    report: &mut VerifyReport,
) -> Result<()> {
    let total = packs.clone().map(|pack| pack.length).sum();
    let mut under_way = VecDeque::new();
    let mut settle = |(answer, pack): (stdchk_engine::Answer<Found>, PackRef)| -> Result<()> {
        let found = answer.wait()?;
        if !found.is_sound {
            report.thin.push(pack.name);
        }
        if !found.damage.is_empty() {
            report.damage.insert(pack.name, found.damage);
        }
        (report.packs, report.bytes) = (report.packs + 1, report.bytes + pack.length);
        progress(report.bytes, total);
        Ok(())
    };
    for pack in packs.copied() {
        if under_way.len() > 2 * ground.workers.count()
            && let Some(oldest) = under_way.pop_front()
        {
            settle(oldest)?;
        }
        let vault = vault.clone();
        let look = move |_: &mut _| {
            let is_sound = vault.store().is_sound(pack.name)?;
            Ok(Found { damage: check_pack(&vault, &pack)?, is_sound })
        };
        under_way.push_back((ground.workers.ask(look), pack));
    }
    under_way.into_iter().try_for_each(settle)
}

/// Reads one pack whole; the ranges of chunks that are damaged.
fn check_pack(vault: &Vault, pack: &PackRef) -> Result<Vec<(u32, u32)>> {
    let whole = vec![(0, u32::MAX)];
    let about_bytes = |error: Error| match error.kind() {
        Kind::Corrupt | Kind::NotFound | Kind::Unsupported => Ok(()),
        _ => Err(error),
    };
    let open = match vault.open(pack) {
        Ok(open) => open,
        Err(error) => return about_bytes(error).map(|()| whole),
    };
    if let Err(error) = vault.check_ends(pack) {
        return about_bytes(error).map(|()| whole);
    }
    vault.check_runs(&open)
}

fn health(vault: &Vault, entry: &CheckpointEntry, damage: &DamageMap) -> Result<Health> {
    let mut bad = BTreeSet::new();
    let (view, members) = match open_all(vault, entry, &mut bad) {
        Ok(opened) => opened,
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::Unsupported) => {
            return Ok(Health::Lost(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    // A pack whose header alone is damaged can still be read, but not be told from another by its first bytes.
    let mut hurt = Vec::new();
    for (part, members) in view.parts.iter().zip(&members) {
        hurt.extend(hurt_members(vault, part, members, damage)?);
    }
    Ok(if hurt.is_empty() { Health::Whole } else { Health::Hurt(hurt) })
}

/// Records what was found, so that the next reader and saver know, and takes back what is not true any more.
fn record_damage(ground: &Ground, read: &BTreeMap<PackName, PackRef>, damage: &DamageMap) -> Result<()> {
    let known = |state: &State| {
        let healed: Vec<PackName> = state
            .damaged()
            .iter()
            .filter(|(name, ranges)| {
                read.contains_key(name) && damage.get(name).is_none_or(|found| found != *ranges)
            })
            .map(|(&name, _)| name)
            .collect();
        let mut ops = Vec::new();
        if !healed.is_empty() {
            ops.push(Op::Heal(healed));
        }
        let new = damage.iter().filter(|(name, ranges)| state.damaged().get(name) != Some(ranges));
        ops.extend(new.map(|(&name, ranges)| Op::Damage(name, ranges.clone())));
        Ok(ops)
    };
    match ground.catalog.append(true, &mut { known }) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), Kind::Denied | Kind::Full) => {
            tracing::warn!("the damage cannot be recorded: {error}");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A number for a writer within a session.
pub(crate) fn writer_number() -> Result<u32> {
    Ok(random_u64()? as u32)
}

/// The manifests of all checkpoints can be read.
pub(crate) fn all_readable(ground: &Ground, state: &Arc<State>) -> Result<Live> {
    let mut live = Live::new();
    live.follow(ground, state)?;
    Ok(live)
}
