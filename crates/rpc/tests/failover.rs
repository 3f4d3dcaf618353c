//! Fail-over of calls under way, over real sockets. A newer cluster map names another primary,
//! while the process of the previous primary is stopped and its connections stay open. This file
//! also tests the choice among several addresses of management.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{Task, TcpListener, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{CallOptions, Channel, Identity, JoinToken, Management, MapCell, Router, Secrets};
use skep_types::map::{Consistency, MemberState};
use skep_types::{
    ClusterId, ClusterMap, Epoch, Error, ErrorCode, Group, GroupId, GroupMember, MapVersion, Node,
    NodeId, NodeKind, Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::management::{EmptyReply, GetMap, MapUpdate};
use skep_wire::metadata::SyncAll;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const GROUP: GroupId = GroupId::new(1);

fn identity(secret: &Secrets, node: u32) -> Identity {
    Identity {
        cluster: ClusterId::new([1; 16]),
        secrets: secret.clone(),
        node: NodeId::new(node),
        kind: NodeKind::Client,
    }
}

/// Returns a map with two targets in one group. Target `primary` is the primary in this epoch, and
/// has been the primary since epoch `since`.
fn map(addresses: [&str; 2], primary: u32, epoch: u64, since: u64) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
    map.version = MapVersion::new(epoch);
    for (raw, address) in (1..).zip(addresses) {
        let (node, name) = (NodeId::new(raw), format!("metadata-{raw}"));
        map.nodes.push(Node::online(node, NodeKind::Metadata, name).at(address));
        map.targets.push(Target::online(TargetId::new(raw), TargetKind::Metadata, node));
    }
    let mut group = Group::of_one(GROUP, TargetKind::Metadata, TargetId::new(1));
    group.members.push(GroupMember { target: TargetId::new(2), state: MemberState::Serving });
    group.primary = TargetId::new(primary);
    (group.epoch, group.primary_since) = (Epoch::new(epoch), Epoch::new(since));
    map.groups.push(group);
    map
}

/// Returns the map cell of a client, and a router that follows this cell.
fn client(secret: &Secrets, map: ClusterMap) -> (Arc<MapCell>, Rc<Router>) {
    let cell = MapCell::new(map, NodeId::new(5));
    let router = Router::new(identity(secret, 5), Channel::random(), Arc::clone(&cell));
    (cell, router)
}

/// A service that records the headers of its requests. With [`Serves::Nothing`], the service
/// records an empty header for each connection.
struct Service {
    address: String,
    received: Rc<RefCell<Vec<Header>>>,
}

/// The reaction of a service to a connection.
#[derive(Clone, Copy, PartialEq)]
enum Serves {
    /// The kernel accepts the connection, and the process does nothing.
    Nothing,
    /// The process reads requests and never answers.
    WithoutReply,
    All,
}

fn service(secret: &Secrets, serves: Serves) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    let received = Rc::new(RefCell::new(Vec::new()));
    let (server, headers) = (identity(secret, 0), Rc::clone(&received));
    spawn(async move {
        let mut silent = Vec::new();
        while let Ok(stream) = listener.accept().await {
            if serves == Serves::Nothing {
                headers.borrow_mut().push(Header::default());
                silent.push(stream);
                continue;
            }
            let (server, headers) = (server.clone(), Rc::clone(&headers));
            spawn(async move {
                let Ok(peer) = authenticate(&stream, &server, 1, |_| Ok(())).await else { return };
                let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
                while let Ok(Some(incoming)) = requests.next().await {
                    headers.borrow_mut().push(incoming.header.clone());
                    match incoming.header.message {
                        _ if serves == Serves::WithoutReply => {}
                        GetMap::ID => outbox.reply(&incoming.header, &MapUpdate { map: None }),
                        _ => outbox.reply(&incoming.header, &EmptyReply {}),
                    }
                }
            })
            .detach();
        }
    })
    .detach();
    Service { address, received }
}

/// Starts a call to the group.
fn spawn_call(router: &Rc<Router>) -> Task<()> {
    let router = Rc::clone(router);
    spawn(async move {
        router.call(GROUP, &SyncAll {}, CallOptions::default()).await.unwrap();
    })
}

/// Fails the test if the future takes longer than `most`.
async fn within<T>(most: Duration, future: impl Future<Output = T>) -> T {
    skep_env::timeout(most, future).await.expect("the future ends in time")
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            skep_env::sleep(Duration::from_millis(1)).await;
        }
    };
    within(Duration::from_secs(20), waiting).await;
}

