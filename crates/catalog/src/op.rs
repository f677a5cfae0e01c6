//! Operations: what a record can do, one encode and one decode side by side.

use stdchk_object::member::Tally;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{AppName, CheckpointId, Error, Kind, Locator, PackName, Result, SessionId};

use crate::tree::{Named, Version};
use crate::{DrainOp, Policy, PoolOp};

/// How much a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Durability {
    /// In memory here: survives the process.
    Staged = 0,
    /// Synced here: survives a power cut.
    Local = 1,
    /// On as many benefactors as the pool promises.
    Replicated = 2,
    /// In safe storage, to which it was drained.
    Drained = 3,
}

impl Durability {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Durability::Staged => "staged",
            Durability::Local => "local",
            Durability::Replicated => "replicated",
            Durability::Drained => "drained",
        }
    }
}

/// The process behind a session, so that its death can be proven on the same machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The machine's name, for people.
    pub host: String,
    /// Identifies one boot of one machine.
    pub boot: [u8; 16],
    /// The process, or 0 where a session outlives its process (shell scripts).
    pub pid: u32,
    /// When the process started, in the kernel's ticks since boot.
    pub pid_start: u64,
}

/// What a session may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionKind {
    /// It only keeps what it reads from being removed.
    Reader,
    /// It works for nobody's checkpoint: compaction, repair.
    Upkeep,
    /// It saves a checkpoint of this application and step.
    Writer {
        /// The application.
        app: AppName,
        /// The step.
        step: u64,
        /// How many parts there must be at the commit, where that was declared.
        parts: Option<u32>,
    },
    /// Several write a file together under it, above this version of it.
    Shared {
        /// The number of the file.
        file: u64,
        /// What is below all that they write.
        base: Option<Version>,
    },
    /// It shows files, and may write them. It keeps nothing.
    Mount,
    /// It takes part in writing the file that another session writes. It keeps nothing; when it dies, that one ends.
    Join(SessionId),
}

impl SessionKind {
    /// Whether something may be kept from being removed because it is open.
    pub fn keeps(&self) -> bool {
        !matches!(self, SessionKind::Mount | SessionKind::Join(_))
    }

    /// The number of the file that it writes, if several may write that together.
    pub fn shared_file(&self) -> Option<u64> {
        if let SessionKind::Shared { file, .. } = self { Some(*file) } else { None }
    }

    /// Whether parts may be added to it, and it ends in checkpoints.
    pub fn writes(&self) -> bool {
        matches!(self, SessionKind::Writer { .. } | SessionKind::Shared { .. })
    }
}

/// A session as it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionEntry {
    /// Its id.
    pub id: SessionId,
    /// What it may do.
    pub kind: SessionKind,
    /// Who.
    pub owner: Owner,
    /// How long it may be silent before it is suspected, in milliseconds.
    pub lease_ms: u64,
    /// When it was opened, in nanoseconds since 1970.
    pub since_ns: i64,
}

/// A part that was added to a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartEntry {
    /// Where its head lies.
    pub head: Locator,
    /// The rank that added it.
    pub rank: u32,
    /// Whether it was synced.
    pub durability: Durability,
    /// The boot that added it: a staged one is doubtful in any other.
    pub boot: [u8; 16],
    /// When it was begun, in nanoseconds since 1970.
    pub begun_ns: i64,
    /// Milliseconds until it was stored; 0 where nobody measured it.
    pub took_ms: u64,
}

/// A checkpoint in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointEntry {
    /// The application.
    pub app: AppName,
    /// The step.
    pub step: u64,
    /// Given by the catalog when it is committed; 0 before.
    pub generation: u32,
    /// Place in commit order; given by the catalog, 0 before.
    pub sequence: u64,
    /// Where the manifest lies.
    pub manifest: Locator,
    /// When, in nanoseconds since 1970.
    pub created_ns: i64,
    /// What it survives.
    pub durability: Durability,
    /// The boot that committed it: a staged one is doubtful in any other.
    pub boot: [u8; 16],
    /// How many members.
    pub member_count: u64,
    /// Sum of their lengths.
    pub bytes: u64,
    /// What became of their bytes.
    pub tally: TallyEntry,
    /// Bytes of packs that this save wrote, metadata included.
    pub written: u64,
    /// How long the save took, from its beginning until all was stored, in milliseconds; 0 where nobody measured it.
    pub took_ms: u64,
}

/// That an application went on from a checkpoint, most likely after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    /// When, in nanoseconds since 1970.
    pub time_ns: i64,
    /// How long the restore took, in milliseconds.
    pub took_ms: u64,
}

impl Restart {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.zigzag(self.time_ns);
        out.varint(self.took_ms);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Restart> {
        Ok(Restart { time_ns: reader.zigzag()?, took_ms: reader.varint()? })
    }
}

