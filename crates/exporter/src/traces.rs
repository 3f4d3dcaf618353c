//! Messages about records of single operations. The reply to [`ListTraces`] contains the records of
//! this process. Mounts send their records to management by [`ReportTraces`].
//!
//! `skep_metrics::TraceStore` has the ring buffers with the records of the process itself.

use skep_metrics::{KeptOperation, Reason, TraceStore};
use skep_types::text::shorten;
use skep_types::{GroupId, InodeId, NodeId, TargetId};
use skep_wire::limits::{
    MAX_LISTED_TRACES, MAX_REPORTED_TRACES, MAX_TRACE_CALLS, MAX_TRACE_ERROR_BYTES,
    MAX_TRACE_NAME_BYTES, MAX_TRACE_WAITS,
};
use skep_wire::traces::{
    ListTraces, ReportTraces, StageTimes, TraceCall, TraceList, TraceRecord, TraceWait,
};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of mounts' records that management stores.
const MAX_REPORTED: usize = 4096;
/// Maximum total number of requests in the stored records of mounts. With this limit, the records
/// take at most about 3 MB of memory.
const MAX_REPORTED_CALLS: usize = 64 << 10;

/// The time of a reply, by two clocks of the host.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Time since the boot of the host.
    pub now: Duration,
    /// Time of day in microseconds since 1970.
    pub wall_us: u64,
}

