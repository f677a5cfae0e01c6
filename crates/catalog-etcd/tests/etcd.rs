//! Logs, objects and signs of life in real clusters of etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stdchk_catalog::{Catalog, Op, conformance};
use stdchk_catalog_etcd::{Etcd, EtcdJournal, EtcdObjects, EtcdSigns, Login};
use stdchk_catalog_log::{LogCatalog, Signs, Upon};
use stdchk_kit::EtcdCluster;
use stdchk_object::{Kind, Result, SessionId};
use stdchk_store::Objects;

const SECRET: [u8; 32] = [7; 32];

fn etcd(url: &str) -> Arc<Etcd> {
    Arc::new(Etcd::open(url, &Login::default(), &SECRET).unwrap())
}

fn catalog(url: &str) -> Result<LogCatalog> {
    let etcd = etcd(url);
    let journal = EtcdJournal::open(etcd.clone(), true)?;
    LogCatalog::on(Box::new(journal), Box::new(EtcdSigns::new(etcd, "beats", Duration::from_secs(60))))
}

#[test]
fn a_log_in_etcd_is_a_catalog() {
    let cluster = EtcdCluster::start(1);
    conformance::catalog(&catalog(&cluster.url("one")).unwrap());
    // Many at once: some in one process, some in processes of their own.
    let url = cluster.url("many");
    let several: Vec<LogCatalog> = (0..3).map(|_| catalog(&url).unwrap().snapshot_every(64)).collect();
    let handles: Vec<&dyn Catalog> =
        several.iter().chain(&several).map(|catalog| catalog as &dyn Catalog).collect();
    conformance::at_once(&handles, 40);
    let state = several[0].state().unwrap();
    assert_eq!(*catalog(&url).unwrap().state().unwrap(), *state, "whoever comes now sees the same");
    assert_eq!(several[1].verify().unwrap(), Vec::<String>::new());
}

#[test]
fn snapshots_keep_the_log_short_for_those_who_know_little_too() {
    let cluster = EtcdCluster::start(1);
    let url = cluster.url("short");
    let (slow, slower) = (catalog(&url).unwrap(), catalog(&url).unwrap());
    assert_eq!(slow.state().unwrap().number(), 0);
    let boot = slower.tail(0, 0).unwrap().boot;
    let busy = catalog(&url).unwrap().snapshot_every(600);
    // Records that are too long for one value, and all that is in them.
    let packs =
        |from: u32| (from..from + 60_000).map(|number| conformance::pack(9, number)).collect::<Vec<_>>();
    busy.append(true, &mut |_| Ok(vec![Op::Condemn(packs(0))])).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let busy = &busy;
            scope.spawn(move || {
                for id in 0..160 {
                    let id = thread << 32 | id;
                    busy.append(false, &mut |_| Ok(vec![conformance::writer(id, 1)])).unwrap();
                    busy.append(false, &mut |_| Ok(vec![Op::End(SessionId(id))])).unwrap();
                }
            });
        }
    });
    busy.append(true, &mut |_| Ok(vec![Op::Condemn(packs(60_000))])).unwrap();
    let state = busy.state().unwrap();
    assert_eq!((state.number(), state.condemned().len()), (2562, 120_000));
    // One who writes behind what he knows must not fill the hole.
    let late = slower.submit(Upon { boot, number: 0, as_saver: true }, vec![conformance::writer(7, 7)], true);
    assert!(!late.unwrap().accepted);
    assert_eq!(*slower.state().unwrap(), *state);
    assert_eq!(*slow.state().unwrap(), *state, "the records that it lacks are gone, a snapshot is there");
    assert_eq!(*catalog(&url).unwrap().state().unwrap(), *state);
    let records = etcd(&url).keys("log/", "log0").unwrap().len();
    assert!((2..2500).contains(&records), "{records} records are kept");
}

