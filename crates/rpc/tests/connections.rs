//! Connections over real sockets: authentication, matching of replies, bulk data both ways.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{Buf, MessagePart, TcpListener, TcpStream, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{CallOptions, Channel, Connection, Identity, MapCell, Router, Secrets};
use skep_types::codec::Codec;
use skep_types::{
    ChunkFileKey, ClusterId, ClusterMap, Error, ErrorCode, GroupId, InodeId, NodeId, NodeKind,
    TargetId,
};
use skep_wire::storage::{ReadChunk, ReadChunkReply};
use std::sync::Arc;
use std::time::Duration;

fn identity(cluster: u8, secret: &Secrets) -> Identity {
    Identity {
        cluster: ClusterId::new([cluster; 16]),
        secrets: secret.clone(),
        node: NodeId::new(5),
        kind: NodeKind::Client,
    }
}

/// Serves `ReadChunk` requests: replies with `length` bytes whose value is the low byte of the
/// offset. Answers each pair of requests in reverse order, and refuses offsets above one million.
fn serve(server: Identity) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let check = |target: TargetId| match target.raw() {
                0 | 7 => Ok(()),
                _ => Err(Error::new(ErrorCode::StaleMap, format!("{target} is not served here"))),
            };
            let Ok(peer) = authenticate(&stream, &server, 1, check).await else { continue };
            let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
            let mut held = Vec::new();
            while let Ok(Some(incoming)) = requests.next().await {
                held.push(incoming);
                if held.len() < 2 {
                    continue;
                }
                while let Some(incoming) = held.pop() {
                    let request = ReadChunk::from_bytes(&incoming.body).unwrap();
                    if request.offset > 1_000_000 {
                        outbox.refuse(&incoming.header, &Error::new(ErrorCode::Corrupt, "bad"));
                        continue;
                    }
                    let data = Buf::copy_of(&vec![request.offset as u8; request.length as usize]);
                    outbox.reply_data(
                        &incoming.header,
                        &ReadChunkReply { exists: true, checksums: vec![] },
                        vec![data],
                    );
                }
            }
        }
    })
    .detach();
    address
}

fn read(offset: u64, length: u32) -> ReadChunk {
    let key = ChunkFileKey { inode: InodeId::new(9), generation: 1, component: 0, index: 0 };
    ReadChunk { key, offset, length }
}

