//! The load that a user's programs cause through this mount, for programs that request it by an
//! extended attribute (`skep stats --mount`).
//!
//! Owns the encoded reply, and the rule that decides which statistics a user may see: the
//! statistics of the user's own requests, or all statistics for root. The counts are in
//! `skep_client::RequestLoad`.

use crate::following::Follower;
use skep_client::{RequestCause, RequestCounts, RequestLoad};
use skep_metrics::HistogramValue;
use skep_types::codec::{Codec, record};
use skep_wire::Request;
use skep_wire::file_locks::WaitLock;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum size of a reply. The kernel limits the value of an attribute to 64 KiB.
const MAX_REPLY_BYTES: usize = 60_000;
/// Maximum time for which one query makes the mount count requests.
const LONGEST: Duration = Duration::from_secs(2 * 3600);
/// Id of the row with the sums over all targets, users or other objects that have no row of their
/// own.
pub const MERGED_LOAD: u32 = u32::MAX;

record! {
    /// The load of one target, kind of request, user, group or job.
    #[derive(Default)]
    pub struct UserLoadRow {
        /// Id of the target, the message type, the user, the group or the job. [`MERGED_LOAD`]
        /// stands for all objects without a row of their own.
        pub id: u32,
        /// Number of requests in this row.
        pub requests: u64,
        /// Number of failed requests.
        pub failed: u64,
        /// Bytes of file data that were read.
        pub read_bytes: u64,
        /// Bytes of file data that were written.
        pub written_bytes: u64,
        /// Sum of the times from each request to its reply, in nanoseconds.
        pub busy_ns: u64,
        /// The histogram of the durations: the index and the count of each bucket that is not
        /// empty. The list is empty if the reply has no space for the histogram.
        pub buckets: Vec<(u8, u64)>,
    }
}

record! {
    /// The load of a user's programs since counting began.
    #[derive(Default)]
    pub struct UserLoad {
        /// Random number that changes when counting begins again.
        pub incarnation: u64,
        /// Time at which the mount computed the statistics, in nanoseconds since the boot of the
        /// host.
        pub moment_ns: u64,
        /// The rows, by id.
        pub rows: Vec<UserLoadRow>,
    }
}

/// The kind of objects that the rows of a reply describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Division {
    Target,
    Operation,
    User,
    Group,
    Job,
}

/// A query for the load of a user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    by: Division,
    lasts: Duration,
}

impl Question {
    /// Parses the part of the attribute's name after the prefix, such as `target.20`. This part
    /// contains the objects of the rows, and the number of seconds for which the mount continues to
    /// count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (by, seconds) = text.split_once('.')?;
        let by = match by {
            "target" => Division::Target,
            "operation" => Division::Operation,
            "user" => Division::User,
            "group" => Division::Group,
            "job" => Division::Job,
            _ => return None,
        };
        let lasts = Duration::from_secs(seconds.parse().ok()?).min(LONGEST);
        Some(Self { by, lasts })
    }

    /// Returns the reply to this query of the program `asker`. The mount does not count requests
    /// that this program causes, since a program that queries an idle mount would show load.
    pub(crate) fn answer(self, load: &RequestLoad, asker: Follower, now: Duration) -> UserLoad {
        load.add_asker(asker.pid, self.lasts, now);
        let rows = |incarnation, counts: &BTreeMap<RequestCause, RequestCounts>| {
            (incarnation, rows(self.by, counts, asker.uid))
        };
        let (incarnation, rows) = load.ask(self.lasts, now, rows);
        let moment_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        within_limit(UserLoad { incarnation, moment_ns, rows })
    }
}

fn rows(
    by: Division,
    counts: &BTreeMap<RequestCause, RequestCounts>,
    uid: u32,
) -> Vec<UserLoadRow> {
    let mut sums: BTreeMap<u32, RequestCounts> = BTreeMap::new();
    for (cause, counts) in counts.iter().filter(|(it, _)| uid == 0 || it.user == Some(uid)) {
        let id = match by {
            // In the entry that merges several causes, the target and the id of the message type
            // are zero. In every other entry, the id of the message type is not zero.
            _ if cause.message == 0 && by != Division::User => Some(MERGED_LOAD),
            Division::Target => Some(cause.target),
            Division::Operation => Some(cause.message.into()),
            Division::User => Some(cause.user.unwrap_or(MERGED_LOAD)),
            Division::Group => cause.group,
            Division::Job => cause.job,
        };
        let Some(id) = id else { continue };
        let mut counts = counts.clone();
        // The purpose of a lock wait is to wait, so its duration shows no load.
        if cause.message == WaitLock::ID && by != Division::Operation {
            counts.durations = HistogramValue::default();
        }
        sums.entry(id).or_default().add(&counts);
    }
    sums.into_iter().map(|(id, counts)| row(id, &counts)).collect()
}

