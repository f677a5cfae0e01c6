//! Sessions: opened in the catalog, kept alive by heartbeats, ended once.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use stdchk_catalog::{Catalog, Op, Owner, SessionEntry, SessionKind, State};
use stdchk_object::{Error, Kind, Result, SessionId};

/// How long a session of a process may be silent. It says that it is alive four times as often.
pub const LEASE: Duration = Duration::from_secs(60);

/// A session of this process. Dropped without having been ended, it ends with nothing.
pub struct Session {
    catalog: Arc<dyn Catalog>,
    id: SessionId,
    state: Arc<State>,
    ended: bool,
    heart: Option<Heart>,
}

/// A random number, from the operating system.
pub fn random_u64() -> Result<u64> {
    getrandom::u64()
        .map_err(|error| Error::new(Kind::Io, format!("the system gives no random numbers: {error}")))
}

/// Nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Opens a session in the catalog without keeping it alive; its id, and the state right after.
pub fn open_session(
    catalog: &dyn Catalog,
    kind: SessionKind,
    owner: &Owner,
    lease: Duration,
) -> Result<(SessionId, Arc<State>)> {
    let id = SessionId(random_u64()?);
    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let entry = SessionEntry { id, kind, owner: owner.clone(), lease_ms, since_ns: now_ns() };
    catalog.begins(id)?;
    let state = catalog.append_as_saver(false, &mut |_| Ok(vec![Op::Open(entry.clone())]))?;
    Ok((id, state))
}

impl Session {
    /// Opens a session.
    pub fn open(catalog: Arc<dyn Catalog>, kind: SessionKind, owner: &Owner) -> Result<Session> {
        let (id, state) = open_session(&*catalog, kind, owner, LEASE)?;
        let heart = Some(Heart::start(catalog.clone(), id, LEASE));
        Ok(Session { catalog, id, state, ended: false, heart })
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The state right after it was opened: what is referred to in it stays while the session lives.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Ends the session by what `decide` returns, in one record; it must stay right whatever other savers do.
    pub fn end_with(
        mut self,
        durable: bool,
        decide: &mut dyn FnMut(&State) -> Result<Vec<Op>>,
    ) -> Result<Arc<State>> {
        let state = self.catalog.append_as_saver(durable, decide)?;
        self.ended = !state.sessions().contains_key(&self.id);
        Ok(state)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Before the session ends, so that no heartbeat comes after it.
        self.heart = None;
        let id = self.id;
        if !self.ended {
            let end = |state: &State| {
                Ok(if state.sessions().contains_key(&id) { vec![Op::End(id)] } else { Vec::new() })
            };
            if let Err(error) = self.catalog.append_as_saver(false, &mut { end }) {
                tracing::warn!(
                    "session {id} is left open, and will be fenced by garbage collection: {error}"
                );
            }
        }
        let _ = self.catalog.ended(id);
    }
}

/// Says that a session is alive, again and again until it is dropped.
pub struct Heart {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// Beats four times in every lease, or more often if that is long.
    pub fn start(catalog: Arc<dyn Catalog>, id: SessionId, lease: Duration) -> Heart {
        let (stop, stopped) = bounded::<()>(0);
        let pause = (lease / 4).clamp(Duration::from_millis(100), LEASE);
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                if let Err(error) = catalog.beat(id) {
                    tracing::warn!("session {id} cannot say that it is alive: {error}");
                }
            }
        });
        Heart { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}
