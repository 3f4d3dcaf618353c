//! The world of a run: the simulated time, the queue of future events, and the processes. Only
//! events of the queue advance the time or draw random numbers.

use crate::backup::{MemberReply, Sender};
use crate::client::ClientProcess;
use crate::knobs::Knobs;
use crate::network::{Network, Node, Purpose, closes, is_final, timed_out};
use crate::random::Random;
use crate::storage::StorageProcess;
use crate::target::TargetProcess;
use crate::trace::Trace;
use crate::truncations::LoggedTruncations;
use crate::witness::Witness;
use skep_metadata::shipping::MemberRequest;
use skep_types::map::{
    Capacity, CapacityPool, Consistency, Policy, Reachability, ShardRange, UserPatterns,
};
use skep_types::{
    ClusterId, ClusterMap, Epoch, Group, GroupId, GroupMember, InodeId, Lsn, MapVersion,
    MemberState, NodeId, NodeKind, Result, ShardId, Target, TargetId, TargetKind, Timestamp,
};
use skep_wire::frame::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// An event of the simulation.
#[derive(Debug)]
pub(crate) enum SimEvent {
    Deliver {
        connection: u64,
        header: Header,
        body: Vec<u8>,
        was_late: bool,
    },
    Return {
        connection: u64,
        tag: u64,
        result: Result<Vec<u8>>,
    },
    Send {
        tag: u64,
    },
    GiveUp {
        tag: u64,
    },
    Break {
        connection: u64,
    },
    Run {
        target: usize,
        life: u64,
    },
    Tick {
        target: usize,
        ticks: u64,
    },
    Synced {
        target: usize,
        life: u64,
        lsn: Lsn,
        point: crate::disk::SyncPoint,
    },
    /// A request of a primary arrives at the other member of its group.
    ToMember {
        target: usize,
        from: Sender,
        request: MemberRequest,
    },
    /// A reply arrives at a primary.
    FromMember {
        target: usize,
        reply: MemberReply,
    },
    StartBackup {
        target: usize,
    },
    RunBackup {
        target: usize,
        life: u64,
    },
    TickBackup {
        target: usize,
        life: u64,
    },
    /// A backup receives the newest map.
    MapOfBackup {
        target: usize,
    },
    BackupCheckpointed {
        target: usize,
        life: u64,
        lsn: Lsn,
    },
    BackupSynced {
        target: usize,
        life: u64,
        lsn: Lsn,
        point: crate::disk::SyncPoint,
    },
    Checkpointed {
        target: usize,
        life: u64,
        lsn: Lsn,
    },
    Restart {
        node: Node,
    },
    FreeSpace {
        target: usize,
    },
    Fault,
    Step {
        client: usize,
        life: u64,
        task: usize,
    },
    KeepAlive {
        client: usize,
        life: u64,
    },
    Clean {
        storage: usize,
    },
    /// A signal interrupts a client's task that waits for a lock.
    Interrupt {
        client: usize,
        life: u64,
        task: usize,
        wait: u64,
    },
    /// Management receives the request to evict a client.
    Evict {
        client: NodeId,
        unless_heard: bool,
    },
    /// A server receives the newest map.
    Map {
        node: Node,
    },
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Clients run operations, and faults happen.
    Busy,
    /// No more faults happen, and the operations in flight finish.
    Quiet,
}

/// The state of a run: the time, the queue and the processes.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) knobs: Knobs,
    pub(crate) random: Random,
    pub(crate) now: Duration,
    queue: BTreeMap<(Duration, u64), SimEvent>,
    next_event: u64,
    /// Number of the newest process of a backup, or of the newest request to one.
    last_life: u64,
    pub(crate) map: Arc<ClusterMap>,
    pub(crate) network: Network,
    pub(crate) targets: Vec<TargetProcess>,
    pub(crate) storages: Vec<StorageProcess>,
    pub(crate) clients: Vec<ClientProcess>,
    pub(crate) witness: Witness,
    pub(crate) trace: Trace,
    pub(crate) phase: Phase,
    pub(crate) steps_left: u64,
    /// Directories and files in replies, with the newest last.
    pub(crate) directories: Vec<InodeId>,
    pub(crate) files: Vec<InodeId>,
    /// Files that a client may have written after it lost its session, or whose chunk files may
    /// have been extended by an abandoned truncation.
    pub(crate) unsure: BTreeSet<InodeId>,
    pub(crate) violation: Option<String>,
    pub(crate) faults: u64,
    pub(crate) truncations: LoggedTruncations,
}

