//! study compression: how well compressors do on some files, and below which bandwidth of the store that pays.

use std::path::{Path, PathBuf};

use serde_json::json;

use stdchk::model::Compression;
use stdchk::study::{self, Input, Pressed, Tool};
use stdchk::{Coding, Error, Preferred, Result, Wanted};

use super::only_read;
use super::stores::{self, Store};
use crate::args::{Cli, CompressionArgs};
use crate::chart::{self, Bars};
use crate::commands::keep::Settled;
use crate::output::{Out, size, span, table};
use crate::picture;

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

/// Files that belong together, and what compressors do on them.
struct Group {
    name: String,
    /// Bytes of each on average.
    mean: u64,
    rows: Vec<Row>,
}

impl Group {
    fn row(&self, tool: Tool) -> &Row {
        self.rows.iter().find(|row| row.tool == tool).expect("every tool is tried")
    }
}

/// The files by the names that were put before them, as in `system=core.1`; without one each is for itself.
fn grouped(files: &[PathBuf]) -> Vec<(String, Vec<&Path>)> {
    let mut groups: Vec<(String, Vec<&Path>)> = Vec::new();
    for path in files {
        let whole = path.display().to_string();
        let named = path.to_str().and_then(|text| text.split_once('=')).filter(|_| !path.exists());
        let (name, path) =
            named.map_or((whole, path.as_path()), |(name, rest)| (name.to_owned(), Path::new(rest)));
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, paths)) => paths.push(path),
            None => groups.push((name, vec![path])),
        }
    }
    groups
}

/// A compressor, and the bandwidths of the store below which it pays.
pub struct Row {
    pub tool: Tool,
    pressed: Pressed,
    codec: Compression,
    /// When the commit waits for compression and then for the store, and restarts are counted.
    waited: f64,
    /// When compression and the store overlap.
    overlapped: f64,
}

impl Row {
    fn new(tool: Tool, pressed: Pressed, checkpoints: f64) -> Result<Row> {
        let refused = |error: stdchk::model::Error| Error::invalid(error.to_string());
        let codec = Compression {
            saved: pressed.saved().clamp(0.0, 1.0 - 1e-9),
            compress: pressed.compress(),
            decompress: pressed.decompress(),
        };
        let waited = codec.break_even_of(checkpoints).map_err(refused)?;
        let overlapped = codec.break_even_overlapped().map_err(refused)?;
        Ok(Row { tool, pressed, codec, waited, overlapped })
    }

    /// How many times as long as without compression a commit takes on a store of that rate: when it waits for one stage after the other, and
    /// when they overlap.
    pub fn against_none(&self, rate: f64) -> (f64, f64) {
        let factor = |seconds: stdchk::model::Result<f64>| seconds.map_or(f64::INFINITY, |s| s * rate);
        (factor(self.codec.waited(1.0, rate)), factor(self.codec.overlapped(1.0, rate)))
    }
}

