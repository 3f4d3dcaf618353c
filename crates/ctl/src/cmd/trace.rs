//! `skep trace`: shows each operation on a file or below a directory at the end of the operation.
//!
//! The mount returns its records of operations as extended attributes, so the command needs no
//! token. A user sees only the operations of this user, and root sees the operations of all users.
//! The mount makes the records, in `skep_fuse`. The words for the longest part of an operation are
//! in `skep_stats`.

pub(crate) mod names;
mod reply;

use crate::access::block_on;
use crate::cmd::stats::interval;
use crate::failure::without_errno;
use crate::help::{Example, examples};
use crate::output::{OutputFormat, format, milliseconds, say, utc, warn};
use crate::path_lookup::{entry_at, in_mount};
use crate::through_mount;
use names::WatchedNames;
use reply::{is_over, reply_of};
use serde::Serialize;
use skep_fuse::FollowedOperation;
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
    (
        "show only operations on the working directory that take 50 ms or more",
        "skep trace --slow 50ms",
    ),
];

/// Time between two requests to the mount for new records. The mount keeps the last 2,048
/// operations.
const EVERY: Duration = Duration::from_millis(100);

/// Show each operation on a file, or on a directory and its entries, at the end of the operation
///
/// While the command runs, and for 10 seconds after its end, the mount of the path keeps a record
/// of each operation with its requests to targets. The command needs no token. A user sees only
/// operations of this user on this mount, and root sees the operations of all users. Operations
/// that the kernel answers from its caches do not reach the mount. If there are more operations
/// than the mount can keep, the command reports the number of missing operations.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct TraceArgs {
    /// A file or directory in a mount. For a directory, also operations on its direct entries
    #[arg(long, value_name = "PATH", default_value = ".")]
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

/// Parses the value of `--slow`, a time of any length, such as `50ms`.
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
    /// The id of the file or directory, in the form that other commands show. If the request names
    /// an entry of a directory, the id of the directory.
    entry_id: String,
    /// The name of the entry below the path in the arguments. Empty for the watched path itself. An
    /// entry of another directory has the directory's id in brackets before its name.
    name: String,
    /// The new name of an entry that was renamed. Empty for other operations.
    new_name: String,
    user: Option<u32>,
    ms: f64,
    bytes: u64,
    is_failed: bool,
    /// The error that the program received. Empty if the operation had no error.
    error: String,
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
    /// Time from the start of the operation to the start of the request.
    begin_ms: f64,
    ms: f64,
    is_failed: bool,
}

pub(crate) fn run(args: TraceArgs) -> Result<()> {
    let (inode, place) = entry_at(&args.path)?;
    let (path, asked) = (args.path.clone(), place.clone());
    let (map, names) = in_mount(&args.path, move || {
        (through_mount::cluster_map(&asked), WatchedNames::of(&path, inode))
    })?;
    let (map, names) = (map?.ok_or_else(|| through_mount::no_records(&place))?, names?);
    if names.is_of_another_user() {
        warn(
            "this user sees only their own operations on this mount; root sees the operations of \
             all users",
        );
    }
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
        let asked = place.to_owned();
        let ask = move || through_mount::operations(&asked, after);
        let Some(found) = reply_of(place, end, ask).await? else { return Ok(()) };
        let found = found?.ok_or_else(|| through_mount::no_records(place))?;
        if found.lost > 0 {
            warn(&format!(
                "operations on this mount are missing ({}), because the mount can keep only a \
                 limited number of operations; `skep why` shows the slow operations",
                found.lost
            ));
        }
        let is_empty = found.next == after;
        after = found.next;
        for operation in &found.operations {
            if is_wanted(args, &operation.record)
                && let Some(shown) = ShownNames::of(operation, &mut names)
            {
                print(operation, shown, map)?;
            }
        }
        if is_over(end) {
            return Ok(());
        }
        if is_empty || found.operations.is_empty() {
            skep_env::sleep(EVERY).await;
        }
    }
}

