//! Members that lie, are silent, come back with what nobody needs, or are not who they were.

use super::*;

/// A benefactor that from some moment on gives other bytes than it was given, with sums that fit; or takes one pack, and is long silent.
pub struct Liar {
    memory: LentMemory,
    pub lies: AtomicBool,
    stalls: AtomicBool,
}

impl Liar {
    pub fn new(bytes: u64) -> Liar {
        Liar { memory: LentMemory::new(bytes), lies: AtomicBool::new(false), stalls: AtomicBool::new(false) }
    }
}

impl Shelf for Liar {
    fn take(&self, item: Item, len: u64, replaces: bool, source: &mut dyn Source) -> Result<()> {
        let taken = self.memory.take(item, len, replaces, source);
        if self.stalls.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(4));
        }
        taken
    }

    fn give(&self, item: Item, offset: u64, len: u64) -> Result<Box<dyn Bulk>> {
        let mut bytes = self.memory.give(item, offset, len)?.slices().concat();
        let lies = self.lies.load(Ordering::Relaxed);
        bytes.iter_mut().step_by(100).for_each(|byte| *byte ^= u8::from(lies));
        Ok(Box::new(bytes))
    }

    fn length(&self, item: Item) -> Result<u64> {
        self.memory.length(item)
    }

    fn sync(&self, items: &[Item]) -> Result<()> {
        self.memory.sync(items)
    }

    fn list(&self, after: Option<Item>, most: usize) -> Result<Vec<(Item, u64)>> {
        self.memory.list(after, most)
    }

    fn remove(&self, items: &[Item]) -> Result<()> {
        self.memory.remove(items)
    }

    fn check_room(&self, item: Item, len: u64) -> Result<()> {
        self.memory.check_room(item, len)
    }

    fn keep_room(&self, writer: stdchk_pool::WriterId, wish: stdchk_pool::Wish) -> u64 {
        self.memory.keep_room(writer, wish)
    }

    fn usage(&self) -> Usage {
        self.memory.usage()
    }
}

/// Others refuse what was removed, and nobody waits for that.
#[test]
fn who_comes_back_with_what_was_removed_holds_nobody_up() {
    for pool in [Pool::found(2), Pool::in_shards("2+1")] {
        let shelf = Arc::new(LentMemory::new(256 << 20));
        let first = pool.join(1, shelf.clone(), "host1");
        let _others: Vec<Benefactor> = (2..5)
            .map(|id| pool.join(id, Arc::new(LentMemory::new(256 << 20)), &format!("host{id}")))
            .collect();
        let (store, packs) = (pool.store(), packs(20));
        let names: Vec<PackName> = packs.iter().map(|(name, _)| *name).collect();
        packs.iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
        store.sync(&names).unwrap();
        pool.wait_settled();
        drop(first);
        pool.wait_lost(1);
        pool.wait_settled();
        store.remove(&names).unwrap();
        let held = shelf.usage().packs;
        let first = pool.join(1, shelf, "host1");
        pool.wait_settled();
        assert!(held > 0 && first.report().packs > 0, "it still has what was removed: {held}");
        // The next collection finds it.
        store.remove(&names).unwrap();
        assert_eq!(first.report().packs, 0);
    }
}

/// Nobody else takes the pack, so it is put again where it was put before; and is there.
#[test]
fn an_answer_that_was_not_waited_for_is_no_refusal() {
    let pool = Pool::found(1);
    let shelf = Arc::new(Liar::new(256 << 20));
    let _lender = pool.join(1, shelf.clone(), "host1");
    let (store, mut random) = (pool.store(), Random::new(9));
    let packs: Vec<(PackName, Vec<u8>)> =
        (0..5).map(|number| (name(number), pack(name(number), &random.bytes(1 << 20)))).collect();
    // From these it is known how fast it is.
    packs[..4].iter().for_each(|(name, bytes)| store.put(*name, &[bytes]).unwrap());
    shelf.stalls.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    store.put(packs[4].0, &[&packs[4].1]).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "it was waited for");
    check_all(&store, &packs);
    assert_eq!(store.put(packs[4].0, &[&packs[4].1]).unwrap_err().kind(), Kind::Exists);
}

#[test]
fn one_who_lies_is_found_out_and_another_one_is_believed() {
    let pool = Pool::found(2);
    let _honest = pool.lenders(2);
    let repository = Repository::open_pool(&format!("pool://{}", pool.address), pool.key.clone()).unwrap();
    let image = Random::new(4).bytes(30 << 20);
    let save = |step: u64, coding: Option<Preference>| {
        let options = SaveOptions { coding, memory: 64 << 20, ..SaveOptions::default() };
        let mut save = repository.save(&AppName::new("melt").unwrap(), step, options).unwrap();
        save.add_bytes("state", &image[step as usize..]).unwrap();
        save.commit().unwrap();
    };
    let read = |step: u64| -> Result<Vec<u8>> {
        let reading = repository.read()?;
        let entry = Spec::parse(&format!("melt@{step}"))?.find(&reading.state)?[0].clone();
        let checkpoint = repository.checkpoint(&reading, &entry)?;
        let mut bytes = Vec::new();
        checkpoint.write_to(checkpoint.member("state", None)?, &mut bytes, &|_| {})?;
        Ok(bytes)
    };
    save(1, None);
    save(2, Some(Preference::Fixed(Coding::new(Codec::Zstd, 0), 1)));
    let shelf = Arc::new(Liar::new(256 << 20));
    let liar = pool.join(9, shelf.clone(), "liar");
    pool.wait_settled();
    shelf.lies.store(true, Ordering::Relaxed);
    assert!(liar.report().packs > 0);
    for step in [1, 2, 1] {
        assert!(read(step).unwrap() == image[step as usize..]);
    }
    let reading = repository.read().unwrap();
    let state = reading.state.clone();
    assert!(state.damaged().is_empty(), "what another one has whole is not damaged");
    let report = repository.verify(&reading, None, &|_, _| {}).unwrap();
    assert!(report.checkpoints.iter().all(|one| one.health.is_whole()) && report.damage.is_empty());
    assert!(!report.thin.is_empty(), "of what nobody has read yet it is found that a copy is wrong");
}

/// An address at which another one listens by now is nobody's.
#[test]
fn a_member_is_who_it_says() {
    let pool = Pool::found(2);
    let first = pool.join(1, Arc::new(LentMemory::new(64 << 20)), "a");
    // Somebody claims to be a second one at the very same place.
    let state = pool.catalog().state().unwrap();
    let twin = Member { id: 2, domain: "b".into(), ..state.pool().members()[&1].clone() };
    pool.catalog().append(true, &mut |_| Ok(vec![Op::Pool(PoolOp::Join(twin.clone()))])).unwrap();
    let store = pool.store();
    store.put(name(1), &[&pack(name(1), b"bytes")]).unwrap();
    assert!(store.sync(&[name(1)]).unwrap_err().to_string().contains("1 of 2 copies"));
    assert_eq!(first.report().packs, 1);
}
