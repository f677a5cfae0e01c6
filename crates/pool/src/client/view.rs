//! The epochs of a pool as placement has them, and the way to each member.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use stdchk_catalog::{Class, Member, Pool};
use stdchk_object::PackName;
use stdchk_placement::{Benefactor, Epoch, Key as Place, home_of, weight_of};

use super::Peer;
use super::host;
use super::pace::Pace;
use crate::wire::Key;

/// How far down its order a shard is looked for.
const OVERFLOW: usize = 8;

/// How many keep the fingerprint index: all of them are asked what there is. The key by which they are chosen is any that is the same for all.
const INDEX_HOSTS: usize = 8;
const INDEX_KEY: u64 = 0x1d8a_f066_5b6c_39f1;

/// What a process knows of a pool at some moment.
pub struct View {
    /// What the pool promises.
    pub class: Class,
    /// The current epoch first, the settled one last.
    pub epochs: Vec<Epoch>,
    /// In order, so that everybody who knows the same asks in the same one.
    peers: BTreeMap<u64, Arc<Peer>>,
    /// Those who have gone, and give nothing away any more.
    given_up: HashSet<u64>,
    pace: Arc<Pace>,
    /// Those who keep the fingerprint index, once somebody has asked.
    index: OnceLock<Epoch>,
}

/// Where in a pack's number the member stands that is preferred for it; what is below counts the writer's packs.
const HOME_SHIFT: u32 = 16;

