//! The packs of a pool, as a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stdchk_catalog::Catalog;
use stdchk_catalog_log::clock;
use stdchk_erasure::Layout;
use stdchk_object::pack::{PACK_BYTES_MAX, check_whole};
use stdchk_object::{Code, Error, Item, Kind, PackName, Result, SessionId};
use stdchk_store::Store;

use super::View;
use super::ahead::Ahead;
use super::peer::{Answer, Failure, Peer};
use crate::wire::{Key, Question};

/// How often a question is asked again because the pool had changed.
pub(super) const CHANGES_MAX: u32 = 8;
/// How long a pack is looked for while packs move, and the pause between two looks.
pub(super) const MOVING: Duration = Duration::from_secs(3);
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// How long something that was mended is not mended again.
const MENDED: Duration = Duration::from_secs(30);
/// Names that go with one question.
const BATCH: usize = 4096;

/// The memory and disk of a pool's benefactors.
pub struct PoolStore {
    catalog: Arc<dyn Catalog>,
    key: Key,
    view: Mutex<Arc<View>>,
    pub(super) layouts: Mutex<HashMap<PackName, Layout>>,
    /// What was mended, and when.
    mended: Mutex<HashMap<PackName, Instant>>,
    ahead: Ahead,
}

impl PoolStore {
    /// The packs of the pool that `catalog` knows.
    pub fn open(catalog: Arc<dyn Catalog>, key: Key) -> Result<PoolStore> {
        let state = catalog.state()?;
        if state.pool().class().is_none() {
            return Err(Error::new(Kind::NotFound, "there is no pool"));
        }
        let view = Arc::new(View::new(state.pool(), None, &key));
        Ok(PoolStore {
            catalog,
            key,
            view: Mutex::new(view),
            layouts: Mutex::default(),
            mended: Mutex::default(),
            ahead: Ahead::default(),
        })
    }

    fn locked(&self) -> MutexGuard<'_, Arc<View>> {
        self.view.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Who should have a pack first.
    pub fn first_owner(&self, name: PackName) -> Option<u64> {
        self.view().takers(name, |_| true).first().copied()
    }

    /// The member to whom something falls that has a number: the same for all who know the same epoch.
    pub fn member_for(&self, key: u64) -> Option<u64> {
        let view = self.view();
        view.current().owners(key, 1).first().map(|&at| view.current().members[at].id)
    }

    /// What is known of the pool.
    pub fn view(&self) -> Arc<View> {
        self.locked().clone()
    }

    /// Asks the catalog what the pool is like now; whether it has changed.
    pub fn refresh(&self) -> Result<bool> {
        let state = self.catalog.state()?;
        let mut view = self.locked();
        let changed = state.pool().epoch() != view.current().number
            || state.pool().settled() != view.epochs.last().map_or(0, |epoch| epoch.number);
        if changed {
            *view = Arc::new(View::new(state.pool(), Some(&view), &self.key));
        }
        Ok(changed)
    }

    /// Puts a pack to the first that takes it; the others get theirs from there. Those who did not answer a moment ago, or had no room,
    /// are asked only when nobody else takes it.
    fn put_once(&self, view: &View, name: PackName, pieces: &[&[u8]], replaces: bool) -> Put {
        let question =
            Question::Put { epoch: view.current().number, item: name.into(), replaces, is_copy: false };
        let len = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let (mut refusals, mut outcome) = (Vec::new(), None);
        // Those who said no, and those of whom nothing was heard.
        let (mut refused, mut lost, mut slow) = (Vec::new(), Vec::new(), 0);
        for suspects in [false, true] {
            view.takers(name, |id| {
                let peer = view.peer(id);
                let is_doubtful = peer.is_suspected() || peer.is_full();
                if outcome.is_some() || (is_doubtful && !suspects) || refused.contains(&id) {
                    return outcome.is_some();
                }
                // Where several are slow it is not for them that it takes long.
                if suspects || slow > 1 {
                    peer.bear();
                }
                match peer.try_ask(&question, pieces, None) {
                    Ok(_) => outcome = Some(Put::Done),
                    Err(Failure::Stale(_)) => outcome = Some(Put::Stale),
                    Err(Failure::Refused(error)) if error.kind() == Kind::Exists => {
                        // It may be what was sent before, and what was not heard the answer to it.
                        let is_mine = lost.contains(&id) && has_length(peer, name, len);
                        outcome = Some(if is_mine { Put::Done } else { Put::Exists(error) })
                    }
                    Err(failure) => {
                        // Those who could not be reached may be waited for when nobody else is left.
                        match failure {
                            Failure::Lost(_) => lost.push(id),
                            _ => refused.push(id),
                        }
                        slow += usize::from(peer.is_slow());
                        refusals.push(failure.into_error(peer.address()));
                    }
                }
                outcome.is_some()
            });
        }
        outcome.unwrap_or(Put::Refused(refusals))
    }

