//! `skep why --op`: explains one operation from the records of mounts and services about this
//! operation.
//!
//! The text of the explanation comes from `skep_stats::operation`.

use super::traces::{Gathered, gather};
use crate::access::Access;
use crate::cmd::health::last_map;
use crate::cmd::stats::{fetch, fetch_by_last_map};
use crate::output::{milliseconds, utc};
use skep_stats::operation::{self, OperationReport, Part, RequestLine, SlowOperation, Usual};
use skep_stats::why::Focus;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, Result, Timestamp};
use skep_wire::traces::TraceRecord;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// Maximum length of the list of the slowest operations.
const MAX_SLOWEST: usize = 3;
/// Maximum age of an operation in the list of the slowest operations.
const RECENT: Duration = Duration::from_secs(600);

/// Returns the report about the operation with the trace id `trace`.
///
/// # Errors
/// - `NotFound` if no service has a record of the operation.
/// - Errors of the request to management, which lists the services. If management does not answer,
///   the last cluster map of this host lists the services.
pub(super) async fn explain(access: &Access, trace: u128) -> Result<OperationReport> {
    let now = match last_map::newest(access).await? {
        (map, Some(error)) => {
            super::warn_of_last_map(&error);
            fetch_by_last_map(access, map, BTreeSet::new(), &error).await
        }
        (_, None) => fetch(access).await?,
    };
    let Gathered { records, unreachable } = gather(access, &now.map, Some(trace)).await;
    let report = operation::explain(&records, &now.map, &Usual::of(&now.round));
    let Some(mut report) = report else { return Err(not_found(trace, &unreachable)) };
    report.unreachable = unreachable;
    Ok(report)
}

fn not_found(trace: u128, unreachable: &[String]) -> Error {
    let silent = match unreachable {
        [] => String::new(),
        services => format!("; no reply from {}", services.join(", ")),
    };
    let what = format!(
        "cannot explain operation {trace:032x}: no service has a record of this operation{silent}; \
         services and mounts keep records of slow operations and of one in 1,024 other operations, \
         in limited memory, until the process stops. A mount reports an operation a few seconds \
         after its end. `skep why` lists the slowest operations"
    );
    Error::new(ErrorCode::NotFound, what)
}

/// Returns the slowest recent operations of the client or user in `focus`. Leaves out the records
/// of services that do not reply.
pub(super) async fn slowest(access: &Access, map: &ClusterMap, focus: Focus) -> Vec<SlowOperation> {
    let Gathered { mut records, .. } = gather(access, map, None).await;
    let is_of_client =
        |record: &TraceRecord| focus.client.is_none_or(|id| record.client.raw() == id);
    let is_of_user = |record: &TraceRecord| focus.user.is_none_or(|id| record.user == Some(id));
    records.retain(|record| is_of_client(record) && is_of_user(record));
    recent_slowest(&records, map)
}

/// Returns the slowest operations in `records` that ended recently.
pub(super) fn recent_slowest(records: &[TraceRecord], map: &ClusterMap) -> Vec<SlowOperation> {
    let now = skep_env::wall_time();
    let now_us = u64::try_from(now.seconds).unwrap_or(0) * 1_000_000;
    let since_us = now_us.saturating_sub(RECENT.as_micros() as u64);
    operation::slowest(records, map, since_us, MAX_SLOWEST)
}

pub(super) fn as_text(report: &OperationReport) -> String {
    let mut text = String::new();
    let OperationReport { operation, service, client, ms, .. } = report;
    let failed = if report.is_failed { " and failed" } else { "" };
    let seconds = i64::try_from(report.ended_us / 1_000_000).unwrap_or(0);
    let ended = utc(Timestamp { seconds, nanoseconds: 0 });
    let _ = write!(text, "{} took {}{failed}", escape_controls(operation), milliseconds(*ms));
    let _ = match client.is_empty() {
        true if service == "mount" => write!(text, ", on this mount"),
        true => write!(text, ", at a {} service", escape_controls(service)),
        false => write!(text, ", of {}", escape_controls(client)),
    };
    if let Some(user) = report.user {
        let _ = write!(text, ", user {user}");
    }
    if !report.inode.is_empty() {
        let _ = write!(text, ", inode {}", report.inode);
    }
    let _ = writeln!(text, "; it ended at {ended}");
    for Part { share, ms, what, usual_ms, .. } in &report.parts {
        let usual = usual_ms.map(|it| format!(", usually {}", milliseconds(it)));
        let _ = writeln!(
            text,
            "  {:3.0} %  {} ({}{})",
            share * 100.0,
            escape_controls(what),
            milliseconds(*ms),
            usual.unwrap_or_default()
        );
    }
    if service != "mount" {
        text += "The mount has not reported this operation, so this report shows only its longest \
                 request.\n";
    }
    if !report.requests.is_empty() {
        text += "\nRequests\n==========\n";
    }
    for RequestLine { request, place, begin_ms, ms, is_failed, .. } in &report.requests {
        let begin = begin_ms.map(|it| format!("after {}: ", milliseconds(it)));
        let failed = if *is_failed { ", failed" } else { "" };
        let _ = writeln!(
            text,
            "- {}{} to {}, {}{failed}",
            begin.unwrap_or_default(),
            escape_controls(request),
            escape_controls(place),
            milliseconds(*ms)
        );
    }
    if report.requests_left_out > 0 {
        let _ =
            writeln!(text, "- shorter requests that are not listed: {}", report.requests_left_out);
    }
    for service in &report.unreachable {
        let _ = writeln!(text, "cannot get records from {}", escape_controls(service));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_text_shows_each_part_with_share_and_usual_time() {
        let part = Part {
            share: 0.82,
            ms: 1020.0,
            target: 7,
            stage: "log_sync".into(),
            what: "waiting for the log sync of metadata target t7 on m\u{1b}[2J".into(),
            usual_ms: Some(0.4),
        };
        let line = RequestLine {
            request: "create".into(),
            target: 7,
            place: "metadata target t7".into(),
            begin_ms: Some(0.2),
            ms: 1100.0,
            is_failed: true,
        };
        let report = OperationReport {
            trace: "2a".into(),
            operation: "create".into(),
            service: "mount".into(),
            client: "client node17 (n5)".into(),
            user: Some(1000),
            inode: String::new(),
            ended_us: 1_750_000_000_000_000,
            ms: 1244.0,
            is_failed: false,
            parts: vec![part],
            requests: vec![line],
            requests_left_out: 2,
            records: 1,
            unreachable: vec!["storage-1 [ID: 3]: no reply".into()],
        };
        let text = as_text(&report);
        let first = "create took 1.2 s, of client node17 (n5), user 1000; it ended at 2025-06-15";
        assert!(text.starts_with(first), "{text}");
        let expected = "   82 %  waiting for the log sync of metadata target t7 on m";
        assert!(text.contains(expected) && text.contains("(1.0 s, usually 0.4 ms)"), "{text}");
        assert!(text.contains("- after 0.2 ms: create to metadata target t7, 1.1 s, failed\n"));
        // The record of a user's own mount names no client.
        let own = as_text(&OperationReport { client: String::new(), ..report.clone() });
        assert!(own.starts_with("create took 1.2 s, on this mount, user 1000;"), "{own}");
        assert!(
            text.contains("not listed: 2\n") && text.contains("cannot get records from storage-1"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "names cannot move the cursor");
    }
}
