//! The lock that an owner holds or has requested ([`LockClaim`]), and the check for conflicts.

use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::file_locks::{HeldLock, LockKind, LockMode, LockRequest};
use skep_wire::limits::LOCK_END;
use std::ops::Range;

/// The owner of a POSIX or `flock` lock: the session, and the owner's id within the session.
pub(crate) type LockOwnerId = (SessionId, u64);

/// A lock that an owner holds or requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockClaim {
    pub(crate) owner: LockOwnerId,
    pub(crate) kind: LockKind,
    pub(crate) mode: LockMode,
    pub(crate) range: Range<u64>,
    pub(crate) pid: u32,
}

impl LockClaim {
    /// Returns the claim in a session's lock request. `None` means that the request is an unlock.
    pub(crate) fn of(session: SessionId, request: &LockRequest) -> Option<Self> {
        Some(Self {
            owner: (session, request.owner),
            kind: request.kind,
            mode: request.mode?,
            range: request.start..request.end,
            pid: request.pid,
        })
    }

    /// Whether the two claims cannot be granted at the same time.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.owner != other.owner
            && (self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    pub(super) fn to_held_lock(&self) -> HeldLock {
        HeldLock {
            session: self.owner.0,
            kind: self.kind,
            owner: self.owner.1,
            mode: self.mode,
            start: self.range.start,
            end: self.range.end,
            pid: self.pid,
        }
    }
}

/// Checks that the range of a lock request is not empty and ends at [`LOCK_END`] at the latest.
pub(crate) fn check(request: &LockRequest) -> Result<()> {
    if request.start < request.end && request.end <= LOCK_END {
        return Ok(());
    }
    let what = format!(
        "cannot lock bytes {} to {}: the range is empty, or ends beyond the maximum offset",
        request.start, request.end
    );
    Err(Error::new(ErrorCode::InvalidArgument, what))
}
