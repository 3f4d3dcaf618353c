//! Tests of management over real sockets. The tests act like real services and clients.

mod commands;
mod conversion;
mod nodes;
mod requests;
mod restored_copies;
mod take_over;

use super::*;
use skep_cluster::Command;
use skep_rpc::{
    Change, ClientEvents, ClientMembership, JoinLimits, JoinToken, Management, Membership, Secrets,
};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{Capacity, Policy, Reachability};
use skep_types::registration::ServerRegistration;
use skep_types::registration::TargetClaim;
use skep_types::{Epoch, GroupRecord, Lsn, MapVersion, NodeId, TargetKind};
use skep_wire::management::{AskTakeOver, ChangeGroup, CreateGroup, Evict, SetClientLogLevel};
use skep_wire::management::{Format, GetMap, RegisterClient, RegisterServer, SetPolicy};
use skep_wire::node::LogLevel;
use skep_wire::senders::Sender;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// Creates the directory of a new cluster. Returns its settings and its join token.
fn cluster() -> (tempfile::TempDir, ManagementSettings, JoinToken) {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = ManagementSettings::default();
    settings.node.directory = directory.path().join("management");
    settings.node.listen = "127.0.0.1:0".into();
    let given = settings.clone();
    let token =
        skep_env::block_on(async move { initialise(&given, None).await.unwrap().0 }).unwrap();
    (directory, settings, token)
}

#[test]
fn new_cluster_has_id_and_secret_of_a_given_token() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = ManagementSettings::default();
    settings.node.directory = directory.path().join("management");
    settings.node.listen = "127.0.0.1:0".into();
    let text = format!("skep1-{}-{}@other:1", "ab".repeat(16), "cd".repeat(32));
    let given: JoinToken = text.parse().unwrap();
    let token = given.clone();
    let path = settings.node.directory.clone();
    let made =
        skep_env::block_on(async move { initialise(&settings, Some(token)).await.unwrap().0 })
            .unwrap();
    assert_eq!((made.cluster, &made.secrets), (given.cluster, &given.secrets));
    assert!(made.addresses[0].starts_with("127.0.0.1:"), "{:?}", made.addresses);
    let kept = skep_service::directory::read_token(&path.join("join-token")).unwrap();
    assert_eq!(kept, made);
}

fn server(kind: NodeKind, uuid: u128) -> RegisterServer {
    let claim = TargetClaim {
        target: TargetId::default(),
        uuid: uuid + 1,
        kind: if kind == NodeKind::Storage { TargetKind::Storage } else { TargetKind::Metadata },
        path: "/t".into(),
    };
    let server = ServerRegistration {
        node: skep_types::NodeId::default(),
        uuid,
        kind,
        name: String::new(),
        addresses: vec!["127.0.0.1:1".into()],
        domain: None,
        version: "test".into(),
        targets: vec![claim],
    };
    let capacity = Capacity { total_bytes: 100, free_bytes: 50, ..Capacity::default() };
    let (capacities, groups) = (vec![capacity], Vec::new());
    RegisterServer { server, capacities, groups, host: "stor1".into() }
}

/// Registers two metadata servers with one target each, and returns the targets. Both targets are
/// in no group, since `metadata-copies` is 2.
async fn two_metadata_targets(token: &JoinToken, admin: &Management) -> [TargetId; 2] {
    let policy = Policy { metadata_copies: 2, ..Policy::default() };
    admin.call(&SetPolicy { policy }, PATIENCE).await.unwrap();
    let mut targets = Vec::new();
    for uuid in [10, 20] {
        let joined = Membership::join(token, server(NodeKind::Metadata, uuid), PATIENCE).await;
        targets.extend(joined.unwrap().1.targets);
    }
    targets.try_into().unwrap()
}

async fn join_client(token: &JoinToken) -> Arc<ClientMembership> {
    let request = RegisterClient {
        host: "here".into(),
        mount_point: "/mnt".into(),
        version: "test".into(),
        pid: 1,
    };
    let limits = JoinLimits { patience: PATIENCE, needs_format: false };
    ClientMembership::join(token.clone(), request, limits).await.unwrap()
}

/// Records a client's events, and registers the client again after management has removed the
/// client.
struct RecordedEvents {
    client: Arc<ClientMembership>,
    removed: RefCell<Vec<NodeId>>,
    capacity: Cell<Option<Capacity>>,
    log_level: RefCell<Option<String>>,
    settings_changes: Cell<usize>,
}

