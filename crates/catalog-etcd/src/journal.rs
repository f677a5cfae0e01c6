//! The log of a catalog.

use std::sync::Arc;

use stdchk_catalog::{Record, State, random};
use stdchk_catalog_log::{Journal, Limits, Newer};
use stdchk_object::{Error, Kind, Result};

use crate::client::{Etcd, Is};

/// What one transaction may have, by etcd's own limits of 128 operations and 1.5 MiB.
const LIMITS: Limits = Limits { records: 100, bytes: 1 << 20 };
/// The longest value; what is longer is cut.
const PIECE_BYTES: usize = 512 << 10;
/// Values that are read at once.
const PAGE: u64 = 256;
/// Records that stay behind a snapshot, for those who know a state that is a little older.
const RECORDS_KEPT: u64 = 1024;
/// How often reading begins anew because what is read was replaced meanwhile.
const TRIES: u32 = 20;
/// Where the newest snapshot is said to be.
const NEWEST: &str = "snapshot";

/// A log in etcd, which any number of processes write.
pub struct EtcdJournal {
    etcd: Arc<Etcd>,
    id: u64,
}

impl EtcdJournal {
    /// The log under a prefix; made where there is none and `founds`.
    pub fn open(etcd: Arc<Etcd>, founds: bool) -> Result<EtcdJournal> {
        if founds {
            etcd.put_unless("id", &[("id".to_owned(), &random::<8>()?)])?;
        }
        let missing = || Error::new(Kind::NotFound, format!("there is no pool at {}", etcd.place()));
        let id = etcd.get("id")?.ok_or_else(missing)?.value;
        let id =
            id.try_into().map_err(|_| Error::corrupt(format!("{}: the pool's id is none", etcd.place())))?;
        Ok(EtcdJournal { id: u64::from_le_bytes(id), etcd })
    }