/// Every member is killed and started again, one after the other, while three processes append: what was said to be there is there.
#[test]
fn no_decision_is_lost_when_members_are_killed() {
    let mut cluster = EtcdCluster::start(3);
    let url = cluster.url("killed");
    let (is_over, written) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let (url, is_over, written) = (&url, &is_over, &written);
            scope.spawn(move || {
                let catalog = catalog(url).unwrap();
                let mut step = 0;
                while !is_over.load(Ordering::Relaxed) {
                    step += 1;
                    let id = writer << 32 | step;
                    let open = catalog.append(true, &mut |_| Ok(vec![conformance::writer(id, step)]));
                    let done = open.and_then(|_| {
                        catalog.append(true, &mut |_| Ok(vec![conformance::commit(id, step, &[])]))
                    });
                    match done {
                        Ok(_) => written.lock().unwrap().push(id),
                        Err(error) => assert_eq!(error.kind(), Kind::Io, "{error}"),
                    }
                }
            });
        }
        let mut count = 0;
        for at in [0, 1, 2, 1] {
            cluster.kill(at);
            // Two of three go on.
            let begun = Instant::now();
            while written.lock().unwrap().len() < count + 30 {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written without member {at}");
                std::thread::sleep(Duration::from_millis(10));
            }
            cluster.start_member(at);
            cluster.wait();
            count = written.lock().unwrap().len();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let state = catalog(&url).unwrap().state().unwrap();
    let written = written.into_inner().unwrap();
    assert!(written.len() >= 120);
    let there: std::collections::HashSet<u64> =
        state.checkpoints().map(|entry| entry.manifest.pack.name.session.0).collect();
    let lost: Vec<&u64> = written.iter().filter(|id| !there.contains(id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(there.len() as u64, state.commits(), "none is there twice");
}

#[test]
fn signs_are_there_for_a_while() {
    let cluster = EtcdCluster::start(1);
    let etcd = etcd(&cluster.url("signs"));
    let signs = || EtcdSigns::new(etcd.clone(), "alive", Duration::from_secs(2));
    let (mine, other) = (signs(), signs());
    mine.say(1, b"one").unwrap();
    mine.say(2, b"two").unwrap();
    assert_eq!(other.present().unwrap().into_values().collect::<Vec<_>>(), [b"one", b"two"]);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        // Whoever hears of it says that it is there, and what it says now.
        other.say(1, b"uno").unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(mine.present().unwrap().into_iter().collect::<Vec<_>>(), [(1, b"uno".to_vec())]);
    assert!(mine.ages().unwrap()[&1] <= Duration::from_secs(1));
    mine.say(2, b"again").unwrap();
    mine.forget(&[1, 2, 3]).unwrap();
    assert!(other.present().unwrap().is_empty() && other.ages().unwrap().is_empty());
}

#[test]
fn values_are_only_for_those_who_know_the_key() {
    let cluster = EtcdCluster::start(1);
    let url = cluster.url("sealed");
    let objects = EtcdObjects::new(etcd(&url));
    assert!(objects.create("stdchk", b"a pool", true).unwrap());
    assert!(!objects.create("stdchk", b"another", true).unwrap());
    assert_eq!(objects.get_range("stdchk", 2, 100).unwrap().unwrap(), b"pool");
    assert_eq!(objects.get("named").unwrap(), None);
    assert!(objects.replace("named", &vec![0; 2 << 20], true).is_err());
    let stranger = Arc::new(Etcd::open(&url, &Login::default(), &[8; 32]).unwrap());
    let refused = EtcdObjects::new(stranger.clone()).get("stdchk").unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    catalog(&url).unwrap();
    assert_eq!(EtcdJournal::open(stranger, true).err().unwrap().kind(), Kind::Denied);
    assert_eq!(EtcdJournal::open(etcd(&cluster.url("none")), false).err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn bad_places_are_refused() {
    for url in [
        "etcd://",
        "etcd://a:1",
        "etcd://a:1/",
        "etcd://a/p",
        "etcd://a:1,/p",
        "http://a:1/p",
        "etcd://a:99999/p",
        "",
    ] {
        let refused = Etcd::open(url, &Login::default(), &SECRET).err().expect(url);
        assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    }
    let nobody = etcd("etcd://127.0.0.1:1/p");
    assert_eq!(EtcdObjects::new(nobody).get("stdchk").unwrap_err().kind(), Kind::Io);
}

/// Members that show a certificate, want one, and want a user besides.
#[test]
fn etcd_may_ask_who_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let signed = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        // Where there are users, the gateway refuses certificates that name one.
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.extended_key_usages = vec![ClientAuth, ServerAuth];
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).to_str().unwrap().to_owned()
    };
    let (server, server_key) = signed();
    let cluster = EtcdCluster::start_with(
        1,
        &[
            &format!("--cert-file={}", write("server.pem", &server)),
            &format!("--key-file={}", write("server.key", &server_key)),
            &format!("--trusted-ca-file={}", write("ca.pem", &ca_cert.pem())),
            "--client-cert-auth",
        ],
    );
    let (cert, key) = signed();
    let known = Login {
        ca: Some(ca_cert.pem().into_bytes()),
        identity: Some([key, cert].concat().into_bytes()),
        user: None,
    };
    let url = cluster.url("tls").replace("etcd://", "etcds://");
    let open = |login: &Login| EtcdObjects::new(Arc::new(Etcd::open(&url, login, &SECRET).unwrap()));
    assert!(open(&known).create("stdchk", b"a pool", true).unwrap());
    let nameless = Login { identity: None, ..known.clone() };
    assert!(open(&nameless).get("stdchk").is_err(), "who shows nothing is not let in");
    let trusting = Login { ca: None, ..known.clone() };
    assert!(open(&trusting).get("stdchk").is_err(), "who knows no authority trusts nobody");

    // Now a user, too.
    let http = reqwest::blocking::Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(known.ca.as_ref().unwrap()).unwrap())
        .identity(reqwest::Identity::from_pem(known.identity.as_ref().unwrap()).unwrap())
        .build()
        .unwrap();
    let ask = |path: &str, body: &str| {
        let asked = http.post(format!("https://{}/v3/{path}", cluster.hosts())).body(body.to_owned()).send();
        assert!(asked.unwrap().status().is_success(), "{path}");
    };
    ask("auth/role/add", r#"{"name": "root"}"#);
    for (user, password) in [("root", "top"), ("saver", "secret")] {
        ask("auth/user/add", &format!(r#"{{"name": "{user}", "password": "{password}"}}"#));
        ask("auth/user/grant", &format!(r#"{{"user": "{user}", "role": "root"}}"#));
    }
    ask("auth/enable", "{}");
    let refused = open(&known).get("stdchk").unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    let as_user = |password: &str| Login { user: Some(("saver".into(), password.into())), ..known.clone() };
    assert_eq!(open(&as_user("wrong")).get("stdchk").unwrap_err().kind(), Kind::Denied);
    assert_eq!(open(&as_user("secret")).get("stdchk").unwrap().unwrap(), b"a pool");
}
