//! Metrics in the text form of Prometheus, over HTTP: `GET /metrics`.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use stdchk_catalog::{Medium, State};
use stdchk_object::Result;
use stdchk_object::error::Context;
use stdchk_object::member::Tally;
use stdchk_pool::{Report, Traffic, question_word};

use crate::save::Saved;
use crate::tier::DrainTally;

/// How long somebody may take to ask and to listen: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest question.
const QUESTION_MAX: usize = 8 << 10;

/// Where the metrics of a benefactor come from.
pub(crate) struct Reports {
    pub(crate) medium: Medium,
    pub(crate) report: Box<dyn Fn() -> Report + Send>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) drained: Arc<DrainTally>,
}

/// Metrics as they are written.
#[derive(Default)]
pub(crate) struct Page(String);

impl Page {
    /// One number that goes up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.one("gauge", name, help, value);
    }

    /// One number that only goes up.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.one("counter", name, help, value);
    }

    fn one(&mut self, kind: &str, name: &str, help: &str, value: u64) {
        self.some(kind, name, help, [(String::new(), value)]);
    }

    /// Several numbers of one name, each with its labels.
    fn some(&mut self, kind: &str, name: &str, help: &str, values: impl IntoIterator<Item = (String, u64)>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP stdchk_{name} {help}\n# TYPE stdchk_{name} {kind}");
        for (labels, value) in values {
            let _ = match labels.is_empty() {
                true => writeln!(self.0, "stdchk_{name} {value}"),
                false => writeln!(self.0, "stdchk_{name}{{{labels}}} {value}"),
            };
        }
    }

    /// What a process was asked.
    pub(crate) fn traffic(&mut self, traffic: &Traffic) {
        self.traffics(&[(String::new(), traffic)]);
    }

    /// What several were asked who have labels.
    fn traffics(&mut self, all: &[(String, &Traffic)]) {
        let questions = all.iter().flat_map(|(label, traffic)| {
            let comma = if label.is_empty() { "" } else { "," };
            traffic.questions().map(move |(kind, count)| {
                (format!("question=\"{}\"{comma}{label}", question_word(kind)), count)
            })
        });
        self.some("counter", "questions_total", "Questions that were asked.", questions);
        let mut each = |name, help, number: fn(&Traffic) -> u64| {
            let numbers = all.iter().map(|(label, traffic)| (label.clone(), number(traffic)));
            self.some("counter", name, help, numbers);
        };
        each("refusals_total", "Questions that were refused.", Traffic::refusals);
        each("received_bytes_total", "Bytes of packs and objects that came.", |traffic| traffic.bytes().0);
        each("sent_bytes_total", "Bytes of packs, objects and records that went.", |traffic| {
            traffic.bytes().1
        });
    }

    /// How benefactors are, and what they did.
    pub(crate) fn benefactors(&mut self, all: &[Reports]) {
        let label = |one: &Reports| format!("medium=\"{}\"", one.medium.as_str());
        let now: Vec<(String, Report)> = all.iter().map(|one| (label(one), (one.report)())).collect();
        let mut each = |name, help, number: fn(&Report) -> u64| {
            self.some("gauge", name, help, now.iter().map(|(label, report)| (label.clone(), number(report))));
        };
        each("lent_bytes", "Bytes that are lent.", |report| report.capacity);
        each("used_bytes", "Bytes that are held.", |report| report.used);
        each("reserved_bytes", "Bytes that are kept for packs to come.", |report| report.kept);
        each("packs", "Packs and shards that are held.", |report| report.packs);
        each("packs_behind", "Packs and shards that are still to be given to others.", |report| {
            report.behind
        });
        each("settled_epoch", "The epoch by which all that is held lies where it belongs.", |report| {
            report.settled
        });
        let mut each = |name, help, number: fn(&DrainTally) -> u64| {
            self.some("counter", name, help, all.iter().map(|one| (label(one), number(&one.drained))));
        };
        each("drained_packs_total", "Packs that were copied to safe storage.", |tally| tally.get().0);
        each("drained_bytes_total", "Bytes of these.", |tally| tally.get().1);
        self.traffics(&all.iter().map(|one| (label(one), &*one.traffic)).collect::<Vec<_>>());
    }

    /// How a pool is.
    pub(crate) fn pool(&mut self, state: &State) {
        let pool = state.pool();
        self.gauge("epoch", "The epoch of the pool.", pool.epoch());
        self.gauge(
            "pool_settled_epoch",
            "The epoch by which everything lies where it belongs.",
            pool.settled(),
        );
        self.gauge("members", "Benefactors of the pool.", pool.members().len() as u64);
        self.gauge("checkpoints", "Checkpoints that there are.", state.checkpoints().count() as u64);
        self.gauge("sessions", "Sessions that are open.", state.sessions().len() as u64);
        self.gauge(
            "drained_checkpoints",
            "Checkpoints in safe storage.",
            state.checkpoints().filter(|entry| state.drain().is_drained(entry)).count() as u64,
        );
        self.counter("records_total", "Records of the log.", state.number());
        self.counter("commits_total", "Commits and compactions.", state.commits());
    }
}

