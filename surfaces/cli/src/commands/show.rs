//! show: one checkpoint, its members, and why they are stored as they are.

use serde_json::{Value, json};

use stdchk::{
    Body, Checkpoint, CheckpointEntry, Coded, Preferred, RankedMember, Repository, Result, Tally, Way,
    explain,
};

use super::checkpoint_json;
use super::list::newest;
use crate::output::{Out, count, size, table, time};

pub fn show(repository: &Repository, out: &Out, checkpoint: &str, why: bool) -> Result<u8> {
    let reading = repository.read()?;
    let entry = newest(&reading, checkpoint)?;
    let checkpoint = repository.checkpoint(&reading, &entry)?;
    if out.json {
        out.object(&as_json(&checkpoint, &entry, why));
        return Ok(0);
    }
    header(out, &checkpoint, &entry);
    let rows: Vec<_> = checkpoint.members.iter().map(|ranked| row(&checkpoint, ranked)).collect();
    let head = ["RANK", "TYPE", "MODE", "SIZE", "NEW", "SHARED", "STORED", "CHUNKS", "CODEC", "PATH"];
    out.line(&table(&head, &rows));
    if why {
        checkpoint.members.iter().for_each(|ranked| reasons(out, ranked));
    }
    Ok(0)
}

fn as_json(checkpoint: &Checkpoint, entry: &CheckpointEntry, why: bool) -> Value {
    let manifest = &checkpoint.manifest;
    let members: Vec<_> =
        checkpoint.members.iter().map(|ranked| member_json(checkpoint, ranked, why)).collect();
    let mut value = checkpoint_json(entry);
    value["host"] = json!(manifest.host);
    value["note"] = json!(manifest.note);
    value["parent"] =
        json!(manifest.parent.map(|(step, generation)| format!("{}@{step}.{generation}", entry.app)));
    value["parts"] = json!(manifest.parts.len());
    value["member_list"] = json!(members);
    value
}

fn member_json(checkpoint: &Checkpoint, ranked: &RankedMember, why: bool) -> Value {
    let member = &ranked.member;
    let mut value = json!({
        "path": member.path, "rank": ranked.rank, "type": member.body.type_name(),
        "mode": format!("{:04o}", member.mode), "modified": time(member.mtime_ns), "bytes": member.bytes(),
    });
    if let Some(content) = member.body.content() {
        value["chunking"] = json!(content.chunking.to_string());
        value["new_bytes"] = json!(content.tally.new);
        value["shared_bytes"] = json!(content.tally.shared);
        value["zero_bytes"] = json!(content.tally.zero);
        value["stored_bytes"] = json!(content.tally.stored);
        value["codecs"] = json!(checkpoint.codecs(ranked).unwrap_or_default());
        if let Some(coded) = content.coded.as_ref().filter(|_| why) {
            value["explanation"] = reasons_json(coded);
        }
    }
    if let Body::Link(target) = &member.body {
        value["target"] = json!(target);
    }
    value
}

fn reasons_json(coded: &Coded) -> Value {
    let why = explain(coded);
    let way = |way: &Way| {
        json!({
            "codec": way.coding.to_string(), "level": way.level, "raw_bytes": way.raw, "stored_bytes": way.stored,
            "bytes_per_s": rate_of(way),
        })
    };
    json!({
        "preferred": preferred(coded), "threads": coded.threads, "look_bytes_per_s": why.look_rate as u64,
        "store_bytes_per_s": why.store_rate.map(|rate| rate as u64), "raw_s": why.raw_s, "coded_s": why.coded_s,
        "bound_by": bound_by(why.store_bound), "ways": coded.ways.iter().map(way).collect::<Vec<_>>(),
    })
}

fn header(out: &Out, checkpoint: &Checkpoint, entry: &CheckpointEntry) {
    let manifest = &checkpoint.manifest;
    let tally = Tally::from(entry.tally);
    let durability = entry.durability.as_str();
    out.line(&format!("checkpoint  {}", entry.id()));
    out.line(&format!("saved       {} on {}, {durability}", time(entry.created_ns), manifest.host));
    if !manifest.note.is_empty() {
        out.line(&format!("note        {}", manifest.note));
    }
    if let Some((step, generation)) = manifest.parent {
        out.line(&format!("parent      {}@{step}.{generation}", entry.app));
    }
    let (members, parts) = (count(entry.member_count, "member"), count(manifest.parts.len() as u64, "part"));
    out.line(&format!("size        {} in {members}, {parts}", size(entry.bytes)));
    out.line(&format!("new         {}, stored in {}", size(tally.new), size(tally.stored)));
    out.line(&format!("shared      {}", size(tally.shared)));
    out.line(&format!("zero        {}", size(tally.zero)));
    out.line(&format!("wrote       {}, metadata included", size(entry.written)));
    out.line("");
}

fn row(checkpoint: &Checkpoint, ranked: &RankedMember) -> Vec<String> {
    let member = &ranked.member;
    let mut cells =
        vec![ranked.rank.to_string(), member.body.type_name().to_owned(), format!("{:04o}", member.mode)];
    match member.body.content() {
        Some(content) => {
            let sizes = [member.bytes(), content.tally.new, content.tally.shared, content.tally.stored];
            cells.extend(sizes.map(size));
            cells.push(content.chunking.to_string());
            cells.push(checkpoint.codecs(ranked).unwrap_or_default().join(" "));
        }
        None => cells.extend(["-", "-", "-", "-", "-", "-"].map(str::to_owned)),
    }
    cells.push(member.path.clone());
    cells
}

/// Why a member's new bytes are stored as they are.
fn reasons(out: &Out, ranked: &RankedMember) {
    let Some(coded) = ranked.member.body.content().and_then(|content| content.coded.as_ref()) else { return };
    let why = explain(coded);
    let store = why.store_rate.map_or("not measured".to_owned(), speed);
    out.line("");
    out.line(&format!("{}, rank {}: preferred {}", ranked.member.path, ranked.rank, preferred(coded)));
    out.line(&format!(
        "  looking {} of new bytes on {}, store {store}",
        speed(why.look_rate),
        count(u64::from(coded.threads), "thread")
    ));
    coded.ways.iter().for_each(|way| out.line(&format!("  {}", way_text(way))));
    out.line(&format!(
        "  raw {:.3} s, as it was coded {:.3} s, bound by {}",
        why.raw_s,
        why.coded_s,
        bound_by(why.store_bound)
    ));
}

fn way_text(way: &Way) -> String {
    let level =
        if way.coding.codec == stdchk::Codec::Zstd { format!(":{}", way.level) } else { String::new() };
    let name = format!("{}{level}", way.coding);
    if way.coding.is_none() {
        return format!("{name:<16} {}", size(way.raw));
    }
    let percent = 100.0 * way.stored as f64 / way.raw.max(1) as f64;
    let rate = rate_of(way).map_or(String::new(), |rate| format!(", {} on each thread", speed(rate as f64)));
    format!("{name:<16} {} to {} ({percent:.0} %){rate}", size(way.raw), size(way.stored))
}

fn rate_of(way: &Way) -> Option<u64> {
    1_000_000_000_000u64.checked_div(way.cost)
}

fn speed(rate: f64) -> String {
    format!("{}/s", size(rate as u64))
}

fn preferred(coded: &Coded) -> &'static str {
    match coded.preferred {
        Preferred::Given => "nothing: the codec was given",
        Preferred::Time => "time",
        Preferred::Balance => "balanced",
        Preferred::Space => "space",
    }
}

fn bound_by(store: bool) -> &'static str {
    if store { "the store" } else { "work" }
}