    fn put_any(&self, name: PackName, pieces: &[&[u8]], replaces: bool) -> Result<()> {
        for _ in 0..CHANGES_MAX {
            let view = self.view();
            match self.put_once(&view, name, pieces, replaces) {
                Put::Done => return Ok(()),
                Put::Exists(error) => return Err(error),
                Put::Stale => _ = self.refresh()?,
                Put::Refused(refusals) => {
                    if !self.refresh()? {
                        return Err(nobody_takes(name, refusals));
                    }
                }
            }
        }
        Err(Error::new(Kind::Conflict, "the pool changes faster than a pack can be placed"))
    }

    /// Asks those who may have a pack until one does. While packs move, one may have been given to somebody just after he was asked, so
    /// that all are asked again.
    fn find<T>(&self, name: PackName, ask: impl Fn(&Peer) -> Asked<T>) -> Result<T> {
        let begun = clock::now();
        loop {
            let view = self.view();
            // Most often one of these has it, and no order of all must be made.
            let likely = view.likely_holders(name).into_iter().map(|id| view.peer(id));
            if let Some(found) = likely.filter(|peer| !peer.is_suspected()).find_map(|peer| ask(peer).ok()) {
                return Ok(found);
            }
            let missing = match ask_holders(&view, name, view.holders(name).collect(), &ask) {
                Ok(found) => return Ok(found),
                Err(missing) => missing,
            };
            let changed = self.refresh().unwrap_or(false);
            let is_moving = self.view().is_moving();
            if changed {
                continue;
            }
            if !is_moving || clock::since(begun) > MOVING {
                return Err(missing);
            }
            clock::sleep(PAUSE);
        }
    }

    /// Those who say that they have a pack, in its order.
    fn holding<'v>(&self, view: &'v View, name: PackName) -> impl Iterator<Item = u64> + 'v {
        let has = move |id: &u64| {
            view.peer(*id).try_ask(&Question::Length { epoch: 0, item: name.into() }, &[], None).is_ok()
        };
        view.holders(name).filter(has)
    }

    /// The code by whose shards the pool keeps packs, if it does.
    fn code(&self) -> Option<Code> {
        self.view().class.code
    }

    pub(super) fn length_in_one(&self, name: PackName) -> Result<u64> {
        self.find(name, |peer| {
            let answer = peer.try_ask(&Question::Length { epoch: 0, item: name.into() }, &[], None)?;
            let bytes = <[u8; 8]>::try_from(&answer.body[..]);
            bytes
                .map(u64::from_le_bytes)
                .map_err(|_| Failure::Lost(Error::corrupt("a length of another length")))
        })
    }

    pub(super) fn read_in_one(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let buffers = std::cell::RefCell::new(buffers);
        self.find(name, |peer| {
            let question = Question::Read { item: name.into(), offset, len };
            peer.try_ask(&question, &[], Some(&mut buffers.borrow_mut())).map(|_: Answer| ())
        })
    }

    pub(super) fn replace_in_one(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        for _ in 0..CHANGES_MAX {
            let view = self.view();
            let holding: Vec<u64> = self.holding(&view, name).collect();
            if holding.is_empty() {
                return self.put_any(name, pieces, true);
            }
            match replace_at(&view, &holding, name, pieces) {
                Ok(()) => return Ok(()),
                Err(Failure::Stale(_)) => _ = self.refresh()?,
                Err(failure) => return Err(failure.into_error("a benefactor")),
            }
        }
        Err(Error::new(Kind::Conflict, "the pool changes faster than a pack can be mended"))
    }

    /// Looks at all copies, removes those that are not whole if any is, and has that one copied.
    fn heal_copies(&self, name: PackName) {
        let view = self.view();
        // They are read: who lies would say that his is whole.
        let is_whole = |id: &u64| {
            let peer = view.peer(*id);
            peer.bear();
            let length = peer.try_ask(&Question::Length { epoch: 0, item: name.into() }, &[], None).ok()?;
            let len = u64::from_le_bytes(length.body.try_into().ok()?);
            let whole =
                peer.try_ask(&Question::Read { item: name.into(), offset: 0, len }, &[], None).ok()?;
            Some(check_whole(name, &whole.bulk).is_ok())
        };
        let looked: Vec<(u64, bool)> =
            view.holders(name).filter_map(|id| Some((id, is_whole(&id)?))).collect();
        let Some(&(good, _)) = looked.iter().find(|(_, is_whole)| *is_whole) else { return };
        let forget = Question::Drop { item: name.into() };
        for (bad, _) in looked.iter().filter(|(_, is_whole)| !is_whole) {
            let _ = view.peer(*bad).try_ask(&forget, &[], None);
        }
        // Whoever has a good one sees to it that there are as many as there should be.
        let secure = Question::Sync { epoch: view.current().number, names: vec![name] };
        if let Err(failure) = view.peer(good).try_ask(&secure, &[], None) {
            tracing::warn!("pack {name}: {}", failure.into_error(view.peer(good).address()));
        }
    }

    /// Asks every member. Who does not answer is passed over: what is there is found another time.
    fn each(&self, mut ask: impl FnMut(&Peer) -> Result<()>) -> Result<()> {
        self.refresh()?;
        for (_, peer) in self.view().members() {
            if let Err(error) = ask(peer) {
                tracing::warn!("a benefactor is passed over: {error}");
            }
        }
        Ok(())
    }
}

