//! Tests of the explanation of one operation.

use super::*;
use crate::ServiceFigures;
use crate::why::tests::map;
use skep_types::{Group, GroupId, GroupMember, MemberState, NodeId, TargetId};
use skep_wire::Request;
use skep_wire::file_locks::WaitLock;
use skep_wire::node::{Statistics, StatisticsSeries};
use skep_wire::traces::{StageTimes, TraceCall};

const TRACE: u128 = 0x17 << 64 | 0x2a;

fn call(
    message: u16,
    target: u32,
    begin_us: u32,
    duration_us: u32,
    stages: StageTimes,
) -> TraceCall {
    let target = TargetId::new(target);
    TraceCall { message, target, begin_us, duration_us, is_failed: false, stages: Some(stages) }
}

fn of_mount(duration_us: u64, processing_us: u32, calls: Vec<TraceCall>) -> TraceRecord {
    TraceRecord {
        trace: TRACE,
        service: "mount".into(),
        client: NodeId::new(8),
        operation: "fsync".into(),
        ended_us: 1_000_000,
        duration_us,
        stages: StageTimes { processing_us, ..StageTimes::default() },
        is_slow: true,
        calls,
        ..TraceRecord::default()
    }
}

fn shares(report: &OperationReport) -> Vec<(u32, &str, i32)> {
    let percent = |part: &Part| (part.share * 100.0).round() as i32;
    report.parts.iter().map(|part| (part.target, &*part.stage, percent(part))).collect()
}

fn explained(records: &[TraceRecord]) -> OperationReport {
    explain(records, &map(), &Usual::default()).unwrap()
}

fn wait(target: u32, served_by: u32, duration_us: u32, error: &str) -> TraceWait {
    TraceWait {
        group: GroupId::new(5),
        target: TargetId::new(target),
        served_by: TargetId::new(served_by),
        begin_us: 100,
        duration_us,
        error: error.into(),
    }
}

#[test]
fn wait_for_a_stopped_target_names_target_node_and_error() {
    // The first attempt and the last attempt are requests. In between, no request is open.
    let first = TraceCall { is_failed: true, stages: None, ..call(98, 3, 100, 50, zero()) };
    let last = call(98, 3, 19_900, 100, StageTimes { disk_us: 100, ..StageTimes::default() });
    let error = "target t3 on storage-1: 10.0.0.4:7420: Connection refused";
    let waited = TraceRecord {
        waits: vec![wait(3, 3, 19_800, error)],
        ..of_mount(20_000, 20, vec![first, last])
    };
    let report = explained(std::slice::from_ref(&waited));
    assert_eq!(shares(&report), [(3, "others", 99), (3, "disk", 1)]);
    let expected = "waiting for storage target t3 on storage-1, which did not serve the \
                    request: 10.0.0.4:7420: Connection refused";
    assert_eq!(report.parts[0].what, expected);
    assert_eq!(mainly(&waited, &map()), format!("99 % {expected}"));
}

#[test]
fn explained_wait_names_the_failed_member_and_its_successor() {
    let error = "target t1: the connection has ended";
    let waited =
        TraceRecord { waits: vec![wait(1, 2, 9_900, error)], ..of_mount(10_000, 0, vec![]) };
    let what = &explained(&[waited]).parts[0].what;
    let expected = "waiting for metadata target t1 on metadata-1, which did not serve the request: \
                    the connection has ended; metadata target t2 on metadata-2 has taken over";
    assert_eq!(what, expected);
    let without = TraceRecord {
        waits: vec![wait(0, 2, 9_900, "group g5 has no serving member")],
        ..of_mount(10_000, 0, vec![])
    };
    let what = &explained(&[without]).parts[0].what;
    assert!(what.starts_with("waiting for group g5, which had no member that serves"), "{what}");
}

#[test]
fn request_without_a_reply_does_not_suggest_a_slow_network() {
    let lost = TraceCall { is_failed: true, stages: None, ..call(98, 5, 0, 9_000, zero()) };
    let what = &explained(&[of_mount(10_000, 0, vec![lost])]).parts[0].what;
    assert_eq!(what, "waiting for storage target t5 on storage-2, which did not reply");
}

