//! The network: connections between processes, with delay, loss and partitions; and on top of it
//! what a router does (`crates/rpc/src/routing.rs`): it repeats a call until it has a final answer.
//!
//! # Faults
//! Requests and replies of one connection arrive in order. A connection that breaks loses its
//! replies; requests that were on it are lost or arrive late, beside the repetitions that come over
//! the next connection. While two nodes are parted nothing arrives; what was sent arrives
//! afterwards, if its connection still stands or its requests come late.

use crate::random::Random;
use crate::waits::is_of_task;
use skep_types::{Epoch, Error, ErrorCode, GroupId, Result, RetryClass};
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

/// What an answer is for.
#[derive(Debug, Clone)]
pub(crate) enum Asker {
    /// A metadata target's own call.
    Target(u64),
    /// A client's operation: task.
    Task(usize),
    /// A client's part of an operation that has several: task.
    Write(usize),
    /// A client opens a session: group.
    Session(GroupId),
    /// A client renews a session: group.
    KeepAlive(GroupId),
    /// A client waits to be told what it may not rely on any longer: group, session.
    Notifications(GroupId, skep_types::SessionId),
    /// A client says that it was told: number of the notification.
    Acknowledge(u64),
    /// A client ends a session.
    Goodbye,
    /// Storage asks whether the inodes of these chunk files exist.
    Cleaner(Vec<skep_types::ChunkFileKey>),
}

/// A call under way.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Who asks, in which life.
    pub(crate) caller: (Node, u64),
    /// Whom.
    pub(crate) group: GroupId,
    /// The header; its tag is the call's number.
    pub(crate) header: Header,
    /// The body.
    pub(crate) body: Vec<u8>,
    /// What the answer is for.
    pub(crate) asker: Asker,
    /// The connection on which it was sent last.
    pub(crate) connection: Option<u64>,
    backoff: Duration,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The side that connected, and in which life.
    pub(crate) caller: (Node, u64),
    /// The side that serves, and in which life.
    pub(crate) callee: (Node, u64),
    /// Whether the caller still uses it.
    pub(crate) is_open: bool,
    /// Whether requests on it arrive although it broke.
    pub(crate) is_late: bool,
    /// Whether anything has come over it to the side that serves.
    pub(crate) has_arrived: bool,
    last_there: Duration,
    last_back: Duration,
}

/// Connections, calls, partitions.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Calls by tag.
    pub(crate) calls: BTreeMap<u64, Call>,
    /// Connections by number.
    pub(crate) connections: BTreeMap<u64, Connection>,
    links: BTreeMap<(Node, Node), u64>,
    parted: BTreeMap<(Node, Node), Duration>,
    next: u64,
    /// Whether messages are slow at times.
    pub(crate) is_slow: bool,
}

const FIRST_BACKOFF: Duration = Duration::from_millis(2);
const LONGEST_BACKOFF: Duration = Duration::from_millis(100);

fn pair(a: Node, b: Node) -> (Node, Node) {
    (a.min(b), a.max(b))
}

impl Network {
    /// A call that begins.
    pub(crate) fn new_call(
        &mut self,
        caller: (Node, u64),
        group: GroupId,
        mut header: Header,
        body: Vec<u8>,
        asker: Asker,
    ) -> u64 {
        self.next += 1;
        header.tag = self.next;
        header.group = group;
        header.epoch = Epoch::new(1);
        let backoff = FIRST_BACKOFF;
        let call = Call { caller, group, header, body, asker, connection: None, backoff };
        self.calls.insert(self.next, call);
        self.next
    }

