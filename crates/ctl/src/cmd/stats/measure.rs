//! Measures the load of a cluster for other commands. For `skep why` and `skep health check`, this
//! module returns the evidence from which the rules find causes of slowness. For `skep advise`,
//! this module returns the load.
//!
//! The rules that find causes are in `skep_stats::why`.

use super::fetch::{Fetched, fetch, fetch_again};
use crate::access::Access;
use skep_stats::why::{Evidence, Focus};
use skep_stats::{By, Row, rows_by_service};
use skep_types::Result;
use std::time::Duration;

/// Number of intervals into which a measurement is divided. The rules compare these intervals, so
/// that a short disturbance does not count as a cause.
const INTERVALS: u32 = 3;

/// Measures for `span`. Returns the evidence, and the last replies of the services. `focus` selects
/// the client, user or job whose requests are the evidence.
///
/// # Errors
/// Errors of the request to management, which lists the services.
pub(crate) async fn measure(
    access: &Access,
    span: Duration,
    focus: Focus,
) -> Result<(Evidence, Fetched)> {
    let before = fetch(access).await?;
    measure_since(access, before, span, focus).await
}

/// Does the same as [`measure`] after the first replies `before`.
///
/// # Errors
/// Errors of the request to management. If `before` has the last cluster map of this host, the
/// function sends no such request, and returns no error.
pub(crate) async fn measure_since(
    access: &Access,
    mut before: Fetched,
    span: Duration,
    focus: Focus,
) -> Result<(Evidence, Fetched)> {
    let started = skep_env::now();
    let mut evidence = Evidence { focus, ..Evidence::default() };
    for number in 1..=INTERVALS {
        let until = started + span * number / INTERVALS;
        skep_env::sleep(until.saturating_sub(skep_env::now())).await;
        let now = fetch_again(access, &before).await?;
        evidence.add(&Evidence::between(&before.round, &now.round, focus));
        before = now;
    }
    Ok((evidence, before))
}

/// Measures the load for `span`. Returns one row for each object of the kind `by` and each kind of
/// service, and the exact length of the measurement in seconds.
///
/// # Errors
/// Errors of the request to management, which lists the services.
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
    Ok((rows_by_service(by, Some(&before.round), &now.round), seconds))
}
