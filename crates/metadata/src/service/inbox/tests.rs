//! Tests of the inbox: the order of requests in batches, and the limits of the inbox.

use super::*;
use skep_rpc::{Channel, Secrets};
use skep_types::{ClusterId, ClusterMap, MapVersion, NodeId, TargetId};
use skep_wire::frame::Header;
use skep_wire::metadata::KeepAlive;
use std::sync::Arc;

fn peer(kind: NodeKind, node: u32) -> Peer {
    Peer {
        node: NodeId::new(node),
        kind,
        target: TargetId::new(1),
        channel: Channel::NONE,
        has_closed_secret: false,
        secret: Secrets::generate().newest().id(),
    }
}

fn client(node: u32) -> Peer {
    peer(NodeKind::Client, node)
}

/// Returns a request with a body of `bytes`. `connection` identifies the request in the tests.
fn request(connection: u64, bytes: usize) -> Event {
    Event::Request { connection, header: Header::default(), body: vec![0; bytes] }
}

/// Returns the connections of the requests of a batch.
fn connections(batch: &[Event]) -> Vec<u64> {
    let of = |event: &Event| match event {
        Event::Request { connection, .. } => Some(*connection),
        _ => None,
    };
    batch.iter().filter_map(of).collect()
}

#[test]
fn small_batch_of_events_is_taken_in_the_order_of_arrival() {
    let mut inbox = Inbox::default();
    assert!(inbox.is_empty());
    inbox.put_request(&client(1), request(10, 5));
    inbox.put(Event::Tick);
    inbox.put_request(&client(2), request(20, 5));
    inbox.put_request(&peer(NodeKind::Metadata, 3), request(30, 5));
    inbox.put_request(&client(1), request(11, 5));
    let batch = inbox.take_batch();
    assert_eq!(connections(&batch), [10, 20, 30, 11]);
    assert!(matches!(batch[1], Event::Tick));
    assert_eq!((inbox.is_empty(), inbox.bytes), (true, 0));
}

#[test]
fn request_overtakes_the_queue_of_a_busy_client() {
    let mut inbox = Inbox::default();
    let (busy, other) = (client(1), client(2));
    for number in 0..1500 {
        assert!(inbox.has_space(&busy));
        inbox.put_request(&busy, request(number, 100));
    }
    inbox.put_request(&other, request(9000, 100));
    let service = peer(NodeKind::Metadata, 3);
    inbox.put_request(&service, request(9001, 100));
    let first = connections(&inbox.take_batch());
    assert_eq!(first.len(), MAX_BATCH + 1);
    assert_eq!(first.last(), Some(&9001), "requests of services do not wait for a turn");
    let second = connections(&inbox.take_batch());
    assert_eq!(second.len(), MAX_BATCH);
    let place = second.iter().position(|it| *it == 9000).expect("the other client has its turn");
    assert!(
        place as u64 <= QUANTUM,
        "the batch has the request of the other client at place {place}"
    );
    // A new request goes to the end of its client's queue.
    inbox.put_request(&busy, request(1500, 100));
    let third = connections(&inbox.take_batch());
    let all: Vec<_> = [first, second, third].concat();
    let of_busy: Vec<_> = all.into_iter().filter(|it| *it < 9000).collect();
    assert!(of_busy.into_iter().eq(0..=1500), "the requests of a client keep their order");
    assert_eq!((inbox.is_empty(), inbox.bytes), (true, 0));
}

#[test]
fn busy_clients_leave_space_in_the_inbox_for_other_clients() {
    let mut inbox = Inbox::default();
    for node in 1..20 {
        let busy = client(node);
        while inbox.has_space(&busy) {
            inbox.put_request(&busy, request(u64::from(node), 100));
        }
        assert!(inbox.waiting.count_of(busy.node) <= MAX_OF_CLIENT);
    }
    assert!(inbox.waiting.count() <= MAX_INBOX + 20);
    let other = client(50);
    assert!(inbox.has_space(&other));
    inbox.put_request(&other, request(9000, 100));
    assert!(!inbox.has_space(&other), "the inbox is full for a second request");
    inbox.take_batch();
    let second = connections(&inbox.take_batch());
    assert!(second.contains(&9000));
}

#[test]
fn bytes_of_waiting_requests_are_bounded() {
    let mut inbox = Inbox::default();
    let long = MAX_INBOX_BYTES / (MAX_BATCH + 1) + 1;
    let busy = client(1);
    // The last of these requests waits in the queue.
    for number in 0..=MAX_BATCH as u64 {
        assert!(inbox.has_space(&busy));
        inbox.put_request(&busy, request(number, long));
    }
    assert!(!inbox.has_space(&busy));
    for node in 2.. {
        if !inbox.has_space(&client(node)) {
            break;
        }
        inbox.put_request(&client(node), request(u64::from(node), long));
    }
    assert!(inbox.bytes <= 2 * MAX_INBOX_BYTES + long);
    // The requests of services have a limit of their own.
    let service = peer(NodeKind::Metadata, 3);
    while inbox.has_space(&service) {
        inbox.put_request(&service, request(9000, long));
    }
    assert!((MAX_INBOX_BYTES..=MAX_INBOX_BYTES + long).contains(&inbox.bytes_of_services));
    assert!(inbox.bytes <= 3 * MAX_INBOX_BYTES + 2 * long);
    inbox.take_batch();
    assert!(inbox.has_space(&service), "the batch has taken all requests of services");
    while !inbox.is_empty() {
        inbox.take_batch();
    }
    assert_eq!(inbox.bytes, 0);
}

/// A target whose role has ended may wait for its disk for hours, while the cluster changes.
#[test]
fn inbox_keeps_only_the_newest_cluster_map() {
    let map = |version| {
        let empty = ClusterMap::empty(ClusterId::default());
        Event::Map(Arc::new(ClusterMap { version: MapVersion::new(version), ..empty }))
    };
    let mut inbox = Inbox::default();
    inbox.put_request(&client(1), request(10, 5));
    for version in 1..=1000 {
        inbox.put(map(version));
        inbox.put_request(&client(1), request(10 + version, 5));
    }
    let batch = inbox.take_batch();
    let versions: Vec<_> = batch.iter().filter_map(version_of).collect();
    assert_eq!(versions, [1000]);
    assert!(batch.len() <= MAX_BATCH + 1);
}

fn version_of(event: &Event) -> Option<u64> {
    match event {
        Event::Map(map) => Some(map.version.raw()),
        _ => None,
    }
}

#[test]
fn backlogged_target_still_reads_requests_about_its_group() {
    let mut gate = ReadGate::default();
    assert!(gate.opens_in_backlog(), "the first request may be an `AskGroup`");
    gate.note(AskGroup::ID);
    assert!(gate.opens_in_backlog(), "a monitor asks repeatedly on one connection");
    gate.note(KeepAlive::ID);
    assert!(!gate.opens_in_backlog());
    gate.note(AskGroup::ID);
    assert!(!gate.opens_in_backlog(), "requests of a client must wait in their order");
}
