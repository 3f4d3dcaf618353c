//! The part of the reference model for locks. The model decides whether a target may refuse a
//! request because of another owner. Only the memory of targets contains the queues of waiting
//! owners, so the model does not contain these queues. Instead, the model contains all waits that
//! clients have requested.

use super::{Inode, LockWait, Model, Owner};
use skep_cluster::lock_ranges::LockRanges;
use skep_types::{InodeId, SessionId};
use skep_wire::file_locks::{HeldLock, LockKind, LockMode, LockRequest, SetLockReply};

impl Model {
    /// Checks the reply of a target that refuses a lock request. The conflict in the reply must
    /// be a lock that another owner has or has waited for.
    pub(super) fn check_conflict(
        &self,
        session: SessionId,
        request: &LockRequest,
        conflict: &HeldLock,
    ) -> Result<(), String> {
        let HeldLock { kind, mode, start, end, .. } = *conflict;
        let by = (conflict.session, kind, conflict.owner);
        let is_other = by != (session, request.kind, request.owner) && kind == request.kind;
        let overlaps = start < request.end && request.start < end;
        let both_read = mode == LockMode::Shared && request.mode == Some(LockMode::Shared);
        let inode = self.inodes.get(&request.inode);
        let held = inode.and_then(|it| it.locks.get(&by));
        let is_held = held.is_some_and(|it| it.iter().any(|it| it == (start..end, mode)));
        let is_wanted = self.waits.contains(&(request.inode, by, start, end));
        if is_other && overlaps && !both_read && (is_held || is_wanted) {
            return Ok(());
        }
        Err(format!(
            "was refused because of {conflict:?}, held: {is_held}, waited for: {is_wanted}"
        ))
    }

    /// Whether another owner has a lock that conflicts with the request.
    pub(crate) fn is_blocked(&self, session: SessionId, request: &LockRequest) -> bool {
        let inode = self.inodes.get(&request.inode);
        inode.is_some_and(|inode| is_blocked(inode, session, request))
    }

    /// Whether a session has a file open.
    pub(crate) fn has_open(&self, session: SessionId, inode: InodeId) -> bool {
        self.inodes.get(&inode).is_some_and(|it| it.opens.contains_key(&session))
    }

    /// Whether another owner may be waiting for the requesting owner. Returns `true` if the other
    /// owner has at any time waited for a range that the requesting owner has locked.
    pub(crate) fn may_be_waited_for(&self, session: SessionId, request: &LockRequest) -> bool {
        let owner = (session, request.kind, request.owner);
        let is_wanted = |(inode, by, start, end): &LockWait| {
            let held = self.inodes.get(inode).and_then(|it| it.locks.get(&owner));
            let overlaps = held.is_some_and(|it| it.overlapping(*start..*end).next().is_some());
            *by != owner && by.1 == request.kind && overlaps
        };
        request.kind == LockKind::Posix && self.waits.iter().any(is_wanted)
    }
}

fn is_blocked(inode: &Inode, session: SessionId, request: &LockRequest) -> bool {
    let owner = (session, request.kind, request.owner);
    let range = request.start..request.end;
    let is_in_the_way = |(by, held): (&Owner, &LockRanges<LockMode>)| {
        let both_read = |mode| (request.mode, mode) == (Some(LockMode::Shared), LockMode::Shared);
        *by != owner
            && by.1 == request.kind
            && held.overlapping(range.clone()).any(|(_, mode)| !both_read(mode))
    };
    request.mode.is_some() && inode.locks.iter().any(is_in_the_way)
}

/// Sets or releases a lock as the reply states. Checks that the reply grants no lock that conflicts
/// with a lock of another owner, and that the reply does not refuse an unlock.
pub(super) fn lock(
    inode: &mut Inode,
    session: SessionId,
    request: &LockRequest,
    reply: &SetLockReply,
) -> Result<(), String> {
    let owner = (session, request.kind, request.owner);
    let is_refused = reply.conflict.is_some();
    let must_be_refused = is_blocked(inode, session, request);
    if must_be_refused && !is_refused || is_refused && request.mode.is_none() {
        let (held, answered) = (&inode.locks, reply.conflict);
        return Err(format!("got the reply {answered:?} while {held:?} are locked"));
    }
    let ranges = inode.locks.entry(owner).or_default();
    match is_refused {
        false => ranges.set(request.start..request.end, request.mode),
        // If a target refuses the conversion of a `flock` lock, the target also releases the old
        // lock.
        true if request.kind == LockKind::Flock => *ranges = LockRanges::default(),
        true => {}
    }
    if ranges.is_empty() {
        inode.locks.remove(&owner);
    }
    Ok(())
}
