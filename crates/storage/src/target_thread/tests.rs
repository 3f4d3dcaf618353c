//! Tests of a target over real sockets: its thread, its handlers, and the refused requests.

mod shared_loops;

use super::*;
use crate::StorageSettings;
use crate::chunk_store::Destination;
use skep_env::{Buf, Mailbox, MailboxSender, TcpListener};
use skep_format::identity::{DirectoryKind, Identity as DirectoryIdentity};
use skep_rpc::server::authenticate;
use skep_rpc::{CallOptions, Connection, Identity, JoinToken, MapCell, Secrets};
use skep_service::host::Ready;
use skep_store::identity::Directory;
use skep_types::codec::crc32c;
use skep_types::map::Consistency;
use skep_types::{
    ChunkFileKey, ClusterId, ClusterMap, ErrorCode, Group, InodeId, NodeId, NodeKind, Target,
    TargetKind,
};
use skep_wire::senders::Sender;
use skep_wire::storage as messages;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId::new([3; 16]);
const TARGET: TargetId = TargetId::new(8);
/// The group of the target.
const GROUP: GroupId = GroupId::new(40);
const STRIPE: messages::StripeHint =
    messages::StripeHint { chunk_bytes: 512 << 10, width: 4, component_start: 0 };

fn directory(path: &Path) -> Directory {
    if skep_store::identity::is_initialised(path) {
        // A program of another test may hold the lock of the directory for a moment: open again.
        let deadline = skep_env::now() + Duration::from_secs(10);
        loop {
            match Directory::open(path, DirectoryKind::StorageTarget, Some(CLUSTER)) {
                Err(error) if error.context().contains("in use") && skep_env::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                found => return found.unwrap(),
            }
        }
    }
    let identity = DirectoryIdentity {
        kind: DirectoryKind::StorageTarget,
        cluster: CLUSTER,
        node_uuid: 1,
        node: NodeId::new(2),
        target_uuid: 3,
        target: TARGET,
    };
    Directory::initialise(path, identity).unwrap()
}

/// A running target, with the handles that the host would have.
struct Running {
    events: MailboxSender<TargetEvent>,
    thread: JoinHandle<Result<()>>,
}

fn identity(kind: NodeKind) -> Identity {
    Identity { cluster: CLUSTER, secrets: Secrets::generate(), node: NodeId::new(2), kind }
}

/// Returns a map in which the target is alone in its group, and another target is in group 41.
fn map() -> ClusterMap {
    let mut map = ClusterMap::empty(CLUSTER);
    map.groups.push(Group::of_one(GROUP, TargetKind::Storage, TARGET));
    map.groups.push(Group::of_one(GroupId::new(41), TargetKind::Metadata, TargetId::new(9)));
    map
}

/// Returns the options of a request for the target's group.
fn options() -> CallOptions {
    CallOptions { group: GROUP, epoch: Epoch::new(1), ..CallOptions::default() }
}

/// Returns the options of a request of the metadata target to the target's group.
fn options_of_metadata() -> CallOptions {
    let sender = Sender { group: GroupId::new(41), epoch: Epoch::new(1) };
    CallOptions { sender, ..options() }
}

/// Starts a target, and returns when the target is ready. The caller must end the target.
async fn start(path: &Path, map: ClusterMap) -> Running {
    start_as(path, map, StorageSettings::default().emulation).await
}

/// Like [`start`], with an emulated device.
async fn start_as(path: &Path, map: ClusterMap, emulation: EmulationSettings) -> Running {
    let (running, is_ready) = begin(directory(path), map, emulation, EventLoops::new().into());
    is_ready.receive().await.unwrap();
    running
}