#[test]
fn replies_match_their_requests_in_any_order() {
    block_on(async {
        let secret = Secrets::generate();
        let address = serve(identity(1, &secret));
        let connection =
            Connection::connect(&address, &identity(1, &secret), TargetId::new(7), Channel::NONE)
                .await
                .unwrap();
        let tasks: Vec<_> = (0..100_u64)
            .map(|i| {
                let connection = connection.clone();
                spawn(async move {
                    let into = Buf::new(300_000);
                    let options = CallOptions { into: Some(into.clone()), ..Default::default() };
                    let (_, len) =
                        connection.call(&read(i, 200_000 + i as u32), &options).await.unwrap();
                    assert_eq!(len, 200_000 + i as usize);
                    assert!(into.bytes()[..len].iter().all(|byte| *byte == i as u8));
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        let (a, b) = (read(2_000_000, 1), read(0, 0));
        let refused = connection.clone();
        let task = spawn(async move { refused.call(&a, &CallOptions::default()).await });
        connection.call(&b, &CallOptions::default()).await.unwrap();
        assert_eq!(task.await.unwrap_err(), Error::new(ErrorCode::Corrupt, "bad"));
    })
    .unwrap();
}

#[test]
fn connections_without_the_secret_are_refused_with_a_reason() {
    block_on(async {
        let secret = Secrets::generate();
        let address = serve(identity(1, &secret));
        let connect = async |who: Identity, target: u32| {
            // An identity with a node id would wait for the right service.
            let who = Identity { node: NodeId::default(), ..who };
            Connection::connect(&address, &who, TargetId::new(target), Channel::NONE)
                .await
                .unwrap_err()
        };
        let error = connect(identity(1, &Secrets::generate()), 0).await;
        assert_eq!(error.code(), ErrorCode::AuthenticationFailed);
        assert!(error.context().contains("skep cluster token"), "{error}");
        let error = connect(identity(2, &secret), 0).await;
        assert_eq!(error.code(), ErrorCode::AuthenticationFailed);
        // The service sends this text, and the connecting side shows the text.
        let [service, token] = [1, 2].map(|cluster| ClusterId::new([cluster; 16]));
        let expected = format!("service at this address belongs to cluster {service}");
        assert!(error.context().contains(&expected), "{error}");
        let expected = format!("token of the connecting side is of cluster {token}");
        assert!(error.context().contains(&expected), "{error}");
        let error = connect(identity(1, &secret), 8).await;
        assert_eq!(error.code(), ErrorCode::StaleMap);
    })
    .unwrap();
}

#[test]
fn waiting_request_is_not_sent_after_the_node_id_changes() {
    block_on(async {
        let cell = MapCell::new(ClusterMap::empty(ClusterId::default()), NodeId::new(5));
        let identity = identity(1, &Secrets::generate());
        let router = Router::new(identity, Channel::NONE, Arc::clone(&cell));
        // The cluster map does not contain the group, so the call waits for a newer map.
        let call = spawn(async move {
            let options = CallOptions { only_as: Some(NodeId::new(5)), ..CallOptions::default() };
            router.call(GroupId::new(1), &read(0, 1), options).await.map(|_| ())
        });
        skep_env::yield_now().await;
        cell.set_node(NodeId::new(6));
        assert_eq!(call.await.unwrap_err().code(), ErrorCode::Evicted);
    })
    .unwrap();
}

/// Accepts one connection, which stays open, and passes its stream and its requests to `then`.
fn accept<F: Future<Output = ()> + 'static>(
    server: Identity,
    then: impl FnOnce(TcpStream, IncomingStream) -> F + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    spawn(async move {
        let stream = listener.accept().await.unwrap();
        let peer = authenticate(&stream, &server, 1, |_| Ok(())).await.unwrap();
        let (requests, _outbox) = IncomingStream::new(stream.clone(), peer.kind);
        then(stream, requests).await;
        std::future::pending::<()>().await;
    })
    .detach();
    address
}

/// Waits until no other handle to the memory of `buffer` exists.
async fn is_returned(buffer: &Buf) {
    let wait = async {
        while buffer.handles() > 1 {
            skep_env::sleep(Duration::from_millis(1)).await;
        }
    };
    skep_env::timeout(Duration::from_secs(20), wait)
        .await
        .expect("the buffer is not used any more");
}

/// docs/semantics.md 4.1: a killed program waits until no connection uses the program's buffer.
#[test]
fn ended_connection_keeps_no_data_of_unsent_requests() {
    block_on(async {
        let secret = Secrets::generate();
        // The server receives nothing after the handshake.
        let address = accept(identity(1, &secret), |_, _| async {});
        let own = identity(1, &secret);
        let connection =
            Connection::connect(&address, &own, TargetId::new(7), Channel::NONE).await.unwrap();
        let call = |data: &Buf| {
            let connection = connection.clone();
            let options = CallOptions { data: vec![data.clone()], ..Default::default() };
            spawn(async move { connection.call(&read(0, 1), &options).await })
        };
        // The sockets have no space for the first request, so the other requests wait to be sent.
        let (long, data) = (Buf::new(64 << 20), Buf::new(4096));
        let mut calls = vec![call(&long)];
        for _ in 0..4 {
            skep_env::yield_now().await;
        }
        calls.extend((0..3).map(|_| call(&data)));
        // Each call has two handles to its buffer: in its options, and in its request.
        let all_posted = async {
            while data.handles() < 7 {
                skep_env::yield_now().await;
            }
        };
        skep_env::timeout(Duration::from_secs(20), all_posted).await.unwrap();
        connection.close();
        for call in calls {
            assert_eq!(call.await.unwrap_err().code(), ErrorCode::Disconnected);
        }
        is_returned(&data).await;
        assert!(connection.is_closed());
    })
    .unwrap();
}

/// Checks the guarantee of docs/semantics.md 4.1.
#[test]
fn dropped_call_gets_its_buffer_back_from_a_stopped_server() {
    block_on(async {
        let secret = Secrets::generate();
        let address = accept(identity(1, &secret), |stream, mut requests| async move {
            let request = requests.next().await.unwrap().unwrap();
            let reply = ReadChunkReply { exists: true, checksums: vec![] };
            let frame = request.header.reply().frame(&reply, 1 << 20);
            // The server is stopped after the first half of the data.
            let parts = vec![MessagePart::Bytes(frame), MessagePart::Bytes(vec![7; 512 << 10])];
            stream.send(parts).await.unwrap();
        });
        let own = identity(1, &secret);
        let connection =
            Connection::connect(&address, &own, TargetId::new(7), Channel::NONE).await.unwrap();
        let into = Buf::new(1 << 20);
        let options = CallOptions { into: Some(into.clone()), ..Default::default() };
        let caller = connection.clone();
        let call = spawn(async move { caller.call(&read(0, 1 << 20), &options).await });
        // `into`, the options, and the request have a handle to the buffer each. The reception of
        // the data has more handles.
        let receives = async {
            while into.handles() <= 3 {
                skep_env::sleep(Duration::from_millis(1)).await;
            }
        };
        skep_env::timeout(Duration::from_secs(20), receives).await.unwrap();
        drop(call);
        is_returned(&into).await;
        assert!(connection.is_closed(), "the rest of the reply would go to the buffer");
    })
    .unwrap();
}
