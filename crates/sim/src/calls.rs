//! Calls between processes. Delivers the requests over the simulated network, lets storage targets
//! execute them, and delivers the replies.
//!
//! This module also checks that storage targets refuse requests of fenced clients and of deposed
//! primaries. The module `target` executes the requests of metadata targets.

use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose, closes, is_final};
use crate::world::{SimEvent, WRITE, World};
use skep_types::{Epoch, ErrorCode, GroupId, Result, TargetId};
use skep_wire::Request;
use skep_wire::catalog;
use skep_wire::frame::Header;
use skep_wire::metadata::EndReplay;

/// Id of the message type `StatChunk`.
const STAT: u16 = <skep_wire::storage::StatChunk as skep_wire::Request>::ID;

/// Whether simulated clients send the target's start number in requests with this message id.
fn names_start(message: u16) -> bool {
    message == EndReplay::ID || catalog::message(message).is_some_and(|it| it.modifies)
}

impl World {
    /// Returns the process that serves a group, the id of this process, and whether the process
    /// runs.
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

    /// Begins a call. Returns the tag that identifies the call.
    pub(crate) fn call(
        &mut self,
        caller: Node,
        group: GroupId,
        header: Header,
        body: Vec<u8>,
        purpose: Purpose,
    ) -> u64 {
        let life = self.life(caller);
        // The id of each group equals the id of the group's first target.
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

    pub(crate) fn send(&mut self, tag: u64) {
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
        let arrival = self.network.arrival(&mut self.random, connection, false, self.now);
        let (header, body) = (self.addressed(&call.header, call.caller.0), call.body);
        if let Some(call) = self.network.calls.get_mut(&tag) {
            call.connection = Some(connection);
            call.start = header.start();
        }
        self.at(arrival, SimEvent::Deliver { connection, header, body, was_late: false });
    }

    /// Returns the header with three new values: the epoch (or start number) that the caller sends,
    /// the epoch of the addressed group, and the lowest map version that the receiver must have.
    fn addressed(&self, header: &Header, caller: Node) -> Header {
        let epoch_of = |group| self.map.group(group).map(|it| it.epoch).unwrap_or_default();
        let sender_epoch = match caller {
            Node::Target(index) => self.targets[index].epoch,
            Node::Storage(_) => epoch_of(header.sender_group),
            // A client sends the start number of the target. The client received this number when
            // it opened the session, or when it last compared its changes with the slots of the
            // target. Real clients also send this number in syncs.
            Node::Client(client) if names_start(header.message) => {
                Epoch::new(self.start_of(client, header.session))
            }
            Node::Client(_) => Epoch::default(),
        };
        // Metadata targets have sent the map versions in `fence` to the clients in replies.
        let fences = self.targets.iter().map(|it| it.fence);
        let is_for_storage = header.group.raw() as usize > self.targets.len();
        let lowest_map = match caller {
            Node::Client(_) if is_for_storage => fences.max().unwrap_or_default(),
            _ => header.lowest_map,
        };
        let epoch = epoch_of(header.group);
        Header { epoch, sender_epoch, lowest_map, ..header.clone() }
    }

    pub(crate) fn send_again(&mut self, tag: u64) {
        let pause = self.network.next_pause(tag, &mut self.random);
        self.after(pause, SimEvent::Send { tag });
    }

    pub(crate) fn deliver(&mut self, number: u64, header: Header, body: Vec<u8>, was_late: bool) {
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
            Node::Target(target) => {
                if self.refuses_unrecorded(target, number, &header, &body) {
                    return;
                }
                self.duplicate_later(target, &header, &body);
                self.deliver_request(target, number, header, body);
            }
            Node::Storage(storage) if self.storages[storage].is_running => {
                // Drop the late write. The client has sent the write again on a newer connection,
                // and the target has then closed the connection of this write.
                if was_late && header.message == WRITE && self.life(caller) == caller_life {
                    return;
                }
                if was_late && self.network.is_superseded(number) {
                    return;
                }
                self.check_truncation(caller, storage, &header, &body);
                let plant = self.knobs.plant;
                if let Err(error) = self.storages[storage].check(&header, plant) {
                    return self.reply(number, header.tag, Err(error));
                }
                let may_wait = self.knobs.faults.slowness && header.message == WRITE;
                if may_wait && self.random.percent(20) {
                    let pause = self.random.micros(500, 1_500_000);
                    let (connection, life) = (number, self.storages[storage].life);
                    let serve = SimEvent::Serve { connection, storage, life, header, body };
                    return self.after(pause, serve);
                }
                self.serve(number, storage, &header, &body);
            }
            _ => {}
        }
    }

    /// Checks that a storage target has not executed a request from a primary that was deposed
    /// according to the target's own map.
    fn check_sender(&mut self, connection: u64, storage: usize, header: &Header) {
        let Some(connection) = self.network.connections.get(&connection) else { return };
        let group = self.storages[storage].map.group(header.sender_group);
        if let (Node::Target(_), Some(group)) = (connection.caller.0, group)
            && group.primary != connection.channel
            && header.sender_epoch <= group.epoch
        {
            let what = format!(
                "storage {storage} executed a request of target {}, which was deposed by {group:?}",
                connection.channel
            );
            self.fail(what);
        }
    }

