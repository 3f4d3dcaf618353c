//! Requests on locks of `flock` and of `fcntl`.
//!
//! Owns the kernel's argument struct of these requests and their parsing. `ops::locks` performs the
//! operations.

use super::RawRequest;
use crate::abi::Opcode;
use skep_client::{FileLock, HandleId, LockKind, LockMode};
use skep_types::InodeId;
use skep_types::codec::record;

/// Flag in [`LockIn::lock_flags`]: the program called `flock`, not `fcntl`.
pub(crate) const LOCK_IS_FLOCK: u32 = 1 << 0;

record! {
    /// `fuse_lk_in`. The locked bytes are `start` to `end`, both included.
    pub struct LockIn {
        pub handle: u64,
        pub owner: u64,
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
        pub lock_flags: u32,
        pub padding: u32,
    }
}

/// A request on locks.
#[derive(Debug)]
pub(crate) enum LockRequest {
    Test { lock: Lock },
    Set { lock: Lock, waits: bool },
}

/// A lock, and the handle through which a program sets or tests the lock.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) lock: FileLock,
}

impl LockRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        Ok(match opcode {
            Opcode::GetLock => Self::Test { lock: parse_lock(raw)? },
            Opcode::SetLock => Self::Set { lock: parse_lock(raw)?, waits: false },
            Opcode::SetLockWait => Self::Set { lock: parse_lock(raw)?, waits: true },
            other => other.is_of_another_family(),
        })
    }

    /// Whether the worker may drop the operation's future when the caller is killed. True only for
    /// a test of a lock.
    pub(super) fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Test { .. })
    }
}

fn parse_lock(raw: &RawRequest) -> Result<Lock, i32> {
    let arguments: LockIn = raw.arguments()?;
    let mode = match arguments.kind as i32 {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(libc::EINVAL),
    };
    let end = arguments.end.checked_add(1).ok_or(libc::EINVAL)?;
    let kind = match arguments.lock_flags & LOCK_IS_FLOCK {
        0 => LockKind::Posix,
        _ => LockKind::Flock,
    };
    let (owner, pid, range) = (arguments.owner, arguments.pid, arguments.start..end);
    let lock = FileLock { kind, owner, mode, range, pid };
    Ok(Lock { inode: raw.node(), handle: HandleId::new(arguments.handle), lock })
}