/// Starts a target in one of `loops`. The mailbox gets a message when the target is ready.
fn begin(
    directory: Directory,
    map: ClusterMap,
    emulation: EmulationSettings,
    loops: Arc<EventLoops>,
) -> (Running, Mailbox<()>) {
    let (events, mailbox) = Mailbox::new(10).unwrap();
    let (ready, is_ready) = Mailbox::new(1).unwrap();
    let start = TargetStart {
        metrics: skep_metrics::Registry::new(),
        directory,
        target: TARGET,
        token: JoinToken { cluster: CLUSTER, secrets: Secrets::generate(), addresses: Vec::new() },
        identity: identity(NodeKind::Storage),
        map: MapCell::new(map, NodeId::new(1)),
        events: mailbox,
        ready: Ready::new(move || ready.send(()).unwrap()),
    };
    let body = move || serve(start, 100, &emulation, &loops);
    let thread = skep_env::spawn_thread("target".into(), None, body).unwrap();
    (Running { events, thread }, is_ready)
}

/// Starts a target and connects to it. The caller must end the target.
async fn started(path: &Path) -> (Running, Rc<Connection>) {
    let running = start(path, map()).await;
    let connection = connect(&running, Channel::NONE).await;
    (running, connection)
}

async fn connect(running: &Running, channel: Channel) -> Rc<Connection> {
    connect_as(running, NodeKind::Client, channel).await
}