impl RecordedEvents {
    fn new(client: &Arc<ClientMembership>) -> Rc<Self> {
        Rc::new(Self {
            client: Arc::clone(client),
            removed: RefCell::default(),
            capacity: Cell::default(),
            log_level: RefCell::default(),
            settings_changes: Cell::default(),
        })
    }
}

impl ClientEvents for RecordedEvents {
    fn on_capacity(&self, capacity: Option<Capacity>) {
        self.capacity.set(capacity.or(self.capacity.get()));
    }

    fn on_settings_changed(&self) {
        self.settings_changes.set(self.settings_changes.get() + 1);
    }

    fn on_removed(&self, removed: NodeId) {
        self.removed.borrow_mut().push(removed);
        if self.client.begin_rejoin(removed) {
            let client = Arc::clone(&self.client);
            skep_env::spawn(async move { client.register_again().await }).detach();
        }
    }

    fn change_log_level(&self, level: Option<&str>) -> skep_types::Result<LogLevel> {
        *self.log_level.borrow_mut() = level.map(Into::into);
        Ok(LogLevel { current: "debug".into(), configured: "info".into() })
    }
}

/// Waits until `holds` returns `true`, and fails after a time limit.
async fn until(condition: &str, holds: impl Fn() -> bool) {
    let deadline = skep_env::now() + Duration::from_secs(20);
    while !holds() {
        assert!(skep_env::now() < deadline, "{condition}");
        skep_env::sleep(Duration::from_millis(5)).await;
    }
}

/// Management in a separate thread, which ends when this value is dropped.
struct InThread {
    end: skep_env::MailboxSender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl InThread {
    fn start(settings: &ManagementSettings) -> Self {
        let settings = settings.clone();
        let (end, mailbox) = skep_env::Mailbox::new(1).unwrap();
        let (started, has_started) = std::sync::mpsc::channel();
        let body = move || {
            block_on(async move {
                let running = RunningManagement::start(&settings).await.unwrap();
                started.send(()).unwrap();
                mailbox.receive().await.unwrap();
                drop(running);
            });
        };
        let thread = skep_env::spawn_thread("management".into(), None, body).unwrap();
        has_started.recv().unwrap();
        Self { end, thread: Some(thread) }
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        let _ = self.end.send(());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn block_on(test: impl Future<Output = ()> + 'static) {
    skep_env::block_on(test).unwrap();
}

#[test]
fn map_lists_all_nodes_and_targets_after_a_restart() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = InThread::start(&settings);
        let (storage, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        assert_eq!(registered.targets.len(), 1);
        let map = registered.map;
        assert_eq!(map.node(registered.node).unwrap().reachability, Reachability::Online);
        assert_eq!(map.targets[0].capacity.free_bytes, 50);
        let cell = storage.map_cell();
        let _keeping = skep_env::spawn(Rc::clone(&storage).keep(Vec::new, |_| ()));
        let client = join_client(&token).await;
        let id = client.node();
        until("the client is pushed to the server", || cell.load().node(id).is_some()).await;
        client.leave().await;
        until("its end is pushed too", || cell.load().node(id).is_none()).await;
        let before = cell.load();
        drop(running);
        // The sockets of an event loop are closed when the process ends, not when the thread ends.
        // So the second management must listen on another address.
        std::fs::remove_file(settings.node.directory.join("address")).unwrap();
        let _running = InThread::start(&settings);
        let moved =
            skep_service::directory::read_token(&settings.node.directory.join("join-token"));
        let (again, registered) =
            Membership::join(&moved.unwrap(), server(NodeKind::Storage, 10), PATIENCE)
                .await
                .unwrap();
        assert_eq!(again.node(), storage.node());
        assert!(registered.map.version > before.version);
        assert_eq!(registered.map.targets[0].id, before.targets[0].id);
    });
}

#[test]
fn server_starts_with_a_cached_map_and_registers_later() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let (_, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        drop(running);
        let mut request = server(NodeKind::Storage, 10);
        request.server.node = registered.node;
        request.server.targets[0].target = registered.targets[0];
        // Simulate a management directory that was restored from an older backup: the cached map is
        // newer than management's map.
        let mut kept = registered.map;
        kept.version = MapVersion::new(1 << 60);
        let (member, nothing) =
            Membership::begin(&token, request.clone(), Some(kept.clone())).await.unwrap();
        assert!(nothing.is_none() && member.node() == registered.node);
        let cell = member.map_cell();
        assert_eq!(*cell.load(), kept);
        let joined = Rc::new(std::cell::Cell::new(false));
        let seen = Rc::clone(&joined);
        let _keeping = skep_env::spawn(Rc::clone(&member).keep(Vec::new, move |change| {
            seen.set(seen.get() || matches!(change, Change::Joined(_)));
        }));
        let running = RunningManagement::start(&settings).await.unwrap();
        until("it registers", || joined.get()).await;
        let newest = cell.load();
        assert!(newest.version < kept.version);
        assert_eq!(newest.node(registered.node).unwrap().reachability, Reachability::Online);
        // If management replies, the service does not use its cached map. If management refuses the
        // service, the service also does not use the cached map.
        let (_, again) =
            Membership::begin(&token, request.clone(), Some(kept.clone())).await.unwrap();
        assert_eq!(again.unwrap().node, registered.node);
        request.server.uuid += 1;
        let refused = Membership::begin(&token, request, Some(kept)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotPermitted);
        drop(running);
    });
}

