//! Tests of the clean-up with a metadata target that replies over a socket.

use super::*;
use crate::chunk_store::Destination;
use skep_env::{Buf, TcpListener};
use skep_metrics::Value;
use skep_rpc::server::authenticate;
use skep_rpc::{Channel, Identity, IncomingStream, MapCell, Secrets};
use skep_types::codec::{Codec, crc32c};
use skep_types::map::{ShardRange, TargetHealth};
use skep_types::{
    ClusterId, ClusterMap, Group, Node, NodeId, NodeKind, ShardId, Target, TargetId, TargetKind,
};
use skep_wire::storage::{StripeHint, WhichExistReply};

const CLUSTER: ClusterId = ClusterId::new([4; 16]);
const METADATA: TargetId = TargetId::new(1);

/// Returns a map in which one metadata group serves the first hundred shards.
fn map(address: &str) -> ClusterMap {
    let mut map = ClusterMap::empty(CLUSTER);
    map.formatted = true;
    map.nodes.push(Node::online(NodeId::new(1), NodeKind::Metadata, "metadata-1").at(address));
    map.targets.push(Target::online(METADATA, TargetKind::Metadata, NodeId::new(1)));
    map.groups.push(Group::of_one(GroupId::new(1), TargetKind::Metadata, METADATA));
    let (first, last) = (ShardId::new(0), ShardId::new(99));
    map.shards.push(ShardRange { first, last, group: GroupId::new(1) });
    map
}

/// Serves as a metadata target that reports inodes with even numbers as existing.
async fn metadata(listener: TcpListener, identity: Identity) {
    let stream = listener.accept().await.unwrap();
    let peer = authenticate(&stream, &identity, 1, |_| Ok(())).await.unwrap();
    let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
    while let Ok(Some(incoming)) = requests.next().await {
        let request = WhichExist::from_bytes(&incoming.body).unwrap();
        let exists = request.inodes.iter().map(|inode| inode.number() % 2 == 0).collect();
        outbox.reply(&incoming.header, &WhichExistReply { exists });
    }
}

async fn write(store: &Rc<ChunkStore>, shard: u16, number: u64, index: u16) -> ChunkFileKey {
    let inode = InodeId::from_parts(ShardId::new(shard), number);
    let key = ChunkFileKey { inode, generation: 0, component: 0, index };
    let stripe = StripeHint { chunk_bytes: 1 << 20, width: 1, component_start: 0 };
    let to =
        Destination { key: &key, stripe, offset: 0, truncate_generation: 0, must_exist: false };
    store.write(to, &Buf::copy_of(b"x"), &[crc32c(b"x")]).await.unwrap();
    key
}

#[test]
fn clean_up_removes_only_old_files_without_an_inode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    skep_env::block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let map = map(&listener.local_address().unwrap().to_string());
        let node = NodeId::new(2);
        let secret = Secrets::generate();
        let identity = |kind| Identity { cluster: CLUSTER, secrets: secret.clone(), node, kind };
        skep_env::spawn(metadata(listener, identity(NodeKind::Metadata))).detach();
        let router = Router::new(
            identity(NodeKind::Storage),
            Channel::NONE,
            MapCell::new(map, NodeId::default()),
        );
        let store = ChunkStore::open(&path, CLUSTER, TargetId::new(5)).unwrap();
        let mut kept = Vec::new();
        for number in 1..=500 {
            for index in 0..2 {
                let key = write(&store, (number % 100) as u16, number, index).await;
                kept.extend((number % 2 == 0).then_some(key));
            }
        }
        // No metadata group serves the shard of this chunk file.
        kept.push(write(&store, 100, 1, 0).await);

        let registry = Registry::new();
        let progress = CleanUpProgress::new(&registry, TargetId::new(5));
        let an_hour = Duration::from_secs(3600);
        let found = clean_up(&store, &router, (an_hour, 1_000), &progress).await.unwrap();
        assert_eq!(found, CleanUpCounts::default(), "young files are left alone");
        // The number of orphans exceeds the limit, so the clean-up removes no orphan and reports a
        // problem.
        let found = clean_up(&store, &router, (Duration::ZERO, 499), &progress).await.unwrap();
        let counts = CleanUpCounts { looked_at: 1001, orphans: 500, removed: 0, unknown: 1 };
        assert_eq!(found, counts);
        let health = store.health().await;
        assert!(health.problem.contains("cleanup-limit"), "{}", health.problem);
        assert_eq!(store.list(0, 4096).unwrap().0.len(), 1001);
        let found = clean_up(&store, &router, (Duration::ZERO, 500), &progress).await.unwrap();
        assert_eq!(found, CleanUpCounts { removed: 500, ..counts });
        assert_eq!(store.health().await, TargetHealth::default());
        let (mut left, _) = store.list(0, 4096).unwrap();
        left.sort();
        kept.sort();
        assert_eq!(left, kept);
        let found = clean_up(&store, &router, (Duration::ZERO, 500), &progress).await.unwrap();
        let counts = CleanUpCounts { looked_at: 501, orphans: 0, removed: 0, unknown: 1 };
        assert_eq!(found, counts);
        // The metrics still have the values that the round set at its last directory: the total
        // number of directories, and one remaining directory.
        let leaves = store.leaves().unwrap().len();
        assert!(leaves > 1);
        assert_eq!((progress.directories.get(), progress.left.get()), (leaves as i64, 1));
        // An administrator can move the quarantined files back.
        let quarantined = store.empty_quarantine().await.unwrap();
        assert_eq!(quarantined, (0, 500), "the quarantined files are young");
        let copied = std::process::Command::new("cp")
            .args(["-a", "quarantine/.", "chunks"])
            .current_dir(&path)
            .status();
        assert!(copied.unwrap().success());
        assert_eq!(store.list(0, 4096).unwrap().0.len(), 1001);
    })
    .unwrap();
}

#[test]
fn metrics_of_an_interrupted_clean_up_become_zero() {
    let registry = Registry::new();
    let progress = CleanUpProgress::new(&registry, TargetId::new(5));
    let shown = || {
        let snapshot = registry.snapshot();
        snapshot.iter().map(|series| series.value).collect::<Vec<_>>()
    };
    progress.set(7, 3);
    assert_eq!(shown(), [Value::Number(7), Value::Number(3)]);
    drop(progress);
    assert_eq!(shown(), [Value::Number(0), Value::Number(0)]);
}
