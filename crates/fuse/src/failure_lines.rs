//! Limits the log lines about failed operations to one line a minute for each combination of file,
//! operation and error. A program that reads a lost file sends several reads at the same time, and
//! other programs repeat an open again and again. So without a limit, the log would have many equal
//! lines. The number of all lines has a limit too, because a program may read millions of lost
//! files.
//!
//! `fsync` and the requests of a close count as one operation. The kernel sends a FLUSH for each
//! copy of a descriptor that a program closes, and a RELEASE after the last close. A shell that
//! redirects the output of a command closes two copies, and each child process closes the copies
//! that it has inherited. If the mount cannot report the writes of a file, all these requests fail
//! for the same reason, as an `fsync` before them did.

use crate::abi::Opcode;
use crate::limits::MAX_LOGGED_FAILURES;
use skep_metrics::LineLimit;
use skep_types::ErrorCode;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An inode, and the opcode and the error number of a failed operation on this inode. The opcode is
/// that of [`kind_of`].
type Failed = (u64, u32, u16);

/// The limits of this process. All workers share them, because several workers may serve operations
/// on the same file.
static LINES: Mutex<FailureLines> = Mutex::new(FailureLines::new());

/// The table entry for all failures that occur while the table is full. No inode has the number 0.
const OTHERS: Failed = (0, 0, 0);
/// How long the mount keeps a full table. While the table is full, all further failures have one
/// common limit.
const FULL_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct FailureLines {
    limits: BTreeMap<Failed, LineLimit>,
    /// Time of the first failure after the table was last empty.
    since: Duration,
}

impl FailureLines {
    const fn new() -> Self {
        Self { limits: BTreeMap::new(), since: Duration::ZERO }
    }

    /// See [`count`].
    fn count(&mut self, failed: Failed, now: Duration) -> Option<u64> {
        let is_full = self.limits.len() >= MAX_LOGGED_FAILURES;
        if is_full && now.saturating_sub(self.since) >= FULL_FOR {
            // Forget all limits. The log may then repeat a line within a minute.
            self.limits.clear();
        }
        if self.limits.is_empty() {
            self.since = now;
        }
        let has_place = self.limits.len() < MAX_LOGGED_FAILURES;
        let failed = if has_place || self.limits.contains_key(&failed) { failed } else { OTHERS };
        self.limits.entry(failed).or_default().count(now)
    }
}

/// Counts a failure of the operation `opcode` on the inode `node` at `now`. If a log line is due,
/// returns the number of equal failures since the last line.
pub(crate) fn count(node: u64, opcode: u32, code: ErrorCode, now: Duration) -> Option<u64> {
    let failed = (node, kind_of(opcode), code as u16);
    LINES.lock().unwrap_or_else(PoisonError::into_inner).count(failed, now)
}

/// Returns the opcode that stands for all operations whose failures have a common limit.
fn kind_of(opcode: u32) -> u32 {
    match Opcode::from_number(opcode) {
        Some(Opcode::Flush | Opcode::Fsync | Opcode::Release) => Opcode::Flush as u32,
        _ => opcode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_sync_and_close_share_one_log_line_limit() {
        let (inode, at) = (u64::MAX, Duration::from_secs(100));
        let failed = |opcode: Opcode| count(inode, opcode as u32, ErrorCode::DeviceFailed, at);
        assert_eq!(failed(Opcode::Fsync), Some(1));
        assert_eq!(failed(Opcode::Flush), None);
        assert_eq!(failed(Opcode::Release), None);
        assert_eq!(failed(Opcode::Write), Some(1), "another operation");
    }

    #[test]
    fn equal_failures_of_a_file_get_one_log_line_a_minute() {
        let mut lines = FailureLines::new();
        let lost = (7, 15, ErrorCode::TargetLost as u16);
        let at = Duration::from_secs;
        assert_eq!(lines.count(lost, at(100)), Some(1));
        assert_eq!(lines.count(lost, at(100)), None);
        assert_eq!(lines.count((8, 15, lost.2), at(100)), Some(1), "another file");
        assert_eq!(lines.count((7, 14, lost.2), at(100)), Some(1), "an open");
        assert_eq!(lines.count((7, 15, ErrorCode::Io as u16), at(100)), Some(1), "another error");
        assert_eq!(lines.count(lost, at(160)), Some(2));
    }

    #[test]
    fn failures_of_many_files_get_few_log_lines_a_minute() {
        let mut lines = FailureLines::new();
        let mut logged = |at: u64| {
            let failed = |inode| (inode, 15, ErrorCode::Io as u16);
            let inodes = 1..=3 * MAX_LOGGED_FAILURES as u64;
            let due = inodes.filter_map(|it| lines.count(failed(it), Duration::from_secs(at)));
            let counts: Vec<u64> = due.collect();
            assert!(lines.limits.len() <= MAX_LOGGED_FAILURES + 1);
            counts.len()
        };
        assert_eq!(logged(100), MAX_LOGGED_FAILURES + 1);
        assert_eq!(logged(159), 0);
        assert_eq!(logged(160), MAX_LOGGED_FAILURES + 1);
    }
}
