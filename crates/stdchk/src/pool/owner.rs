//! Whether the owner of a machine wants back what it lends.

use std::fs::read_to_string;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGUSR1, SIGUSR2};
use stdchk_object::{Error, Result};

/// What shows that the owner wants the machine back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum YieldWhen {
    /// Other programs use more than this part of all processors.
    Load(f64),
    /// Somebody is logged in.
    Login,
    /// SIGUSR1 came, and no SIGUSR2 since.
    Signal,
}

/// The part that counts as a load where no other is said.
const LOAD: f64 = 0.5;
/// Over how long the load is measured.
const WINDOW: Duration = Duration::from_secs(5);

impl FromStr for YieldWhen {
    type Err = Error;

    fn from_str(text: &str) -> Result<YieldWhen> {
        let bad = || {
            Error::invalid(format!(
                "{text:?} is none of load, load=PART (of all processors, between 0 and 1), login and signal"
            ))
        };
        match text.split_once('=') {
            None if text == "load" => Ok(YieldWhen::Load(LOAD)),
            None if text == "login" => Ok(YieldWhen::Login),
            None if text == "signal" => Ok(YieldWhen::Signal),
            Some(("load", part)) => {
                let part = part.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part));
                part.map(YieldWhen::Load).ok_or_else(bad)
            }
            _ => Err(bad()),
        }
    }
}

/// Looks whether the owner wants the machine.
pub struct Owner {
    when: Vec<YieldWhen>,
    /// How long nothing must have shown it before that is over.
    calm: Duration,
    wanted: Option<Instant>,
    load: Load,
    /// SIGUSR1 and SIGUSR2.
    signals: Option<[Arc<AtomicBool>; 2]>,
    is_signalled: bool,
}

impl Owner {
    /// Who shows it in one of these ways.
    pub fn new(when: &[YieldWhen], calm: Duration) -> Result<Owner> {
        let register = |signal| -> Result<Arc<AtomicBool>> {
            let flag = Arc::new(AtomicBool::new(false));
            let registered = signal_hook::flag::register(signal, flag.clone());
            registered.map_err(|error| Error::io(format!("cannot wait for signal {signal}"), error))?;
            Ok(flag)
        };
        let signals = match when.contains(&YieldWhen::Signal) {
            true => Some([register(SIGUSR1)?, register(SIGUSR2)?]),
            false => None,
        };
        let load = Load::default();
        Ok(Owner { when: when.to_vec(), calm, wanted: None, load, signals, is_signalled: false })
    }

    /// Whether the machine is wanted, or was a moment ago. Asked now and then.
    pub fn wants_it(&mut self) -> bool {
        if let Some([begins, ends]) = &self.signals {
            self.is_signalled |= begins.swap(false, Ordering::Relaxed);
            if ends.swap(false, Ordering::Relaxed) {
                self.is_signalled = false;
                // Whoever says so need not be waited for.
                self.wanted = None;
            }
        }
        let load = self.load.of_others();
        let shows = |when: &YieldWhen| match when {
            YieldWhen::Load(most) => load > *most,
            YieldWhen::Login => is_anybody_logged_in(),
            YieldWhen::Signal => self.is_signalled,
        };
        if self.when.iter().any(shows) {
            self.wanted = Some(Instant::now());
        }
        self.wanted.is_some_and(|wanted| wanted.elapsed() < self.calm)
    }
}

/// Ticks of the processors: all, those at work, and those at work for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

/// What part of all processors others use.
#[derive(Default)]
struct Load {
    last: Option<(Instant, Ticks)>,
    others: f64,
}

impl Load {
    fn of_others(&mut self) -> f64 {
        let is_due = self.last.is_none_or(|(at, _)| at.elapsed() >= WINDOW);
        if is_due && let Some(ticks) = ticks_now() {
            if let Some((_, before)) = self.last {
                self.others = others_between(before, ticks);
            }
            self.last = Some((Instant::now(), ticks));
        }
        self.others
    }
}

fn others_between(before: Ticks, after: Ticks) -> f64 {
    let (all, busy) = (after.all.saturating_sub(before.all), after.busy.saturating_sub(before.busy));
    let others = busy.saturating_sub(after.own.saturating_sub(before.own));
    if all == 0 { 0.0 } else { others as f64 / all as f64 }
}

