//! What checkpoints ask of the one who keeps the names, in pools of so many members: a real manager and real savers, over TCP. Of the benefactors one is
//! real, and lends so much that it has everything; the others are only known.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk::{AppName, Repository, Result, SaveOptions};
use stdchk_catalog::{Catalog, Class, Medium, Member, Op, PoolOp};
use stdchk_catalog_log::{HeardSigns, LogCatalog};
use stdchk_kit::{Random, SimFs};
use stdchk_pool::{
    Benefactor, Key, Lend, LentMemory, ManagerService, Peer, PoolCatalog, Protection, Server, Traffic,
};
use stdchk_store_dir::DirStore;

/// Checkpoints of each kind of saver, and the bytes of each.
const SAVES: u64 = 32;
const BYTES: usize = 1 << 20;
/// Half of a pool's patience, unless somebody says otherwise: so long a benefactor may not be heard after its sign has ended.
const HALF_PATIENCE: Duration = Duration::from_secs(15);
/// The kinds of questions that do not belong to a checkpoint: a benefactor is alive.
const ALIVE: u8 = 22;
const APPEND: u8 = 17;

/// A manager, the only benefactor that is real, and how a saver gets to them.
struct Pool {
    service: Arc<ManagerService>,
    server: Server,
    key: Key,
    _benefactor: Benefactor,
}

impl Pool {
    fn start(members: u64) -> Result<Pool> {
        let fs = Arc::new(SimFs::new());
        let catalog = Arc::new(LogCatalog::open(fs.clone(), "manager")?);
        let objects = DirStore::on(fs, "manager".into(), "sim".into());
        objects.prepare()?;
        let signs = Box::new(HeardSigns::new(HALF_PATIENCE));
        let service = ManagerService::new(catalog.clone(), Arc::new(objects), signs, HALF_PATIENCE);
        let service = Arc::new(service);
        let append = |ops: Vec<Op>| catalog.append(false, &mut |_| Ok(ops.clone())).map(drop);
        append(vec![Op::Pool(PoolOp::Found(Class::default(), 7))])?;
        append((1..members).map(|id| Op::Pool(PoolOp::Join(only_known(id)))).collect())?;
        let key = Key::random(Protection::Plain)?;
        let (listener, address) = Server::bind("127.0.0.1:0")?;
        let server = Server::serve(listener, key.clone(), service.clone())?;
        let manager = Arc::new(Peer::new(&address.to_string(), key.clone()));
        let benefactor = lend(manager, key.clone())?;
        let epoch = catalog.state()?.pool().epoch();
        append(vec![Op::Pool(PoolOp::Settle(epoch))])?;
        Ok(Pool { service, server, key, _benefactor: benefactor })
    }

    fn open(&self) -> Result<Repository> {
        Repository::open_pool(&format!("pool://{}", self.server.address()), self.key.clone())
    }

    /// Questions about checkpoints so far, those among them that append, and bytes that were answered.
    fn asked(&self) -> [f64; 3] {
        let traffic: Arc<Traffic> = self.server.traffic();
        let of = |wanted: &dyn Fn(u8) -> bool| -> u64 {
            traffic.questions().filter(|(kind, _)| wanted(*kind)).map(|(_, count)| count).sum()
        };
        [of(&|kind| kind != ALIVE), of(&|kind| kind == APPEND), traffic.bytes().1].map(|count| count as f64)
    }
}

/// A benefactor that is nowhere.
fn only_known(id: u64) -> Member {
    let (address, domain) = ("127.0.0.1:1".to_owned(), format!("rack={}", id / 32));
    Member { id, address, domain, medium: Medium::Memory, capacity: 1 << 28 }
}

fn lend(manager: Arc<Peer>, key: Key) -> Result<Benefactor> {
    let cannot = |error| stdchk::Error::io("cannot listen", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?.to_string();
    // Next to this the others own nothing.
    let member =
        Member { id: 1 << 40, address, domain: "here".into(), medium: Medium::Memory, capacity: 1 << 62 };
    let catalog = Arc::new(PoolCatalog::new(manager.clone()));
    let shelf = Arc::new(LentMemory::new(1 << 30));
    Benefactor::join(Lend { shelf, member, catalog, manager, key, move_rate: None }, listener)
}

fn save(repository: &Repository, step: u64) -> Result<()> {
    let mut save = repository.save(&AppName::new("melt")?, step, SaveOptions::default())?;
    save.add_bytes("state", &Random::new(step).bytes(BYTES))?;
    save.commit().map(drop)
}

/// What is asked for each checkpoint that `save` saves, on average, and the milliseconds that it takes.
fn for_each(pool: &Pool, steps: std::ops::Range<u64>, save: impl Fn(u64) -> Result<()>) -> Result<[f64; 4]> {
    let clock = Instant::now();
    let look = || {
        let [asked, appended, bytes] = pool.asked();
        [asked, appended, bytes, clock.elapsed().as_secs_f64() * 1e3]
    };
    let (count, before) = ((steps.end - steps.start) as f64, look());
    steps.into_iter().try_for_each(save)?;
    let after = look();
    Ok(std::array::from_fn(|at| (after[at] - before[at]) / count))
}

/// Saves in pools of so many, and says what that has cost the manager.
pub fn report(counts: &[u64]) -> Result<()> {
    println!(
        "| benefactors | questions for a checkpoint | of these append | ms | by a saver that begins anew | it reads KiB | ms | signs of life a second |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    counts.iter().try_for_each(|&members| report_of(members))
}

fn report_of(members: u64) -> Result<()> {
    let pool = Pool::start(members)?;
    let repository = pool.open()?;
    save(&repository, 0)?;
    let [asked, appended, _, ms] = for_each(&pool, 1..1 + SAVES, |step| save(&repository, step))?;
    let [anew, _, bytes, ms_anew] =
        for_each(&pool, 1 + SAVES..1 + 2 * SAVES, |step| pool.open().and_then(|one| save(&one, step)))?;
    let pause = pool.service.pause(members as usize);
    let signs = members as f64 / pause.as_secs_f64();
    println!(
        "| {members} | {asked:.1} | {appended:.1} | {ms:.1} | {anew:.1} | {:.0} | {ms_anew:.1} | {signs:.0} |",
        bytes / 1024.0
    );
    Ok(())
}
