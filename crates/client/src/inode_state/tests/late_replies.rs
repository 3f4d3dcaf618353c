//! Tests late replies: the reply to a report arrives after the reply to a later truncation. Two
//! programs of a mount cause this order: the first program calls `stat`, which reports the writes,
//! and the second program truncates the file.

use super::{NOW, attributes, opened, write};
use crate::inode_state::ReportLoss;

/// Regression test: the late reply marked the end from before the truncation as reported for the
/// truncated file. Each `fsync` then found a size below this end, logged a power loss of metadata,
/// and reported the file again.
#[test]
fn late_reply_to_a_report_does_not_look_like_a_power_loss() {
    let state = opened(0);
    write(&state, 1000, 0, 1);
    let report = state.unreported().unwrap();
    let truncating = state.try_truncate().unwrap();
    state.reported(&report, &attributes(1000, 0, 2), false, NOW);
    truncating.done(&attributes(10, 1, 3), NOW);
    drop(truncating);
    // The first reply again, as if another thread had sent the same report.
    state.reported(&report, &attributes(1000, 0, 2), false, NOW);
    assert_eq!((state.size(), state.unreported()), (10, None));
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(10, 1, 3)), ReportLoss::Nothing);
    // The size of a report in the newer generation counts.
    write(&state, 50, 0, 1);
    let report = state.unreported().unwrap();
    state.reported(&report, &attributes(50, 1, 4), false, NOW);
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(10, 1, 3)), ReportLoss::End);
}
