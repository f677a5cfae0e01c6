//! plan --reproduce: the papers' figures, as numbers and as charts.

use std::path::Path as FilePath;

use serde_json::{Value, json};

use stdchk::model::{
    Compression, Intrepid, LAMMPS_APPLICATION, LAMMPS_SYSTEM, MINI_APPLICATIONS, Machine, Path, Point,
};
use stdchk::{Error, Result};

use crate::chart::{self, Corner, Line, Panel};
use crate::output::{Out, size, span, table};

/// Powers of two: processors of the report's figures, and nodes of the compression paper's.
const PROCESSORS: std::ops::RangeInclusive<u32> = 4..=17;
const NODES: std::ops::RangeInclusive<u32> = 8..=17;
const PATHS: [(Path, &str); 3] =
    [(Path::Files, "PFS"), (Path::Objects, "LWFS"), (Path::Overlay, "LWFS+overlay")];
const INTREPID: &str = "intrepid";

/// What can be asked for.
pub const NAMES: [&str; 5] = ["red-storm", "bluegene-l", "jaguar", "petaflop", INTREPID];

pub fn reproduce(out: &Out, name: &str, plot: Option<&FilePath>) -> Result<u8> {
    match Machine::named(name) {
        Some(machine) => overlay_report(out, &machine, plot),
        None => compression_paper(out, plot),
    }
}

/// One number of processors, by each path.
struct Row {
    processors: u64,
    points: [Point; 3],
}

impl Row {
    fn of(machine: &Machine, exponent: u32) -> Result<Row> {
        let processors = 1u64 << exponent;
        let mut points = Vec::new();
        for (path, _) in PATHS {
            let point = machine.at(processors as f64, path);
            points.push(point.map_err(|error| Error::invalid(error.to_string()))?);
        }
        Ok(Row { processors, points: points.try_into().expect("one for each path") })
    }

    /// Figure 4.6: by how much the overlay lowers the share of the file system.
    fn relative(&self) -> f64 {
        1.0 - self.points[2].saving / self.points[0].saving
    }
}

fn overlay_report(out: &Out, machine: &Machine, plot: Option<&FilePath>) -> Result<u8> {
    let rows = PROCESSORS.map(|exponent| Row::of(machine, exponent)).collect::<Result<Vec<_>>>()?;
    if let Some(path) = plot {
        let line = |name: &str, value: &dyn Fn(&Row) -> f64| Line {
            name: name.to_owned(),
            points: rows.iter().map(|row| (row.processors as f64, value(row))).collect(),
        };
        let lines = |value: &dyn Fn(&Point) -> f64| {
            let all = PATHS.iter().enumerate();
            all.map(|(i, (_, name))| line(name, &|row| value(&row.points[i]))).collect()
        };
        let panel = |title: &str, y: &'static str, log: bool, names: Corner, lines| Panel {
            title: format!("{}: {title}", machine.name),
            x: "compute-node processors",
            y,
            log,
            names,
            lines,
        };
        let panels = [
            panel(
                "optimal checkpoint interval (figures 3.2, 4.3)",
                "minutes",
                false,
                Corner::LowerRight,
                lines(&|p| p.interval / 60.0),
            ),
            panel(
                "throughput of a checkpoint (3.3, 4.4)",
                "GB/s",
                true,
                Corner::UpperRight,
                lines(&|p| p.throughput / 1e9),
            ),
            panel(
                "time spent in checkpoints (3.4, 4.5)",
                "% of the whole",
                false,
                Corner::UpperLeft,
                lines(&|p| 100.0 * p.saving),
            ),
            panel(
                "share saved by the overlay (4.6)",
                "%",
                false,
                Corner::UpperRight,
                vec![line("overlay against PFS", &|row| 100.0 * row.relative())],
            ),
        ];
        chart::panels(path, &panels)?;
    }
    let claims = report_claims(machine, &rows);
    if out.json {
        out.object(&json!({
            "machine": machine.name, "memory_bytes": machine.memory, "store_bytes_per_s": machine.store,
            "bisection_bytes_per_s": machine.bisection, "link_bytes_per_s": machine.link,
            "overlay_bytes": machine.overlay().memory, "points": rows.iter().map(as_json).collect::<Vec<_>>(), "claims": claims,
        }));
        return Ok(0);
    }
    let cells = |row: &Row| {
        let mut cells = vec![row.processors.to_string()];
        cells.extend(row.points.iter().map(|point| span(point.interval)));
        cells.extend(row.points.iter().map(|point| format!("{:.1} GB/s", point.throughput / 1e9)));
        cells.extend(row.points.iter().map(|point| percent(point.saving)));
        cells.extend([percent(row.relative()), percent(row.points[0].efficiency)]);
        cells
    };
    claims.iter().for_each(|claim| out.line(claim));
    out.line("");
    let head = [
        "PROCESSORS",
        "INTERVAL, PFS",
        "LWFS",
        "OVERLAY",
        "RATE, PFS",
        "LWFS",
        "OVERLAY",
        "SAVING, PFS",
        "LWFS",
        "OVERLAY",
        "LESS BY",
        "WORK, PFS",
    ];
    out.line(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>()));
    Ok(0)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// What the report says in words, beside what the models give.
