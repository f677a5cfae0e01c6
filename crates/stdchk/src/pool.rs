//! Pools: keeping the names of one, lending to one, and looking at one. Saving to a pool is [`Repository`](crate::Repository)'s,
//! as to any other place.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Member, Op, PoolOp, State};
use stdchk_catalog_log::LogCatalog;
use stdchk_engine::session::random_u64;
use stdchk_object::error::Context;
use stdchk_object::{Error, Kind, Result};
use stdchk_pool::{Benefactor, Lend, LentDisk, LentMemory, ManagerService, Peer, PoolCatalog, Server, Shelf};
use stdchk_store_dir::{DirStore, RealFs};

pub use stdchk_catalog::{Class, Medium};
pub use stdchk_pool::Key;

use crate::host;
use crate::metrics::{Metrics, Page};
use crate::tier::{self, DrainThread};

/// How a pool's address begins.
pub const SCHEME: &str = "pool://";
/// How long a benefactor waits for a manager that cannot be reached.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// By how much a manager may oversleep before it knows that it was held up itself.
const STALL: Duration = Duration::from_secs(1);
/// How often a manager looks who was not heard of.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The host and port of `pool://host:port` or `tcp://host:port`.
pub fn address_of(url: &str) -> Result<&str> {
    let bare = url.strip_prefix(SCHEME).or_else(|| url.strip_prefix("tcp://")).unwrap_or(url);
    let bare = bare.trim_end_matches('/');
    let is_address = bare
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && !bare.contains('/') && port.parse::<u16>().is_ok());
    if is_address { Ok(bare) } else { Err(Error::invalid(format!("{url:?} is no address: write host:port"))) }
}

/// Writes a new key to a file that must not exist, and that only its owner may read.
pub fn make_key(path: &Path) -> Result<Key> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let cannot = || format!("cannot write a key to {}", path.display());
    let key = Key::random()?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).context(cannot)?;
    file.write_all(format!("{key}\n").as_bytes()).and_then(|()| file.sync_all()).context(cannot)?;
    Ok(key)
}

/// How to keep the names of a pool.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Where to listen: a host and a port; port 0 is any that is free.
    pub listen: String,
    /// Where the names are kept.
    pub state: PathBuf,
    /// What the pool promises, where it is not founded yet.
    pub class: Class,
    /// How long nothing may be heard of a benefactor before it counts as lost.
    pub patience: Duration,
    /// Where to answer those who ask for metrics, if anywhere: a host and a port.
    pub metrics: Option<String>,
}

/// Keeps the names of a pool, until it is dropped.
pub struct Manager {
    address: SocketAddr,
    class: Class,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    metrics: Option<Metrics>,
    _server: Server,
    _lock: File,
}

