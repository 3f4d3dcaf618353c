//! Tests of requests that arrive twice, since a reply was lost, and of requests at the same time.

use super::*;
use skep_rpc::{CallOptions, Channel, Connection};
use skep_types::SessionId;

/// Before the fix, a client whose reply was lost got a second id, and the first one stayed in the
/// map until its lease expired.
#[test]
fn registration_after_a_lost_reply_gets_the_first_id() {
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