fn is_wanted(args: &TraceArgs, record: &TraceRecord) -> bool {
    let slow_us = args.slow.map_or(0, |slow| slow.as_micros());
    u128::from(record.duration_us) >= slow_us
        && args.user.is_none_or(|user| record.user == Some(user))
}

/// The names of an operation, relative to the path in the arguments.
#[derive(Debug, Default)]
struct ShownNames {
    name: String,
    new_name: String,
}

impl ShownNames {
    /// Returns the names of an operation. `None` if the command watches neither the inode of the
    /// operation nor, for a rename, the new directory.
    fn of(operation: &FollowedOperation, watched: &mut WatchedNames) -> Option<Self> {
        let FollowedOperation { record, names, errno } = operation;
        let is_rename = !names.new_name.is_empty();
        if *errno == 0 {
            watched.learn(record.inode, names);
        }
        let base = watched.name_of(record.inode, skep_env::now());
        let new_base = match is_rename {
            true => watched.name_of(names.other_inode, skep_env::now()),
            false => None,
        };
        if base.is_none() && new_base.is_none() {
            return None;
        }
        let new_name = match is_rename {
            true => joined(new_base, names.other_inode, &names.new_name),
            false => String::new(),
        };
        Some(Self { name: joined(base, record.inode, &names.name), new_name })
    }
}

/// Returns the path of the entry `name` in the directory `inode` with the path `base`. A `base` of
/// `None` means that the command does not watch the directory. If `name` is empty, returns the path
/// of the inode itself.
fn joined(base: Option<String>, inode: InodeId, name: &[u8]) -> String {
    let base = base.unwrap_or_else(|| format!("[{inode}]"));
    let name = String::from_utf8_lossy(name);
    match (base.is_empty(), name.is_empty()) {
        (true, _) => name.into_owned(),
        (false, true) => base,
        (false, false) => format!("{base}/{name}"),
    }
}

fn print(operation: &FollowedOperation, names: ShownNames, map: &ClusterMap) -> Result<()> {
    let line = line(operation, names, map);
    if format() == OutputFormat::Table {
        return say(&as_text(&line));
    }
    // The command prints each operation as a separate JSON value, because output without an end
    // cannot be a single value.
    let unwritable = |error: serde_json::Error| Error::new(ErrorCode::Io, error.to_string());
    say(&serde_json::to_string(&line).map_err(unwritable)?)
}

fn line(operation: &FollowedOperation, names: ShownNames, map: &ClusterMap) -> TraceLine {
    let FollowedOperation { record, errno, .. } = operation;
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
        name: names.name,
        new_name: names.new_name,
        user: record.user,
        ms: ms(record.duration_us),
        bytes: record.bytes,
        is_failed: record.is_failed,
        error: error_text(*errno),
        mainly: mainly(record, map),
        requests: requests.collect(),
        requests_left_out: record.calls_left_out,
    }
}

/// Returns the text of an error number, in the form that C programs print. Empty for zero.
fn error_text(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(0) | Err(_) => String::new(),
        Ok(errno) => without_errno(&std::io::Error::from_raw_os_error(errno).to_string()),
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
    // The kernel has two opcodes for renames. Show both as `rename`.
    let operation = if line.operation == "rename2" { "rename" } else { &line.operation };
    let name = if line.name.is_empty() { "." } else { &line.name };
    let new_name = match &*line.new_name {
        "" => String::new(),
        new_name => format!(" -> {new_name}"),
    };
    let failed = match (&*line.error, line.is_failed) {
        ("", true) => "failed, ".to_owned(),
        ("", false) => String::new(),
        (error, _) => format!("{error}, "),
    };
    // An operation that took less than a microsecond has no longest phase.
    let mainly = match &*line.mainly {
        "" => String::new(),
        mainly => format!(", {}", escape_controls(mainly)),
    };
    format!(
        "{} {} {}{}{user}{bytes}: {failed}{}{mainly}",
        line.time,
        escape_controls(operation),
        escape_controls(name),
        escape_controls(&new_name),
        milliseconds(line.ms),
    )
}

/// The type of the inode ids in records of operations.
pub(crate) type Inode = InodeId;

