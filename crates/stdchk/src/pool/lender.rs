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
use stdchk_pool::{Benefactor, Key, Lend, LentDisk, LentMemory, Peer, PoolCatalog, Server, Shelf};
use stdchk_store_dir::RealFs;

use super::manager::Watch;
use super::names::{one_address, way_to};
use super::{LOOK_EVERY, lock};
use crate::host;
use crate::metrics::{Metrics, Page, Reports};
use crate::tier::DrainThread;

/// How long a benefactor waits for a manager that cannot be reached.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// After how long it says that it waits.
const QUIET: Duration = Duration::from_secs(2);
/// The longest domain.
const DOMAIN_BYTES_MAX: usize = 200;
/// How often benefactors look after each other.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What to lend, and how.
#[derive(Clone, Debug)]
pub struct LenderOptions {
    /// The pool: its managers, or where its names are in etcd.
    pub manager: String,
    /// Bytes of memory, if any.
    pub memory: Option<u64>,
    /// A folder and bytes of it, if any.
    pub disk: Option<(PathBuf, u64)>,
    /// Where to listen; by default at the address from which the manager is reached. A folder besides memory has the next port.
    pub listen: Option<String>,
    /// How others reach it, where that is not where it listens: a host and a port. A folder besides memory has the next port.
    pub advertise: Option<String>,
    /// What fails together with it; by default this machine.
    pub domain: Option<String>,
    /// Bytes in a second that are given away at most when members come and go, or one was lost; without it as fast as it goes.
    pub move_rate: Option<u64>,
    /// Where to answer those who ask for metrics, if anywhere: a host and a port.
    pub metrics: Option<String>,
}

/// Memory or a folder that is lent: a benefactor of the pool.
pub struct Lent {
    benefactor: Benefactor,
    id: u64,
    listen: SocketAddr,
    address: String,
    medium: Medium,
    bytes: u64,
    /// Whether the pool was told that the owner of the machine wants it.
    yields: bool,
    _drain: DrainThread,
    _lock: Option<File>,
}

impl Lent {
    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Where others reach it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What is lent.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// How much of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Lends memory, a folder or both, until it is dropped.
pub struct Lender {
    lent: Vec<Lent>,
    metrics: Option<Metrics>,
    _watch: Option<Watch>,
}

impl Lender {
    /// Joins a pool.
    pub fn join(options: &LenderOptions, key: Key) -> Result<Lender> {
        options.domain.as_deref().map(check_domain).transpose()?;
        let (manager, embedded) = way_to(&options.manager, &key)?;
        let catalog = Arc::new(PoolCatalog::new(manager.clone()));
        let state = first_state(&*catalog)?;
        if state.pool().class().is_none() {
            return Err(Error::invalid(format!("{} keeps no pool", options.manager)));
        }
        let way = Way { options, key: &key, manager, catalog };
        let memory = options.memory.map(Held::of_memory).transpose()?;
        let disk = options.disk.as_ref();
        let disk =
            disk.map(|(folder, bytes)| Held::of_disk(folder, *bytes, state.pool().id())).transpose()?;
        // Nobody joins before it is clear that all can.
        let listen = |(at, held)| {
            let advertised =
                options.advertise.as_deref().map(|address| advertised(address, at)).transpose()?;
            Ok((way.listen(at)?, advertised, held))
        };
        let held = memory.into_iter().chain(disk).enumerate().map(listen).collect::<Result<Vec<_>>>()?;
        let metrics = options.metrics.as_deref().map(Metrics::bind).transpose()?;
        let mut joined: Vec<(Lent, Reports)> = Vec::new();
        for (listener, advertised, held) in held {
            match way.join(listener, advertised, held) {
                Ok(one) => joined.push(one),
                Err(error) => {
                    joined.iter().for_each(|(lent, _)| _ = lent.benefactor.step_back());
                    return Err(error);
                }
            }
        }
        let Some((first, _)) = joined.first() else {
            return Err(Error::invalid("there is nothing to lend: neither memory nor a folder"));
        };
        // Where there is no manager, benefactors look after each other.
        let watch = embedded.map(|service| Watch::start(service, WATCH_EVERY, Some(first.id))).transpose()?;
        let (lent, reports): (Vec<Lent>, Vec<Reports>) = joined.into_iter().unzip();
        let page = move || {
            let mut page = Page::default();
            page.benefactors(&reports);
            page
        };
        let metrics = metrics.map(|listener| Metrics::serve(listener, page)).transpose()?;
        Ok(Lender { lent, metrics, _watch: watch })
    }

