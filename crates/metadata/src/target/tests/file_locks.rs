//! Tests of file locks of applications: retries of requests, restarts of the target, ends of
//! sessions, limits.

use super::*;
use crate::limits::WAIT_ANSWER;
use skep_wire::file_locks::{
    EndWait, ListLocks, LockKind, LockList, LockMode, LockRequest, TestLock, WaitLock,
    WaitLockReply,
};
use skep_wire::limits::{LOCK_END, MAX_LOCK_RANGES};

fn exclusive(inode: InodeId, owner: u64) -> LockRequest {
    let mode = Some(LockMode::Exclusive);
    LockRequest { inode, kind: LockKind::Posix, owner, mode, start: 0, end: LOCK_END, pid: 7 }
}

fn unlocked(lock: LockRequest) -> LockRequest {
    LockRequest { mode: None, ..lock }
}

impl Story {
    /// Like [`Self::ask`] on connection 1, but keeps replies on other connections.
    fn tell<R: Request>(&mut self, session: u64, at: (u32, u64), request: &R) -> Result<R::Reply> {
        self.send(1, session, at, request);
        let index = self.replies.iter().position(|(connection, _)| *connection == 1);
        let (_, result) = self.replies.remove(index.expect("an answer"));
        result.map(|body| R::Reply::from_bytes(&body).expect("a reply of its kind"))
    }

    /// Sends a `SetLock` request. Returns whether the lock was granted.
    fn locks(&mut self, session: u64, at: (u32, u64), lock: LockRequest) -> bool {
        let set = SetLock { lock, wait: session };
        self.tell(session, at, &set).unwrap().conflict.is_none()
    }

    /// Sends a `WaitLock` request, which must not get a reply yet.
    fn waits(&mut self, on: ConnectionId, session: u64, lock: LockRequest) {
        self.send(on, session, (0, 0), &WaitLock { lock, wait: session });
        assert!(self.replies.is_empty(), "{:?}", self.replies);
    }

    /// Removes the reply to a waiting request on this connection. Returns whether the waiter was
    /// woken.
    fn woken(&mut self, on: ConnectionId) -> Result<bool> {
        let index = self.replies.iter().position(|(connection, _)| *connection == on);
        let (_, result) = self.replies.remove(index.expect("an answer"));
        result.map(|body| WaitLockReply::from_bytes(&body).unwrap().is_called)
    }

    fn list(&mut self, inode: InodeId) -> LockList {
        let list = ListLocks {
            inode,
            after_session: SessionId::default(),
            after_inode: InodeId::default(),
            only_locked: false,
        };
        self.ask(1, 0, (0, 0), &list).unwrap()
    }
}

#[test]
fn a_lock_and_the_reply_to_its_request_survive_a_restart() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.restart();
    assert!(
        !story.locks(2, (0, 1), exclusive(inode, 5)),
        "owners of different sessions are different"
    );
    assert!(story.locks(1, (0, 3), unlocked(exclusive(inode, 5))));
    assert!(story.locks(2, (0, 2), exclusive(inode, 5)));
    // A late retry of the unlock arrives. The target must return the stored reply and must not run
    // the request again, because session 2 now has the lock.
    assert!(story.locks(1, (0, 3), unlocked(exclusive(inode, 5))));
    story.restart();
    let test = TestLock { lock: exclusive(inode, 5) };
    let held =
        story.ask(1, 1, (0, 0), &test).unwrap().conflict.expect("the other session holds the lock");
    assert_eq!((held.session.raw(), held.pid, held.end), (2, 7, LOCK_END));
    assert_eq!(story.ask(1, 2, (0, 0), &test).unwrap().conflict, None);
}

#[test]
fn a_waiter_is_woken_when_the_session_of_the_holder_ends() {
    let mut story = Story::begin_with(Limits { closes_per_batch: 1, ..Limits::default() });
    let inode = story.create(1, (0, 1));
    story.ask_sharing(2, (0, 1), &open_of(inode, md::OpenMode::Read), (1, inode));
    for owner in 0..5 {
        let lock = LockRequest { start: owner, end: owner + 1, ..exclusive(inode, owner) };
        assert!(story.locks(1, (0, 2 + owner), lock));
    }
    assert!(!story.locks(2, (0, 2), exclusive(inode, 5)));
    story.waits(2, 2, exclusive(inode, 5));
    story.tell(1, (0, 0), &md::CloseSession {}).unwrap();
    assert_eq!(story.target.file_locks().count(), 0);
    assert!(story.woken(2).unwrap());
    // The session had the file open for writing, so the new lock waits until the file's size is
    // recovered.
    story.answer::<st::StatChunk>(&stat(0));
    assert!(story.locks(2, (0, 3), exclusive(inode, 5)));
}

