//! Explains in words how one operation spent its time. The sources are the records of the
//! operation: the mount's record, which has the times of all requests, and the services' records.
//!
//! The module is pure. `skep_metrics` and `skep_wire::traces` define the records, and the caller
//! searches for them.

mod attribution;
mod of_mount;
mod usual;

pub use of_mount::of_mount;
pub use usual::Usual;

use crate::why::names;
use crate::why::phases::words;
use attribution::attribute;
use serde::{Deserialize, Serialize};
use skep_metrics::Stage;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, TargetKind};
use skep_wire::traces::{TraceRecord, TraceWait};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A report omits each [`Part`] whose share of the operation's duration is smaller than
/// `SMALLEST_SHARE`.
const SMALLEST_SHARE: f64 = 0.005;
/// Maximum number of requests in a report. If there are more requests, the report contains the
/// longest of them.
const MAX_REQUESTS: usize = 12;

/// A part of the time of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// This part as a share of the operation's duration, between 0 and 1.
    pub share: f64,
    /// Duration of this part in milliseconds.
    pub ms: f64,
    /// Id of the target at which this time was spent. Zero means the mount.
    pub target: u32,
    /// Name of the stage, as in the metrics. The name `link` means the transfer to the target and
    /// back.
    pub stage: String,
    /// Description of the part in words.
    pub what: String,
    /// Time that requests of the same kinds usually spend in this stage at targets of the same
    /// kind, in milliseconds. `None` if the usual time is unknown.
    pub usual_ms: Option<f64>,
}

/// One request of an operation. The mount has sent the request, or a service has sent it on behalf
/// of the operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestLine {
    /// Kind of the request.
    pub request: String,
    /// Id of the target of the request. Zero means a service without a target.
    pub target: u32,
    /// Name of the target.
    pub place: String,
    /// Time since the start of the operation in milliseconds. `None` if the time is unknown,
    /// because the clocks of different hosts cannot be compared.
    pub begin_ms: Option<f64>,
    /// Duration in milliseconds.
    pub ms: f64,
    /// Whether the request failed.
    pub is_failed: bool,
}

/// The report about one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationReport {
    /// The trace id in hexadecimal digits.
    pub trace: String,
    /// Kind of the operation.
    pub operation: String,
    /// The text `mount` if a mount has recorded the operation. Otherwise the kind of the service
    /// whose record covers the longest time.
    pub service: String,
    /// Description of the client for people. Empty if the client is unknown.
    pub client: String,
    /// User id of the program.
    pub user: Option<u32>,
    /// Id of the inode in hexadecimal digits, as other commands show it. Empty if it is unknown.
    pub inode: String,
    /// Time of day at the end of the operation, in microseconds since 1970.
    pub ended_us: u64,
    /// Duration in milliseconds.
    pub ms: f64,
    /// Whether the operation failed.
    pub is_failed: bool,
    /// The parts of the duration, the longest first.
    pub parts: Vec<Part>,
    /// The longest requests, in the order in which they began.
    pub requests: Vec<RequestLine>,
    /// Number of requests that are not in `requests`.
    pub requests_left_out: u32,
    /// Number of records of the operation that were found.
    pub records: u32,
    /// Services that did not reply, each with the reason.
    pub unreachable: Vec<String>,
}

/// A slow operation, for a list of the slowest operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowOperation {
    /// The trace id in hexadecimal digits.
    pub trace: String,
    /// Kind of the operation.
    pub operation: String,
    /// Description of the client for people. Empty if the client is unknown.
    pub client: String,
    /// User id of the program.
    #[serde(default)]
    pub user: Option<u32>,
    /// Time of day at the end of the operation, in microseconds since 1970.
    pub ended_us: u64,
    /// Duration in milliseconds.
    pub ms: f64,
    /// The longest part of the duration in words, with its share.
    pub mainly: String,
}

fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

/// Returns the record that covers the whole operation: the record of the mount, or the longest
/// record if the mount has not recorded the operation.
fn whole(records: &[TraceRecord]) -> Option<&TraceRecord> {
    records.iter().max_by_key(|it| (it.service == "mount", it.duration_us))
}

/// Explains the operation to which all of `records` belong. `None` means that `records` is empty.
pub fn explain(
    records: &[TraceRecord],
    map: &ClusterMap,
    usual: &Usual,
) -> Option<OperationReport> {
    let whole = whole(records)?;
    let mut parts = parts(whole, map, usual);
    name_awaited(&mut parts, records, map);
    let (requests, requests_left_out) = requests(whole, records, map);
    Some(OperationReport {
        trace: format!("{:032x}", whole.trace),
        operation: whole.operation.clone(),
        service: whole.service.clone(),
        client: client(map, whole),
        user: whole.user,
        inode: if whole.inode.raw() == 0 { String::new() } else { whole.inode.to_string() },
        ended_us: whole.ended_us,
        ms: milliseconds(whole.duration_us),
        is_failed: whole.is_failed,
        parts,
        requests,
        requests_left_out,
        records: u32::try_from(records.len()).unwrap_or(u32::MAX),
        unreachable: Vec::new(),
    })
}

