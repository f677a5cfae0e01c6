//! study compression: how well compressors do on some files, and below which bandwidth of the store that pays.

use serde_json::json;

use stdchk::model::Compression;
use stdchk::study::{self, Pressed, Tool};
use stdchk::{Coding, Error, Preferred, Result, Wanted};

use crate::args::{Cli, CompressionArgs};
use crate::chart;
use crate::commands::keep::settle;
use crate::output::{Out, size, table};

const TOOLS: [Tool; 9] = [
    Tool::Ours,
    Tool::Lz4,
    Tool::Zstd(1),
    Tool::Zstd(3),
    Tool::Zlib(1),
    Tool::Bzip2(1),
    Tool::ParallelBzip2(1),
    Tool::Xz(0),
    Tool::Xz(6),
];
/// Bytes that are written to see how fast the store is.
const PROBE: u64 = 256 << 20;

/// A compressor, and the bandwidths of the store below which it pays.
struct Row {
    what: String,
    pressed: Pressed,
    /// When the commit waits for compression and then for the store, and restarts are counted.
    waited: f64,
    /// When compression and the store overlap.
    overlapped: f64,
}

impl Row {
    fn new(what: String, pressed: Pressed, checkpoints: f64) -> Result<Row> {
        let refused = |error: stdchk::model::Error| Error::invalid(error.to_string());
        let codec = Compression {
            saved: pressed.saved().clamp(0.0, 1.0 - 1e-9),
            compress: pressed.compress(),
            decompress: pressed.decompress(),
        };
        let waited = codec.break_even_of(checkpoints).map_err(refused)?;
        Ok(Row { what, pressed, waited, overlapped: codec.break_even_overlapped().map_err(refused)? })
    }
}

pub fn compression(cli: &Cli, out: &Out, args: &CompressionArgs) -> Result<u8> {
    if let Some(path) = &args.plot {
        chart::check_name(path)?;
    }
    let checkpoints = args.checkpoints_per_restart;
    if !(checkpoints.is_finite() && checkpoints >= 0.0) {
        return Err(Error::invalid("--checkpoints-per-restart must be 0 or more"));
    }
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let length =
        |path: &std::path::PathBuf| std::fs::metadata(path).map_or(0, |file| file.len().min(args.limit));
    let once: u64 = args.files.iter().map(length).sum();
    let bar = out.progress("studying", once * TOOLS.len() as u64);
    let told = |bytes| bar.inc(bytes);
    let (mut rows, mut files) = (Vec::new(), Vec::new());
    for tool in TOOLS {
        let mut sum = Pressed::default();
        for path in &args.files {
            let one = study::compression(path, tool, args.limit, threads, &told)?;
            if tool == Tool::Ours && one.raw > 0 {
                files.push(Row::new(path.display().to_string(), one, checkpoints)?);
            }
            sum.add(&one);
        }
        rows.push(Row::new(tool.to_string(), sum, checkpoints)?);
    }
    bar.finish_and_clear();
    if rows[0].pressed.raw == 0 {
        return Err(Error::invalid("the files are empty: there is nothing to compress"));
    }
    let rate = store_rate(args)?;
    if let Some(path) = &args.plot {
        let bars: Vec<_> = rows.iter().map(|row| (row.what.clone(), row.waited / 1e9)).collect();
        chart::bars(path, "Compression pays below", "GB/s of the store, for each process", &bars)?;
    }
    let (advice, coding) = advice(&rows, rate);
    show(out, args, &rows, &files, rate, &advice);
    if let Some(app) = &args.write_policy {
        settle(cli, out, app, &|saving| saving.coding = coding)?;
    }
    Ok(0)
}

/// What the store takes: given, measured where checkpoints would go, or unknown.
fn store_rate(args: &CompressionArgs) -> Result<Option<f64>> {
    match (&args.bandwidth, &args.measure) {
        (Some(rate), _) => Ok(Some(*rate as f64)),
        (None, Some(folder)) => study::write_rate(folder, PROBE).map(Some),
        (None, None) => Ok(None),
    }
}

