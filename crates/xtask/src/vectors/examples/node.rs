//! Examples of messages to a running process.

use crate::vectors::{Example, example};
use skep_types::codec::crc32c;
use skep_types::{GroupId, InodeId, NodeId, TargetId};
use skep_wire::benchmark::{DiscardData, GiveData, GiveDataReply, MeasureLink, MeasureLinkReply};
use skep_wire::management::EmptyReply;
use skep_wire::node::{
    AddTarget, AddTargetReply, GetStatistics, LogLevel, SetLogLevel, Statistics, StatisticsSeries,
    StopTarget,
};
use skep_wire::traces::{
    ListTraces, ReportTraces, StageTimes, TraceCall, TraceList, TraceRecord, TraceWait,
};

pub(super) fn examples() -> Vec<Example> {
    let set = SetLogLevel { level: Some("info,skep_storage=debug".into()) };
    let level = LogLevel { current: "info,skep_storage=debug".into(), configured: "info".into() };
    let mut all = vec![example(&set, &level).request(&SetLogLevel { level: None })];
    all.extend(network_messages());
    all.push(statistics());
    all.extend(traces());
    all.extend(target_messages());
    all
}

fn target_messages() -> Vec<Example> {
    let added = AddTargetReply {
        target: TargetId::new(7),
        warnings: vec!["/disk3/skep is on the root file system of its host".into()],
    };
    let stop = StopTarget { target: TargetId::new(7), is_dry_run: true };
    vec![example(&AddTarget { path: "/disk3/skep".into() }, &added), example(&stop, &EmptyReply {})]
}

fn statistics() -> Example {
    let target = || ("target".to_owned(), "7".to_owned());
    let operation = ("operation".to_owned(), "write_chunk".to_owned());
    let statistics = Statistics {
        moment_ns: 86_400_000_000_000,
        incarnation: 0x0123_4567_89ab_cdef,
        page: "127.0.0.1:7421".into(),
        series: vec![
            StatisticsSeries {
                metric: "skep_storage_requests_busy".into(),
                labels: vec![target()],
                value: -1,
                buckets: Vec::new(),
            },
            StatisticsSeries {
                metric: "skep_storage_operation_seconds".into(),
                labels: vec![target(), operation],
                value: 1_250_000,
                buckets: vec![(30, 4), (105, 1)],
            },
        ],
    };
    example(&GetStatistics { prefix: "skep_storage_".into() }, &statistics)
}

fn traces() -> Vec<Example> {
    let stages = StageTimes { waiting_us: 20, disk_us: 310_000, ..StageTimes::default() };
    let call = TraceCall {
        message: 98,
        target: TargetId::new(7),
        begin_us: 15,
        duration_us: 311_000,
        is_failed: false,
        stages: Some(stages),
    };
    let wait = TraceWait {
        group: GroupId::new(5),
        target: TargetId::new(7),
        served_by: TargetId::new(7),
        begin_us: 20,
        duration_us: 1_500_000,
        error: "target t7 on storage-1: 10.0.0.5:7420: Connection refused (os error 111)".into(),
    };
    let of_mount = TraceRecord {
        trace: 0x0123_4567_89ab_cdef_0000_0000_0000_002a,
        service: "mount".into(),
        client: NodeId::new(12),
        user: Some(1000),
        operation: "fsync".into(),
        inode: InodeId::new(0x0007_0000_0000_0042),
        ended_us: 1_750_000_000_123_456,
        duration_us: 311_200,
        stages: StageTimes { processing_us: 60, others_us: 311_140, ..StageTimes::default() },
        is_slow: true,
        calls: vec![call, TraceCall { is_failed: true, stages: None, ..call }],
        calls_left_out: 3,
        waits: vec![wait],
        ..TraceRecord::default()
    };
    let of_target = TraceRecord {
        service: "storage".into(),
        target: TargetId::new(7),
        user: None,
        operation: "sync_chunk".into(),
        stages,
        bytes: 4096,
        is_failed: true,
        is_slow: false,
        calls: Vec::new(),
        calls_left_out: 0,
        waits: Vec::new(),
        ..of_mount.clone()
    };
    let list = TraceList {
        records: vec![of_mount.clone(), of_target],
        next: 17,
        incarnation: 0x0123_4567_89ab_cdef,
        lost: 2,
    };
    let one = ListTraces { trace: Some(of_mount.trace), after: 0, limit: 500 };
    let all = ListTraces { trace: None, after: 15, limit: 100 };
    let report = ReportTraces { records: vec![of_mount] };
    vec![example(&one, &list).request(&all), example(&report, &EmptyReply {})]
}

fn network_messages() -> Vec<Example> {
    let data: Vec<u8> = (b'A'..b'A' + 50).collect();
    let checksums = vec![crc32c(&data)];
    let discard = DiscardData { checksums: checksums.clone() };
    let given = GiveDataReply { checksums };
    let measure = MeasureLink {
        node: NodeId::new(7),
        target: TargetId::new(12),
        streams: 4,
        messages: 32,
        message_bytes: 1 << 20,
        is_receiving: true,
    };
    let moved = MeasureLinkReply {
        address: "10.0.0.7:7410".into(),
        bytes: 128 << 20,
        streams: vec![(0, 1_100_000_000), (12_345, 1_150_000_000)],
        round_trips_ns: Vec::new(),
    };
    let trips = MeasureLinkReply {
        bytes: 0,
        streams: vec![(0, 151_000)],
        round_trips_ns: vec![51_000, 49_500, 50_500],
        ..moved.clone()
    };
    vec![
        example(&discard, &EmptyReply {})
            .data(false, &data)
            .request(&DiscardData { checksums: Vec::new() }),
        example(&GiveData { bytes: 50 }, &given).data(true, &data),
        example(&measure, &moved).reply::<MeasureLink>(&trips),
    ]
}