    /// Executes a write that has waited for other requests. Repeats the check of the sender,
    /// because management may have removed the client since the first check.
    pub(crate) fn serve_write(
        &mut self,
        number: u64,
        (storage, life): (usize, u64),
        header: &Header,
        body: &[u8],
    ) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let (caller, caller_life) = connection.caller;
        let is_abandoned = !connection.is_open && self.life(caller) == caller_life;
        if self.storages[storage].life != life || is_abandoned || self.network.is_superseded(number)
        {
            return;
        }
        let plant = self.knobs.plant;
        if plant != Some(PlantedBug::CheckBeforeWait)
            && let Err(error) = self.storages[storage].check(header, plant)
        {
            return self.reply(number, header.tag, Err(error));
        }
        self.serve(number, storage, header, body);
    }

    /// Executes a request at a storage target, and sends the reply.
    fn serve(&mut self, number: u64, storage: usize, header: &Header, body: &[u8]) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let caller = connection.caller.0;
        let result = self.storages[storage].serve(header, body, self.knobs.plant);
        if result.is_ok() {
            self.check_sender(number, storage, header);
            self.check_fence(caller, storage, header);
        }
        self.reply(number, header.tag, result);
    }

    /// Checks the fencing of ended sessions. When a metadata target asks a storage target for the
    /// size of a chunk file, the metadata target has already ended some sessions. From then on, the
    /// storage target must not execute writes of these sessions.
    fn check_fence(&mut self, caller: Node, storage: usize, header: &Header) {
        if let (Node::Target(target), STAT) = (caller, header.message) {
            let ended = self.witness.ended_at(target);
            self.storages[storage].fenced.extend(ended);
        } else if header.message == WRITE && self.storages[storage].fenced.contains(&header.session)
        {
            let session = header.session;
            self.fail(format!("storage {storage} executed a write of ended session {session}"));
        }
    }

    /// Sends the reply to a call.
    pub(crate) fn reply(&mut self, connection: u64, tag: u64, result: Result<Vec<u8>>) {
        let arrival = self.network.arrival(&mut self.random, connection, true, self.now);
        self.at(arrival, SimEvent::Return { connection, tag, result });
    }

    /// Handles a reply that has arrived.
    pub(crate) fn receive_reply(&mut self, number: u64, tag: u64, result: Result<Vec<u8>>) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let (caller, server) = (connection.caller, connection.callee);
        let callee = server.0;
        let awaited = self.network.calls.get(&tag).and_then(|call| call.connection);
        if !connection.is_open || self.life(caller.0) != caller.1 || awaited != Some(number) {
            return;
        }
        if let Some(until) = self.network.partitioned_until(caller.0, callee, self.now) {
            let pause = self.random.micros(1, 500);
            return self.at(until + pause, SimEvent::Return { connection: number, tag, result });
        }
        let change = self.network.change_numbers.remove(&(number, tag)).unwrap_or(0);
        if result.as_ref().is_err_and(|error| error.code() == ErrorCode::StaleStart) {
            return self.compare_and_repeat(caller.0, tag);
        }
        if is_final(&result) {
            if result.is_ok() {
                self.note_reply(caller.0, tag, server);
            }
            if let Some(call) = self.network.calls.get_mut(&tag) {
                call.change = change;
            }
            return self.finish_call(tag, result);
        }
        if closes(&result) {
            let was_lost = self.network.calls.get(&tag).is_some_and(|call| call.is_reply_lost);
            self.break_connection(number, false);
            // When the connection broke, all its calls were marked as calls without a reply. Remove
            // the mark from the call of this reply.
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

    /// Passes the final reply of a call to the caller.
    pub(crate) fn finish_call(&mut self, tag: u64, result: Result<Vec<u8>>) {
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
            (Node::Client(client), Purpose::Replay(session)) => {
                self.replay_received(client, session, call.change, &result);
            }
            (Node::Client(client), Purpose::Task(task)) => {
                if let Ok(reply) = &result {
                    self.note_durable(client, task, call.change);
                    self.keep_change(client, task, (call.start, call.change), reply);
                }
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

    /// Breaks the connections of a node that has exited. The callers of the node notice the break
    /// after at most `most_micros` microseconds.
    pub(crate) fn break_all(&mut self, node: Node, most_micros: u64) {
        for connection in self.network.open_connections(node, true) {
            let pause = self.random.micros(0, most_micros);
            self.after(pause, SimEvent::Break { connection });
        }
        // The connections that the node itself opened break immediately, because no process waits
        // for their replies.
        for connection in self.network.open_connections(node, false) {
            if self.network.connections.get(&connection).is_some_and(|it| it.caller.0 == node) {
                let is_late = self.random.percent(30);
                self.break_connection(connection, is_late);
            }
        }
    }
}
