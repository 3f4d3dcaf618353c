//! `skep trace`: shows each operation on a file or below a directory when it has ended.
//!
//! The mount returns its records of operations as extended attributes, so the command needs no
//! token. A user sees only the operations of this user, and root sees the operations of all users.
//! The mount makes the records, in `skep_fuse`. The words for the longest part of an operation are
//! in `skep_stats`.

pub(crate) mod names;

use crate::access::{block_on, entry_at};
use crate::cmd::stats::interval;
use crate::help::{Example, examples};
use crate::output::{OutputFormat, format, milliseconds, say, utc, warn};
use crate::through_mount;
use names::WatchedNames;
use serde::Serialize;
use skep_stats::operation::mainly;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, InodeId, Result, Timestamp};
use skep_wire::traces::TraceRecord;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    (
        "show the operations on the files of a directory, until Ctrl-C",
        "skep trace --path /mnt/skep/run",
    ),
    (
        "print the operations of ten seconds as JSON, for a script",
        "skep trace --path /mnt/skep/run --for 10s --output ndjson",
    ),
    ("show only operations that take 50 ms or more", "skep trace --path /mnt/skep/run --slow 50ms"),
];

/// Time between two questions to the mount for new records. The mount keeps the last 2,048
/// operations.
const EVERY: Duration = Duration::from_millis(100);

/// Follow the operations on a file, or on a directory and its entries, as they end
///
/// The mount of the path keeps the records of its operations while the command runs, and for 10
/// seconds after it, each with its requests to targets. The command needs no token. A user sees
/// only operations of this user on this mount, and root sees the operations of all users.
/// Operations that the kernel answers from its caches do not reach the mount. If there are more
/// operations than the mount can keep, the command reports the number of missing ones.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct TraceArgs {
    /// A file, or a directory whose direct entries count too, in a mount
    #[arg(long, value_name = "PATH")]
    path: PathBuf,
    /// End after this time, such as 10s
    #[arg(long = "for", value_name = "TIME", value_parser = interval)]
    lasts: Option<Duration>,
    /// Only operations that take this long or longer, such as 50ms
    #[arg(long, value_name = "TIME", value_parser = slow_time)]
    slow: Option<Duration>,
    /// Only the operations of this user id
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
}

/// Parses a time of any length, such as `50ms`, without a minimum.
fn slow_time(text: &str) -> std::result::Result<Duration, String> {
    text.parse::<skep_service::Interval>().map(|time| time.0)
}

/// An operation, as a line of JSON.
#[derive(Debug, Serialize)]
struct TraceLine {
    /// Time of the operation's end in UTC, by the clock of this host.
    time: String,
    /// The trace id, for `skep why --op`.
    trace: String,
    operation: String,
    /// The id of the file or directory, in the form that other commands show.
    entry_id: String,
    /// The name of the entry below the path in the arguments. Empty for that path itself.
    name: String,
    user: Option<u32>,
    ms: f64,
    bytes: u64,
    is_failed: bool,
    /// The phase that took most of the operation's time, with its share of the time.
    mainly: String,
    requests: Vec<RequestPart>,
    /// Number of requests of the operation that are missing in `requests`.
    requests_left_out: u32,
}

/// A request that the mount sent for an operation.
#[derive(Debug, Serialize)]
struct RequestPart {
    request: String,
    /// The target that received the request. Zero for a service without targets.
    target: u32,
    /// Time from the begin of the operation to the begin of the request.
    begin_ms: f64,
    ms: f64,
    is_failed: bool,
}

pub(crate) fn run(args: TraceArgs) -> Result<()> {
    let (inode, place) = entry_at(&args.path)?;
    let map =
        through_mount::cluster_map(&place)?.ok_or_else(|| through_mount::no_records(&place))?;
    let names = WatchedNames::of(&args.path, inode)?;
    block_on(async move { follow(&args, &place, &map, names).await })
}

