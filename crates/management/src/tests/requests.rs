//! Tests of requests that arrive twice because a reply was lost, and of concurrent requests.

use super::*;
use skep_rpc::{CallOptions, Channel, Connection};
use skep_types::SessionId;

/// Regression test: a client whose reply was lost got a second id, and the first id stayed in the
/// map until its lease expired.
#[test]
fn repeated_registration_after_a_lost_reply_gets_the_same_id() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let identity = Identity {
            cluster: token.cluster,
            secrets: token.secrets.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        };
        let request = RegisterClient {
            host: "here".into(),
            mount_point: "/mnt".into(),
            version: "test".into(),
            pid: 1,
        };
        let register = async |sequence| {
            let connection = Connection::connect(
                &token.addresses[0],
                &identity,
                TargetId::default(),
                Channel::NONE,
            );
            let session = SessionId::new(77);
            let options = CallOptions { session, sequence, ..CallOptions::default() };
            connection.await.unwrap().call(&request, &options).await.unwrap().0
        };
        let first = register(1).await;
        let again = register(1).await;
        assert_eq!((again.node, again.map.nodes.len()), (first.node, first.map.nodes.len()));
        assert_ne!(register(2).await.node, first.node);
    });
}

/// Regression test: a node with a revoked token joined over a connection that it had opened before
/// the revocation.
#[test]
fn revoked_token_joins_no_node_over_an_older_connection() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let identity = Identity {
            cluster: token.cluster,
            secrets: token.secrets.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        };
        let (address, any) = (&token.addresses[0], TargetId::default());
        let connect = || Connection::connect(address, &identity, any, Channel::NONE);
        let connection = connect().await.unwrap();
        let directory = &settings.node.directory;
        let old = token.secrets.newest().id();
        skep_service::tokens::replace(directory).unwrap();
        skep_service::tokens::revoke(directory, old, false).unwrap();
        let changed = skep_service::directory::load_token(directory).unwrap();
        running.identity.secrets.replace_by(&changed.secrets);
        let client = RegisterClient {
            host: "here".into(),
            mount_point: "/mnt".into(),
            version: "test".into(),
            pid: 1,
        };
        let options =
            CallOptions { session: SessionId::new(77), sequence: 1, ..CallOptions::default() };
        let refused = connection.call(&client, &options).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Disconnected);
        let refused = connect().await.unwrap_err();
        assert!(refused.context().contains("revoked for new nodes"), "{refused}");
        // With the newest token, the client can join over a new connection.
        identity.secrets.replace_by(&changed.secrets);
        let joined = connect().await.unwrap().call(&client, &options).await.unwrap().0;
        assert_ne!(joined.node, NodeId::default());
    });
}

/// Regression test: a node with a closed token joined if it claimed the id of any registered node.
#[test]
fn closed_token_joins_no_node_even_if_it_claims_a_known_id() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let known = server(NodeKind::Storage, 10);
        let (member, _) = Membership::join(&token, known.clone(), PATIENCE).await.unwrap();
        let directory = &settings.node.directory;
        let old = token.secrets.newest().id();
        skep_service::tokens::replace(directory).unwrap();
        skep_service::tokens::revoke(directory, old, false).unwrap();
        let changed = skep_service::directory::load_token(directory).unwrap();
        running.identity.secrets.replace_by(&changed.secrets);
        let identity = Identity {
            cluster: token.cluster,
            secrets: token.secrets.clone(),
            node: member.node(),
            kind: NodeKind::Storage,
        };
        let (address, any) = (&token.addresses[0], TargetId::default());
        let connection = Connection::connect(address, &identity, any, Channel::NONE).await.unwrap();
        let options = |sequence| CallOptions {
            session: SessionId::new(77),
            sequence,
            ..CallOptions::default()
        };
        let client = RegisterClient {
            host: "here".into(),
            mount_point: "/mnt".into(),
            version: "test".into(),
            pid: 1,
        };
        let refused = connection.call(&client, &options(1)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::AuthenticationFailed);
        assert!(refused.context().contains("revoked for new nodes"), "{refused}");
        let stranger = server(NodeKind::Storage, 20);
        let refused = connection.call(&stranger, &options(2)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::AuthenticationFailed);
        // A server that has already joined shows its uuid, so that server can renew its
        // registration.
        let again = connection.call(&known, &options(3)).await.unwrap().0;
        assert_eq!(again.node, member.node());
        assert_eq!(again.map.nodes.len(), 2);
    });
}
