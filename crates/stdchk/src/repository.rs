//! Opening a repository: where its packs and its catalog are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, DrainOp, Durability, Op, Owner, Policy, Restart, SessionKind, State};
use stdchk_catalog_objects::ObjectCatalog;
use stdchk_engine::session::random_u64;
use stdchk_engine::{Session, TagCache, Vault, Workers};
use stdchk_object::envelope::{Sort, open as open_envelope, seal};
use stdchk_object::error::Context;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{AppName, CheckpointId, Code, Error, Kind, Result};
use stdchk_pool::{Key, Peer, PoolCatalog, PoolObjects, PoolStore};
use stdchk_store::{Objects, Store};
use stdchk_store_dir::fs::Fs;
use stdchk_store_dir::{DirStore, RealFs};
use stdchk_store_s3::S3Store;
use stdchk_upkeep::{Ground, Target, Tiered};

use crate::tier::{self, Follower};
use crate::{host, pool};

/// How the address of a bucket begins.
const BUCKET_SCHEME: &str = "s3://";
/// The repository's own record.
const RECORD: &str = "stdchk";
/// The protocol that this program speaks, and no other.
/// The folder of journals.
const JOURNAL: &str = "journal";
const FEATURE: &str = "log-7";
/// How often a level that is waited for is looked at.
const WAIT_EVERY: Duration = Duration::from_millis(100);
/// Memory for reading, unless set otherwise.
const MEMORY: usize = 256 << 20;

/// A place where checkpoints are kept. Any number of processes may use one at the same time.
pub struct Repository {
    home: Home,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) memory: usize,
    pub(crate) place: PathBuf,
    pub(crate) boot: [u8; 16],
    /// Where the tags are of what is saved.
    pub(crate) tags: fn() -> Option<Arc<TagCache>>,
    /// Whether it follows another one.
    follows: bool,
}

/// What a repository is made of.
enum Home {
    Directory(Arc<DirStore>),
    Bucket,
    Pool(Arc<PoolStore>, Arc<Peer>),
}

/// Where the file with a pool's key is, if not where it is expected.
const KEY_VARIABLE: &str = "STDCHK_POOL_KEY";
/// What tells boots apart in a pool or a bucket: nothing, since what is there does not go with the machine that saved it.
const LASTING_BOOT: [u8; 16] = *b"stdchk pool boot";
/// A repository that has it follows another one, and is changed by nobody else.
const FOLLOWS: &str = "mirror-1";

/// The key of pools: the file that the environment names.
fn key_of_environment() -> Result<Key> {
    match std::env::var_os(KEY_VARIABLE) {
        Some(path) => Key::read(Path::new(&path)),
        None => {
            Err(Error::invalid(format!("a pool wants its key: set {KEY_VARIABLE} to the file that has it")))
        }
    }
}

/// Where a store is, as the user wrote it, if that is a directory.
fn directory_of(url: &str) -> Result<PathBuf> {
    if let Some(path) = url.strip_prefix("file://") {
        return Ok(PathBuf::from(path));
    }
    match url.split_once("://") {
        Some((scheme, _)) => Err(Error::new(
            Kind::Unsupported,
            format!("{url}: stores of the kind {scheme}:// are not supported"),
        )),
        None if url.is_empty() => Err(Error::invalid("the store's place is empty")),
        None => Ok(PathBuf::from(url)),
    }
}

impl Repository {
    /// Opens the repository at `url`: a directory, or a pool (`pool://host:port`, `etcd://host:port/prefix`), for which the environment names the key's file.
    pub fn open(url: &str) -> Result<Repository> {
        if pool::is_pool(url) {
            return Repository::open_pool(url, key_of_environment()?);
        }
        if url.starts_with(BUCKET_SCHEME) {
            let mut repository = Repository::bucket(url)?;
            return match repository.check_record()? {
                true => Ok(repository),
                false => Err(Error::new(
                    Kind::NotFound,
                    format!("there is no repository at {url}; the first save makes one"),
                )),
            };
        }
        let root = directory_of(url)?;
        let mut repository = Repository::at(&root)?;
        let has_log = || std::fs::read_dir(root.join("log")).is_ok_and(|mut log| log.next().is_some());
        // It may be made by somebody between two looks.
        match repository.check_record()? || (has_log() && repository.check_record()?) {
            true => {
                repository.complete();
                Ok(repository)
            }
            false if has_log() => {
                let text = format!(
                    "{} is missing, although {} holds a repository; the next save makes it again",
                    root.join(RECORD).display(),
                    root.display()
                );
                Err(Error::corrupt(text))
            }
            false => {
                let text = format!("there is no repository at {}; the first save makes one", root.display());
                Err(Error::new(Kind::NotFound, text))
            }
        }
    }