#[test]
fn lock_wait_is_refused_when_its_own_session_ends() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.waits(3, 2, exclusive(inode, 5));
    story.send(1, 2, (0, 0), &md::CloseSession {});
    assert_eq!(story.woken(3).unwrap_err().code(), ErrorCode::StaleSession);
    let again = WaitLock { lock: exclusive(inode, 5), wait: 2 };
    story.replies.clear();
    assert_eq!(story.ask(1, 2, (0, 0), &again).unwrap_err().code(), ErrorCode::StaleSession);
}

/// A request on an abandoned connection may arrive after its retry on a new connection.
#[test]
fn two_polls_for_one_lock_wait_both_get_a_reply() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.waits(3, 2, exclusive(inode, 5));
    story.send(2, 2, (0, 0), &WaitLock { lock: exclusive(inode, 5), wait: 2 });
    assert!(!story.woken(3).unwrap(), "the client has to poll again");
    story.send(3, 2, (0, 0), &WaitLock { lock: exclusive(inode, 5), wait: 2 });
    assert!(!story.woken(2).unwrap());
    assert!(story.locks(1, (0, 3), unlocked(exclusive(inode, 5))));
    assert!(story.woken(3).unwrap());
}

#[test]
fn lock_wait_is_answered_after_its_time_limit() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.waits(3, 2, exclusive(inode, 5));
    let begun = story.now;
    while story.replies.is_empty() {
        // Renew the leases of both sessions.
        for session in [1, 2] {
            story.tell(session, (0, 0), &md::KeepAlive { lease_ms: 5_000 }).unwrap();
        }
    }
    assert!(!story.woken(3).unwrap());
    assert!(story.now >= begun + WAIT_ANSWER);
    story.waits(3, 2, exclusive(inode, 5));
    story.ask(1, 2, (0, 0), &EndWait { inode, wait: 2 }).unwrap();
    assert!(story.locks(1, (0, 3), unlocked(exclusive(inode, 5))));
    assert!(story.replies.is_empty(), "no wait is left");
    assert!(story.locks(1, (0, 4), exclusive(inode, 6)), "no lock is reserved");
}

#[test]
fn closing_a_file_releases_the_locks_of_the_session() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.ask_sharing(2, (0, 1), &open_of(inode, md::OpenMode::Read), (1, inode));
    story.waits(3, 2, exclusive(inode, 5));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.tell(1, (0, 3), &close).unwrap();
    assert!(story.woken(3).unwrap());
    assert_eq!(story.target.file_locks().count(), 0);
}

#[test]
fn a_deadlock_of_two_sessions_is_refused() {
    let mut story = Story::begin();
    let (a, b) = (story.create_as("a", 1, (0, 1)), story.create_as("b", 1, (0, 2)));
    assert!(story.locks(1, (0, 3), exclusive(a, 5)));
    assert!(story.locks(2, (0, 1), exclusive(b, 5)));
    story.waits(3, 1, exclusive(b, 5));
    let closing = WaitLock { lock: exclusive(a, 5), wait: 2 };
    assert_eq!(story.ask(1, 2, (0, 0), &closing).unwrap_err().code(), ErrorCode::Deadlock);
    assert!(story.locks(2, (0, 2), unlocked(exclusive(b, 5))));
    assert!(story.woken(3).unwrap(), "the other wait continues");
}

#[test]
fn a_flock_upgrade_that_conflicts_releases_the_lock() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let shared =
        LockRequest { kind: LockKind::Flock, mode: Some(LockMode::Shared), ..exclusive(inode, 1) };
    let alone = LockRequest { mode: Some(LockMode::Exclusive), ..shared };
    assert!(story.locks(1, (0, 2), shared) && story.locks(2, (0, 1), shared));
    assert!(
        story.locks(1, (0, 3), exclusive(inode, 1)),
        "fcntl locks do not conflict with flock locks"
    );
    assert!(!story.locks(1, (0, 4), alone));
    assert!(story.locks(2, (0, 2), alone));
}

