//! Retention: dropping the checkpoints that no policy keeps.

use std::sync::Arc;

use stdchk_catalog::policy::Candidate;
use stdchk_catalog::{App, Durability, Op, State};
use stdchk_object::{AppName, CheckpointId, Result};

use crate::Ground;
use crate::health::check_quick;

/// What a prune would drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// The checkpoints that go, in order of their names.
    pub dropped: Vec<CheckpointId>,
    /// How many stay.
    pub kept: usize,
}

/// Applies the policies of all applications, or of one, to a state. Whatever a policy says, the newest checkpoint that is
/// whole and durable stays: one that is hurt, or only staged, is no reason to give up the last that can be relied upon.
pub fn plan_prune(
    ground: &Ground,
    state: &Arc<State>,
    only: Option<&AppName>,
    now_ns: i64,
) -> Result<PrunePlan> {
    let mut plan = PrunePlan::default();
    for (_, app) in state.apps().iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let entries: Vec<_> = app.checkpoints.values().collect();
        let candidates: Vec<Candidate> = entries
            .iter()
            .map(|e| Candidate { step: e.step, sequence: e.sequence, created_ns: e.created_ns })
            .collect();
        let mut dropped: Vec<CheckpointId> =
            app.policy.dropped(&candidates, now_ns).into_iter().map(|i| entries[i].id()).collect();
        if !dropped.is_empty()
            && let Some(reliable) = newest_reliable(ground, state, app)?
        {
            dropped.retain(|id| *id != reliable);
        }
        plan.kept += entries.len() - dropped.len();
        plan.dropped.extend(dropped);
    }
    Ok(plan)
}

/// The newest checkpoint that is whole and durable; mostly the newest of all.
fn newest_reliable(ground: &Ground, state: &Arc<State>, app: &App) -> Result<Option<CheckpointId>> {
    let vault = ground.vault(state);
    for entry in app.newest_first() {
        if entry.durability >= Durability::Local && check_quick(&vault, entry)?.is_whole() {
            return Ok(Some(entry.id()));
        }
    }
    Ok(None)
}

/// Drops what the plan for the newest state says; the plan that was carried out.
pub fn prune(ground: &Ground, only: Option<&AppName>, now_ns: i64) -> Result<PrunePlan> {
    let mut done = PrunePlan::default();
    ground.catalog.append(true, &mut |state| {
        done = plan_prune(ground, &Arc::new(state.clone()), only, now_ns)?;
        Ok(if done.dropped.is_empty() { Vec::new() } else { vec![Op::Drop(done.dropped.clone())] })
    })?;
    Ok(done)
}
