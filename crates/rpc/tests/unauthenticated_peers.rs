//! Tests with peers that have not authenticated: a process on the port of a dead service, and
//! processes that connect to a service and send nothing or nonsense.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{Buf, MessagePart, TcpListener, TcpStream, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{
    Admission, CallOptions, Channel, Connection, Identity, MapCell, RefusalLog, Router, Secrets,
};
use skep_types::{
    ClusterId, ClusterMap, ErrorCode, Group, GroupId, InodeId, Node, NodeId, NodeKind, RetryClass,
    Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::frame::{HEADER_BYTES, Header};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::{Decide, KeepAlive, SyncAll, TransactionId};
use skep_wire::session::Hello;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId::new([1; 16]);
const TARGET: TargetId = TargetId::new(7);
const GROUP: GroupId = GroupId::new(3);

fn identity(secret: &Secrets, node: u32) -> Identity {
    let (node, kind) = (NodeId::new(node), NodeKind::Client);
    Identity { cluster: CLUSTER, secrets: secret.clone(), node, kind }
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    (listener, address)
}

/// Answers the first frame of a connection with an error of the given number.
async fn answer_with(stream: &TcpStream, status: u16) {
    stream.receive(Buf::new(4096)).await.unwrap();
    let header = Header { message: Hello::ID, status, ..Header::default() }.reply();
    let frame = Header { status, ..header }.frame(&"forged\nline".to_owned(), 0);
    // The connecting side may have closed the connection already.
    let _ = stream.send(vec![MessagePart::Bytes(frame)]).await;
}

fn map(address: &str) -> ClusterMap {
    let mut map = ClusterMap::empty(CLUSTER);
    map.nodes.push(Node::online(NodeId::new(1), NodeKind::Metadata, "metadata-1").at(address));
    map.targets.push(Target::online(TARGET, TargetKind::Metadata, NodeId::new(1)));
    map.groups.push(Group::of_one(GROUP, TargetKind::Metadata, TARGET));
    map
}

/// Serves one connection: replies to each `SyncAll`, and closes the connection at any other
/// request.
async fn serve(stream: TcpStream, identity: Identity) {
    let Ok(peer) = authenticate(&stream, &identity, 1, |_| Ok(())).await else { return };
    let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
    while let Ok(Some(incoming)) = requests.next().await {
        if incoming.header.message != SyncAll::ID {
            break;
        }
        outbox.reply(&incoming.header, &EmptyReply {});
    }
    outbox.close();
}

/// Returns the numbers of all error codes, and one number that belongs to no code.
fn all_numbers() -> Vec<u16> {
    let numbers = ErrorCode::ALL.iter().map(|(code, ..)| *code as u16);
    numbers.chain([60_000]).collect()
}

#[test]
fn members_retry_after_any_reply_of_a_foreign_server() {
    block_on(async {
        let secret = Secrets::generate();
        let (listener, address) = listen();
        spawn(async move {
            for status in all_numbers() {
                for _ in 0..2 {
                    answer_with(&listener.accept().await.unwrap(), status).await;
                }
            }
        })
        .detach();
        let believed = [
            ErrorCode::AuthenticationFailed,
            ErrorCode::VersionMismatch,
            ErrorCode::StaleMap,
            ErrorCode::NotReady,
            ErrorCode::Disconnected,
        ];
        for status in all_numbers() {
            let connect = async |node| {
                let identity = identity(&secret, node);
                Connection::connect(&address, &identity, TARGET, Channel::NONE).await.unwrap_err()
            };
            let (joining, member) = (connect(0).await, connect(5).await);
            assert!(believed.contains(&joining.code()), "{status}: {joining}");
            if believed.iter().any(|code| *code as u16 == status) {
                assert_eq!(joining.code() as u16, status);
            }
            assert_ne!(member.code().retry_class(), RetryClass::Never, "{status}: {member}");
            assert!(!member.context().contains('\n'), "{member}");
        }
    })
    .unwrap();
}

#[test]
fn members_wait_until_a_foreign_server_frees_the_port() {
    block_on(async {
        let secret = Secrets::generate();
        let (listener, address) = listen();
        let server = identity(&secret, 1);
        let answered = Rc::new(Cell::new(0));
        let count = Rc::clone(&answered);
        spawn(async move {
            for status in all_numbers() {
                answer_with(&listener.accept().await.unwrap(), status).await;
                count.set(count.get() + 1);
            }
            // Four processes use the port in turn: a daemon of another protocol, a service of
            // another cluster, a service with another secret, and finally the right service.
            let stream = listener.accept().await.unwrap();
            stream.send(vec![MessagePart::Bytes(vec![b'x'; HEADER_BYTES])]).await.unwrap();
            let other = Identity { cluster: ClusterId::new([2; 16]), ..server.clone() };
            serve(listener.accept().await.unwrap(), other).await;
            let other = identity(&Secrets::generate(), 1);
            serve(listener.accept().await.unwrap(), other).await;
            serve(listener.accept().await.unwrap(), server).await;
        })
        .detach();
        let cell = MapCell::new(map(&address), NodeId::new(5));
        let router = Router::new(identity(&secret, 5), Channel::NONE, cell);
        router.call(GROUP, &SyncAll {}, CallOptions::default()).await.unwrap();
        assert_eq!(answered.get(), all_numbers().len());
    })
    .unwrap();
}

#[test]
fn error_of_a_handshake_does_not_quote_received_text() {
    block_on(async {
        let (listener, address) = listen();
        let task = spawn(async move {
            let stream = TcpStream::connect(&address).await.unwrap();
            let header = Header { message: Hello::ID, status: 1, ..Header::default() };
            let frame = header.frame(&"forged\nline".to_owned(), 0);
            stream.send(vec![MessagePart::Bytes(frame)]).await.unwrap();
            stream.receive(Buf::new(1)).await
        });
        let stream = listener.accept().await.unwrap();
        let server = identity(&Secrets::generate(), 1);
        let error = authenticate(&stream, &server, 1, |_| Ok(())).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Protocol);
        assert!(!error.context().contains("forged"), "{error}");
        drop(stream);
        // The peer gets the end of the stream, or a reset because of unread bytes.
        let _ = task.await;
    })
    .unwrap();
}

