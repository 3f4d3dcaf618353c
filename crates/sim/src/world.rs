//! The state of a run: the simulated time, the queue of future events, and the processes. The time
//! advances, and random numbers are drawn, only when an event of the queue is processed.

use crate::backup::{MemberReply, Sender};
use crate::client::ClientProcess;
use crate::judged::Judged;
use crate::knobs::Knobs;
use crate::management::map;
use crate::network::{Network, Node, timed_out};
use crate::random::Random;
use crate::storage::StorageProcess;
use crate::target::TargetProcess;
use crate::trace::Trace;
use crate::truncations::LoggedTruncations;
use crate::witness::Witness;
use skep_metadata::shipping::MemberRequest;
use skep_types::{ClusterMap, InodeId, Lsn, NodeId, Result, TargetId, Timestamp};
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
    /// A request of a primary arrives at the backup member.
    ToMember {
        target: usize,
        from: Sender,
        request: MemberRequest,
    },
    /// A reply of the backup member arrives at a primary.
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
    /// A backup member receives the newest map.
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
    /// A duplicate of a request arrives at a metadata target.
    Duplicate {
        target: usize,
        header: Header,
        body: Vec<u8>,
    },
    /// Management receives the request to evict a client.
    Evict {
        client: NodeId,
        unless_heard: bool,
    },
    /// A storage target executes a write that has waited.
    Serve {
        connection: u64,
        storage: usize,
        life: u64,
        header: Header,
        body: Vec<u8>,
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
    /// The highest id that a process of a backup member or a request to a backup member has got.
    /// One counter assigns both kinds of ids.
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
    /// Directories that were in replies to clients. The newest directory is last.
    pub(crate) directories: Vec<InodeId>,
    pub(crate) files: Vec<InodeId>,
    /// Files that a client may have written after it lost its session. The set also contains files
    /// whose chunk files may have been extended by an abandoned truncation.
    pub(crate) unsure: BTreeSet<InodeId>,
    pub(crate) violation: Option<String>,
    pub(crate) faults: u64,
    /// Number of sizes in the memory of clients that the checker `known_sizes` has received, and
    /// number of sizes that this checker has skipped.
    pub(crate) known_sizes: Judged,
    pub(crate) truncations: LoggedTruncations,
    /// Time at which management becomes available again after its last restart.
    pub(crate) management_is_back: Duration,
}

/// Unix time in seconds at which a run begins.
const START_SECONDS: i64 = 1_700_000_000;

/// Returns the time of day at a time of the simulation.
pub(crate) fn time_of_day(now: Duration) -> Timestamp {
    let start = i128::from(START_SECONDS) * 1_000_000_000;
    Timestamp::from_nanoseconds(start + now.as_nanos() as i128)
}

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
            known_sizes: Judged::default(),
            truncations: LoggedTruncations::new(),
            management_is_back: Duration::ZERO,
            knobs,
        };
        if world.knobs.replays {
            world.witness.track_replays();
        }
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

    /// Records a violation. The first violation ends the run.
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
        // If faults happened faster than the cluster recovers, the run would make no progress. So
        // faults become rarer during a long run.
        let calm = self.knobs.mean_fault_pause.as_micros() as u64 * (1 + self.now.as_secs() / 20);
        let pause = self.random.micros(calm / 4, calm * 2);
        self.after(pause, SimEvent::Fault);
    }

    /// Returns the simulated time of day.
    pub(crate) fn wall(&self) -> Timestamp {
        time_of_day(self.now)
    }

    /// Processes the next event. Returns `false` if the queue is empty.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = time;
        self.trace.event(time, &self.random, &event);
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
            SimEvent::Restart { node: Node::Client(_) }
            | SimEvent::Map { .. }
            | SimEvent::MapOfBackup { .. }
                if self.now < self.management_is_back =>
            {
                let pause = self.random.micros(1, 20_000);
                self.at(self.management_is_back + pause, event);
            }
            SimEvent::Evict { .. } if self.now < self.management_is_back => {
                // If management does not receive the request, the target sends the request again
                // after some time.
                if self.random.percent(50) {
                    self.at(self.management_is_back, event);
                }
            }
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
            SimEvent::Duplicate { target, header, body } => {
                self.deliver_duplicate(target, header, body);
            }
            SimEvent::Serve { connection, storage, life, header, body } => {
                self.serve_write(connection, (storage, life), &header, &body);
            }
        }
        true
    }

    /// Returns a new id for a process of a backup member, or for a request to a backup member.
    pub(crate) fn new_life(&mut self) -> u64 {
        self.last_life += 1;
        self.last_life
    }

    /// Returns the size of a file according to its chunk files.
    pub(crate) fn chunk_size(
        storages: &[StorageProcess],
        targets: usize,
        record: &skep_format::metadata::InodeRecord,
    ) -> u64 {
        let Some(pattern) = &record.pattern else { return 0 };
        Self::size_of_chunks(storages, targets, record.attributes.inode, pattern)
    }

    /// Returns the size of a file with a stripe pattern according to its chunk files.
    pub(crate) fn size_of_chunks(
        storages: &[StorageProcess],
        targets: usize,
        inode: InodeId,
        pattern: &skep_types::StripePattern,
    ) -> u64 {
        use skep_cluster::striping::{chunk_sizes, size_from_chunk};
        let sizes = chunk_sizes(pattern, 0).map(|chunk| {
            let key = skep_types::ChunkFileKey {
                inode,
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

/// Id of the message type `WriteChunk`.
pub(crate) const WRITE: u16 = <skep_wire::storage::WriteChunk as skep_wire::Request>::ID;

/// Encodes a message. The header contains the id of the message type.
pub(crate) fn message<R: skep_wire::Request>(request: &R) -> (Header, Vec<u8>) {
    let header = Header { message: R::ID, message_version: R::VERSION, ..Header::default() };
    (header, request.to_bytes())
}

/// Returns the id of the second target in the group of a metadata target.
pub(crate) fn backup_of(knobs: &Knobs, index: usize) -> TargetId {
    TargetId::new((knobs.targets + knobs.storages + index + 1) as u32)
}