pub fn compression(cli: &Cli, out: &Out, args: &CompressionArgs) -> Result<u8> {
    if let Some(path) = &args.plot {
        picture::check_name(path)?;
    }
    let settled = Settled::of(cli, args.write_policy.as_deref())?;
    let checkpoints = args.checkpoints_per_restart;
    if !(checkpoints.is_finite() && checkpoints >= 0.0) {
        return Err(Error::invalid("--checkpoints-per-restart must be 0 or more"));
    }
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let groups = grouped(&args.files);
    let groups = groups.into_iter().map(|(name, paths)| Ok((name, Input::all(&paths, args.limit)?)));
    let groups = groups.collect::<Result<Vec<(String, Vec<Input>)>>>()?;
    let once: u64 = groups.iter().flat_map(|(_, inputs)| inputs).map(Input::len).sum();
    let steps = successions(&groups);
    let again: u64 = steps.iter().map(|(_, now)| now.len()).sum();
    let bar = out.progress("studying", once * TOOLS.len() as u64 + again);
    let told = |bytes| bar.inc(bytes);
    let mut next = Pressed::default();
    for (before, now) in steps {
        next.add(&study::successive(before, now, &told)?);
    }
    let mut pressed: Vec<Vec<Pressed>> = Vec::new();
    for (_, inputs) in &groups {
        pressed.push(vec![Pressed::default(); TOOLS.len()]);
        let of_group = pressed.last_mut().expect("just pushed");
        for (tool, sum) in TOOLS.iter().zip(of_group) {
            for input in inputs {
                sum.add(&study::compression(input, *tool, threads, &told)?);
            }
        }
    }
    bar.finish_and_clear();
    let cut = only_read(groups.iter().flat_map(|(_, inputs)| inputs));
    let mean = |inputs: &[Input]| inputs.iter().map(Input::whole_len).sum::<u64>() / inputs.len() as u64;
    let named = groups.into_iter().map(|(name, inputs)| (name, mean(&inputs)));
    let mut groups: Vec<_> = named.zip(pressed).collect();
    // Of what is empty there is nothing to say.
    groups.retain(|(_, of_group)| of_group[0].raw > 0);
    if groups.is_empty() {
        return Err(Error::invalid("the files are empty: there is nothing to compress"));
    }
    let mut all = vec![Pressed::default(); TOOLS.len()];
    for (_, of_group) in &groups {
        all.iter_mut().zip(of_group).for_each(|(sum, one)| sum.add(one));
    }
    let made = |all: Vec<Pressed>| -> Result<Vec<Row>> {
        TOOLS.into_iter().zip(all).map(|(tool, pressed)| Row::new(tool, pressed, checkpoints)).collect()
    };
    let mut rows = made(all)?;
    let groups = groups.into_iter().map(|((name, mean), all)| Ok(Group { name, mean, rows: made(all)? }));
    let groups = groups.collect::<Result<Vec<Group>>>()?;
    if next.raw > 0 {
        rows.insert(1, Row::new(Tool::OursNext, next, checkpoints)?);
    }
    let stores = stores::stores(cli, out, args)?;
    let mean = groups.iter().map(|group| group.mean).sum::<u64>() / groups.len() as u64;
    let (advice, coding) = advice(&rows, &stores, mean);
    if !cut.is_empty() {
        out.note(&format!("figures are those of the files{cut}"));
    }
    show(out, args, &rows, &groups, &stores, &advice);
    match (settled, coding) {
        (Some(settled), Some(coding)) => settled.change(out, &|saving| saving.coding = coding)?,
        (Some(_), None) if stores.is_empty() => {
            out.note("nothing was settled: the speed of the store is not known");
        }
        (Some(_), None) => out.note("nothing was settled: stores of several speeds were given"),
        (None, _) => {}
    }
    if let Some(path) = &args.plot {
        let charts: Vec<Bars> = figures(&rows).into_iter().chain(figures_of_groups(&groups)).collect();
        chart::bars(path, &charts)?;
    }
    Ok(0)
}

/// The paper's figures 1, 2a, 2b and 3.
fn figures(rows: &[Row]) -> Vec<Bars> {
    let figure = |title, unit, value: fn(&Row) -> f64| {
        let bar = |row: &Row| (row.tool.to_string(), value(row));
        Bars { title, unit, bars: rows.iter().map(bar).collect() }
    };
    vec![
        figure("Saved by compression", "per cent of the bytes", |row| 100.0 * row.pressed.saved()),
        figure("Speed of compression", "MB/s", |row| row.pressed.compress() / 1e6),
        figure("Speed of decompression", "MB/s", |row| row.pressed.decompress() / 1e6),
        figure("Compression pays below", "MB/s of the store, for each process", |row| row.waited / 1e6),
    ]
}

/// The paper's figure 4: whether size, processes, or what is saved make a difference.
fn figures_of_groups(groups: &[Group]) -> Vec<Bars> {
    if groups.len() < 2 {
        return Vec::new();
    }
    let figure = |tool, title| {
        let bar = |group: &Group| {
            let name = format!("{}, {}", group.name, size(group.mean));
            (name, group.row(tool).waited / 1e6)
        };
        let unit = "MB/s of the store, for each process";
        Bars { title, unit, bars: groups.iter().map(bar).collect() }
    };
    vec![
        figure(Tool::Ours, "stdchk pays below, by what is saved"),
        figure(Tool::Zlib(1), "zlib(1) pays below, by what is saved"),
        figure(Tool::ParallelBzip2(1), "pbzip2(1,5) pays below, by what is saved"),
    ]
}

/// Each file with the one before it: those of a group follow each other, or if each is one of its own, all do.
fn successions(groups: &[(String, Vec<Input>)]) -> Vec<(&Input, &Input)> {
    let each_alone = groups.iter().all(|(_, inputs)| inputs.len() == 1);
    let all: Vec<(&String, &Input)> =
        groups.iter().flat_map(|(name, inputs)| inputs.iter().map(move |input| (name, input))).collect();
    let follow = |two: &&[(&String, &Input)]| each_alone || two[0].0 == two[1].0;
    all.windows(2).filter(follow).map(|two| (two[0].1, two[1].1)).collect()
}

