//! Compressing runs: by what the advisor says, and as differences where that is best.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use stdchk_codec::{Advisor, Choice, Prefer, Preference, Press, delta, try_codings, try_delta};
use stdchk_object::Result;
use stdchk_object::member::Coded;
use stdchk_object::pack::{ChunkKind, Codec, Coding};

use super::account;
use super::assembly::{OpenRun, StoredRun};
use super::base::Base;
use super::meter::Meter;
use crate::options::Options;
use crate::vault::{Scratch, Vault, locked};
use crate::workers::{Answer, Workers};

/// How metadata is compressed: it is small and read often.
const META_CODING: Choice = Choice { coding: Coding::new(Codec::Zstd, 0), level: 3 };

/// What runs are coded with.
#[derive(Clone)]
pub struct Coder {
    pub workers: Arc<Workers>,
    /// Of the member that is being written.
    advisor: Arc<Mutex<Advisor>>,
    pub meter: Arc<Meter>,
    /// Where the bases of deltas are read.
    vault: Option<Arc<Vault>>,
}

impl Coder {
    /// For a save.
    pub fn for_save(workers: Arc<Workers>, vault: Arc<Vault>, options: &Options) -> Coder {
        Coder { vault: Some(vault), ..Coder::new(workers, options.coding, options.restarts) }
    }

    /// For what nobody waits for: as if there were always little to store.
    pub fn at_leisure(workers: Arc<Workers>) -> Coder {
        Coder::new(workers, Preference::Auto(Prefer::default()), 0.0)
    }

    fn new(workers: Arc<Workers>, preference: Preference, restarts: f64) -> Coder {
        let meter = Arc::new(Meter::new(workers.count(), restarts));
        Coder { workers, advisor: Arc::new(Mutex::new(Advisor::new(preference))), meter, vault: None }
    }

    /// Begins with the next member; `before` says how its last version was coded.
    pub fn begin_member(&mut self, preference: Preference, before: Option<&Coded>) {
        let mut advisor = Advisor::new(preference);
        before.into_iter().for_each(|coded| advisor.remember(account::trials(coded)));
        self.advisor = Arc::new(Mutex::new(advisor));
    }

    /// Has a run compressed.
    pub fn ask(&self, run: OpenRun) -> Answer<StoredRun> {
        // Workers must not own themselves, so jobs get everything else.
        let (advisor, meter, vault) = (self.advisor.clone(), self.meter.clone(), self.vault.clone());
        self.workers.ask(move |tools| Job { advisor, meter, vault }.compress(run, &mut tools.press))
    }
}

/// What a thread needs to compress a run.
struct Job {
    advisor: Arc<Mutex<Advisor>>,
    meter: Arc<Meter>,
    vault: Option<Arc<Vault>>,
}

impl Job {
    fn compress(&self, run: OpenRun, press: &mut Press) -> Result<StoredRun> {
        let (choice, old) =
            if run.kind == ChunkKind::Data { self.choose(&run, press)? } else { (META_CODING, None) };
        if choice.coding.is_none() {
            return Ok(run.stored_raw(0.0));
        }
        // Neither waiting nor trying counts.
        let begun = Instant::now();
        let limit = locked(&self.advisor).preference().limit(run.bytes.len());
        let packed = match &old {
            None => press.compress(choice.coding, choice.level, &run.bytes, limit)?,
            Some(old) => {
                let mut differences = Vec::new();
                delta::subtract(choice.coding.width(), &run.bytes, old, &mut differences);
                press.compress(choice.coding, choice.level, &differences, limit)?
            }
        };
        let packed = packed.map(<[u8]>::to_vec);
        let seconds = begun.elapsed().as_secs_f32();
        if run.kind == ChunkKind::Data {
            let cost = f64::from(seconds) / run.bytes.len() as f64;
            locked(&self.advisor).learn(choice, packed.is_some(), cost);
        }
        Ok(match packed {
            Some(packed) => run.stored(choice, seconds, packed),
            None => run.stored_raw(seconds),
        })
    }

    /// How to code a run, and if as a difference, the bytes that it replaces.
    fn choose(&self, run: &OpenRun, press: &mut Press) -> Result<(Choice, Option<Vec<u8>>)> {
        let has_base = self.vault.is_some() && 2 * run.base.bytes() >= run.bytes.len();
        let pace = self.meter.pace();
        let mut advisor = locked(&self.advisor);
        let (advisor, old) = match advisor.wants_trial(self.meter.trials_allowed()) {
            None => (advisor.clone(), None),
            // The first trial is waited for by all; while others are made, the rest goes on with what is known.
            Some(prefer) if advisor.is_new() => {
                let (old, seconds) = self.try_all(&mut advisor, prefer, run, has_base, press)?;
                advisor.spend(seconds);
                (advisor.clone(), old)
            }
            Some(prefer) => {
                let mut own = advisor.clone();
                drop(advisor);
                let (old, seconds) = self.try_all(&mut own, prefer, run, has_base, press)?;
                locked(&self.advisor).take_over(&own, seconds);
                (own, old)
            }
        };
        let choice = advisor.choose(&pace, has_base);
        if !choice.coding.delta {
            return Ok((choice, None));
        }
        // Without its base a run is stored whole.
        let old = old.or_else(|| self.old_bytes(&run.base));
        Ok(if old.is_some() { (choice, old) } else { (advisor.choose(&pace, false), None) })
    }

    /// Tries codings on a run, and differences where these may be wanted; the bytes that it replaces, if they were read, and the
    /// seconds that all that took.
    fn try_all(
        &self,
        advisor: &mut Advisor,
        prefer: Prefer,
        run: &OpenRun,
        has_base: bool,
        press: &mut Press,
    ) -> Result<(Option<Vec<u8>>, f64)> {
        let begun = Instant::now();
        let clock = || begun.elapsed().as_secs_f64();
        advisor.tried(try_codings(prefer, press, &run.bytes, &clock)?);
        let mut old = None;
        if has_base && advisor.may_want_delta(&self.meter.pace()) {
            let before = clock();
            old = self.old_bytes(&run.base);
            let read_cost = (clock() - before) / run.bytes.len() as f64;
            if let Some(old) = &old {
                advisor.tried_delta(try_delta(prefer, press, &run.bytes, old, read_cost, &clock)?);
            }
        }
        Ok((old, clock()))
    }

    fn old_bytes(&self, base: &Base) -> Option<Vec<u8>> {
        let vault = self.vault.as_ref()?;
        let read = vault.base_bytes(base.sized_spans(), &mut Scratch::default());
        read.inspect_err(|error| tracing::debug!("the base of a delta cannot be read: {error}")).ok()
    }
}
