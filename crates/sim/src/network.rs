//! The simulated network: connections between processes, with delay, loss and partitions. Like the
//! real router (`crates/rpc/src/routing.rs`), the network retries a call until a final reply
//! arrives.
//!
//! # Faults
//! Requests and replies of one connection arrive in order. A broken connection loses its replies.
//! The requests of a broken connection are either lost, or arrive late, in addition to the retries
//! on the next connection. During a partition between two nodes, no message between them arrives. A
//! message that was sent during the partition may arrive after the partition has ended. A message
//! arrives after the partition if its connection is still open, or if the requests of its broken
//! connection arrive late.

use crate::random::Random;
use crate::waits::is_of_task;
use skep_types::{Error, ErrorCode, GroupId, Result, RetryClass, TargetId};
use skep_wire::frame::Header;
use std::collections::BTreeMap;
use std::time::Duration;

/// A process in the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// A metadata target.
    Target(usize),
    /// A storage target.
    Storage(usize),
    /// A client.
    Client(usize),
}

/// The purpose of a call. The purpose determines which function handles the reply.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// A call of a metadata target. The number identifies the call in the target.
    Target(u64),
    /// The request of an operation that a client's task runs. The number is the index of the task.
    Task(usize),
    /// A client's task requests the outcome of its operation, whose session was lost.
    Outcome(usize),
    /// One of several chunk writes of an operation. The number in this variant is the index of the
    /// client's task.
    Write(usize),
    /// A client opens this session at this group.
    Session(GroupId, skep_types::SessionId),
    /// A client renews its session at this group.
    KeepAlive(GroupId),
    /// After a start of a target, a client compares its changes in this session with the slots of
    /// the target.
    Slots(skep_types::SessionId),
    /// A client replays a lost change of this session.
    Replay(skep_types::SessionId),
    /// A client ends the replay of this session.
    EndReplay(skep_types::SessionId),
    /// A client waits for notifications from this group, within this session.
    Notifications(GroupId, skep_types::SessionId),
    /// A client acknowledges the notification with this number.
    Acknowledge(u64),
    /// A client closes a session.
    CloseSession,
    /// A storage target checks whether the inodes of these chunk files exist.
    Cleaner(Vec<skep_types::ChunkFileKey>),
}

/// A call in flight.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The calling process: its node, and the id of the process.
    pub(crate) caller: (Node, u64),
    /// The group to which the request is addressed.
    pub(crate) group: GroupId,
    /// The request header. The tag identifies the call.
    pub(crate) header: Header,
    /// The request body.
    pub(crate) body: Vec<u8>,
    /// The purpose of the call.
    pub(crate) purpose: Purpose,
    /// The connection of the latest attempt. `None` while the call waits for its next attempt.
    pub(crate) connection: Option<u64>,
    /// Whether the server may have executed an attempt whose reply was lost.
    pub(crate) is_reply_lost: bool,
    /// Start number of the target in the latest attempt, if the caller is a client.
    pub(crate) start: u64,
    /// Number that a metadata target's reply has given to the change.
    pub(crate) change: u64,
    backoff: Duration,
}

/// A connection between two processes.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The process that opened the connection: its node, and the id of the process.
    pub(crate) caller: (Node, u64),
    /// The process that serves the connection: its node, and the id of the process.
    pub(crate) callee: (Node, u64),
    /// Whether the caller still uses the connection.
    pub(crate) is_open: bool,
    /// Whether the requests on the connection still arrive after the connection has broken.
    pub(crate) is_late: bool,
    /// Whether any request has arrived on the connection.
    pub(crate) has_arrived: bool,
    /// The metadata target whose process has opened the connection. Zero for clients and storage
    /// targets.
    pub(crate) channel: TargetId,
    last_request: Duration,
    last_reply: Duration,
}

/// All connections, calls and partitions of a run.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// The calls in flight, by tag.
    pub(crate) calls: BTreeMap<u64, Call>,
    /// The connections, by number.
    pub(crate) connections: BTreeMap<u64, Connection>,
    /// For each reply in flight: the number that the target has given to the change. The key is the
    /// connection and the tag.
    pub(crate) change_numbers: BTreeMap<(u64, u64), u64>,
    links: BTreeMap<(Node, Node), u64>,
    partitions: BTreeMap<(Node, Node), Duration>,
    next: u64,
    /// Whether some messages have an unusually long delay.
    pub(crate) is_slow: bool,
}

const FIRST_BACKOFF: Duration = Duration::from_millis(2);
const LONGEST_BACKOFF: Duration = Duration::from_millis(100);

fn pair(a: Node, b: Node) -> (Node, Node) {
    (a.min(b), a.max(b))
}

impl Network {
    /// Adds a call, and returns its tag.
    pub(crate) fn new_call(
        &mut self,
        caller: (Node, u64),
        group: GroupId,
        mut header: Header,
        body: Vec<u8>,
        purpose: Purpose,
    ) -> u64 {
        self.next += 1;
        header.tag = self.next;
        header.group = group;
        let backoff = FIRST_BACKOFF;
        let call = Call {
            caller,
            group,
            header,
            body,
            purpose,
            connection: None,
            is_reply_lost: false,
            start: 0,
            change: 0,
            backoff,
        };
        self.calls.insert(self.next, call);
        self.next
    }

