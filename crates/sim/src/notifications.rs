//! Notifications to clients about shared files (docs/design/0008-shared-files.md), and the check
//! that each notification arrives in time.

use crate::client::is_lost;
use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose};
use crate::world::{World, message};
use skep_types::codec::Codec;
use skep_types::{GroupId, InodeId, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::sharing::{
    AcknowledgeNotifications, Notifications as NotificationList, WaitNotifications,
};
use std::collections::BTreeSet;

/// The notifications that a client has received.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// The files in the notifications, in order of arrival.
    pub(crate) arrived: Vec<InodeId>,
    /// Numbers of the notifications whose acknowledgements are in flight.
    pub(crate) unacknowledged: BTreeSet<u64>,
}

impl World {
    /// Sends the request of a client that waits for notifications about shared files.
    pub(crate) fn wait_for_notifications(
        &mut self,
        client: usize,
        group: GroupId,
        session: SessionId,
    ) {
        let known = self.clients[client].notifications.unacknowledged.iter().copied().collect();
        let (header, body) = message(&WaitNotifications { known });
        let header = Header { session, ..header };
        self.call(
            Node::Client(client),
            group,
            header,
            body,
            Purpose::Notifications(group, session),
        );
    }

    /// Handles a reply with notifications. The client marks its handles of the files as shared, and
    /// acknowledges the notifications.
    pub(crate) fn receive_notifications(
        &mut self,
        client: usize,
        (group, session): (GroupId, SessionId),
        result: &Result<Vec<u8>>,
    ) {
        let process = &mut self.clients[client];
        if process.sessions.get(&group).is_none_or(|it| it.id != session) {
            return;
        }
        let list = match result {
            Ok(body) => NotificationList::from_bytes(body),
            Err(error) if is_lost(error) => {
                return self.replace_session(client, group, session, error);
            }
            Err(error) => {
                return self.fail(format!("client {client} cannot receive notifications: {error}"));
            }
        };
        let Ok(list) = list else { return self.fail("notifications are malformed".to_owned()) };
        for notification in list.notifications {
            let process = &mut self.clients[client];
            process.notifications.arrived.push(notification.inode);
            process.notifications.unacknowledged.insert(notification.number);
            let handles = process.handles.iter_mut().filter(|it| it.inode == notification.inode);
            if self.knobs.plant != Some(PlantedBug::IgnoreNotifications) {
                handles.for_each(|handle| handle.is_shared = true);
                process.files.share(notification.inode);
            }
            let (header, body) =
                message(&AcknowledgeNotifications { numbers: vec![notification.number] });
            let header = Header { session, ..header };
            let purpose = Purpose::Acknowledge(notification.number);
            self.call(Node::Client(client), group, header, body, purpose);
        }
        self.wait_for_notifications(client, group, session);
    }

    /// Checks that each client that has a shared file open was notified that the file is shared.
    /// Ignores opens that a power loss has reverted, because no metadata target has a record of
    /// them (docs/design/0008-shared-files.md, failure cases).
    pub(crate) fn check_sharing(&mut self, inode: InodeId) {
        let running = self.targets.iter().filter_map(|target| target.running.as_ref());
        let holders: Vec<_> = running.flat_map(|it| it.holders_of_shared(inode)).collect();
        for client in 0..self.clients.len() {
            let process = &self.clients[client];
            let of_file = process.handles.iter().filter(|handle| handle.inode == inode);
            let unaware = of_file
                .filter(|it| holders.contains(&it.session) && !it.is_shared)
                .filter(|it| self.witness.is_done(it.opened_by))
                .map(|it| it.session)
                .next();
            if let Some(session) = unaware {
                return self.fail(format!(
                    "client {client} has {inode} open in session {session}, but was not notified \
                     that {holders:?} have it open"
                ));
            }
        }
    }
}
