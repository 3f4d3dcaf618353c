//! Shrinks a failing sequence of steps.

use crate::trial::{Step, Trial};
use std::time::{Duration, Instant};

/// Maximum time for shrinking a failing sequence.
const PATIENCE: Duration = Duration::from_secs(120);

/// Removes steps as long as the remaining steps still fail. Returns the remaining steps and their
/// failure, or `None` if a second run of the original steps does not fail.
pub(crate) fn shrink(trial: &mut Trial, steps: &[Step]) -> Option<(Vec<Step>, String)> {
    let deadline = Instant::now() + PATIENCE;
    let mut best = fails(trial, steps)?;
    // First remove all steps that are rarely necessary for a failure: kills, all comparisons except
    // the last comparison, and calls that failed.
    let has_effect = trial.effective().to_vec();
    let last = best.0.len() - 1;
    let is_call = |step: &Step| matches!(step, Step::Call(..));
    let without_kills = |(index, step): &(usize, &Step)| *index == last || is_call(step);
    let only_effective = |(index, _): &(usize, &Step)| *index == last || has_effect[*index];
    let all = best.0.clone();
    let fewer = all.iter().enumerate().filter(only_effective).filter(without_kills);
    let fewer =
        [fewer.collect::<Vec<_>>(), all.iter().enumerate().filter(only_effective).collect()];
    for attempt in fewer {
        let attempt: Vec<_> = attempt.into_iter().map(|(_, step)| step.clone()).collect();
        if let Some(shorter) = fails(trial, &attempt) {
            best = shorter;
            break;
        }
    }
    let mut len = best.0.len() / 2;
    while len > 0 && Instant::now() < deadline {
        let before = best.0.len();
        let mut to = before;
        while to > 0 && Instant::now() < deadline {
            let from = to.saturating_sub(len);
            let steps = &best.0;
            let fewer = [&steps[..from], &steps[to.min(steps.len())..]].concat();
            if let Some(shorter) = fails(trial, &fewer) {
                best = shorter;
            }
            to = from.min(best.0.len());
        }
        // Try to remove single steps until no step can be removed any more.
        if len > 1 || best.0.len() == before {
            len /= 2;
        }
    }
    Some(best)
}

/// Runs steps. If a step fails, returns the steps up to this step, and the failure.
fn fails(trial: &mut Trial, steps: &[Step]) -> Option<(Vec<Step>, String)> {
    let (last, what) = trial.run(steps).err()?;
    Some((steps[..=last].to_vec(), what))
}