/// Unix time in seconds at which a run begins.
const START_SECONDS: i64 = 1_700_000_000;

impl World {
    pub(crate) fn new(knobs: Knobs, random: Random, is_traced: bool) -> Self {
        let map = Arc::new(map(&knobs));
        let mut network = Network::default();
        network.is_slow = knobs.faults.slowness;
        let mut world = Self {
            random,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            next_event: 0,
            last_life: 0,
            network,
            targets: (0..knobs.targets)
                .map(|it| TargetProcess::new(it, &knobs, map.cluster))
                .collect(),
            storages: (0..knobs.storages).map(|_| StorageProcess::new(&map)).collect(),
            clients: (0..knobs.clients).map(|_| ClientProcess::new(knobs.tasks)).collect(),
            witness: Witness::new(Arc::clone(&map)),
            map,
            trace: Trace::new(is_traced),
            phase: Phase::Busy,
            steps_left: knobs.steps,
            directories: vec![InodeId::ROOT],
            files: Vec::new(),
            unsure: BTreeSet::new(),
            violation: None,
            faults: 0,
            truncations: LoggedTruncations::new(),
            knobs,
        };
        for target in 0..world.targets.len() {
            world.start_target(target);
            world.start_backup(target);
        }
        for client in 0..world.clients.len() {
            world.start_client(client);
        }
        for storage in 0..world.storages.len() {
            world.after(Duration::from_millis(700), SimEvent::Clean { storage });
        }
        world.schedule_fault();
        world
    }

