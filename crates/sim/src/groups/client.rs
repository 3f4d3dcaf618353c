//! A client of the group: its session, its calls, and the retries of these calls.
//!
//! A client sends each call to the primary of its own map, which may be old. The client repeats the
//! call in the same slot until it gets a final reply, and reads replies only on the connection of
//! its newest attempt. After a start of the target, the client compares its changes with the slots
//! of the target.

use super::authority::{FIRST_CLIENT, GROUP, group_of};
use super::cluster::{Cluster, GroupEvent};
use super::member::{Requester, Role};
use super::messages::{Message, Place, Process};
use super::sharing::Handle;
use crate::notifications::Notifications;
use crate::operation::Op;
use crate::witness::InstanceId;
use crate::world::message;
use skep_metadata::target::{Event, SyncPolicy};
use skep_types::codec::Codec;
use skep_types::{
    ClusterMap, Epoch, Error, ErrorCode, InodeId, NodeId, Result, RetryClass, SessionId,
};
use skep_wire::frame::{FLAG_DURABLE, Header};
use skep_wire::metadata as md;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two renewals of a session.
const RENEWAL: Duration = Duration::from_secs(10);
/// Longest time in microseconds for which a client waits for a reply before it repeats a call.
const LONGEST_WAIT_MICROS: u64 = 1_500_000;

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    OpenSession,
    KeepAlive,
    CompareSlots,
    /// A poll for notifications about shared files.
    WaitNotifications,
    /// The acknowledgement of the notification with this number.
    AcknowledgeNotification(u64),
    /// The operation of a task.
    Task(usize),
}

/// A call without a final reply.
#[derive(Debug)]
struct Call {
    purpose: Purpose,
    header: Header,
    body: Vec<u8>,
    /// Sequence number of the newest attempt.
    attempt: u64,
    is_repeated: bool,
}

/// The operation of a task.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) op: Op,
    window: u64,
    instance: Option<InstanceId>,
    /// Number of notifications that the client had received when it began the operation.
    notifications_before: usize,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    node: NodeId,
    pub(super) session: SessionId,
    /// The start number of the target, which the client sends with each change.
    start: u64,
    map: Arc<ClusterMap>,
    sequences: Vec<u64>,
    pub(super) tasks: Vec<Option<Current>>,
    /// The files that the client has open.
    pub(super) handles: Vec<Handle>,
    /// The handles that the client has closed.
    pub(super) closed: Vec<Handle>,
    pub(super) notifications: Notifications,
    calls: BTreeMap<u64, Call>,
}

impl Client {
    pub(super) fn new(index: usize, tasks: usize, map: &Arc<ClusterMap>) -> Self {
        let node = NodeId::new(FIRST_CLIENT + index as u32);
        Self {
            node,
            session: SessionId::new(u64::from(node.raw()) << 32 | 1),
            start: 0,
            map: Arc::clone(map),
            sequences: vec![0; tasks],
            tasks: (0..tasks).map(|_| None).collect(),
            handles: Vec::new(),
            closed: Vec::new(),
            notifications: Notifications::default(),
            calls: BTreeMap::new(),
        }
    }

    /// Whether an operation is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.tasks.iter().any(Option::is_some)
    }

    fn has_call(&self, purpose: Purpose) -> bool {
        self.calls.values().any(|it| it.purpose == purpose)
    }

    /// Whether the client has sent an open of a file at least twice, and has no reply yet.
    pub(super) fn repeats_open(&self, inode: InodeId) -> bool {
        self.calls.values().filter(|it| it.is_repeated).any(|call| {
            let Purpose::Task(task) = call.purpose else { return false };
            let current = self.tasks.get(task).and_then(Option::as_ref);
            current.is_some_and(|it| matches!(&it.op, Op::Open(open) if open.inode == inode))
        })
    }
}

impl Cluster {
    pub(super) fn start_client(&mut self, client: usize) {
        let process = &self.clients[client];
        let slots = process.tasks.len() as u32;
        let request = md::OpenSession { client: process.node, slots };
        self.begin_call(client, Purpose::OpenSession, message(&request));
        self.after(RENEWAL, GroupEvent::KeepAlive { client });
    }

