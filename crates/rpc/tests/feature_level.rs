//! Registrations at a cluster with a newer feature level than this program. The node must not
//! serve or use the cluster.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{TcpListener, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{ClientMembership, Identity, JoinLimits, JoinToken, Membership, Secrets};
use skep_types::registration::ServerRegistration;
use skep_types::{ClusterId, ClusterMap, Error, ErrorCode, NEWEST_FEATURE_LEVEL, NodeId, NodeKind};
use skep_wire::management::{RegisterClient, RegisterReply, RegisterServer};
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId::new([1; 16]);

/// Returns a map of a cluster whose feature level this program does not support.
fn newer_map() -> ClusterMap {
    ClusterMap { feature_level: NEWEST_FEATURE_LEVEL + 1, ..ClusterMap::empty(CLUSTER) }
}

/// Starts a management node that accepts each registration, and returns a token for it.
fn management() -> JoinToken {
    let secrets = Secrets::generate();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_address().unwrap().to_string()];
    let token = JoinToken { cluster: CLUSTER, secrets: secrets.clone(), addresses };
    let identity =
        Identity { cluster: CLUSTER, secrets, node: NodeId::new(1), kind: NodeKind::Management };
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let identity = identity.clone();
            spawn(async move {
                let authenticated = authenticate(&stream, &identity, 1, |_| Ok(())).await;
                let Ok(peer) = authenticated else { return };
                let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
                while let Ok(Some(incoming)) = requests.next().await {
                    let node = NodeId::new(7);
                    let reply = RegisterReply { node, targets: Vec::new(), map: newer_map() };
                    outbox.reply(&incoming.header, &reply);
                }
            })
            .detach();
        }
    })
    .detach();
    token
}

fn server() -> RegisterServer {
    let server = ServerRegistration {
        node: NodeId::new(7),
        uuid: 7,
        kind: NodeKind::Storage,
        name: "storage-1".into(),
        addresses: vec!["127.0.0.1:7420".into()],
        domain: None,
        version: "0.1.0".into(),
        targets: Vec::new(),
    };
    let (capacities, groups) = (Vec::new(), Vec::new());
    RegisterServer { server, capacities, groups, host: String::new() }
}

fn check(error: &Error) {
    assert_eq!(error.code(), ErrorCode::VersionMismatch, "{error}");
    assert!(error.context().contains("install the version of Skep"), "{error}");
}

#[test]
fn service_does_not_join_a_cluster_of_a_newer_feature_level() {
    block_on(async {
        let token = management();
        let joined = Membership::join(&token, server(), Some(Duration::from_secs(10))).await;
        check(&joined.unwrap_err());
        // The service has the map of an earlier start, because a service with such a map can start
        // while management is down.
        let begun = Membership::begin(&token, server(), Some(newer_map())).await;
        check(&begun.unwrap_err());
    })
    .unwrap();
}

#[test]
fn mount_does_not_join_a_cluster_of_a_newer_feature_level() {
    block_on(async {
        let request = RegisterClient {
            host: "client".into(),
            mount_point: "/mnt/skep".into(),
            version: "0.1.0".into(),
            pid: 1,
        };
        let limits = JoinLimits { patience: Some(Duration::from_secs(10)), needs_format: false };
        let joined = ClientMembership::join(management(), request, limits).await;
        check(&joined.unwrap_err());
    })
    .unwrap();
}