#[test]
fn wait_at_metadata_names_the_awaited_storage_target() {
    let others = StageTimes { others_us: 36_000_000, ..zero() };
    let whole = of_mount(36_000_100, 0, vec![call(46, 1, 0, 36_000_050, others)]);
    let at_metadata = TraceRecord {
        service: "metadata".into(),
        target: TargetId::new(1),
        waits: vec![wait(5, 5, 36_000_000, "")],
        duration_us: 36_000_010,
        stages: others,
        ..whole.clone()
    };
    let records = [whole, at_metadata];
    let expected =
        "waiting for storage target t5 on storage-2, at metadata target t1 on metadata-1";
    assert_eq!(explained(&records).parts[0].what, expected);
    let list = slowest(&records, &map(), 0, 3);
    assert_eq!(list[0].mainly, format!("100 % {expected}"));
    assert_eq!(explained(&records[1..]).parts[0].what, expected, "without the mount");
    let unnamed = &explained(&records[..1]).parts[0].what;
    assert!(unnamed.starts_with("waiting for other targets"), "{unnamed}");
}

#[test]
fn wait_for_a_suspended_service_is_not_blamed_on_the_network() {
    let of = |duration_us: u32| {
        let disk = StageTimes { disk_us: 100, ..zero() };
        let record = of_mount(duration_us.into(), 0, vec![call(98, 5, 0, duration_us, disk)]);
        explained(&[record]).parts[0].what.clone()
    };
    let expected = "waiting for storage target t5 on storage-2 to take the request: its process or \
                    its host did not run, or the network was interrupted";
    assert_eq!(of(621_000_000), expected);
    assert_eq!(of(900_000), "in the network to storage target t5 on storage-2 and back");
}

#[test]
fn why_reports_a_wait_for_the_other_member_of_a_group_of_two() {
    let mut map = map();
    let ids = [1, 2].map(TargetId::new);
    let mut group = Group::of_one(GroupId::new(5), TargetKind::Metadata, ids[0]);
    group.members.push(GroupMember { target: ids[1], state: MemberState::Serving });
    map.groups = vec![group];
    let copies = StageTimes { copies_us: 9_000, ..zero() };
    let record = of_mount(10_000, 0, vec![call(46, 1, 0, 9_000, copies)]);
    let report = explain(&[record], &map, &Usual::default()).unwrap();
    let what = &report.parts[0].what;
    assert!(what.contains("the other copy of the metadata (t2 on metadata-2), at"), "{what}");
    assert_eq!(report.parts[0].stage, "copies");
}

#[test]
fn report_attributes_a_lock_wait_to_other_programs() {
    let others = StageTimes { others_us: 9_000, ..zero() };
    let wait = call(WaitLock::ID, 1, 0, 9_000, others);
    let report = explain(&[of_mount(10_000, 0, vec![wait])], &map(), &Usual::default()).unwrap();
    assert_eq!(report.parts[0].stage, "lock");
    let what = &report.parts[0].what;
    assert!(what.starts_with("waiting for locks that other programs hold, at"), "{what}");
}

fn zero() -> StageTimes {
    StageTimes::default()
}

#[test]
fn time_is_split_among_the_stages_of_the_requests() {
    let synced = StageTimes { processing_us: 10, log_sync_us: 820, ..StageTimes::default() };
    let record = of_mount(1000, 70, vec![call(46, 1, 50, 900, synced)]);
    let report = explained(&[record]);
    assert_eq!(
        shares(&report),
        [
            (1, "log_sync", 82),
            (1, "link", 7),
            (0, "processing", 7),
            (0, "others", 3),
            (1, "processing", 1)
        ]
    );
    let sum: f64 = report.parts.iter().map(|part| part.ms).sum();
    assert!((sum - 1.0).abs() < 1e-9, "the parts are the duration: {sum}");
    assert_eq!(
        report.parts[0].what,
        "waiting for the log sync of metadata target t1 on metadata-1"
    );
    assert_eq!((report.client.as_str(), report.requests.len()), ("client host-a:/mnt (n8)", 1));
    assert_eq!(report.requests[0].request, "report_written");
}