fn show(out: &Out, args: &CompressionArgs, rows: &[Row], groups: &[Group], stores: &[Store], advice: &str) {
    if out.json {
        let all = |rows: &[Row]| rows.iter().map(as_json).collect::<Vec<_>>();
        out.object(&json!({
            "tools": all(rows), "groups": groups.iter().map(|group| json!({ "name": group.name, "mean_bytes": group.mean, "tools": all(&group.rows) })).collect::<Vec<_>>(),
            "stores": stores.iter().map(|store| store_as_json(rows, store)).collect::<Vec<_>>(), "checkpoints_per_restart": args.checkpoints_per_restart, "advice": advice,
        }));
        return;
    }
    let head = ["COMPRESSOR", "SAVES", "COMPRESSES", "BRINGS BACK", "PAYS BELOW", "OVERLAPPED"];
    out.line(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>()));
    if groups.len() > 1 {
        out.line("");
        out.line(&table(
            &["GROUP, PAYS BELOW", "SIZE", "STDCHK SAVES", "STDCHK", "ZLIB(1)", "PBZIP2(1,5)"],
            &break_evens(groups),
        ));
    }
    if !stores.is_empty() {
        out.line("");
        out.line(&stores::against_none(rows, stores));
    }
    out.line("");
    out.line(advice);
}

fn store_as_json(rows: &[Row], store: &Store) -> serde_json::Value {
    let times = rows.iter().map(|row| {
        let (waited, overlapped) = row.against_none(store.rate);
        json!({ "what": row.tool.to_string(), "waited": waited, "overlapped": overlapped })
    });
    json!({ "bytes_per_s": store.rate, "measured": store.measured, "commit_against_none": times.collect::<Vec<_>>() })
}

/// The paper's table I: the break-even points of groups.
fn break_evens(groups: &[Group]) -> Vec<Vec<String>> {
    let of = |group: &Group| {
        let saved = format!("{:.1} %", 100.0 * group.row(Tool::Ours).pressed.saved());
        let mut cells = vec![group.name.clone(), size(group.mean), saved];
        let tools = [Tool::Ours, Tool::Zlib(1), Tool::ParallelBzip2(1)];
        cells.extend(tools.map(|tool| below(group.row(tool).waited)));
        cells
    };
    groups.iter().map(of).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.tool.to_string(), format!("{:.1} %", 100.0 * row.pressed.saved())];
    cells.extend([row.pressed.compress(), row.pressed.decompress()].map(speed));
    cells.extend([row.waited, row.overlapped].map(below));
    cells
}

fn as_json(row: &Row) -> serde_json::Value {
    json!({
        "what": row.tool.to_string(), "raw_bytes": row.pressed.raw, "packed_bytes": row.pressed.packed, "saved": row.pressed.saved(),
        "compress_bytes_per_s": row.pressed.compress() as u64, "decompress_bytes_per_s": row.pressed.decompress() as u64,
        "pays_below_bytes_per_s": row.waited as u64, "pays_below_overlapped_bytes_per_s": row.overlapped as u64,
    })
}

/// Where less is saved, nothing is.
const LITTLE: f64 = 0.03;

