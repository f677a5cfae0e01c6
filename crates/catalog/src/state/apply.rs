//! Checking operations against a state, and carrying them out.

use std::collections::HashSet;
use std::sync::Arc;

use stdchk_object::{CheckpointId, Error, Kind, PackName, Result, SessionId};

use super::{App, Forward, History, OpenSession, State};
use crate::drain::{DrainOp, Mirror};
use crate::op::{CheckpointEntry, Durability, Op, SessionKind};
use crate::record::Record;
use crate::tree::{Body, Version};

impl State {
    /// Whether this operation may be the next. The operations of one record are checked one by one against
    /// the state before the record; whoever puts several into one must know that they do not meet.
    pub fn check(&self, op: &Op) -> Result<()> {
        match op {
            Op::Open(entry) if self.sessions.contains_key(&entry.id) => {
                Err(Error::new(Kind::Conflict, format!("session {} is open already", entry.id)))
            }
            Op::Open(entry) => self.check_shared(&entry.kind),
            Op::AddPart(session, ..) => self.check_writer(*session).map(drop),
            Op::Commit(session, checkpoint, revived) => self.check_commit(*session, checkpoint, revived),
            Op::Publish(session, checkpoints, revived) => self.check_publish(*session, checkpoints, revived),
            Op::Name(named) => self.tree.check_name(named),
            Op::Unname(parent, name, _) => self.tree.check_unname(*parent, name),
            Op::End(session) => self.session(*session).and_then(|open| self.check_leaves(open)),
            Op::Fence(session) | Op::Forward(session, _) => self.session(*session).map(drop),
            Op::Pool(op) => self.pool.check(op),
            Op::Drain(op) => self.drain.check(op),
            Op::Condemn(packs) => self.check_condemn(packs),
            Op::Swept(packs) => self.check_swept(packs),
            Op::Drop(_)
            | Op::SetPolicy(..)
            | Op::Unforward(_)
            | Op::Damage(..)
            | Op::Heal(_)
            | Op::Restarted(..) => Ok(()),
        }
    }

    /// An open session, or the error that it has ended.
    pub fn session(&self, id: SessionId) -> Result<&OpenSession> {
        self.sessions.get(&id).ok_or_else(|| {
            let text = format!(
                "session {id} is not open: it was committed, aborted, or fenced because it was silent for too long"
            );
            Error::new(Kind::Fenced, text)
        })
    }

    fn check_writer(&self, id: SessionId) -> Result<&OpenSession> {
        let session = self.session(id)?;
        match session.entry.kind {
            ref kind if kind.writes() => Ok(session),
            _ => Err(Error::invalid(format!("session {id} does not write a checkpoint"))),
        }
    }

    fn check_commit(&self, id: SessionId, checkpoint: &CheckpointEntry, revived: &[PackName]) -> Result<()> {
        let session = self.check_writer(id)?;
        let SessionKind::Writer { app, step, parts } = &session.entry.kind else {
            return Err(Error::invalid(format!("session {id} writes a file of a mount")));
        };
        if (app, *step) != (&checkpoint.app, checkpoint.step) {
            return Err(Error::invalid(format!("session {id} was begun for {app}@{step}")));
        }
        if let Some(declared) = parts
            && *declared as usize != session.parts.len()
        {
            let text = format!(
                "{declared} parts were declared for {app}@{step}, and {} were added",
                session.parts.len()
            );
            return Err(Error::invalid(text));
        }
        self.check_revived(session, revived)
    }

    fn check_publish(
        &self,
        id: SessionId,
        checkpoints: &[CheckpointEntry],
        revived: &[PackName],
    ) -> Result<()> {
        let session = self.check_writer(id)?;
        let is_of_files = match &session.entry.kind {
            SessionKind::Writer { app, .. } => app.is_files(),
            kind => kind.shared_file().is_some(),
        };
        if !is_of_files || checkpoints.iter().any(|checkpoint| !checkpoint.app.is_files()) {
            return Err(Error::invalid(format!("session {id} was not begun for files")));
        }
        if self.joined(id).count() > 1 {
            return Err(Error::new(Kind::Conflict, format!("others write the file of session {id}, too")));
        }
        self.check_revived(session, revived)
    }

    fn check_revived(&self, session: &OpenSession, revived: &[PackName]) -> Result<()> {
        for pack in revived {
            let condemned = self.condemned.get(pack).is_some_and(|&at| at <= session.opened_at);
            let forwarded = self.forwards.get(pack).is_some_and(|forward| forward.since <= session.opened_at);
            if condemned || forwarded {
                let id = session.entry.id;
                let text = format!("pack {pack} was condemned or compacted before session {id} began");
                return Err(Error::new(Kind::Conflict, text));
            }
        }
        Ok(())
    }

