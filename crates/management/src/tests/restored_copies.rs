//! Tests of directories that were restored from a backup.

use super::*;
use skep_store::restored::{RESTORED_MARK, unmark};
use skep_wire::management::Heartbeat;

/// The newest ids and the newest map version that a cluster assigned after a backup was made.
struct Newest {
    client: NodeId,
    server: NodeId,
    version: MapVersion,
}

/// Makes a backup of management's directory, lets the cluster assign more ids and versions, stops
/// management, and restores the directory from the backup.
async fn put_back(settings: &ManagementSettings, token: &JoinToken) -> Newest {
    let path = &settings.node.directory;
    let copy = path.with_extension("copy");
    let running = RunningManagement::start(settings).await.unwrap();
    let (_server, registered) =
        Membership::join(token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
    copy_directory(path, &copy).unwrap();
    let client = join_client(token).await.node();
    let version = running.authority.map().version;
    drop(running);
    std::fs::remove_dir_all(path).unwrap();
    std::fs::rename(&copy, path).unwrap();
    Newest { client, server: registered.node, version }
}

/// docs/semantics.md 1.8.
#[test]
fn restored_management_reuses_no_id_or_map_version() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let newest = put_back(&settings, &token).await;
        let running = RunningManagement::start(&settings).await.unwrap();
        assert!(running.authority.map().version > newest.version);
        assert!(
            running.authority.map().has_removed(newest.client),
            "the client must register again"
        );
        assert!(join_client(&token).await.node() > newest.client);
        // At the next start, the ids must continue without another jump.
        let before = running.authority.map().newest_node;
        drop(running);
        let running = RunningManagement::start(&settings).await.unwrap();
        assert_eq!(running.authority.map().newest_node, before);
    });
}

/// docs/semantics.md 1.8, for a backup that was made by other means than `skep cluster backup`.
#[test]
fn management_skips_ids_after_a_heartbeat_with_a_newer_id() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let newest = put_back(&settings, &token).await;
        unmark(&settings.node.directory, RESTORED_MARK).unwrap();
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Storage);
        let heartbeat = |known| Heartbeat {
            node: newest.server,
            known,
            newest_node: newest.client,
            targets: Vec::new(),
            waits: Vec::new(),
        };
        // The restart has already raised the map version above the version that the node has.
        let ask = async |known| {
            let reply = admin.call_once(&heartbeat(known), Duration::from_secs(10)).await.unwrap();
            reply.map.expect("management has a newer map")
        };
        let map = ask(newest.version).await;
        assert!(map.has_removed(newest.client));
        assert!(join_client(&token).await.node() > newest.client);
        let known = MapVersion::new(map.version.raw() + (3 << 40));
        assert!(ask(known).await.version > known);
    });
}

/// A heartbeat of a faulty node must not use up all map versions. Otherwise management could not
/// start again.
#[test]
fn heartbeat_with_an_implausible_version_or_id_is_refused() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let (_server, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        let before = running.authority.map().version;
        let admin = Management::new(&token, NodeKind::Storage);
        // Management continues 4,096 starts above the reported version, so only this number of
        // starts would be left.
        let left_starts = 4_096 + 2;
        let known = MapVersion::new(u64::MAX - (left_starts << 40));
        let wild = [
            (known, NodeId::default(), "management accepts at most"),
            (before, NodeId::new(u32::MAX - 1), "management accepts ids up to"),
        ];
        for (known, newest_node, limit) in wild {
            let heartbeat = Heartbeat {
                node: registered.node,
                known,
                newest_node,
                targets: Vec::new(),
                waits: Vec::new(),
            };
            let refused = admin.call_once(&heartbeat, Duration::from_secs(10)).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::LimitReached, "{refused}");
            assert!(refused.to_string().contains(limit), "{refused}");
        }
        assert_eq!(running.authority.map().version, before);
        drop(running);
        let running = RunningManagement::start(&settings).await.unwrap();
        assert!(running.authority.map().version < known);
    });
}
