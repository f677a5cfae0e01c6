//! Snapshots: a state as bytes.
//!
//! ```text
//! varint number, varint commits
//! sessions:   varint count; each: session entry, varint opened_at, varint parts, each a part entry
//! apps:       varint count; each: string name, policy, varint checkpoints, each a checkpoint entry, history, dropped
//! dropped:    varint count; each: varint step, varint place in commit order
//! condemned:  varint count; each: pack name, varint record
//! forwards:   varint count; each: pack name, locator of the table, varint record
//! damaged:    varint count; each: pack name, varint ranges, each varint from, varint to
//! pool:       its promise, settled epoch, changes since, members
//! tree:       zigzag when the root changed, varint count; each: number of the directory, name, node
//! drain:      where to, what has arrived, how far the names are there; whom this catalog follows
//! ```

use stdchk_object::envelope::{Sort, open, seal};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{AppName, Error, Locator, PackName, Result};

use super::{App, Dropped, Forward, History, OpenSession, State};
use crate::drain::Drain;
use crate::op::{CheckpointEntry, PartEntry, SessionEntry, decode_ranges, encode_ranges};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::tree::Tree;

impl State {
    /// As stored in a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.varint(self.number);
        out.varint(self.commits);
        out.varint(self.sessions.len() as u64);
        for session in self.sessions.values() {
            session.entry.encode(&mut out);
            out.varint(session.opened_at);
            out.varint(session.parts.len() as u64);
            session.parts.iter().for_each(|part| part.encode(&mut out));
        }
        out.varint(self.apps.len() as u64);
        for (name, app) in &self.apps {
            out.string(name.as_str());
            app.policy.encode(&mut out);
            out.varint(app.checkpoints.len() as u64);
            app.checkpoints.values().for_each(|checkpoint| checkpoint.encode(&mut out));
            app.history.encode(&mut out);
            app.dropped.encode(&mut out);
        }
        out.varint(self.condemned.len() as u64);
        for (pack, &at) in &self.condemned {
            out.raw(&pack.to_bytes());
            out.varint(at);
        }
        out.varint(self.forwards.len() as u64);
        for (pack, forward) in &self.forwards {
            out.raw(&pack.to_bytes());
            forward.table.encode(&mut out);
            out.varint(forward.since);
        }
        out.varint(self.damaged.len() as u64);
        for (pack, ranges) in &self.damaged {
            out.raw(&pack.to_bytes());
            encode_ranges(ranges, &mut out);
        }
        self.pool.encode(&mut out);
        self.tree.encode(&mut out);
        self.drain.encode(&mut out);
        seal(Sort::Snapshot, &out.into_bytes())
    }

    /// The number of an encoded state, all of which is checked to be as it was sealed.
    pub fn number_of(bytes: &[u8]) -> Result<u64> {
        Reader::new(open(Sort::Snapshot, bytes)?, "snapshot").varint()
    }

    /// Reads snapshot `number`.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<State> {
        let mut reader = Reader::new(open(Sort::Snapshot, bytes)?, "snapshot");
        let r = &mut reader;
        let mut state = State { number: r.varint()?, commits: r.varint()?, ..State::default() };
        if state.number != number {
            return Err(Error::corrupt(format!("snapshot {number} says it is another one")));
        }
        for _ in 0..r.count(30)? {
            let session = decode_session(r)?;
            state.sessions.insert(session.entry.id, session);
        }
        for _ in 0..r.count(8)? {
            let name = AppName::decode(r)?;
            let mut app = App { policy: Policy::decode(r)?, ..App::default() };
            for _ in 0..r.count(Locator::BYTES_MIN)? {
                let checkpoint = CheckpointEntry::decode(r)?;
                app.checkpoints.insert(checkpoint);
            }
            app.history = History::decode(r)?;
            app.dropped = Dropped::decode(r)?;
            state.apps.insert(name, app.into());
        }
        for _ in 0..r.count(PackName::BYTES + 1)? {
            state.condemned.insert(PackName::decode(r)?, r.varint()?);
        }
        for _ in 0..r.count(PackName::BYTES + Locator::BYTES_MIN)? {
            let name = PackName::decode(r)?;
            state.forwards.insert(name, Forward { table: Locator::decode(r)?, since: r.varint()? });
        }
        for _ in 0..r.count(PackName::BYTES + 1)? {
            state.damaged.insert(PackName::decode(r)?, decode_ranges(r)?);
        }
        state.pool = Pool::decode(r)?;
        state.tree = Tree::decode(r)?;
        state.drain = Drain::decode(r)?;
        reader.finish()?;
        Ok(state)
    }
}

fn decode_session(r: &mut Reader) -> Result<OpenSession> {
    let entry = SessionEntry::decode(r)?;
    let opened_at = r.varint()?;
    let count = r.count(Locator::BYTES_MIN)?;
    let parts = (0..count).map(|_| PartEntry::decode(r)).collect::<Result<_>>()?;
    Ok(OpenSession { entry, opened_at, parts })
}
