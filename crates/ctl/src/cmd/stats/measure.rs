//! Measures for other commands: the evidence for causes of slowness (`skep why`, `skep health
//! check`), and the load (`skep advise`).
//!
//! Does not own the rules that find causes (`skep_stats::why`).

use super::fetch::{Fetched, fetch};
use crate::access::Access;
use skep_stats::why::Evidence;
use skep_stats::{By, Row, rows};
use skep_types::Result;
use std::time::Duration;

/// Number of intervals of a measurement. The rules compare the intervals, so that a short
/// disturbance does not count as a cause.
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

/// Measures the load for `span`. Returns its rows, and the measured time in seconds.
///
/// # Errors
/// Errors of management, from which the list of services comes.
pub(crate) async fn measured_rows(
    access: &Access,
    by: By,
    span: Duration,
) -> Result<(Vec<Row>, f64)> {
    let before = fetch(access).await?;
    let started = skep_env::now();
    skep_env::sleep(span).await;
    let now = fetch(access).await?;
    let seconds = skep_env::now().saturating_sub(started).as_secs_f64();
    Ok((rows(by, Some(&before.round), &now.round), seconds))
}