/// Returns the slow operations in `records` that ended at `since_us` or later, the slowest first,
/// but at most `most` operations.
pub fn slowest<'a>(
    records: impl IntoIterator<Item = &'a TraceRecord>,
    map: &ClusterMap,
    since_us: u64,
    most: usize,
) -> Vec<SlowOperation> {
    let mut by_trace: BTreeMap<u128, &TraceRecord> = BTreeMap::new();
    let is_recent = |it: &&TraceRecord| it.is_slow && it.trace != 0 && it.ended_us >= since_us;
    let recent: Vec<_> = records.into_iter().filter(is_recent).collect();
    for &record in &recent {
        let known = by_trace.entry(record.trace).or_insert(record);
        let rank = |it: &TraceRecord| (it.service == "mount", it.duration_us);
        if rank(record) > rank(known) {
            *known = record;
        }
    }
    let mut slowest: Vec<_> = by_trace.into_values().collect();
    slowest.sort_by_key(|record| Reverse(record.duration_us));
    slowest.truncate(most);
    let slow = |record: &TraceRecord| SlowOperation {
        trace: format!("{:032x}", record.trace),
        operation: record.operation.clone(),
        client: client(map, record),
        user: record.user,
        ended_us: record.ended_us,
        ms: milliseconds(record.duration_us),
        mainly: {
            let same = recent.iter().copied().filter(|it| it.trace == record.trace);
            mainly_of(record, same, map)
        },
    };
    slowest.into_iter().map(slow).collect()
}

/// Returns the longest part of an operation's time in words, with its share.
pub fn mainly(record: &TraceRecord, map: &ClusterMap) -> String {
    mainly_of(record, [record], map)
}

/// Like [`mainly`]. `records` are all known records of the operation, among them `record`.
fn mainly_of<'a>(
    record: &TraceRecord,
    records: impl IntoIterator<Item = &'a TraceRecord>,
    map: &ClusterMap,
) -> String {
    let mut parts = parts(record, map, &Usual::default());
    name_awaited(&mut parts, records, map);
    let main = parts.first();
    main.map(|it| format!("{:.0} % {}", it.share * 100.0, it.what)).unwrap_or_default()
}

/// Adds the names of the awaited storage targets to the descriptions of waits at metadata targets.
/// `records` are the records of the operation. The record of a metadata target has the storage
/// group for which it has waited.
fn name_awaited<'a>(
    parts: &mut [Part],
    records: impl IntoIterator<Item = &'a TraceRecord>,
    map: &ClusterMap,
) {
    for record in records.into_iter().filter(|it| it.service == "metadata") {
        let Some(wait) = record.waits.first() else { continue };
        let at = record.target.raw();
        let name = names::target(map, at);
        let plain = words(Stage::Others, TargetKind::Metadata, &name, &[]);
        let awaited = match wait.target.raw() {
            0 => format!("group {}, which no target serves", wait.group),
            target => names::target(map, target),
        };
        for part in parts.iter_mut().filter(|it| it.target == at && it.what == plain) {
            part.what = format!("waiting for {awaited}, at {name}");
        }
    }
}

fn client(map: &ClusterMap, record: &TraceRecord) -> String {
    match record.client.raw() {
        0 => String::new(),
        id => names::client(map, id),
    }
}

/// Returns the parts of an operation's time, the longest first.
fn parts(record: &TraceRecord, map: &ClusterMap, usual: &Usual) -> Vec<Part> {
    let times = attribute(record);
    let all = record.duration_us.max(1) as f64;
    let part = |place: Place, us: f64, usual_ms: Option<f64>| {
        let (target, stage, what) = place.in_words(record, map);
        Part { share: us / all, ms: us / 1e3, target, stage: stage.into(), what, usual_ms }
    };
    let mut parts: Vec<_> = times
        .iter()
        .map(|(place, time)| {
            let usual_us = match place {
                Place::Target { target, stage } => {
                    let kind = kind_of(map, *target);
                    let of = |(message, count): (&String, &f64)| {
                        usual.us(kind?, message, *stage).map(|us| us * count)
                    };
                    time.requests.iter().map(of).sum::<Option<f64>>()
                }
                _ => None,
            };
            part(*place, time.us, usual_us.map(|us| us / 1e3))
        })
        .filter(|part| part.share >= SMALLEST_SHARE)
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    parts
}

fn kind_of(map: &ClusterMap, target: u32) -> Option<TargetKind> {
    map.targets.iter().find(|it| it.id.raw() == target).map(|it| it.kind)
}

