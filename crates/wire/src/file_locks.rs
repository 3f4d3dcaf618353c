//! Messages to metadata targets about locks of applications (`flock`, `fcntl`), and about the
//! sessions that use a file. `docs/design/0005-locks.md` specifies the protocol.

use skep_types::codec::record;
use skep_types::{Attributes, InodeId, NodeId, SessionId, byte_enum};

byte_enum! {
    /// Kind of a lock. Locks of different kinds never conflict.
    pub enum LockKind {
        /// `fcntl` locks, of processes and of open file descriptions.
        Posix = 0,
        /// `flock` locks.
        Flock = 1,
        /// Internal locks of clients that append to a shared file. Applications do not see these
        /// locks.
        Append = 2,
    }
}

impl LockKind {
    /// All kinds of locks.
    pub const ALL: [Self; 3] = [Self::Posix, Self::Flock, Self::Append];
}

byte_enum! {
    /// Mode of a lock.
    pub enum LockMode {
        /// Other owners may hold `Shared` locks of the same `LockKind` on the same bytes.
        Shared = 0,
        /// No other owner may hold a lock (`Shared` or `Exclusive`) of the same `LockKind` on the
        /// same bytes.
        Exclusive = 1,
    }
}

record! {
    /// A lock that an owner requests, or the range that an owner unlocks.
    #[derive(Copy)]
    pub struct LockRequest {
        /// The file.
        pub inode: InodeId,
        /// Kind of the lock.
        pub kind: LockKind,
        /// Id of the owner, unique within the session.
        pub owner: u64,
        /// Mode of the lock. `None` unlocks the range.
        pub mode: Option<LockMode>,
        /// First byte of the range.
        pub start: u64,
        /// End of the range (exclusive). The maximum, 2^63, locks to the end of the file, even if
        /// the file grows.
        pub end: u64,
        /// Process id on the client's host, for output only.
        pub pid: u32,
    }
}

record! {
    /// A locked range, or a range for which an owner waits.
    #[derive(Copy)]
    pub struct HeldLock {
        /// The session of the owner.
        pub session: SessionId,
        /// Kind of the lock.
        pub kind: LockKind,
        /// Id of the owner, unique within the session.
        pub owner: u64,
        /// Mode of the lock.
        pub mode: LockMode,
        /// First byte of the range.
        pub start: u64,
        /// End of the range (exclusive).
        pub end: u64,
        /// Process id on the host of the owner's client.
        pub pid: u32,
    }
}

record! {
    /// Locks or unlocks a range, or returns a conflicting lock. The target never waits for the
    /// lock. If the owner of a `flock` lock asks for a different mode and cannot get this mode, the
    /// target also releases the old lock.
    pub struct SetLock {
        /// The lock to set, or the range to unlock.
        pub lock: LockRequest,
        /// Id of the lock wait that ends with this request. Zero if the client did not wait.
        pub wait: u64,
    }
}

record! {
    /// Reply to [`SetLock`].
    pub struct SetLockReply {
        /// A conflicting lock. `None` means that the request succeeded.
        pub conflict: Option<HeldLock>,
        /// Attributes of the file. The client compares these attributes with its cached attributes
        /// to decide whether its cached pages are still valid.
        pub attributes: Attributes,
    }
}

record! {
    /// Asks for a lock that would prevent the owner from setting `lock` (`F_GETLK`).
    pub struct TestLock {
        /// The lock to test. The target does not set this lock.
        pub lock: LockRequest,
    }
}

record! {
    /// Reply to [`TestLock`].
    pub struct TestLockReply {
        /// A conflicting lock. `None` means that there is no conflict.
        pub conflict: Option<HeldLock>,
    }
}

record! {
    /// Waits until a lock becomes free, but for at most five seconds. The target returns `Deadlock`
    /// if the wait would close a deadlock cycle.
    pub struct WaitLock {
        /// The lock for which the owner waits.
        pub lock: LockRequest,
        /// Id of the lock wait, chosen by the client, unique within the session and not zero. If
        /// the client sends the request again with the same id, the wait keeps its position in the
        /// queue.
        pub wait: u64,
    }
}

record! {
    /// Reply to [`WaitLock`].
    pub struct WaitLockReply {
        /// Whether the lock is free. If the lock is free, the target reserves the lock for this
        /// wait. The reservation ends after a moment, so the client must send `SetLock`
        /// immediately. If the lock is not free, the client sends the next `WaitLock`.
        pub is_called: bool,
    }
}

record! {
    /// Ends a wait. Also succeeds if the wait does not exist.
    pub struct EndWait {
        /// The file.
        pub inode: InodeId,
        /// Id of the lock wait.
        pub wait: u64,
    }
}

record! {
    /// The owner of a lock or a wait.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct LockParty {
        /// The session of the owner.
        pub session: SessionId,
        /// Id of the owner, unique within the session.
        pub owner: u64,
    }
}

record! {
    /// Lists the waits for POSIX locks at a target, in pages. For each wait, the reply names the
    /// holders of the conflicting locks. Clients use this message to find deadlock cycles.
    pub struct ListWaits {
        /// Return only waits of owners that follow this owner in the order of session and owner id.
        /// Zero starts at the beginning.
        pub after: LockParty,
    }
}

record! {
    /// A wait for a POSIX lock.
    pub struct ListedWait {
        /// The owner that waits.
        pub waiter: LockParty,
        /// Id of the lock wait. The client never uses an id twice.
        pub wait: u64,
        /// The holders of conflicting locks. At most `MAX_LISTED_HOLDERS`.
        pub holders: Vec<LockParty>,
    }
}

record! {
    /// Reply to [`ListWaits`].
    pub struct WaitList {
        /// The waits in ascending order of `waiter`, except waits that the target has woken.
        pub waits: Vec<ListedWait>,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<LockParty>,
    }
}

record! {
    /// Lists the opens, locks and waits of sessions in pages, for one file or for all files of the
    /// target.
    pub struct ListLocks {
        /// The file. Zero means all files.
        pub inode: InodeId,
        /// Return only entries that follow the entry of `after_session` and `after_inode`, which is
        /// the last entry of the previous page. Zero starts at the beginning.
        pub after_session: SessionId,
        /// Inode of the last entry of the previous page.
        pub after_inode: InodeId,
        /// Return only entries with a lock or a wait.
        pub only_locked: bool,
    }
}

record! {
    /// The opens, locks and waits of one session on one file.
    pub struct FileUse {
        /// The session.
        pub session: SessionId,
        /// The client of the session.
        pub client: NodeId,
        /// The file.
        pub inode: InodeId,
        /// Number of opens of the file for reading only.
        pub readers: u32,
        /// Number of opens of the file for writing.
        pub writers: u32,
        /// The ranges that the session has locked. At most `MAX_LISTED_LOCKS`.
        pub held: Vec<HeldLock>,
        /// Total number of ranges that the session has locked.
        pub held_count: u32,
        /// The locks for which the session waits, in the order of the queue. At most
        /// `MAX_LISTED_LOCKS`.
        pub waiting: Vec<HeldLock>,
        /// Total number of waits of the session.
        pub waiting_count: u32,
        /// Time since the oldest wait of the session began, in milliseconds. Zero means that the
        /// session has no waits.
        pub longest_wait_ms: u64,
    }
}

record! {
    /// Reply to [`ListLocks`].
    pub struct LockList {
        /// The entries in ascending order of session and inode. The list may be empty although more
        /// pages follow.
        pub uses: Vec<FileUse>,
        /// Values of `after_session` and `after_inode` for the next page. `None` means that this is
        /// the last page.
        pub next: Option<(SessionId, InodeId)>,
    }
}
