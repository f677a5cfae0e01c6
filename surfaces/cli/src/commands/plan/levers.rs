//! What could be changed about a machine and a job, and what would follow.

use stdchk::model::{Compression, Overlay};

use super::case::{COMPRESSING, Case, LINK};
use crate::output::size;

/// What a compressor of today does with numbers, where nothing is known of this one: a third less.
const SAVED: f64 = 1.0 / 3.0;

/// What could be changed, and the share of work that would follow, best first. What they assume is in their words.
pub fn levers(case: &Case) -> Vec<(String, f64)> {
    let changes =
        [store(case), deduplication(case), nodes(case), network(case), memory(case), compression(case)];
    let known = changes.into_iter().flatten().filter_map(|(what, case)| Some((what, case.efficiency()?)));
    let mut known: Vec<_> = known.collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    known
}

type Change = Option<(String, Case)>;

fn store(case: &Case) -> Change {
    let what = "twice the bandwidth of the store";
    Some((what.to_owned(), Case { store: 2.0 * case.store, ..case.clone() }))
}

fn deduplication(case: &Case) -> Change {
    let what = "half as many bytes to write, by deduplication";
    Some((what.to_owned(), Case { new: case.new / 2.0, ..case.clone() }))
}

fn nodes(case: &Case) -> Change {
    Some(("nodes that fail half as often".to_owned(), Case { mtti: 2.0 * case.mtti, ..case.clone() }))
}

fn network(case: &Case) -> Change {
    case.knows_network().then(|| {
        let (link, bisection) = (2.0 * case.link, 2.0 * case.bisection);
        ("network of twice the bandwidth".to_owned(), Case { link, bisection, ..case.clone() })
    })
}

/// An overlay that holds a whole checkpoint.
fn memory(case: &Case) -> Change {
    let memory = case.written();
    let overlay = Some(Overlay { memory });
    match &case.overlay {
        Some(now) if now.memory >= memory => None,
        Some(_) => Some((
            format!("memory of other nodes for a whole checkpoint, {}", size(memory as u64)),
            Case { overlay, ..case.clone() },
        )),
        None if case.knows_network() => {
            Some(("memory of other nodes for one checkpoint".to_owned(), Case { overlay, ..case.clone() }))
        }
        None => Some((
            format!("memory of other nodes for one checkpoint, over links of {} GB/s", LINK / 1e9),
            Case { overlay, link: LINK * case.nodes, ..case.clone() },
        )),
    }
}

fn compression(case: &Case) -> Change {
    if case.compression.is_some() {
        return Some(("no compression".to_owned(), Case { compression: None, ..case.clone() }));
    }
    let all = COMPRESSING * case.nodes;
    let compression = Some(Compression { saved: SAVED, compress: all, decompress: all });
    let what = format!("compression by a third, at {:.0} MB/s on each node", COMPRESSING / 1e6);
    Some((what, Case { compression, ..case.clone() }))
}