    /// Returns the open connection between two processes. Opens a connection if there is no such
    /// connection.
    pub(crate) fn connect(
        &mut self,
        caller: (Node, u64),
        callee: (Node, u64),
        channel: TargetId,
    ) -> u64 {
        if let Some(open) = self.links.get(&(caller.0, callee.0)) {
            return *open;
        }
        self.next += 1;
        let connection = Connection {
            caller,
            callee,
            is_open: true,
            is_late: false,
            has_arrived: false,
            channel,
            last_request: Duration::ZERO,
            last_reply: Duration::ZERO,
        };
        self.connections.insert(self.next, connection);
        self.links.insert((caller.0, callee.0), self.next);
        self.next
    }

    /// Returns the arrival time of a message that is sent now.
    pub(crate) fn arrival(
        &mut self,
        random: &mut Random,
        connection: u64,
        is_reply: bool,
        now: Duration,
    ) -> Duration {
        let delay = if self.is_slow && random.percent(5) {
            random.micros(1_000, 50_000)
        } else {
            random.micros(20, 400)
        };
        let Some(connection) = self.connections.get_mut(&connection) else { return now + delay };
        let last = if is_reply { &mut connection.last_reply } else { &mut connection.last_request };
        *last = (*last + Duration::from_nanos(1)).max(now + delay);
        *last
    }

    /// Interrupts the network between two nodes until the time `until`.
    pub(crate) fn partition(&mut self, a: Node, b: Node, until: Duration) {
        self.partitions.insert(pair(a, b), until);
    }

    /// Returns the end of the current partition between two nodes, if any.
    pub(crate) fn partitioned_until(&self, a: Node, b: Node, now: Duration) -> Option<Duration> {
        self.partitions.get(&pair(a, b)).copied().filter(|until| *until > now)
    }

    /// Ends all partitions.
    pub(crate) fn heal(&mut self) {
        self.partitions.clear();
    }

    /// Breaks a connection on the caller's side. Returns the calls that the caller sent on the
    /// connection.
    pub(crate) fn break_connection(&mut self, number: u64, is_late: bool) -> Vec<u64> {
        let Some(connection) = self.connections.get_mut(&number).filter(|it| it.is_open) else {
            return Vec::new();
        };
        connection.is_open = false;
        connection.is_late = is_late;
        self.links.remove(&(connection.caller.0, connection.callee.0));
        let on_it = self.calls.iter().filter(|(_, call)| call.connection == Some(number));
        let tags: Vec<u64> = on_it.map(|(tag, _)| *tag).collect();
        for tag in &tags {
            if let Some(call) = self.calls.get_mut(tag) {
                call.connection = None;
                call.is_reply_lost = true;
            }
        }
        tags
    }

    /// Whether the server has closed the connection because a request on a later connection of the
    /// same channel has reached the server (`skep_rpc::Channel`). All processes of a target have
    /// the same channel. Each process of a client has a new channel.
    pub(crate) fn is_superseded(&self, number: u64) -> bool {
        let Some(old) = self.connections.get(&number) else { return false };
        let is_same = |it: &Connection| {
            let (node, life) = it.caller;
            let is_caller =
                node == old.caller.0 && (life == old.caller.1 || matches!(node, Node::Target(_)));
            is_caller && it.channel == old.channel && it.callee.0 == old.callee.0
        };
        self.connections.range(number + 1..).any(|(_, it)| it.has_arrived && is_same(it))
    }

    /// Returns the open connections of a node. If `serving_only` is true, returns only the
    /// connections that the node serves.
    pub(crate) fn open_connections(&self, node: Node, serving_only: bool) -> Vec<u64> {
        let of_node = |it: &Connection| {
            it.is_open && (it.callee.0 == node || !serving_only && it.caller.0 == node)
        };
        let open = self.connections.iter().filter(|(_, it)| of_node(it));
        open.map(|(number, _)| *number).collect()
    }

    /// Removes the calls of a process that has ended.
    pub(crate) fn forget_calls(&mut self, caller: Node) {
        self.calls.retain(|_, call| call.caller.0 != caller);
    }

    /// Removes the calls of a client's task. Returns whether the task had any call in flight.
    pub(crate) fn forget_task(&mut self, client: Node, task: usize) -> bool {
        let before = self.calls.len();
        let is_its = |call: &Call| call.caller.0 == client && is_of_task(&call.purpose, task);
        self.calls.retain(|_, call| !is_its(call));
        self.calls.len() < before
    }

    /// Returns the pause until the next attempt of a call.
    pub(crate) fn next_pause(&mut self, tag: u64, random: &mut Random) -> Duration {
        let Some(call) = self.calls.get_mut(&tag) else { return FIRST_BACKOFF };
        let pause = call.backoff;
        call.backoff = (pause * 2).min(LONGEST_BACKOFF);
        pause / 2 + (pause / 2).mul_f64(random.below(1024) as f64 / 1024.0)
    }
}

/// Whether a reply is final. The network does not retry a call after a final reply.
pub(crate) fn is_final(result: &Result<Vec<u8>>) -> bool {
    let class = result.as_ref().err().map(|error| error.code().retry_class());
    class.is_none_or(|class| class == RetryClass::Never)
}

/// Whether a reply causes the caller to close the connection.
pub(crate) fn closes(result: &Result<Vec<u8>>) -> bool {
    let class = result.as_ref().err().map(|error| error.code().retry_class());
    class == Some(RetryClass::AfterFailover)
}

/// Returns the error of a call that got no reply within its caller's time limit.
pub(crate) fn timed_out() -> Error {
    ErrorCode::TimedOut.into()
}