/// Connects as a node of kind `kind`, since some requests are accepted only from services.
async fn connect_as(running: &Running, kind: NodeKind, channel: Channel) -> Rc<Connection> {
    let server = identity(NodeKind::Storage);
    let client = Identity { kind, ..server.clone() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    let connecting =
        skep_env::spawn(
            async move { Connection::connect(&address, &client, TARGET, channel).await },
        );
    let stream = listener.accept().await.unwrap();
    let peer = authenticate(&stream, &server, 1, |_| Ok(())).await.unwrap();
    let connection = connecting.await.unwrap();
    let socket = stream.into_fd().unwrap();
    running.events.send(TargetEvent::Connection { socket, peer }).unwrap();
    connection
}

fn end(running: Running) {
    running.events.send(TargetEvent::Stop).unwrap();
    running.thread.join().unwrap().unwrap();
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(std::path::PathBuf) -> F) {
    let dir = tempfile::tempdir().unwrap();
    skep_env::block_on(test(dir.path().to_owned())).unwrap();
}

fn key(number: u64) -> ChunkFileKey {
    ChunkFileKey { inode: InodeId::new(number), generation: 0, component: 0, index: 0 }
}

async fn write(connection: &Rc<Connection>, key: ChunkFileKey, bytes: &[u8]) -> Result<()> {
    let checksums = bytes.chunks(4096).map(crc32c).collect();
    let request = messages::WriteChunk {
        key,
        stripe: STRIPE,
        offset: 0,
        truncate_generation: 0,
        must_exist: false,
        checksums,
    };
    let data = vec![Buf::copy_of(bytes)];
    let options = CallOptions { data, durable: true, ..options() };
    connection.call(&request, &options).await.map(|_| ())
}

async fn read(connection: &Rc<Connection>, key: ChunkFileKey, length: u32) -> Result<Vec<u8>> {
    let into = Buf::new(length as usize);
    let options = CallOptions { into: Some(into.clone()), ..options() };
    let request = messages::ReadChunk { key, offset: 0, length };
    let (reply, count) = connection.call(&request, &options).await?;
    let bytes = into.bytes()[..count].to_vec();
    let expected: Vec<_> = bytes.chunks(4096).map(crc32c).collect();
    assert_eq!(reply.checksums, expected);
    Ok(bytes)
}

#[test]
fn target_executes_each_kind_of_request_of_a_connection() {
    run(|dir| async move {
        let (thread, connection) = started(&dir).await;
        let options = options();
        let bytes = vec![7; 100_000];
        for number in 1..=20 {
            write(&connection, key(number), &bytes).await.unwrap();
        }
        assert!(read(&connection, key(1), 200_000).await.unwrap() == bytes);
        connection.call(&messages::SyncChunk { key: key(1) }, &options).await.unwrap();
        let cut = messages::TruncateChunk { key: key(1), size: 10, generation: 1 };
        connection.call(&cut, &options).await.unwrap();
        let stat = messages::StatChunk { key: key(1) };
        let (stat, _) = connection.call(&stat, &options).await.unwrap();
        assert!(stat.exists && stat.size == 10 && stat.modified.seconds > 0);
        let keys = (2..=20).map(key).collect();
        let metadata = connect_as(&thread, NodeKind::Metadata, Channel::NONE).await;
        metadata.call(&messages::RemoveChunks { keys }, &options_of_metadata()).await.unwrap();
        let list = messages::ListChunks { cursor: 0, limit: 100 };
        let (list, _) = connection.call(&list, &options).await.unwrap();
        assert_eq!(list.keys, [key(1)]);
        end(thread);
    });
}

#[test]
fn target_has_its_data_after_a_clean_restart() {
    run(|dir| async move {
        let (thread, connection) = started(&dir).await;
        write(&connection, key(1), b"kept").await.unwrap();
        end(thread);
        assert!(read(&connection, key(1), 10).await.is_err(), "the old connection has ended");
        let (thread, connection) = started(&dir).await;
        assert_eq!(read(&connection, key(1), 10).await.unwrap(), b"kept");
        end(thread);
    });
}

#[test]
fn reconnected_client_channel_closes_its_old_connection() {
    run(|dir| async move {
        let (thread, without) = started(&dir).await;
        let channel = Channel::random();
        let first = connect(&thread, channel).await;
        let other = connect(&thread, Channel::random()).await;
        write(&first, key(1), b"first").await.unwrap();
        let second = connect(&thread, channel).await;
        write(&second, key(1), b"second").await.unwrap();
        let late = write(&first, key(1), b"late").await.unwrap_err();
        assert_eq!(late.code(), ErrorCode::Disconnected);
        for connection in [&second, &other, &without] {
            assert_eq!(read(connection, key(1), 10).await.unwrap(), b"second");
        }
        end(thread);
    });
}

#[test]
fn bad_requests_are_refused_and_the_connection_stays_open() {
    run(|dir| async move {
        let (thread, connection) = started(&dir).await;
        let code = |result: Result<_>| result.map(|_| ()).unwrap_err().code();
        let options = options();
        let long = messages::ReadChunk { key: key(1), offset: 0, length: u32::MAX };
        assert_eq!(
            code(connection.call(&long, &options).await.map(|_| ())),
            ErrorCode::LimitReached
        );
        let keys = vec![key(1); 5000];
        let metadata = connect_as(&thread, NodeKind::Metadata, Channel::NONE).await;
        let many = metadata.call(&messages::RemoveChunks { keys }, &options_of_metadata()).await;
        assert_eq!(code(many.map(|_| ())), ErrorCode::TooLarge);
        let lookup = skep_wire::metadata::GetAttributes { inode: InodeId::ROOT };
        let other = connection.call(&lookup, &options).await;
        assert_eq!(code(other.map(|_| ())), ErrorCode::Unsupported);
        write(&connection, key(1), b"x").await.unwrap();
        end(thread);
    });
}

#[test]
fn requests_for_another_group_or_epoch_are_refused() {
    run(|dir| async move {
        let mut map = map();
        map.version = MapVersion::new(5);
        map.groups[0].epoch = Epoch::new(7);
        let thread = start(&dir, map).await;
        let connection = connect(&thread, Channel::NONE).await;
        let stat = messages::StatChunk { key: key(1) };
        let options = |group, epoch, lowest| CallOptions {
            group: GroupId::new(group),
            epoch: Epoch::new(epoch),
            lowest_map: MapVersion::new(lowest),
            ..CallOptions::default()
        };
        connection.call(&stat, &options(40, 7, 5)).await.unwrap();
        for (wrong, words) in [
            ((41, 7, 5), "not in group g41"),
            ((0, 0, 0), "not in group g0"),
            ((40, 6, 5), "epoch e7"),
            ((40, 8, 5), "epoch e7"),
            ((40, 7, 6), "needs map v6"),
        ] {
            let error = connection.call(&stat, &options(wrong.0, wrong.1, wrong.2)).await;
            let error = error.unwrap_err();
            assert_eq!(error.code(), ErrorCode::StaleMap);
            assert!(error.context().contains(words), "{error}");
        }
        end(thread);
    });
}

/// A sender with an older cluster map still sends requests to a lost target, so the target itself
/// must refuse them.
#[test]
fn lost_target_refuses_requests_even_after_a_restart() {
    run(|dir| async move {
        let (thread, connection) = started(&dir).await;
        write(&connection, key(1), b"x").await.unwrap();
        end(thread);
        let mut lost = map();
        lost.version = MapVersion::new(5);
        lost.targets.push(Target {
            reachability: skep_types::map::Reachability::Online,
            consistency: Consistency::Bad,
            ..Target::new(TARGET, TargetKind::Storage, NodeId::new(2), "/disk")
        });
        // The target has the map with the loss at its first start, and only an older map at its
        // second start.
        for map in [lost, map()] {
            let thread = start(&dir, map).await;
            let connection = connect(&thread, Channel::NONE).await;
            let stat = messages::StatChunk { key: key(1) };
            let error = connection.call(&stat, &options()).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::TargetLost);
            let error = write(&connection, key(1), b"y").await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::TargetLost);
            end(thread);
        }
    });
}

