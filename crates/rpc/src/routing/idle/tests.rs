//! Idle connections of a client to a service, over real sockets. The tests pass the time of each
//! check, so none of them waits for the lifetime of a connection.

use super::*;
use crate::server::{IncomingStream, authenticate};
use crate::{CallOptions, Channel, Identity, MapCell, Outbox, Secrets};
use skep_env::{Buf, MessagePart, TcpListener, TcpStream, block_on, spawn};
use skep_metrics::{Snapshot, Source, Value};
use skep_types::{
    ChunkFileKey, ClusterId, ClusterMap, Group, GroupId, InodeId, Node, NodeId, NodeKind, Target,
    TargetId, TargetKind,
};
use skep_wire::frame::Header;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::SyncAll;
use skep_wire::storage::{ReadChunk, ReadChunkReply};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const GROUP: GroupId = GroupId::new(1);
const TARGET: TargetId = TargetId::new(7);
const PATIENCE: Duration = Duration::from_secs(20);

fn identity(secret: &Secrets) -> Identity {
    Identity {
        cluster: ClusterId::default(),
        secrets: secret.clone(),
        node: NodeId::new(5),
        kind: NodeKind::Client,
    }
}

/// A service with one target.
#[derive(Default)]
struct Service {
    accepted: Cell<usize>,
    /// Number of connections whose end the service has received.
    ended: Cell<usize>,
    /// Whether the service delays its replies until `reply_to_held`.
    holds: Cell<bool>,
    held: RefCell<Vec<Header>>,
    /// The newest connection.
    stream: RefCell<Option<TcpStream>>,
    outbox: RefCell<Option<Rc<Outbox>>>,
}

impl Service {
    async fn run(self: Rc<Self>, listener: TcpListener, identity: Identity) {
        while let Ok(stream) = listener.accept().await {
            authenticate(&stream, &identity, 1, |_| Ok(())).await.unwrap();
            self.accepted.set(self.accepted.get() + 1);
            *self.stream.borrow_mut() = Some(stream.clone());
            spawn(Rc::clone(&self).serve(stream)).detach();
        }
    }

    async fn serve(self: Rc<Self>, stream: TcpStream) {
        let (mut requests, outbox) = IncomingStream::new(stream, NodeKind::Client);
        *self.outbox.borrow_mut() = Some(Rc::clone(&outbox));
        while let Ok(Some(incoming)) = requests.next().await {
            match self.holds.get() {
                true => self.held.borrow_mut().push(incoming.header),
                false => outbox.reply(&incoming.header, &EmptyReply {}),
            }
        }
        self.ended.set(self.ended.get() + 1);
    }

    fn outbox(&self) -> Rc<Outbox> {
        self.outbox.borrow().clone().unwrap()
    }

    /// Replies to the oldest held request.
    fn reply_to_held(&self) {
        let header = self.held.borrow_mut().remove(0);
        self.outbox().reply(&header, &EmptyReply {});
    }
}

fn map(address: String) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::default());
    map.nodes.push(Node::online(NodeId::new(1), NodeKind::Metadata, "service").at(address));
    map.targets.push(Target::online(TARGET, TargetKind::Metadata, NodeId::new(1)));
    map.groups.push(Group::of_one(GROUP, TargetKind::Metadata, TARGET));
    map
}

/// A client of the service.
struct Client {
    service: Rc<Service>,
    router: Rc<Router>,
    cell: Arc<MapCell>,
}

/// Starts a service. `create` creates the router of its client.
fn start(create: impl FnOnce(Identity, Arc<MapCell>) -> Rc<Router>) -> Client {
    let secret = Secrets::generate();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    let service = Rc::new(Service::default());
    spawn(Rc::clone(&service).run(listener, identity(&secret))).detach();
    let cell = MapCell::new(map(address), NodeId::new(5));
    Client { service, router: create(identity(&secret), Arc::clone(&cell)), cell }
}

fn start_client() -> Client {
    start(|identity, cell| Router::new(identity, Channel::random(), cell))
}

impl Client {
    async fn call(&self) {
        let call = self.router.call(GROUP, &SyncAll {}, CallOptions::default());
        skep_env::timeout(PATIENCE, call).await.expect("the call ends in time").unwrap();
    }

    /// Checks the connection repeatedly, each time at a later time, until it has ended.
    async fn look_until_it_ends(&self) {
        let mut now = skep_env::now();
        let looks = async {
            while self.router.end_idle_connections(now) {
                now += IDLE_CONNECTION_LIFETIME;
                skep_env::yield_now().await;
            }
        };
        skep_env::timeout(PATIENCE, looks).await.expect("the connection ends in time");
    }

    /// Checks the connection repeatedly, each time at a later time. Each check must find the
    /// connection in use.
    async fn look_while_it_is_used(&self) {
        let mut now = skep_env::now();
        for _ in 0..1000 {
            assert!(self.router.end_idle_connections(now), "the connection stays");
            now += IDLE_CONNECTION_LIFETIME;
            skep_env::yield_now().await;
        }
    }

