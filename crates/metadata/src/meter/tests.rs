//! Tests of the meter, with simulated times of events and batches.

use super::*;
use skep_metrics::{HistogramValue, Value};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Epoch, Error, ErrorCode, GroupId, Lsn};
use skep_wire::inline::ReadInlineReply;
use skep_wire::metadata::Lookup;

const MS: Duration = Duration::from_millis(1);

fn header(message: u16, tag: u64) -> Header {
    Header { message, tag, user: 1_001, ..Header::default() }
}

fn arrive(meter: &mut Meter, message: u16, tag: u64, at: Duration) -> Event {
    let incoming =
        Incoming { header: header(message, tag), body: Vec::new(), data: None, arrived_at: at };
    meter.arrived(1, NodeId::new(12), &incoming);
    Event::Request { connection: 1, header: incoming.header, body: incoming.body }
}

fn reply(message: u16, tag: u64, result: Result<Vec<u8>>) -> Action {
    Action::Reply { connection: 1, request: header(message, tag), result }
}

fn wait(tag: u64, reason: WaitReason) -> RequestWait {
    RequestWait { connection: 1, tag, reason }
}

struct Figures(Vec<skep_metrics::Series>);

impl Figures {
    fn of(registry: &Registry) -> Self {
        Self(registry.snapshot().iter().collect())
    }

    fn value(&self, name: &str, label: &str) -> Value {
        let is_it = |series: &&skep_metrics::Series| {
            series.definition.name == name
                && (label.is_empty() || series.labels.iter().any(|(_, value)| value == label))
        };
        self.0.iter().find(is_it).unwrap_or_else(|| panic!("{name} {label}")).value.clone()
    }

    fn number(&self, name: &str, label: &str) -> i64 {
        let Value::Number(number) = self.value(name, label) else { panic!("{name}") };
        number
    }

    fn histogram(&self, name: &str, label: &str) -> HistogramValue {
        let Value::Histogram(value) = self.value(name, label) else { panic!("{name}") };
        *value
    }
}

#[test]
fn time_of_a_request_is_split_into_stages() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.connected();
    // The target replies to request 1 at the end of the first batch. The reply to request 2 waits
    // for another member, then for the sync of the log.
    let events =
        [arrive(&mut meter, Lookup::ID, 1, MS * 10), arrive(&mut meter, Lookup::ID, 2, MS * 12)];
    meter.begin_batch(&events, MS * 14);
    let (epoch, lsn, synced) = (Epoch::new(1), Lsn::new(1), Lsn::new(0));
    let append = Action::Append { epoch, lsn, synced, payload: vec![0; 100] };
    let sync = Action::Sync { lsn: Lsn::new(1) };
    meter.end_batch(
        &mut [append, reply(Lookup::ID, 1, Ok(Vec::new())), sync],
        &[wait(2, WaitReason::Copies)],
        MS * 15,
    );
    let between = Figures::of(&registry);
    assert_eq!(between.number("skep_metadata_requests_busy", "3"), 1);
    assert_eq!(between.number("skep_metadata_requests_open", "3"), 1);
    assert_eq!(between.number("skep_metadata_oldest_request_start_seconds", "3"), 12_000_000);
    assert_eq!(between.number("skep_metadata_log_unsynced_records", "3"), 1);
    meter.begin_batch(&[], MS * 17);
    meter.end_batch(&mut [], &[wait(2, WaitReason::OwnSync)], MS * 17);
    meter.begin_batch(&[Event::Synced { lsn: Lsn::new(1) }], MS * 35);
    let failed = Err(Error::new(ErrorCode::NotDirectory, "a file"));
    meter.end_batch(&mut [reply(Lookup::ID, 2, failed)], &[], MS * 36);
    let figures = Figures::of(&registry);
    assert_eq!(figures.number("skep_metadata_operations", "lookup"), 2);
    assert_eq!(figures.number("skep_metadata_operation_errors", "lookup"), 1);
    assert_eq!(figures.number("skep_metadata_requests_busy", "3"), 0);
    assert_eq!(figures.number("skep_metadata_requests_open", "3"), 0);
    assert_eq!(figures.number("skep_metadata_oldest_request_start_seconds", "3"), 0);
    assert_eq!(figures.number("skep_metadata_log_bytes", "3"), 100);
    assert_eq!(figures.number("skep_metadata_log_unsynced_records", "3"), 0);
    let stages = "skep_metadata_stage_seconds";
    let sum = |stage: &str| Duration::from_nanos(figures.histogram(stages, stage).sum_ns);
    assert_eq!(sum("waiting"), MS * 4 + MS * 2);
    assert_eq!(sum("processing"), MS + MS);
    assert_eq!(sum("copies"), MS * 2);
    assert_eq!(sum("log_sync"), MS * 19);
    let total = figures.histogram("skep_metadata_operation_seconds", "lookup");
    assert_eq!(
        Duration::from_nanos(total.sum_ns),
        MS * 5 + MS * 24,
        "the stages cover the whole time"
    );
    assert_eq!(figures.histogram("skep_metadata_log_sync_seconds", "3").count(), 1);
    assert_eq!(figures.number("skep_load_operations", "1000"), 2, "operations of user 1000");
    assert_eq!(figures.number("skep_load_operations", "12"), 2, "operations of client 12");
}