    /// Opens the repository at `url`, and makes it first where there is none. A directory that holds anything
    /// else is refused; pools are never made by saving to them.
    pub fn open_or_create(url: &str) -> Result<Repository> {
        if pool::is_pool(url) {
            return Repository::open(url);
        }
        if url.starts_with(BUCKET_SCHEME) {
            let mut repository = Repository::bucket(url)?;
            repository.prepare()?;
            return Ok(repository);
        }
        let root = directory_of(url)?;
        let cannot = || format!("cannot create a repository at {}", root.display());
        if root.join(RECORD).exists() {
            let mut repository = Repository::at(&root)?;
            repository.prepare()?;
            repository.complete();
            return Ok(repository);
        }
        let known = std::path::absolute(&root).context(cannot)?;
        let missing: Vec<PathBuf> =
            known.ancestors().take_while(|path| !path.exists()).map(Path::to_owned).collect();
        std::fs::create_dir_all(&root).context(cannot)?;
        check_is_ours(&root)?;
        // The names of the directories must survive a power cut, too, or all that is in them is lost.
        for path in missing.iter().filter_map(|path| path.parent()).chain(known.parent()) {
            let synced = std::fs::File::open(path).and_then(|dir| dir.sync_all());
            if let Err(error) = synced {
                tracing::debug!("{} cannot be synced: {error}", path.display());
            }
        }
        let mut repository = Repository::at(&root)?;
        repository.prepare()?;
        Ok(repository)
    }

    /// Opens the pool at `pool://host:port`, or whose names are at `etcd://host:port,host:port/prefix`, and whose key is known.
    pub fn open_pool(url: &str, key: Key) -> Result<Repository> {
        let manager = pool::way_to_names(url, &key)?;
        let catalog = Arc::new(PoolCatalog::new(manager.clone()));
        let packs = PoolStore::open(catalog.clone(), key).context(|| format!("cannot use {url}"))?;
        let packs = Arc::new(packs);
        let objects = Arc::new(PoolObjects::new(manager.clone(), packs.clone()));
        let open = |place: &str| tier::open(place);
        let store = Arc::new(Tiered::new(packs.clone(), catalog.clone(), Box::new(open)));
        let home = Home::Pool(packs, manager);
        let mut repository = Repository::of(home, store, objects, catalog, PathBuf::from(url));
        repository.boot = LASTING_BOOT;
        repository.prepare()?;
        Ok(repository)
    }

    /// The bucket at `s3://bucket/prefix`, whatever is there.
    fn bucket(url: &str) -> Result<Repository> {
        let bucket = Arc::new(S3Store::open(url, tag()?)?);
        let catalog = Arc::new(ObjectCatalog::new(bucket.clone()));
        let place = PathBuf::from(url.trim_end_matches('/'));
        let mut repository = Repository::of(Home::Bucket, bucket.clone(), bucket, catalog, place);
        repository.boot = LASTING_BOOT;
        Ok(repository)
    }

    /// What a pool is drained to, with a catalog that can be written; made if it is not there and `founds`.
    pub(crate) fn tier(place: &str, founds: bool) -> Result<Target> {
        let mut repository = Repository::whatever(place, founds)?;
        let target = Target { store: repository.store.clone(), catalog: repository.catalog.clone() };
        match repository.read_record()? {
            Some(true) => {}
            Some(false) => {
                return Err(Error::invalid(format!(
                    "{place} holds a repository of its own: choose an empty place"
                )));
            }
            None if founds => repository.prepare_as(&[FEATURE, FOLLOWS])?,
            None => return Err(Error::new(Kind::NotFound, format!("there is nothing at {place}"))),
        }
        repository.complete();
        Ok(target)
    }

