//! Where a log is kept.

use std::sync::Arc;

use stdchk_catalog::State;
use stdchk_object::Result;

/// Where the records of a log are kept, and its snapshots.
pub trait Journal: Send {
    /// Reads what there is, and makes it fit to be gone on with; again, after something has failed.
    fn read(&mut self) -> Result<State>;

    /// Appends encoded records, of which the first has the number `first`; `false`, and nothing is appended, where others have written
    /// that one before.
    fn append(&mut self, first: u64, records: &[Arc<[u8]>]) -> Result<bool>;

    /// Makes all durable that was appended.
    fn sync(&mut self) -> Result<()>;

    /// Makes a snapshot, and removes what nobody needs any more. All that the state has must have been appended.
    fn snapshot(&mut self, state: &State) -> Result<()>;

    /// What others have written behind record `number`.
    fn newer(&mut self, number: u64) -> Result<Newer>;

    /// What is wrong with what is stored.
    fn check(&mut self) -> Result<Vec<String>>;

    /// A number that tells this log from others, if several processes write it: all of them have the same.
    fn shared(&self) -> Option<u64> {
        None
    }

    /// What can be appended at once; a single record always can.
    fn limits(&self) -> Limits {
        Limits { records: usize::MAX, bytes: usize::MAX }
    }
}

/// How much can be done at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many records,
    pub records: usize,
    /// of so many bytes together.
    pub bytes: usize,
}

impl Limits {
    /// How many of these, the first at least.
    pub(crate) fn of(self, lengths: impl Iterator<Item = usize>) -> usize {
        let mut bytes = 0;
        let fits = |len: &usize| {
            bytes += len;
            bytes <= self.bytes
        };
        lengths.take(self.records).take_while(fits).count().max(1)
    }
}

/// What others have written.
pub enum Newer {
    /// The next records, as encoded.
    Records(Vec<Arc<[u8]>>),
    /// So much that the records are not there any more, but a newer state.
    State(Box<State>),
}