/// Asks all who may have a pack; what is wrong where none gives it.
fn ask_holders<T>(
    view: &View,
    name: PackName,
    mut holders: Vec<u64>,
    ask: impl Fn(&Peer) -> Asked<T>,
) -> Result<T> {
    // Those who did not answer a moment ago are asked last.
    holders.sort_by_key(|&id| view.peer(id).is_suspected());
    let (mut failures, mut slow) = (Vec::new(), Vec::new());
    let mut next = holders.into_iter();
    // Those who are slow are asked once more, and waited for, when nobody else has it.
    while let Some(id) = next.next().or_else(|| slow.pop()) {
        let peer = view.peer(id);
        let is_patient = next.len() == 0 && peer.is_slow();
        if is_patient {
            peer.bear();
        }
        match ask(peer) {
            Ok(found) => return Ok(found),
            Err(Failure::Refused(error)) if error.kind() == Kind::NotFound => {}
            Err(_) if peer.is_slow() => slow.push(id),
            Err(failure) => {
                let says_more = matches!(failure, Failure::Refused(_));
                let error = failure.into_error(peer.address());
                // What is wrong with a pack says more than that somebody cannot be reached.
                failures.push((error.kind() == Kind::Corrupt, says_more, error));
            }
        }
    }
    Err(match failures.into_iter().max_by_key(|&(is_corrupt, says_more, _)| (is_corrupt, says_more)) {
        Some((.., error)) => error.within(format!("pack {name}")),
        None => Error::new(Kind::NotFound, format!("pack {name} is nowhere in the pool")),
    })
}

/// Whether what somebody has is what it should be, every byte of it; nothing where he has it not, or does not say.
pub(super) fn is_whole(peer: &Peer, item: Item) -> Option<bool> {
    match peer.try_ask(&Question::Inspect { item }, &[], None) {
        Ok(_) => Some(true),
        Err(Failure::Refused(error)) if error.kind() == Kind::Corrupt => Some(false),
        Err(_) => None,
    }
}

/// Whether somebody has a pack of that length.
fn has_length(peer: &Peer, name: PackName, len: u64) -> bool {
    let question = Question::Length { epoch: 0, item: name.into() };
    peer.try_ask(&question, &[], None).is_ok_and(|answer| answer.body == len.to_le_bytes())
}

/// Puts a pack in the place of those that some have.
fn replace_at(view: &View, holding: &[u64], name: PackName, pieces: &[&[u8]]) -> Asked<()> {
    let epoch = view.current().number;
    for &id in holding {
        let peer = view.peer(id);
        peer.bear();
        peer.try_ask(
            &Question::Put { epoch, item: name.into(), replaces: true, is_copy: false },
            pieces,
            None,
        )?;
        // The answer to this comes when it is synced.
        peer.try_ask(&Question::Length { epoch, item: name.into() }, &[], None)?;
    }
    Ok(())
}

type Asked<T> = std::result::Result<T, Failure>;

/// What became of a pack.
enum Put {
    Done,
    Stale,
    Exists(Error),
    Refused(Vec<Error>),
}

fn nobody_takes(name: PackName, refusals: Vec<Error>) -> Error {
    // Of several reasons it is the one that somebody can do something about.
    let is_full = refusals.iter().any(|error| error.kind() == Kind::Full);
    match refusals.into_iter().next() {
        Some(error) if is_full => full(error.with_kind(Kind::Full)),
        Some(error) => error.within(format!("no benefactor takes pack {name}")).with_kind(Kind::Io),
        None => Error::new(Kind::Io, "the pool has no benefactors: start one with 'stdchk pool join'"),
    }
}

/// What to do where there is no room.
fn full(error: Error) -> Error {
    match error.kind() {
        Kind::Full => error.within(
            "the pool is full: let more join it, or forget checkpoints and collect what they leave ('stdchk gc')",
        ),
        _ => error,
    }
}