#[test]
fn lock_ranges_and_lock_waits_are_limited() {
    let limits = Limits { file_locks: MAX_LOCK_RANGES + 1, lock_waits: 1, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    let inode = story.create(1, (0, 1));
    let single = |at: u64| LockRequest { start: at * 2, end: at * 2 + 1, ..exclusive(inode, 5) };
    let mut sequence = 1;
    let mut set = |story: &mut Story, lock: LockRequest| {
        sequence += 1;
        let result = story.ask(1, 1, (0, sequence), &SetLock { lock, wait: 0 });
        result.map(|it| it.conflict.is_none()).map_err(|error| error.code())
    };
    for at in 0..MAX_LOCK_RANGES as u64 {
        assert_eq!(set(&mut story, single(at)), Ok(true));
        story.tell(2, (0, 0), &md::KeepAlive { lease_ms: 5_000 }).unwrap();
    }
    let one_more = single(MAX_LOCK_RANGES as u64);
    assert_eq!(set(&mut story, one_more), Err(ErrorCode::TooManyLocks));
    let of_another = LockRequest { owner: 6, ..one_more };
    assert_eq!(set(&mut story, of_another), Ok(true));
    let beyond = LockRequest { owner: 7, start: 1 << 40, end: LOCK_END, ..one_more };
    assert_eq!(set(&mut story, beyond), Err(ErrorCode::TooManyLocks), "the limit of the target");
    for (start, end) in [(5, 5), (6, 5), (0, LOCK_END + 1)] {
        let bad = LockRequest { start, end, ..one_more };
        assert_eq!(set(&mut story, bad), Err(ErrorCode::InvalidArgument));
    }
    story.waits(3, 2, exclusive(inode, 1));
    let second = WaitLock { lock: exclusive(inode, 2), wait: 77 };
    let refused = story.ask(1, 2, (0, 0), &second).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooManyLocks);
    assert_eq!(set(&mut story, unlocked(exclusive(inode, 5))), Ok(true));
}

#[test]
fn lists_show_open_files_locks_and_waits_of_sessions() {
    let mut story = Story::begin();
    let (a, b) = (story.create_as("a", 1, (0, 1)), story.create_as("b", 2, (0, 1)));
    story.ask_sharing(2, (0, 2), &open_of(a, md::OpenMode::Read), (1, a));
    assert!(story.locks(1, (0, 2), exclusive(a, 5)));
    story.waits(3, 2, exclusive(a, 6));
    let all = story.list(InodeId::default());
    let uses: Vec<_> = all
        .uses
        .iter()
        .map(|it| (it.session.raw(), it.inode, it.readers, it.writers, it.held.len()))
        .collect();
    assert_eq!(uses, [(1, a, 0, 1, 1), (2, a, 1, 0, 0), (2, b, 0, 1, 0)]);
    assert_eq!(all.uses[0].client, NodeId::new(9));
    let waiting: Vec<_> = all.uses.iter().flat_map(|it| &it.waiting).collect();
    assert_eq!((waiting.len(), waiting[0].owner, all.next), (1, 6, None));
    let of_b = story.list(b);
    assert_eq!((of_b.uses.len(), of_b.uses[0].session.raw()), (1, 2));
    // Continue the list after its first entry.
    let rest = ListLocks {
        inode: InodeId::default(),
        after_session: SessionId::new(1),
        after_inode: a,
        only_locked: true,
    };
    let rest = story.ask(1, 0, (0, 0), &rest).unwrap();
    assert_eq!((rest.uses.len(), rest.uses[0].inode), (1, a));
}

#[test]
fn silent_client_is_listed_while_clients_await_its_lock() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    assert!(story.locks(1, (0, 2), exclusive(inode, 5)));
    story.waits(2, 2, exclusive(inode, 6));
    let holders = |story: &Story| -> Vec<(Duration, usize)> {
        let found = story.target.silent_holders().holders;
        found.into_iter().map(|it| (it.silent, it.waits)).collect()
    };
    assert_eq!(holders(&story), [], "the holder has just sent a request");
    let lease = Duration::from_millis(u64::from(map().policy.lease_ms));
    let mut silent = Duration::ZERO;
    while silent <= lease / 2 {
        silent += crate::limits::LONGEST_WAIT;
        story.now += crate::limits::LONGEST_WAIT;
        story.happens(Event::Tick);
    }
    // Session 2 is silent too, but no request waits for it.
    let found = holders(&story);
    let [(since, 1)] = found[..] else { panic!("{found:?}") };
    assert!(since >= silent && since < lease, "{since:?}");
    story.send(2, 2, (0, 0), &EndWait { inode, wait: 2 });
    assert_eq!(holders(&story), [], "no request waits for a client");
}