#[test]
fn time_of_simultaneous_requests_is_split_among_them() {
    let disk = |us| StageTimes { disk_us: us, ..StageTimes::default() };
    // Both requests are open from 0 to 400 us. After that, only the second request is open.
    let calls = vec![call(98, 4, 0, 400, disk(400)), call(46, 1, 0, 1000, disk(1000))];
    let report = explained(&[of_mount(1000, 0, calls)]);
    assert_eq!(shares(&report), [(1, "disk", 80), (4, "disk", 20)]);
}

#[test]
fn explanation_omits_time_after_the_end_of_the_operation() {
    let calls = vec![
        call(98, 4, 500, 4_000_000_000, StageTimes::default()),
        TraceCall { stages: None, ..call(98, 4, u32::MAX, u32::MAX, StageTimes::default()) },
    ];
    let report = explained(&[of_mount(1000, 2000, calls)]);
    assert_eq!(shares(&report), [(4, "link", 50), (0, "processing", 50)]);
}

#[test]
fn longest_request_is_explained_if_the_mount_kept_no_record() {
    let request = |target, operation: &str, duration_us, stages| TraceRecord {
        trace: TRACE,
        service: "metadata".into(),
        target: TargetId::new(target),
        operation: operation.into(),
        duration_us,
        stages,
        ..TraceRecord::default()
    };
    let long = StageTimes { others_us: 900, processing_us: 100, ..StageTimes::default() };
    let records = [
        request(2, "prepare", 800, StageTimes::default()),
        request(1, "make_directory", 1000, long),
    ];
    let report = explained(&records);
    assert_eq!((report.operation.as_str(), report.records), ("make_directory", 2));
    assert_eq!(shares(&report), [(1, "others", 90), (1, "processing", 10)]);
    assert_eq!((report.requests.len(), report.requests[0].request.as_str()), (1, "prepare"));
    assert_eq!(report.requests[0].begin_ms, None, "clocks of hosts differ");
    assert_eq!(explain(&[], &map(), &Usual::default()), None);
}

#[test]
fn usual_request_time_is_the_mean_of_targets_of_its_kind() {
    let series = |metric: &str, target: u32, stage: &str, value, count| StatisticsSeries {
        metric: metric.into(),
        labels: [("target", &*target.to_string()), ("operation", "sync_chunk"), ("stage", stage)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        value,
        buckets: vec![(40, count)],
    };
    let mut all = Vec::new();
    for (target, ns) in [(4, 1_000_000), (5, 3_000_000)] {
        all.push(series("skep_storage_operation_seconds", target, "", 0, 100));
        all.push(series("skep_storage_stage_seconds", target, "disk", ns * 100, 100));
    }
    let statistics = Statistics { moment_ns: 0, incarnation: 1, page: String::new(), series: all };
    let round = vec![ServiceFigures { node: 2, name: "storage-1".into(), statistics }];
    let slow = StageTimes { disk_us: 500_000, ..StageTimes::default() };
    let record = of_mount(500_000, 0, vec![call(98, 4, 0, 500_000, slow)]);
    let report = explain(&[record], &map(), &Usual::of(&round)).unwrap();
    let [disk] = &report.parts[..] else { panic!("{:?}", report.parts) };
    assert!((disk.usual_ms.unwrap() - 2.0).abs() < 1e-6, "{disk:?}");
}

#[test]
fn slowest_operations_come_from_mount_records_and_occur_once() {
    let slow = |trace, duration_us| TraceRecord {
        trace,
        ..of_mount(duration_us, duration_us as u32, Vec::new())
    };
    let mut records: Vec<_> = (1..=5).map(|trace| slow(trace, 1000 * trace as u64)).collect();
    records.push(TraceRecord { service: "storage".into(), ..slow(5, 90_000) });
    records.push(TraceRecord { ended_us: 1, ..slow(6, 90_000) });
    records.push(TraceRecord { is_slow: false, ..slow(7, 90_000) });
    let slowest = slowest(&records, &map(), 500_000, 3);
    let found: Vec<_> = slowest.iter().map(|it| (it.ms, it.trace.ends_with("05"))).collect();
    assert_eq!(found, [(5.0, true), (4.0, false), (3.0, false)]);
    assert_eq!(slowest[0].mainly, "100 % in the thread of the mount");
}
