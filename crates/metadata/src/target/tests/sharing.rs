//! Tests of files that several sessions have open. Before the target replies to an open that makes
//! a file shared, the sessions that have the file open must acknowledge the sharing.

use super::*;
use crate::limits::WAIT_ANSWER;
use skep_wire::sharing::{
    AcknowledgeNotifications, Notification, Notifications, WaitNotifications,
};

/// Returns the connection on which a session waits for notifications.
fn poll_of(session: u64) -> ConnectionId {
    1000 + session
}

impl Story {
    /// Opens a file on connection 1. Returns whether the file is shared. `None` means that there is
    /// no reply yet.
    fn opens(
        &mut self,
        session: u64,
        at: (u32, u64),
        inode: InodeId,
        open: md::OpenMode,
    ) -> Option<bool> {
        self.send(1, session, at, &open_of(inode, open));
        self.opened()
    }

    /// Returns whether the reply to an open marks the file as shared. `None` means that there is no
    /// reply yet.
    fn opened(&mut self) -> Option<bool> {
        let index = self.replies.iter().position(|(connection, _)| *connection == 1)?;
        let (_, result) = self.replies.remove(index);
        Some(md::OpenReply::from_bytes(&result.unwrap()).unwrap().is_shared)
    }

    fn waits_for_notifications(&mut self, session: u64, known: Vec<u64>) {
        self.send(poll_of(session), session, (0, 0), &WaitNotifications { known });
    }

    /// Returns the notifications that a session has received.
    fn notifications_of(&mut self, session: u64) -> Option<Vec<Notification>> {
        let index = self.replies.iter().position(|(on, _)| *on == poll_of(session))?;
        let (_, result) = self.replies.remove(index);
        Some(Notifications::from_bytes(&result.unwrap()).unwrap().notifications)
    }

    fn acknowledges(&mut self, session: u64, number: u64) {
        self.send(7, session, (0, 0), &AcknowledgeNotifications { numbers: vec![number] });
        self.replies.retain(|(connection, _)| *connection != 7);
    }

    /// Receives the notification that a file becomes shared, and acknowledges it, both on behalf of
    /// a session.
    pub(super) fn learns_that_it_shares(&mut self, session: u64, inode: InodeId) {
        self.waits_for_notifications(session, Vec::new());
        let notifications = self.notifications_of(session).expect("a notification");
        let notification =
            notifications.iter().find(|it| it.inode == inode).expect("a notification of the file");
        self.acknowledges(session, notification.number);
    }

    /// Sends a request that opens a file. Session `holder`, which has the file open, acknowledges
    /// the notification. Returns the reply to the request.
    pub(super) fn ask_sharing<R: Request>(
        &mut self,
        session: u64,
        at: (u32, u64),
        request: &R,
        (holder, inode): (u64, InodeId),
    ) -> R::Reply {
        self.send(1, session, at, request);
        self.learns_that_it_shares(holder, inode);
        let index = self.replies.iter().position(|(connection, _)| *connection == 1);
        let (_, result) = self.replies.remove(index.expect("an answer"));
        R::Reply::from_bytes(&result.unwrap()).unwrap()
    }
}

const READ: md::OpenMode = md::OpenMode::Read;
const WRITE: md::OpenMode = md::OpenMode::Write;

#[test]
fn an_open_waits_until_all_notified_sessions_acknowledge() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.notifications_of(1), None);
    assert_eq!(story.opens(2, (0, 1), inode, READ), None);
    let notifications = story.notifications_of(1).expect("the parked poll is answered immediately");
    assert_eq!(notifications.iter().map(|it| it.inode).collect::<Vec<_>>(), [inode]);
    story.acknowledges(1, notifications[0].number + 1);
    assert_eq!(story.opened(), None, "an acknowledgement with another number has no effect");
    story.acknowledges(2, notifications[0].number);
    assert_eq!(story.opened(), None, "another session has nothing to acknowledge");
    story.acknowledges(1, notifications[0].number);
    assert_eq!(story.opened(), Some(true));
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.notifications_of(1), None, "no further notification is pending");
    // A further open causes no notification, because all sessions have been notified that the file
    // is shared.
    assert_eq!(story.opens(2, (0, 2), inode, WRITE), Some(true));
    assert_eq!(story.opens(1, (0, 2), inode, READ), Some(true));
}

