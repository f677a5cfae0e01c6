//! policy, prune, forget, gc: what stays, and getting rid of the rest.

use serde_json::json;

use stdchk::{
    AppName, CheckpointId, Chunking, ChunkingChoice, Error, GcPlan, Policy, Prefer, Preference, Preferred,
    PrunePlan, Repository, Result, Saving, Spec, Wanted,
};

use super::save::coding;
use super::{open, open_or_create};
use crate::args::{Cli, PolicyArgs};
use crate::output::{Out, count, size};

pub fn policy(cli: &Cli, out: &Out, args: &PolicyArgs) -> Result<u8> {
    let app = AppName::new(&args.app)?;
    let purge_after_s = args.purge_after.map(|time| time.as_secs());
    let keep_last = if args.replace { Some(1) } else { args.keep_last };
    let keep_every = args.keep_every;
    // What is kept is said at once; of how to save only what is said changes.
    let sets_kept = args.keep_all || keep_last.is_some() || keep_every.is_some() || purge_after_s.is_some();
    let coding = coding(&args.how)?;
    let sets = sets_kept || args.how.chunking.is_some() || coding.is_some();
    let policy = if sets {
        // A policy may be set before the first save.
        open_or_create(cli)?.change_policy(&app, &|policy| {
            if sets_kept {
                *policy = Policy { keep_last, keep_every, purge_after_s, ..*policy };
            }
            if let Some(chunking) = args.how.chunking {
                policy.saving.chunking = settled_chunking(chunking);
            }
            if let Some(coding) = coding {
                policy.saving.coding = settled_coding(coding);
            }
        })?
    } else {
        open(cli)?.state()?.apps().get(&app).map(|app| app.policy.clone()).unwrap_or_default()
    };
    let value = || {
        let (prefer, compress) = match policy.saving.coding.map(|coding| coding.to_string()) {
            Some(words) => match words.split_once('=') {
                Some(("prefer", what)) => (Some(what.to_owned()), None),
                _ => (None, words.strip_prefix("compress=").map(str::to_owned)),
            },
            None => (None, None),
        };
        json!({ "app": app.as_str(), "policy": policy.to_string(), "keep_last": policy.keep_last,
            "keep_every": policy.keep_every, "purge_after_s": policy.purge_after_s,
            "chunking": policy.saving.chunking.map(|chunking| chunking.to_string()),
            "compress": compress, "prefer": prefer })
    };
    let text = || format!("{app}: {policy}");
    if sets {
        out.did(value, text)
    } else {
        out.either(value, text)
    }
    Ok(0)
}

/// An application for which a study settles what it recommends. It is known before the study begins that it can be.
pub struct Settled {
    repository: Repository,
    app: AppName,
}

impl Settled {
    /// The application of that name, if one is given.
    pub fn of(cli: &Cli, app: Option<&str>) -> Result<Option<Settled>> {
        let Some(app) = app else { return Ok(None) };
        Ok(Some(Settled { app: AppName::new(app)?, repository: open_or_create(cli)? }))
    }

    pub fn change(&self, out: &Out, change: &dyn Fn(&mut Saving)) -> Result<()> {
        let policy = self.repository.change_policy(&self.app, &|policy| change(&mut policy.saving))?;
        out.note(&format!("{}: {policy}", self.app));
        Ok(())
    }
}

/// What is automatic need not be settled.
fn settled_chunking(choice: ChunkingChoice) -> Option<Chunking> {
    match choice {
        ChunkingChoice::Auto => None,
        ChunkingChoice::Fixed(chunking) => Some(chunking),
    }
}

fn settled_coding(preference: Preference) -> Option<Wanted> {
    match preference {
        Preference::Auto(Prefer::Balanced) => None,
        Preference::Auto(Prefer::Time) => Some(Wanted::Prefer(Preferred::Time)),
        Preference::Auto(Prefer::Space) => Some(Wanted::Prefer(Preferred::Space)),
        Preference::Fixed(coding, level) => Some(Wanted::Fixed(coding, level as i8)),
    }
}

pub fn prune(repository: &Repository, out: &Out, app: Option<&str>, dry_run: bool) -> Result<u8> {
    let app = app.map(AppName::new).transpose()?;
    let now = stdchk::now_ns();
    let plan = if dry_run {
        stdchk::plan_prune(&repository.ground(), &repository.state()?, app.as_ref(), now)?
    } else {
        stdchk::prune(&repository.ground(), app.as_ref(), now)?
    };
    report_drop(out, &plan, dry_run);
    Ok(0)
}