    fn check_condemn(&self, packs: &[PackName]) -> Result<()> {
        match packs.iter().find(|pack| self.sessions.contains_key(&pack.session)) {
            Some(pack) => {
                Err(Error::new(Kind::Conflict, format!("pack {pack} belongs to a session that is open")))
            }
            None => Ok(()),
        }
    }

    fn check_swept(&self, packs: &[PackName]) -> Result<()> {
        let oldest = self.oldest_keeper();
        for pack in packs {
            if self.condemned.get(pack).is_some_and(|&at| at >= oldest) {
                let text =
                    format!("pack {pack} may still be referred to by a session older than its condemnation");
                return Err(Error::new(Kind::Conflict, text));
            }
        }
        Ok(())
    }

    /// Carries out the next record. Fails, leaving the state as it was, if it is not the next one or was not allowed.
    pub fn apply(&mut self, record: &Record) -> Result<()> {
        if record.number != self.number + 1 {
            let text = format!("log record {} cannot follow record {}", record.number, self.number);
            return Err(Error::corrupt(text));
        }
        if !self.are_apart(&record.ops) {
            return Err(Error::corrupt(format!("log record {} changes names that meet", record.number)));
        }
        for op in &record.ops {
            self.check(op).map_err(|error| {
                error.within(format!("log record {} was not allowed", record.number)).with_kind(Kind::Corrupt)
            })?;
        }
        self.number = record.number;
        record.ops.iter().for_each(|op| self.carry_out(op));
        Ok(())
    }

    /// Whether names that are changed together cannot meet: each is checked against the state before the record. Several may only be those of files
    /// that are new, or stay where they are, in different places.
    fn are_apart(&self, ops: &[Op]) -> bool {
        let names = || ops.iter().filter(|op| matches!(op, Op::Name(_) | Op::Unname(..)));
        if names().nth(1).is_none() {
            return true;
        }
        let (mut places, mut numbers) = (HashSet::new(), HashSet::new());
        names().all(|op| match op {
            Op::Name(named) => {
                let there = self.tree.get(named.node.number);
                let stays =
                    there.is_none_or(|there| (there.parent, &there.name) == (named.parent, &named.name));
                let is_new = matches!(named.node.body, Body::File(_)) && stays;
                is_new && places.insert((named.parent, &named.name)) && numbers.insert(named.node.number)
            }
            _ => false,
        })
    }

