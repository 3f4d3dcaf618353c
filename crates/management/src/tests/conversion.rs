//! Tests of directories of an older version, which a start converts, and of directories that lack
//! files.

use super::*;
use crate::former_log::tests::{client, write};
use skep_consensus::has_log;
use skep_store::identity::read_identity;

/// Replaces the files of the member by files of an older version. The older files contain the state
/// of the member and one additional client. Returns the node id of management.
fn as_former(path: &std::path::Path, cluster: skep_types::ClusterId) -> NodeId {
    let state = crate::directory::read(path, cluster).unwrap().machine.state;
    write(path, &state, &[client(1)]);
    std::fs::remove_file(path.join("raft-log")).unwrap();
    std::fs::remove_file(path.join("raft-snapshot")).unwrap();
    read_identity(path).unwrap().unwrap().node
}

#[test]
fn management_directory_of_an_earlier_version_is_converted() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let path = &settings.node.directory;
        let running = RunningManagement::start(&settings).await.unwrap();
        Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        let version = running.authority.map().version;
        drop(running);
        let node = as_former(path, token.cluster);
        for _ in 0..2 {
            let running = RunningManagement::start(&settings).await.unwrap();
            let map = running.authority.map();
            assert_eq!(running.authority.own(), node);
            assert_eq!(map.nodes.len(), 3, "the nodes are management, a server and a client");
            assert!(map.version > version);
            assert!(!crate::former_log::exists(path) && has_log(path));
            drop(running);
        }
        // Create the state after a crash between the creation of the new files and the removal of
        // the old files.
        let empty = skep_cluster::ClusterState::new(token.cluster);
        write(path, &empty, &[]);
        let running = RunningManagement::start(&settings).await.unwrap();
        assert_eq!(running.authority.map().nodes.len(), 3);
        assert!(!crate::former_log::exists(path));
    });
}

#[test]
fn management_refuses_a_directory_without_its_log() {
    let (_directory, settings, _) = cluster();
    block_on(async move {
        let path = &settings.node.directory;
        drop(RunningManagement::start(&settings).await.unwrap());
        std::fs::remove_file(path.join("raft-log")).unwrap();
        let refused = RunningManagement::start(&settings).await.map(|_| ()).unwrap_err();
        assert!(refused.context().contains("skep management remove"), "{refused}");
        assert!(refused.context().contains("--init --join"), "{refused}");
    });
}