    /// The newest snapshot; `None` while it is replaced.
    fn newest_state(&self) -> Result<Option<State>> {
        let (number, _) = self.newest_snapshot()?;
        if number == 0 {
            return Ok(Some(State::default()));
        }
        match self.read_pieces(&snapshot_key(number))? {
            Some(bytes) => State::decode(number, &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// The number of the newest snapshot, 0 before the first, and the revision since which it is the newest.
    fn newest_snapshot(&self) -> Result<(u64, i64)> {
        let Some(entry) = self.etcd.get(NEWEST)? else { return Ok((0, 0)) };
        let number = entry.value.try_into().map(u64::from_le_bytes);
        let number = number.map_err(|_| Error::corrupt("what should name the newest snapshot does not"))?;
        Ok((number, entry.revision))
    }

    /// Writes something in pieces, the last of them by a name that says so.
    fn write_pieces(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let count = bytes.len().div_ceil(PIECE_BYTES).max(1);
        for at in 0..count {
            let piece = &bytes[at * PIECE_BYTES..bytes.len().min((at + 1) * PIECE_BYTES)];
            let last = if at + 1 == count { "-last" } else { "" };
            self.etcd.put(&format!("{key}/{at:08}{last}"), piece, 0)?;
        }
        Ok(())
    }

    /// What was written in pieces, if all of them are there.
    fn read_pieces(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        // One by one: together they may be longer than an answer can be.
        for at in 0.. {
            let (from, to) = (format!("{key}/{at:08}"), format!("{key}/{:08}", at + 1));
            let Some(entry) = self.etcd.range(&from, &to, 1)?.pop() else { return Ok(None) };
            bytes.extend_from_slice(&entry.value);
            if entry.key.ends_with("-last") {
                break;
            }
        }
        Ok(Some(bytes))
    }

    /// The records behind `number`; `None` where the next of them is not there any more.
    fn records_after(&self, mut number: u64) -> Result<Option<Vec<Arc<[u8]>>>> {
        let mut records = Vec::new();
        loop {
            let page = self.etcd.range(&record_key(number + 1), RECORDS_END, PAGE)?;
            let is_last = (page.len() as u64) < PAGE;
            for entry in page {
                if entry.key != record_key(number + 1) {
                    return Ok(None);
                }
                let Some(record) = self.whole(number + 1, entry.value)? else { return Ok(None) };
                records.push(record.into());
                number += 1;
            }
            if is_last {
                return Ok(Some(records));
            }
        }
    }

    /// A record: itself, or cut in pieces that lie elsewhere.
    fn whole(&self, number: u64, mut value: Vec<u8>) -> Result<Option<Vec<u8>>> {
        match value.first() {
            Some(0) => {
                value.remove(0);
                Ok(Some(value))
            }
            Some(1) if value.len() == 9 => self.read_pieces(&long_key(number, &hex(&value[1..]))),
            _ => Err(Error::corrupt(format!("log record {number} is of a kind that is not known here"))),
        }
    }

    /// The value under which a record lies, once its pieces are there.
    fn value_of(&self, number: u64, record: &[u8]) -> Result<Vec<u8>> {
        if record.len() <= PIECE_BYTES {
            return Ok([&[0], record].concat());
        }
        let nonce: [u8; 8] = random()?;
        self.write_pieces(&long_key(number, &hex(&nonce)), record)?;
        Ok([&[1], &nonce[..]].concat())
    }

    /// Removes what nobody needs any more who knows the snapshot `number`; the record of that number stays.
    fn trim(&self, number: u64) -> Result<()> {
        let oldest = number.saturating_sub(RECORDS_KEPT) + 1;
        self.etcd.remove_range(&record_key(0), &record_key(oldest))?;
        self.etcd.remove_range(&long_key(0, ""), &long_key(oldest, ""))?;
        self.etcd.remove_range(&snapshot_key(0), &snapshot_key(number))
    }
}

impl Journal for EtcdJournal {
    fn read(&mut self) -> Result<State> {
        // A snapshot and its records go when there is a newer one.
        for _ in 0..TRIES {
            let Some(mut state) = self.newest_state()? else { continue };
            let Some(records) = self.records_after(state.number())? else { continue };
            for record in records {
                state.apply(&Record::decode(state.number() + 1, &record)?)?;
            }
            return Ok(state);
        }
        Err(Error::corrupt(format!(
            "{}: the newest snapshot or records behind it are missing",
            self.etcd.place()
        )))
    }

    fn append(&mut self, first: u64, records: &[Arc<[u8]>]) -> Result<bool> {
        let values = (first..).zip(records).map(|(number, record)| self.value_of(number, record));
        let values = values.collect::<Result<Vec<Vec<u8>>>>()?;
        let entries: Vec<(String, &[u8])> =
            (first..).zip(&values).map(|(number, value)| (record_key(number), &value[..])).collect();
        // A record that is not there may also have been trimmed away: the one before it has to be there, and none behind it.
        let before =
            if first > 1 { (record_key(first - 1), Is::There) } else { (NEWEST.to_owned(), Is::At(0)) };
        let absent = entries.iter().map(|(key, _)| (&key[..], Is::At(0)));
        let keys: Vec<(&str, Is)> = std::iter::once((&before.0[..], before.1)).chain(absent).collect();
        if self.etcd.put_if(&keys, &entries, 0)? {
            return Ok(true);
        }
        // The answer to what succeeded may have been lost, and the question asked again.
        let there = self.etcd.get(&record_key(first))?;
        Ok(there.is_some_and(|entry| entry.value == values[0]))
    }

    /// A transaction is answered when a majority of etcd's members have it on disk.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn snapshot(&mut self, state: &State) -> Result<()> {
        let number = state.number();
        let (newest, revision) = self.newest_snapshot()?;
        if newest >= number {
            return Ok(());
        }
        self.write_pieces(&snapshot_key(number), &state.encode())?;
        // Of two who do this at once one comes too late; the next snapshot removes its pieces.
        match self.etcd.put_if(
            &[(NEWEST, Is::At(revision))],
            &[(NEWEST.to_owned(), &number.to_le_bytes())],
            0,
        )? {
            true => self.trim(number),
            false => Ok(()),
        }
    }

    fn newer(&mut self, number: u64) -> Result<Newer> {
        match self.records_after(number)? {
            Some(records) => Ok(Newer::Records(records)),
            None => Ok(Newer::State(Box::new(self.read()?))),
        }
    }

    fn check(&mut self) -> Result<Vec<String>> {
        match self.read() {
            Ok(_) => Ok(Vec::new()),
            // That it could not be read says nothing about what is there.
            Err(error) if error.kind() == Kind::Io => Err(error),
            Err(error) => Ok(vec![error.to_string()]),
        }
    }

    fn shared(&self) -> Option<u64> {
        Some(self.id)
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

/// Behind all records.
const RECORDS_END: &str = "log0";

fn record_key(number: u64) -> String {
    format!("log/{number:016}")
}

/// A slash is lower than all digits and letters, so what begins with a number ends before the next one.
fn snapshot_key(number: u64) -> String {
    format!("snapshots/{number:016}")
}

fn long_key(number: u64, nonce: &str) -> String {
    format!("long/{number:016}{nonce}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
