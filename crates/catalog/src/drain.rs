//! Where checkpoints are drained to, which of them have arrived, and what a catalog is that follows another one.

use std::collections::{BTreeMap, HashSet};

use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{CheckpointId, Error, Kind, Locator, PackName, Result};

use crate::op::{CheckpointEntry, Durability, decode_id, decode_packs, decode_tables};
use crate::op::{encode_id, encode_packs, encode_tables};
use crate::state::State;
use crate::tree::{Named, Version};

/// What can happen to a drain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DrainOp {
    /// Checkpoints are drained to this place from now on.
    To(String),
    /// They are drained no more.
    Stop,
    /// All packs of these checkpoints, by their places in commit order, are at the place that was chosen in record `since`, and synced.
    Copied {
        /// See [`Drain::since`].
        since: u64,
        /// The checkpoints.
        sequences: Vec<u64>,
    },
    /// The names that are kept there are those of this catalog up to this record.
    Mirrored {
        /// See [`Drain::since`].
        since: u64,
        /// The record.
        number: u64,
    },
    /// In the catalog there: it is made like the other one.
    Mirror(Box<Mirror>),
    /// In the catalog there: it follows nobody any more.
    Release,
}

/// What makes one catalog say of drained checkpoints what another one says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// The identity of the other one, and the record up to which it is followed.
    pub source: (u64, u64),
    /// Checkpoints that are there no more.
    pub dropped: Vec<CheckpointId>,
    /// Those that are new, as they are there but for what they survive.
    pub added: Vec<CheckpointEntry>,
    /// Packs that were compacted, and where their tables lie.
    pub forwards: Vec<(PackName, Locator)>,
    /// Forwards that are needed no more.
    pub unforwarded: Vec<PackName>,
    /// Names that lead to something else than before, with the versions of files that are there.
    pub named: Vec<Named>,
    /// The numbers of what has no name any more.
    pub unnamed: Vec<u64>,
}

/// What is known of a drain: where to, and how far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Drain {
    to: Option<String>,
    /// The record that chose the place: what was done for another one does not count.
    since: u64,
    /// Those whose packs have arrived, by their places in commit order, and the record that says so.
    copied: BTreeMap<u64, u64>,
    mirrored: u64,
    /// Whom this catalog follows, where it does, and how far.
    source: Option<(u64, u64)>,
}

impl Drain {
    /// Where checkpoints are drained to.
    pub fn to(&self) -> Option<&str> {
        self.to.as_deref()
    }

    /// The record in which the place was chosen.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Whether all packs of a checkpoint have arrived.
    pub fn is_copied(&self, entry: &CheckpointEntry) -> bool {
        self.copied.contains_key(&entry.sequence)
    }

    /// Whether a checkpoint can be restored from where it was drained to alone: its packs are there, and its name.
    pub fn is_drained(&self, entry: &CheckpointEntry) -> bool {
        self.copied.get(&entry.sequence).is_some_and(|&number| number <= self.mirrored)
    }

    /// The newest record that says that something has arrived, and is not named there yet.
    pub fn unnamed(&self) -> Option<u64> {
        self.copied.values().copied().max().filter(|&number| number > self.mirrored)
    }

    /// Whom this catalog follows, and up to which record.
    pub fn source(&self) -> Option<(u64, u64)> {
        self.source
    }

    pub(crate) fn forget(&mut self, entry: &CheckpointEntry) {
        self.copied.remove(&entry.sequence);
    }