    /// What is lent.
    pub fn lent(&self) -> &[Lent] {
        &self.lent
    }

    /// Where it answers those who ask for metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// Packs that are still here and that others should have, of those that the pool has put out.
    pub fn packs_to_give(&self) -> u64 {
        self.lent.iter().map(|lent| lent.benefactor.packs_to_give()).sum()
    }

    /// Whether the pool has put all of it out, and it has given away what it could.
    pub fn is_done(&self) -> bool {
        self.lent.iter().all(|lent| lent.benefactor.is_evicted())
    }

    /// Lends nothing for now where the owner of the machine wants it, and gives away what others take; or lends again. Whether that has
    /// changed. Where the names cannot be reached at the moment it has not, and is tried again the next time.
    pub fn yield_to(&mut self, owner: bool) -> bool {
        let mut has_changed = false;
        for Lent { benefactor, yields, .. } in &mut self.lent {
            if *yields == owner || benefactor.is_evicted() {
                continue;
            }
            match if owner { benefactor.step_back() } else { benefactor.come_back() } {
                Ok(()) => (*yields, has_changed) = (owner, true),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        has_changed
    }

    /// Gives everything away, for so long at most, and ends.
    pub fn leave(self, patience: Duration) -> Result<()> {
        // What is told first to go is not given what the other one gives away.
        if self.lent.len() > 1
            && let Err(error) = self.lent.iter().try_for_each(|lent| lent.benefactor.step_back())
        {
            tracing::warn!("{error}");
        }
        let begun = Instant::now();
        let leave = |lent: Lent| lent.benefactor.leave(patience.saturating_sub(begun.elapsed()));
        self.lent.into_iter().map(leave).fold(Ok(()), Result::and)
    }
}

/// What a benefactor holds packs with.
struct Held {
    shelf: Arc<dyn Shelf>,
    id: u64,
    medium: Medium,
    bytes: u64,
    lock: Option<File>,
}

impl Held {
    fn of_memory(bytes: u64) -> Result<Held> {
        let there = memory_of_machine()?;
        if bytes > there {
            let text = format!("{bytes} bytes of memory are more than the {there} that this machine has");
            return Err(Error::invalid(text));
        }
        let shelf = Arc::new(LentMemory::new(bytes));
        Ok(Held { shelf, id: random_u64()?, medium: Medium::Memory, bytes, lock: None })
    }

    fn of_disk(folder: &Path, bytes: u64, pool: u64) -> Result<Held> {
        std::fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
        let room = rustix::fs::statvfs(folder).map_err(std::io::Error::from);
        let room = room.context(|| format!("cannot look at {}", folder.display()))?;
        let there = room.f_blocks.saturating_mul(room.f_frsize);
        if bytes > there {
            let place = folder.display();
            let text = format!("{bytes} bytes are more than the {there} of the file system of {place}");
            return Err(Error::invalid(text));
        }
        let lock = Some(lock(folder)?);
        let id = identity(folder, pool)?;
        let fs = Arc::new(RealFs::new(folder));
        let shelf = Arc::new(LentDisk::open(fs, &folder.display().to_string(), bytes)?);
        Ok(Held { shelf, id, medium: Medium::Disk, bytes, lock })
    }
}

/// The way of a process into a pool.
struct Way<'w> {
    options: &'w LenderOptions,
    key: &'w Key,
    manager: Arc<Peer>,
    catalog: Arc<PoolCatalog>,
}

impl Way<'_> {
    /// Listens for one thing, the first or the next.
    fn listen(&self, at: usize) -> Result<(TcpListener, SocketAddr)> {
        let listen = match &self.options.listen {
            Some(listen) => port_after(listen, at)?,
            None => format!("{}:0", way_from_here(&self.options.manager)?),
        };
        Server::bind(&listen)
    }

