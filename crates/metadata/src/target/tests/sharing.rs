//! Files that several sessions have open: who has to know before an open is answered.

use super::*;
use crate::limits::WAIT_ANSWER;
use skep_wire::sharing::{
    AcknowledgeNotifications, Notification, Notifications, WaitNotifications,
};

/// Connection on which a session waits for notifications.
fn poll_of(session: u64) -> ConnectionId {
    1000 + session
}

impl Story {
    /// Opens a file on connection 1; `None` if that is not answered yet.
    fn opens(
        &mut self,
        session: u64,
        at: (u32, u64),
        inode: InodeId,
        open: md::OpenMode,
    ) -> Option<bool> {
        self.send(
            1,
            session,
            at,
            &md::Open { inode, open, truncate: false, must_have_name: false },
        );
        self.opened()
    }

    /// The answer to an open.
    fn opened(&mut self) -> Option<bool> {
        let index = self.replies.iter().position(|(connection, _)| *connection == 1)?;
        let (_, result) = self.replies.remove(index);
        Some(md::OpenReply::from_bytes(&result.unwrap()).unwrap().is_shared)
    }

    fn waits_for_notifications(&mut self, session: u64, known: Vec<u64>) {
        self.send(poll_of(session), session, (0, 0), &WaitNotifications { known });
    }

    /// What a session was told.
    fn told(&mut self, session: u64) -> Option<Vec<Notification>> {
        let index = self.replies.iter().position(|(on, _)| *on == poll_of(session))?;
        let (_, result) = self.replies.remove(index);
        Some(Notifications::from_bytes(&result.unwrap()).unwrap().notifications)
    }

    fn acknowledges(&mut self, session: u64, number: u64) {
        self.send(7, session, (0, 0), &AcknowledgeNotifications { numbers: vec![number] });
        self.replies.retain(|(connection, _)| *connection != 7);
    }

    /// A session is told of a file, and acknowledges.
    pub(super) fn learns_that_it_shares(&mut self, session: u64, inode: InodeId) {
        self.waits_for_notifications(session, Vec::new());
        let told = self.told(session).expect("a notification");
        let notification =
            told.iter().find(|it| it.inode == inode).expect("a notification of the file");
        self.acknowledges(session, notification.number);
    }

    /// Asks for something that opens a file which a session has open; that one learns of it.
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
fn an_open_waits_until_who_has_the_file_knows() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.told(1), None);
    assert_eq!(story.opens(2, (0, 1), inode, READ), None);
    let told = story.told(1).expect("who waits is told at once");
    assert_eq!(told.iter().map(|it| it.inode).collect::<Vec<_>>(), [inode]);
    story.acknowledges(1, told[0].number + 1);
    assert_eq!(story.opened(), None, "another number acknowledges nothing");
    story.acknowledges(2, told[0].number);
    assert_eq!(story.opened(), None, "another session has nothing to acknowledge");
    story.acknowledges(1, told[0].number);
    assert_eq!(story.opened(), Some(true));
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.told(1), None, "there is nothing left to be told");
    // Who comes now needs nobody to be told: all know.
    assert_eq!(story.opens(2, (0, 2), inode, WRITE), Some(true));
    assert_eq!(story.opens(1, (0, 2), inode, READ), Some(true));
}

#[test]
fn readers_alone_share_nothing_until_one_writes() {
    let mut story = Story::begin();
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 3, (0, 0), &open).unwrap();
    let inode = story.create(1, (0, 1));
    let closed = md::Close { inode, open: WRITE, written: None };
    assert_eq!(story.opens(1, (0, 2), inode, READ), Some(false), "it is alone");
    story.ask(1, 1, (0, 3), &closed).unwrap();
    assert_eq!(story.opens(2, (0, 1), inode, READ), Some(false));
    assert_eq!(story.opens(2, (0, 2), inode, WRITE), None);
    story.learns_that_it_shares(2, inode);
    // A reader that comes meanwhile is told by the answer, and needn't be waited for.
    story.send(
        3,
        3,
        (0, 1),
        &md::Open { inode, open: READ, truncate: false, must_have_name: false },
    );
    let (on, result) = story.replies.pop().unwrap();
    assert_eq!((on, md::OpenReply::from_bytes(&result.unwrap()).unwrap().is_shared), (3, true));
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