#[cfg(test)]
mod tests {
    use super::*;
    use skep_fuse::EntryNames;
    use skep_types::ClusterId;
    use std::os::unix::fs::MetadataExt;

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
        let operation = FollowedOperation { record, errno: 28, ..FollowedOperation::default() };
        let name = "a\nforged\u{1b}[2J".to_owned();
        let line = line(&operation, ShownNames { name, ..ShownNames::default() }, &map);
        assert_eq!(line.time, "2023-11-14T22:13:20.123Z");
        let text = as_text(&line);
        let begin = "2023-11-14T22:13:20.123Z write a\\nforged";
        assert!(text.starts_with(begin) && !text.contains(['\n', '\u{1b}']), "{text}");
        let end = "user 1000 4096 bytes: No space left on device, 4.2 ms, 100 %";
        assert!(text.contains(end), "{text}");
        let short = TraceLine { ms: 0.0, mainly: String::new(), error: String::new(), ..line };
        assert!(as_text(&short).ends_with(": failed, 0 us"), "{}", as_text(&short));
    }

    #[test]
    fn operations_on_an_entry_that_was_just_created_are_shown() {
        let place = tempfile::tempdir().unwrap();
        let inode = InodeId::new(std::fs::metadata(place.path()).unwrap().ino());
        let mut watched = WatchedNames::of(place.path(), inode).unwrap();
        // The names of the entries come from the operations, because the directory is empty.
        let mut shown = |at: u64, name: &str, other: u64, new_name: &str, errno: u32| {
            let names = EntryNames {
                name: name.into(),
                other_inode: InodeId::new(other),
                new_name: new_name.into(),
            };
            let record = TraceRecord { inode: InodeId::new(at), ..TraceRecord::default() };
            let operation = FollowedOperation { record, names, errno };
            ShownNames::of(&operation, &mut watched).map(|it| it.name)
        };
        let (here, file) = (inode.raw(), u64::MAX - 1);
        assert_eq!(shown(file, "", 0, "", 0), None);
        assert_eq!(shown(here, "new", file, "", 0).as_deref(), Some("new"));
        assert_eq!(shown(file, "", 0, "", 0).as_deref(), Some("new"));
        // A failed rename changes no name.
        shown(here, "new", here, "failed", 2);
        assert_eq!(shown(file, "", 0, "", 0).as_deref(), Some("new"));
        shown(here, "new", here, "later", 0);
        assert_eq!(shown(file, "", 0, "", 0).as_deref(), Some("later"));
        // The command does not watch an entry of a directory below the path.
        shown(file, "deep", u64::MAX - 2, "", 0);
        assert_eq!(shown(u64::MAX - 2, "", 0, "", 0), None);
    }

    #[test]
    fn rename_line_shows_old_and_new_name() {
        let place = tempfile::tempdir().unwrap();
        let inode = InodeId::new(std::fs::metadata(place.path()).unwrap().ino());
        let mut watched = WatchedNames::of(place.path(), inode).unwrap();
        let other = InodeId::new(u64::MAX);
        let mut shown = |from: InodeId, to: InodeId| {
            let names = EntryNames {
                name: b"t\x1b1".to_vec(),
                other_inode: to,
                new_name: b"t2\xff".to_vec(),
            };
            let record =
                TraceRecord { operation: "rename2".into(), inode: from, ..TraceRecord::default() };
            let operation = FollowedOperation { record, names, errno: 0 };
            let names = ShownNames::of(&operation, &mut watched)?;
            let map = ClusterMap::empty(ClusterId::default());
            Some(as_text(&line(&operation, names, &map)))
        };
        let here = shown(inode, inode).unwrap();
        assert!(here.contains(" rename t\\u{1b}1 -> t2\u{fffd}: "), "{here}");
        let out = shown(inode, other).unwrap();
        assert!(out.contains(&format!(" -> [{other}]/t2")), "{out}");
        assert!(shown(other, inode).unwrap().contains(&format!(" rename [{other}]/t")));
        assert_eq!(shown(other, other), None);
    }
}