#[test]
fn file_becomes_shared_when_a_client_opens_it_for_writing() {
    let mut story = Story::begin();
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 3, (0, 0), &open).unwrap();
    let inode = story.create(1, (0, 1));
    let closed = md::Close { inode, open: WRITE, written: None };
    assert_eq!(
        story.opens(1, (0, 2), inode, READ),
        Some(false),
        "no other session has the file open"
    );
    story.ask(1, 1, (0, 3), &closed).unwrap();
    assert_eq!(story.opens(2, (0, 1), inode, READ), Some(false));
    assert_eq!(story.opens(2, (0, 2), inode, WRITE), None);
    story.learns_that_it_shares(2, inode);
    // Meanwhile, another session opens the file for reading. The reply to that open marks the file
    // as shared, so the open for writing need not wait for that session.
    story.send(3, 3, (0, 1), &open_of(inode, READ));
    let (on, result) = story.replies.pop().unwrap();
    assert_eq!((on, md::OpenReply::from_bytes(&result.unwrap()).unwrap().is_shared), (3, true));
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

/// Two sessions have a file open for reading, and one of them opens it for writing too. Regression
/// test: the target could reply to a further open of the other session before the first session
/// received the reply to its second open. So the other session wrote while the first session still
/// read cached pages through its first open.
#[test]
fn session_is_notified_when_its_own_second_open_shares_a_file() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let closed = md::Close { inode, open: WRITE, written: None };
    story.ask(1, 1, (0, 2), &closed).unwrap();
    assert_eq!(story.opens(1, (0, 3), inode, READ), Some(false));
    assert_eq!(story.opens(2, (0, 1), inode, READ), Some(false));
    assert_eq!(story.opens(1, (0, 4), inode, WRITE), None);
    story.learns_that_it_shares(2, inode);
    assert_eq!(story.opened(), None, "the session itself has not acknowledged");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

/// Four opens wait for a writer, which then closes the file. The reply to the first open of session
/// 2 does not mark the file as shared, but the reply to its second open does. Regression test: the
/// target let the next writer open the file as if session 2 had acknowledged for both opens.
#[test]
fn writer_waits_for_acknowledgements_of_all_opens_of_a_session() {
    let mut story = Story::begin();
    let session = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 3, (0, 0), &session).unwrap();
    let inode = story.create(1, (0, 1));
    let open = |open| open_of(inode, open);
    story.send(11, 2, (0, 1), &open(READ));
    story.send(12, 3, (0, 1), &open(READ));
    story.send(13, 2, (1, 1), &open(READ));
    story.send(14, 3, (1, 1), &open(WRITE));
    assert!(story.replies.is_empty());
    story.send(5, 1, (0, 2), &md::Close { inode, open: WRITE, written: None });
    let is_answered = |story: &Story, on| story.replies.iter().any(|it| it.0 == on);
    assert!([11, 12, 13].into_iter().all(|on| is_answered(&story, on)));
    assert!(!is_answered(&story, 14), "the first open of session 2 has not acknowledged");
    story.learns_that_it_shares(2, inode);
    assert!(is_answered(&story, 14));
}

#[test]
fn an_open_does_not_wait_for_sessions_that_close_or_end() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert_eq!(story.opens(2, (0, 1), inode, WRITE), None);
    story.send(5, 1, (0, 2), &md::Close { inode, open: WRITE, written: None });
    assert_eq!(story.opened(), Some(false), "only session 2 has the file open");
    story.replies.clear();
    assert_eq!(story.opens(1, (0, 3), inode, READ), None);
    story.send(5, 2, (0, 0), &md::CloseSession {});
    assert_eq!(story.opened(), Some(false));
}

/// Session 1 acknowledges that a file becomes shared, closes the file, and opens it again.
/// Meanwhile, the open of session 2 still waits for session 3. Regression test: the target replied
/// to this open without a second acknowledgement of session 1.
#[test]
fn old_acknowledgement_is_invalid_after_a_reopen_of_the_file() {
    let mut story = Story::begin();
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 3, (0, 0), &open).unwrap();
    let inode = story.create(1, (0, 1));
    let closed = md::Close { inode, open: WRITE, written: None };
    story.ask(1, 1, (0, 2), &closed).unwrap();
    assert_eq!(story.opens(1, (0, 3), inode, READ), Some(false));
    assert_eq!(story.opens(3, (0, 1), inode, READ), Some(false));
    assert_eq!(story.opens(2, (0, 1), inode, WRITE), None);
    story.learns_that_it_shares(1, inode);
    let closed = md::Close { inode, open: READ, written: None };
    story.send(5, 1, (0, 4), &closed);
    // Session 1 opens the file again, and this open waits for session 3. Session 2 replaces its
    // open by a new request.
    story.send(6, 1, (1, 1), &open_of(inode, WRITE));
    story.send(1, 2, (0, 2), &open_of(inode, WRITE));
    story.replies.clear();
    story.send(5, 3, (0, 2), &closed);
    let index = story.replies.iter().position(|(on, _)| *on == 6).expect("an answer");
    let opened =
        md::OpenReply::from_bytes(story.replies.remove(index).1.as_ref().unwrap()).unwrap();
    assert!(!opened.is_shared, "no other session has the file open");
    assert_eq!(story.opened(), None, "the first session has not acknowledged");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

