//! Measures the evidence for causes of slowness, for `skep why` and `skep health check`.
//!
//! Does not own the judgement (`skep_stats::why`).

use super::fetch::{Fetched, fetch};
use crate::access::Access;
use skep_stats::why::Evidence;
use skep_types::Result;
use std::time::Duration;

/// Number of intervals of a measurement. The rules compare them, so that a short disturbance is no
/// cause.
const INTERVALS: u32 = 3;

/// Measures for `span`. Returns the evidence and the last replies.
///
/// # Errors
/// Errors of management, from which the list of services comes.
pub(crate) async fn measure(access: &Access, span: Duration) -> Result<(Evidence, Fetched)> {
    let mut before = fetch(access).await?;
    let started = skep_env::now();
    let mut evidence = Evidence::default();
    for number in 1..=INTERVALS {
        let until = started + span * number / INTERVALS;
        skep_env::sleep(until.saturating_sub(skep_env::now())).await;
        let now = fetch(access).await?;
        evidence.add(&Evidence::between(&before.round, &now.round));
        before = now;
    }
    Ok((evidence, before))
}
