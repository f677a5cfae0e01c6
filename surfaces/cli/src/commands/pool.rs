//! pool: lending, and those who keep the names of what is lent.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use stdchk::pool::{
    self, Catalog, Class, Key, Lender, LenderOptions, Manager, ManagerOptions, MemberStatus, Owner,
    Protection, Status,
};
use stdchk::{Error, Kind, Result, tier};

use crate::args::{Cli, PoolVerb};
use crate::output::{Out, count, size, table};

/// Where a manager listens unless it is told otherwise.
const LISTEN: &str = "127.0.0.1:7117";
/// How often a benefactor that has to go says why it is still there.
const SAY_EVERY: Duration = Duration::from_secs(10);

pub fn pool(cli: &Cli, out: &Out, verb: &PoolVerb) -> Result<u8> {
    match verb {
        PoolVerb::Key { file, plain } => make_key(out, file, *plain)?,
        PoolVerb::Start { listen, state, catalog, replicas, erasure, stripe, patience, metrics } => {
            let is_said = replicas.is_some() || erasure.is_some() || stripe.is_some();
            let class = is_said.then(|| Class {
                replicas: replicas.unwrap_or(1),
                code: *erasure,
                stripe: stripe.unwrap_or(0),
            });
            let only_founds = catalog.is_some() && listen.is_none();
            let catalog = match (catalog, state) {
                (Some(place), _) => Catalog::Etcd(place.clone()),
                (None, Some(folder)) => Catalog::Folder(folder.clone()),
                (None, None) => {
                    return Err(Error::invalid("say where the names are kept: --state or --catalog"));
                }
            };
            let listen = listen.clone().unwrap_or_else(|| LISTEN.to_owned());
            let options =
                ManagerOptions { listen, catalog, class, patience: *patience, metrics: metrics.clone() };
            match only_founds {
                true => found(out, &options, &key(cli)?)?,
                false => start(out, &options, key(cli)?)?,
            }
        }
        PoolVerb::Join {
            manager,
            disk,
            size,
            listen,
            advertise,
            yield_when,
            calm,
            domain,
            move_rate,
            grace,
            metrics,
        } => {
            let options = LenderOptions {
                manager: manager.clone(),
                memory: cli.memory,
                disk: disk.clone().zip(*size),
                listen: listen.clone(),
                advertise: advertise.clone(),
                domain: domain.clone(),
                move_rate: *move_rate,
                metrics: metrics.clone(),
            };
            if options.memory.is_none() && options.disk.is_none() {
                return Err(Error::invalid(
                    "say what to lend: --memory SIZE, or --disk DIR --size SIZE, or both",
                ));
            }
            let owner = Owner::new(yield_when, *calm)?;
            join(out, &options, key(cli)?, *grace, owner)?;
        }
        PoolVerb::Status { watch } => status(cli, out, *watch)?,
        PoolVerb::Leave { benefactor } => {
            for id in pool::leave(place(cli)?, &key(cli)?, benefactor.as_deref())? {
                removed(out, id, "gives away what it holds, and ends");
            }
        }
        PoolVerb::Evict { benefactor } => {
            for id in pool::evict(place(cli)?, &key(cli)?, benefactor)? {
                removed(out, id, "is no member any more");
            }
        }
        PoolVerb::Tier { drain: Some(place), .. } => {
            let place = tier::drain(self::place(cli)?, &key(cli)?, place)?;
            out.did(|| json!({ "drain": place }), || format!("checkpoints are drained to {place}"));
        }
        PoolVerb::Tier { stop: true, .. } => {
            tier::stop(place(cli)?, &key(cli)?)?;
            out.did(|| json!({ "drain": null }), || "checkpoints are drained no more".to_owned());
        }
        PoolVerb::Tier { release: Some(place), .. } => {
            tier::release(place)?;
            out.did(|| json!({ "released": place }), || format!("{place} is a repository of its own"));
        }
        PoolVerb::Tier { .. } => {
            let status = pool::status(place(cli)?, &key(cli)?)?;
            out.either(|| drain_json(&status), || drain_text(&status));
        }
        PoolVerb::Wait { patience } => {
            pool::wait_settled(place(cli)?, &key(cli)?, *patience)?;
            out.did(|| json!({ "settled": true }), || "everything lies where it belongs".to_owned());
        }
    }
    Ok(0)
}

fn make_key(out: &Out, file: &Path, plain: bool) -> Result<()> {
    let protection = if plain { Protection::Plain } else { Protection::Tls };
    let key = pool::make_key(file, protection)?;
    let file = file.display().to_string();
    let fingerprint = key.certificate_fingerprint();
    out.did(
        || json!({ "key": file, "protection": protection.as_str(), "certificate_sha256": fingerprint }),
        || match &fingerprint {
            Some(print) => {
                format!("wrote the key of a new pool to {file}; its certificate has the SHA-256 {print}")
            }
            None => format!(
                "wrote the key of a new pool to {file}; what goes between its members is not encrypted"
            ),
        },
    );
    Ok(())
}

