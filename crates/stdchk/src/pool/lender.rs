//! Lending to a pool.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Medium, Member, State};
use stdchk_engine::session::random_u64;
use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};
use stdchk_pool::{Benefactor, Key, Lend, LentDisk, LentMemory, PoolCatalog, Server, Shelf};
use stdchk_store_dir::RealFs;

use super::manager::Watch;
use super::names::{one_address, way_to};
use super::{LOOK_EVERY, lock};
use crate::host;
use crate::metrics::{Metrics, Page};
use crate::tier::DrainThread;

/// How long a benefactor waits for a manager that cannot be reached.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How often benefactors look after each other.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What to lend, and how.
#[derive(Clone, Debug)]
pub struct LenderOptions {
    /// The pool: its managers, or where its names are in etcd.
    pub manager: String,
    /// Bytes of memory; or of a folder.
    pub size: u64,
    /// The folder, where that is what is lent.
    pub disk: Option<PathBuf>,
    /// Where to listen; by default at the address from which the manager is reached.
    pub listen: Option<String>,
    /// What fails together with it; by default this machine.
    pub domain: Option<String>,
    /// Where to answer those who ask for metrics, if anywhere: a host and a port.
    pub metrics: Option<String>,
}

/// Lends, until it is dropped.
pub struct Lender {
    benefactor: Benefactor,
    id: u64,
    address: String,
    metrics: Option<Metrics>,
    _drain: DrainThread,
    _watch: Option<Watch>,
    _lock: Option<File>,
}

impl Lender {
    /// Joins a pool.
    pub fn join(options: &LenderOptions, key: Key) -> Result<Lender> {
        let (manager, embedded) = way_to(&options.manager, &key)?;
        let catalog = Arc::new(PoolCatalog::new(manager.clone()));
        let state = first_state(&*catalog)?;
        let pool = state.pool();
        if pool.class().is_none() {
            return Err(Error::invalid(format!("{} keeps no pool", options.manager)));
        }
        let (shelf, id, lock, medium) = match &options.disk {
            None => {
                let shelf: Arc<dyn Shelf> = Arc::new(LentMemory::new(options.size));
                (shelf, random_u64()?, None, Medium::Memory)
            }
            Some(folder) => {
                std::fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
                let lock = lock(folder)?;
                let id = identity(folder, pool.id())?;
                let fs = Arc::new(RealFs::new(folder));
                let disk = LentDisk::open(fs, &folder.display().to_string(), options.size)?;
                let shelf: Arc<dyn Shelf> = Arc::new(disk);
                (shelf, id, Some(lock), Medium::Disk)
            }
        };
        let listen = match &options.listen {
            Some(listen) => listen.clone(),
            None => format!("{}:0", way_from_here(&options.manager)?),
        };
        let (listener, bound): (TcpListener, SocketAddr) = Server::bind(&listen)?;
        // Others must be able to go there.
        let address = match bound.ip().is_unspecified() {
            true => format!("{}:{}", way_from_here(&options.manager)?, bound.port()),
            false => bound.to_string(),
        };
        let domain = options.domain.clone().unwrap_or_else(|| format!("host={}", host::name()));
        let member = Member { id, address: address.clone(), domain, medium, capacity: options.size };
        let lend = Lend { shelf, member, catalog, manager, key: key.clone() };
        let benefactor = Benefactor::join(lend, listener)?;
        let drain = DrainThread::start(&options.manager, key, id)?;
        let (report, traffic, drained) = (benefactor.reporter(), benefactor.traffic(), drain.tally());
        let page = move || {
            let mut page = Page::default();
            page.benefactor(&report());
            page.drained(&drained);
            page.traffic(&traffic);
            page
        };
        // Where there is no manager, benefactors look after each other.
        let watch = embedded.map(|service| Watch::start(service, WATCH_EVERY, Some(id))).transpose()?;
        let metrics = options.metrics.as_deref().map(|at| Metrics::serve(at, page)).transpose()?;
        Ok(Lender { benefactor, id, address, metrics, _drain: drain, _watch: watch, _lock: lock })
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it answers those who ask for metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// Whether the pool has put it out, and it has given away what it could.
    pub fn is_done(&self) -> bool {
        self.benefactor.is_evicted()
    }

    /// Gives everything away, for so long at most, and ends.
    pub fn leave(self, patience: Duration) -> Result<()> {
        self.benefactor.leave(patience)
    }
}

/// The state of a catalog whose manager may be starting at this moment, as when a job starts all of a pool at once.
fn first_state(catalog: &dyn Catalog) -> Result<Arc<State>> {
    let begun = Instant::now();
    loop {
        match catalog.state() {
            Err(error) if error.kind() == Kind::Io && begun.elapsed() < START_PATIENCE => {
                tracing::info!("waiting for the manager: {error}");
                std::thread::sleep(LOOK_EVERY);
            }
            done => return done,
        }
    }
}

/// The address by which this machine reaches another one.
fn way_from_here(place: &str) -> Result<String> {
    let reach = || format!("cannot reach {place}");
    let local = std::net::TcpStream::connect(one_address(place)?)
        .and_then(|stream| stream.local_addr())
        .context(reach)?;
    Ok(match local.ip() {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    })
}

/// Who a folder is, and whose: kept in it, so that it is the same one again. A folder that holds anything else is refused, and so is
/// one whose packs are another pool's: nobody here would need them.
fn identity(folder: &Path, pool: u64) -> Result<u64> {
    let path = folder.join("benefactor");
    let place = path.display();
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let numbers: Vec<u64> =
                text.split_whitespace().flat_map(|word| u64::from_str_radix(word, 16)).collect();
            match numbers[..] {
                [id, of] if of == pool => Ok(id),
                [_, _] => {
                    let text =
                        format!("{} has packs of another pool; choose another folder", folder.display());
                    Err(Error::new(Kind::Conflict, text))
                }
                _ => Err(Error::corrupt(format!("{place} does not say who this benefactor is"))),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let look = || format!("cannot read {}", folder.display());
            for entry in std::fs::read_dir(folder).context(look)? {
                let name = entry.context(look)?.file_name();
                if name != "lock" && name != "lost+found" {
                    let text = format!(
                        "{} holds {name:?} and was not lent before: choose an empty folder",
                        folder.display()
                    );
                    return Err(Error::invalid(text));
                }
            }
            let id = random_u64()?;
            let write = || format!("cannot write {place}");
            std::fs::write(&path, format!("{id:016x} {pool:016x}\n")).context(write)?;
            Ok(id)
        }
        Err(error) => Err(Error::io(format!("cannot read {place}"), error)),
    }
}
