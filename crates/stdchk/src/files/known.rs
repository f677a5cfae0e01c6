//! What is known of the catalog, and kept at hand: its newest state, a pin, and what was opened under that.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stdchk_catalog::State;
use stdchk_catalog::tree::Version;
use stdchk_object::{Error, Result};

use super::opened::Opened;
use super::{Files, locked, now};
use crate::repository::Reading;

/// How old what is known of the names may be.
const FRESH: Duration = Duration::from_millis(250);
/// For how long a catalog that could not be asked is not asked again.
const FAILED: Duration = Duration::from_secs(2);
/// How long a pin is used for what is opened.
const PIN: Duration = Duration::from_secs(60);
/// Versions that are kept open.
const OPENED: usize = 1024;

/// A state of the catalog, and when it was the newest.
pub(super) struct Known {
    pub state: Arc<State>,
    at: Instant,
}

pub(super) struct Pin {
    reading: Arc<Reading>,
    since: Instant,
}

impl Files {
    /// The names as they were a moment ago at most.
    pub(super) fn state(&self) -> Result<Arc<State>> {
        let fresh = || {
            let known = locked(&self.known);
            known.as_ref().filter(|known| known.at.elapsed() < FRESH).map(|known| known.state.clone())
        };
        if let Some(state) = fresh() {
            return Ok(state);
        }
        // One asks for all; but what is known can be looked at meanwhile, also by who decides what to append.
        let mut failed = locked(&self.asking);
        if let Some(state) = fresh() {
            return Ok(state);
        }
        if let Some((at, kind, why)) = &*failed
            && at.elapsed() < FAILED
        {
            return Err(Error::new(*kind, why.clone()));
        }
        let asked = self.newest_state();
        *failed = asked.as_ref().err().map(|error| (Instant::now(), error.kind(), error.to_string()));
        asked
    }

    /// The names as they were known last.
    pub(super) fn last_state(&self) -> Option<Arc<State>> {
        locked(&self.known).as_ref().map(|known| known.state.clone())
    }

    /// The names as they are.
    pub(super) fn newest_state(&self) -> Result<Arc<State>> {
        let state = self.repository.catalog.state()?;
        self.learn(&state);
        Ok(state)
    }

    /// Takes in a state that came with an answer.
    pub(super) fn learn(&self, state: &Arc<State>) {
        let mut known = locked(&self.known);
        if known.as_ref().is_none_or(|known| known.state.number() <= state.number()) {
            *known = Some(Known { state: state.clone(), at: Instant::now() });
        }
    }

    /// What keeps from being removed what is opened under it.
    pub(super) fn pin(&self) -> Result<Arc<Reading>> {
        let mut pin = locked(&self.pin);
        if let Some(pin) = &*pin
            && pin.since.elapsed() < PIN
        {
            return Ok(pin.reading.clone());
        }
        let reading = Arc::new(self.repository.read()?);
        locked(&self.readings).push(Arc::downgrade(&reading));
        // What was opened under the last one keeps that.
        self.let_go();
        *pin = Some(Pin { reading: reading.clone(), since: Instant::now() });
        Ok(reading)
    }

    /// Lets go what was kept at hand for a while: what is removed can be cleared away when nobody has it open. Looks after those who write files
    /// together with this mount. To be called now and then.
    pub fn tidy(&self) {
        if let Err(error) = self.come_back() {
            tracing::debug!("other mounts cannot be told of this one: {error}");
        }
        self.give_up_the_dead();
        if !self.is_read_only {
            if let Err(error) = self.gather_left_over() {
                tracing::debug!("small files that were closed before cannot be stored yet: {error}");
            }
            self.complete_what_is_due();
        }
        self.record_damage();
        let mut pin = locked(&self.pin);
        if pin.as_ref().is_some_and(|pin| pin.since.elapsed() > PIN) {
            self.let_go();
            *pin = None;
        }
        drop(pin);
        let old = now() - PIN.as_nanos() as i64;
        self.table().touched.retain(|_, at| *at > old);
    }

    /// Records what readers found damaged, so that nothing new refers to it.
    fn record_damage(&self) {
        let all: Vec<Arc<Reading>> = {
            let mut readings = locked(&self.readings);
            readings.retain(|reading| reading.strong_count() > 0);
            readings.iter().filter_map(Weak::upgrade).collect()
        };
        if !self.is_read_only {
            all.iter().for_each(|reading| self.repository.record_damage(reading));
        }
    }

    /// Forgets what nobody has open.
    pub(super) fn let_go(&self) {
        locked(&self.opened).clear();
        self.ahead.clear();
        locked(&self.steps).clear();
    }

    /// A version of a state, to be read.
    pub(super) fn open_version(&self, state: &State, version: Version) -> Result<Arc<Opened>> {
        let pin = self.pin()?;
        if let Some(opened) = locked(&self.opened).get(&version) {
            return Ok(opened.clone());
        }
        let mut opened = Opened::version(pin.vault.clone(), pin, state, version)?;
        opened.is_doubtful = opened.entry.as_ref().is_some_and(|entry| self.repository.is_doubtful(entry));
        let opened = Arc::new(opened);
        let mut all = locked(&self.opened);
        if all.len() >= OPENED {
            all.clear();
        }
        all.insert(version, opened.clone());
        Ok(opened)
    }
}