/// [`Tally`] with the derives that a state needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct TallyEntry {
    pub new: u64,
    pub shared: u64,
    pub zero: u64,
    pub stored: u64,
}

impl From<Tally> for TallyEntry {
    fn from(t: Tally) -> TallyEntry {
        TallyEntry { new: t.new, shared: t.shared, zero: t.zero, stored: t.stored }
    }
}

impl From<TallyEntry> for Tally {
    fn from(t: TallyEntry) -> Tally {
        Tally { new: t.new, shared: t.shared, zero: t.zero, stored: t.stored }
    }
}

impl CheckpointEntry {
    /// Its identity.
    pub fn id(&self) -> CheckpointId {
        CheckpointId { app: self.app.clone(), step: self.step, generation: self.generation }
    }
}

/// Chunks `from..to` of a pack.
pub type ChunkRange = (u32, u32);

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A session begins.
    Open(SessionEntry),
    /// A session gets a part, which may take the place of all earlier ones of its rank.
    AddPart(SessionId, PartEntry, bool),
    /// A session ends in a checkpoint; the packs listed were condemned after it began and are referred to again.
    Commit(SessionId, Box<CheckpointEntry>, Vec<PackName>),
    /// A session ends with nothing.
    End(SessionId),
    /// A session is ended by somebody else.
    Fence(SessionId),
    /// Checkpoints are dropped.
    Drop(Vec<CheckpointId>),
    /// An application gets a policy.
    SetPolicy(AppName, Policy),
    /// Packs that nothing refers to may not be referred to any more.
    Condemn(Vec<PackName>),
    /// The files of condemned packs are gone.
    Swept(Vec<PackName>),
    /// An upkeep session ends in new places for the chunks of old packs.
    Forward(SessionId, Vec<(PackName, Locator)>),
    /// Forwards that no checkpoint needs any more.
    Unforward(Vec<PackName>),
    /// Chunks were found damaged.
    Damage(PackName, Vec<ChunkRange>),
    /// A pack is whole again, or gone.
    Heal(Vec<PackName>),
    /// An application went on from one of its checkpoints.
    Restarted(AppName, Restart),
    /// A pool changes.
    Pool(PoolOp),
    /// A drain goes on.
    Drain(DrainOp),
    /// A session ends in versions of files, which get names in the same record; the packs listed were condemned after it began.
    Publish(SessionId, Vec<CheckpointEntry>, Vec<PackName>),
    /// A name leads to a file, a directory or a link, which has no other name from then on.
    Name(Box<Named>),
    /// A name in a directory leads to nothing any more; when, in nanoseconds since 1970.
    Unname(u64, String, i64),
}