/// A plan is what was asked for; what was done is told unless quiet is wanted.
fn say(out: &Out, is_plan: bool, text: &str) {
    if is_plan { out.line(text) } else { out.told(text) }
}

fn report_drop(out: &Out, plan: &PrunePlan, dry_run: bool) {
    let names: Vec<String> = plan.dropped.iter().map(CheckpointId::to_string).collect();
    if out.json {
        out.object(&json!({ "dry_run": dry_run, "dropped": names, "kept": plan.kept }));
        return;
    }
    let verb = if dry_run { "would drop" } else { "dropped" };
    names.iter().for_each(|name| say(out, dry_run, &format!("{verb} {name}")));
    out.note(&format!("{verb} {} and kept {}", names.len(), plan.kept));
    if !dry_run && !names.is_empty() {
        out.note("'stdchk gc' frees their space");
    }
}

pub fn forget(repository: &Repository, out: &Out, checkpoints: &[String], all: bool) -> Result<u8> {
    let state = repository.state()?;
    let mut ids = Vec::new();
    for text in checkpoints {
        let spec = Spec::parse(text)?;
        if spec.step.is_none() && !all {
            return Err(Error::invalid(format!(
                "{text} names an application; --all forgets all of its checkpoints"
            )));
        }
        ids.extend(spec.find(&state)?.into_iter().map(|entry| entry.id()));
    }
    ids.sort();
    ids.dedup();
    repository.forget(&ids)?;
    let kept = state.checkpoints().count() - ids.len();
    report_drop(out, &PrunePlan { dropped: ids, kept }, false);
    Ok(0)
}

pub fn gc(repository: &Repository, out: &Out, dry_run: bool, compact: bool) -> Result<u8> {
    let ground = repository.ground();
    let mut plan = if dry_run { stdchk::plan_gc(&ground)? } else { stdchk::collect(&ground, compact)? };
    if dry_run && !compact {
        plan.compacted.clear();
    }
    let temporary = repository.remove_stale_temporaries(!dry_run)?;
    if out.json {
        out.object(&gc_json(&plan, temporary, dry_run));
    } else {
        gc_text(out, &plan, temporary, dry_run);
    }
    Ok(0)
}

fn gc_json(plan: &GcPlan, temporary: (u64, u64), dry_run: bool) -> serde_json::Value {
    let packs = |packs: &[(stdchk::PackName, u64)]| json!({ "packs": packs.len(), "bytes": packs.iter().map(|&(_, bytes)| bytes).sum::<u64>() });
    let fenced: Vec<_> = plan
        .fenced
        .iter()
        .map(|s| json!({ "session": s.session.to_string(), "what": s.what, "why": s.why }))
        .collect();
    let compacted: Vec<_> = plan
        .compacted
        .iter()
        .map(|c| json!({ "pack": c.pack.to_string(), "bytes": c.bytes, "raw_bytes": c.raw_bytes, "live_bytes": c.live_bytes }))
        .collect();
    json!({
        "dry_run": dry_run, "fenced": fenced, "compacted": compacted,
        "condemned": packs(&plan.condemned), "removed": packs(&plan.removed), "waiting": packs(&plan.waiting),
        "live": { "packs": plan.live.0, "bytes": plan.live.1 },
        "temporary_files": temporary.0,
    })
}

fn gc_text(out: &Out, plan: &GcPlan, temporary: (u64, u64), dry_run: bool) {
    let say = |text: &str| say(out, dry_run, text);
    let would = if dry_run { "would have " } else { "" };
    for suspect in &plan.fenced {
        say(&format!("{would}fenced session {} ({}): {}", suspect.session, suspect.what, suspect.why));
    }
    for c in &plan.compacted {
        let live = 100.0 * c.live_bytes as f64 / c.raw_bytes.max(1) as f64;
        say(&format!("{would}rewritten pack {} ({}), of which {live:.0} % is live", c.pack, size(c.bytes)));
    }
    say(&format!(
        "{would}freed {} in {}",
        size(plan.removed_bytes()),
        count(plan.removed.len() as u64, "pack")
    ));
    if !plan.waiting.is_empty() {
        let bytes = plan.waiting.iter().map(|&(_, bytes)| bytes).sum();
        say(&format!(
            "{} in {} packs wait for sessions that are still open",
            size(bytes),
            plan.waiting.len()
        ));
    }
    if temporary.0 > 0 {
        say(&format!("{would}removed {} stale temporary files, {}", temporary.0, size(temporary.1)));
    }
    out.note(&format!("{} in {} are in use", size(plan.live.1), count(plan.live.0, "pack")));
}