    /// Renews the session of a client.
    pub(super) fn keep_alive(&mut self, client: usize) {
        self.after(RENEWAL, GroupEvent::KeepAlive { client });
        let process = &self.clients[client];
        if process.start > 0 && !process.has_call(Purpose::KeepAlive) {
            let request = md::KeepAlive { lease_ms: self.map().policy.lease_ms };
            self.begin_call(client, Purpose::KeepAlive, message(&request));
        }
    }

    /// Begins the operation of a task.
    pub(super) fn begin_operation(&mut self, client: usize, task: usize, op: Op, is_durable: bool) {
        let process = &mut self.clients[client];
        let session = process.session;
        let (mut header, body) = (Header { message: op.message(), ..Header::default() }, op.body());
        if is_durable {
            header.flags |= FLAG_DURABLE;
        }
        let mut instance = None;
        if op.modifies() {
            process.sequences[task] += 1;
            header.slot = task as u32;
            header.sequence = process.sequences[task];
            let id = (session, header.slot, header.sequence);
            instance = Some(id);
            let witness = &mut self.ledger.witness;
            let number = witness.new_operation();
            let is_always = self.knobs.policy == SyncPolicy::Always;
            witness.request_sent(id, number, &op, is_durable || is_always);
        }
        self.note(|| format!("client {client}.{task} begins {op:?}"));
        let window = self.ledger.witness.open_window(&op, session);
        let process = &mut self.clients[client];
        let notifications_before = process.notifications.arrived.len();
        process.tasks[task] = Some(Current { op, window, instance, notifications_before });
        self.begin_call(client, Purpose::Task(task), (header, body));
    }

    pub(super) fn begin_call(
        &mut self,
        client: usize,
        purpose: Purpose,
        (header, body): (Header, Vec<u8>),
    ) {
        let number = self.new_number();
        let process = &mut self.clients[client];
        let header = Header { session: process.session, group: GROUP, tag: number, ..header };
        let call = Call { purpose, header, body, attempt: 0, is_repeated: false };
        process.calls.insert(number, call);
        self.send_call(client, number);
    }

    /// Sends a call to the primary of the client's map.
    fn send_call(&mut self, client: usize, number: u64) {
        let attempt = self.new_number();
        let process = &mut self.clients[client];
        let (epoch, primary) = (group_of(&process.map).epoch, group_of(&process.map).primary);
        let start = process.start;
        let Some(call) = process.calls.get_mut(&number) else { return };
        call.is_repeated |= call.attempt != 0;
        call.attempt = attempt;
        let sender_epoch = Epoch::new(start);
        let header = Header { epoch, sender_epoch, ..call.header.clone() };
        let body = call.body.clone();
        let member = self.members.iter().position(|it| it.target == primary);
        let running = member.filter(|it| !matches!(self.members[*it].role, Role::Down));
        let Some(member) = running else {
            // No process of the primary runs, so the connection is refused.
            return self.send_later(client, number, 50_000);
        };
        let to = (member, self.members[member].life);
        self.post(Message::Request { client, call: number, attempt, to, header, body });
        self.send_later(client, number, LONGEST_WAIT_MICROS);
    }

    /// Schedules the repetition of a call after a random time. The client does not repeat the call
    /// if the final reply arrives earlier.
    fn send_later(&mut self, client: usize, call: u64, most_micros: u64) {
        let Some(attempt) = self.clients[client].calls.get(&call).map(|it| it.attempt) else {
            return;
        };
        let pause = self.random.micros(most_micros / 2, most_micros);
        self.after(pause, GroupEvent::SendAgain { client, call, attempt });
    }

    pub(super) fn send_again(&mut self, client: usize, call: u64, attempt: u64) {
        if self.clients[client].calls.get(&call).is_some_and(|it| it.attempt == attempt) {
            self.send_call(client, call);
        }
    }

    /// Handles the arrival of a cluster map. Sends all calls again if the group has another epoch
    /// in this map than in the previous map.
    pub(super) fn map_of_client(&mut self, client: usize, map: Arc<ClusterMap>) {
        let process = &mut self.clients[client];
        if map.version <= process.map.version {
            return;
        }
        let has_changed = group_of(&map).epoch != group_of(&process.map).epoch;
        process.map = map;
        if has_changed {
            for call in process.calls.keys().copied().collect::<Vec<_>>() {
                self.send_call(client, call);
            }
        }
    }