#[test]
fn silent_connections_do_not_block_members() {
    const STRANGERS: usize = 3000;
    block_on(async {
        // This process has both ends of each connection.
        assert!(skep_env::raise_file_limit() > 4 * STRANGERS as u64, "the test needs descriptors");
        let secret = Secrets::generate();
        let (listener, address) = listen();
        let server = identity(&secret, 1);
        let admission = Admission::new(RefusalLog::new("the test"));
        let (most, accepted) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counts = (Rc::clone(&most), Rc::clone(&accepted));
        spawn(async move {
            while let Ok(stream) = listener.accept().await {
                counts.1.set(counts.1.get() + 1);
                let ticket = admission.admit(&stream);
                admission.check_invariants();
                counts.0.set(counts.0.get().max(admission.under_way()));
                let Some(ticket) = ticket else { continue };
                let server = server.clone();
                spawn(async move {
                    let peer = authenticate(&stream, &server, 1, |_| Ok(())).await;
                    drop(ticket);
                    let Ok(peer) = peer else { return };
                    let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
                    while let Ok(Some(incoming)) = requests.next().await {
                        outbox.reply(&incoming.header, &EmptyReply {});
                    }
                })
                .detach();
            }
        })
        .detach();
        let mut strangers = Vec::new();
        while strangers.len() < STRANGERS {
            strangers.push(TcpStream::connect(&address).await.unwrap());
        }
        let cell = MapCell::new(map(&address), NodeId::new(5));
        let router = Router::new(identity(&secret, 5), Channel::NONE, cell);
        let options =
            CallOptions { time_left: Some(Duration::from_secs(60)), ..CallOptions::default() };
        router.call(GROUP, &SyncAll {}, options).await.unwrap();
        assert!(accepted.get() > STRANGERS, "{}", accepted.get());
        assert!((1..=256).contains(&most.get()), "{} concurrent handshakes", most.get());
        drop(strangers);
    })
    .unwrap();
}

#[test]
fn clients_cannot_send_requests_reserved_for_services() {
    block_on(async {
        let secret = Secrets::generate();
        let (listener, address) = listen();
        let server = identity(&secret, 1);
        spawn(async move { serve(listener.accept().await.unwrap(), server).await }).detach();
        let connection =
            Connection::connect(&address, &identity(&secret, 5), TARGET, Channel::NONE)
                .await
                .unwrap();
        let transaction = TransactionId { coordinator: GROUP, number: 1 };
        let decide = Decide { transaction, commit: true };
        let error = connection.call(&decide, &CallOptions::default()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}");
        // The connection stays usable.
        connection.call(&SyncAll {}, &CallOptions::default()).await.unwrap();
    })
    .unwrap();
}

#[test]
fn request_longer_than_its_limit_ends_the_connection() {
    block_on(async {
        for (body_bytes, data_bytes) in [(65_537, 0), (0, 1), (0, 4 << 20)] {
            let secret = Secrets::generate();
            let (listener, address) = listen();
            let server = identity(&secret, 1);
            let next = spawn(async move {
                let stream = listener.accept().await.unwrap();
                let peer = authenticate(&stream, &server, 1, |_| Ok(())).await.unwrap();
                let (mut requests, _outbox) = IncomingStream::new(stream, peer.kind);
                requests.next().await.map(|_| ())
            });
            let options = CallOptions {
                data: if data_bytes > 0 { vec![Buf::new(data_bytes)] } else { Vec::new() },
                ..CallOptions::default()
            };
            let identity = identity(&secret, 5);
            let connection =
                Connection::connect(&address, &identity, TARGET, Channel::NONE).await.unwrap();
            if data_bytes == 0 {
                // The sender refuses a body that is too long.
                let name = skep_types::codec::Bytes(vec![0; body_bytes]);
                let request = skep_wire::metadata::Lookup { directory: InodeId::ROOT, name };
                let error = connection.call(&request, &options).await.unwrap_err();
                assert_eq!(error.code(), ErrorCode::TooLarge);
                connection.close();
                assert!(next.await.is_ok());
                continue;
            }
            let error = connection.call(&KeepAlive { lease_ms: 1 }, &options).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Disconnected, "{error}");
            assert_eq!(next.await.unwrap_err().code(), ErrorCode::Protocol);
        }
    })
    .unwrap();
}