/// What to do about it: in words, and if it is known, how to code; nothing for what is automatic.
fn advice(rows: &[Row], stores: &[Store], mean: u64) -> (String, Option<Option<Wanted>>) {
    let first = &rows[0];
    let next = rows.iter().find(|row| row.tool == Tool::OursNext);
    let next = next.filter(|next| next.pressed.saved() > first.pressed.saved() + LITTLE);
    // Versions that follow another one are what most saves are of.
    let ours = next.unwrap_or(first);
    let saved = 100.0 * first.pressed.saved();
    let most = rows.iter().max_by(|a, b| a.pressed.saved().total_cmp(&b.pressed.saved())).expect("tools");
    if ours.pressed.saved() < LITTLE {
        let mut text = "These files do not compress: save with --compress none.".to_owned();
        if most.pressed.saved() >= LITTLE {
            text = format!(
                "stdchk's fast codings save nothing of these files: save with --compress none. {} saves {:.0} %, at {}.",
                most.tool,
                100.0 * most.pressed.saved(),
                speed(most.pressed.compress())
            );
        }
        return (text, Some(Some(Wanted::Fixed(Coding::NONE, 1))));
    }
    let beside = next.map_or(String::new(), |next| {
        let percent = 100.0 * next.pressed.saved();
        format!(
            " Beside the version before it saves {percent:.0} % of the pages that differ, as differences."
        )
    });
    let text = format!("stdchk saves {saved:.0} % of these files.{beside}");
    if stores.is_empty() {
        let text = format!(
            "{text} That shortens a commit on stores that take less than {} from each thread that \
             compresses; --bandwidth RATE or --measure DIR says on which side yours is.",
            speed(ours.overlapped)
        );
        return (text, None);
    }
    let verdicts: Vec<String> = stores.iter().map(|store| verdict(rows, ours, *store, mean)).collect();
    let coding = stores::decisive(stores).map(|store| {
        let pays = store.rate < ours.overlapped;
        (!pays).then_some(Wanted::Prefer(Preferred::Time))
    });
    (format!("{text}\n{}", verdicts.join("\n")), coding)
}

/// Whether to compress for one store.
fn verdict(rows: &[Row], ours: &Row, store: Store, mean: u64) -> String {
    let measured = if store.measured { ", as measured" } else { "" };
    let (rate, limit) = (speed(store.rate), speed(ours.overlapped));
    let text = if store.rate < ours.overlapped {
        format!(
            "The store takes {rate}{measured}, less than the {limit} that one thread compresses: --compress auto will compress, and commits take x {:.2}.",
            ours.against_none(store.rate).1
        )
    } else {
        format!(
            "The store takes {rate}{measured}, more than the {limit} that one thread compresses: unless several threads do, stdchk's compressing makes \
             commits longer. --prefer time leaves it, --prefer space does it all the same."
        )
    };
    let text = match stores::shortest(rows, store) {
        Some((row, factor)) if row.tool != ours.tool => {
            format!("{text} Of all compressors {} gives the shortest, x {factor:.2}.", row.tool)
        }
        Some(_) => format!("{text} No other compressor gives shorter ones."),
        None => text,
    };
    // Whoever does not wait for it does not notice how long it takes, but what it waits for the next one.
    let plain = mean as f64 / store.rate;
    let packed = plain * rows[0].against_none(store.rate).1;
    format!(
        "{text} Committed asynchronously, a first checkpoint of {} is safe after {} compressed and {} as it is, and the next one can begin no sooner.",
        size(mean),
        span(packed),
        span(plain)
    )
}

/// The bandwidth below which something pays.
fn below(rate: f64) -> String {
    if rate < 1.0 { "never".to_owned() } else { speed(rate) }
}

fn speed(rate: f64) -> String {
    format!("{}/s", size(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_grouped_by_the_names_before_them() {
        let files = ["a=x", "y", "b=z=1", "a=w"].map(PathBuf::from);
        let groups = grouped(&files);
        let names: Vec<_> = groups.iter().map(|(name, paths)| (name.as_str(), paths.len())).collect();
        assert_eq!(names, [("a", 2), ("y", 1), ("b", 1)]);
        assert_eq!(groups[2].1, [Path::new("z=1")]);
    }

    #[test]
    fn advice_follows_the_store() {
        let pressed = Pressed { raw: 1000, packed: 500, compress_s: 1e-6, decompress_s: 1e-6 };
        let row = |pressed| vec![Row::new(Tool::Ours, pressed, 1.0).unwrap()];
        let stores =
            |rates: &[f64]| rates.iter().map(|&rate| Store { rate, measured: false }).collect::<Vec<_>>();
        let advice = |pressed, rates: &[f64]| advice(&row(pressed), &stores(rates), 1 << 30);
        assert!(advice(pressed, &[1e8]).0.contains("will compress"));
        assert_eq!(advice(pressed, &[1e10]).1, Some(Some(Wanted::Prefer(Preferred::Time))));
        assert!(advice(pressed, &[]).0.contains("--bandwidth"));
        let (text, coding) = advice(pressed, &[1e8, 1e10]);
        assert!(
            text.contains("will compress") && text.contains("--prefer time") && coding.is_none(),
            "{text}"
        );
        let noise = Pressed { packed: 1000, ..pressed };
        assert!(advice(noise, &[]).0.contains("do not compress"));
    }
}
