//! Asking etcd.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::blocking::Client;
use serde_json::{Value, json};
use stdchk_object::{Error, Kind, Result};

use crate::seal::Seal;

/// How addresses begin: of members that speak plainly, and of those that speak TLS.
pub const SCHEMES: [&str; 2] = ["etcd://", "etcds://"];
/// How long one member is waited for, and how long all of them together.
const ANSWER_PATIENCE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(50);
/// The codes of gRPC for what another member, or the same one later, may do all the same.
const UNAVAILABLE: [u64; 4] = [4, 8, 14, 1];
const UNAUTHENTICATED: u64 = 16;
const NOT_FOUND: u64 = 5;

/// How to be let in, where etcd asks for that. [`Login::of_environment`] has the names that `etcdctl` uses.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// Who has signed the members' certificates: PEM.
    pub ca: Option<Vec<u8>>,
    /// A certificate with its key: PEM, one after the other.
    pub identity: Option<Vec<u8>>,
    /// A user's name and password.
    pub user: Option<(String, String)>,
}

impl Login {
    /// What `ETCDCTL_CACERT`, `ETCDCTL_CERT`, `ETCDCTL_KEY` (files) and `ETCDCTL_USER` (`name:password`) say.
    pub fn of_environment() -> Result<Login> {
        let file = |name: &str| -> Result<Option<Vec<u8>>> {
            let Some(path) = std::env::var_os(name) else { return Ok(None) };
            let read = std::fs::read(&path);
            read.map(Some)
                .map_err(|error| Error::io(format!("cannot read {} ({name})", path.to_string_lossy()), error))
        };
        let identity = match (file("ETCDCTL_CERT")?, file("ETCDCTL_KEY")?) {
            (Some(cert), Some(key)) => Some([key, b"\n".to_vec(), cert].concat()),
            (None, None) => None,
            _ => return Err(Error::invalid("ETCDCTL_CERT and ETCDCTL_KEY go together")),
        };
        let user = std::env::var("ETCDCTL_USER").ok();
        let user = user.map(|user| match user.split_once(':') {
            Some((name, password)) => Ok((name.to_owned(), password.to_owned())),
            None => Err(Error::invalid("ETCDCTL_USER must be NAME:PASSWORD")),
        });
        Ok(Login { ca: file("ETCDCTL_CACERT")?, identity, user: user.transpose()? })
    }
}

/// A prefix of the keys of an etcd cluster, whose values are sealed with one secret.
pub struct Etcd {
    /// `http://host:port` of each member.
    members: Vec<String>,
    /// Ends with a slash.
    prefix: String,
    /// For messages.
    place: String,
    /// The member that answered last.
    current: AtomicUsize,
    http: Client,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
    /// Held by whoever logs in.
    login: Mutex<()>,
    seal: Seal,
}

/// A key without the prefix, what it holds since which revision, and the lease with which it goes.
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    pub revision: i64,
    pub lease: i64,
}

/// How a key should be.
#[derive(Clone, Copy)]
pub enum Is {
    /// As it was put in that revision; 0 is not there.
    At(i64),
    /// There.
    There,
}

/// Why there is no answer.
enum Failure {
    /// Another member, or the same one later, may answer.
    Unavailable(String),
    Unauthenticated,
    NotFound,
    Other(String),
}

