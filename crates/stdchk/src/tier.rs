//! Safe storage behind a pool: a repository that follows the pool's, in a directory or a bucket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Decide, DrainOp, Op, State};
use stdchk_object::error::Context;
use stdchk_object::{CheckpointId, Error, Kind, Result, SessionId};
use stdchk_pool::Key;
use stdchk_upkeep::{Drainer, Share, Target};

use crate::pool::catalog_of;
use crate::repository::Repository;

/// How often a benefactor looks whether there is something to drain, and how long it rests after something went wrong.
const EVERY: Duration = Duration::from_secs(1);
/// How much later for each benefactor, where there are many; but no later than that.
const EVERY_EACH: Duration = Duration::from_micros(500);
const EVERY_MAX: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(10);
/// Memory for what a drainer reads of manifests.
const MEMORY: usize = 64 << 20;

/// The catalog of a repository that follows another one: it can be read.
pub(crate) struct Follower {
    catalog: Arc<dyn Catalog>,
    place: String,
}

impl Follower {
    pub(crate) fn of(catalog: Arc<dyn Catalog>, place: String) -> Follower {
        Follower { catalog, place }
    }

    fn refusal(&self) -> Error {
        let text = format!(
            "{} is where a pool is drained to, and can only be read; if the pool is gone, 'stdchk pool tier --release' makes it a repository of its own",
            self.place
        );
        Error::new(Kind::Denied, text)
    }
}

impl Catalog for Follower {
    fn state(&self) -> Result<Arc<State>> {
        self.catalog.state()
    }

    fn append(&self, _durable: bool, decide: &mut Decide) -> Result<Arc<State>> {
        let state = self.catalog.state()?;
        if decide(&state)?.is_empty() { Ok(state) } else { Err(self.refusal()) }
    }

    fn beat(&self, _session: SessionId) -> Result<()> {
        Err(self.refusal())
    }

    fn beat_ages(&self) -> Result<BTreeMap<SessionId, Duration>> {
        Ok(BTreeMap::new())
    }

    fn verify(&self) -> Result<Vec<String>> {
        self.catalog.verify()
    }

    fn forget_beats(&self, _sessions: &[SessionId]) -> Result<()> {
        Ok(())
    }
}

/// Has a pool drained to a directory or `s3://bucket/prefix`, which must be empty, or be this pool's already. The place as everybody
/// knows it: the path of a directory from the root.
pub fn drain(pool: &str, key: &Key, place: &str) -> Result<String> {
    let catalog = catalog_of(pool, key)?;
    let pool = catalog.state()?.pool().id();
    // Benefactors have other working directories.
    let place = match place.contains("://") {
        true => place.to_owned(),
        false => {
            let path = std::path::absolute(place).context(|| format!("cannot use {place}"))?;
            path.to_string_lossy().into_owned()
        }
    };
    let target = Repository::tier(&place, true)?;
    let followed = target.catalog.state()?.drain().source();
    if followed.is_some_and(|(source, _)| source != pool) {
        return Err(Error::new(Kind::Conflict, format!("another pool is drained to {place}")));
    }
    catalog.append(true, &mut |_| Ok(vec![Op::Drain(DrainOp::To(place.clone()))]))?;
    Ok(place)
}

/// Has a pool drained no more. What has arrived stays where it is.
pub fn stop(pool: &str, key: &Key) -> Result<()> {
    catalog_of(pool, key)?.append(true, &mut |_| Ok(vec![Op::Drain(DrainOp::Stop)])).map(drop)
}

/// Makes what a pool was drained to a repository of its own, when the pool is gone.
pub fn release(place: &str) -> Result<()> {
    Repository::release(place)
}

/// Where a pool is drained to, and how many of its checkpoints have arrived.
pub fn progress(state: &State) -> Option<(String, usize, usize)> {
    let drain = state.drain();
    let arrived = state.checkpoints().filter(|entry| drain.is_drained(entry)).count();
    Some((drain.to()?.to_owned(), arrived, state.checkpoints().count()))
}

/// What a benefactor has copied: packs and bytes.
#[derive(Default)]
pub(crate) struct DrainTally(AtomicU64, AtomicU64);

impl DrainTally {
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
    }
}

/// Does a benefactor's share of the draining, until it is dropped.
pub(crate) struct DrainThread {
    is_ending: Arc<AtomicBool>,
    tally: Arc<DrainTally>,
    thread: Option<JoinHandle<()>>,
}

impl DrainThread {
    pub(crate) fn tally(&self) -> Arc<DrainTally> {
        self.tally.clone()
    }

    pub(crate) fn start(place: &str, key: Key, id: u64) -> Result<DrainThread> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(DrainTally::default());
        let (url, ending, counts) = (place.to_owned(), is_ending.clone(), tally.clone());
        let work = move || {
            while !ending.load(Ordering::Relaxed) {
                let worked = Repository::open_pool(&url, key.clone())
                    .and_then(|repository| drain_pool(&repository, id, &ending, &counts));
                if let Err(error) = worked {
                    tracing::warn!("nothing is drained at the moment: {error}");
                    sleep(REST, &ending);
                }
            }
        };
        let thread = std::thread::Builder::new().name("stdchk-drain".into()).spawn(work);
        let thread = Some(thread.context(|| "cannot drain".to_owned())?);
        Ok(DrainThread { is_ending, tally, thread })
    }
}

impl Drop for DrainThread {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sleep(time: Duration, is_ending: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < time && !is_ending.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Drains as one of the benefactors: packs of which it is the first owner, and checkpoints that fall to it.
fn drain_pool(repository: &Repository, id: u64, is_ending: &AtomicBool, tally: &DrainTally) -> Result<()> {
    let Some(packs) = repository.pool_store() else { return Ok(()) };
    let mut ground = repository.ground();
    ground.memory = MEMORY;
    let mut drainer: Option<(u64, Drainer)> = None;
    while !is_ending.load(Ordering::Relaxed) {
        let state = ground.catalog.state()?;
        let since = state.drain().since();
        match (state.drain().to(), &mut drainer) {
            (None, drainer) => *drainer = None,
            (Some(_), Some((known, drainer))) if *known == since => {
                packs.refresh()?;
                let share = Share {
                    copies: &|name| packs.first_owner(name) == Some(id),
                    leads: &|checkpoint| packs.member_for(key_of(checkpoint)) == Some(id),
                    tidies: packs.member_for(0) == Some(id),
                };
                let done = drainer.round(&ground, &share, is_ending)?;
                tally.0.fetch_add(done.packs, Ordering::Relaxed);
                tally.1.fetch_add(done.bytes, Ordering::Relaxed);
                if done.failed > 0 {
                    sleep(REST, is_ending);
                }
            }
            (Some(place), drainer) => {
                *drainer = Some((since, Drainer::new(open(place)?, since)));
                continue;
            }
        }
        let members = u32::try_from(state.pool().members().len()).unwrap_or(u32::MAX);
        sleep((EVERY_EACH * members).clamp(EVERY, EVERY_MAX), is_ending);
    }
    Ok(())
}

/// The place to which a pool is drained, which was made before.
pub(crate) fn open(place: &str) -> Result<Target> {
    Repository::tier(place, false)
}

/// The number by which a checkpoint falls to somebody.
fn key_of(id: &CheckpointId) -> u64 {
    use std::hash::{Hash, Hasher};
    // Only that it is the same for all who run the same program matters; where it is not, nobody may lead for a while, or more than one.
    let mut hasher = std::hash::DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