/// A client opens a file again before its acknowledgement for the first open, and then closes the
/// first open.
#[test]
fn reopen_before_an_acknowledgement_marks_the_file_as_shared() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert_eq!(story.opens(2, (0, 1), inode, READ), None);
    story.waits_for_notifications(1, Vec::new());
    let number = story.notifications_of(1).expect("a notification")[0].number;
    assert_eq!(story.opens(1, (0, 2), inode, WRITE), Some(true));
    let closed = md::Close { inode, open: WRITE, written: None };
    story.ask(5, 1, (0, 3), &closed).unwrap();
    assert_eq!(story.opened(), None, "the session still has the file open");
    story.acknowledges(1, number);
    assert_eq!(story.opened(), Some(true));
}

#[test]
fn a_notification_is_repeated_after_a_lost_reply_or_a_restart() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert_eq!(story.opens(2, (0, 1), inode, READ), None);
    story.waits_for_notifications(1, Vec::new());
    let first = story.notifications_of(1).unwrap()[0].number;
    // The reply with the notification was lost, so the client polls again.
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.notifications_of(1).unwrap()[0].number, first);
    story.waits_for_notifications(1, vec![first]);
    assert_eq!(story.notifications_of(1), None, "the client has this notification already");
    story.restart();
    assert_eq!(story.opens(2, (0, 1), inode, READ), None, "the target notifies session 1 again");
    story.acknowledges(1, first);
    assert_eq!(story.opened(), None, "the number belongs to an earlier notification");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

#[test]
fn a_poll_without_notifications_ends_after_its_time_limit() {
    let mut story = Story::begin();
    story.waits_for_notifications(1, Vec::new());
    story.now += WAIT_ANSWER;
    story.happens(Event::Tick);
    assert_eq!(story.notifications_of(1), Some(Vec::new()));
    story.waits_for_notifications(1, Vec::new());
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(
        story.notifications_of(1),
        Some(Vec::new()),
        "the target answers the older of two polls"
    );
    assert_eq!(story.notifications_of(1), None);
    story.send(5, 1, (0, 0), &md::CloseSession {});
    let index = story.replies.iter().position(|(on, _)| *on == poll_of(1)).unwrap();
    let refusal = story.replies.remove(index).1.unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::StaleSession);
}

/// Regression test: a truncation by a client that did not have the file open notified no session.
/// The only client with the file open then appended at the old end of the file.
#[test]
fn truncation_by_another_client_waits_for_the_writer() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.send(1, 2, (0, 1), &truncate(inode));
    assert!(story.replies.is_empty() && story.calls.is_empty());
    story.learns_that_it_shares(1, inode);
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert!(story.replies.pop().is_some_and(|(_, result)| result.is_ok()));
    // The client that truncates the file is not notified of its own truncation.
    story.send(1, 1, (0, 2), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert!(story.replies.pop().is_some_and(|(_, result)| result.is_ok()));
}

#[test]
fn entry_info_counts_the_sessions_that_have_a_file_open() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let sessions = |story: &mut Story| {
        story.ask(3, 2, (0, 0), &md::GetEntryInfo { inode }).unwrap().open_sessions
    };
    assert_eq!(sessions(&mut story), 1);
    assert_eq!(story.opens(1, (0, 2), inode, READ), Some(false));
    assert_eq!(sessions(&mut story), 1, "both opens belong to one session");
    story.ask_sharing(2, (0, 1), &open_of(inode, READ), (1, inode));
    assert_eq!(sessions(&mut story), 2);
    story.restart();
    assert_eq!(sessions(&mut story), 2);
    for (sequence, open) in [(3, WRITE), (4, READ)] {
        story.ask(1, 1, (0, sequence), &md::Close { inode, open, written: None }).unwrap();
    }
    assert_eq!(sessions(&mut story), 1);
}