impl Etcd {
    /// The prefix of `etcd://host:port,host:port/prefix`. Nothing is asked yet.
    pub fn open(url: &str, login: &Login, secret: &[u8; 32]) -> Result<Etcd> {
        let bad = || {
            Error::invalid(format!("{url:?} is no place in etcd: write etcd://HOST:PORT,HOST:PORT/PREFIX"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(bad()),
        };
        let (hosts, prefix) = rest.split_once('/').ok_or_else(bad)?;
        let prefix = prefix.trim_matches('/');
        let is_host = |host: &str| {
            host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
        };
        if prefix.is_empty() || !hosts.split(',').all(is_host) {
            return Err(bad());
        }
        // Of several ways to encrypt one is chosen, once for the process; somebody else may have chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let cannot =
            |error: reqwest::Error| Error::invalid(format!("cannot speak with {url}: {}", chain(&error)));
        let mut builder =
            Client::builder().timeout(ANSWER_PATIENCE).connect_timeout(ANSWER_PATIENCE / 4).no_proxy();
        if let Some(ca) = &login.ca {
            builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(ca).map_err(cannot)?);
        }
        if let Some(identity) = &login.identity {
            builder = builder.identity(reqwest::Identity::from_pem(identity).map_err(cannot)?);
        }
        Ok(Etcd {
            members: hosts.split(',').map(|host| format!("{scheme}://{host}")).collect(),
            prefix: format!("{prefix}/"),
            place: url.to_owned(),
            current: AtomicUsize::new(0),
            http: builder.build().map_err(cannot)?,
            user: login.user.clone(),
            token: Mutex::default(),
            login: Mutex::default(),
            seal: Seal::new(secret),
        })
    }

    /// Where it is, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Asks one member after the other until one answers. What is asked may be asked twice.
    fn ask(&self, path: &str, body: &Value) -> Result<Option<Value>> {
        let begun = Instant::now();
        let mut logged_in = false;
        loop {
            let at = self.current.load(Ordering::Relaxed) % self.members.len();
            let token = self.token().clone();
            let why = match self.ask_member(&self.members[at], path, body, token.as_deref()) {
                Ok(answer) => return Ok(Some(answer)),
                Err(Failure::NotFound) => return Ok(None),
                Err(Failure::Unauthenticated) if self.user.is_some() && !logged_in => {
                    match self.log_in(&self.members[at], token)? {
                        None => {
                            logged_in = true;
                            continue;
                        }
                        Some(why) => why,
                    }
                }
                Err(Failure::Unauthenticated) => {
                    let text = format!("{} wants a user and a password (ETCDCTL_USER)", self.place);
                    return Err(Error::new(Kind::Denied, text));
                }
                Err(Failure::Other(why)) => {
                    return Err(Error::new(Kind::Io, format!("{}: {why}", self.place)));
                }
                Err(Failure::Unavailable(why)) => why,
            };
            let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
            tracing::debug!("{} does not answer: {why}", self.members[at]);
            if begun.elapsed() > PATIENCE {
                return Err(Error::new(Kind::Io, format!("{} does not answer: {why}", self.place)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn ask_member(
        &self,
        member: &str,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> std::result::Result<Value, Failure> {
        let mut request = self.http.post(format!("{member}/v3/{path}")).body(body.to_string());
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let answer = request.send().map_err(|error| not_asked(&error))?;
        let (status, text) = (answer.status(), answer.text().map_err(|error| not_asked(&error))?);
        let value: Value = serde_json::from_str(&text).map_err(|_| {
            let said: String = text.trim().chars().take(200).collect();
            Failure::Other(format!("{member} answers with status {status}: {said}"))
        })?;
        if status.is_success() && value.get("error").is_none() {
            return Ok(value);
        }
        // Streams wrap what has gone wrong.
        let wrong = value.get("error").filter(|error| error.is_object()).unwrap_or(&value);
        let why = [&wrong["message"], &wrong["error"]]
            .iter()
            .find_map(|text| text.as_str())
            .unwrap_or(&text)
            .to_owned();
        let code = [&wrong["code"], &wrong["grpc_code"]].iter().find_map(|code| code.as_u64()).unwrap_or(2);
        Err(match code {
            UNAUTHENTICATED => Failure::Unauthenticated,
            // Without a token a cluster that asks for one says that no user is named.
            _ if why.contains("user name is empty") || why.contains("invalid auth token") => {
                Failure::Unauthenticated
            }
            NOT_FOUND => Failure::NotFound,
            code if UNAVAILABLE.contains(&code) => Failure::Unavailable(why),
            _ => Failure::Other(why),
        })
    }

    /// Gets another token than the one that was refused, unless somebody else just has. Why it could not, where another member may.
    fn log_in(&self, member: &str, refused: Option<String>) -> Result<Option<String>> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let _login = self.login.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *self.token() != refused {
            return Ok(None);
        }
        let body = json!({ "name": name, "password": password });
        let token = match self.ask_member(member, "auth/authenticate", &body, None) {
            Ok(answer) => answer["token"].as_str().map(str::to_owned),
            Err(Failure::Unavailable(why)) => return Ok(Some(why)),
            Err(_) => None,
        };
        let denied = || Error::new(Kind::Denied, format!("{} does not let user {name} in", self.place));
        *self.token() = Some(token.ok_or_else(denied)?);
        Ok(None)
    }

    fn must(&self, path: &str, body: &Value) -> Result<Value> {
        let vanished = || Error::new(Kind::Io, format!("{}: {path} is not known there", self.place));
        self.ask(path, body)?.ok_or_else(vanished)
    }

    fn key(&self, key: &str) -> Value {
        STANDARD.encode(format!("{}{key}", self.prefix)).into()
    }

    /// Keys from `from` to before `to`, in order, with what they hold; so many at most.
    pub fn range(&self, from: &str, to: &str, limit: u64) -> Result<Vec<Entry>> {
        let body = json!({ "key": self.key(from), "range_end": self.key(to), "limit": limit.to_string() });
        self.entries(&self.must("kv/range", &body)?)
    }

    /// What one key holds.
    pub fn get(&self, key: &str) -> Result<Option<Entry>> {
        Ok(self.entries(&self.must("kv/range", &json!({ "key": self.key(key) }))?)?.pop())
    }

    /// Keys from `from` to before `to`, without what they hold.
    pub fn keys(&self, from: &str, to: &str) -> Result<Vec<String>> {
        let body = json!({ "key": self.key(from), "range_end": self.key(to), "keys_only": true });
        let answer = self.must("kv/range", &body)?;
        answer["kvs"].as_array().into_iter().flatten().map(|kv| self.name_of(kv)).collect()
    }

    fn name_of(&self, kv: &Value) -> Result<String> {
        let key = String::from_utf8(self.bytes(&kv["key"])?).ok();
        let key = key.as_deref().and_then(|key| key.strip_prefix(&self.prefix));
        key.map(str::to_owned).ok_or_else(|| self.garbled("a key that was not asked for"))
    }

    fn bytes(&self, value: &Value) -> Result<Vec<u8>> {
        STANDARD.decode(value.as_str().unwrap_or_default()).map_err(|_| self.garbled("no base64"))
    }

    fn garbled(&self, what: &str) -> Error {
        Error::new(Kind::Io, format!("{} answers with {what}", self.place))
    }

    fn entries(&self, answer: &Value) -> Result<Vec<Entry>> {
        let kvs = answer["kvs"].as_array().into_iter().flatten();
        kvs.map(|kv| {
            let key = self.name_of(kv)?;
            let value = self.seal.open(&key, &self.bytes(&kv["value"])?)?;
            Ok(Entry { key, value, revision: int(&kv["mod_revision"]), lease: int(&kv["lease"]) })
        })
        .collect()
    }

    fn put_op(&self, key: &str, value: &[u8], lease: i64) -> Result<Value> {
        let sealed = STANDARD.encode(self.seal.seal(key, value)?);
        Ok(json!({ "key": self.key(key), "value": sealed, "lease": lease.to_string() }))
    }

    /// Puts a value; with a lease that is not 0, for as long as that lives. `false` where the lease is over.
    pub fn put(&self, key: &str, value: &[u8], lease: i64) -> Result<bool> {
        Ok(self.ask("kv/put", &self.put_op(key, value, lease)?)?.is_some())
    }

    /// Puts all of these, or none if `absent` is there.
    pub fn put_unless(&self, absent: &str, entries: &[(String, &[u8])]) -> Result<bool> {
        self.put_if(&[(absent, Is::At(0))], entries, 0)
    }

    /// Puts all of these, with a lease that is not 0 for as long as that lives, if some keys are as they should be; or else none.
    pub fn put_if(&self, keys: &[(&str, Is)], entries: &[(String, &[u8])], lease: i64) -> Result<bool> {
        let put =
            |(key, value): &(String, &[u8])| Ok(json!({ "request_put": self.put_op(key, value, lease)? }));
        let puts = entries.iter().map(put).collect::<Result<Vec<Value>>>()?;
        let compare = |(key, is): &(&str, Is)| match is {
            Is::At(revision) => {
                json!({ "key": self.key(key), "target": "MOD", "mod_revision": revision.to_string() })
            }
            Is::There => {
                json!({ "key": self.key(key), "target": "CREATE", "result": "GREATER", "create_revision": "0" })
            }
        };
        let body = json!({ "compare": keys.iter().map(compare).collect::<Vec<_>>(), "success": puts });
        // Where the lease is over, nothing is put.
        Ok(self.ask("kv/txn", &body)?.is_some_and(|answer| answer["succeeded"] == true))
    }

    /// Removes keys from `from` to before `to`.
    pub fn remove_range(&self, from: &str, to: &str) -> Result<()> {
        let body = json!({ "key": self.key(from), "range_end": self.key(to) });
        self.must("kv/deleterange", &body).map(drop)
    }

    /// Removes one key.
    pub fn remove(&self, key: &str) -> Result<()> {
        self.must("kv/deleterange", &json!({ "key": self.key(key) })).map(drop)
    }

    /// A new lease for so many seconds.
    pub fn grant(&self, seconds: u64) -> Result<i64> {
        let answer = self.must("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        match int(&answer["ID"]) {
            0 => Err(self.garbled("no lease")),
            lease => Ok(lease),
        }
    }

    /// Renews a lease; `false` where it is over.
    pub fn renew(&self, lease: i64) -> Result<bool> {
        let answer = self.ask("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(answer.is_some_and(|answer| int(&answer["result"]["TTL"]) > 0))
    }

    /// How long ago a lease was granted or renewed, by etcd's clock; `None` where it is over. Another leader renews all of them.
    pub fn age(&self, lease: i64) -> Result<Option<Duration>> {
        let answer = self.ask("lease/timetolive", &json!({ "ID": lease.to_string() }))?;
        let Some(answer) = answer else { return Ok(None) };
        let (granted, left) = (int(&answer["grantedTTL"]), int(&answer["TTL"]));
        Ok((left >= 0).then(|| Duration::from_secs((granted - left).max(0) as u64)))
    }

    /// Ends a lease, and removes all keys that live by it.
    pub fn revoke(&self, lease: i64) -> Result<()> {
        self.ask("lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }
}

/// A number as the gateway writes it: those of 64 bits are text, and zeros are left out.
fn int(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Why a question did not come through. What is said of certificates stays so.
fn not_asked(error: &reqwest::Error) -> Failure {
    let why = chain(error);
    if why.to_ascii_lowercase().contains("certificate") {
        Failure::Other(why)
    } else {
        Failure::Unavailable(why)
    }
}

/// An error with what led to it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