#[test]
fn target_that_is_not_the_primary_serves_no_data() {
    run(|dir| async move {
        let mut map = map();
        map.groups[0].primary = TargetId::new(99);
        let thread = start(&dir, map).await;
        let connection = connect(&thread, Channel::NONE).await;
        let error = write(&connection, key(1), b"x").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::StaleMap);
        // The target still accepts a request about itself, because such a request is not about the
        // data of its group.
        let ask = skep_wire::benchmark::AskBenchmark { run: 1 };
        let asked = connection.call(&ask, &CallOptions::default()).await.unwrap_err();
        assert_ne!(asked.code(), ErrorCode::StaleMap);
        end(thread);
    });
}

/// A metadata target that was stopped while another target took over its group must no longer
/// truncate or remove chunk files.
#[test]
fn requests_of_a_deposed_metadata_target_are_refused() {
    run(|dir| async move {
        let mut map = map();
        (map.groups[1].epoch, map.groups[1].primary_since) = (Epoch::new(2), Epoch::new(2));
        let thread = start(&dir, map).await;
        let client = connect(&thread, Channel::NONE).await;
        write(&client, key(1), b"kept").await.unwrap();
        let metadata = connect_as(&thread, NodeKind::Metadata, Channel::NONE).await;
        let truncate = messages::TruncateChunk { key: key(1), size: 0, generation: 1 };
        let remove = messages::RemoveChunks { keys: vec![key(1)] };
        let as_of = |epoch| {
            let sender = Sender { group: GroupId::new(41), epoch: Epoch::new(epoch) };
            CallOptions { sender, ..options() }
        };
        let refused = metadata.call(&truncate, &as_of(1)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Deposed);
        let refused = metadata.call(&remove, &as_of(1)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Deposed);
        let without = metadata.call(&remove, &options()).await.unwrap_err();
        assert_eq!(without.code(), ErrorCode::Protocol);
        assert_eq!(read(&client, key(1), 10).await.unwrap(), b"kept");
        metadata.call(&remove, &as_of(2)).await.unwrap();
        end(thread);
    });
}