impl Moment {
    /// Returns the current time.
    pub fn read() -> Self {
        let wall = skep_env::wall_time();
        let seconds = u64::try_from(wall.seconds).unwrap_or(0);
        Self { now: skep_env::now(), wall_us: seconds * 1_000_000 + wall.nanoseconds as u64 / 1000 }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn short(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Converts a record to the form that messages contain.
pub fn record_of(kept: &KeptOperation, moment: Moment) -> TraceRecord {
    let completed = &kept.completed;
    let ago = moment.now.saturating_sub(completed.ended_at);
    let call = |call: &skep_metrics::TracedCall| TraceCall {
        message: call.message,
        target: TargetId::new(call.target),
        begin_us: short(call.begin),
        duration_us: short(call.duration),
        is_failed: call.is_failed,
        stages: call.times_us.map(StageTimes::from_array),
    };
    let wait = |wait: &skep_metrics::TracedWait| TraceWait {
        group: GroupId::new(wait.group),
        target: TargetId::new(wait.target),
        served_by: TargetId::new(wait.served_by),
        begin_us: short(wait.begin),
        duration_us: short(wait.duration),
        error: wait.error.clone(),
    };
    TraceRecord {
        trace: completed.trace,
        service: kept.service.to_owned(),
        target: TargetId::new(kept.target),
        client: NodeId::new(kept.origin.client.unwrap_or(0)),
        user: kept.origin.user,
        operation: kept.name.clone(),
        inode: InodeId::new(completed.object),
        ended_us: moment.wall_us.saturating_sub(microseconds(ago)),
        duration_us: microseconds(completed.duration),
        stages: StageTimes::from_array(completed.times_us()),
        bytes: completed.received_bytes + completed.sent_bytes,
        is_failed: completed.is_failed,
        is_slow: kept.reason == Reason::Slow,
        calls: kept.calls.calls.iter().map(call).collect(),
        calls_left_out: kept.calls.left_out,
        waits: kept.calls.waits.iter().map(wait).collect(),
    }
}

/// Returns a report that contains some of a mount's records. Management accepts only a limited
/// number of records in one report.
pub fn report_of(chosen: &[&KeptOperation]) -> ReportTraces {
    debug_assert!(chosen.len() <= MAX_REPORTED_TRACES, "the sender limits the number of records");
    let moment = Moment::read();
    let records = chosen.iter().take(MAX_REPORTED_TRACES);
    ReportTraces { records: records.map(|kept| record_of(kept, moment)).collect() }
}

/// The newest records that mounts have reported to management.
#[derive(Debug, Default)]
pub struct ReportedTraces {
    /// The records with their numbers, in ascending order of the numbers.
    records: VecDeque<(u64, TraceRecord)>,
    /// Total number of requests in all records.
    calls: usize,
}

impl ReportedTraces {
    /// Adds the records of a report from the client `client`. Drops the oldest records beyond
    /// `MAX_REPORTED` records or `MAX_REPORTED_CALLS` requests. `store` assigns the numbers of the
    /// records. If the clock of the client is ahead, an operation may seem to end in the future.
    /// Such an operation counts as ended now, because readers would otherwise list the operation as
    /// recent for hours.
    pub fn add(&mut self, client: NodeId, report: ReportTraces, store: &TraceStore) {
        let now_us = Moment::read().wall_us;
        for mut record in report.records {
            record.client = client;
            record.ended_us = record.ended_us.min(now_us);
            for name in [&mut record.service, &mut record.operation] {
                shorten(name, MAX_TRACE_NAME_BYTES);
            }
            record.calls.truncate(MAX_TRACE_CALLS);
            record.waits.truncate(MAX_TRACE_WAITS);
            for wait in &mut record.waits {
                shorten(&mut wait.error, MAX_TRACE_ERROR_BYTES);
            }
            self.calls += record.calls.len();
            self.records.push_back((store.next_number(), record));
            while self.records.len() > MAX_REPORTED || self.calls > MAX_REPORTED_CALLS {
                let dropped = self.records.pop_front();
                self.calls -= dropped.map_or(0, |(_, record)| record.calls.len());
            }
        }
    }
}

/// Returns a page of the records that a process stores: its own records, and the records that
/// mounts have reported to this process.
pub fn list(
    request: &ListTraces,
    store: &TraceStore,
    reported: &ReportedTraces,
    incarnation: u64,
) -> TraceList {
    let limit = (request.limit as usize).clamp(1, MAX_LISTED_TRACES);
    let moment = Moment::read();
    let own = store.read(request.trace, request.after, limit);
    let mut next = own.next;
    let mut records: Vec<_> =
        own.operations.iter().map(|kept| (kept.number, record_of(kept, moment))).collect();
    let of_mounts = reported.records.iter().filter(|(number, record)| {
        *number > request.after && request.trace.is_none_or(|trace| record.trace == trace)
    });
    records.extend(of_mounts.cloned());
    records.sort_by_key(|(number, _)| *number);
    // If further records of this process do not fit into this page, mounts' records with higher
    // numbers also belong to the next page.
    records.retain(|(number, _)| *number <= next);
    if records.len() > limit {
        records.truncate(limit);
        next = records.last().map_or(next, |(number, _)| *number);
    }
    let records = records.into_iter().map(|(_, record)| record).collect();
    TraceList { records, next, incarnation, lost: own.lost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::{Completed, OperationTable, Origin, Registry, Stage, catalog};

    fn report(traces: std::ops::Range<u128>, calls: usize) -> ReportTraces {
        let call = TraceCall {
            message: 96,
            target: TargetId::new(3),
            begin_us: 0,
            duration_us: 1,
            is_failed: false,
            stages: None,
        };
        let wait = TraceWait {
            group: GroupId::new(5),
            target: TargetId::new(3),
            served_by: TargetId::new(3),
            begin_us: 0,
            duration_us: 1,
            error: "e".repeat(1000),
        };
        let record = |trace| TraceRecord {
            trace,
            service: "mount".into(),
            operation: "x".repeat(1000),
            client: NodeId::new(99),
            calls: vec![call; calls],
            waits: vec![wait.clone(); 9],
            ..TraceRecord::default()
        };
        ReportTraces { records: traces.map(record).collect() }
    }

    fn ask(trace: Option<u128>, after: u64, limit: u32) -> ListTraces {
        ListTraces { trace, after, limit }
    }

    #[test]
    fn trace_list_has_records_of_services_and_mounts_in_pages() {
        let registry = Registry::new();
        let labels = vec![("target", "7".to_owned())];
        let name = |_| Some("read_chunk".to_owned());
        let table = OperationTable::new(&registry, &catalog::STORAGE, labels, name);
        let mut reported = ReportedTraces::default();
        reported.add(NodeId::new(12), report(5..7, 1), registry.traces());
        let now = skep_env::now();
        let slow = Completed {
            trace: 6,
            object: 77,
            ended_at: now.saturating_sub(Duration::from_secs(2)),
            duration: Duration::from_millis(300),
            ..Completed::default()
        };
        let slow = slow.with(Stage::Disk, Duration::from_millis(250));
        table.record(&slow, &Origin { client: Some(12), ..Origin::default() });
        reported.add(NodeId::new(13), report(8..9, 1), registry.traces());
        let list = |request: &ListTraces| list(request, registry.traces(), &reported, 5);
        let page = list(&ask(None, 0, 2));
        assert_eq!((page.records.len(), page.next), (2, 2));
        let rest = list(&ask(None, page.next, 2));
        assert_eq!((rest.records.len(), rest.next), (2, 4));
        assert_eq!(
            list(&ask(None, rest.next, 2)),
            TraceList { next: 4, incarnation: 5, ..TraceList::default() }
        );
        let [of_mount, own] = &list(&ask(Some(6), 0, 100)).records[..] else { panic!() };
        assert_eq!((of_mount.client, of_mount.operation.len()), (NodeId::new(12), 64));
        assert_eq!((of_mount.waits.len(), of_mount.waits[0].error.len()), (4, 160));
        assert_eq!((own.target, own.inode.raw(), own.is_slow), (TargetId::new(7), 77, true));
        assert_eq!((own.duration_us, own.stages.disk_us), (300_000, 250_000));
        let ago = Moment::read().wall_us - own.ended_us;
        assert!((1_900_000..30_000_000).contains(&ago), "{ago} us ago");
    }

    #[test]
    fn operation_of_a_client_with_a_fast_clock_counts_as_ended_now() {
        let (store, mut reported) = (TraceStore::default(), ReportedTraces::default());
        let mut report = report(1..2, 0);
        report.records[0].ended_us = u64::MAX;
        let before_us = Moment::read().wall_us;
        reported.add(NodeId::new(12), report, &store);
        let ended_us = reported.records[0].1.ended_us;
        assert!((before_us..=Moment::read().wall_us).contains(&ended_us), "{ended_us}");
    }

    #[test]
    fn mount_records_and_their_requests_are_bounded_in_number() {
        let store = TraceStore::default();
        let mut reported = ReportedTraces::default();
        reported.add(NodeId::new(12), report(0..MAX_REPORTED as u128 + 5, 0), &store);
        assert_eq!(reported.records.len(), MAX_REPORTED);
        assert_eq!(reported.records[0].1.trace, 5, "the oldest were dropped");
        reported.add(NodeId::new(12), report(0..2000, 1000), &store);
        assert!(reported.records.len() < 2000 && reported.calls <= MAX_REPORTED_CALLS);
    }
}
