//! The actions of a member's role: writes to the log, checkpoints, requests and replies. The
//! functions do the same as `service/roles.rs` of `crates/metadata`, but without files and sockets.
//!
//! This module is not responsible for the roles and their changes (`roles`).

use super::authority::{GROUP, group_of};
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::member::{Contents, Member, Requester, Role};
use super::messages::{Ask, Message};
use crate::knobs::{SLOW_SYNC_MICROS, USUAL_SYNC_MICROS};
use skep_metadata::target::{Action, Event};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{ClusterMap, Epoch, Lsn, MemberState, Result, RetryClass};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::management::AskTakeOver;
use skep_wire::metadata::CompareSlots;
use std::sync::Arc;

impl Cluster {
    /// Performs an action of a role.
    pub(super) fn act(&mut self, index: usize, action: Action) {
        let life = self.members[index].life;
        match action {
            Action::Append { epoch, lsn, synced, payload } => {
                self.append_as_role(index, (epoch, lsn, synced), payload);
            }
            Action::Truncate { after } => self.members[index].disk.cut(after),
            Action::Sync { lsn } => {
                let is_slow = self.knobs.faults.slowness && self.random.percent(10);
                let most = if is_slow { SLOW_SYNC_MICROS } else { USUAL_SYNC_MICROS };
                let pause = self.random.micros(50, most);
                let point = self.members[index].disk.begin_sync();
                self.after(pause, GroupEvent::Synced { member: index, life, lsn, point });
            }
            Action::Checkpoint { lsn } => self.begin_checkpoint(index, lsn),
            Action::SendToMember(request) => self.send_to_member(index, request),
            Action::ReadLog(read) => {
                let pause = self.random.micros(50, USUAL_SYNC_MICROS);
                self.after(pause, GroupEvent::LogRead { member: index, life, read });
            }
            Action::ChangeGroup(change) => {
                if self.knobs.plant == Some(GroupBug::DropAlone)
                    && change.change == MemberChange::Drop
                {
                    return self.drop_alone(index, &change);
                }
                self.note_request(index, &change);
                let epoch = group_of(&self.members[index].map).epoch;
                self.ask_management(index, Ask::Change(change, epoch));
            }
            Action::AskTakeOver(request) => {
                if !request.lacks_records {
                    let AskTakeOver { group, epoch, target, .. } = request;
                    let change = MemberChange::TakeOver;
                    self.note_request(index, &GroupChange { group, epoch, change, target });
                }
                self.ask_management(index, Ask::TakeOver(request));
            }
            Action::Reply { connection, request, result } => {
                self.reply(index, connection, &request, result);
            }
            // In this simulation, members evict no client, because clients renew their leases, and
            // their nodes never leave the cluster.
            Action::Evict { .. } => {}
            Action::Call { request, .. } => {
                self.fail(format!("member {index} sends message {}", request.message));
            }
        }
    }

    /// Records the request for a change of the group in the member mark, the member's durable
    /// state.
    fn note_request(&mut self, index: usize, change: &GroupChange) {
        let is_noted = matches!(
            change.change,
            MemberChange::MarkInSync | MemberChange::Drop | MemberChange::TakeOver
        );
        if is_noted && self.knobs.plant != Some(GroupBug::ForgetCounted) {
            let Member { mark, map, .. } = &mut self.members[index];
            mark.counted = mark.counted.with(change.epoch, map.version, change.target);
        }
    }

    fn append_as_role(&mut self, index: usize, name: (Epoch, Lsn, Lsn), payload: Vec<u8>) {
        let member = &mut self.members[index];
        let is_backup = matches!(member.role, Role::Backup(_));
        if is_backup && self.knobs.plant == Some(GroupBug::AcknowledgeBeforeAppend) {
            member.unwritten.push((name.0, name.1, name.2, payload));
            return;
        }
        let (target, life) = (member.target, member.life);
        self.append(index, name, &payload);
        if !is_backup && self.ledger.is_writer(target, life) {
            let result = self.ledger.append(name.1, name.0, &payload);
            self.check(result.map_err(|what| format!("{target}, record {}: {what}", name.1)));
        }
    }

    fn begin_checkpoint(&mut self, index: usize, lsn: Lsn) {
        let member = &mut self.members[index];
        let life = member.life;
        let batches = match &member.role {
            Role::Primary(it) => it.engine().batches_since_checkpoint(),
            Role::Backup(it) => it.engine().batches_since_checkpoint(),
            Role::Copying(it) => it.engine().batches_since_checkpoint(),
            Role::Down | Role::Waiting | Role::Former(_) => return,
        };
        if matches!(member.role, Role::Copying(_)) {
            match self.knobs.plant {
                Some(GroupBug::TrustUnsyncedCopy) => {
                    return self.put(index, Event::Checkpointed { lsn });
                }
                Some(GroupBug::OpenIncompleteCopy) => {
                    self.members[index].mark.contents = Contents::Whole;
                    return self.end_role(index);
                }
                _ => {}
            }
        }
        let pause = self.random.micros(500, 30_000);
        self.after(pause, GroupEvent::Checkpointed { member: index, life, lsn, batches });
    }

    /// For a planted bug: lets the primary count a silent member as dropped.
    fn drop_alone(&mut self, index: usize, change: &GroupChange) {
        let member = &mut self.members[index];
        let mut map = ClusterMap::clone(&member.map);
        for group in map.groups.iter_mut().filter(|it| it.id == GROUP) {
            let dropped = group.members.iter_mut().filter(|it| it.target == change.target);
            dropped.for_each(|it| it.state = MemberState::Waiting);
        }
        let events = vec![Event::Map(Arc::new(map))];
        self.handle_as_role(index, events);
    }

    /// Sends a reply of a member's process.
    fn reply(&mut self, index: usize, connection: u64, request: &Header, result: Result<Vec<u8>>) {
        let member = &mut self.members[index];
        let Some(requester) = member.requests.remove(&connection) else { return };
        let (target, life, term) = (member.target, member.life, member.term);
        let is_primary = matches!(member.role, Role::Primary(_));
        match requester {
            Requester::Member { process, number } => {
                self.reply_to_member(index, (process, number), request.message, result);
            }
            Requester::Client { client, call, attempt } => {
                let class = result.as_ref().err().map(|error| error.code().retry_class());
                if is_primary && class.is_none_or(|class| class == RetryClass::Never) {
                    let checked = self.ledger.check_reply(term, target);
                    self.check(checked);
                }
                if let (true, CompareSlots::ID, Ok(body)) =
                    (self.ledger.is_writer(target, life), request.message, &result)
                {
                    let checked = self.ledger.check_slots(request.session, body);
                    self.check(checked);
                }
                let result = result.map(|body| self.lose_notifications(index, request, body));
                let from = index;
                self.post(Message::Reply { from, client, call, attempt, term, result });
            }
        }
    }
}