    /// Makes what a pool was drained to a repository of its own.
    pub(crate) fn release(place: &str) -> Result<()> {
        let target = Repository::tier(place, false)?;
        target.catalog.append(true, &mut |_| Ok(vec![Op::Drain(DrainOp::Release)]))?;
        Repository::whatever(place, false)?.objects.replace(RECORD, &new_record(&[FEATURE])?, true)
    }

    /// The repository at a place, whatever is there.
    fn whatever(place: &str, creates: bool) -> Result<Repository> {
        if place.starts_with(BUCKET_SCHEME) {
            return Repository::bucket(place);
        }
        let root = directory_of(place)?;
        if creates {
            std::fs::create_dir_all(&root).context(|| format!("cannot create {}", root.display()))?;
            if !root.join(RECORD).exists() {
                check_is_ours(&root)?;
            }
        }
        Repository::at(&root)
    }

    /// The packs of the pool, where that is what this is.
    /// Has room made, if that is possible, where a pack finds none.
    pub(crate) fn when_full(&self, make_room: impl Fn() -> bool + Send + Sync + 'static) {
        if let Home::Directory(dir) = &self.home {
            dir.when_full(make_room);
        }
    }

    pub(crate) fn pool_store(&self) -> Option<Arc<PoolStore>> {
        match &self.home {
            Home::Pool(packs, _) => Some(packs.clone()),
            Home::Directory(_) | Home::Bucket => None,
        }
    }

    /// Waits until a checkpoint survives what that level says, for so long at most.
    pub fn wait_for(&self, id: &CheckpointId, level: Durability, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        if level < Durability::Drained {
            self.level(level)?;
            let state = self.catalog.state()?;
            let missing = || Error::new(Kind::NotFound, format!("there is no checkpoint {id}"));
            let entry = state.checkpoint(id).ok_or_else(missing)?;
            return stdchk_upkeep::make_durable(&self.ground(), &state, entry);
        }
        loop {
            let state = self.catalog.state()?;
            let missing = || Error::new(Kind::NotFound, format!("there is no checkpoint {id}"));
            if state.drain().is_drained(state.checkpoint(id).ok_or_else(missing)?) {
                return Ok(());
            }
            self.level(level)?;
            if begun.elapsed() > patience {
                return Err(Error::new(Kind::Conflict, format!("{id} is not drained yet")));
            }
            std::thread::sleep(WAIT_EVERY);
        }
    }

    fn at(root: &Path) -> Result<Repository> {
        Repository::on(Arc::new(RealFs::new(root)), root)
    }

    /// The repository on any file system that can do what a repository needs; made if it is not there. `place` names
    /// it in messages.
    pub fn open_or_create_on(fs: Arc<dyn Fs>, place: &Path) -> Result<Repository> {
        let mut repository = Repository::on(fs, place)?;
        repository.tags = || None;
        repository.prepare()?;
        Ok(repository)
    }

    fn prepare(&mut self) -> Result<()> {
        self.prepare_as(&[FEATURE])
    }

    /// Makes the repository with these features, where there is none.
    fn prepare_as(&mut self, features: &[&str]) -> Result<()> {
        let place = self.place.display().to_string();
        let cannot = || format!("cannot create a repository at {place}");
        if !self.check_record()? {
            if let Home::Directory(dir) = &self.home {
                dir.prepare().context(cannot)?;
            }
            self.objects.create(RECORD, &new_record(features)?, true).context(cannot)?;
            self.check_record()?;
            self.objects.keep_room().context(cannot)?;
        }
        Ok(())
    }

    fn on(fs: Arc<dyn Fs>, root: &Path) -> Result<Repository> {
        let dir = Arc::new(DirStore::on(fs, root.display().to_string(), tag()?));
        let catalog = Arc::new(ObjectCatalog::new(dir.clone()));
        Ok(Repository::of(Home::Directory(dir.clone()), dir.clone(), dir, catalog, root.to_owned()))
    }