/// If the router did not end the old connection, the call would wait without limit.
#[test]
fn call_in_flight_goes_to_the_new_primary_in_the_same_slot() {
    block_on(async {
        let secret = Secrets::generate();
        let (stopped, new) =
            (service(&secret, Serves::WithoutReply), service(&secret, Serves::All));
        let addresses = [&*stopped.address, &*new.address];
        let (cell, router) = client(&secret, map(addresses, 1, 1, 1));
        let call = spawn(async move {
            let options = CallOptions { slot: 3, sequence: 17, ..CallOptions::default() };
            router.call(GROUP, &SyncAll {}, options).await.unwrap();
        });
        until(|| stopped.received.borrow().len() == 1).await;
        cell.update(map(addresses, 2, 2, 2));
        within(Duration::from_secs(5), call).await;
        let first = stopped.received.borrow()[0].clone();
        let second = new.received.borrow()[0].clone();
        let place = |header: &Header| (header.slot, header.sequence, header.epoch.raw());
        assert_eq!((place(&first), place(&second)), ((3, 17, 1), (3, 17, 2)));
    })
    .unwrap();
}

/// A call to a target that is marked as lost must not wait for a service that never runs again.
#[test]
fn call_to_a_target_marked_as_lost_fails_immediately() {
    block_on(async {
        let secret = Secrets::generate();
        let silent = service(&secret, Serves::WithoutReply);
        let addresses = [&*silent.address, "127.0.0.1:1"];
        let (cell, router) = client(&secret, map(addresses, 1, 1, 1));
        let under_way = Rc::clone(&router);
        let call = spawn(async move {
            under_way.call(GROUP, &SyncAll {}, CallOptions::default()).await.unwrap_err()
        });
        until(|| silent.received.borrow().len() == 1).await;
        let mut lost = map(addresses, 1, 1, 1);
        lost.version = MapVersion::new(2);
        lost.targets[0].consistency = Consistency::Bad;
        cell.update(lost);
        let error = within(Duration::from_secs(5), call).await;
        assert_eq!(error.code(), ErrorCode::TargetLost);
        let next = router.call(GROUP, &SyncAll {}, CallOptions::default());
        let error = within(Duration::from_secs(5), next).await.unwrap_err();
        assert!(error.context().contains("t1"), "{error}");
    })
    .unwrap();
}

/// Hole H197 in `docs/tests/holes.md`. Management was restored from a backup that is older than the
/// target of a file. A read must not fail as if the bytes were gone, and the error must name the
/// way out.
#[test]
fn call_to_a_group_missing_after_a_restore_names_the_remedy() {
    block_on(async {
        let secret = Secrets::generate();
        let returning = service(&secret, Serves::All);
        let addresses = [&*returning.address, "127.0.0.1:1"];
        let mut restored = map(addresses, 1, 1, 1);
        restored.groups.clear();
        let (cell, router) = client(&secret, restored);
        let waiting = spawn_call(&router);
        let time_left = Some(Duration::from_millis(50));
        let options = CallOptions { time_left, ..CallOptions::default() };
        let error = router.call(GROUP, &SyncAll {}, options).await.unwrap_err();
        for part in ["group g1 is not in the cluster map", "a backup", "start the service"] {
            assert!(error.context().contains(part), "{error}");
        }
        cell.update(map(addresses, 1, 2, 1));
        within(Duration::from_secs(5), waiting).await;
    })
    .unwrap();
}

/// If the router did not end the attempt, the call would wait 5 s for each handshake.
#[test]
fn newer_map_ends_an_attempt_to_reach_the_old_primary() {
    block_on(async {
        let secret = Secrets::generate();
        let (stopped, new) = (service(&secret, Serves::Nothing), service(&secret, Serves::All));
        let addresses = [&*stopped.address, &*new.address];
        let (cell, router) = client(&secret, map(addresses, 1, 1, 1));
        let calls: Vec<_> = (0..3).map(|_| spawn_call(&router)).collect();
        until(|| stopped.received.borrow().len() == 1).await;
        cell.update(map(addresses, 2, 2, 2));
        for call in calls {
            within(Duration::from_secs(2), call).await;
        }
        let connections = stopped.received.borrow().len();
        assert_eq!((connections, new.received.borrow().len()), (1, 3));
        router.check_invariants();
    })
    .unwrap();
}

/// The primary of a group repeats its requests to a member that does not reply. While the host of
/// the member is down, none of these requests may wait in memory for a connection.
#[test]
fn calls_to_an_unreachable_member_do_not_pile_up() {
    block_on(async {
        let secret = Secrets::generate();
        let stopped = service(&secret, Serves::Nothing);
        let map = map(["127.0.0.1:1", &*stopped.address], 1, 1, 1);
        let (own, member) = (TargetId::new(1), TargetId::new(2));
        let primary = Identity { kind: NodeKind::Metadata, ..identity(&secret, 1) };
        let router = Router::of_target(primary, MapCell::new(map, NodeId::new(1)), own);
        let connecting = Rc::clone(&router);
        let patience = Duration::from_secs(60);
        let _first = spawn(async move {
            connecting.call_member(member, &SyncAll {}, patience).await.unwrap_err()
        });
        until(|| stopped.received.borrow().len() == 1).await;
        for _ in 0..3 {
            let next = router.call_member(member, &SyncAll {}, patience);
            let error = within(Duration::from_secs(2), next).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Disconnected);
            assert!(error.context().contains("still connecting"), "{error}");
        }
        assert_eq!(stopped.received.borrow().len(), 1);
    })
    .unwrap();
}

