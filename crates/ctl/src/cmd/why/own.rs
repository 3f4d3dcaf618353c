//! `skep why PATH` for users without the cluster's token: explains the operations of this user on
//! the path, from the records that its mount keeps while the command measures.
//!
//! Does not own the report (`skep_stats::operation`).

use crate::cmd::trace::names::WatchedNames;
use crate::cmd::trace::no_records;
use crate::through_mount;
use skep_stats::operation::of_mount;
use skep_stats::why::Report;
use skep_types::{InodeId, Result};
use skep_wire::traces::TraceRecord;
use std::path::Path;
use std::time::Duration;

/// Time between two questions to the mount.
const EVERY: Duration = Duration::from_millis(100);
/// Maximum number of operations. The report is about the first ones.
const MAX_OPERATIONS: usize = 100_000;

/// Measures for `interval`. `place` is a path on the mount of `path`.
///
/// # Errors
/// - `Unsupported` if the mount is of an older version.
/// - Errors of the mount.
pub(super) async fn explain(
    (path, inode): (&Path, InodeId),
    place: &Path,
    interval: Duration,
) -> Result<Report> {
    let map = through_mount::cluster_map(place)?.ok_or_else(|| no_records(place))?;
    let mut names = WatchedNames::of(path, inode)?;
    let begin = skep_env::now();
    let (mut after, mut lost) = (0, 0);
    let mut records: Vec<TraceRecord> = Vec::new();
    while skep_env::now() < begin + interval && records.len() < MAX_OPERATIONS {
        let found = through_mount::operations(place, after)?.ok_or_else(|| no_records(place))?;
        after = found.next;
        lost += found.lost;
        let is_empty = found.records.is_empty();
        // The root of the mount stands for all its files.
        let is_on_path = |it: &TraceRecord| {
            inode == InodeId::ROOT || names.name_of(it.inode, skep_env::now()).is_some()
        };
        records.extend(found.records.into_iter().filter(is_on_path));
        if is_empty {
            skep_env::sleep(EVERY).await;
        }
    }
    let mut report = of_mount(&records, &map, skep_env::now().saturating_sub(begin));
    if lost > 0 {
        report.unreachable.push(format!("{lost} operations that the mount could not keep"));
    }
    Ok(report)
}