    /// Returns the numbers of opened connections, of idle connections that the client has ended,
    /// and of retries.
    fn counts(&self) -> [i64; 3] {
        let mut snapshot = Snapshot::default();
        self.cell.collect(&mut snapshot);
        ["skep_rpc_connects", "skep_rpc_idle_closes", "skep_rpc_retries"].map(|name| {
            let series = snapshot.iter().find(|series| series.definition.name == name).unwrap();
            match series.value {
                Value::Number(number) => number,
                Value::Histogram(_) => panic!("{name} is a counter"),
            }
        })
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            skep_env::yield_now().await;
        }
    };
    skep_env::timeout(PATIENCE, waiting).await.expect("the condition holds in time");
}

#[test]
fn call_after_the_end_of_an_idle_connection_connects_again() {
    block_on(async {
        let client = start_client();
        client.call().await;
        client.look_until_it_ends().await;
        until(|| client.service.ended.get() == 1).await;
        client.call().await;
        assert_eq!(client.counts(), [2, 1, 0]);
        // The idle time of the new connection begins at its own first check.
        let late = skep_env::now() + 100 * IDLE_CONNECTION_LIFETIME;
        assert!(client.router.end_idle_connections(late));
        assert_eq!((client.service.accepted.get(), client.service.ended.get()), (2, 1));
        client.router.check_invariants();
    })
    .unwrap();
}

/// Returns a client and its call. The service has received the request of the call, and delays the
/// reply until `reply_to_held`.
async fn client_with_a_held_call() -> (Rc<Client>, skep_env::Task<()>) {
    let client = Rc::new(start_client());
    client.service.holds.set(true);
    let caller = Rc::clone(&client);
    let call = spawn(async move { caller.call().await });
    until(|| client.service.held.borrow().len() == 1).await;
    (client, call)
}

/// A request without a reply may wait for a lock or for a notification, so its connection must
/// stay.
#[test]
fn request_without_a_reply_keeps_its_connection() {
    block_on(async {
        let (client, call) = client_with_a_held_call().await;
        client.look_while_it_is_used().await;
        client.service.reply_to_held();
        call.await;
        assert_eq!(client.counts(), [1, 0, 0]);
    })
    .unwrap();
}

/// The service may still execute the request of a killed program, so the connection must stay until
/// the reply.
#[test]
fn cancelled_request_keeps_its_connection_until_the_reply() {
    block_on(async {
        let (client, call) = client_with_a_held_call().await;
        drop(call);
        client.look_while_it_is_used().await;
        client.service.reply_to_held();
        client.look_until_it_ends().await;
        assert_eq!(client.counts(), [1, 1, 0]);
    })
    .unwrap();
}

#[test]
fn reply_that_has_arrived_in_part_keeps_its_connection() {
    const BYTES: usize = 100_000;
    block_on(async {
        let client = start_client();
        client.service.holds.set(true);
        let router = Rc::clone(&client.router);
        let call = spawn(async move {
            let key =
                ChunkFileKey { inode: InodeId::new(9), generation: 1, component: 0, index: 0 };
            let request = ReadChunk { key, offset: 0, length: BYTES as u32 };
            let into = Some(Buf::new(BYTES));
            let options = CallOptions { into, ..CallOptions::default() };
            router.call(GROUP, &request, options).await.unwrap().1
        });
        until(|| client.service.held.borrow().len() == 1).await;
        let reply = client.service.held.borrow()[0].reply();
        let body = ReadChunkReply { exists: true, checksums: vec![] };
        let stream = client.service.stream.borrow().clone().unwrap();
        let half = || MessagePart::Bytes(vec![7; BYTES / 2]);
        let first = vec![MessagePart::Bytes(reply.frame(&body, BYTES as u32)), half()];
        stream.send(first).await.unwrap();
        client.look_while_it_is_used().await;
        stream.send(vec![half()]).await.unwrap();
        assert_eq!(call.await, BYTES);
        assert_eq!(client.counts(), [1, 0, 0]);
    })
    .unwrap();
}

#[test]
fn connection_ended_by_the_service_is_replaced_without_a_retry() {
    block_on(async {
        let client = start_client();
        client.call().await;
        client.service.outbox().close();
        // The check also frees the socket.
        let now = skep_env::now();
        until(|| !client.router.end_idle_connections(now)).await;
        client.call().await;
        assert_eq!(client.counts(), [2, 0, 0]);
    })
    .unwrap();
}

#[test]
fn connections_between_services_are_not_ended_when_idle() {
    block_on(async {
        let service = start(|identity, cell| Router::of_target(identity, cell, TARGET));
        service.call().await;
        assert!(!service.router.is_watching_idle.get());
        let client = start_client();
        client.call().await;
        assert!(client.router.is_watching_idle.get());
    })
    .unwrap();
}