    /// Records a violation. The first one ends the run.
    pub(crate) fn fail(&mut self, what: String) {
        self.trace.note(self.now, || format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn check(&mut self, result: std::result::Result<(), String>) {
        if let Err(what) = result {
            self.fail(what);
        }
    }

    pub(crate) fn after(&mut self, pause: Duration, event: SimEvent) {
        self.at(self.now + pause, event);
    }

    pub(crate) fn at(&mut self, time: Duration, event: SimEvent) {
        self.next_event += 1;
        self.queue.insert((time, self.next_event), event);
    }

    pub(crate) fn schedule_fault(&mut self) {
        // If faults happen faster than a cluster recovers, it makes no progress. So faults become
        // rarer during a long run.
        let calm = self.knobs.mean_fault_pause.as_micros() as u64 * (1 + self.now.as_secs() / 20);
        let pause = self.random.micros(calm / 4, calm * 2);
        self.after(pause, SimEvent::Fault);
    }

    /// Returns the simulated time of day.
    pub(crate) fn wall(&self) -> Timestamp {
        let start = i128::from(START_SECONDS) * 1_000_000_000;
        Timestamp::from_nanoseconds(start + self.now.as_nanos() as i128)
    }

    /// Processes the next event. Returns `false` if the queue is empty.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = time;
        self.trace.event(time, &event);
        match event {
            SimEvent::Deliver { connection, header, body, was_late } => {
                self.deliver(connection, header, body, was_late);
            }
            SimEvent::Return { connection, tag, result } => {
                self.receive_reply(connection, tag, result)
            }
            SimEvent::Send { tag } => self.send(tag),
            SimEvent::GiveUp { tag } => self.finish_call(tag, Err(timed_out())),
            SimEvent::Break { connection } => {
                let is_late = self.random.percent(50);
                self.break_connection(connection, is_late);
            }
            SimEvent::Run { target, life } => self.run_target(target, life),
            SimEvent::Tick { target, ticks } => self.tick_target(target, ticks),
            SimEvent::Synced { target, life, lsn, point } => {
                self.synced(target, life, lsn, &point);
            }
            SimEvent::ToMember { target, from, request } => {
                self.receive_from_primary(target, from, &request);
            }
            SimEvent::FromMember { target, reply } => self.receive_from_member(target, reply),
            SimEvent::StartBackup { target } => self.start_backup(target),
            SimEvent::RunBackup { target, life } => self.run_backup(target, life),
            SimEvent::TickBackup { target, life } => self.tick_backup(target, life),
            SimEvent::MapOfBackup { target } => self.deliver_map_to_backup(target),
            SimEvent::BackupCheckpointed { target, life, lsn } => {
                self.backup_checkpointed(target, life, lsn);
            }
            SimEvent::BackupSynced { target, life, lsn, point } => {
                self.backup_synced(target, life, lsn, &point);
            }
            SimEvent::Checkpointed { target, life, lsn } => self.checkpointed(target, life, lsn),
            SimEvent::Restart { node: Node::Target(target) } => self.start_target(target),
            SimEvent::Restart { node: Node::Storage(storage) } => {
                self.storages[storage].is_running = true;
            }
            SimEvent::Restart { node: Node::Client(client) } => self.start_client(client),
            SimEvent::FreeSpace { target } => self.set_full(target, false),
            SimEvent::Fault => self.fault(),
            SimEvent::Step { client, life, task } => self.next_operation(client, life, task),
            SimEvent::KeepAlive { client, life } => self.keep_alive(client, life),
            SimEvent::Clean { storage } => self.find_orphans(storage),
            SimEvent::Interrupt { client, life, task, wait } => {
                self.interrupt(client, life, task, wait);
            }
            SimEvent::Evict { client, unless_heard } => {
                let is_heard = self.clients.iter().any(|it| it.is_running && it.node == client);
                if !(unless_heard && is_heard) {
                    self.remove_client(client);
                }
            }
            SimEvent::Map { node } => self.receive_map(node),
        }
        true
    }

    // ---- the cluster map

    /// Registers a client with a new node id.
    pub(crate) fn register_client(&mut self) -> NodeId {
        let id = NodeId::new(self.map.newest_node.raw() + 1);
        let mut map = ClusterMap::clone(&self.map);
        map.newest_node = id;
        map.nodes.push(node(id.raw(), NodeKind::Client));
        self.publish(map);
        id
    }

    fn remove_client(&mut self, client: NodeId) {
        let mut map = ClusterMap::clone(&self.map);
        map.nodes.retain(|node| node.id != client);
        if map != *self.map {
            self.trace.note(self.now, || format!("{client} is removed"));
            self.publish(map);
        }
    }

    /// Publishes a new cluster map. Each server receives it after its own delay.
    pub(crate) fn publish(&mut self, mut map: ClusterMap) {
        map.version = MapVersion::new(map.version.raw() + 1);
        self.map = Arc::new(map);
        let targets = (0..self.targets.len()).map(Node::Target);
        let storages = (0..self.storages.len()).map(Node::Storage);
        for node in targets.chain(storages).collect::<Vec<_>>() {
            let pause = if self.random.percent(90) {
                self.random.micros(50, 5_000)
            } else {
                self.random.micros(50, 1_000_000)
            };
            self.after(pause, SimEvent::Map { node });
        }
        for target in (0..self.targets.len()).filter(|_| self.knobs.has_backups).collect::<Vec<_>>()
        {
            let most = if self.random.percent(90) { 5_000 } else { 1_000_000 };
            let pause = self.random.micros(50, most);
            self.after(pause, SimEvent::MapOfBackup { target });
        }
    }

    /// Returns a number that no process of a backup and no request to one has had before.
    pub(crate) fn new_life(&mut self) -> u64 {
        self.last_life += 1;
        self.last_life
    }

    fn receive_map(&mut self, node: Node) {
        let map = Arc::clone(&self.map);
        match node {
            Node::Target(target) => self.deliver_map(target, map),
            Node::Storage(storage) => self.storages[storage].map = map,
            Node::Client(_) => {}
        }
    }

    // ---- calls

    /// Returns the process that serves a group, the number of its life, and whether it runs.
    fn server(&self, group: GroupId) -> (Node, u64, bool) {
        let index = group.raw() as usize - 1;
        match index.checked_sub(self.targets.len()) {
            None => {
                let target = &self.targets[index];
                (Node::Target(index), target.life, target.running.is_some())
            }
            Some(storage) => {
                let process = &self.storages[storage];
                (Node::Storage(storage), process.life, process.is_running)
            }
        }
    }

    fn life(&self, node: Node) -> u64 {
        match node {
            Node::Target(index) => self.targets[index].life,
            Node::Storage(index) => self.storages[index].life,
            Node::Client(index) => self.clients[index].life,
        }
    }

    /// Begins a call. Returns its tag.
    pub(crate) fn call(
        &mut self,
        caller: Node,
        group: GroupId,
        header: Header,
        body: Vec<u8>,
        purpose: Purpose,
    ) -> u64 {
        let life = self.life(caller);
        // The groups have the numbers of their first targets.
        let sender = match caller {
            Node::Target(index) => index + 1,
            Node::Storage(index) => self.targets.len() + index + 1,
            Node::Client(_) => 0,
        };
        let header = Header { sender_group: GroupId::new(sender as u32), ..header };
        let tag = self.network.new_call((caller, life), group, header, body, purpose);
        self.send(tag);
        tag
    }

    fn send(&mut self, tag: u64) {
        let Some(call) = self.network.calls.get(&tag).cloned() else { return };
        if call.connection.is_some() {
            return;
        }
        let (callee, life, is_running) = self.server(call.group);
        let is_partitioned =
            self.network.partitioned_until(call.caller.0, callee, self.now).is_some();
        if !is_running || is_partitioned {
            return self.send_again(tag);
        }
        let channel = match call.caller.0 {
            Node::Target(index) => self.targets[index].target,
            Node::Storage(_) | Node::Client(_) => TargetId::default(),
        };
        let connection = self.network.connect(call.caller, (callee, life), channel);
        if let Some(call) = self.network.calls.get_mut(&tag) {
            call.connection = Some(connection);
        }
        let arrival = self.network.arrival(&mut self.random, connection, false, self.now);
        let (header, body) = (self.addressed(&call.header, call.caller.0), call.body);
        self.at(arrival, SimEvent::Deliver { connection, header, body, was_late: false });
    }

    /// Returns the header with the epochs, and the lowest map version, that the caller has now.
    fn addressed(&self, header: &Header, caller: Node) -> Header {
        let epoch_of = |group| self.map.group(group).map(|it| it.epoch).unwrap_or_default();
        let sender_epoch = match caller {
            Node::Target(index) => self.targets[index].epoch,
            Node::Storage(_) => epoch_of(header.sender_group),
            Node::Client(_) => Epoch::default(),
        };
        // The replies of metadata targets have named these versions to the clients.
        let fences = self.targets.iter().map(|it| it.fence);
        let is_for_storage = header.group.raw() as usize > self.targets.len();
        let lowest_map = match caller {
            Node::Client(_) if is_for_storage => fences.max().unwrap_or_default(),
            _ => header.lowest_map,
        };
        let epoch = epoch_of(header.group);
        Header { epoch, sender_epoch, lowest_map, ..header.clone() }
    }

    fn send_again(&mut self, tag: u64) {
        let pause = self.network.next_pause(tag, &mut self.random);
        self.after(pause, SimEvent::Send { tag });
    }

    fn deliver(&mut self, number: u64, header: Header, body: Vec<u8>, was_late: bool) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let ((caller, caller_life), callee) = (connection.caller, connection.callee);
        if let Some(until) = self.network.partitioned_until(caller, callee.0, self.now) {
            let pause = self.random.micros(1, 500);
            let deliver = SimEvent::Deliver { connection: number, header, body, was_late };
            return self.at(until + pause, deliver);
        }
        if !connection.is_open && !was_late {
            if connection.is_late {
                let pause = self.random.micros(0, 2_500_000);
                let was_late = true;
                let deliver = SimEvent::Deliver { connection: number, header, body, was_late };
                self.after(pause, deliver);
            }
            return;
        }
        if self.life(callee.0) != callee.1 {
            return;
        }
        if let Some(connection) = self.network.connections.get_mut(&number) {
            connection.has_arrived |= !was_late;
        }
        match callee.0 {
            Node::Target(target) => self.deliver_request(target, number, header, body),
            Node::Storage(storage) if self.storages[storage].is_running => {
                // The client has written again on a newer connection, and that connection has
                // closed this one.
                if was_late && header.message == WRITE && self.life(caller) == caller_life {
                    return;
                }
                if was_late && self.network.is_superseded(number) {
                    return;
                }
                self.check_truncation(caller, storage, &header, &body);
                let result = self.storages[storage].serve(&header, &body, self.knobs.plant);
                if result.is_ok() {
                    self.check_sender(number, storage, &header);
                    self.check_fence(caller, storage, &header);
                }
                self.reply(number, header.tag, result);
            }
            _ => {}
        }
    }