fn report_claims(machine: &Machine, rows: &[Row]) -> Vec<String> {
    let at = |processors: u64| rows.iter().find(|row| row.processors == processors).expect("in the range");
    let below = |limit: f64| {
        let hidden = rows.iter().take_while(|row| row.points[2].saving < limit);
        hidden.last().map_or(0, |row| row.processors)
    };
    let fits = rows.iter().take_while(|row| row.points[2].fits).last().map_or(0, |row| row.processors);
    vec![
        format!(
            "On 65536 processors of {} the share of work is {}; the report says that it is no better than 70 %.",
            machine.name,
            percent(at(65_536).points[0].efficiency)
        ),
        format!(
            "The overlay keeps checkpoints below 1 % up to {} processors, and holds them whole up to {fits}; the report says below 8192, and full at 16384.",
            below(0.01)
        ),
    ]
}

fn as_json(row: &Row) -> Value {
    let mut value = json!({ "processors": row.processors, "relative_difference": row.relative() });
    for (point, name) in row.points.iter().zip(["files", "objects", "overlay"]) {
        value[name] = json!({
            "interval_s": point.interval, "throughput_bytes_per_s": point.throughput, "saving": point.saving,
            "efficiency": point.efficiency, "fits_overlay": point.fits,
        });
    }
    value
}

/// The lines of the compression paper's figure 5.
const CODECS: [(&str, Option<Compression>); 4] = [
    ("uncompressed", None),
    ("LAMMPS's restart files, pbzip2", Some(LAMMPS_APPLICATION)),
    ("LAMMPS's images, pbzip2", Some(LAMMPS_SYSTEM)),
    ("mini applications, 70 %", Some(MINI_APPLICATIONS)),
];

fn compression_paper(out: &Out, plot: Option<&FilePath>) -> Result<u8> {
    // Where a job would practically never end there is no point.
    let efficiency =
        |codec: &Option<Compression>, nodes: f64| Intrepid { compression: *codec }.efficiency(nodes).ok();
    let rows: Vec<(u64, Vec<Option<f64>>)> = NODES
        .map(|exponent| {
            let nodes = 1u64 << exponent;
            (nodes, CODECS.iter().map(|(_, codec)| efficiency(codec, nodes as f64)).collect())
        })
        .collect();
    if let Some(path) = plot {
        let line = |i: usize| Line {
            name: CODECS[i].0.to_owned(),
            points: rows.iter().filter_map(|(nodes, all)| Some((*nodes as f64, 100.0 * all[i]?))).collect(),
        };
        let panel = Panel {
            title: "intrepid: efficiency with and without compression (figure 5)".to_owned(),
            x: "nodes",
            y: "% of the time that is work",
            log: false,
            names: Corner::LowerLeft,
            lines: (0..CODECS.len()).map(line).collect(),
        };
        chart::panels(path, &[panel])?;
    }
    let limit = LAMMPS_SYSTEM.break_even().map_err(|error| Error::invalid(error.to_string()))?;
    let claims = [
        "Each process writes a third of 2 GB at 1 MB/s; each node fails once in 5 years; nothing overlaps."
            .to_owned(),
        format!(
            "Equation 1 with the factor and speeds that the text prints for LAMMPS (56.5 %, 94.8 MB/s) says that compression pays below {}/s; \
             the paper prints 3.38 GB/s, for which both ways would have to run at 6 GB/s. Either is far above the machine's 1 MB/s.",
            size(limit as u64)
        ),
    ];
    if out.json {
        let points = rows.iter().map(|(nodes, all)| {
            let names = CODECS.iter().map(|(name, _)| *name);
            let by_codec: serde_json::Map<String, Value> =
                names.zip(all).map(|(name, share)| (name.to_owned(), json!(share))).collect();
            json!({ "nodes": nodes, "efficiency": by_codec })
        });
        out.object(&json!({ "machine": INTREPID, "break_even_bytes_per_s": limit, "points": points.collect::<Vec<_>>(), "claims": claims }));
        return Ok(0);
    }
    claims.iter().for_each(|claim| out.line(claim));
    out.line("");
    let cells = |(nodes, all): &(u64, Vec<Option<f64>>)| {
        let mut cells = vec![nodes.to_string()];
        cells.extend(all.iter().map(|share| share.map_or("never ends".to_owned(), percent)));
        cells
    };
    let head = ["NODES", "UNCOMPRESSED", "RESTART FILES", "IMAGES", "MINI APPLICATIONS"];
    out.line(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>()));
    Ok(0)
}