#[test]
fn absence_of_a_name_or_attribute_is_not_counted_as_an_error() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    let absent = [(Lookup::ID, ErrorCode::NotFound), (md::GetXattr::ID, ErrorCode::NoAttribute)];
    let failed = [(md::Unlink::ID, ErrorCode::NotFound), (Lookup::ID, ErrorCode::Stale)];
    for (message, code) in absent.into_iter().chain(failed) {
        let events = [arrive(&mut meter, message, 1, MS)];
        meter.begin_batch(&events, MS);
        meter.end_batch(&mut [reply(message, 1, Err(code.into()))], &[], MS);
    }
    let figures = Figures::of(&registry);
    let errors = |name| figures.number("skep_metadata_operation_errors", name);
    assert_eq!((errors("lookup"), errors("get_xattr"), errors("unlink")), (1, 0, 1));
}

#[test]
fn late_reply_on_an_ended_connection_changes_no_metric() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.connected();
    let events = [arrive(&mut meter, Lookup::ID, 1, MS)];
    meter.begin_batch(&events, MS);
    meter.end_batch(&mut [], &[], MS);
    meter.disconnected(1);
    // This reply comes after the end of the connection.
    meter.end_batch(&mut [reply(Lookup::ID, 1, Ok(Vec::new()))], &[], MS);
    let figures = Figures::of(&registry);
    assert_eq!(figures.number("skep_metadata_requests_busy", "3"), 0);
    assert_eq!(figures.number("skep_metadata_connections", "3"), 0);
    assert!(!figures.0.iter().any(|series| series.definition.name == "skep_metadata_operations"));
}

#[test]
fn request_that_waits_for_notifications_is_not_counted_as_busy() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.connected();
    let busy = || Figures::of(&registry).number("skep_metadata_requests_busy", "3");
    let events =
        [arrive(&mut meter, WaitNotifications::ID, 1, MS), arrive(&mut meter, Lookup::ID, 2, MS)];
    meter.begin_batch(&events, MS);
    meter.end_batch(&mut [], &[], MS);
    assert_eq!(busy(), 1, "the lookup");
    meter.end_batch(&mut [reply(WaitNotifications::ID, 1, Ok(Vec::new()))], &[], MS);
    assert_eq!(busy(), 1);
    let again = [arrive(&mut meter, WaitNotifications::ID, 3, MS)];
    meter.begin_batch(&again, MS);
    meter.end_batch(&mut [reply(Lookup::ID, 2, Ok(Vec::new()))], &[], MS);
    assert_eq!(busy(), 0);
    meter.disconnected(1);
    assert_eq!(busy(), 0);
}

#[test]
fn request_before_its_batch_counts_as_queued_and_not_as_busy() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.connected();
    let queued_and_busy = || {
        let figures = Figures::of(&registry);
        let number = |name| figures.number(name, "3");
        (number("skep_metadata_requests_queued"), number("skep_metadata_requests_busy"))
    };
    let [first, second, third] = [(Lookup::ID, 1), (Lookup::ID, 2), (WaitNotifications::ID, 3)]
        .map(|(message, tag)| arrive(&mut meter, message, tag, MS));
    meter.begin_batch(&[first], MS);
    meter.end_batch(&mut [], &[], MS);
    assert_eq!(queued_and_busy(), (2, 1));
    meter.begin_batch(&[second], MS);
    meter.end_batch(&mut [reply(Lookup::ID, 1, Ok(Vec::new()))], &[], MS);
    assert_eq!(queued_and_busy(), (1, 1));
    meter.begin_batch(&[third], MS);
    meter.end_batch(&mut [], &[], MS);
    assert_eq!(queued_and_busy(), (0, 1));
    meter.disconnected(1);
    assert_eq!(queued_and_busy(), (0, 0));
}

