//! The requests of a member's process to other members and to management, and their replies.
//!
//! This module is not responsible for the handling of a request (`roles`), or the delivery of
//! messages (`messages`).

use super::authority::{GROUP, group_of};
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::member::{Requester, Role};
use super::messages::{Ask, MemberReply, Message, Process};
use skep_format::metadata::Batch;
use skep_metadata::shipping::{MemberMessage, MemberRequest};
use skep_metadata::target::Event;
use skep_types::codec::{Bytes, Codec};
use skep_types::{Epoch, ErrorCode, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{AwaitLogSync, CopyStore, LogHeld, ShipLog, StoreCopied};
use std::time::Duration;

/// Time limit for a reply of another member, as in the service.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit for a reply of management.
const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(1);

impl Cluster {
    /// Sends a request of a primary to another member.
    pub(super) fn send_to_member(&mut self, index: usize, request: MemberRequest) {
        let member = &mut self.members[index];
        let (from, number) = ((index, member.life), request.number);
        let sender_epoch = group_of(&member.map).epoch;
        let is_copy = matches!(request.message, MemberMessage::Copy(_));
        member.pending.insert(number, (request.member, is_copy));
        self.after(PATIENCE, GroupEvent::GiveUp { member: index, life: from.1, number });
        let Some(to) = self.members.iter().position(|it| it.target == request.member) else {
            return;
        };
        self.post(Message::ToMember { from, sender_epoch, to, request });
    }

    /// Handles the arrival of a request of another member.
    pub(super) fn receive_request_of_member(
        &mut self,
        from: Process,
        sender_epoch: Epoch,
        to: usize,
        request: MemberRequest,
    ) {
        let number = request.number;
        let is_running = !matches!(self.members[to].role, Role::Down | Role::Waiting);
        if !is_running {
            let reply = refusal(&request.message);
            let member = self.members[to].target;
            return self.post(Message::FromMember { from: to, to: from, member, number, reply });
        }
        let plant = self.knobs.plant;
        let own_epoch = group_of(&self.members[to].map).epoch;
        let is_backup = matches!(self.members[to].role, Role::Backup(_));
        let accepts_all = plant == Some(GroupBug::AcceptOlderEpoch) && is_backup;
        let (mut epoch, message, body) = match request.message {
            MemberMessage::Ship(ship) if accepts_all => {
                (own_epoch, ShipLog::ID, ShipLog { epoch: own_epoch, ..ship }.to_bytes())
            }
            MemberMessage::Ship(mut ship) => {
                if plant == Some(GroupBug::IgnoreWait) {
                    ship.wait_ms = 0;
                }
                (ship.epoch, ShipLog::ID, ship.to_bytes())
            }
            MemberMessage::AwaitSync(wait) => (wait.epoch, AwaitLogSync::ID, wait.to_bytes()),
            MemberMessage::Copy(mut part) => {
                if plant == Some(GroupBug::LoseCopiedChanges) {
                    let nothing = Batch { mutations: Vec::new() }.to_bytes();
                    part.records.iter_mut().for_each(|it| it.payload = Bytes(nothing.clone()));
                }
                (part.epoch, CopyStore::ID, part.to_bytes())
            }
        };
        let mut sender_epoch = sender_epoch;
        if accepts_all {
            (epoch, sender_epoch) = (own_epoch, own_epoch);
        }
        let group = GROUP;
        let header = Header {
            message,
            group,
            epoch,
            sender_group: group,
            sender_epoch,
            ..Header::default()
        };
        let connection = self.new_number();
        self.members[to].requests.insert(connection, Requester::Member { process: from, number });
        self.put(to, Event::Request { connection, header, body });
    }

    /// Replies to a request of another member.
    pub(super) fn reply_to_member(
        &mut self,
        index: usize,
        (to, number): (Process, u64),
        message: u16,
        result: Result<Vec<u8>>,
    ) {
        let mut reply = match message {
            CopyStore::ID => MemberReply::Copy(result.and_then(|it| StoreCopied::from_bytes(&it))),
            _ => MemberReply::Log(result.and_then(|it| LogHeld::from_bytes(&it))),
        };
        if self.knobs.plant == Some(GroupBug::ConfirmUnsynced)
            && let MemberReply::Log(Ok(held)) = &mut reply
            && !held.is_behind
        {
            held.appended = held.ship_after;
        }
        if let MemberReply::Log(Ok(held)) = &reply {
            self.check_held(index, to, held.appended);
        }
        let now = self.now;
        let process = &mut self.members[index];
        if matches!(&reply, MemberReply::Log(Ok(held)) if held.lease_ms > 0) {
            process.granted_at = process.clock(now);
        }
        let member = process.target;
        self.post(Message::FromMember { from: index, to, member, number, reply });
    }

    /// Handles the reply of another member.
    pub(super) fn receive_reply_of_member(
        &mut self,
        (index, life): Process,
        member: TargetId,
        number: u64,
        mut reply: MemberReply,
    ) {
        if self.knobs.plant == Some(GroupBug::IgnoreGrant)
            && let MemberReply::Log(Ok(held)) = &mut reply
        {
            held.lease_ms = u32::MAX;
        }
        let process = &mut self.members[index];
        if process.life != life || process.pending.remove(&number).is_none() {
            return;
        }
        let (MemberReply::Log(Err(error)) | MemberReply::Copy(Err(error))) = &reply else {
            let event = event_of(member, number, reply);
            return self.put(index, event);
        };
        if error.code() == ErrorCode::Deposed && self.knobs.plant != Some(GroupBug::GoOnDeposed) {
            return self.end_role(index);
        }
        let event = event_of(member, number, reply);
        self.put(index, event);
    }

    /// Counts a request to another member as failed, unless the member has received a reply.
    pub(super) fn give_up(&mut self, index: usize, life: u64, number: u64) {
        let process = &mut self.members[index];
        if process.life != life {
            return;
        }
        let Some((member, is_copy)) = process.pending.remove(&number) else { return };
        let reply = match is_copy {
            true => MemberReply::Copy(Err(ErrorCode::TimedOut.into())),
            false => MemberReply::Log(Err(ErrorCode::TimedOut.into())),
        };
        self.put(index, event_of(member, number, reply));
    }

    // ---- management

    /// Sends a request to management, unless another request to management is under way.
    pub(super) fn ask_management(&mut self, index: usize, ask: Ask) {
        if self.members[index].asked.is_some() {
            return;
        }
        let number = self.new_number();
        let member = &mut self.members[index];
        member.asked = Some(number);
        let (from, life) = ((index, member.life), member.life);
        self.after(
            MANAGEMENT_PATIENCE,
            GroupEvent::GiveUpManagement { member: index, life, number },
        );
        self.send_to_management(from, number, ask);
    }

    /// Handles management's reply to the request `number` of a member. `error` is `None` if the
    /// request succeeded.
    pub(super) fn management_replied(
        &mut self,
        (index, life): Process,
        number: u64,
        error: Option<ErrorCode>,
    ) {
        let member = &mut self.members[index];
        if member.life != life || member.asked != Some(number) {
            return;
        }
        member.asked = None;
        if error == Some(ErrorCode::Deposed) && self.knobs.plant != Some(GroupBug::GoOnDeposed) {
            self.end_role(index);
        }
    }
}

fn event_of(member: TargetId, number: u64, reply: MemberReply) -> Event {
    match reply {
        MemberReply::Log(result) => Event::MemberReply { member, number, result },
        MemberReply::Copy(result) => Event::CopyReply { member, number, result },
    }
}

/// Returns the reply to a request that no process accepts.
fn refusal(message: &MemberMessage) -> MemberReply {
    let error = ErrorCode::TargetLost.into();
    match message {
        MemberMessage::Copy(_) => MemberReply::Copy(Err(error)),
        MemberMessage::Ship(_) | MemberMessage::AwaitSync(_) => MemberReply::Log(Err(error)),
    }
}
