//! `skep why PATH` for users without the cluster's token. Explains the operations of this user on
//! the path, from records that the mount makes while the command measures.
//!
//! The report comes from `skep_stats::operation`.

use super::waits;
use crate::cmd::trace::names::WatchedNames;
use crate::through_mount;
use skep_stats::operation::of_mount;
use skep_stats::why::Report;
use skep_types::{InodeId, Result};
use skep_wire::traces::TraceRecord;
use std::path::Path;
use std::time::Duration;

/// Time between two questions to the mount for new records.
const EVERY: Duration = Duration::from_millis(100);
/// Maximum number of operations in a report. When it is reached, the measurement ends.
const MAX_OPERATIONS: usize = 100_000;

/// Collects the records of operations for `interval`, and explains them. `place` is a path on the
/// same mount as `path`.
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
    let mut records: Vec<TraceRecord> = Vec::new();
    while skep_env::now() < begin + interval && records.len() < MAX_OPERATIONS {
        let found = through_mount::operations(place, after)?
            .ok_or_else(|| through_mount::no_records(place))?;
        after = found.next;
        lost += found.lost;
        let is_empty = found.records.is_empty();
        // If the path is the root of the mount, operations on all files of the mount are included.
        let is_on_path = |it: &TraceRecord| {
            inode == InodeId::ROOT || names.name_of(it.inode, skep_env::now()).is_some()
        };
        records.extend(found.records.into_iter().filter(is_on_path));
        if is_empty {
            skep_env::sleep(EVERY).await;
        }
    }
    let mut report = of_mount(&records, &map, skep_env::now().saturating_sub(begin));
    report.waiting = waits::of_mount(place, &map, |waiting| {
        inode == InodeId::ROOT || names.name_of(waiting, skep_env::now()).is_some()
    })?;
    if lost > 0 {
        report
            .unreachable
            .push(format!("{lost} operations, because the mount could not keep their records"));
    }
    Ok(report)
}