    /// Checks that a storage target serves no request of a primary that its own map names as
    /// deposed.
    fn check_sender(&mut self, connection: u64, storage: usize, header: &Header) {
        let Some(connection) = self.network.connections.get(&connection) else { return };
        let group = self.storages[storage].map.group(header.sender_group);
        if let (Node::Target(_), Some(group)) = (connection.caller.0, group)
            && group.primary != connection.channel
            && header.sender_epoch <= group.epoch
        {
            let what = format!(
                "storage {storage} carried out a request of target {}, deposed by {group:?}",
                connection.channel
            );
            self.fail(what);
        }
    }

    /// Checks fencing. When a metadata target asks a storage target for the size of a chunk file,
    /// some sessions have ended at the metadata target. From then on, the storage target must not
    /// write in these sessions.
    fn check_fence(&mut self, caller: Node, storage: usize, header: &Header) {
        if let (Node::Target(target), STAT) = (caller, header.message) {
            let ended = self.witness.ended_at(target);
            self.storages[storage].fenced.extend(ended);
        } else if header.message == WRITE && self.storages[storage].fenced.contains(&header.session)
        {
            let session = header.session;
            self.fail(format!("storage {storage} wrote for session {session}, long ended"));
        }
    }

    /// Sends a reply.
    pub(crate) fn reply(&mut self, connection: u64, tag: u64, result: Result<Vec<u8>>) {
        let arrival = self.network.arrival(&mut self.random, connection, true, self.now);
        self.at(arrival, SimEvent::Return { connection, tag, result });
    }