fn ticks_now() -> Option<Ticks> {
    let (all, busy) = machine_ticks(&read_to_string("/proc/stat").ok()?)?;
    Some(Ticks { all, busy, own: own_ticks(&read_to_string("/proc/self/stat").ok()?)? })
}

/// The first line of `/proc/stat` (proc_stat(5)): user nice system idle iowait irq softirq steal, and guests, which are in user and nice already.
fn machine_ticks(text: &str) -> Option<(u64, u64)> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        numbers.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks[..] else { return None };
    let busy = user + nice + system + irq + softirq;
    Some((busy + idle + iowait + steal, busy))
}

/// Fields 14 and 15 of `/proc/self/stat` (proc_pid_stat(5)); the name of the program, which is the second, may have anything in it.
fn own_ticks(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Asks whoever knows: the manager of logins, or the table that was kept before there was one.
fn is_anybody_logged_in() -> bool {
    let sessions = Path::new("/run/systemd/sessions");
    if let Ok(entries) = std::fs::read_dir(sessions) {
        // Beside the files there may be pipes, which would be waited for.
        let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut texts = files.filter_map(|entry| read_to_string(entry.path()).ok());
        return texts.any(|text| is_session_of_user(&text));
    }
    std::fs::read("/run/utmp").is_ok_and(|table| has_user(&table))
}

/// A file of sd-login: a session of somebody, which is not being closed.
fn is_session_of_user(text: &str) -> bool {
    let has = |line| text.lines().any(|other| other == line);
    has("CLASS=user") && !has("STATE=closing")
}

/// A table of utmp(5), of entries of 384 bytes that begin with their kind.
fn has_user(table: &[u8]) -> bool {
    const ENTRY: usize = 384;
    const USER_PROCESS: [u8; 2] = 7i16.to_ne_bytes();
    table.chunks_exact(ENTRY).any(|entry| entry[..2] == USER_PROCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        assert_eq!("load".parse::<YieldWhen>().unwrap(), YieldWhen::Load(LOAD));
        assert_eq!("load=0.9".parse::<YieldWhen>().unwrap(), YieldWhen::Load(0.9));
        assert_eq!("login".parse::<YieldWhen>().unwrap(), YieldWhen::Login);
        assert_eq!("signal".parse::<YieldWhen>().unwrap(), YieldWhen::Signal);
        for bad in ["", "load=", "load=2", "load=-1", "load=nan", "login=1", "idle"] {
            assert!(bad.parse::<YieldWhen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_load_is_that_of_others() {
        let stat = "cpu  100 10 50 800 20 5 15 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine_ticks(stat), Some((1000, 180)));
        assert_eq!(machine_ticks("cpu  1 2 x"), None);
        let own = "42 (a name) with ) in it) S 1 2 3 4 5 6 7 8 9 10 30 40 0 0 20";
        assert_eq!(own_ticks(own), Some(70));
        let before = Ticks { all: 1000, busy: 180, own: 70 };
        let after = Ticks { all: 2000, busy: 980, own: 270 };
        assert!((others_between(before, after) - 0.6).abs() < 1e-9);
        assert_eq!(others_between(before, before), 0.0);
        assert!(ticks_now().is_some());
    }

    #[test]
    fn users_are_told_from_services() {
        assert!(is_session_of_user("UID=1000\nUSER=ann\nACTIVE=1\nSTATE=active\nCLASS=user\n"));
        assert!(!is_session_of_user("UID=0\nSTATE=active\nCLASS=manager\n"));
        assert!(!is_session_of_user("UID=1000\nSTATE=closing\nCLASS=user\n"));
        let mut table = vec![0; 3 * 384];
        table[384] = 2;
        assert!(!has_user(&table));
        table[768] = 7;
        assert!(has_user(&table));
        assert!(!has_user(&table[..800]));
    }

    #[test]
    fn it_is_wanted_for_a_while_after_the_last_sign() {
        let mut owner = Owner::new(&[YieldWhen::Signal], Duration::from_millis(80)).unwrap();
        assert!(!owner.wants_it());
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert!(owner.wants_it());
        std::thread::sleep(Duration::from_millis(120));
        assert!(owner.wants_it(), "until somebody says otherwise");
        signal_hook::low_level::raise(SIGUSR2).unwrap();
        assert!(!owner.wants_it());
    }
}