    fn of(
        home: Home,
        store: Arc<dyn Store>,
        objects: Arc<dyn Objects>,
        catalog: Arc<dyn Catalog>,
        place: PathBuf,
    ) -> Repository {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let workers = Arc::new(Workers::new(threads, "stdchk-work"));
        Repository {
            home,
            store,
            objects,
            catalog,
            workers,
            memory: MEMORY,
            place,
            boot: host::boot(),
            tags: host::tags,
            follows: false,
        }
    }

    /// Makes folders again that are missing.
    fn complete(&self) {
        if let Home::Directory(dir) = &self.home {
            dir.complete();
        }
    }

    /// What a save survives that asks for `durability`: a directory keeps one copy, and a pool knows no medium of its own.
    pub(crate) fn level(&self, durability: Durability) -> Result<Durability> {
        match (&self.home, durability) {
            (Home::Directory(_) | Home::Bucket, Durability::Replicated | Durability::Drained) => {
                let text = "only pools have other levels than staged and local";
                Err(Error::new(Kind::Unsupported, text))
            }
            (Home::Pool(..), Durability::Drained) if self.state()?.drain().to().is_none() => {
                let text = "this pool is not drained: 'stdchk pool tier --drain PLACE' says where to";
                Err(Error::new(Kind::Unsupported, text))
            }
            // What is drained is as safe as a pool makes it first.
            (Home::Pool(..), Durability::Local | Durability::Drained) => Ok(Durability::Replicated),
            (_, durability) => Ok(durability),
        }
    }

    /// Has packs written as shards of a code from now on, or with none as they are. Those that are there stay as they are until
    /// [`repair`](crate::repair) meets them. What a pool does is settled when it is founded.
    pub fn protect(&self, code: Option<Code>) -> Result<()> {
        let Home::Directory(dir) = &self.home else {
            let text = "how a pool protects packs is settled when it is founded, by 'stdchk pool start --erasure K+M'";
            return Err(Error::new(Kind::Unsupported, text));
        };
        if dir.code()? == code { Ok(()) } else { dir.protect(code) }
    }

    /// Checks the repository's own record; `false` if there is none. One that follows another can only be read from here on.
    fn check_record(&mut self) -> Result<bool> {
        let Some(follows) = self.read_record()? else { return Ok(false) };
        if follows && !self.follows {
            self.follows = true;
            self.catalog = Arc::new(Follower::of(self.catalog.clone(), self.place.display().to_string()));
        }
        Ok(true)
    }

    /// Whether the repository follows another one; nothing if there is none.
    fn read_record(&self) -> Result<Option<bool>> {
        let Some(bytes) = self.objects.get(RECORD)? else { return Ok(None) };
        let mut follows = false;
        let mut read = || -> Result<()> {
            let mut reader = Reader::new(open_envelope(Sort::Repository, &bytes)?, "repository record");
            reader.raw(16)?;
            for _ in 0..reader.count(1)? {
                let feature = reader.string()?;
                follows |= feature == FOLLOWS;
                if feature != FEATURE && feature != FOLLOWS {
                    let text = format!("the repository uses {feature:?}, which this program does not know");
                    return Err(Error::new(Kind::Unsupported, text));
                }
            }
            reader.finish()
        };
        read().context(|| format!("{} cannot be used", self.place.join(RECORD).display()))?;
        Ok(Some(follows))
    }

    /// Sets the memory budget for what is read and verified, in bytes.
    pub fn set_memory(&mut self, bytes: usize) {
        self.memory = bytes;
    }

    /// Sets how many threads hash, compress and verify.
    pub fn set_threads(&mut self, count: usize) {
        self.workers = Arc::new(Workers::new(count, "stdchk-work"));
    }

    /// Sets what tells one boot of a machine from another, where the system's own word for it should not be used. What
    /// was only staged in one boot is doubtful in the next.
    pub fn set_boot(&mut self, boot: [u8; 16]) {
        self.boot = boot;
    }