/// Returns the longest requests of the operation, sorted by their start times, and the number of
/// omitted requests. Requests between services are last.
fn requests(
    whole: &TraceRecord,
    records: &[TraceRecord],
    map: &ClusterMap,
) -> (Vec<RequestLine>, u32) {
    let place = |target: u32| match target {
        0 => "a service".into(),
        target => names::target(map, target),
    };
    let mut lines: Vec<_> = whole
        .calls
        .iter()
        .map(|call| RequestLine {
            request: request_name(call.message),
            target: call.target.raw(),
            place: place(call.target.raw()),
            begin_ms: Some(milliseconds(call.begin_us.into())),
            ms: milliseconds(call.duration_us.into()),
            is_failed: call.is_failed,
        })
        .collect();
    // The record of the mount already has the times of its own requests. Any other record describes
    // a request that a service sent for this operation.
    let is_known = |record: &TraceRecord| {
        let is_same = |line: &RequestLine| {
            line.target == record.target.raw() && line.request == record.operation
        };
        std::ptr::eq(record, whole) || record.service == "mount" || lines.iter().any(is_same)
    };
    let others: Vec<_> = records
        .iter()
        .filter(|record| !is_known(record))
        .map(|record| RequestLine {
            request: record.operation.clone(),
            target: record.target.raw(),
            place: place(record.target.raw()),
            begin_ms: None,
            ms: milliseconds(record.duration_us),
            is_failed: record.is_failed,
        })
        .collect();
    lines.extend(others);
    lines.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let left_out = lines.len().saturating_sub(MAX_REQUESTS);
    lines.truncate(MAX_REQUESTS);
    let order = |line: &RequestLine| line.begin_ms.unwrap_or(f64::INFINITY);
    lines.sort_by(|a, b| order(a).total_cmp(&order(b)));
    let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
    (lines, left_out.saturating_add(whole.calls_left_out))
}

fn request_name(message: u16) -> String {
    skep_wire::catalog::metric_name(message).unwrap_or_else(|| format!("message {message}"))
}

/// A cause of an operation's time: a stage at a target, a lock, the network, a group that did not
/// answer, or the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A stage at a target.
    Target { target: u32, stage: StageNumber },
    /// A wait at a target for a lock that another program holds.
    Lock { target: u32 },
    /// The transfer to a target and back: the network, and the queues of both hosts.
    Link { target: u32 },
    /// Like `Link`, for a request whose transfer took longer than a working network needs. The
    /// process of the target, or its host, may have been stopped meanwhile.
    Stall { target: u32 },
    /// A request to a target that ended without a reply.
    NoReply { target: u32 },
    /// A wait for a group that did not answer. `wait` is the index of the wait in the record.
    Unanswered { wait: usize },
    /// The mount itself.
    Mount { is_running: bool },
}

/// Index of a stage in `Stage::ALL`.
type StageNumber = usize;

impl Place {
    /// Returns the id of the target, the name of the stage, and a description of the cause.
    fn in_words(self, record: &TraceRecord, map: &ClusterMap) -> (u32, &'static str, String) {
        match self {
            Self::Target { target, stage } => {
                let stage = Stage::ALL[stage];
                let name = names::target(map, target);
                let kind = kind_of(map, target).unwrap_or(TargetKind::Storage);
                (target, stage.name(), words(stage, kind, &name, &names::copies(map, target)))
            }
            Self::Lock { target } => {
                let name = names::target(map, target);
                (target, "lock", format!("waiting for locks that other programs hold, at {name}"))
            }
            Self::Link { target: 0 } => {
                (0, "link", "at management or another service without targets".into())
            }
            Self::Link { target } => {
                let name = names::target(map, target);
                (target, "link", format!("in the network to {name} and back"))
            }
            Self::Stall { target: 0 } => (
                0,
                "link",
                "waiting for management or another service without targets to take the request"
                    .into(),
            ),
            Self::Stall { target } => {
                let name = names::target(map, target);
                let what = format!(
                    "waiting for {name} to take the request: its process or its host did not run, \
                     or the network was interrupted"
                );
                (target, "link", what)
            }
            Self::NoReply { target } => {
                let name = names::target(map, target);
                (target, "link", format!("waiting for {name}, which did not reply"))
            }
            Self::Unanswered { wait } => {
                let wait = &record.waits[wait];
                (wait.target.raw(), "others", unanswered(map, wait))
            }
            Self::Mount { is_running: true } => {
                (0, "processing", "in the thread of the mount".into())
            }
            Self::Mount { is_running: false } => {
                (0, "others", "waiting in the mount without a request to a target".into())
            }
        }
    }
}

/// Describes a wait for a group that did not serve a request: the group did not answer, or refused
/// the request.
fn unanswered(map: &ClusterMap, wait: &TraceWait) -> String {
    let TraceWait { group, target, served_by, error, .. } = wait;
    let error = escape_controls(error);
    if target.raw() == 0 {
        return format!("waiting for group {group}, which had no member that serves: {error}");
    }
    let name = names::target(map, target.raw());
    // The error begins with the name of the target. Remove this name, because the text already
    // contains it.
    let (_, short) = name.split_once(' ').unwrap_or_default();
    let mut error = &*error;
    for repeated in [short.to_owned(), format!("target {target}")] {
        error = error.strip_prefix(&format!("{repeated}: ")).unwrap_or(error);
    }
    let mut text = format!("waiting for {name}, which did not serve the request: {error}");
    if served_by != target && served_by.raw() != 0 {
        text += &format!("; {} has taken over", names::target(map, served_by.raw()));
    }
    text
}

#[cfg(test)]
mod tests;
