//! Whether a checkpoint is whole.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use stdchk_catalog::{CheckpointEntry, ChunkRange};
use stdchk_engine::{PartView, Vault, View};
use stdchk_object::member::Member;
use stdchk_object::tree::Piece;
use stdchk_object::{Error, Kind, PackName, PackRef, Result};

/// Packs that are opened ahead: their footers fit into memory together.
const GROUP: usize = 32;

/// A member that cannot be brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HurtMember {
    /// Its path.
    pub path: String,
    /// The rank of its part.
    pub rank: u32,
    /// What is wrong.
    pub problem: String,
}

/// What is known of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything that it refers to was found.
    Whole,
    /// These members are hurt.
    Hurt(Vec<HurtMember>),
    /// It cannot even be listed.
    Lost(String),
}

impl Health {
    /// Whether it can be restored.
    pub fn is_whole(&self) -> bool {
        *self == Health::Whole
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        match self {
            Health::Whole => "whole".to_owned(),
            Health::Lost(problem) => problem.clone(),
            Health::Hurt(members) => {
                let first = members.first().map(|m| format!("{}: {}", m.path, m.problem)).unwrap_or_default();
                match members.len() {
                    1 => first,
                    more => format!("{more} members are hurt, the first is {first}"),
                }
            }
        }
    }
}

/// Damaged chunks by pack.
pub type DamageMap = BTreeMap<PackName, Vec<ChunkRange>>;

/// Errors that speak of the bytes; others (permissions, a disk that fails to answer) speak of the moment.
fn is_about_bytes(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::Unsupported)
}

/// Looks at a checkpoint without reading its data: manifest, parts and member lists are read; every pack must be
/// there with the right length and footer; chunks known to be damaged must not be among its own.
pub fn check_quick(vault: &Vault, entry: &CheckpointEntry) -> Result<Health> {
    let known: DamageMap = vault.state().damaged().clone();
    let mut bad_packs = BTreeSet::new();
    let opened = open_all(vault, entry, &mut bad_packs);
    let (view, members) = match opened {
        Ok(opened) => opened,
        Err(error) if is_about_bytes(&error) => return Ok(Health::Lost(error.to_string())),
        Err(error) => return Err(error),
    };
    let concerned = |part: &PartView| {
        part.references().any(|(pack, _)| known.contains_key(&pack.name) || bad_packs.contains(&pack.name))
            || vault.state().forwards().keys().any(|name| part.roots.contains_key(name))
    };
    let mut hurt = Vec::new();
    for (part, members) in view.parts.iter().zip(&members) {
        if concerned(part) {
            hurt.extend(hurt_members(vault, part, members, &known)?);
        }
    }
    Ok(if hurt.is_empty() { Health::Whole } else { Health::Hurt(hurt) })
}

/// Opens everything about a checkpoint but its trees and data; packs that fail to open are noted.
pub fn open_all(
    vault: &Vault,
    entry: &CheckpointEntry,
    bad_packs: &mut BTreeSet<PackName>,
) -> Result<(View, Vec<Vec<Member>>)> {
    let view = View::open(vault, &entry.manifest)?;
    let mut members = Vec::new();
    for part in &view.parts {
        members.push(part.members(vault)?);
        let is_itself = |pack: &PackRef| !vault.state().forwards().contains_key(&pack.name);
        let packs: Vec<PackRef> = part.references().map(|(pack, _)| pack).filter(is_itself).collect();
        for group in packs.chunks(GROUP) {
            vault.open_ahead(group);
            for pack in group {
                match vault.open(pack) {
                    Ok(_) => {}
                    Err(error) if is_about_bytes(&error) => _ = bad_packs.insert(pack.name),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok((view, members))
}

/// The members of a part whose trees cannot be walked, or which name damaged chunks.
pub fn hurt_members(
    vault: &Vault,
    part: &PartView,
    members: &[Member],
    damage: &DamageMap,
) -> Result<Vec<HurtMember>> {
    let mut hurt = Vec::new();
    for member in members {
        let Some(content) = member.body.content() else { continue };
        let mut problem: Option<String> = None;
        // A node that was met is not walked again, however often a hostile tree names it.
        let mut met = HashSet::new();
        let walked = vault.visit_nodes(&part.roots, &content.blob, &mut |node, leaf| {
            if let Some(node) = node {
                return Ok(met.insert(node));
            }
            for piece in leaf.iter().flat_map(|leaf| &leaf.pieces) {
                let Piece::Data(extent) = piece else { continue };
                vault.spans(&part.roots, extent, |span| {
                    let mut look = |name: PackName, first: u32, end: u32| {
                        let hit = |&&(from, to): &&ChunkRange| from < end && first < to;
                        if let Some((from, to)) = damage.get(&name).and_then(|ranges| ranges.iter().find(hit))
                        {
                            let text = || format!("chunks {from}..{to} of pack {name} are damaged");
                            problem.get_or_insert_with(text);
                        }
                    };
                    look(span.open.pack.name, span.from, span.to);
                    vault.bases_of_run(&span.open, span.run(), look)
                })?;
            }
            Ok(true)
        });
        match walked {
            Ok(()) => {}
            Err(error) if is_about_bytes(&error) => problem = Some(error.to_string()),
            Err(error) => return Err(error),
        }
        if let Some(problem) = problem {
            hurt.push(HurtMember { path: member.path.clone(), rank: part.part.rank, problem });
        }
    }
    Ok(hurt)
}