impl Manager {
    /// Begins, or goes on with the names that are there.
    pub fn start(options: &ManagerOptions, key: Key) -> Result<Manager> {
        let root = &options.state;
        std::fs::create_dir_all(root).context(|| format!("cannot create {}", root.display()))?;
        let lock = lock(root)?;
        let place = root.display().to_string();
        let fs = Arc::new(RealFs::new(root));
        let catalog = Arc::new(LogCatalog::open(fs.clone(), &place)?);
        let objects = DirStore::on(fs, place, format!("manager-{:016x}", random_u64()?));
        objects.prepare()?;
        let id = random_u64()?;
        let founded = catalog.append(true, &mut |state| match state.pool().class() {
            None => Ok(vec![Op::Pool(PoolOp::Found(options.class, id))]),
            Some(_) => Ok(Vec::new()),
        })?;
        let class = founded.pool().class().unwrap_or(options.class);
        let service = Arc::new(ManagerService::new(catalog.clone(), Arc::new(objects), options.patience));
        let (listener, address) = Server::bind(&options.listen)?;
        let server = Server::serve(listener, key, service.clone())?;
        let traffic = server.traffic();
        let page = move || {
            let mut page = Page::default();
            if let Ok(state) = catalog.state() {
                page.pool(&state);
            }
            page.traffic(&traffic);
            page
        };
        let metrics = options.metrics.as_deref().map(|at| Metrics::serve(at, page)).transpose()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ending, look) = (is_ending.clone(), LOOK_EVERY.min(options.patience));
        let watch = move || {
            let mut begun = Instant::now();
            while !ending.load(Ordering::Relaxed) {
                std::thread::sleep(look);
                // Whatever held this up, a disk or a stop signal, may have kept it from hearing anybody.
                if begun.elapsed() > 2 * look + STALL {
                    service.forgive_silence();
                }
                begun = Instant::now();
                match service.evict_silent() {
                    Ok(lost) => lost.iter().for_each(|id| tracing::warn!("benefactor {id:016x} is lost")),
                    Err(error) => tracing::warn!("who was lost cannot be noted: {error}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("stdchk-manage".into()).spawn(watch);
        let thread = Some(thread.context(|| "cannot watch the benefactors".to_owned())?);
        Ok(Manager { address, class, is_ending, thread, metrics, _server: server, _lock: lock })
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

impl Drop for Manager {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes sure that a folder has one user.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).context(|| format!("cannot write {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let text = format!("another process uses {}", folder.display());
            Err(Error::new(Kind::Conflict, text))
        }
        Err(error) => Err(Error::io(format!("cannot lock {}", path.display()), error.into())),
    }
}

/// What to lend, and how.
#[derive(Clone, Debug)]
pub struct LenderOptions {
    /// The manager: a host and a port.
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
    _lock: Option<File>,
}

impl Lender {
    /// Joins a pool.
    pub fn join(options: &LenderOptions, key: Key) -> Result<Lender> {
        let manager = Arc::new(Peer::new(&options.manager, key.clone()));
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
            None => format!("{}:0", way_to(&options.manager)?),
        };
        let (listener, bound): (TcpListener, SocketAddr) = Server::bind(&listen)?;
        // Others must be able to go there.
        let address = match bound.ip().is_unspecified() {
            true => format!("{}:{}", way_to(&options.manager)?, bound.port()),
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
        let metrics = options.metrics.as_deref().map(|at| Metrics::serve(at, page)).transpose()?;
        Ok(Lender { benefactor, id, address, metrics, _drain: drain, _lock: lock })
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
fn way_to(manager: &str) -> Result<String> {
    let reach = || format!("cannot reach {manager}");
    let local =
        std::net::TcpStream::connect(manager).and_then(|stream| stream.local_addr()).context(reach)?;
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

/// How a pool is.
#[derive(Clone, Debug)]
pub struct Status {
    /// What it promises.
    pub class: Class,
    /// The current epoch, and the newest by which everything lies where it belongs.
    pub epoch: u64,
    /// The settled epoch.
    pub settled: u64,
    /// Its members.
    pub members: Vec<MemberStatus>,
    /// Where it is drained to, how many checkpoints have arrived there, and how many there are.
    pub drain: Option<(String, usize, usize)>,
}

/// How a benefactor is.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its identity.
    pub id: u64,
    /// Where it listens.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// What it lends.
    pub medium: Medium,
    /// Bytes that it lends.
    pub capacity: u64,
    /// Whether it is leaving.
    pub is_leaving: bool,
    /// What it said last, if anything was heard of it.
    pub heard: Option<Heard>,
}

/// What a benefactor said of itself.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Bytes that it holds.
    pub used: u64,
    /// Packs that it holds.
    pub packs: u64,
    /// Packs that are to be given to others.
    pub behind: u64,
    /// How long ago.
    pub age: Duration,
}

/// Asks a manager how its pool is.
pub fn status(manager: &str, key: Key) -> Result<Status> {
    let peer = Arc::new(Peer::new(manager, key));
    let state = PoolCatalog::new(peer.clone()).state()?;
    let reports = peer.reports()?;
    let pool = state.pool();
    let class = pool.class().ok_or_else(|| Error::invalid(format!("{manager} keeps no pool")))?;
    let member = |(member, is_leaving): (&Member, bool)| MemberStatus {
        id: member.id,
        address: member.address.clone(),
        domain: member.domain.clone(),
        medium: member.medium,
        capacity: member.capacity,
        is_leaving,
        heard: reports.iter().find(|(report, _)| report.member == member.id).map(|(report, age)| Heard {
            used: report.used,
            packs: report.packs,
            behind: report.behind,
            age: *age,
        }),
    };
    let staying = pool.members().values().map(|member| (member, false));
    let members = staying.chain(pool.leavers().map(|member| (member, true))).map(member).collect();
    Ok(Status { class, epoch: pool.epoch(), settled: pool.settled(), members, drain: tier::progress(&state) })
}

/// Takes a benefactor out of the pool: one that lives gives away what it holds and ends, one that is dead is forgotten. `who` is its
/// identity or its address; the identity.
pub fn remove(manager: &str, key: Key, who: &str) -> Result<u64> {
    let catalog = PoolCatalog::new(Arc::new(Peer::new(manager, key)));
    let mut removed = 0;
    catalog.append(true, &mut |state| {
        let named = |member: &&Member| format!("{:016x}", member.id) == who || member.address == who;
        let found = state.pool().members().values().find(named);
        let missing = || Error::new(Kind::NotFound, format!("the pool has no benefactor {who}"));
        removed = found.ok_or_else(missing)?.id;
        Ok(vec![Op::Pool(PoolOp::Leave(removed))])
    })?;
    Ok(removed)
}

/// Waits until everything lies where it belongs.
pub fn wait_settled(manager: &str, key: Key, patience: Duration) -> Result<()> {
    let catalog = PoolCatalog::new(Arc::new(Peer::new(manager, key)));
    let begun = Instant::now();
    loop {
        let state = catalog.state()?;
        let (epoch, settled) = (state.pool().epoch(), state.pool().settled());
        if settled == epoch {
            return Ok(());
        }
        if begun.elapsed() > patience {
            let text = format!("the pool is at epoch {epoch}, and settled at {settled} only");
            return Err(Error::new(Kind::Conflict, text));
        }
        std::thread::sleep(LOOK_EVERY / 4);
    }
}