    /// The connection between two processes, made if need be.
    pub(crate) fn connect(&mut self, caller: (Node, u64), callee: (Node, u64)) -> u64 {
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
            last_there: Duration::ZERO,
            last_back: Duration::ZERO,
        };
        self.connections.insert(self.next, connection);
        self.links.insert((caller.0, callee.0), self.next);
        self.next
    }

    /// When a message that is sent now arrives.
    pub(crate) fn arrival(
        &mut self,
        random: &mut Random,
        connection: u64,
        is_reply: bool,
        now: Duration,
    ) -> Duration {
        let delay = match self.is_slow && random.percent(5) {
            true => random.micros(1_000, 50_000),
            false => random.micros(20, 400),
        };
        let Some(connection) = self.connections.get_mut(&connection) else { return now + delay };
        let last = if is_reply { &mut connection.last_back } else { &mut connection.last_there };
        *last = (*last + Duration::from_nanos(1)).max(now + delay);
        *last
    }

    /// Parts two nodes until a time.
    pub(crate) fn part(&mut self, a: Node, b: Node, until: Duration) {
        self.parted.insert(pair(a, b), until);
    }

    /// When two nodes reach each other again, if they don't now.
    pub(crate) fn parted_until(&self, a: Node, b: Node, now: Duration) -> Option<Duration> {
        self.parted.get(&pair(a, b)).copied().filter(|until| *until > now)
    }

    /// Ends all partitions.
    pub(crate) fn heal(&mut self) {
        self.parted.clear();
    }

    /// The caller gives a connection up; gives the calls that were on it.
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
            }
        }
        tags
    }

    /// Whether the side that serves has ended a connection, since a later one on the same channel
    /// has reached it (`skep_rpc::Channel`): a target's channel is the same in all its lives, a
    /// client has others in each.
    pub(crate) fn is_superseded(&self, number: u64) -> bool {
        let Some(old) = self.connections.get(&number) else { return false };
        let is_same = |it: &Connection| {
            let (node, life) = it.caller;
            let is_caller =
                node == old.caller.0 && (life == old.caller.1 || matches!(node, Node::Target(_)));
            is_caller && it.callee.0 == old.callee.0
        };
        self.connections.range(number + 1..).any(|(_, it)| it.has_arrived && is_same(it))
    }

    /// Open connections of a node, on either side or on the serving side only.
    pub(crate) fn open_connections(&self, node: Node, serving_only: bool) -> Vec<u64> {
        let of_node = |it: &Connection| {
            it.is_open && (it.callee.0 == node || !serving_only && it.caller.0 == node)
        };
        let open = self.connections.iter().filter(|(_, it)| of_node(it));
        open.map(|(number, _)| *number).collect()
    }

    /// A process ends: its calls are forgotten.
    pub(crate) fn forget_calls(&mut self, caller: Node) {
        self.calls.retain(|_, call| call.caller.0 != caller);
    }

    /// Nobody waits any more for the answer of a client's task; whether anything was under way.
    pub(crate) fn forget_task(&mut self, client: Node, task: usize) -> bool {
        let before = self.calls.len();
        let is_its = |call: &Call| call.caller.0 == client && is_of_task(&call.asker, task);
        self.calls.retain(|_, call| !is_its(call));
        self.calls.len() < before
    }

    /// How long to wait before a call is sent again.
    pub(crate) fn next_pause(&mut self, tag: u64, random: &mut Random) -> Duration {
        let Some(call) = self.calls.get_mut(&tag) else { return FIRST_BACKOFF };
        let pause = call.backoff;
        call.backoff = (pause * 2).min(LONGEST_BACKOFF);
        pause / 2 + (pause / 2).mul_f64(random.below(1024) as f64 / 1024.0)
    }
}

/// Whether an answer is final.
pub(crate) fn is_final(result: &Result<Vec<u8>>) -> bool {
    let class = result.as_ref().err().map(|error| error.code().retry_class());
    class.is_none_or(|class| class == RetryClass::Never)
}

/// Whether an answer means that the connection is of no use.
pub(crate) fn closes(result: &Result<Vec<u8>>) -> bool {
    let class = result.as_ref().err().map(|error| error.code().retry_class());
    class == Some(RetryClass::AfterFailover)
}

/// The answer of a call that took longer than its caller waits.
pub(crate) fn timed_out() -> Error {
    ErrorCode::TimedOut.into()
}
