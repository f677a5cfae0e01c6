//! study similarity: how much of each file is found in the one before it.

use serde_json::json;

use stdchk::study::{self, Cuts, Figures, Input, WindowHash};
use stdchk::{Chunking, Error, Result};

use super::only_read;
use super::stops::Stops;
use crate::args::{Cli, SimilarityArgs};
use crate::chart::{self, Bars};
use crate::commands::keep::Settled;
use crate::output::{Out, size, table};
use crate::picture;

/// One way to cut, and what it found.
struct Found {
    name: String,
    cuts: Option<Cuts>,
    figures: Figures,
}

pub fn similarity(cli: &Cli, out: &Out, args: &SimilarityArgs) -> Result<u8> {
    if let Some(path) = &args.plot {
        picture::check_name(path)?;
    }
    let settled = Settled::of(cli, args.write_policy.as_deref())?;
    let ways = if args.sweep { sweep() } else { usual() };
    let inputs = Input::all(&args.files, args.limit)?;
    let once: u64 = inputs.iter().map(Input::len).sum();
    if once == 0 {
        return Err(Error::invalid("the files are empty: there is nothing to compare"));
    }
    let bar = out.progress("studying", once * (ways.len() as u64 + 1));
    let told = |bytes| bar.inc(bytes);
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let figures = {
        // What was saved meanwhile is not left behind.
        let stops = Stops::new()?;
        let figures = study::ours(&inputs, &scratch, &stops.asked, &told);
        if let Some(code) = stops.code() {
            return Ok(code);
        }
        figures?
    };
    let mut found = vec![Found { name: "stdchk".to_owned(), cuts: None, figures }];
    for cuts in ways {
        let figures = study::similarity(&inputs, &cuts, &told)?;
        found.push(Found { name: cuts.to_string(), cuts: Some(cuts), figures });
    }
    bar.finish_and_clear();
    let (advice, chunking) = advice(&found);
    show(out, &found, &inputs, &advice);
    if let Some(settled) = settled {
        settled.change(out, &|saving| saving.chunking = chunking)?;
    }
    if let Some(path) = &args.plot {
        let bars = found.iter().map(|one| (one.name.clone(), 100.0 * one.figures.similarity)).collect();
        let title = "Found in the file before";
        chart::bars(path, &[Bars { title, unit: "per cent of the bytes", bars }])?;
    }
    Ok(0)
}

/// The paper's table 4, the pages and FastCDC of today.
fn usual() -> Vec<Cuts> {
    let window = |hash, m, k, overlap| Cuts::Window { hash, m, k, overlap };
    vec![
        Cuts::Fixed(1 << 10),
        Cuts::Fixed(4 << 10),
        Cuts::Fixed(64 << 10),
        Cuts::Fixed(256 << 10),
        Cuts::Fixed(1 << 20),
        window(WindowHash::Sha1, 20, 14, true),
        window(WindowHash::Sha1, 20, 14, false),
        window(WindowHash::Rabin, 20, 14, true),
        window(WindowHash::Rabin, 20, 14, false),
        Cuts::FastCdc(2 << 10),
        Cuts::FastCdc(8 << 10),
        Cuts::FastCdc(64 << 10),
    ]
}

/// The paper's tables 5 to 7.
fn sweep() -> Vec<Cuts> {
    let mut ways = Vec::new();
    for (hash, overlap, most) in
        [(WindowHash::Sha1, false, 14), (WindowHash::Rabin, true, 16), (WindowHash::Rabin, false, 16)]
    {
        for k in (8..=most).step_by(2) {
            ways.extend([20, 32, 64, 128, 256].map(|m| Cuts::Window { hash, m, k, overlap }));
        }
    }
    ways
}

/// The paper's tables 3 and 4: what was studied, and what was found.
fn show(out: &Out, found: &[Found], inputs: &[Input], advice: &str) {
    let bytes: u64 = inputs.iter().map(Input::whole_len).sum();
    let mean = bytes / inputs.len() as u64;
    if out.json {
        let way = |one: &Found| {
            let Figures { similarity, throughput, mean, shortest, longest } = one.figures;
            json!({
                "way": one.name, "similarity": similarity, "bytes_per_s": throughput as u64, "mean_chunk_bytes": mean,
                "shortest_chunk_bytes": shortest, "longest_chunk_bytes": longest,
            })
        };
        out.object(&json!({ "files": inputs.len(), "mean_bytes": mean, "ways": found.iter().map(way).collect::<Vec<_>>(), "advice": advice }));
        return;
    }
    out.line(&format!("{} files of {} on average{}", inputs.len(), size(mean), only_read(inputs.iter())));
    out.line("");
    let row = |one: &Found| {
        let Figures { similarity, throughput, mean, shortest, longest } = one.figures;
        let mut cells = vec![one.name.clone(), format!("{:.1} %", 100.0 * similarity)];
        cells.push(format!("{}/s", size(throughput as u64)));
        cells.extend([mean, shortest, longest].map(|len| size(len as u64)));
        cells
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    out.line(&table(&["WAY TO CUT", "FOUND", "SPEED", "MEAN CHUNK", "SHORTEST", "LONGEST"], &rows));
    out.line("");
    out.line(advice);
}

/// Less than this found is not worth small chunks.
const LITTLE: f64 = 0.03;
/// So much more must another way find to be worth its time.
const BETTER: f64 = 0.05;

/// What to do about it: in words, and how to cut where that is not automatic.
fn advice(found: &[Found]) -> (String, Option<Chunking>) {
    let ours = found[0].figures.similarity;
    let of_cdc = found.iter().filter(|one| matches!(one.cuts, Some(Cuts::FastCdc(_))));
    let best = of_cdc.max_by(|a, b| a.figures.similarity.total_cmp(&b.figures.similarity));
    if let Some(best) = best
        && let Some(Cuts::FastCdc(average)) = best.cuts
        && best.figures.similarity > ours + BETTER
    {
        let text = format!(
            "Content-defined chunks find {:.0} % of each file in the one before, stdchk's pages {:.0} %: save with --chunking cdc:{}.",
            100.0 * best.figures.similarity,
            100.0 * ours,
            average
        );
        return (text, Some(Chunking::Cdc(average)));
    }
    if ours < LITTLE {
        let text = "Hardly anything of a file is found in the one before: save with --chunking page:64KiB, which spares the \
                    metadata of small pages. What is stored can only be compressed, or where numbers changed a little, kept as differences: study compression says how far.";
        return (text.to_owned(), Some(Chunking::Page(64 << 10)));
    }
    let text = format!(
        "stdchk finds {:.0} % of each file in the one before: its default --chunking auto is right, and stores about {:.0} % of each.",
        100.0 * ours,
        100.0 * (1.0 - ours)
    );
    (text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_figures() {
        let one = |cuts, similarity| Found {
            name: String::new(),
            cuts,
            figures: Figures { similarity, ..Figures::default() },
        };
        let cdc = Some(Cuts::FastCdc(8192));
        assert!(advice(&[one(None, 0.9), one(cdc, 0.92)]).0.contains("auto is right"));
        assert_eq!(advice(&[one(None, 0.1), one(cdc, 0.5)]).1, Some(Chunking::Cdc(8192)));
        assert_eq!(advice(&[one(None, 0.0), one(cdc, 0.01)]).1, Some(Chunking::Page(64 << 10)));
    }
}
