//! A small cluster in this process, which the client reaches over real sockets. The fake cluster
//! implements the parts of management, metadata and storage that the client's tests need, and
//! injects faults that the tests choose. The fake cluster checks slots and sequences strictly, but
//! does not check permissions.

mod metadata;
mod storage;

use skep_env::{Buf, TcpListener, spawn};
use skep_rpc::server::{Incoming, IncomingStream, authenticate};
use skep_rpc::{Identity, JoinToken, Outbox, Secrets};
use skep_types::codec::Codec;
use skep_types::map::{Capacity, CapacityPool, Consistency, Reachability, ShardRange};
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, Group, GroupId, InodeId, MapVersion, Node, NodeId,
    NodeKind, Result, SessionId, ShardId, Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::management::{
    EmptyReply, GetMap, Heartbeat, HeartbeatReply, Leave, MapUpdate, RegisterClient, RegisterReply,
};
use skep_wire::sharing::{
    AcknowledgeNotifications, Notification, Notifications, WaitNotifications,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub(crate) use metadata::FakeMetadata;
pub(crate) use storage::FakeStorage;

/// Each of the metadata groups 1 and 2 serves half of the shards. Groups 11 to 14 are storage
/// groups.
pub(crate) const METADATA_GROUPS: [u32; 2] = [1, 2];
pub(crate) const STORAGE_GROUPS: [u32; 4] = [11, 12, 13, 14];
pub(crate) const LEASE_MS: u32 = 300;

/// The reply of a handler: a body, or a body and data.
pub(crate) enum Answer {
    Body(Vec<u8>),
    Data(Vec<u8>, Buf),
}

impl Answer {
    pub(crate) fn of(body: &impl Codec) -> Self {
        Self::Body(body.to_bytes())
    }
}

/// A reply that the fake holds, so that other requests overtake it.
#[derive(Default)]
pub(crate) struct HeldReply {
    /// A message type. The fake executes the next request of this type, and then holds its reply
    /// until `is_held` is false.
    pub(crate) of: Option<u16>,
    pub(crate) is_held: bool,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) map: Option<ClusterMap>,
    /// The capacity in the replies of management to heartbeats.
    pub(crate) capacity: Option<Capacity>,
    pub(crate) next_node: u32,
    pub(crate) clients: HashSet<NodeId>,
    pub(crate) metadata: HashMap<TargetId, FakeMetadata>,
    pub(crate) storage: HashMap<TargetId, FakeStorage>,
    /// Number of requests that have arrived, for each message id.
    pub(crate) counts: HashMap<u16, usize>,
    /// Number of replies that the fakes have sent.
    pub(crate) replies: usize,
    /// A message type. The fake executes the next request of this type, but closes the connection
    /// instead of sending the reply. `None` means that the fake sends all replies.
    pub(crate) lose_reply_of: Option<u16>,
    /// A message type, and optionally an earlier state. After the next request of this type,
    /// the first metadata target starts again and does not send the reply. With the earlier state,
    /// the start follows a power loss that has reverted the target to this state.
    pub(crate) start_again_after: Option<(u16, Option<FakeMetadata>)>,
    /// The message type whose requests wait until this field is `None`.
    pub(crate) hold: Option<u16>,
    pub(crate) held_reply: HeldReply,
    /// A message type and an error: the fake refuses all requests of this type with this error. The
    /// fake does not record a refused change in its slot, so it must be the last change of its
    /// session.
    pub(crate) refusal: Option<(u16, ErrorCode)>,
    /// Whether the fake closes the connection of each request without a reply.
    pub(crate) is_down: bool,
    /// Notifications for the next session that waits for notifications.
    pub(crate) notifications: Vec<Notification>,
}

#[derive(Clone)]
pub(crate) struct FakeCluster {
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) token: JoinToken,
}