    pub(crate) fn owner(&self, lasting: bool) -> Owner {
        match self.home {
            Home::Directory(_) => Owner { boot: self.boot, ..host::owner(lasting) },
            Home::Bucket | Home::Pool(..) => host::owner(lasting),
        }
    }

    /// Refuses a path inside the repository: nothing is restored into it, or saved from it.
    pub(crate) fn check_outside(&self, path: &Path) -> Result<()> {
        let Ok(inside) = self.place.canonicalize() else { return Ok(()) };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let known = path.ancestors().find_map(|above| above.canonicalize().ok());
        if known.is_some_and(|known| known.starts_with(&inside)) {
            return Err(Error::invalid(format!("{} lies in the repository itself", path.display())));
        }
        Ok(())
    }

    /// Bytes that it can hold and bytes that are free; in a pool, of what its benefactors lend as much as copies or parity leave. Nothing
    /// where nobody knows.
    pub(crate) fn room(&self) -> Result<Option<(u64, u64)>> {
        match &self.home {
            Home::Bucket => Ok(None),
            Home::Directory(_) => {
                let room = rustix::fs::statvfs(&self.place).map_err(std::io::Error::from);
                let room = room.context(|| format!("cannot ask {} for its room", self.place.display()))?;
                // What only root may have is nobody's here.
                let kept = room.f_bfree.saturating_sub(room.f_bavail);
                Ok(Some(((room.f_blocks - kept) * room.f_frsize, room.f_bavail * room.f_frsize)))
            }
            Home::Pool(packs, manager) => {
                let (view, reports) = (packs.view(), manager.reports()?);
                let used: u64 = reports.iter().map(|(report, _)| report.used).sum();
                let state = self.catalog.state()?;
                let all: u64 = state.pool().members().values().map(|member| member.capacity).sum();
                let usable = |bytes: u64| match view.class.code {
                    Some(code) => bytes / u64::from(code.count()) * u64::from(code.data()),
                    None => bytes / u64::from(view.class.replicas.max(1)),
                };
                Ok(Some((usable(all), usable(all.saturating_sub(used)))))
            }
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Where what was closed in a mount waits to be gathered; none where the store is on no file system of this machine.
    pub(crate) fn journal(&self) -> Option<PathBuf> {
        let folder = self.place.join(JOURNAL);
        match &self.home {
            Home::Directory(_) if self.place.is_dir() => Some(folder),
            _ => None,
        }
    }

    /// The newest state of the catalog: applications, checkpoints, sessions.
    pub fn state(&self) -> Result<Arc<State>> {
        self.catalog.state()
    }

    /// Sets what is settled for an application. It need not have been saved yet.
    pub fn set_policy(&self, app: &AppName, policy: &Policy) -> Result<()> {
        self.change_policy(app, &|there| *there = policy.clone()).map(drop)
    }

    /// Changes a part of what is settled for an application; what it is then.
    pub fn change_policy(&self, app: &AppName, change: &dyn Fn(&mut Policy)) -> Result<Policy> {
        let mut policy = Policy::default();
        self.catalog.append(true, &mut |state| {
            policy = state.apps().get(app).map(|app| app.policy.clone()).unwrap_or_default();
            change(&mut policy);
            Ok(vec![Op::SetPolicy(app.clone(), policy.clone())])
        })?;
        Ok(policy)
    }

    /// Drops checkpoints; their space comes back with the next garbage collection. Those that are not there are an error.
    pub fn forget(&self, ids: &[CheckpointId]) -> Result<()> {
        let drop_them = |state: &State| {
            if let Some(id) = ids.iter().find(|id| state.checkpoint(id).is_none()) {
                return Err(Error::new(Kind::NotFound, format!("there is no checkpoint {id}")));
            }
            Ok(if ids.is_empty() { Vec::new() } else { vec![Op::Drop(ids.to_vec())] })
        };
        self.catalog.append(true, &mut { drop_them }).map(drop)
    }

    /// Notes that an application went on from a checkpoint that took so long to restore, most likely after a failure:
    /// [`History`](stdchk_catalog::History) has what follows from that. A repository that cannot be written notes nothing.
    pub fn note_restart(&self, app: &AppName, took: Duration) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let restart = Restart { time_ns: host::now_ns(), took_ms };
        let noted = self.catalog.append(false, &mut |_| Ok(vec![Op::Restarted(app.clone(), restart)]));
        if let Err(error) = noted {
            tracing::debug!("the restart is not on record: {error}");
        }
    }

    /// What upkeep works on.
    pub fn ground(&self) -> Ground {
        Ground {
            store: self.store.clone(),
            objects: self.objects.clone(),
            catalog: self.catalog.clone(),
            owner: self.owner(false),
            is_gone: Arc::new(host::is_gone),
            memory: self.memory,
            workers: self.workers.clone(),
        }
    }

    /// Removes temporary files that nobody can still be using; how many, and their bytes.
    pub fn remove_stale_temporaries(&self, really: bool) -> Result<(u64, u64)> {
        match &self.home {
            Home::Directory(dir) => dir.remove_stale_temporaries(really),
            Home::Bucket | Home::Pool(..) => Ok((0, 0)),
        }
    }

    /// Files in the repository's folders that do not belong there.
    pub fn strangers(&self) -> Result<Vec<String>> {
        match &self.home {
            Home::Directory(dir) => dir.strangers(),
            Home::Bucket | Home::Pool(..) => Ok(Vec::new()),
        }
    }

    /// Pins everything that is there now, and reads it.
    pub fn read(&self) -> Result<Reading> {
        let opened = Session::open(self.catalog.clone(), SessionKind::Reader, &self.owner(false));
        let (session, state) = match opened {
            Ok(session) => {
                let state = session.state().clone();
                (Some(session), state)
            }
            // Who may only read cannot pin; what is removed meanwhile is then an error, never wrong bytes.
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Full) => {
                tracing::debug!("reading without a pin: {error}");
                (None, self.catalog.state()?)
            }
            Err(error) => return Err(error),
        };
        let vault = Arc::new(Vault::new(self.store.clone(), state.clone(), self.memory / 2));
        Ok(Reading { _session: session, state, vault })
    }
}