    /// Handles a reply that has arrived.
    fn receive_reply(&mut self, number: u64, tag: u64, result: Result<Vec<u8>>) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let (caller, callee) = (connection.caller, connection.callee.0);
        let awaited = self.network.calls.get(&tag).and_then(|call| call.connection);
        if !connection.is_open || self.life(caller.0) != caller.1 || awaited != Some(number) {
            return;
        }
        if let Some(until) = self.network.partitioned_until(caller.0, callee, self.now) {
            let pause = self.random.micros(1, 500);
            return self.at(until + pause, SimEvent::Return { connection: number, tag, result });
        }
        if is_final(&result) {
            return self.finish_call(tag, result);
        }
        if closes(&result) {
            let was_lost = self.network.calls.get(&tag).is_some_and(|call| call.is_reply_lost);
            self.break_connection(number, false);
            // This call has its reply; only the other calls on the connection lost theirs.
            if let Some(call) = self.network.calls.get_mut(&tag) {
                call.is_reply_lost = was_lost;
            }
            return;
        }
        if let Some(call) = self.network.calls.get_mut(&tag) {
            call.connection = None;
        }
        self.send_again(tag);
    }

    /// Passes the final answer to a call on to the caller.
    fn finish_call(&mut self, tag: u64, result: Result<Vec<u8>>) {
        let Some(call) = self.network.calls.remove(&tag) else { return };
        if self.life(call.caller.0) != call.caller.1 {
            return;
        }
        match (call.caller.0, call.purpose) {
            (Node::Target(target), Purpose::Target(number)) => {
                self.deliver_answer(target, number, result);
            }
            (Node::Storage(storage), Purpose::Cleaner(keys)) => {
                self.storages[storage].remove_orphans(&keys, result);
            }
            (Node::Client(client), Purpose::Task(task)) => {
                self.task_answer(client, task, &result, call.is_reply_lost);
            }
            (Node::Client(client), purpose) => self.client_answer(client, &purpose, result),
            _ => {}
        }
    }

    pub(crate) fn break_connection(&mut self, connection: u64, is_late: bool) {
        for tag in self.network.break_connection(connection, is_late) {
            self.send_again(tag);
        }
    }

    /// Breaks the connections of a node that has exited. The processes that use them notice this
    /// after a while.
    pub(crate) fn break_all(&mut self, node: Node, most_micros: u64) {
        for connection in self.network.open_connections(node, true) {
            let pause = self.random.micros(0, most_micros);
            self.after(pause, SimEvent::Break { connection });
        }
        // No process waits on the connections that the node itself opened, so they break at once.
        for connection in self.network.open_connections(node, false) {
            if self.network.connections.get(&connection).is_some_and(|it| it.caller.0 == node) {
                let is_late = self.random.percent(30);
                self.break_connection(connection, is_late);
            }
        }
    }

    /// Returns the size of a file according to its chunk files.
    pub(crate) fn chunk_size(
        storages: &[StorageProcess],
        targets: usize,
        record: &skep_format::metadata::InodeRecord,
    ) -> u64 {
        use skep_cluster::striping::{chunk_sizes, size_from_chunk};
        let Some(pattern) = &record.pattern else { return 0 };
        let sizes = chunk_sizes(pattern, 0).map(|chunk| {
            let key = skep_types::ChunkFileKey {
                inode: record.attributes.inode,
                generation: pattern.generation,
                component: chunk.component,
                index: chunk.index,
            };
            let storage = &storages[chunk.group.raw() as usize - 1 - targets];
            let size = storage.chunks.get(&key).copied().unwrap_or(0);
            size_from_chunk(pattern, chunk.component, chunk.index, size)
        });
        sizes.max().unwrap_or(0)
    }
}