/// A session that had the file open for reading opened it for writing, too. A third one was
/// answered before the answer to that was there, and wrote while the first handle's pages were
/// shown.
#[test]
fn who_makes_a_file_shared_is_told_of_what_he_had_open_before() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let closed = md::Close { inode, open: WRITE, written: None };
    story.ask(1, 1, (0, 2), &closed).unwrap();
    assert_eq!(story.opens(1, (0, 3), inode, READ), Some(false));
    assert_eq!(story.opens(2, (0, 1), inode, READ), Some(false));
    assert_eq!(story.opens(1, (0, 4), inode, WRITE), None);
    story.learns_that_it_shares(2, inode);
    assert_eq!(story.opened(), None, "its own session doesn't know");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

/// All of these waited for a writer that closes. The first open of session 2 is answered that it is
/// alone, the second that it isn't; the writer after it was answered as if both were known.
#[test]
fn second_open_by_a_client_is_notified_when_the_file_becomes_shared() {
    let mut story = Story::begin();
    let session = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 3, (0, 0), &session).unwrap();
    let inode = story.create(1, (0, 1));
    let open = |open| md::Open { inode, open, truncate: false, must_have_name: false };
    story.send(11, 2, (0, 1), &open(READ));
    story.send(12, 3, (0, 1), &open(READ));
    story.send(13, 2, (1, 1), &open(READ));
    story.send(14, 3, (1, 1), &open(WRITE));
    assert!(story.replies.is_empty());
    story.send(5, 1, (0, 2), &md::Close { inode, open: WRITE, written: None });
    let is_answered = |story: &Story, on| story.replies.iter().any(|it| it.0 == on);
    assert!([11, 12, 13].into_iter().all(|on| is_answered(&story, on)));
    assert!(!is_answered(&story, 14), "what session 2 opened first doesn't know");
    story.learns_that_it_shares(2, inode);
    assert!(is_answered(&story, 14));
}

#[test]
fn who_closes_or_ends_needs_not_be_waited_for() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert_eq!(story.opens(2, (0, 1), inode, WRITE), None);
    story.send(5, 1, (0, 2), &md::Close { inode, open: WRITE, written: None });
    assert_eq!(story.opened(), Some(false), "it is alone now");
    story.replies.clear();
    assert_eq!(story.opens(1, (0, 3), inode, READ), None);
    story.send(5, 2, (0, 0), &md::CloseSession {});
    assert_eq!(story.opened(), Some(false));
}

/// A session that had been told closed the file and opened it again, alone; who had waited all the
/// while for a third one was then answered as if it still knew.
#[test]
fn who_closes_and_opens_again_is_told_again() {
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
    // It waits for the third one as well, and then the second one comes again.
    story.send(
        6,
        1,
        (1, 1),
        &md::Open { inode, open: WRITE, truncate: false, must_have_name: false },
    );
    story.send(
        1,
        2,
        (0, 2),
        &md::Open { inode, open: WRITE, truncate: false, must_have_name: false },
    );
    story.replies.clear();
    story.send(5, 3, (0, 2), &closed);
    let index = story.replies.iter().position(|(on, _)| *on == 6).expect("an answer");
    let opened =
        md::OpenReply::from_bytes(story.replies.remove(index).1.as_ref().unwrap()).unwrap();
    assert!(!opened.is_shared, "it is alone");
    assert_eq!(story.opened(), None, "the first session doesn't know");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

#[test]
fn a_notification_is_repeated_after_a_lost_reply_and_after_a_restart() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert_eq!(story.opens(2, (0, 1), inode, READ), None);
    story.waits_for_notifications(1, Vec::new());
    let first = story.told(1).unwrap()[0].number;
    // The answer was lost on its way.
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.told(1).unwrap()[0].number, first);
    story.waits_for_notifications(1, vec![first]);
    assert_eq!(story.told(1), None, "it is at it");
    story.restart();
    assert_eq!(story.opens(2, (0, 1), inode, READ), None, "it asks again");
    story.acknowledges(1, first);
    assert_eq!(story.opened(), None, "that was about another notification");
    story.learns_that_it_shares(1, inode);
    assert_eq!(story.opened(), Some(true));
}

#[test]
fn a_wait_for_notifications_is_answered_after_its_time_limit() {
    let mut story = Story::begin();
    story.waits_for_notifications(1, Vec::new());
    story.now += WAIT_ANSWER;
    story.happens(Event::Tick);
    assert_eq!(story.told(1), Some(Vec::new()));
    story.waits_for_notifications(1, Vec::new());
    story.waits_for_notifications(1, Vec::new());
    assert_eq!(story.told(1), Some(Vec::new()), "of two the older is answered");
    assert_eq!(story.told(1), None);
    story.send(5, 1, (0, 0), &md::CloseSession {});
    let index = story.replies.iter().position(|(on, _)| *on == poll_of(1)).unwrap();
    let refusal = story.replies.remove(index).1.unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::StaleSession);
}