async fn follow(
    args: &TraceArgs,
    place: &Path,
    map: &ClusterMap,
    mut names: WatchedNames,
) -> Result<()> {
    let end = args.lasts.map(|lasts| skep_env::now() + lasts);
    let mut after = 0;
    loop {
        let found = through_mount::operations(place, after)?
            .ok_or_else(|| through_mount::no_records(place))?;
        if found.lost > 0 {
            warn(&format!(
                "{} operations on this mount are missing, because there were more than the mount \
                 can keep; `skep why` shows the slow operations",
                found.lost
            ));
        }
        let is_empty = found.next == after;
        after = found.next;
        for record in &found.records {
            if is_wanted(args, record)
                && let Some(name) = names.name_of(record.inode, skep_env::now())
            {
                print(record, &name, map)?;
            }
        }
        if end.is_some_and(|end| skep_env::now() >= end) {
            return Ok(());
        }
        if is_empty || found.records.is_empty() {
            skep_env::sleep(EVERY).await;
        }
    }
}

fn is_wanted(args: &TraceArgs, record: &TraceRecord) -> bool {
    let slow_us = args.slow.map_or(0, |slow| slow.as_micros());
    u128::from(record.duration_us) >= slow_us
        && args.user.is_none_or(|user| record.user == Some(user))
}

fn print(record: &TraceRecord, name: &str, map: &ClusterMap) -> Result<()> {
    let line = line(record, name, map);
    if format() == OutputFormat::Table {
        return say(&as_text(&line));
    }
    // Each operation is printed as a separate JSON value, because output without an end cannot be
    // one value.
    let unwritable = |error: serde_json::Error| Error::new(ErrorCode::Io, error.to_string());
    say(&serde_json::to_string(&line).map_err(unwritable)?)
}

fn line(record: &TraceRecord, name: &str, map: &ClusterMap) -> TraceLine {
    let ms = |us: u64| us as f64 / 1e3;
    let requests = record.calls.iter().map(|call| RequestPart {
        request: skep_wire::catalog::metric_name(call.message)
            .unwrap_or_else(|| format!("message {}", call.message)),
        target: call.target.raw(),
        begin_ms: ms(call.begin_us.into()),
        ms: ms(call.duration_us.into()),
        is_failed: call.is_failed,
    });
    TraceLine {
        time: time(record.ended_us),
        trace: format!("{:032x}", record.trace),
        operation: record.operation.clone(),
        entry_id: record.inode.to_string(),
        name: name.to_owned(),
        user: record.user,
        ms: ms(record.duration_us),
        bytes: record.bytes,
        is_failed: record.is_failed,
        mainly: mainly(record, map),
        requests: requests.collect(),
        requests_left_out: record.calls_left_out,
    }
}

/// Formats a time in microseconds since 1970 as UTC with milliseconds: 2026-11-21T18:50:20.123Z.
fn time(us: u64) -> String {
    let seconds = i64::try_from(us / 1_000_000).unwrap_or(0);
    let whole = utc(Timestamp { seconds, nanoseconds: 0 });
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), us / 1000 % 1000)
}

fn as_text(line: &TraceLine) -> String {
    let user = line.user.map(|user| format!(" user {user}")).unwrap_or_default();
    let bytes = match line.bytes {
        0 => String::new(),
        bytes => format!(" {bytes} bytes"),
    };
    let failed = if line.is_failed { " failed" } else { "" };
    let name = if line.name.is_empty() { "." } else { &line.name };
    format!(
        "{} {} {}{user}{bytes}{failed}: {}, {}",
        line.time,
        escape_controls(&line.operation),
        escape_controls(name),
        milliseconds(line.ms),
        escape_controls(&line.mainly)
    )
}

/// The type of the inode ids in records of operations.
pub(crate) type Inode = InodeId;

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ClusterId;

    #[test]
    fn line_of_an_operation_shows_no_control_characters() {
        let record = TraceRecord {
            trace: 0x2a,
            service: "mount".into(),
            user: Some(1000),
            operation: "write".into(),
            inode: InodeId::new(9),
            ended_us: 1_700_000_000_123_456,
            duration_us: 4_200,
            bytes: 4096,
            is_failed: true,
            ..TraceRecord::default()
        };
        let map = ClusterMap::empty(ClusterId::default());
        let line = line(&record, "a\nforged\u{1b}[2J", &map);
        assert_eq!(line.time, "2023-11-14T22:13:20.123Z");
        let text = as_text(&line);
        let begin = "2023-11-14T22:13:20.123Z write a\\nforged";
        assert!(text.starts_with(begin) && !text.contains(['\n', '\u{1b}']), "{text}");
        assert!(text.contains("user 1000 4096 bytes failed: 4.2 ms, 100 %"), "{text}");
    }
}