    pub(crate) fn check(&self, op: &DrainOp) -> Result<()> {
        match op {
            DrainOp::To(place) if place.is_empty() => Err(Error::invalid("a drain leads somewhere")),
            DrainOp::Copied { since, .. } | DrainOp::Mirrored { since, .. }
                if self.to.is_none() || *since != self.since =>
            {
                Err(Error::new(Kind::Conflict, "nothing is drained to there any more"))
            }
            DrainOp::Mirror(mirror) => match self.source {
                Some((id, _)) if id != mirror.source.0 => {
                    Err(Error::new(Kind::Conflict, "another pool drains to there"))
                }
                Some((_, number)) if number >= mirror.source.1 => {
                    Err(Error::new(Kind::Conflict, "what is there is newer"))
                }
                _ if mirror.named.iter().any(|named| !named.can_be()) => {
                    Err(Error::invalid("a name that cannot be"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Carries out what concerns only the drain; `number` is the record's.
    pub(crate) fn carry_out(&mut self, op: &DrainOp, number: u64) {
        match op {
            DrainOp::To(place) => {
                if self.to.as_ref() != Some(place) {
                    let to = Some(place.clone());
                    *self = Drain { to, since: number, source: self.source, ..Drain::default() };
                }
            }
            DrainOp::Stop => *self = Drain { source: self.source, ..Drain::default() },
            DrainOp::Copied { sequences, .. } => {
                sequences.iter().for_each(|sequence| _ = self.copied.entry(*sequence).or_insert(number));
            }
            DrainOp::Mirrored { number, .. } => self.mirrored = self.mirrored.max(*number),
            DrainOp::Mirror(mirror) => self.source = Some(mirror.source),
            DrainOp::Release => self.source = None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.string(self.to.as_deref().unwrap_or_default());
        out.varint(self.since);
        out.varint(self.copied.len() as u64);
        for (sequence, number) in &self.copied {
            out.varint(*sequence);
            out.varint(*number);
        }
        out.varint(self.mirrored);
        out.u8(u8::from(self.source.is_some()));
        if let Some((id, number)) = self.source {
            out.u64(id);
            out.varint(number);
        }
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Drain> {
        let to = Some(r.string()?.to_owned()).filter(|to| !to.is_empty());
        let since = r.varint()?;
        let copied = (0..r.count(2)?).map(|_| Ok((r.varint()?, r.varint()?))).collect::<Result<_>>()?;
        let mirrored = r.varint()?;
        let source = match r.u8()? {
            0 => None,
            1 => Some((r.u64()?, r.varint()?)),
            _ => return Err(r.corrupt("neither a source nor none")),
        };
        Ok(Drain { to, since, copied, mirrored, source })
    }
}

impl State {
    /// What would make `there` say of drained checkpoints what this state says; nothing where it follows this state or a newer one. Names of what is
    /// still here stay, whoever drained it. `id` tells this catalog from others; `has` says whether all is there that a checkpoint needs,
    /// `leads` whether all that a forward leads to is, and `may_end` whether a forward is needed no more.
    pub fn mirror_to(
        &self,
        there: &State,
        id: u64,
        mut has: impl FnMut(&CheckpointEntry) -> bool,
        mut leads: impl FnMut(PackName, &Locator) -> bool,
        mut may_end: impl FnMut(PackName) -> bool,
    ) -> Option<Mirror> {
        if there.drain.source.is_some_and(|(_, number)| number >= self.number) {
            return None;
        }
        let same = |entry: &CheckpointEntry, state: &State| {
            state.checkpoint(&entry.id()).is_some_and(|other| other.sequence == entry.sequence)
        };
        let dropped = there.checkpoints().filter(|entry| !same(entry, self)).map(CheckpointEntry::id);
        let copied = self.checkpoints().filter(|entry| self.drain.is_copied(entry));
        let added = copied.filter(|entry| !same(entry, there) && has(entry));
        let added = added.map(|entry| CheckpointEntry { durability: Durability::Drained, ..entry.clone() });
        let is_known = |name, table| there.forwards.get(name).is_some_and(|known| known.table == table);
        let new = self.forwards.iter().filter(|(name, forward)| !is_known(name, forward.table));
        let new = new.filter(|(name, forward)| leads(**name, &forward.table));
        let old = there.forwards.keys().filter(|name| !self.forwards.contains_key(name));
        let added: Vec<CheckpointEntry> = added.collect();
        let new_ids: HashSet<CheckpointId> = added.iter().map(CheckpointEntry::id).collect();
        let is_there = |version: Version| {
            let kept = || self.checkpoint(&version.id()).is_some_and(|entry| same(entry, there));
            new_ids.contains(&version.id()) || kept()
        };
        let (named, unnamed) = self.tree.mirror_to(&there.tree, is_there);
        Some(Mirror {
            source: (id, self.number),
            dropped: dropped.collect(),
            added,
            named,
            unnamed,
            forwards: new.map(|(name, forward)| (*name, forward.table)).collect(),
            unforwarded: old.copied().filter(|name| may_end(*name)).collect(),
        })
    }

    /// Whether everything that has arrived according to this state is named in the other one.
    pub fn is_named_in(&self, there: &State) -> bool {
        let is_there = |entry: &CheckpointEntry| {
            there.checkpoint(&entry.id()).is_some_and(|other| other.sequence == entry.sequence)
        };
        self.checkpoints().filter(|entry| self.drain.is_copied(entry)).all(is_there)
    }
}

impl Mirror {
    /// Whether it changes nothing but how far the other one is followed.
    pub fn is_idle(&self) -> bool {
        self.dropped.is_empty()
            && self.added.is_empty()
            && self.forwards.is_empty()
            && self.unforwarded.is_empty()
            && self.named.is_empty()
            && self.unnamed.is_empty()
    }
}

impl DrainOp {
    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            DrainOp::To(place) => {
                out.u8(1);
                out.string(place);
            }
            DrainOp::Stop => out.u8(2),
            DrainOp::Copied { since, sequences } => {
                out.u8(3);
                out.varint(*since);
                out.varint(sequences.len() as u64);
                sequences.iter().for_each(|sequence| out.varint(*sequence));
            }
            DrainOp::Mirrored { since, number } => {
                out.u8(4);
                out.varint(*since);
                out.varint(*number);
            }
            DrainOp::Mirror(mirror) => {
                out.u8(5);
                out.u64(mirror.source.0);
                out.varint(mirror.source.1);
                out.varint(mirror.dropped.len() as u64);
                mirror.dropped.iter().for_each(|id| encode_id(id, out));
                out.varint(mirror.added.len() as u64);
                mirror.added.iter().for_each(|entry| entry.encode(out));
                encode_tables(&mirror.forwards, out);
                encode_packs(&mirror.unforwarded, out);
                out.varint(mirror.named.len() as u64);
                mirror.named.iter().for_each(|named| named.encode(out));
                out.varint(mirror.unnamed.len() as u64);
                mirror.unnamed.iter().for_each(|number| out.u64(*number));
            }
            DrainOp::Release => out.u8(6),
        }
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<DrainOp> {
        Ok(match r.u8()? {
            1 => DrainOp::To(r.string()?.to_owned()),
            2 => DrainOp::Stop,
            3 => DrainOp::Copied {
                since: r.varint()?,
                sequences: (0..r.count(1)?).map(|_| r.varint()).collect::<Result<_>>()?,
            },
            4 => DrainOp::Mirrored { since: r.varint()?, number: r.varint()? },
            5 => DrainOp::Mirror(Box::new(Mirror {
                source: (r.u64()?, r.varint()?),
                dropped: (0..r.count(4)?).map(|_| decode_id(r)).collect::<Result<_>>()?,
                added: (0..r.count(Locator::BYTES_MIN)?)
                    .map(|_| CheckpointEntry::decode(r))
                    .collect::<Result<_>>()?,
                forwards: decode_tables(r)?,
                unforwarded: decode_packs(r)?,
                named: (0..r.count(Named::BYTES_MIN)?).map(|_| Named::decode(r)).collect::<Result<_>>()?,
                unnamed: (0..r.count(8)?).map(|_| r.u64()).collect::<Result<_>>()?,
            })),
            6 => DrainOp::Release,
            _ => return Err(r.corrupt("an unknown change of a drain")),
        })
    }
}
