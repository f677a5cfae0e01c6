//! Retention: dropping the checkpoints that no policy keeps.

use stdchk_catalog::policy::Candidate;
use stdchk_catalog::{Catalog, Op, State};
use stdchk_object::{AppName, CheckpointId, Result};

/// What a prune would drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunePlan {
    /// The checkpoints that go, in order of their names.
    pub dropped: Vec<CheckpointId>,
    /// How many stay.
    pub kept: usize,
}

/// Applies the policies of all applications, or of one, to a state.
pub fn plan_prune(state: &State, only: Option<&AppName>, now_ns: i64) -> PrunePlan {
    let mut plan = PrunePlan { dropped: Vec::new(), kept: 0 };
    for (_, app) in state.apps().iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let entries: Vec<_> = app.checkpoints.values().collect();
        let candidates: Vec<Candidate> = entries
            .iter()
            .map(|e| Candidate { step: e.step, sequence: e.sequence, created_ns: e.created_ns })
            .collect();
        let dropped = app.policy.dropped(&candidates, now_ns);
        plan.kept += entries.len() - dropped.len();
        plan.dropped.extend(dropped.into_iter().map(|i| entries[i].id()));
    }
    plan
}

/// Drops what the plan for the newest state says; the plan that was carried out.
pub fn prune(catalog: &dyn Catalog, only: Option<&AppName>, now_ns: i64) -> Result<PrunePlan> {
    let mut done = PrunePlan { dropped: Vec::new(), kept: 0 };
    catalog.append(true, &mut |state| {
        done = plan_prune(state, only, now_ns);
        Ok(if done.dropped.is_empty() { Vec::new() } else { vec![Op::Drop(done.dropped.clone())] })
    })?;
    Ok(done)
}
