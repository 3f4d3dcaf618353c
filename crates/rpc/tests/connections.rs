//! Connections over real sockets: authentication, matching of replies, bulk data both ways.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{Buf, TcpListener, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{CallOptions, Channel, Connection, Identity, MapCell, Router, Secrets};
use skep_types::codec::Codec;
use skep_types::{
    ChunkFileKey, ClusterId, ClusterMap, Error, ErrorCode, GroupId, InodeId, NodeId, NodeKind,
    TargetId,
};
use skep_wire::storage::{ReadChunk, ReadChunkReply};
use std::sync::Arc;

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
        // The service sends this text, and the connecting side shows it.
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
        // No cluster map contains the group, so the call waits for a newer map.
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