    /// Handles the arrival of a client's request at a member's process.
    pub(super) fn receive_request_of_client(
        &mut self,
        (client, call, attempt): (usize, u64, u64),
        (index, life): Process,
        header: Header,
        body: Vec<u8>,
    ) {
        let member = &mut self.members[index];
        if member.life != life {
            return;
        }
        let id = (header.session, header.slot, header.sequence);
        self.ledger.witness.request_arrived(id, &member.inbox);
        let connection = self.new_number();
        let requester = Requester::Client { client, call, attempt };
        self.members[index].requests.insert(connection, requester);
        self.put(index, Event::Request { connection, header, body });
    }

    /// Handles the arrival of a reply.
    pub(super) fn receive_reply(
        &mut self,
        client: usize,
        (number, attempt): (u64, u64),
        term: Epoch,
        result: Result<Vec<u8>>,
    ) {
        let process = &mut self.clients[client];
        let found = process.calls.get(&number).filter(|it| it.attempt == attempt);
        let Some(call) = found else { return };
        let class = result.as_ref().err().map(|error| error.code().retry_class());
        let is_new_start =
            result.as_ref().is_err_and(|error| error.code() == ErrorCode::StaleStart);
        if is_new_start || class.is_some_and(|class| class != RetryClass::Never) {
            if is_new_start && !process.has_call(Purpose::CompareSlots) {
                self.begin_call(client, Purpose::CompareSlots, message(&md::CompareSlots {}));
            }
            // The member may have refused the call because the member's map is newer than the
            // client's.
            self.send_map(Place::Client(client));
            return self.send_later(client, number, 30_000);
        }
        let (purpose, is_reply_lost) = (call.purpose, call.is_repeated);
        process.calls.remove(&number);
        match (purpose, result) {
            (Purpose::OpenSession, Ok(body)) => {
                let reply = md::OpenSessionReply::from_bytes(&body);
                process.start = reply.map_or(0, |it| it.start);
                for task in 0..process.tasks.len() {
                    self.after(Duration::ZERO, GroupEvent::Step { client, task });
                }
                if self.knobs.shares_files {
                    self.wait_for_notifications(client);
                }
            }
            (Purpose::CompareSlots, Ok(body)) => {
                if let Ok(reply) = md::CompareSlotsReply::from_bytes(&body) {
                    process.start = reply.start;
                    let session = process.session;
                    self.ledger.witness.slots_received(session, &reply.slots);
                }
            }
            (Purpose::KeepAlive, Ok(_)) => {}
            (Purpose::WaitNotifications, Ok(body)) => self.receive_notifications(client, &body),
            (Purpose::AcknowledgeNotification(acknowledged), Ok(_)) => {
                process.notifications.unacknowledged.remove(&acknowledged);
            }
            (Purpose::Task(task), result) => {
                self.end_operation((client, task), term, &result, is_reply_lost);
            }
            (purpose, Err(error)) => self.fail(format!("client {client}, {purpose:?}: {error}")),
        }
    }

    fn end_operation(
        &mut self,
        (client, task): (usize, usize),
        term: Epoch,
        result: &std::result::Result<Vec<u8>, Error>,
        is_reply_lost: bool,
    ) {
        let Some(current) = self.clients[client].tasks[task].take() else { return };
        let Current { op, window, instance, notifications_before } = current;
        self.note(|| match result {
            Ok(_) => format!("client {client}.{task} is done"),
            Err(error) => format!("client {client}.{task} is refused: {error}"),
        });
        if let Err(error) = result
            && crate::client::is_lost(error)
        {
            return self.fail(format!("client {client} has lost its session: {error}"));
        }
        if self.ledger.has_successor(term) {
            self.ledger.witness.note_former_primary(window);
        }
        let witness = &mut self.ledger.witness;
        let checked = witness.check_answer(window, instance, result, is_reply_lost);
        self.check(checked);
        if let Ok(reply) = result {
            self.apply_reply(client, &op, (instance, notifications_before), reply);
        }
        let pause = self.random.micros(0, self.knobs.pause_micros);
        self.after(pause, GroupEvent::Step { client, task });
    }
}