fn removed(out: &Out, id: u64, does: &str) {
    out.did(|| json!({ "benefactor": format!("{id:016x}") }), || format!("benefactor {id:016x} {does}"));
}

/// The key that the user named.
pub fn key(cli: &Cli) -> Result<Key> {
    match &cli.pool_key {
        Some(file) => Key::read(file),
        None => Err(Error::invalid(
            "a pool wants its key: give --pool-key FILE or set STDCHK_POOL_KEY; 'stdchk pool key' makes one",
        )),
    }
}

fn place(cli: &Cli) -> Result<&str> {
    let place = cli
        .store
        .as_deref()
        .ok_or_else(|| Error::invalid("which pool? Give --store pool://HOST:PORT or set STDCHK_STORE"))?;
    pool::check_place(place)?;
    Ok(place)
}

/// Says so when the process is to end.
pub fn signals() -> Result<Receiver<()>> {
    let cannot = |error| Error::io("cannot wait for signals", error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(cannot)?;
    let (send, receive) = channel();
    let thread = std::thread::Builder::new().name("stdchk-signals".into());
    thread.spawn(move || signals.forever().for_each(|_| _ = send.send(()))).map_err(cannot)?;
    Ok(receive)
}

/// Says so where a pool was founded otherwise before.
fn note_class(out: &Out, class: &Class, options: &ManagerOptions) {
    if options.class.is_some_and(|wanted| wanted != *class) {
        let how =
            class.code.map_or(format!("--replicas {}", class.replicas), |code| format!("--erasure {code}"));
        out.note(&format!("this pool was founded with {how} --stripe {}", class.stripe));
    }
}

/// Founds a pool that needs no manager.
fn found(out: &Out, options: &ManagerOptions, key: &Key) -> Result<()> {
    if options.metrics.is_some() {
        return Err(Error::invalid("--metrics wants a manager: say where it is to listen, with --listen"));
    }
    let class = pool::found(options, key)?;
    note_class(out, &class, options);
    let Catalog::Etcd(place) = &options.catalog else { return Ok(()) };
    out.did(
        || {
            let mut founded = class_json(&class);
            founded["pool"] = place.as_str().into();
            founded
        },
        || format!("there is a pool at {place}; {}", promise(&class)),
    );
    Ok(())
}

fn start(out: &Out, options: &ManagerOptions, key: Key) -> Result<()> {
    let signals = signals()?;
    let manager = Manager::start(options, key)?;
    let (address, class) = (manager.address(), manager.class());
    note_class(out, &class, options);
    out.either(
        || {
            let mut started = class_json(&class);
            started["listen"] = address.to_string().into();
            started["metrics"] = manager.metrics().map(|at| at.to_string()).into();
            started
        },
        || format!("the pool listens at {}{address}; {}", pool::SCHEME, promise(&class)),
    );
    let _ = signals.recv();
    Ok(())
}

fn join(out: &Out, options: &LenderOptions, key: Key, grace: Duration, mut owner: Owner) -> Result<()> {
    let signals = signals()?;
    let mut lender = Lender::join(options, key)?;
    for lent in lender.lent() {
        let (id, address, medium) = (format!("{:016x}", lent.id()), lent.address(), lent.medium().as_str());
        let listen = lent.listen().to_string();
        out.either(
            || {
                let metrics = lender.metrics().map(|at| at.to_string());
                json!({
                    "benefactor": id,
                    "listen": listen,
                    "address": address,
                    "medium": medium,
                    "bytes": lent.bytes(),
                    "metrics": metrics,
                })
            },
            || format!("benefactor {id} lends {} of {medium} at {address}", size(lent.bytes())),
        );
    }
    let mut last_said = Instant::now();
    loop {
        match signals.recv_timeout(Duration::from_millis(200)) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if lender.is_done() => {
                out.note("the pool has let this benefactor go");
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let left = lender.packs_to_give();
        if left > 0 && last_said.elapsed() > SAY_EVERY {
            out.note(&format!("{} still here, which others must take", count(left, "pack")));
            last_said = Instant::now();
        }
        let is_wanted = owner.wants_it();
        match lender.yield_to(is_wanted) {
            true if is_wanted => out.note("the machine is wanted: giving away what is here"),
            true => out.note("lending again"),
            false => {}
        }
    }
    out.note(&format!(
        "giving away what is here, for {} s at most; a second signal ends it at once",
        grace.as_secs()
    ));
    let (done, ended) = channel();
    std::thread::spawn(move || drop(done.send(lender.leave(grace))));
    loop {
        match ended.recv_timeout(Duration::from_millis(50)) {
            Ok(left) => return left,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if signals.try_recv().is_ok() => {
                return Err(Error::new(Kind::Io, "ended before everything was given away"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn status(cli: &Cli, out: &Out, watch: bool) -> Result<()> {
    loop {
        let status = pool::status(place(cli)?, &key(cli)?)?;
        if out.json {
            out.object(&status_json(&status));
        } else {
            if watch {
                // Home, and clear what is below.
                out.line("\x1b[H\x1b[2J");
            }
            out.line(&status_text(&status));
        }
        if !watch || out.failure().is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn state_of(member: &MemberStatus, members: usize) -> &'static str {
    // The more there are, the less often each is heard.
    let patience = Duration::from_secs(3).max(Duration::from_micros(1500) * members as u32);
    match &member.heard {
        _ if member.is_lost => "lost",
        _ if member.is_leaving => "leaving",
        None => "silent",
        Some(heard) if heard.age > patience => "silent",
        Some(heard) if heard.behind > 0 => "busy",
        Some(_) => "ok",
    }
}

fn class_json(class: &Class) -> Value {
    let code = class.code.map(|code| code.to_string());
    json!({ "replicas": class.replicas, "erasure": code, "stripe": class.stripe })
}

/// What a pool does for the safety of packs.
fn promise(class: &Class) -> String {
    match (class.code, class.replicas) {
        (Some(code), _) => {
            format!("{} shards of every pack, of which {} may be lost", code.count(), code.parity())
        }
        (None, 1) => "one copy of everything".to_owned(),
        (None, copies) => format!("{copies} copies of everything"),
    }
}

fn status_json(status: &Status) -> Value {
    let member = |member: &MemberStatus| {
        json!({
            "benefactor": format!("{:016x}", member.id),
            "listen": member.address,
            "domain": member.domain,
            "medium": member.medium.as_str(),
            "state": state_of(member, status.members.len()),
            "capacity_bytes": member.capacity,
            "used_bytes": member.heard.map(|heard| heard.used),
            "reserved_bytes": member.heard.map(|heard| heard.kept),
            "packs": member.heard.map(|heard| heard.packs),
            "behind_packs": member.heard.map(|heard| heard.behind),
            "received_bytes_per_s": member.heard.map(|heard| heard.load.came),
            "sent_bytes_per_s": member.heard.map(|heard| heard.load.went),
            "questions_per_s": member.heard.map(|heard| heard.load.asked),
            "heard_s": member.heard.map(|heard| heard.age.as_secs_f64()),
        })
    };
    let mut all = class_json(&status.class);
    all["epoch"] = status.epoch.into();
    all["settled"] = status.settled.into();
    all["drain"] = drain_json(status)["drain"].clone();
    all["members"] = status.members.iter().map(member).collect();
    all
}

fn drain_json(status: &Status) -> Value {
    let drain = status.drain.as_ref();
    let said = drain.map(|(to, done, all)| json!({ "to": to, "drained": done, "checkpoints": all }));
    json!({ "drain": said })
}

fn drain_text(status: &Status) -> String {
    match &status.drain {
        Some((to, done, all)) => format!("{done} of {} drained to {to}", count(*all as u64, "checkpoint")),
        None => "not drained".to_owned(),
    }
}

fn status_text(status: &Status) -> String {
    let known = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    let row = |member: &MemberStatus| {
        let heard = member.heard;
        vec![
            format!("{:016x}", member.id),
            member.address.clone(),
            member.domain.clone(),
            member.medium.as_str().to_owned(),
            size(member.capacity),
            known(heard.map(|heard| size(heard.used))),
            known(heard.map(|heard| heard.packs.to_string())),
            known(heard.map(|heard| heard.behind.to_string())),
            known(heard.map(|heard| size(heard.load.came))),
            known(heard.map(|heard| size(heard.load.went))),
            state_of(member, status.members.len()).to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = status.members.iter().map(row).collect();
    let behind: u64 = status.members.iter().filter_map(|member| member.heard).map(|heard| heard.behind).sum();
    let settled = match status.epoch == status.settled {
        true if behind > 0 => format!("{} to be copied or moved", count(behind, "pack")),
        true => "everything lies where it belongs".to_owned(),
        false => format!("moving since epoch {}", status.settled),
    };
    let lent: u64 = status.members.iter().map(|member| member.capacity).sum();
    let used: u64 = status.members.iter().filter_map(|member| member.heard).map(|heard| heard.used).sum();
    let head = format!(
        "{}; {} of {} used; epoch {}, {settled}",
        promise(&status.class),
        size(used),
        size(lent),
        status.epoch
    );
    let columns = [
        "BENEFACTOR",
        "LISTENS AT",
        "DOMAIN",
        "LENDS",
        "SIZE",
        "USED",
        "PACKS",
        "TO DO",
        "IN/s",
        "OUT/s",
        "STATE",
    ];
    format!("{head}; {}\n{}", drain_text(status), table(&columns, &rows))
}