/// A stretch of time in which nothing that is read goes away.
pub struct Reading {
    _session: Option<Session>,
    /// The state that is read.
    pub state: Arc<State>,
    pub(crate) vault: Arc<Vault>,
}

fn new_record(features: &[&str]) -> Result<Vec<u8>> {
    let mut body = Writer::new();
    body.u64(random_u64()?);
    body.u64(random_u64()?);
    body.varint(features.len() as u64);
    features.iter().for_each(|feature| body.string(feature));
    Ok(seal(Sort::Repository, &body.into_bytes()))
}

/// Refuses to make a repository among other people's files. One that was being made is gone on with.
fn check_is_ours(root: &Path) -> Result<()> {
    let ours = [
        "packs",
        "log",
        "snapshots",
        "index",
        "beats",
        "tmp",
        "lost+found",
        "mark",
        "named",
        "ballast",
        "erasure",
        JOURNAL,
        RECORD,
    ];
    let entries = std::fs::read_dir(root).context(|| format!("cannot list {}", root.display()))?;
    for entry in entries {
        let name = entry.context(|| format!("cannot list {}", root.display()))?.file_name();
        if !ours.iter().any(|known| name == *known) {
            let text = format!(
                "{} holds {:?} and is no repository; choose an empty directory",
                root.display(),
                name.to_string_lossy()
            );
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// What tells this process's temporary objects from those of others.
fn tag() -> Result<String> {
    Ok(format!("{}-{}-{:016x}", sanitized(&host::name()), std::process::id(), random_u64()?))
}

fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(32).collect()
}

/// What a commit survives, from the word for it.
pub fn parse_durability(text: &str) -> Result<Durability> {
    match text {
        "staged" => Ok(Durability::Staged),
        "local" => Ok(Durability::Local),
        "replicated" => Ok(Durability::Replicated),
        "drained" => Ok(Durability::Drained),
        _ => Err(Error::invalid(format!("{text:?} is no durability: staged, local, replicated or drained"))),
    }
}