impl Store for PoolStore {
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        self.put_any(name, pieces, false)
    }

    fn keeps_room(&self) -> bool {
        true
    }

    fn expect(&self, session: SessionId, writer: u32, packs: &[(PackName, u64)]) {
        self.ahead.keep(&self.view(), (session, writer), packs);
    }

    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        match self.code() {
            None => self.replace_in_one(name, pieces),
            Some(code) => self.replace_shards(name, code, pieces),
        }
    }

    /// Waits until whoever holds a pack has seen to it that it is as safe as the pool promises.
    fn sync(&self, names: &[PackName]) -> Result<()> {
        for &name in names {
            if let Some(code) = self.code() {
                self.sync_shards(name, code).map_err(full)?;
                continue;
            }
            let ask = |peer: &Peer| {
                let epoch = self.view().current().number;
                peer.try_ask(&Question::Sync { epoch, names: vec![name] }, &[], None).map(drop)
            };
            self.find(name, ask).map_err(full)?;
        }
        Ok(())
    }

    fn length(&self, name: PackName) -> Result<u64> {
        match self.code() {
            None => self.length_in_one(name),
            Some(code) => self.length_in_shards(name, code),
        }
    }

    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        match self.code() {
            None => self.read_in_one(name, offset, buffers),
            Some(code) => self.read_shards(name, code, 0, offset, buffers),
        }
    }

    fn near(&self) -> u32 {
        self.view().near()
    }

    fn copies(&self) -> u32 {
        let class = self.view().class;
        class.code.map_or(class.replicas.into(), |code| 2 + u32::from(code.count()))
    }

    fn read_copy(&self, name: PackName, copy: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if let Some(code) = self.code() {
            return self.read_shards(name, code, copy, offset, &mut [buffer]);
        }
        if copy == 0 {
            return self.read(name, offset, buffer);
        }
        let view = self.view();
        let missing = || Error::new(Kind::NotFound, format!("there is no other copy of pack {name}"));
        let holder = self.holding(&view, name).nth(copy as usize).ok_or_else(missing)?;
        let question = Question::Read { item: name.into(), offset, len: buffer.len() as u64 };
        let peer = view.peer(holder);
        peer.bear();
        let asked = peer.try_ask(&question, &[], Some(&mut [buffer]));
        asked.map(drop).map_err(|failure| failure.into_error(peer.address()))
    }

    fn mend(&self, name: PackName) {
        let mut mended = self.mended.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        mended.retain(|_, since| clock::since(*since) < MENDED);
        // Who lies goes on lying, and nobody should work for that without end.
        if mended.insert(name, clock::now()).is_some() {
            return;
        }
        drop(mended);
        if let Err(error) = self.heal(name) {
            tracing::warn!("pack {name} is not healed: {error}");
        }
    }

    fn is_sound(&self, name: PackName) -> Result<bool> {
        self.refresh()?;
        if let Some(code) = self.code() {
            return self.are_shards_there(name, code);
        }
        let view = self.view();
        let wanted = usize::from(view.class.replicas).min(view.current().members.len());
        // No more are asked than are likely to have one, unless there are too few.
        let (likely, mut whole) = (view.likely_holders(name).len(), 0);
        for (at, id) in view.holders(name).enumerate() {
            if at >= likely && whole >= wanted {
                break;
            }
            match is_whole(view.peer(id), name.into()) {
                Some(false) => return Ok(false),
                Some(true) => whole += 1,
                None => {}
            }
        }
        Ok(whole >= wanted)
    }

    fn heal(&self, name: PackName) -> Result<()> {
        self.refresh()?;
        match self.code() {
            None => self.heal_copies(name),
            Some(code) => self.heal_shards(name, code)?,
        }
        Ok(())
    }

    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
        let mut seen = std::collections::BTreeMap::new();
        self.each(|peer| {
            let mut after = None;
            loop {
                let some = peer.ask_for(&Question::List { after }, |r| {
                    (0..r.count(18)?).map(|_| Ok((Item::decode(r)?, r.varint()?))).collect::<Result<Vec<_>>>()
                })?;
                let Some(&(last, _)) = some.last() else { return Ok(()) };
                let ascends =
                    some.is_sorted_by(|one, next| one.0 < next.0) && some.first().map(|one| one.0) > after;
                if !ascends || some.iter().any(|&(_, len)| len > PACK_BYTES_MAX) {
                    return Err(Error::corrupt(format!("{} lists what cannot be", peer.address())));
                }
                after = Some(last);
                seen.extend(some.into_iter().map(|(item, len)| (item.pack, len)));
            }
        })?;
        seen.into_iter().for_each(|(name, len)| each(name, len));
        Ok(())
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        self.refresh()?;
        for batch in names.chunks(BATCH) {
            let question = Question::Remove { names: batch.to_vec() };
            for peer in self.view().everybody() {
                // Who cannot be asked now is told by the next collection that finds these packs with him.
                if let Err(failure) = peer.try_ask(&question, &[], None) {
                    tracing::debug!("packs stay where they are: {}", failure.into_error(peer.address()));
                }
            }
        }
        Ok(())
    }
}
