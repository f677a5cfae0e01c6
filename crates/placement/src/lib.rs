//! Where packs lie in a pool: pure arithmetic, as `docs/POOL.md` has it.
//!
//! ```
//! use stdchk_placement::{Benefactor, Epoch, weight_of};
//! let lend = |id, gib: u64, rack| Benefactor { id, weight: weight_of(gib << 30), domain: rack };
//! let epoch = Epoch { number: 1, members: vec![lend(1, 8, 0), lend(2, 8, 0), lend(3, 16, 1)] };
//! // Two copies of a pack never lie in one rack, as long as there are two.
//! let owners = epoch.owners(0x5eed, 2);
//! assert_ne!(epoch.members[owners[0]].domain, epoch.members[owners[1]].domain);
//! ```
#![forbid(unsafe_code)]

mod epoch;
mod log;

pub use epoch::{Benefactor, Epoch, Key, Order, home_of, weight_of};