#[test]
fn silent_client_is_removed_and_rejoins_with_a_new_id() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Client);
        let policy = Policy { lease_ms: 200, heartbeat_ms: 20, ..Policy::default() };
        admin.call(&SetPolicy { policy }, PATIENCE).await.unwrap();
        let client = join_client(&token).await;
        let first = client.node();
        let deadline = skep_env::now() + Duration::from_secs(20);
        loop {
            let request = GetMap { known: MapVersion::new(0) };
            let map = admin.call(&request, PATIENCE).await.unwrap().map.unwrap();
            if map.node(first).is_none() {
                break;
            }
            assert!(skep_env::now() < deadline, "the client is forgotten");
        }
        let events = RecordedEvents::new(&client);
        let _keeping = skep_env::spawn(Arc::clone(&client).keep(Rc::clone(&events)));
        until("it registers again", || client.node() != first).await;
        assert_eq!(events.removed.borrow().first(), Some(&first));
        assert!(!client.begin_rejoin(first), "the new registration is done");
    });
}

/// Regression test: management removed clients at the request of a metadata target that had lost
/// contact with them, although management received the clients' heartbeats.
#[test]
fn only_an_administrator_evicts_a_client_that_sends_heartbeats() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Client);
        let client = join_client(&token).await;
        let first = client.node();
        let has_client = async || {
            let request = GetMap { known: MapVersion::new(0) };
            let map = admin.call(&request, PATIENCE).await.unwrap().map.unwrap();
            map.node(first).is_some()
        };
        for unless_heard in [true, false] {
            let request = Evict { client: first, unless_heard };
            admin.call(&request, PATIENCE).await.unwrap();
            assert_eq!(has_client().await, unless_heard);
        }
        // If a client has sent no heartbeat for the duration of a lease, management removes the
        // client even if `unless_heard` is set.
        let policy = Policy { lease_ms: 200, heartbeat_ms: 20, ..Policy::default() };
        admin.call(&SetPolicy { policy }, PATIENCE).await.unwrap();
        let silent = join_client(&token).await.node();
        let deadline = skep_env::now() + Duration::from_secs(20);
        loop {
            let request = Evict { client: silent, unless_heard: true };
            admin.call(&request, PATIENCE).await.unwrap();
            let request = GetMap { known: MapVersion::new(0) };
            let map = admin.call(&request, PATIENCE).await.unwrap().map.unwrap();
            if map.node(silent).is_none() {
                break;
            }
            assert!(skep_env::now() < deadline, "the silent client is removed");
        }
    });
}

/// A deposed metadata target must not cause the removal of clients.
#[test]
fn eviction_by_a_deposed_metadata_target_is_refused() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let (_, registered) =
            Membership::join(&token, server(NodeKind::Metadata, 10), PATIENCE).await.unwrap();
        let target = Management::new(&token, NodeKind::Metadata);
        let client = join_client(&token).await;
        let evict = async |epoch| {
            let group = registered.map.groups[0].id;
            let sender = Sender { group, epoch: Epoch::new(epoch) };
            let request = Evict { client: client.node(), unless_heard: false };
            target.call_once_as(sender, &request, Duration::from_secs(5)).await
        };
        assert_eq!(evict(0).await.unwrap_err().code(), ErrorCode::Deposed);
        let map = target.call(&GetMap { known: MapVersion::new(0) }, PATIENCE).await.unwrap().map;
        assert!(map.unwrap().node(client.node()).is_some());
        evict(1).await.unwrap();
    });
}

