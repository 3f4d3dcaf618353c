//! `skep why PATH` for users without the cluster's token. Explains the operations of this user on
//! the path and below the path, from records that the mount makes while the command measures.
//!
//! The report comes from `skep_stats::operation`.

use super::operation::recent_slowest;
use super::{subtree, waits};
use crate::cmd::trace::names::WatchedNames;
use crate::mounts::mount_of;
use crate::through_mount;
use skep_stats::operation::{self, OperationReport, Usual, of_mount};
use skep_stats::why::Report;
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::traces::TraceRecord;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Time between two requests to the mount for new records.
const EVERY: Duration = Duration::from_millis(100);
/// Maximum number of operations in a report. The measurement ends when the report has this number
/// of operations.
const MAX_OPERATIONS: usize = 100_000;

/// Collects the records of operations for `interval`, and explains these operations. `place` is a
/// path on the same mount as `path`.
///
/// # Errors
/// - `Unsupported` if the mount is of an older version.
/// - Errors of the mount.
pub(super) async fn explain(
    (path, inode): (&Path, InodeId),
    place: &Path,
    interval: Duration,
) -> Result<Report> {
    let map = through_mount::cluster_map(place)?.ok_or_else(|| through_mount::no_records(place))?;
    let mut names = WatchedNames::of(path, inode)?;
    let begin = skep_env::now();
    let (mut after, mut lost) = (0, 0);
    let is_directory = std::fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    // The operations. The flag of an operation is true if the operation is on the path itself or on
    // an entry of the directory at the path.
    let mut records: Vec<(TraceRecord, bool)> = Vec::new();
    while skep_env::now() < begin + interval && records.len() < MAX_OPERATIONS {
        let found = through_mount::operations(place, after)?
            .ok_or_else(|| through_mount::no_records(place))?;
        after = found.next;
        lost += found.lost;
        let is_empty = found.operations.is_empty();
        // If the path is the root of the mount, the flag is true for all operations on the mount.
        records.extend(found.operations.into_iter().map(|it| {
            if it.errno == 0 {
                names.learn(it.record.inode, &it.names);
            }
            let record = it.record;
            let is_on_path =
                inode == InodeId::ROOT || names.name_of(record.inode, skep_env::now()).is_some();
            (record, is_on_path)
        }));
        if is_empty {
            skep_env::sleep(EVERY).await;
        }
    }
    let span = skep_env::now().saturating_sub(begin);
    let waiting = through_mount::waiting(place)?.unwrap_or_default();
    let mut is_direct = |inode_of_request: InodeId| {
        inode == InodeId::ROOT || names.name_of(inode_of_request, skep_env::now()).is_some()
    };
    let direct: HashSet<_> =
        waiting.requests.iter().map(|it| it.inode).filter(|it| is_direct(*it)).collect();
    let slow: Vec<(TraceRecord, bool)> = through_mount::slow_operations(place)?
        .unwrap_or_default()
        .into_iter()
        .map(|record| {
            let is_on_path = is_direct(record.inode);
            (record, is_on_path)
        })
        .collect();
    let below = match is_directory && inode != InodeId::ROOT {
        true => {
            let waiting = waiting.requests.iter().map(|it| it.inode);
            let recorded = slow.iter().chain(&records).filter(|it| !it.1);
            let others = recorded.map(|(record, _)| record.inode);
            let unknown = waiting.filter(|it| !direct.contains(it)).chain(others);
            subtree::below(place, inode, unknown)
        }
        false => HashSet::new(),
    };
    let on_path = |records: Vec<(TraceRecord, bool)>| -> Vec<TraceRecord> {
        let is_shown = |it: &(TraceRecord, bool)| it.1 || below.contains(&it.0.inode);
        records.into_iter().filter(is_shown).map(|(record, _)| record).collect()
    };
    let mut report = of_mount(&on_path(records), &map, span);
    report.slowest = recent_slowest(&on_path(slow), &map);
    let mount = mount_of(&std::path::absolute(place)?).map(|(point, _)| point);
    report.waiting = waits::of_mount(&waiting, &map, mount.as_deref(), |waiting| {
        direct.contains(&waiting) || below.contains(&waiting)
    });
    if lost > 0 {
        let (operations, records) = match lost {
            1 => ("1 operation".to_owned(), "its record"),
            lost => (format!("{lost} operations"), "their records"),
        };
        report.unreachable.push(format!("{operations}: the mount was too busy to keep {records}"));
    }
    Ok(report)
}

/// Explains the operation with the trace id `trace` from a record of the mount at `place`. The
/// mount returns only records of slow operations. Users other than root get only records of their
/// own operations.
///
/// # Errors
/// - `NotFound` if the mount has no such record.
/// - `Unsupported` if the mount is of an older version.
/// - Errors of the mount.
pub(super) fn explain_operation(place: &Path, trace: u128) -> Result<OperationReport> {
    let map = through_mount::cluster_map(place)?.ok_or_else(|| through_mount::no_records(place))?;
    let mut records = through_mount::slow_operations(place)?.unwrap_or_default();
    records.retain(|record| record.trace == trace);
    operation::explain(&records, &map, &Usual::default()).ok_or_else(|| {
        let what = format!(
            "cannot explain operation {trace:032x}: the mount at {} has no record of a slow \
             operation of this user with this id; `skep why PATH` lists the slowest operations. An \
             administrator, who can use the cluster's token, can ask all services",
            place.display()
        );
        Error::new(ErrorCode::NotFound, what)
    })
}