fn row(id: u32, counts: &RequestCounts) -> UserLoadRow {
    let buckets = counts.durations.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    let numbered = buckets.filter_map(|(bucket, count)| Some((u8::try_from(bucket).ok()?, *count)));
    UserLoadRow {
        id,
        requests: counts.requests,
        failed: counts.failed,
        read_bytes: counts.read_bytes,
        written_bytes: counts.written_bytes,
        busy_ns: counts.durations.sum_ns,
        buckets: numbered.collect(),
    }
}

/// If a reply is too long, removes the durations. If the reply is then still too long, merges the
/// rows with the highest ids into one row. The order of ids is the same in all replies, so programs
/// may compare two replies.
fn within_limit(mut load: UserLoad) -> UserLoad {
    if load.to_bytes().len() <= MAX_REPLY_BYTES {
        return load;
    }
    load.rows.iter_mut().for_each(|row| row.buckets.clear());
    let row_bytes = UserLoadRow::default().to_bytes().len();
    let most = MAX_REPLY_BYTES / row_bytes - 2;
    let mut merged = UserLoadRow { id: MERGED_LOAD, ..UserLoadRow::default() };
    for row in load.rows.drain(most.min(load.rows.len())..) {
        merged.requests += row.requests;
        merged.failed += row.failed;
        merged.read_bytes += row.read_bytes;
        merged.written_bytes += row.written_bytes;
        merged.busy_ns = merged.busy_ns.saturating_add(row.busy_ns);
    }
    if merged.requests > 0 {
        load.rows.push(merged);
    }
    load
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u64) -> RequestCounts {
        let mut counts = RequestCounts { requests, read_bytes: 10, ..RequestCounts::default() };
        (0..requests).for_each(|_| counts.durations.record(Duration::from_millis(1)));
        counts
    }

    fn cause(user: u32, target: u32, message: u16) -> RequestCause {
        RequestCause { user: Some(user), group: Some(5), job: None, target, message }
    }

    #[test]
    fn user_sees_only_own_requests_and_root_sees_all() {
        let all = [
            (cause(1000, 3, 96), counts(2)),
            (cause(1000, 3, 97), counts(1)),
            (cause(1000, 4, 96), counts(1)),
            (cause(2000, 3, 96), counts(5)),
            (RequestCause { user: Some(1000), ..RequestCause::default() }, counts(7)),
        ];
        let all = all.into();
        let shown = |by, uid| -> Vec<(u32, u64)> {
            rows(by, &all, uid).iter().map(|row| (row.id, row.requests)).collect()
        };
        assert_eq!(shown(Division::Target, 1000), [(3, 3), (4, 1), (MERGED_LOAD, 7)]);
        assert_eq!(shown(Division::Operation, 1000), [(96, 3), (97, 1), (MERGED_LOAD, 7)]);
        assert_eq!(shown(Division::User, 2000), [(2000, 5)]);
        assert_eq!(shown(Division::User, 0), [(1000, 11), (2000, 5)]);
        assert_eq!(shown(Division::Group, 2000), [(5, 5)]);
        assert_eq!(shown(Division::Job, 2000), []);
        assert_eq!(shown(Division::Target, 3000), []);
        let row = &rows(Division::User, &all, 2000)[0];
        assert_eq!((row.busy_ns, row.buckets.len()), (5_000_000, 1));
    }

    #[test]
    fn load_reply_fits_into_an_xattr_and_keeps_the_sum() {
        let all: BTreeMap<_, _> =
            (1..=4000).map(|target| (cause(1000, target, 96), counts(1))).collect();
        let load = UserLoad { rows: rows(Division::Target, &all, 1000), ..UserLoad::default() };
        let sent = within_limit(load);
        assert!(sent.to_bytes().len() <= MAX_REPLY_BYTES);
        assert_eq!(sent.rows.iter().map(|row| row.requests).sum::<u64>(), 4000);
        assert_eq!(sent.rows.last().map(|row| row.id), Some(MERGED_LOAD));
    }

    #[test]
    fn load_query_is_parsed_and_its_duration_is_bounded() {
        let parsed = |text| Question::parse(text).map(|it| (it.by, it.lasts.as_secs()));
        assert_eq!(parsed("target.20"), Some((Division::Target, 20)));
        assert_eq!(parsed("job.999999999"), Some((Division::Job, LONGEST.as_secs())));
        for wrong in ["", "target", "target.", "target.-1", "node.5"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