#[test]
fn format_assigns_shards_only_if_a_metadata_target_exists() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Client);
        let early = admin.call_once(&Format {}, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(early.code(), ErrorCode::NotReady);
        Membership::join(&token, server(NodeKind::Metadata, 10), PATIENCE).await.unwrap();
        let map = admin.call(&Format {}, PATIENCE).await.unwrap().map.unwrap();
        assert!(map.formatted);
        let again = admin.call(&Format {}, PATIENCE).await.unwrap_err();
        assert_eq!(again.code(), ErrorCode::Exists);
    });
}

#[test]
fn wrong_secrets_and_other_clusters_are_refused_immediately() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let guess = JoinToken { secrets: Secrets::generate(), ..token.clone() };
        let other = JoinToken { cluster: skep_types::ClusterId::new([1; 16]), ..token };
        for wrong in [guess, other] {
            let error = Membership::join(&wrong, server(NodeKind::Storage, 10), PATIENCE).await;
            assert_eq!(error.unwrap_err().code(), ErrorCode::AuthenticationFailed);
        }
    });
}

#[test]
fn blank_directories_and_directories_in_use_are_refused() {
    let (directory, settings, _) = cluster();
    block_on(async move {
        let mut blank = settings.clone();
        blank.node.directory = directory.path().join("blank");
        let error = RunningManagement::start(&blank).await.map(|_| ()).unwrap_err();
        assert!(error.context().contains("--init"), "{error}");
        let running = RunningManagement::start(&settings).await.unwrap();
        let error = RunningManagement::start(&settings).await.map(|_| ()).unwrap_err();
        assert!(error.context().contains("another process uses"), "{error}");
        let error = initialise(&settings, None).await.unwrap_err();
        assert!(error.context().contains("already"), "{error}");
        // If the address is in use, the start leaves no half-initialised directory.
        blank.node.listen = running.listens_on.clone();
        let error = initialise(&blank, None).await.unwrap_err();
        assert!(error.context().contains("another program listens"), "{error}");
        blank.node.listen = "127.0.0.1:0".into();
        initialise(&blank, None).await.unwrap();
    });
}

#[test]
fn client_receives_new_capacity_new_settings_and_log_level() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let (_server, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        let client = join_client(&token).await;
        let events = RecordedEvents::new(&client);
        let _keeping = skep_env::spawn(Arc::clone(&client).keep(Rc::clone(&events)));
        let admin = Management::new(&token, NodeKind::Client);
        let policy = Policy { heartbeat_ms: 20, ..registered.map.policy };
        admin.call(&SetPolicy { policy }, PATIENCE).await.unwrap();
        until("the settings arrive", || events.settings_changes.get() > 0).await;
        let order = SetClientLogLevel { client: client.node(), level: Some("debug".into()) };
        let level = admin.call_once(&order, Duration::from_secs(10)).await.unwrap();
        assert_eq!(level.current, "debug");
        assert_eq!(events.log_level.borrow().as_deref(), Some("debug"));
        until("the capacity arrives", || events.capacity.get().is_some()).await;
        assert_eq!(events.capacity.get().unwrap().free_bytes, 50);
        client.leave().await;
        assert!(client.is_leaving() && events.removed.borrow().is_empty());
    });
}

#[test]
fn client_join_fails_after_its_time_limit() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let request = RegisterClient {
            host: "here".into(),
            mount_point: "/mnt".into(),
            version: "test".into(),
            pid: 1,
        };
        let patience = Some(Duration::from_millis(100));
        let limits = JoinLimits { patience, needs_format: true };
        let join = |token: JoinToken| ClientMembership::join(token, request.clone(), limits);
        let nowhere = JoinToken { addresses: Vec::new(), ..token.clone() };
        assert_eq!(join(nowhere).await.unwrap_err().code(), ErrorCode::Configuration);
        let lost = join(token.clone()).await.unwrap_err();
        assert_eq!(lost.code(), ErrorCode::Disconnected);
        assert!(lost.context().ends_with("gave up after 0.1 s"), "{lost}");
        let _running = RunningManagement::start(&settings).await.unwrap();
        let blank = join(token).await.unwrap_err();
        assert_eq!(blank.code(), ErrorCode::NotReady);
        assert!(blank.context().contains("skep cluster format"), "{blank}");
    });
}
