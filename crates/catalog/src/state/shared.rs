//! Files that several write together: one session writes, and each of the several has one that joins it (`docs/MOUNT.md`).
//!
//! What stays true:
//! - a file is written by one such session at most, and that is open as long as somebody is joined to it, and no longer;
//! - when one of those who joined is fenced, nothing of what was written becomes a version;
//! - the last one does not leave what was written: it publishes it, or is fenced;
//! - a name leads to a file of no versions only while that is written so.

use stdchk_object::{Error, Kind, Result, SessionId};

use super::{OpenSession, State};
use crate::op::SessionKind;

impl State {
    /// The session under which several write a file.
    pub fn shared(&self, file: u64) -> Option<SessionId> {
        let writes = |kind: &SessionKind| kind.shared_file() == Some(file);
        self.sessions.values().find(|session| writes(&session.entry.kind)).map(|session| session.entry.id)
    }

    /// Those who take part in what a session writes.
    pub fn joined(&self, session: SessionId) -> impl Iterator<Item = SessionId> + '_ {
        let joins = move |kind: &SessionKind| *kind == SessionKind::Join(session);
        self.sessions.values().filter(move |open| joins(&open.entry.kind)).map(|open| open.entry.id)
    }

    /// Whether somebody else than `mount` shows files and may write them.
    pub fn has_other_mounts(&self, mount: SessionId) -> bool {
        self.mounts().any(|id| id != mount)
    }

    /// The mount that does for all what one has to do.
    pub fn first_mount(&self) -> Option<SessionId> {
        self.open_mounts().min_by_key(|open| open.opened_at).map(|open| open.entry.id)
    }

    /// All that show files and may write them.
    pub fn mounts(&self) -> impl Iterator<Item = SessionId> {
        self.open_mounts().map(|open| open.entry.id)
    }

    fn open_mounts(&self) -> impl Iterator<Item = &OpenSession> {
        self.sessions.values().filter(|open| open.entry.kind == SessionKind::Mount)
    }

    pub(super) fn check_shared(&self, kind: &SessionKind) -> Result<()> {
        match kind.shared_file() {
            Some(file) if self.shared(file).is_some() => {
                Err(Error::new(Kind::Conflict, format!("others write file {file:016x} already; join them")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses that the last one leaves who writes a file, after something was written.
    pub(super) fn check_leaves(&self, open: &OpenSession) -> Result<()> {
        let SessionKind::Join(of) = open.entry.kind else { return Ok(()) };
        let has_parts = self.sessions.get(&of).is_some_and(|shared| !shared.parts.is_empty());
        match has_parts && self.joined(of).count() == 1 {
            true => Err(Error::new(Kind::Conflict, "what others wrote would be lost")),
            false => Ok(()),
        }
    }

    /// A session ends with nothing.
    pub(super) fn end_session(&mut self, id: SessionId, is_fenced: bool) {
        let Some(ended) = self.sessions.remove(&id) else { return };
        match ended.entry.kind {
            SessionKind::Join(of) if is_fenced || self.joined(of).next().is_none() => {
                self.end_session(of, is_fenced)
            }
            kind => {
                if let Some(file) = kind.shared_file() {
                    self.end_joined(id);
                    self.unname_unwritten(file);
                }
            }
        }
    }

    pub(super) fn end_joined(&mut self, of: SessionId) {
        self.sessions.retain(|_, open| open.entry.kind != SessionKind::Join(of));
    }

    /// Nothing leads to a file any more that was to be and will not.
    fn unname_unwritten(&mut self, file: u64) {
        if let Some(named) = self.tree.get(file)
            && named.node.is_unwritten()
        {
            let (parent, name) = (named.parent, named.name.clone());
            self.tree.unname(parent, &name, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{file, open, part};
    use crate::op::Op;
    use crate::record::Record;

    const FILE: u64 = 77;

    fn writer() -> SessionKind {
        SessionKind::Shared { file: FILE, base: None }
    }

    fn apply(state: &mut State, ops: Vec<Op>) -> Result<()> {
        let record = Record { number: state.number() + 1, nonce: [0; 16], time_ns: 0, ops };
        state.apply(&record)
    }

    /// A file that sessions 2 and 3 write under session 1.
    fn begun() -> State {
        let mut state = State::default();
        let join = SessionKind::Join(SessionId(1));
        apply(&mut state, vec![open(1, writer()), open(2, join.clone()), file(FILE, Vec::new())])
            .expect("begun");
        apply(&mut state, vec![open(3, join)]).expect("joined");
        assert_eq!((state.shared(FILE), state.joined(SessionId(1)).count()), (Some(SessionId(1)), 2));
        state
    }

    fn is_over(state: &State) -> bool {
        state.sessions().is_empty() && state.tree().is_empty()
    }

    #[test]
    fn who_is_fenced_takes_all_along_and_who_leaves_does_not() {
        let mut state = begun();
        apply(&mut state, vec![Op::End(SessionId(2))]).expect("left");
        assert!(state.shared(FILE).is_some() && state.tree().get(FILE).is_some());
        apply(&mut state, vec![Op::End(SessionId(3))]).expect("left");
        assert!(is_over(&state), "nobody wrote anything: {state:?}");
        let mut state = begun();
        apply(&mut state, vec![Op::Fence(SessionId(3))]).expect("fenced");
        assert!(is_over(&state), "{state:?}");
        let mut state = begun();
        apply(&mut state, vec![Op::Fence(SessionId(1))]).expect("fenced");
        assert!(is_over(&state), "{state:?}");
    }

    #[test]
    fn a_file_is_written_under_one_session_and_published_by_the_last() {
        let mut state = begun();
        assert!(apply(&mut state, vec![open(4, writer())]).is_err(), "others write it");
        apply(&mut state, vec![Op::AddPart(SessionId(1), part(1, 0), false)]).expect("a part");
        let publish = |id| vec![Op::Publish(SessionId(id), Vec::new(), Vec::new())];
        assert!(apply(&mut state, publish(1)).is_err(), "another one has not closed it");
        apply(&mut state, vec![Op::End(SessionId(2))]).expect("left");
        assert!(apply(&mut state, vec![Op::End(SessionId(3))]).is_err(), "what was written would be lost");
        apply(&mut state, publish(1)).expect("published");
        assert!(state.sessions().is_empty());
    }

    #[test]
    fn a_mount_keeps_nothing_from_being_removed() {
        let mut state = State::default();
        apply(&mut state, vec![open(1, SessionKind::Mount)]).expect("a mount");
        assert!(!state.has_other_mounts(SessionId(1)) && state.has_other_mounts(SessionId(2)));
        let pack = stdchk_object::PackName { session: SessionId(9), writer: 0, number: 0 };
        apply(&mut state, vec![Op::Condemn(vec![pack])]).expect("condemned");
        assert_eq!(state.sweepable(), [pack]);
        apply(&mut state, vec![Op::Swept(vec![pack])]).expect("swept");
    }
}
