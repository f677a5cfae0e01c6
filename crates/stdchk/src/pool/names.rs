//! The way to a pool's names: a manager, several of them, or etcd itself.

use std::sync::Arc;
use std::time::Duration;

use stdchk_catalog_etcd::{Etcd, EtcdJournal, EtcdObjects, EtcdSigns, Login, SCHEMES};
use stdchk_catalog_log::{HeardSigns, LogCatalog};
use stdchk_object::{Error, Result};
use stdchk_pool::{Key, ManagerService, Peer, PoolCatalog, Protection};
use stdchk_store::Objects;

use super::SCHEME;

/// For how long a heartbeat of a session is remembered: longer than any lease for which a session may be silent. It goes when the session
/// ends.
const BEATS_LAST: Duration = Duration::from_secs(30 * 24 * 3600);
/// What the key is used for, other than between the processes of a pool.
const ETCD_PURPOSE: &str = "stdchk etcd 1 values";
/// Under which name a pool's patience lies, in milliseconds.
const PATIENCE: &str = "patience";

/// Whether a place is a pool.
pub fn is_pool(place: &str) -> bool {
    place.starts_with(SCHEME) || is_etcd(place)
}

pub(super) fn is_etcd(place: &str) -> bool {
    SCHEMES.iter().any(|scheme| place.starts_with(scheme))
}

/// Host and port of the managers of `pool://host:port,host:port`, for which `tcp://` and nothing may stand, too.
fn addresses_of(place: &str) -> Result<&str> {
    let bare = place.strip_prefix(SCHEME).or_else(|| place.strip_prefix("tcp://")).unwrap_or(place);
    let bare = bare.trim_end_matches('/');
    let is_address = |address: &str| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        })
    };
    if bare.split(',').all(is_address) {
        Ok(bare)
    } else {
        Err(Error::invalid(format!(
            "{place:?} is no address of a pool: write pool://HOST:PORT, or etcd://HOST:PORT,HOST:PORT/PREFIX"
        )))
    }
}

/// Whether a place could be a pool's: `pool://host:port`, or `etcd://host:port,host:port/prefix`.
pub fn check_place(place: &str) -> Result<()> {
    match is_etcd(place) {
        true => etcd_at(place, &Key::random(Protection::Plain)?).map(drop),
        false => addresses_of(place).map(drop),
    }
}

/// One host and port of those at which names are kept.
pub(super) fn one_address(place: &str) -> Result<&str> {
    let hosts = match place.split_once("://").filter(|_| is_etcd(place)) {
        Some((_, rest)) => rest.split('/').next().unwrap_or(rest),
        None => addresses_of(place)?,
    };
    Ok(hosts.split(',').next().unwrap_or(hosts))
}

fn etcd_at(place: &str, key: &Key) -> Result<Arc<Etcd>> {
    Ok(Arc::new(Etcd::open(place, &Login::of_environment()?, &key.derive(ETCD_PURPOSE))?))
}

/// What answers questions about names.
pub(super) struct Names {
    pub catalog: Arc<LogCatalog>,
    pub service: Arc<ManagerService>,
}

impl Names {
    /// Those in etcd, made if they are not there and somebody founds the pool, with that patience.
    pub fn in_etcd(place: &str, key: &Key, founds: Option<Duration>) -> Result<Names> {
        let etcd = etcd_at(place, key)?;
        let journal = EtcdJournal::open(etcd.clone(), founds.is_some())?;
        let objects = EtcdObjects::new(etcd.clone());
        if let Some(patience) = founds {
            objects.replace(PATIENCE, &(patience.as_millis() as u64).to_le_bytes(), true)?;
        }
        let patience = objects.get(PATIENCE)?.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let missing = || Error::corrupt(format!("{place} does not say how long benefactors are waited for"));
        // Half of it is how long a sign lasts, half how long nobody may give another.
        let half = Duration::from_millis(patience.ok_or_else(missing)?) / 2;
        let beats = EtcdSigns::new(etcd.clone(), "beats", BEATS_LAST);
        let catalog = Arc::new(LogCatalog::on(Box::new(journal), Box::new(beats))?);
        let signs = Box::new(EtcdSigns::new(etcd, "alive", half));
        let service = ManagerService::new(catalog.clone(), Arc::new(objects), signs, half);
        Ok(Names { catalog, service: Arc::new(service) })
    }

    /// Those of this process alone.
    pub fn here(catalog: LogCatalog, objects: Arc<dyn Objects>, patience: Duration) -> Names {
        let catalog = Arc::new(catalog);
        let signs = Box::new(HeardSigns::new(patience / 2));
        let service = ManagerService::new(catalog.clone(), objects, signs, patience / 2);
        Names { catalog, service: Arc::new(service) }
    }
}

/// Whoever is asked for the names of a pool: its managers, or this process itself where they are in etcd.
pub(crate) fn way_to_names(place: &str, key: &Key) -> Result<Arc<Peer>> {
    way_to(place, key).map(|(peer, _)| peer)
}

/// The same, and what answers in this process.
pub(super) fn way_to(place: &str, key: &Key) -> Result<(Arc<Peer>, Option<Arc<ManagerService>>)> {
    if !is_etcd(place) {
        return Ok((Arc::new(Peer::new(addresses_of(place)?, key.clone())), None));
    }
    let service = Names::in_etcd(place, key, None)?.service;
    Ok((Arc::new(Peer::here(place, service.clone(), key.clone())), Some(service)))
}

/// The catalog of a pool.
pub(crate) fn catalog_of(place: &str, key: &Key) -> Result<PoolCatalog> {
    Ok(PoolCatalog::new(way_to_names(place, key)?))
}