/// Number of the message `WriteChunk`.
pub(crate) const WRITE: u16 = <skep_wire::storage::WriteChunk as skep_wire::Request>::ID;

/// Number of the message `StatChunk`.
const STAT: u16 = <skep_wire::storage::StatChunk as skep_wire::Request>::ID;

/// Encodes a message. The header contains the number of the message.
pub(crate) fn message<R: skep_wire::Request>(request: &R) -> (Header, Vec<u8>) {
    let header = Header { message: R::ID, message_version: R::VERSION, ..Header::default() };
    (header, request.to_bytes())
}

/// Returns the second member of a metadata target's group.
pub(crate) fn backup_of(knobs: &Knobs, index: usize) -> TargetId {
    TargetId::new((knobs.targets + knobs.storages + index + 1) as u32)
}

fn node(raw: u32, kind: NodeKind) -> skep_types::Node {
    skep_types::Node {
        id: NodeId::new(raw),
        kind,
        name: format!("node-{raw}"),
        addresses: Vec::new(),
        domain: String::new(),
        reachability: Reachability::Online,
        version: String::new(),
    }
}

/// Returns a formatted cluster in which each group has one member, or each metadata group two.
fn map(knobs: &Knobs) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new(*b"simulated skep 1"));
    let all = knobs.targets + knobs.storages;
    for index in 0..all {
        let raw = index as u32 + 1;
        let (kind, node_kind) = if index < knobs.targets {
            (TargetKind::Metadata, NodeKind::Metadata)
        } else {
            (TargetKind::Storage, NodeKind::Storage)
        };
        map.nodes.push(node(raw, node_kind));
        map.targets.push(Target {
            id: TargetId::new(raw),
            kind,
            node: NodeId::new(raw),
            path: String::new(),
            reachability: Reachability::Online,
            consistency: Consistency::Good,
            health: skep_types::map::TargetHealth::default(),
            capacity: Capacity { total_bytes: 1 << 40, free_bytes: 1 << 40, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        map.groups.push(Group::of_one(GroupId::new(raw), kind, TargetId::new(raw)));
    }
    for index in (0..knobs.targets).filter(|_| knobs.has_backups) {
        let raw = backup_of(knobs, index).raw();
        let of_primary = map.targets[index].clone();
        map.nodes.push(node(raw, NodeKind::Metadata));
        map.targets.push(Target { id: TargetId::new(raw), node: NodeId::new(raw), ..of_primary });
        let member = GroupMember { target: TargetId::new(raw), state: MemberState::Serving };
        map.groups[index].members.push(member);
    }
    let each = skep_types::SHARD_COUNT / knobs.targets as u32;
    for index in 0..knobs.targets as u32 {
        let is_last = index as usize == knobs.targets - 1;
        let last = if is_last { skep_types::SHARD_COUNT } else { (index + 1) * each };
        map.shards.push(ShardRange {
            first: ShardId::new((index * each) as u16),
            last: ShardId::new((last - 1) as u16),
            group: GroupId::new(index + 1),
        });
    }
    map.policy = Policy {
        lease_ms: knobs.lease.as_millis() as u32,
        default_chunk_bytes: 64 << 10,
        default_width: 2,
        stripe_from: 64 << 10,
        inline_bytes: knobs.inline_bytes,
        user_patterns: UserPatterns::Targets,
        ..Policy::default()
    };
    map.newest_node = map.nodes.last().map_or(NodeId::default(), |node| node.id);
    map.version = MapVersion::new(1);
    map.formatted = true;
    map
}