impl Op {
    /// The session whose step this is, if it is that of one.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Op::Open(entry) => Some(entry.id),
            Op::AddPart(id, ..)
            | Op::Commit(id, ..)
            | Op::Publish(id, ..)
            | Op::End(id)
            | Op::Fence(id)
            | Op::Forward(id, _) => Some(*id),
            _ => None,
        }
    }

    fn tag(&self) -> u8 {
        match self {
            Op::Open(..) => 1,
            Op::AddPart(..) => 2,
            Op::Commit(..) => 3,
            Op::End(..) => 4,
            Op::Fence(..) => 5,
            Op::Drop(..) => 6,
            Op::SetPolicy(..) => 7,
            Op::Condemn(..) => 8,
            Op::Swept(..) => 9,
            Op::Forward(..) => 10,
            Op::Unforward(..) => 11,
            Op::Damage(..) => 12,
            Op::Heal(..) => 13,
            Op::Restarted(..) => 14,
            Op::Pool(..) => 15,
            Op::Drain(..) => 16,
            Op::Publish(..) => 17,
            Op::Name(..) => 18,
            Op::Unname(..) => 19,
        }
    }

    /// Writes the operation: tag, length, fields.
    pub fn encode(&self, out: &mut Writer) {
        let mut body = Writer::new();
        match self {
            Op::Open(entry) => entry.encode(&mut body),
            Op::AddPart(session, part, replaces) => {
                body.u64(session.0);
                part.encode(&mut body);
                body.u8(u8::from(*replaces));
            }
            Op::Commit(session, checkpoint, revived) => {
                body.u64(session.0);
                checkpoint.encode(&mut body);
                encode_packs(revived, &mut body);
            }
            Op::End(session) | Op::Fence(session) => body.u64(session.0),
            Op::Drop(ids) => {
                body.varint(ids.len() as u64);
                ids.iter().for_each(|id| encode_id(id, &mut body));
            }
            Op::SetPolicy(app, policy) => {
                body.string(app.as_str());
                policy.encode(&mut body);
            }
            Op::Condemn(packs) | Op::Swept(packs) | Op::Unforward(packs) | Op::Heal(packs) => {
                encode_packs(packs, &mut body)
            }
            Op::Forward(session, tables) => {
                body.u64(session.0);
                encode_tables(tables, &mut body);
            }
            Op::Restarted(app, restart) => {
                body.string(app.as_str());
                restart.encode(&mut body);
            }
            Op::Pool(op) => op.encode(&mut body),
            Op::Drain(op) => op.encode(&mut body),
            Op::Publish(session, checkpoints, revived) => {
                body.u64(session.0);
                body.varint(checkpoints.len() as u64);
                checkpoints.iter().for_each(|checkpoint| checkpoint.encode(&mut body));
                encode_packs(revived, &mut body);
            }
            Op::Name(named) => named.encode(&mut body),
            Op::Unname(parent, name, now_ns) => {
                body.u64(*parent);
                body.string(name);
                body.zigzag(*now_ns);
            }
            Op::Damage(pack, ranges) => {
                body.raw(&pack.to_bytes());
                encode_ranges(ranges, &mut body);
            }
        }
        out.u8(self.tag());
        out.bytes(&body.into_bytes());
    }

    /// Reads an operation.
    pub fn decode(reader: &mut Reader) -> Result<Op> {
        let tag = reader.u8()?;
        let mut body = Reader::new(reader.bytes()?, "operation");
        let r = &mut body;
        let op = match tag {
            1 => Op::Open(SessionEntry::decode(r)?),
            2 => Op::AddPart(SessionId(r.u64()?), PartEntry::decode(r)?, r.u8()? == 1),
            3 => Op::Commit(SessionId(r.u64()?), Box::new(CheckpointEntry::decode(r)?), decode_packs(r)?),
            4 => Op::End(SessionId(r.u64()?)),
            5 => Op::Fence(SessionId(r.u64()?)),
            6 => Op::Drop(decode_ids(r)?),
            7 => Op::SetPolicy(AppName::decode(r)?, Policy::decode(r)?),
            8 => Op::Condemn(decode_packs(r)?),
            9 => Op::Swept(decode_packs(r)?),
            10 => Op::Forward(SessionId(r.u64()?), decode_tables(r)?),
            11 => Op::Unforward(decode_packs(r)?),
            12 => Op::Damage(PackName::decode(r)?, decode_ranges(r)?),
            13 => Op::Heal(decode_packs(r)?),
            14 => Op::Restarted(AppName::decode(r)?, Restart::decode(r)?),
            15 => Op::Pool(PoolOp::decode(r)?),
            16 => Op::Drain(DrainOp::decode(r)?),
            17 => {
                let session = SessionId(r.u64()?);
                let count = r.count(Locator::BYTES_MIN)?;
                let checkpoints = (0..count).map(|_| CheckpointEntry::decode(r)).collect::<Result<_>>()?;
                Op::Publish(session, checkpoints, decode_packs(r)?)
            }
            18 => Op::Name(Box::new(Named::decode(r)?)),
            19 => Op::Unname(r.u64()?, r.string()?.to_owned(), r.zigzag()?),
            other => {
                let text = format!("the log holds an operation {other} that this program does not know");
                return Err(Error::new(Kind::Unsupported, text));
            }
        };
        body.finish()?;
        Ok(op)
    }
}

impl Owner {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.string(&self.host);
        out.raw(&self.boot);
        out.u32(self.pid);
        out.varint(self.pid_start);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Owner> {
        Ok(Owner {
            host: reader.string()?.to_owned(),
            boot: reader.array()?,
            pid: reader.u32()?,
            pid_start: reader.varint()?,
        })
    }
}