/// Only a faulty client uses the tag of a request that has no reply yet.
#[test]
fn requests_with_the_same_tag_are_counted_once() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.connected();
    let number = |name| Figures::of(&registry).number(name, "3");
    let events = [WaitNotifications::ID, WaitNotifications::ID, Lookup::ID]
        .map(|message| arrive(&mut meter, message, 1, MS));
    assert_eq!(number("skep_metadata_requests_queued"), 1);
    meter.begin_batch(&events, MS);
    meter.end_batch(&mut [], &[], MS);
    assert_eq!(number("skep_metadata_requests_queued"), 0);
    assert_eq!(number("skep_metadata_requests_busy"), 1);
    // The first request still waits when the next request with its tag arrives.
    arrive(&mut meter, Lookup::ID, 1, MS);
    meter.end_batch(&mut [], &[wait(1, WaitReason::Others)], MS);
    assert_eq!(number("skep_metadata_requests_queued"), 1);
    assert_eq!(number("skep_metadata_requests_busy"), 0);
    meter.end_batch(&mut [reply(Lookup::ID, 1, Ok(Vec::new()))], &[], MS);
    assert_eq!(number("skep_metadata_requests_queued"), 0);
    assert_eq!(number("skep_metadata_requests_busy"), 0);
}

#[test]
fn message_lengths_in_metrics_equal_the_encoded_lengths() {
    let bytes = Bytes(vec![7; 100]);
    let write = WriteInline {
        inode: skep_types::InodeId::ROOT,
        generation: 0,
        offset: 0,
        bytes: bytes.clone(),
        checksum: 0,
        extends: true,
        truncate_generation: 0,
        appends: false,
    };
    assert_eq!(write.to_bytes().len(), WRITE_INLINE_BYTES + 100);
    let reply = ReadInlineReply { truncate_generation: 0, bytes, checksum: 0 };
    assert_eq!(reply.to_bytes().len(), READ_INLINE_REPLY_BYTES + 100);
}

#[test]
fn load_of_a_directory_counts_requests_about_its_entries() {
    let directory = skep_types::InodeId::new(0x0007_0000_0000_0042);
    let lookup = Lookup { directory, name: Bytes(b"name".to_vec()) };
    let unlink = skep_wire::metadata::Unlink { directory, name: Bytes(b"name".to_vec()) };
    for (message, body) in
        [(Lookup::ID, lookup.to_bytes()), (skep_wire::metadata::Unlink::ID, unlink.to_bytes())]
    {
        assert_eq!(directory_of(message, &body), Some(directory.raw()), "message {message}");
    }
    let about_file = skep_wire::metadata::GetAttributes::ID;
    assert_eq!(directory_of(about_file, &lookup.to_bytes()), None);
    assert_eq!(directory_of(Lookup::ID, &[1, 2]), None, "a request that is too short");
}

#[test]
fn working_time_excludes_idle_time() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    meter.count_work(MS * 10, MS * 4);
    meter.count_work(MS * 13, MS * 4);
    meter.count_work(MS * 23, MS * 10);
    assert_eq!(Figures::of(&registry).number("skep_metadata_working_seconds", "3"), 7_000_000);
}

#[test]
fn meter_notes_the_storage_target_that_a_request_waits_for() {
    let registry = Registry::new();
    let mut meter = Meter::new(&registry, TargetId::new(3));
    let mut map = skep_types::ClusterMap::empty(skep_types::ClusterId::default());
    let (group, kind) = (GroupId::new(6), skep_types::TargetKind::Storage);
    map.targets = vec![skep_types::Target::new(TargetId::new(5), kind, NodeId::new(4), "/d")];
    map.groups = vec![skep_types::Group::of_one(group, kind, TargetId::new(5))];
    let open = arrive(&mut meter, md::Open::ID, 1, MS);
    meter.begin_batch(&[open], MS * 2);
    meter.end_batch(&mut [], &[wait(1, WaitReason::Others)], MS * 3);
    let waits = [wait(1, WaitReason::Storage(group)), wait(2, WaitReason::Storage(group))];
    meter.begin_batch(&[], MS * 9_000);
    meter.note_awaited(&waits, || Arc::new(map));
    let arrival = meter.arrivals.values().next().expect("a request without a reply");
    let awaited = arrival.awaited.as_ref().expect("a storage target");
    assert_eq!(awaited.name(), "storage target t5");
    let completed = Completed::default().with(Stage::Others, MS * 8_997);
    let calls = awaited.calls(&completed);
    assert_eq!((calls.waits[0].target, calls.waits[0].duration), (5, MS * 8_997));
    meter.end_batch(&mut [reply(md::Open::ID, 1, Ok(Vec::new()))], &waits, MS * 9_000);
    assert!(meter.arrivals.is_empty());
}
