//! Files that several clients have open, at least one client for writing
//! (`docs/design/0008-shared-files.md`): the handles of clients, and their notifications. Checks
//! that the primary notifies each client in time, even if another member has taken over.
//!
//! Notifications are in the memory of a primary only. After a take-over, the new primary must
//! notify again before it replies to an open that its predecessor has not replied to.

use super::client::Purpose;
use super::cluster::Cluster;
use super::knobs::GroupBug;
use super::member::{Member, Role};
use crate::witness::InstanceId;
use crate::world::message;
use skep_metadata::target::Event;
use skep_types::InodeId;
use skep_types::codec::Codec;
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::OpenMode;
use skep_wire::sharing::{AcknowledgeNotifications, Notifications, WaitNotifications};

/// A file that a client has open, or had open.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) inode: InodeId,
    pub(super) mode: OpenMode,
    /// Whether a reply or a notification has marked the file as shared.
    pub(super) is_shared: bool,
    /// The request that opened the file.
    pub(super) opened_by: InstanceId,
}

impl Cluster {
    /// Adds a handle to a client. `notifications_before` is the number of notifications that the
    /// client had received when it sent the open.
    ///
    /// The primary may execute an open, then send a notification, and the notification may arrive
    /// before the reply to the open. So the client counts the file as shared if a notification has
    /// arrived since it sent the open.
    pub(super) fn keep_handle(
        &mut self,
        client: usize,
        handle: Handle,
        notifications_before: usize,
    ) {
        let inode = handle.inode;
        let process = &mut self.clients[client];
        let arrived = process.notifications.arrived.get(notifications_before..).unwrap_or_default();
        let is_notified = arrived.contains(&inode);
        process.handles.push(handle);
        let mut of_file = process.handles.iter().filter(|it| it.inode == inode);
        // A client treats a file as shared until it has closed its last handle of the file.
        if is_notified || of_file.any(|it| it.is_shared) {
            mark_shared(&mut process.handles, inode);
        }
        self.check_sharing(inode);
    }

    /// Sends the poll of a client for notifications.
    pub(super) fn wait_for_notifications(&mut self, client: usize) {
        let unacknowledged = &self.clients[client].notifications.unacknowledged;
        let request = WaitNotifications { known: unacknowledged.iter().copied().collect() };
        self.begin_call(client, Purpose::WaitNotifications, message(&request));
    }

    /// Handles the reply to a poll. The client marks its handles of the files as shared,
    /// acknowledges each notification, and then sends the next poll.
    pub(super) fn receive_notifications(&mut self, client: usize, body: &[u8]) {
        let Ok(list) = Notifications::from_bytes(body) else {
            return self.fail(format!("client {client} gets malformed notifications"));
        };
        for notification in list.notifications {
            let process = &mut self.clients[client];
            process.notifications.arrived.push(notification.inode);
            process.notifications.unacknowledged.insert(notification.number);
            mark_shared(&mut process.handles, notification.inode);
            let request = AcknowledgeNotifications { numbers: vec![notification.number] };
            let purpose = Purpose::AcknowledgeNotification(notification.number);
            self.begin_call(client, purpose, message(&request));
        }
        self.wait_for_notifications(client);
    }

    /// Checks that each client that has a shared file open was notified that the file is shared.
    ///
    /// Ignores a client if a power loss has reverted any of its opens of the file. The primary has
    /// only a count of the opens of each session. So if the client closes a reverted open, the
    /// primary subtracts one from the count of the other opens. After this, the primary may fail to
    /// notify the client, although the client has the file open.
    fn check_sharing(&mut self, inode: InodeId) {
        if self.ledger.is_blind() {
            return;
        }
        let is_writer = |it: &&Member| self.ledger.is_writer(it.target, it.life);
        let Some(Member { role: Role::Primary(primary), .. }) = self.members.iter().find(is_writer)
        else {
            return;
        };
        let holders = primary.holders_of_shared(inode);
        let witness = &self.ledger.witness;
        let unaware = self.clients.iter().position(|it| {
            let all = it.handles.iter().chain(&it.closed);
            let mut of_file = all.filter(|handle| handle.inode == inode);
            holders.contains(&it.session)
                && of_file.all(|handle| witness.is_done(handle.opened_by))
                && it.handles.iter().any(|handle| handle.inode == inode && !handle.is_shared)
        });
        if let Some(client) = unaware {
            self.fail(format!(
                "client {client} has {inode} open, but was not notified that {holders:?} have it \
                 open"
            ));
        }
    }

    /// For a planted bug: changes the reply of a member to a poll. After a take-over, the member
    /// assumes that its predecessor has notified the holders of each file whose open a client
    /// repeats. So the member does not send the notification, and counts the notification as
    /// acknowledged.
    pub(super) fn lose_notifications(
        &mut self,
        index: usize,
        request: &Header,
        body: Vec<u8>,
    ) -> Vec<u8> {
        let has_taken_over = self.members[index].term.raw() > 1;
        let is_planted = self.knobs.plant == Some(GroupBug::LoseNotifications);
        if !is_planted || !has_taken_over || request.message != WaitNotifications::ID {
            return body;
        }
        let Ok(list) = Notifications::from_bytes(&body) else { return body };
        let is_lost = |inode| self.clients.iter().any(|it| it.repeats_open(inode));
        let (lost, notifications): (Vec<_>, Vec<_>) =
            list.notifications.into_iter().partition(|it| is_lost(it.inode));
        if !lost.is_empty() {
            let numbers = lost.iter().map(|it| it.number).collect();
            let header = Header { message: AcknowledgeNotifications::ID, ..request.clone() };
            let body = AcknowledgeNotifications { numbers }.to_bytes();
            // No client waits for the reply on this connection.
            let connection = self.new_number();
            self.put(index, Event::Request { connection, header, body });
        }
        Notifications { notifications }.to_bytes()
    }
}

/// Marks all handles of a file as shared.
fn mark_shared(handles: &mut [Handle], inode: InodeId) {
    handles.iter_mut().filter(|it| it.inode == inode).for_each(|it| it.is_shared = true);
}
