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
        let limit = Advisor::limit(run.bytes.len());
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
        let mut advisor = locked(&self.advisor);
        let pace = self.meter.pace();
        let mut old = None;
        if let Some(prefer) = advisor.wants_trial(self.meter.trials_allowed()) {
            // The first trial is waited for by all; while others are made, the rest goes on with what is known.
            let is_first = advisor.is_new();
            let begun = Instant::now();
            let clock = || begun.elapsed().as_secs_f64();
            let mut waiting = is_first.then_some(advisor);
            let trials = try_codings(prefer, press, &run.bytes, &clock)?;
            advisor = waiting.take().unwrap_or_else(|| locked(&self.advisor));
            advisor.tried(trials);
            if has_base && advisor.may_want_delta(&pace) {
                waiting = is_first.then_some(advisor);
                let before = clock();
                old = self.old_bytes(&run.base);
                let read_cost = (clock() - before) / run.bytes.len() as f64;
                let trials = match &old {
                    Some(old) => try_delta(prefer, press, &run.bytes, old, read_cost, &clock)?,
                    None => Vec::new(),
                };
                advisor = waiting.unwrap_or_else(|| locked(&self.advisor));
                advisor.tried_delta(trials);
            }
            advisor.spend(clock());
        }
        let choice = advisor.choose(&pace, has_base);
        if !choice.coding.delta {
            return Ok((choice, None));
        }
        let plain = advisor.choose(&pace, false);
        drop(advisor);
        // Without its base a run is stored whole.
        let old = old.or_else(|| self.old_bytes(&run.base));
        Ok(if old.is_some() { (choice, old) } else { (plain, None) })
    }

    fn old_bytes(&self, base: &Base) -> Option<Vec<u8>> {
        let vault = self.vault.as_ref()?;
        let read = vault.base_bytes(base.sized_spans(), &mut Scratch::default());
        read.inspect_err(|error| tracing::debug!("the base of a delta cannot be read: {error}")).ok()
    }
}