/// After the reply of a service that stops, the primary has the member dropped immediately, and
/// logs that the service of the member stops. A refused connection must not count as such a reply.
#[test]
fn member_with_too_many_connections_does_not_count_as_stopping() {
    block_on(async {
        let secret = Secrets::generate();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap().to_string();
        let server = identity(&secret, 0);
        spawn(async move {
            let full = |_| Err(Error::new(ErrorCode::NotReady, "too many connections"));
            while let Ok(stream) = listener.accept().await {
                authenticate(&stream, &server, 1, full).await.unwrap_err();
            }
        })
        .detach();
        let map = map(["127.0.0.1:1", &*address], 1, 1, 1);
        let (own, member) = (TargetId::new(1), TargetId::new(2));
        let primary = Identity { kind: NodeKind::Metadata, ..identity(&secret, 1) };
        let router = Router::of_target(primary, MapCell::new(map, NodeId::new(1)), own);
        let call = router.call_member(member, &SyncAll {}, Duration::from_secs(60));
        let error = within(Duration::from_secs(20), call).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Disconnected, "{error}");
        assert!(error.context().contains("too many connections"), "{error}");
    })
    .unwrap();
}

/// A primary that was deposed and then chosen again has dropped the requests of its previous term,
/// so the router must repeat these requests.
#[test]
fn call_is_sent_again_in_a_later_term_of_the_same_target() {
    block_on(async {
        let secret = Secrets::generate();
        let service = service(&secret, Serves::WithoutReply);
        let addresses = [&*service.address, "127.0.0.1:1"];
        let (cell, router) = client(&secret, map(addresses, 1, 1, 1));
        let _call = spawn_call(&router);
        until(|| service.received.borrow().len() == 1).await;
        // The router does not send a call again when only a backup member was dropped.
        cell.update(map(addresses, 1, 2, 1));
        cell.update(map(addresses, 1, 4, 4));
        until(|| service.received.borrow().len() == 2).await;
        assert_eq!(service.received.borrow()[1].epoch, Epoch::new(4));
    })
    .unwrap();
}

#[test]
fn new_epoch_with_the_same_primary_interrupts_no_call() {
    block_on(async {
        let secret = Secrets::generate();
        let service = service(&secret, Serves::WithoutReply);
        let addresses = [&*service.address, "127.0.0.1:1"];
        let (cell, router) = client(&secret, map(addresses, 1, 1, 1));
        let _first = spawn_call(&router);
        until(|| service.received.borrow().len() == 1).await;
        cell.update(map(addresses, 1, 2, 1));
        let _second = spawn_call(&router);
        until(|| service.received.borrow().len() == 2).await;
        let epochs: Vec<_> = service.received.borrow().iter().map(|it| it.epoch.raw()).collect();
        assert_eq!(epochs, [1, 2], "the first call was not repeated");
    })
    .unwrap();
}

/// Another process may listen at one of the addresses of a host, such as the address of a virtual
/// network.
#[test]
fn target_is_reached_at_its_second_address() {
    block_on(async {
        let secret = Secrets::generate();
        let (stranger, right) =
            (service(&Secrets::generate(), Serves::All), service(&secret, Serves::All));
        let mut map = map(["", "127.0.0.1:1"], 1, 1, 1);
        map.nodes[0].addresses = vec![stranger.address.clone(), right.address.clone()];
        let (_, router) = client(&secret, map);
        let time_left = Some(Duration::from_secs(10));
        let options = CallOptions { time_left, ..CallOptions::default() };
        router.call(GROUP, &SyncAll {}, options).await.unwrap();
        assert_eq!((stranger.received.borrow().len(), right.received.borrow().len()), (0, 1));
    })
    .unwrap();
}

/// A stopped process at the first address must not cost five seconds at each connection.
#[test]
fn management_is_reached_if_its_first_process_is_suspended() {
    block_on(async {
        let secret = Secrets::generate();
        let (stopped, serving) = (service(&secret, Serves::Nothing), service(&secret, Serves::All));
        let token = JoinToken {
            cluster: ClusterId::new([1; 16]),
            secrets: secret.clone(),
            addresses: vec![stopped.address.clone(), serving.address.clone()],
        };
        let management = Management::new(&token, NodeKind::Client);
        let ask = async |management: &Management| {
            let request = GetMap { known: MapVersion::new(1) };
            management.call_once(&request, Duration::from_secs(2)).await
        };
        ask(&management).await.unwrap();
        assert_eq!(serving.received.borrow().len(), 1);
        // A request without a reply ends at its own time limit.
        let alone = JoinToken { addresses: vec![stopped.address.clone()], ..token };
        let begin = skep_env::now();
        ask(&Management::new(&alone, NodeKind::Client)).await.unwrap_err();
        assert!(skep_env::now() - begin < Duration::from_secs(4));
    })
    .unwrap();
}
