//! Examples of messages about locks.

use super::{a_file, attributes};
use crate::vectors::{Example, example};
use skep_types::{FileKind, InodeId, NodeId, SessionId};
use skep_wire::file_locks::{
    EndWait, FileUse, HeldLock, ListLocks, ListWaits, ListedWait, LockKind, LockList, LockMode,
    LockParty, LockRequest, SetLock, SetLockReply, TestLock, TestLockReply, WaitList, WaitLock,
    WaitLockReply,
};
use skep_wire::limits::LOCK_END;
use skep_wire::management::EmptyReply;

pub(super) fn examples() -> Vec<Example> {
    let lock = LockRequest {
        inode: a_file(),
        kind: LockKind::Posix,
        owner: 0x0102_0304_0506_0708,
        mode: Some(LockMode::Exclusive),
        start: 4096,
        end: LOCK_END,
        pid: 4711,
    };
    let held = HeldLock {
        session: SessionId::new(9 << 32 | 1),
        kind: LockKind::Posix,
        owner: 77,
        mode: LockMode::Shared,
        start: 0,
        end: 4097,
        pid: 815,
    };
    let flock = LockRequest { kind: LockKind::Flock, mode: None, start: 0, ..lock };
    let set = SetLockReply { conflict: None, attributes: attributes(a_file(), FileKind::Regular) };
    let refused = SetLockReply { conflict: Some(held), ..set.clone() };
    let in_use = FileUse {
        session: held.session,
        client: NodeId::new(9),
        inode: a_file(),
        readers: 1,
        writers: 2,
        held: vec![held],
        held_count: 300,
        waiting: vec![HeldLock { mode: LockMode::Exclusive, ..held }],
        waiting_count: 1,
        longest_wait_ms: 12_500,
    };
    let list = ListLocks {
        inode: InodeId::default(),
        after_session: SessionId::new(9 << 32),
        after_inode: a_file(),
        only_locked: true,
    };
    let page = LockList { uses: vec![in_use], next: Some((held.session, a_file())) };
    let party = LockParty { session: held.session, owner: held.owner };
    let holder = LockParty { session: SessionId::new(9 << 32), owner: 3 };
    let waits = vec![ListedWait { waiter: party, wait: 5, holders: vec![holder] }];
    vec![
        example(&ListWaits { after: LockParty::default() }, &WaitList { waits, next: Some(party) })
            .reply::<ListWaits>(&WaitList { waits: Vec::new(), next: None }),
        example(&SetLock { lock, wait: 3 }, &set)
            .request(&SetLock { lock: flock, wait: 0 })
            .reply::<SetLock>(&refused),
        example(&TestLock { lock }, &TestLockReply { conflict: None })
            .reply::<TestLock>(&TestLockReply { conflict: Some(held) }),
        example(&WaitLock { lock, wait: 3 }, &WaitLockReply { is_called: true }),
        example(&EndWait { inode: a_file(), wait: 3 }, &EmptyReply {}),
        example(&list, &page).reply::<ListLocks>(&LockList { uses: Vec::new(), next: None }),
    ]
}