/// Checks docs/semantics.md 3.8.
#[test]
fn waiting_write_of_a_removed_client_is_refused() {
    run(|dir| async move {
        let removed = NodeId::new(2);
        let node = |id| skep_types::Node {
            id,
            kind: NodeKind::Client,
            name: "client".into(),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: skep_types::map::Reachability::Online,
            version: String::new(),
        };
        let mut map = map();
        map.version = MapVersion::new(1);
        map.newest_node = removed;
        map.nodes.push(node(removed));
        let cell = MapCell::new(map.clone(), NodeId::new(1));
        let server = identity(NodeKind::Storage);
        let served = Rc::new(ServedTarget {
            store: ChunkStore::open(&dir, CLUSTER, TARGET).unwrap(),
            router: Router::of_target(server.clone(), Arc::clone(&cell), TARGET),
            target: TARGET,
            position: Cell::new(None),
            loss: Loss::open(&dir, TARGET).unwrap(),
            senders: RefCell::default(),
            permits: FairPermits::new(1, 1),
            device: None,
            benchmark: Benchmark::new(TARGET, &dir, None),
            links: Links::new(server.clone(), Arc::clone(&cell)),
            meter: RequestMeter::new(&skep_metrics::Registry::new(), TARGET),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap().to_string();
        let client = Identity { kind: NodeKind::Client, ..server.clone() };
        let connecting = skep_env::spawn(async move {
            Connection::connect(&address, &client, TARGET, Channel::NONE).await
        });
        let stream = listener.accept().await.unwrap();
        let peer = authenticate(&stream, &server, 1, |_| Ok(())).await.unwrap();
        let connection = connecting.await.unwrap();
        let socket = stream.into_fd().unwrap();
        let permit = served.permits.acquire(NodeId::new(9), || 1).await;
        let serving = skep_env::spawn(take_requests(Rc::clone(&served), socket, peer));
        let late = skep_env::spawn(async move { write(&connection, key(1), b"late").await });
        while served.permits.waiting() == 0 {
            skep_env::yield_now().await;
        }
        map.version = MapVersion::new(2);
        map.nodes.clear();
        cell.update(map);
        // Another client writes the same range, and the target acknowledges this write.
        let checksums = [crc32c(b"new")];
        let store = &served.store;
        let key = key(1);
        let to = Destination {
            key: &key,
            stripe: STRIPE,
            offset: 0,
            truncate_generation: 0,
            must_exist: false,
        };
        store.write(to, &Buf::copy_of(b"new"), &checksums).await.unwrap();
        drop(permit);
        assert_eq!(late.await.unwrap_err().code(), ErrorCode::Evicted);
        assert_eq!(store.read(&key, 0, 10).await.unwrap().data.bytes()[..], *b"new");
        drop(serving);
    });
}

#[test]
fn emulated_rate_delays_only_replies() {
    run(|dir| async move {
        let rate = skep_service::ByteSize(1_000_000);
        let emulation = EmulationSettings { rate, variability: 0, seed: 0 };
        let thread = start_as(&dir, map(), emulation).await;
        let connection = connect(&thread, Channel::NONE).await;
        let options = options();
        let begin = skep_env::now();
        let passed = || (skep_env::now() - begin).as_secs_f64();
        let send = |number, bytes: usize| {
            let connection = Rc::clone(&connection);
            skep_env::spawn(async move { write(&connection, key(number), &vec![1; bytes]).await })
        };
        let (first, second) = (send(1, 300_000), send(2, 200_000));
        // The target replies to `StatChunk` without the device. The reply shows that the chunk file
        // exists, before the device has completed the write.
        let stat = messages::StatChunk { key: key(2) };
        while !connection.call(&stat, &options).await.unwrap().0.exists {}
        // At this point, both writes must still wait for the device, unless the calls above took
        // longer than the first write.
        if passed() < 0.3 {
            assert!(!first.is_finished() && !second.is_finished());
        }
        // The device serves one request at a time. So the device completes the sync only after both
        // writes.
        connection.call(&messages::SyncChunk { key: key(1) }, &options).await.unwrap();
        assert!(passed() >= 0.5, "{}", passed());
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!(read(&connection, key(1), 250_000).await.unwrap().len(), 250_000);
        assert!(passed() >= 0.75, "{}", passed());
        // A copy counts twice, since the device reads and writes each byte.
        let (from, to) = (key(2), key(3));
        let copy = messages::CopyChunk {
            from,
            from_offset: 0,
            to,
            stripe: STRIPE,
            to_offset: 0,
            truncate_generation: 0,
            must_exist: false,
            length: 100_000,
        };
        connection.call(&copy, &options).await.unwrap();
        assert!(passed() >= 0.95, "{}", passed());
        end(thread);
    });
}
