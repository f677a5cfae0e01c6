//! Keeping the names of a pool.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog as _, Class, Op, PoolOp};
use stdchk_catalog_log::LogCatalog;
use stdchk_engine::session::random_u64;
use stdchk_object::Result;
use stdchk_object::error::Context;
use stdchk_pool::{Key, ManagerService, Server};
use stdchk_store_dir::{DirStore, RealFs};

use super::names::Names;
use super::{LOOK_EVERY, lock};
use crate::metrics::{Metrics, Page};

/// By how much a manager may oversleep before it knows that it was held up itself.
const STALL: Duration = Duration::from_secs(1);

/// Where names are kept.
#[derive(Clone, Debug)]
pub enum Catalog {
    /// In a folder, of which this process must be the only user.
    Folder(PathBuf),
    /// In etcd: `etcd://host:port,host:port/prefix`. Any number of managers may serve the same names.
    Etcd(String),
}

/// How to keep the names of a pool.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Where to listen: a host and a port; port 0 is any that is free.
    pub listen: String,
    /// Where the names are kept.
    pub catalog: Catalog,
    /// What the pool promises, where it is not founded yet; one copy of everything, where nothing is said.
    pub class: Option<Class>,
    /// How long nothing may be heard of a benefactor before it counts as lost.
    pub patience: Duration,
    /// Where to answer those who ask for metrics, if anywhere: a host and a port.
    pub metrics: Option<String>,
}

/// Opens the names, and founds the pool where there is none.
fn open(options: &ManagerOptions, key: &Key) -> Result<(Names, Class, Option<File>)> {
    let (names, lock) = match &options.catalog {
        Catalog::Folder(root) => {
            std::fs::create_dir_all(root).context(|| format!("cannot create {}", root.display()))?;
            let lock = lock(root)?;
            let place = root.display().to_string();
            let fs = Arc::new(RealFs::new(root));
            let catalog = LogCatalog::open(fs.clone(), &place)?;
            let objects = DirStore::on(fs, place, format!("manager-{:016x}", random_u64()?));
            objects.prepare()?;
            (Names::here(catalog, Arc::new(objects), options.patience), Some(lock))
        }
        Catalog::Etcd(place) => (Names::in_etcd(place, key, Some(options.patience))?, None),
    };
    let id = random_u64()?;
    let founded = names.catalog.append(true, &mut |state| match state.pool().class() {
        None => Ok(vec![Op::Pool(PoolOp::Found(options.class.unwrap_or_default(), id))]),
        Some(_) => Ok(Vec::new()),
    })?;
    Ok((names, founded.pool().class().unwrap_or_default(), lock))
}

/// Founds a pool whose names nobody has to serve, since everybody finds them in etcd; what it promises, which another one may have
/// said before.
pub fn found(options: &ManagerOptions, key: &Key) -> Result<Class> {
    open(options, key).map(|(_, class, _)| class)
}

/// Looks who was not heard of for too long, until it is dropped.
pub(super) struct Watch {
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks so often; as one of the benefactors, only while nobody who lends comes before it.
    pub fn start(service: Arc<ManagerService>, every: Duration, member: Option<u64>) -> Result<Watch> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = is_ending.clone();
        let watch = move || {
            let mut begun = Instant::now();
            while !ending.load(Ordering::Relaxed) {
                std::thread::sleep(every);
                // Whatever held this up, a disk or a stop signal, may have kept it from hearing anybody.
                if begun.elapsed() > 2 * every + STALL {
                    service.forgive_silence();
                }
                begun = Instant::now();
                match service.evict_silent(member) {
                    Ok(lost) => lost.iter().for_each(|id| tracing::warn!("benefactor {id:016x} is lost")),
                    Err(error) => tracing::warn!("who was lost cannot be noted: {error}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("stdchk-manage".into()).spawn(watch);
        let thread = Some(thread.context(|| "cannot watch the benefactors".to_owned())?);
        Ok(Watch { is_ending, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Keeps the names of a pool, until it is dropped.
pub struct Manager {
    address: SocketAddr,
    class: Class,
    metrics: Option<Metrics>,
    _watch: Watch,
    _server: Server,
    _lock: Option<File>,
}

impl Manager {
    /// Begins, or goes on with the names that are there.
    pub fn start(options: &ManagerOptions, key: Key) -> Result<Manager> {
        let (names, class, lock) = open(options, &key)?;
        let (listener, address) = Server::bind(&options.listen)?;
        let server = Server::serve(listener, key, names.service.clone())?;
        let (traffic, catalog) = (server.traffic(), names.catalog);
        let page = move || {
            let mut page = Page::default();
            if let Ok(state) = catalog.state() {
                page.pool(&state);
            }
            page.traffic(&traffic);
            page
        };
        let metrics = options.metrics.as_deref().map(Metrics::bind).transpose()?;
        let metrics = metrics.map(|listener| Metrics::serve(listener, page)).transpose()?;
        let watch = Watch::start(names.service, LOOK_EVERY.min(options.patience), None)?;
        Ok(Manager { address, class, metrics, _watch: watch, _server: server, _lock: lock })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers those who ask for metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// What the pool promises.
    pub fn class(&self) -> Class {
        self.class
    }
}
