//! Looking at a pool, and putting benefactors out of it.

use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Class, Leaver, Medium, Member, Op, PoolOp};
use stdchk_object::{Error, Kind, Result};
use stdchk_pool::{Key, Load, PoolCatalog};

use super::LOOK_EVERY;
use super::lender::way_from_here;
use super::names::{catalog_of, way_to_names};
use crate::tier;

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
    /// Whether it is leaving, or was taken out because nothing was heard of it, or somebody said that it is lost.
    pub is_leaving: bool,
    /// See above.
    pub is_lost: bool,
    /// What it said last, if anything was heard of it.
    pub heard: Option<Heard>,
}

/// What a benefactor said of itself.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Bytes that it holds.
    pub used: u64,
    /// Bytes that it keeps for packs to come.
    pub kept: u64,
    /// Packs that it holds.
    pub packs: u64,
    /// Packs that are to be given to others.
    pub behind: u64,
    /// What it has to do.
    pub load: Load,
    /// How long ago.
    pub age: Duration,
}

/// How a pool is.
pub fn status(place: &str, key: &Key) -> Result<Status> {
    let peer = way_to_names(place, key)?;
    let state = PoolCatalog::new(peer.clone()).state()?;
    let reports = peer.reports()?;
    let pool = state.pool();
    let class = pool.class().ok_or_else(|| Error::invalid(format!("{place} keeps no pool")))?;
    let member = |(member, leaver): (&Member, Option<Leaver>)| MemberStatus {
        id: member.id,
        address: member.address.clone(),
        domain: member.domain.clone(),
        medium: member.medium,
        capacity: member.capacity,
        is_leaving: leaver.is_some(),
        is_lost: leaver.is_some_and(|leaver| !leaver.gives),
        heard: reports.iter().find(|(report, _)| report.member == member.id).map(|(report, age)| Heard {
            used: report.used,
            kept: report.kept,
            packs: report.packs,
            behind: report.behind,
            load: report.load,
            age: *age,
        }),
    };
    let staying = pool.members().values().map(|member| (member, None));
    let members =
        staying.chain(pool.leavers().map(|leaver| (leaver.member, Some(leaver)))).map(member).collect();
    Ok(Status { class, epoch: pool.epoch(), settled: pool.settled(), members, drain: tier::progress(&state) })
}

/// Has a benefactor leave the pool, or without a name all at the address from which this machine reaches it: they give away what they
/// hold, and end. `who` is its identity or its address; the identities.
pub fn leave(place: &str, key: &Key, who: Option<&str>) -> Result<Vec<u64>> {
    if let Some(who) = who {
        return remove(place, key, PoolOp::Leave, false, &|member| is_named(member, who), who);
    }
    let here = way_from_here(place)?;
    let is_here = |member: &Member| member.address.rsplit_once(':').is_some_and(|(host, _)| host == here);
    remove(place, key, PoolOp::Leave, false, &is_here, &format!("at {here}"))
}

/// Takes a dead benefactor out of the pool, for whose silence nobody waits any more. One that lives after all comes back by itself, with
/// what it has.
pub fn evict(place: &str, key: &Key, who: &str) -> Result<Vec<u64>> {
    // Also one that leaves may be dead.
    remove(place, key, PoolOp::Lose, true, &|member| is_named(member, who), who)
}

fn is_named(member: &Member, who: &str) -> bool {
    format!("{:016x}", member.id) == who || member.address == who
}

fn remove(
    place: &str,
    key: &Key,
    how: fn(u64) -> PoolOp,
    leaving_too: bool,
    is_meant: &dyn Fn(&Member) -> bool,
    who: &str,
) -> Result<Vec<u64>> {
    let catalog = catalog_of(place, key)?;
    let mut removed = Vec::new();
    catalog.append(true, &mut |state| {
        let pool = state.pool();
        let leaving = pool.leavers().filter(|leaver| leaving_too && leaver.gives).map(|leaver| leaver.member);
        let found = pool.members().values().chain(leaving).filter(|member| is_meant(member));
        removed = found.map(|member| member.id).collect();
        match removed.is_empty() {
            true => Err(Error::new(Kind::NotFound, format!("the pool has no benefactor {who}"))),
            false => Ok(removed.iter().map(|&id| Op::Pool(how(id))).collect()),
        }
    })?;
    Ok(removed)
}

/// Waits until everything that was put before lies where it belongs, as often as the pool promises.
pub fn wait_settled(place: &str, key: &Key, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    while let Some(why) = unsettled(&status(place, key)?, begun.elapsed()) {
        if begun.elapsed() > patience {
            return Err(Error::new(Kind::Conflict, why));
        }
        std::thread::sleep(LOOK_EVERY / 4);
    }
    Ok(())
}

/// Why something does not lie where it belongs, or why that is not known: what a benefactor said longer ago than `since` does not count.
fn unsettled(status: &Status, since: Duration) -> Option<String> {
    if status.settled != status.epoch {
        let (epoch, settled) = (status.epoch, status.settled);
        return Some(format!("the pool is at epoch {epoch}, and settled at {settled} only"));
    }
    status.members.iter().find_map(|member| match member.heard.filter(|heard| heard.age < since) {
        None => Some(format!("nothing was heard of {} meanwhile", member.address)),
        Some(heard) if heard.behind > 0 => {
            let text = "has packs of which there are fewer copies, or shards, than the pool promises";
            Some(format!("{} {text}", member.address))
        }
        Some(_) => None,
    })
}
