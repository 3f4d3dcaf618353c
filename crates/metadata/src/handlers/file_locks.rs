//! `SetLock` and `TestLock`: set or test file locks of applications. Neither `SetLock` nor
//! `TestLock` waits for a lock of another owner; `WaitLock` does (`locks::waits`).

use crate::engine::Engine;
use crate::locks::request::{LockClaim, check};
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{Key, LockOwner};
use skep_types::{Error, ErrorCode};
use skep_wire::file_locks::{LockKind, SetLock, SetLockReply, TestLock, TestLockReply};
use skep_wire::limits::MAX_LOCK_RANGES;

pub(crate) fn set<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetLock,
) -> Result<SetLockReply, Stop> {
    let lock = request.lock;
    check(&lock)?;
    let session = context.session()?;
    let attributes = context.inode(lock.inode)?.attributes;
    if lock.mode.is_some() && context.has_size_recovery(lock.inode)? {
        // A client that had the file open for writing has died, perhaps while it held this lock.
        // The next holder must see the file's size after all acknowledged writes, so the operation
        // runs again after a pause, until the size is recovered.
        return Err(Stop::RecoversSize(lock.inode));
    }
    let of = LockOwner { inode: lock.inode, kind: lock.kind, session, owner: lock.owner };
    let locks = &context.shared.file_locks;
    let holds = locks.holds(&of);
    let claim = LockClaim::of(session, &lock);
    let now = context.shared.now;
    let conflict = claim.and_then(|claim| locks.obstacle(lock.inode, &claim, request.wait, now));
    if conflict.is_some() {
        if lock.kind == LockKind::Flock && holds {
            // As on Linux, release the owner's old lock if its upgrade conflicts. If owners kept
            // their old locks, two owners that both upgrade a shared lock would wait for each other
            // forever.
            context.delete(&Key::FileLocks(of));
        }
        return Ok(SetLockReply { conflict, attributes });
    }
    match locks.after(&of, &lock) {
        Some(record) => {
            let is_full = locks.range_count() >= context.shared.limits.file_locks;
            // The limit of the target does not apply to an unlock, although an unlock may split a
            // range into two.
            if record.ranges.len() > MAX_LOCK_RANGES || is_full && lock.mode.is_some() {
                let what = format!(
                    "cannot lock file {}: the metadata target of the file, or the owner of the \
                     lock, has the maximum number of locks; release other locks first",
                    lock.inode
                );
                return Err(Error::new(ErrorCode::TooManyLocks, what).into());
            }
            context.put(&Key::FileLocks(of), &record);
        }
        None if holds => context.delete(&Key::FileLocks(of)),
        None => {}
    }
    Ok(SetLockReply { conflict: None, attributes })
}

pub(crate) fn test<E: Engine>(
    context: &mut Context<'_, E>,
    request: TestLock,
) -> Result<TestLockReply, Stop> {
    check(&request.lock)?;
    let claim = LockClaim::of(context.session()?, &request.lock).ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidArgument,
            "cannot test for a conflicting lock: the request is an unlock, which conflicts with no \
             lock",
        )
    })?;
    let conflict = context.shared.file_locks.conflict(request.lock.inode, &claim);
    Ok(TestLockReply { conflict })
}
