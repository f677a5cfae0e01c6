//! The stores that compressors are judged by: given bandwidths, and one that is measured.

use std::path::PathBuf;

use stdchk::Result;
use stdchk::study;

use super::compression::Row;
use crate::args::{Cli, CompressionArgs};
use crate::output::{Out, size, table};

/// Bytes that are written to see how fast a store is.
const PROBE: u64 = 256 << 20;

/// What a store takes from one process.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Bytes a second.
    pub rate: f64,
    /// Whether it was measured, where checkpoints would go.
    pub measured: bool,
}

/// All that are to be judged by, the measured one first.
pub fn stores(cli: &Cli, out: &Out, args: &CompressionArgs) -> Result<Vec<Store>> {
    let measured = args.measure.clone().or_else(|| at_hand(cli).filter(|_| args.bandwidth.is_empty()));
    let measured = measured.map(|folder| -> Result<Store> {
        let bar = out.progress("measuring the store", PROBE);
        let rate = study::write_rate(&folder, PROBE, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        Ok(Store { rate: rate?, measured: true })
    });
    let measured = measured.into_iter();
    let given = args.bandwidth.iter().map(|&rate| Ok(Store { rate: rate as f64, measured: false }));
    measured.chain(given).collect()
}

/// The store that checkpoints would go to, if it is a directory that is there.
fn at_hand(cli: &Cli) -> Option<PathBuf> {
    cli.store.as_ref().map(PathBuf::from).filter(|store| store.is_dir())
}

/// The store that something can be settled for: the one at hand, or else the only one.
pub fn decisive(stores: &[Store]) -> Option<Store> {
    stores.first().copied().filter(|store| store.measured || stores.len() == 1)
}

/// How long the commit takes with each compressor at each store, without compression 1: waiting for one stage after the other, and overlapped.
pub fn against_none(rows: &[Row], stores: &[Store]) -> String {
    let name = |store: &Store| {
        let rate = format!("{}/s", size(store.rate as u64));
        if store.measured { format!("{rate}, MEASURED") } else { rate }
    };
    let names: Vec<String> = stores.iter().map(name).collect();
    let mut head = vec!["COMMIT AGAINST NONE AT"];
    head.extend(names.iter().map(String::as_str));
    let line = |row: &Row| {
        let cell = |store: &Store| {
            let (waited, overlapped) = row.against_none(store.rate);
            format!("{}, overlapped {}", factor(waited), factor(overlapped))
        };
        std::iter::once(row.tool.to_string()).chain(stores.iter().map(cell)).collect()
    };
    table(&head, &rows.iter().map(line).collect::<Vec<Vec<String>>>())
}

fn factor(factor: f64) -> String {
    if factor < 9.995 { format!("x {factor:.2}") } else { format!("x {factor:.0}") }
}

/// The compressor with which a commit that overlaps with the store is shortest, and how long it takes, without one 1.
pub fn shortest(rows: &[Row], store: Store) -> Option<(&Row, f64)> {
    let all = rows.iter().map(|row| (row, row.against_none(store.rate).1));
    all.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, factor)| *factor < 1.0)
}