/// The key by which the shards of a pack are placed.
fn draw_of(name: PackName) -> u64 {
    name.session.0
        ^ (u64::from(name.writer) << 32 | u64::from(name.number)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The same for whole packs, with whom the name prefers.
fn key_of(name: PackName) -> Place {
    Place { draw: draw_of(name), home: home_in(name) }
}

/// The key by which a writer's stripe is chosen.
fn writer_of(name: PackName) -> Place {
    Place { draw: name.session.0 ^ u64::from(name.writer), home: home_in(name) }
}

fn home_in(name: PackName) -> u16 {
    (name.number >> HOME_SHIFT) as u16
}

/// The number of a domain: the same word is the same number for everybody.
fn domain_of(word: &str) -> u32 {
    let hash = blake3::hash(word.as_bytes());
    u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("4 of 32 bytes"))
}

impl View {
    /// A pool as the catalog has it. Connections to members that are known stay.
    pub fn new(pool: &Pool, before: Option<&View>, key: &Key) -> View {
        let pace = before.map(|view| view.pace.clone()).unwrap_or_default();
        let new = |member: &Member| {
            Arc::new(Peer::of_member(member.id, &member.address, key.clone(), pace.clone()))
        };
        let mut peers = BTreeMap::new();
        let mut epochs = Vec::new();
        for (number, members) in pool.epochs() {
            for member in &members {
                let known = before.and_then(|view| view.peers.get(&member.id));
                let known = known.filter(|peer| peer.address() == member.address);
                let peer = || known.cloned().unwrap_or_else(|| new(member));
                peers.entry(member.id).or_insert_with(peer);
            }
            epochs.push(Epoch { number, members: members.iter().map(benefactor).collect() });
        }
        let given_up = pool.leavers().filter(|leaver| !leaver.gives).map(|leaver| leaver.member.id).collect();
        View {
            class: pool.class().unwrap_or_default(),
            epochs,
            peers,
            given_up,
            pace,
            index: OnceLock::new(),
        }
    }

    /// Whether somebody has gone, and is not expected to give away anything: what he still has, if he answers at all, is forgotten with him as soon as the
    /// current epoch is settled.
    pub fn is_given_up(&self, id: u64) -> bool {
        self.given_up.contains(&id)
    }

    /// The current epoch.
    pub fn current(&self) -> &Epoch {
        &self.epochs[0]
    }

    /// Whether something may be given from one to another at this moment: what is not found may be found just after. Those who do not
    /// answer give nothing.
    pub fn is_moving(&self) -> bool {
        self.epochs.len() > 1 && self.peers.values().any(|peer| !peer.is_suspected())
    }

    /// The way to a member of any epoch.
    pub fn peer(&self, id: u64) -> &Arc<Peer> {
        &self.peers[&id]
    }

    /// Whether there is one by that number in any epoch.
    pub fn knows(&self, id: u64) -> bool {
        self.peers.contains_key(&id)
    }

    /// Members of any epoch.
    pub fn everybody(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.peers.values()
    }

    /// Members of the current epoch.
    pub fn members(&self) -> impl Iterator<Item = (u64, &Arc<Peer>)> {
        self.current().members.iter().map(|member| (member.id, self.peer(member.id)))
    }

    /// Those who keep the fingerprint index, a few of all, in the order in which an object of that name is theirs.
    pub fn index_hosts(&self, name: &str) -> Vec<(u64, Arc<Peer>)> {
        let hash = blake3::hash(name.as_bytes());
        let key = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("8 of 32 bytes"));
        let few = self.index.get_or_init(|| self.current().stripe(INDEX_KEY, INDEX_HOSTS));
        few.order(key).map(|at| few.members[at].id).map(|id| (id, self.peer(id).clone())).collect()
    }

    /// The number of the first pack that lies with a member of this machine, of several the one who lends most; 0 where there is none.
    pub fn near(&self) -> u32 {
        let is_near = |member: &&Benefactor| host::is_here(self.peer(member.id).address());
        let near = self.current().members.iter().filter(is_near).max_by_key(|member| member.weight);
        near.map_or(0, |member| u32::from(home_of(member.id)) << HOME_SHIFT)
    }

    /// Those among whom an epoch places a pack.
    fn stripe<'e>(&self, epoch: &'e Epoch, name: PackName) -> Cow<'e, Epoch> {
        match usize::from(self.class.stripe) {
            0 => Cow::Borrowed(epoch),
            width => Cow::Owned(epoch.stripe(writer_of(name), width)),
        }
    }

    /// As many members as a pack has copies, or as there are, of those that take it; `takes` is asked in the order of the pack. When a
    /// stripe is full it widens: then all others are asked, too.
    pub fn takers(&self, name: PackName, mut takes: impl FnMut(u64) -> bool) -> Vec<u64> {
        let copies = usize::from(self.class.replicas);
        let stripe = self.stripe(self.current(), name);
        let id = |epoch: &Epoch, at: usize| epoch.members[at].id;
        let owners = stripe.takers(key_of(name), copies, |at| takes(id(&stripe, at)));
        let mut owners: Vec<u64> = owners.into_iter().map(|at| id(&stripe, at)).collect();
        if owners.len() < copies && stripe.members.len() < self.current().members.len() {
            let asked: Vec<u64> = stripe.members.iter().map(|member| member.id).collect();
            let all = self.current();
            let more = all.takers(key_of(name), copies - owners.len(), |at| {
                !asked.contains(&id(all, at)) && takes(id(all, at))
            });
            owners.extend(more.into_iter().map(|at| id(all, at)));
        }
        owners
    }

    /// A member for each of `count` shards of a pack, of those that take them; `takes` is asked in the order of each shard. Where nobody of a stripe
    /// takes one, all others are asked, too.
    pub fn shard_takers(
        &self,
        name: PackName,
        count: u8,
        mut takes: impl FnMut(u8, u64) -> bool,
    ) -> Vec<Option<u64>> {
        let all = self.current();
        let stripe = self.stripe(all, name);
        let id = |epoch: &Epoch, at: usize| epoch.members[at].id;
        let owners = stripe.shard_takers(draw_of(name), count, |shard, at| takes(shard, id(&stripe, at)));
        let mut owners: Vec<Option<u64>> = owners.into_iter().map(|at| Some(id(&stripe, at?))).collect();
        if stripe.members.len() < all.members.len() && owners.contains(&None) {
            let asked: Vec<u64> = stripe.members.iter().map(|member| member.id).collect();
            let missing: Vec<bool> = owners.iter().map(Option::is_none).collect();
            let more = all.shard_takers(draw_of(name), count, |shard, at| {
                // Those that have one keep it.
                !missing[usize::from(shard)] || (!asked.contains(&id(all, at)) && takes(shard, id(all, at)))
            });
            let more = more.into_iter().map(|at| Some(id(all, at?)));
            owners
                .iter_mut()
                .zip(more)
                .filter(|(owner, _)| owner.is_none())
                .for_each(|(owner, at)| *owner = at);
        }
        owners
    }

    /// Who has a shard where nobody refuses it.
    pub fn shard_owners(&self, name: PackName, count: u8) -> Vec<Option<u64>> {
        self.shard_takers(name, count, |_, _| true)
    }

    /// Who has each shard of a pack where nobody refuses it, by each epoch, the current one first.
    pub fn shard_owners_ever(&self, name: PackName, count: u8) -> Vec<Vec<Option<u64>>> {
        let owners = |epoch: &Epoch| {
            let stripe = self.stripe(epoch, name);
            let owners = stripe.shard_takers(draw_of(name), count, |_, _| true);
            owners.into_iter().map(|at| Some(stripe.members[at?].id)).collect()
        };
        self.epochs.iter().map(owners).collect()
    }

    /// Where a shard may be that was refused: those who come next for it, a few or all.
    pub fn shard_overflow(&self, name: PackName, index: u8, all: bool) -> impl Iterator<Item = u64> {
        let most = if all { usize::MAX } else { OVERFLOW };
        self.epochs.iter().flat_map(move |epoch| {
            let stripe = self.stripe(epoch, name);
            let next = stripe.shard_order(draw_of(name), index).take(most);
            let wider = epoch.shard_order(draw_of(name), index).take(most);
            let next = next.map(|at| stripe.members[at].id).chain(wider.map(|at| epoch.members[at].id));
            next.collect::<Vec<_>>()
        })
    }

    /// Where a pack is unless owners refused it: with those of the current epoch, or of an older one.
    pub fn likely_holders(&self, name: PackName) -> Vec<u64> {
        let mut likely = Vec::new();
        for epoch in &self.epochs {
            let stripe = self.stripe(epoch, name);
            for at in stripe.owners(key_of(name), self.class.replicas.into()) {
                let id = stripe.members[at].id;
                if !likely.contains(&id) {
                    likely.push(id);
                }
            }
        }
        likely
    }

    /// Where a pack may be, the likeliest first: then all others, in the order of the current epoch and of older ones. That order is made only for whoever
    /// goes on that far.
    pub fn holders(&self, name: PackName) -> impl Iterator<Item = u64> + use<'_> {
        let likely = self.likely_holders(name);
        let mut seen: HashSet<u64> = likely.iter().copied().collect();
        let all = self.epochs.iter().flat_map(move |epoch| {
            let stripe = (self.class.stripe > 0).then(|| self.stripe(epoch, name).into_owned());
            let within = stripe
                .into_iter()
                .flat_map(move |stripe| stripe.order(key_of(name)).map(move |at| stripe.members[at].id));
            within.chain(epoch.order(key_of(name)).map(|at| epoch.members[at].id))
        });
        likely.into_iter().chain(all.filter(move |id| seen.insert(*id)))
    }
}

fn benefactor(member: &Member) -> Benefactor {
    Benefactor { id: member.id, weight: weight_of(member.capacity), domain: domain_of(&member.domain) }
}