impl SessionEntry {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.id.0);
        self.owner.encode(out);
        out.varint(self.lease_ms);
        out.zigzag(self.since_ns);
        match &self.kind {
            SessionKind::Reader => out.u8(0),
            SessionKind::Upkeep => out.u8(1),
            SessionKind::Writer { app, step, parts } => {
                out.u8(2);
                out.string(app.as_str());
                out.varint(*step);
                out.varint(parts.map_or(0, |count| u64::from(count) + 1));
            }
            SessionKind::Mount => out.u8(3),
            SessionKind::Join(session) => {
                out.u8(4);
                out.u64(session.0);
            }
            SessionKind::Shared { file, base } => {
                out.u8(5);
                out.u64(*file);
                out.u8(u8::from(base.is_some()));
                base.iter().for_each(|base| base.encode(out));
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<SessionEntry> {
        let id = SessionId(reader.u64()?);
        let owner = Owner::decode(reader)?;
        let lease_ms = reader.varint()?;
        let since_ns = reader.zigzag()?;
        let kind = match reader.u8()? {
            0 => SessionKind::Reader,
            1 => SessionKind::Upkeep,
            2 => SessionKind::Writer {
                app: AppName::decode(reader)?,
                step: reader.varint()?,
                parts: match reader.bounded(1 << 32, "a number of parts")? {
                    0 => None,
                    more => Some((more - 1) as u32),
                },
            },
            3 => SessionKind::Mount,
            4 => SessionKind::Join(SessionId(reader.u64()?)),
            5 => SessionKind::Shared {
                file: reader.u64()?,
                base: match reader.u8()? {
                    0 => None,
                    1 => Some(Version::decode(reader)?),
                    _ => return Err(reader.corrupt("neither a version nor none")),
                },
            },
            _ => return Err(reader.corrupt("unknown kind of session")),
        };
        Ok(SessionEntry { id, kind, owner, lease_ms, since_ns })
    }
}

impl PartEntry {
    pub(crate) fn encode(&self, out: &mut Writer) {
        self.head.encode(out);
        out.u32(self.rank);
        out.u8(self.durability as u8);
        out.raw(&self.boot);
        out.zigzag(self.begun_ns);
        out.varint(self.took_ms);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<PartEntry> {
        Ok(PartEntry {
            head: Locator::decode(reader)?,
            rank: reader.u32()?,
            durability: decode_durability(reader)?,
            boot: reader.array()?,
            begun_ns: reader.zigzag()?,
            took_ms: reader.varint()?,
        })
    }
}

impl CheckpointEntry {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.string(self.app.as_str());
        out.varint(self.step);
        out.varint(u64::from(self.generation));
        out.varint(self.sequence);
        self.manifest.encode(out);
        out.zigzag(self.created_ns);
        out.u8(self.durability as u8);
        out.raw(&self.boot);
        out.varint(self.member_count);
        out.varint(self.bytes);
        Tally::from(self.tally).encode(out);
        out.varint(self.written);
        out.varint(self.took_ms);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<CheckpointEntry> {
        Ok(CheckpointEntry {
            app: AppName::decode(reader)?,
            step: reader.varint()?,
            generation: reader.varint32("a generation")?,
            sequence: reader.varint()?,
            manifest: Locator::decode(reader)?,
            created_ns: reader.zigzag()?,
            durability: decode_durability(reader)?,
            boot: reader.array()?,
            member_count: reader.varint()?,
            bytes: reader.varint()?,
            tally: Tally::decode(reader)?.into(),
            written: reader.varint()?,
            took_ms: reader.varint()?,
        })
    }
}

fn decode_durability(reader: &mut Reader) -> Result<Durability> {
    match reader.u8()? {
        0 => Ok(Durability::Staged),
        1 => Ok(Durability::Local),
        2 => Ok(Durability::Replicated),
        3 => Ok(Durability::Drained),
        _ => Err(reader.corrupt("unknown durability")),
    }
}

pub(crate) fn encode_packs(packs: &[PackName], out: &mut Writer) {
    out.varint(packs.len() as u64);
    packs.iter().for_each(|pack| out.raw(&pack.to_bytes()));
}

pub(crate) fn decode_packs(reader: &mut Reader) -> Result<Vec<PackName>> {
    let count = reader.count(PackName::BYTES)?;
    (0..count).map(|_| PackName::decode(reader)).collect()
}

pub(crate) fn encode_ranges(ranges: &[ChunkRange], out: &mut Writer) {
    out.varint(ranges.len() as u64);
    for &(from, to) in ranges {
        out.varint(u64::from(from));
        out.varint(u64::from(to));
    }
}

pub(crate) fn decode_ranges(reader: &mut Reader) -> Result<Vec<ChunkRange>> {
    let count = reader.count(2)?;
    (0..count).map(|_| Ok((reader.varint32("a chunk index")?, reader.varint32("a chunk index")?))).collect()
}

fn decode_ids(reader: &mut Reader) -> Result<Vec<CheckpointId>> {
    let count = reader.count(4)?;
    (0..count).map(|_| decode_id(reader)).collect()
}

pub(crate) fn encode_id(id: &CheckpointId, out: &mut Writer) {
    out.string(id.app.as_str());
    out.varint(id.step);
    out.varint(u64::from(id.generation));
}

pub(crate) fn decode_id(reader: &mut Reader) -> Result<CheckpointId> {
    let app = AppName::decode(reader)?;
    Ok(CheckpointId { app, step: reader.varint()?, generation: reader.varint32("a generation")? })
}

pub(crate) fn encode_tables(tables: &[(PackName, Locator)], out: &mut Writer) {
    out.varint(tables.len() as u64);
    for (old, table) in tables {
        out.raw(&old.to_bytes());
        table.encode(out);
    }
}

pub(crate) fn decode_tables(reader: &mut Reader) -> Result<Vec<(PackName, Locator)>> {
    let count = reader.count(PackName::BYTES + Locator::BYTES_MIN)?;
    (0..count).map(|_| Ok((PackName::decode(reader)?, Locator::decode(reader)?))).collect()
}
