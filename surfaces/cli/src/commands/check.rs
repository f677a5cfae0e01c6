//! verify, and repair.

use serde_json::json;

use stdchk::{Health, Repository, Result, Spec, VerifyReport};

use crate::output::{Out, count, exit_code, measure, size};

pub fn verify(repository: &Repository, out: &Out, checkpoint: Option<&str>, repair: bool) -> Result<u8> {
    let spec = checkpoint.map(Spec::parse).transpose()?;
    let reading = repository.read()?;
    if let Some(spec) = &spec {
        spec.find(&reading.state)?;
    }
    let mut report = check(repository, out, &reading, spec.as_ref())?;
    let mut strangers = if spec.is_none() { repository.strangers()? } else { Vec::new() };
    if repair && !(report.is_clean() && report.index.is_empty()) {
        let ground = repository.ground();
        let done = stdchk::repair(&ground, &reading.state, &report)?;
        drop(reading);
        done.mended.iter().for_each(|pack| out.note(&format!("mended pack {pack}")));
        done.lost
            .iter()
            .for_each(|pack| out.note(&format!("no whole copy of what is damaged in pack {pack} was found")));
        if done.index_rebuilt {
            out.note("removed the damaged fingerprint index; it fills again with the next saves");
        }
        let reading = repository.read()?;
        report = check(repository, out, &reading, spec.as_ref())?;
        strangers = if spec.is_none() { repository.strangers()? } else { Vec::new() };
    }
    if out.json {
        print_json(out, &report, &strangers)
    } else {
        print_text(out, &report, &strangers)
    }
    let clean = report.is_clean() && strangers.is_empty();
    Ok(if clean { 0 } else { exit_code(stdchk::Kind::Corrupt) })
}

fn check(
    repository: &Repository,
    out: &Out,
    reading: &stdchk::Reading,
    spec: Option<&Spec>,
) -> Result<VerifyReport> {
    let bar = out.progress("verifying", 0);
    let wanted = spec.map(|spec| move |entry: &stdchk::CheckpointEntry| spec.matches(entry));
    let progress = |done: u64, total: u64| {
        measure(&bar, total);
        bar.set_position(done);
    };
    let report = match &wanted {
        Some(wanted) => repository.verify(reading, Some(wanted), &progress),
        None => repository.verify(reading, None, &progress),
    };
    bar.finish_and_clear();
    report
}

fn print_json(out: &Out, report: &VerifyReport, strangers: &[String]) {
    for checkpoint in &report.checkpoints {
        let (state, hurt) = match &checkpoint.health {
            Health::Whole => ("whole", Vec::new()),
            Health::Lost(problem) => ("lost", vec![json!({ "problem": problem })]),
            Health::Hurt(members) => {
                let one =
                    |m: &stdchk::HurtMember| json!({ "path": m.path, "rank": m.rank, "problem": m.problem });
                ("hurt", members.iter().map(one).collect())
            }
        };
        out.object(&json!({ "checkpoint": checkpoint.id.to_string(), "state": state, "hurt": hurt }));
    }
    let damage: Vec<_> = report
        .damage
        .iter()
        .map(|(pack, ranges)| json!({ "pack": pack.to_string(), "chunks": ranges }))
        .collect();
    out.object(&json!({
        "summary": true, "clean": report.is_clean() && strangers.is_empty(), "packs": report.packs, "bytes": report.bytes,
        "damage": damage, "thin": report.thin.iter().map(ToString::to_string).collect::<Vec<_>>(), "catalog": report.catalog, "index": report.index, "unreferenced_packs": report.unreferenced,
        "strange_files": strangers,
    }));
}

fn print_text(out: &Out, report: &VerifyReport, strangers: &[String]) {
    for checkpoint in &report.checkpoints {
        match &checkpoint.health {
            Health::Whole => out.line(&format!("whole  {}", checkpoint.id)),
            Health::Lost(problem) => out.line(&format!("lost   {}: {problem}", checkpoint.id)),
            Health::Hurt(members) => {
                out.line(&format!("hurt   {}", checkpoint.id));
                members.iter().for_each(|m| out.line(&format!("         {}: {}", m.path, m.problem)));
            }
        }
    }
    for (pack, ranges) in &report.damage {
        let ranges: Vec<String> = ranges
            .iter()
            .map(|&(from, to)| if to == u32::MAX { "all".to_owned() } else { format!("{from}..{to}") })
            .collect();
        out.line(&format!("damaged pack {pack}: chunks {}", ranges.join(", ")));
    }
    let thin = "less safe than promised (copies or parity are missing or damaged): pack";
    report.thin.iter().for_each(|pack| out.line(&format!("{thin} {pack}")));
    report.catalog.iter().for_each(|problem| out.line(&format!("damaged catalog: {problem}")));
    let index = "damaged index segment (harmless; --repair removes it)";
    report.index.iter().for_each(|name| out.line(&format!("{index}: {name}")));
    strangers.iter().for_each(|name| out.line(&format!("strange file, not one of stdchk's: {name}")));
    out.note(&format!("read {} in {}", size(report.bytes), count(report.packs, "pack")));
    if report.unreferenced > 0 {
        out.note(&format!("{} packs are not referred to; 'stdchk gc' removes them", report.unreferenced));
    }
}