    fn carry_out(&mut self, op: &Op) {
        match op {
            Op::Open(entry) => {
                let session = OpenSession { entry: entry.clone(), opened_at: self.number, parts: Vec::new() };
                self.sessions.insert(entry.id, session);
            }
            Op::AddPart(session, part, replaces) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.parts.retain(|earlier| !replaces || earlier.rank != part.rank);
                    // What was asked twice, because an answer was lost, is there once.
                    if session.parts.iter().all(|there| there.head != part.head) {
                        session.parts.push(part.clone());
                    }
                }
            }
            Op::Commit(session, checkpoint, revived) => {
                self.end_revived(session, revived);
                self.add_checkpoint(checkpoint);
            }
            Op::Publish(session, checkpoints, revived) => {
                self.end_revived(session, revived);
                self.end_joined(*session);
                checkpoints.iter().for_each(|checkpoint| self.add_checkpoint(checkpoint));
            }
            Op::Name(named) => {
                let gone = self.tree.name((**named).clone());
                self.drop_versions(gone);
            }
            Op::Unname(parent, name, now_ns) => {
                let gone = self.tree.unname(*parent, name, *now_ns);
                self.drop_versions(gone);
            }
            Op::End(session) => self.end_session(*session, false),
            Op::Fence(session) => self.end_session(*session, true),
            Op::Drop(ids) => self.drop_checkpoints(ids),
            Op::SetPolicy(name, policy) => {
                Arc::make_mut(self.apps.entry(name.clone()).or_default()).policy = policy.clone();
                self.apps.retain(|_, app| **app != App::default());
            }
            Op::Condemn(packs) => {
                packs.iter().for_each(|&pack| _ = self.condemned.entry(pack).or_insert(self.number));
            }
            Op::Swept(packs) => packs.iter().for_each(|pack| {
                self.condemned.remove(pack);
                self.damaged.remove(pack);
            }),
            Op::Forward(session, tables) => {
                self.sessions.remove(session);
                self.commits += 1;
                for &(old, table) in tables {
                    // A table that is written again, to stay one step, is as old as it was.
                    let since = self.forwards.get(&old).map_or(self.number, |forward| forward.since);
                    self.forwards.insert(old, Forward { table, since });
                }
            }
            Op::Unforward(packs) => packs.iter().for_each(|pack| _ = self.forwards.remove(pack)),
            Op::Damage(pack, ranges) => {
                let known = self.damaged.entry(*pack).or_default();
                known.extend(ranges);
                merge(known);
            }
            Op::Heal(packs) => packs.iter().for_each(|pack| _ = self.damaged.remove(pack)),
            Op::Pool(op) => self.pool.carry_out(op),
            Op::Drain(op) => {
                if let DrainOp::Mirror(mirror) = op {
                    self.follow(mirror);
                }
                let before = self.drain.since();
                self.drain.carry_out(op, self.number);
                match op {
                    DrainOp::Mirrored { .. } => self.note_drained(),
                    DrainOp::To(_) if self.drain.since() != before => self.note_undrained(),
                    _ => {}
                }
            }
            Op::Restarted(name, restart) => {
                // One that is not known any more has no use for it.
                if let Some(app) = self.apps.get_mut(name) {
                    Arc::make_mut(app).history.restarted(*restart);
                }
            }
        }
    }

    fn end_revived(&mut self, session: &SessionId, revived: &[PackName]) {
        self.sessions.remove(session);
        for pack in revived {
            // Its file is still there whole: nothing is swept while a session older than this lives.
            self.condemned.remove(pack);
            self.forwards.remove(pack);
        }
    }

    fn drop_versions(&mut self, gone: Vec<Version>) {
        if !gone.is_empty() {
            self.drop_checkpoints(&gone.into_iter().map(Version::id).collect::<Vec<_>>());
        }
    }

    fn drop_checkpoints(&mut self, ids: &[CheckpointId]) {
        for id in ids {
            if let Some(app) = self.apps.get_mut(&id.app) {
                let app = Arc::make_mut(app);
                if let Some(entry) = app.checkpoints.remove((id.step, id.generation)) {
                    self.drain.forget(&entry);
                    if !id.app.is_files() {
                        app.dropped.add(entry.step, entry.sequence);
                    }
                }
                if app.checkpoints.is_empty() {
                    app.history = History::default();
                }
            }
        }
        self.apps.retain(|_, app| **app != App::default());
    }

    /// What has arrived survives what safe storage survives.
    fn note_drained(&mut self) {
        let news = self.checkpoints().filter(|entry| self.drain.is_drained(entry));
        self.rate(news.map(CheckpointEntry::id).collect(), Durability::Drained);
    }

    /// Nothing has arrived at a new place.
    fn note_undrained(&mut self) {
        let all = self.checkpoints().filter(|entry| entry.durability == Durability::Drained);
        self.rate(all.map(CheckpointEntry::id).collect(), Durability::Replicated);
    }

    fn rate(&mut self, ids: Vec<CheckpointId>, durability: Durability) {
        for id in ids {
            let Some(app) = self.apps.get_mut(&id.app) else { continue };
            let is_so = |entry: &CheckpointEntry| entry.durability == durability;
            if app.checkpoints.get((id.step, id.generation)).is_none_or(is_so) {
                continue;
            }
            let change = |entry: &mut CheckpointEntry| entry.durability = durability;
            Arc::make_mut(app).checkpoints.change((id.step, id.generation), change);
        }
    }

    /// Says of checkpoints what another catalog says.
    fn follow(&mut self, mirror: &Mirror) {
        self.drop_checkpoints(&mirror.dropped);
        for entry in &mirror.added {
            self.commits = self.commits.max(entry.sequence);
            let app = Arc::make_mut(self.apps.entry(entry.app.clone()).or_default());
            app.checkpoints.insert(entry.clone());
        }
        for &(old, table) in &mirror.forwards {
            self.forwards.insert(old, Forward { table, since: self.number });
        }
        mirror.unforwarded.iter().for_each(|old| _ = self.forwards.remove(old));
        self.tree.follow(&mirror.named, &mirror.unnamed);
    }

    fn add_checkpoint(&mut self, checkpoint: &CheckpointEntry) {
        self.commits += 1;
        let app = Arc::make_mut(self.apps.entry(checkpoint.app.clone()).or_default());
        let step = checkpoint.step;
        let newest = app.checkpoints.of_step(step).last();
        let generation = newest.map_or(1, |entry| entry.generation.saturating_add(1));
        let entry = CheckpointEntry { generation, sequence: self.commits, ..checkpoint.clone() };
        if !entry.app.is_files() {
            app.history.saved(&entry);
        }
        app.checkpoints.insert(entry);
    }
}

/// Sorts ranges and joins those that touch.
fn merge(ranges: &mut Vec<(u32, u32)>) {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for &(from, to) in ranges.iter() {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    *ranges = merged;
}
