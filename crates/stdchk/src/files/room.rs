//! How much room there is: what `df` wants to know.

use super::Files;
use super::fault::Outcome;

/// Bytes, and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that the place has, taken or not.
    pub all: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Names that there are.
    pub names: u64,
}

impl Files {
    /// The room of the place. In a bucket there is as much as one likes.
    pub fn room(&self) -> Outcome<Room> {
        let (all, free) = self.repository.room()?.unwrap_or((1 << 60, 1 << 60));
        Ok(Room { all, free, names: self.state()?.tree().len() as u64 })
    }
}