/// The figures of one save.
pub fn metrics_of(saved: &Saved) -> String {
    let (entry, tally) = (&saved.entry, Tally::from(saved.entry.tally));
    let app = entry.app.as_str().replace('\\', "\\\\").replace('"', "\\\"");
    let mut page = Page::default();
    let mut gauge = |name, help, value| {
        page.some("gauge", name, help, [(format!("app=\"{app}\""), value)]);
    };
    gauge("save_step", "The step that was saved last.", entry.step);
    gauge(
        "save_time_seconds",
        "When it was, in seconds since 1970.",
        entry.created_ns.max(0).unsigned_abs() / 1_000_000_000,
    );
    gauge("save_duration_milliseconds", "How long the save took.", entry.took_ms);
    gauge("save_members", "Members that it has.", entry.member_count);
    gauge("save_bytes", "Bytes of these.", entry.bytes);
    gauge("save_new_bytes", "Bytes that were new.", tally.new);
    gauge("save_shared_bytes", "Bytes that were there already.", tally.shared);
    gauge("save_zero_bytes", "Bytes that are zero.", tally.zero);
    gauge("save_written_bytes", "Bytes that were written for it.", entry.written);
    page.0
}

/// Answers those who ask for metrics, until it is dropped.
pub(crate) struct Metrics {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Listens at `address`, a host and a port.
    pub(crate) fn bind(address: &str) -> Result<TcpListener> {
        TcpListener::bind(address).context(|| format!("cannot listen at {address}"))
    }

    /// Answers there; `page` writes what there is to say.
    pub(crate) fn serve(listener: TcpListener, page: impl Fn() -> Page + Send + 'static) -> Result<Metrics> {
        let cannot = || "cannot answer those who ask for metrics".to_owned();
        let address = listener.local_addr().context(cannot)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = is_ending.clone();
        let answer_all = move || {
            while !ending.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) if !ending.load(Ordering::Relaxed) => {
                        if let Err(error) = answer(stream, &page) {
                            tracing::debug!("whoever asked for metrics went away: {error}");
                        }
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("stdchk-metrics".into()).spawn(answer_all);
        Ok(Metrics { address, is_ending, thread: Some(thread.context(cannot)?) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn answer(mut stream: TcpStream, page: &impl Fn() -> Page) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = Vec::new();
    let mut some = [0; 1024];
    while !question.windows(4).any(|end| end == b"\r\n\r\n") && question.len() < QUESTION_MAX {
        match stream.read(&mut some)? {
            0 => break,
            len => question.extend_from_slice(&some[..len]),
        }
    }
    let is_known = question.starts_with(b"GET /metrics ");
    let (status, body) = match is_known {
        true => ("200 OK", page().0),
        false => ("404 Not Found", "there is only /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // Wakes the one that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