fn show(out: &Out, args: &CompressionArgs, rows: &[Row], files: &[Row], rate: Option<f64>, advice: &str) {
    if out.json {
        let all = |rows: &[Row]| rows.iter().map(as_json).collect::<Vec<_>>();
        out.object(&json!({
            "tools": all(rows), "files": all(files), "store_bytes_per_s": rate, "checkpoints_per_restart": args.checkpoints_per_restart,
            "advice": advice,
        }));
        return;
    }
    let head = ["COMPRESSOR", "SAVES", "COMPRESSES", "BRINGS BACK", "PAYS BELOW", "OVERLAPPED"];
    out.line(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>()));
    if files.len() > 1 {
        out.line("");
        let head = ["FILE, BY STDCHK", "SAVES", "COMPRESSES", "BRINGS BACK", "PAYS BELOW", "OVERLAPPED"];
        out.line(&table(&head, &files.iter().map(cells).collect::<Vec<_>>()));
    }
    out.line("");
    out.line(advice);
}

fn cells(row: &Row) -> Vec<String> {
    let speed = |rate: f64| format!("{}/s", size(rate as u64));
    let rates = [row.pressed.compress(), row.pressed.decompress(), row.waited, row.overlapped];
    let mut cells = vec![row.what.clone(), format!("{:.1} %", 100.0 * row.pressed.saved())];
    cells.extend(rates.map(speed));
    cells
}

fn as_json(row: &Row) -> serde_json::Value {
    json!({
        "what": row.what, "raw_bytes": row.pressed.raw, "packed_bytes": row.pressed.packed, "saved": row.pressed.saved(),
        "compress_bytes_per_s": row.pressed.compress() as u64, "decompress_bytes_per_s": row.pressed.decompress() as u64,
        "pays_below_bytes_per_s": row.waited as u64, "pays_below_overlapped_bytes_per_s": row.overlapped as u64,
    })
}

/// What to do about it: in words, and how to code where that is not automatic.
fn advice(rows: &[Row], rate: Option<f64>) -> (String, Option<Wanted>) {
    let ours = &rows[0];
    let saved = 100.0 * ours.pressed.saved();
    let speed = |rate: f64| format!("{}/s", size(rate as u64));
    if saved < 3.0 {
        let text = "These files do not compress: save with --compress none.".to_owned();
        return (text, Some(Wanted::Fixed(Coding::NONE, 1)));
    }
    let Some(rate) = rate else {
        let text = format!(
            "stdchk saves {saved:.0} % of these files. That shortens a commit on stores that take less than {} from each thread that \
             compresses; --bandwidth RATE or --measure DIR says on which side yours is.",
            speed(ours.overlapped)
        );
        return (text, None);
    };
    if rate < ours.overlapped {
        let text = format!(
            "stdchk saves {saved:.0} % of these files, and the store takes {}, less than the {} that one thread compresses: \
             --compress auto will compress, and shortens commits by it.",
            speed(rate),
            speed(ours.overlapped)
        );
        return (text, None);
    }
    let text = format!(
        "stdchk saves {saved:.0} % of these files, but the store takes {}, more than the {} that one thread compresses: unless several \
         threads do, compressing makes commits longer. --prefer time leaves it, --prefer space does it all the same.",
        speed(rate),
        speed(ours.overlapped)
    );
    (text, Some(Wanted::Prefer(Preferred::Time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_store() {
        let pressed = Pressed { raw: 1000, packed: 500, compress_s: 1e-6, decompress_s: 1e-6 };
        let row = |pressed| vec![Row::new("stdchk".to_owned(), pressed, 1.0).unwrap()];
        assert!(advice(&row(pressed), Some(1e8)).0.contains("will compress"));
        assert_eq!(advice(&row(pressed), Some(1e10)).1, Some(Wanted::Prefer(Preferred::Time)));
        assert!(advice(&row(pressed), None).0.contains("--bandwidth"));
        let noise = Pressed { packed: 1000, ..pressed };
        assert!(advice(&row(noise), None).0.contains("do not compress"));
    }
}
