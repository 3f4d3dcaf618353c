//! The requests `WaitNotifications` (a poll) and `AcknowledgeNotifications`, and the replies to
//! parked polls. Polls and acknowledgements use no slot and do not become operations, because a
//! client must receive notifications even while all its slots have a request in progress.

use crate::engine::Engine;
use crate::sharing::table::PollReply;
use crate::target::MetadataTarget;
use crate::tx::locks::Owner;
use crate::tx::operation::ConnectionId;
use skep_format::metadata::{Key, OpenCounts};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::limits::MAX_NOTIFICATIONS;
use skep_wire::sharing::{AcknowledgeNotifications, Notifications, WaitNotifications};

fn protocol(what: &str) -> Error {
    Error::new(ErrorCode::Protocol, what)
}

impl<E: Engine> MetadataTarget<E> {
    pub(crate) fn load_sharing(&mut self) -> Result<()> {
        for key in self.table.scan_keys(&Key::session_opens(), &[], usize::MAX)? {
            self.shared.sharing.on_write(&key, true);
        }
        Ok(())
    }

    /// Handles a `WaitNotifications` request: refuses it, or parks it until there are notifications
    /// for the session, at most for `WAIT_ANSWER`.
    pub(crate) fn wait_for_notifications(
        &mut self,
        connection: ConnectionId,
        header: Header,
        body: &[u8],
    ) {
        let request = match WaitNotifications::from_bytes(body) {
            Ok(request) if request.known.len() <= MAX_NOTIFICATIONS => request,
            Ok(_) => {
                return self.refuse(
                    connection,
                    header,
                    protocol(
                        "cannot poll for notifications: the request has too many \
                         notification numbers",
                    ),
                );
            }
            Err(error) => return self.refuse(connection, header, protocol(error.context())),
        };
        let now = self.shared.now;
        if let Some(before) = self.shared.sharing.poll(connection, header, request.known, now) {
            self.answer_poll(before);
        }
    }

    /// Handles an `AcknowledgeNotifications` request.
    pub(crate) fn take_acknowledgement(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let AcknowledgeNotifications { numbers } = AcknowledgeNotifications::from_bytes(body)
            .map_err(|error| protocol(error.context()))?;
        self.shared.sharing.acknowledged(header.session, &numbers);
        Ok(())
    }

    /// Wakes the waiting opens of each file whose notification all notified sessions have
    /// acknowledged.
    pub(crate) fn end_notifications(&mut self) {
        for inode in self.shared.sharing.take_completed() {
            self.release(Owner::Holders(inode));
        }
    }

    /// Replies to the polls that have notifications, and to the polls that have waited for the
    /// maximum time.
    pub(crate) fn send_notifications(&mut self) {
        self.shared.sharing.end_batch();
        for reply in self.shared.sharing.due_replies(self.shared.now) {
            self.answer_poll(reply);
        }
    }

    /// Returns the sessions that have the file open, if the file is shared. Returns no session for
    /// a file that is not shared. Only checks of invariants use it.
    pub fn holders_of_shared(&self, inode: InodeId) -> Vec<SessionId> {
        let holders = self.shared.sharing.holders(inode);
        let opens = self.table.get(&Key::Opens(inode).to_bytes()).ok().flatten();
        let opens = opens.and_then(|value| OpenCounts::from_bytes(&value).ok()).unwrap_or_default();
        if holders.len() > 1 && opens.writers > 0 { holders.to_vec() } else { Vec::new() }
    }

    fn answer_poll(&mut self, reply: PollReply) {
        let PollReply { connection, header, notifications } = reply;
        self.reply_now(connection, header, Notifications { notifications }.to_bytes());
    }
}