    /// Joins with it.
    fn join(
        &self,
        (listener, listen): (TcpListener, SocketAddr),
        advertised: Option<String>,
        held: Held,
    ) -> Result<(Lent, Reports)> {
        let options = self.options;
        // Others must be able to go there.
        let address = match advertised {
            Some(address) => address,
            None if listen.ip().is_unspecified() => {
                format!("{}:{}", way_from_here(&options.manager)?, listen.port())
            }
            None => listen.to_string(),
        };
        let domain = options.domain.clone().unwrap_or_else(|| format!("host={}", host::name()));
        let Held { shelf, id, medium, bytes, lock } = held;
        let member = Member { id, address: address.clone(), domain, medium, capacity: bytes };
        let (catalog, manager) = (self.catalog.clone(), self.manager.clone());
        let lend =
            Lend { shelf, member, catalog, manager, key: self.key.clone(), move_rate: options.move_rate };
        let benefactor = Benefactor::join(lend, listener)?;
        let drain = DrainThread::start(&options.manager, self.key.clone(), id)?;
        let reports = Reports {
            medium,
            report: Box::new(benefactor.reporter()),
            traffic: benefactor.traffic(),
            drained: drain.tally(),
        };
        Ok((
            Lent {
                benefactor,
                id,
                listen,
                address,
                medium,
                bytes,
                yields: false,
                _drain: drain,
                _lock: lock,
            },
            reports,
        ))
    }
}

/// Bytes of memory that there are, all programs together.
fn memory_of_machine() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kilobytes: Option<u64> = line.and_then(|number| number.trim().parse().ok());
    Ok(kilobytes.map_or(u64::MAX, |number| number * 1024))
}

/// A domain is a word that people read.
fn check_domain(word: &str) -> Result<()> {
    let is_plain = !word.trim().is_empty() && word.len() <= DOMAIN_BYTES_MAX;
    if is_plain && !word.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(format!("{word:?} is no domain: write a word such as rack=r7")))
}

/// An address for others with a port so many further.
fn advertised(address: &str, further: usize) -> Result<String> {
    let address = port_after(address, further)?;
    let is_any = address.ends_with(":0") || address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
    if is_any || address.starts_with(':') {
        return Err(Error::invalid(format!(
            "{address} is nowhere that others could go to: advertise HOST:PORT"
        )));
    }
    Ok(address)
}

/// The address with a port so many further, unless that is any port.
fn port_after(listen: &str, further: usize) -> Result<String> {
    let bad = || Error::invalid(format!("{listen:?} is no address: write HOST:PORT"));
    let (host, port) = listen.rsplit_once(':').ok_or_else(bad)?;
    match port.parse::<u16>().map_err(|_| bad())? {
        0 => Ok(listen.to_owned()),
        port => Ok(format!("{host}:{}", port.checked_add(further as u16).ok_or_else(bad)?)),
    }
}

/// The state of a catalog whose manager may be starting at this moment, as when a job starts all of a pool at once.
fn first_state(catalog: &dyn Catalog) -> Result<Arc<State>> {
    let (begun, mut has_said) = (Instant::now(), false);
    loop {
        match catalog.state() {
            Err(error) if error.kind() == Kind::Io && begun.elapsed() < START_PATIENCE => {
                if begun.elapsed() > QUIET && !std::mem::replace(&mut has_said, true) {
                    tracing::warn!("waiting {} s for the manager: {error}", START_PATIENCE.as_secs());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            done => return done,
        }
    }
}

/// The address by which this machine reaches another one.
pub(super) fn way_from_here(place: &str) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_somewhere_is_advertised() {
        assert_eq!(advertised("gate.example:7000", 0).unwrap(), "gate.example:7000");
        assert_eq!(advertised("[2001:db8::7]:7000", 1).unwrap(), "[2001:db8::7]:7001");
        for bad in ["gate.example", "gate.example:0", "0.0.0.0:7000", "[::]:7000", ":7000", "gate.example:x"]
        {
            assert_eq!(advertised(bad, 0).unwrap_err().kind(), Kind::Invalid, "{bad}");
        }
        assert!(advertised("gate.example:65535", 1).is_err());
    }
}