impl FakeCluster {
    /// Starts the cluster on this thread's event loop.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap().to_string();
        let secret = Secrets::generate();
        let cluster = ClusterId::new([3; 16]);
        let mut state =
            State { map: Some(map(cluster, &address)), next_node: 100, ..State::default() };
        for group in METADATA_GROUPS {
            state.metadata.insert(TargetId::new(group), FakeMetadata::new(group));
        }
        for group in STORAGE_GROUPS {
            state.storage.insert(TargetId::new(group), FakeStorage::default());
        }
        let state = Rc::new(RefCell::new(state));
        let identity = Identity {
            cluster,
            secrets: secret.clone(),
            node: NodeId::new(1),
            kind: NodeKind::Management,
        };
        let token = JoinToken { cluster, secrets: secret, addresses: vec![address] };
        let fake = Self { state, token };
        let serving = fake.clone();
        spawn(async move {
            while let Ok(stream) = listener.accept().await {
                let (fake, identity) = (serving.clone(), identity.clone());
                spawn(async move {
                    let Ok(peer) = authenticate(&stream, &identity, 1, |_| Ok(())).await else {
                        return;
                    };
                    let (requests, outbox) = IncomingStream::new(stream, peer.kind);
                    fake.serve(peer.target, requests, outbox).await;
                })
                .detach();
            }
        })
        .detach();
        fake
    }

    async fn serve(&self, target: TargetId, mut requests: IncomingStream, outbox: Rc<Outbox>) {
        while let Ok(Some(incoming)) = requests.next().await {
            let (fake, outbox) = (self.clone(), Rc::clone(&outbox));
            spawn(async move { fake.answer(target, incoming, &outbox).await }).detach();
        }
    }

    async fn answer(&self, target: TargetId, incoming: Incoming, outbox: &Rc<Outbox>) {
        let id = incoming.header.message;
        *self.state.borrow_mut().counts.entry(id).or_default() += 1;
        while self.state.borrow().hold == Some(id) {
            skep_env::sleep(std::time::Duration::from_millis(1)).await;
        }
        if self.state.borrow().is_down {
            return outbox.close();
        }
        let refusal = self.state.borrow().refusal.filter(|(refused, _)| *refused == id);
        let result = match refusal {
            Some((_, code)) => Err(code.into()),
            None => self.handle(target, &incoming).await,
        };
        if self.state.borrow_mut().held_reply.of.take_if(|held| *held == id).is_some() {
            self.state.borrow_mut().held_reply.is_held = true;
            while self.state.borrow().held_reply.is_held {
                skep_env::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        {
            let mut state = self.state.borrow_mut();
            state.replies += 1;
            if let Some((_, before)) = state.start_again_after.take_if(|(after, _)| *after == id) {
                let metadata = state.metadata.get_mut(&target).unwrap();
                match before {
                    Some(before) => metadata.lose_power(&before),
                    None => metadata.start += 1,
                }
                return outbox.close();
            }
            if state.lose_reply_of == Some(id) {
                state.lose_reply_of = None;
                return outbox.close();
            }
        }
        match result {
            Ok(Answer::Body(body)) => outbox.reply_raw(&incoming.header, &body),
            Ok(Answer::Data(body, data)) => {
                outbox.reply_data(&incoming.header, &Raw(body), vec![data])
            }
            Err(error) => outbox.refuse(&incoming.header, &error),
        }
    }

    async fn handle(&self, target: TargetId, incoming: &Incoming) -> Result<Answer> {
        if target == TargetId::default() {
            return self.manage(incoming).await;
        }
        let has_session = |it: &FakeMetadata| it.has_session(incoming.header.session);
        if self.state.borrow().metadata.get(&target).is_some_and(has_session) {
            match incoming.header.message {
                WaitNotifications::ID => {
                    return self.next_notifications(target, incoming.header.session).await;
                }
                AcknowledgeNotifications::ID => return Ok(Answer::of(&EmptyReply {})),
                _ => {}
            }
        }
        let mut state = self.state.borrow_mut();
        if let Some(metadata) = state.metadata.get_mut(&target) {
            return metadata.handle(&incoming.header, &incoming.body);
        }
        match state.storage.get_mut(&target) {
            Some(storage) => storage.handle(incoming),
            None => Err(Error::new(ErrorCode::StaleMap, "no such target")),
        }
    }

    /// Waits until the test has queued notifications for a session, and returns them. Refuses the
    /// request if the session ends meanwhile.
    async fn next_notifications(&self, target: TargetId, session: SessionId) -> Result<Answer> {
        while self.state.borrow().notifications.is_empty() {
            skep_env::sleep(std::time::Duration::from_millis(2)).await;
            if !self.state.borrow().metadata[&target].has_session(session) {
                return Err(Error::new(ErrorCode::StaleSession, "the session has ended"));
            }
        }
        let notifications = std::mem::take(&mut self.state.borrow_mut().notifications);
        Ok(Answer::of(&Notifications { notifications }))
    }

    async fn manage(&self, incoming: &Incoming) -> Result<Answer> {
        let body = &incoming.body;
        let map = || self.state.borrow().map.clone().unwrap();
        match incoming.header.message {
            RegisterClient::ID => {
                let mut state = self.state.borrow_mut();
                state.next_node += 1;
                let node = NodeId::new(state.next_node);
                state.clients.insert(node);
                let map = state.map.clone().unwrap();
                Ok(Answer::of(&RegisterReply { node, targets: vec![], map }))
            }
            Heartbeat::ID => {
                let node = Heartbeat::from_bytes(body)?.node;
                match self.state.borrow().clients.contains(&node) {
                    true => Ok(Answer::of(&HeartbeatReply {
                        capacity: self.state.borrow().capacity,
                        log_level_change: None,
                        map: None,
                    })),
                    false => Err(Error::new(ErrorCode::Stale, "unknown client")),
                }
            }
            GetMap::ID => {
                let known = GetMap::from_bytes(body)?.known;
                while map().version <= known {
                    skep_env::sleep(std::time::Duration::from_millis(2)).await;
                }
                Ok(Answer::of(&MapUpdate { map: Some(map()) }))
            }
            Leave::ID => {
                self.state.borrow_mut().clients.remove(&Leave::from_bytes(body)?.node);
                Ok(Answer::of(&EmptyReply {}))
            }
            other => panic!("the fake management cannot execute message {other}"),
        }
    }

    /// Returns the number of requests with the message id of `R` that have arrived.
    pub(crate) fn count<R: Request>(&self) -> usize {
        self.state.borrow().counts.get(&R::ID).copied().unwrap_or(0)
    }

    /// Returns the number of writes that storage executed with the durable flag.
    pub(crate) fn durable_writes(&self) -> usize {
        self.state.borrow().storage.values().map(|storage| storage.durable_writes).sum()
    }

    /// Makes a metadata group forget all its sessions.
    pub(crate) fn forget_sessions(&self, group: u32) {
        self.with_metadata(group, FakeMetadata::forget_sessions);
    }

    pub(crate) fn with_metadata<T>(&self, group: u32, f: impl FnOnce(&mut FakeMetadata) -> T) -> T {
        f(self.state.borrow_mut().metadata.get_mut(&TargetId::new(group)).unwrap())
    }

    /// Returns the present state of the first metadata target, for [`Self::lose_power`].
    pub(crate) fn metadata_state(&self) -> FakeMetadata {
        self.with_metadata(1, |it| it.clone())
    }

    /// Starts the first metadata target again after a power loss that has reverted it to the state
    /// `before`.
    pub(crate) fn lose_power(&self, before: &FakeMetadata) {
        self.with_metadata(1, |it| it.lose_power(before));
    }

    /// Returns whether the first metadata target has an open of the file.
    pub(crate) fn is_open(&self, inode: InodeId) -> bool {
        self.with_metadata(1, |it| !it.inodes[&inode].opens.is_empty())
    }

    /// Returns whether the inline component of the file has ended at the first metadata target.
    pub(crate) fn has_moved_inline(&self, inode: InodeId) -> bool {
        self.with_metadata(1, |it| it.inodes[&inode].has_moved_inline)
    }

    /// Queues a notification of an open by another client, for the next session that waits for
    /// notifications.
    pub(crate) fn notify_of_open(&self, inode: InodeId) {
        self.state.borrow_mut().notifications.push(Notification { number: 1, inode });
    }

    pub(crate) fn each_storage(&self, mut f: impl FnMut(&mut FakeStorage)) {
        self.state.borrow_mut().storage.values_mut().for_each(&mut f);
    }
}

/// The body of a reply, which is already encoded.
#[derive(Debug)]
struct Raw(Vec<u8>);

impl Codec for Raw {
    const LAYOUT: &'static str = "bytes";
    fn encode(&self, w: &mut skep_types::codec::Writer) {
        w.raw(&self.0);
    }
    fn decode(_: &mut skep_types::codec::Reader<'_>) -> Result<Self> {
        unreachable!("the fakes only encode this type")
    }
}

fn map(cluster: ClusterId, address: &str) -> ClusterMap {
    let node = |id, kind| Node {
        id: NodeId::new(id),
        kind,
        name: format!("node-{id}"),
        addresses: vec![address.to_owned()],
        domain: String::new(),
        reachability: Reachability::Online,
        version: "0".into(),
    };
    let capacity = Capacity {
        total_bytes: 1 << 40,
        free_bytes: 1 << 39,
        total_inodes: 1000,
        free_inodes: 900,
        file_system: 0,
    };
    let kinds = METADATA_GROUPS
        .iter()
        .map(|id| (*id, TargetKind::Metadata, 2))
        .chain(STORAGE_GROUPS.iter().map(|id| (*id, TargetKind::Storage, 3)));
    let target = |(id, kind, node)| Target {
        id: TargetId::new(id),
        kind,
        node: NodeId::new(node),
        path: String::new(),
        reachability: Reachability::Online,
        consistency: Consistency::Good,
        health: skep_types::map::TargetHealth::default(),
        capacity,
        capacity_pool: CapacityPool::Normal,
    };
    let group = |(id, kind, _)| Group::of_one(GroupId::new(id), kind, TargetId::new(id));
    let range = |first, last, group| ShardRange {
        first: ShardId::new(first),
        last: ShardId::new(last),
        group: GroupId::new(group),
    };
    let mut map = ClusterMap {
        version: MapVersion::new(1),
        formatted: true,
        nodes: vec![node(2, NodeKind::Metadata), node(3, NodeKind::Storage)],
        targets: kinds.clone().map(target).collect(),
        groups: kinds.map(group).collect(),
        shards: vec![range(0, 0x7FFF, 1), range(0x8000, 0xFFFF, 2)],
        ..ClusterMap::empty(cluster)
    };
    map.policy.heartbeat_ms = 20;
    map
}
