//! Messages to metadata targets about the locks of applications (`flock`, `fcntl`), and about the
//! sessions that use a file. `docs/design/0005-locks.md` describes the protocol.

use skep_types::codec::record;
use skep_types::{Attributes, InodeId, NodeId, SessionId, byte_enum};

byte_enum! {
    /// Kind of a lock. Only locks of the same kind conflict.
    pub enum LockKind {
        /// Locks of `fcntl`, of processes and of open file descriptions.
        Posix = 0,
        /// Locks of `flock`.
        Flock = 1,
        /// Internal locks of clients that append to a shared file. Programs do not see them.
        Append = 2,
    }
}

impl LockKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Posix, Self::Flock, Self::Append];
}

byte_enum! {
    /// Mode of a lock.
    pub enum LockMode {
        /// Other owners may hold shared locks too.
        Shared = 0,
        /// No other owner may hold a lock.
        Exclusive = 1,
    }
}

record! {
    /// A lock that an owner asks for.
    #[derive(Copy)]
    pub struct LockRequest {
        /// The file.
        pub inode: InodeId,
        /// Its kind.
        pub kind: LockKind,
        /// Number of the owner within the session.
        pub owner: u64,
        /// Its mode. `None` unlocks the range.
        pub mode: Option<LockMode>,
        /// First byte.
        pub start: u64,
        /// The byte behind the last one. 2^63, the maximum, stands for the end of the file, however
        /// long the file gets.
        pub end: u64,
        /// Process id on the client's host, for output.
        pub pid: u32,
    }
}

record! {
    /// A locked range.
    #[derive(Copy)]
    pub struct HeldLock {
        /// The session of its owner.
        pub session: SessionId,
        /// Its kind.
        pub kind: LockKind,
        /// Number of the owner within the session.
        pub owner: u64,
        /// Its mode.
        pub mode: LockMode,
        /// First byte.
        pub start: u64,
        /// The byte behind the last one.
        pub end: u64,
        /// Process id on that client's host.
        pub pid: u32,
    }
}

record! {
    /// Locks or unlocks a range, or returns a conflicting lock. Never waits. If a `flock` cannot
    /// get a new mode, the target releases the old one too.
    pub struct SetLock {
        /// The lock.
        pub lock: LockRequest,
        /// Number of the wait that ends with this request. Zero if there was no wait.
        pub wait: u64,
    }
}

record! {
    /// Reply to [`SetLock`].
    pub struct SetLockReply {
        /// A conflicting lock. `None` means that the lock is set.
        pub conflict: Option<HeldLock>,
        /// The file's attributes. The client compares them to find out whether its cached pages are
        /// still valid.
        pub attributes: Attributes,
    }
}

record! {
    /// Asks for a lock that would conflict with `lock` (`F_GETLK`).
    pub struct TestLock {
        /// The lock to test.
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
    /// Waits until a lock may be free, for some seconds at most. The target returns `Deadlock` if
    /// the wait would close a deadlock cycle.
    pub struct WaitLock {
        /// The lock.
        pub lock: LockRequest,
        /// Number of the wait within the session, not zero. A client that repeats the request with
        /// the same number keeps its position in the queue.
        pub wait: u64,
    }
}

record! {
    /// Reply to [`WaitLock`].
    pub struct WaitLockReply {
        /// Whether the target woke the wait and keeps the lock free for it for a moment: the client
        /// sends `SetLock` now. If not set, the client waits again.
        pub is_called: bool,
    }
}

record! {
    /// Ends a wait. Succeeds if there is no such wait.
    pub struct EndWait {
        /// The file.
        pub inode: InodeId,
        /// Number of the wait within the session.
        pub wait: u64,
    }
}

record! {
    /// The owner of a lock or of a wait.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct LockParty {
        /// The session.
        pub session: SessionId,
        /// Number of the owner within the session's client.
        pub owner: u64,
    }
}

record! {
    /// Lists the waits for POSIX locks at a target, with the holders of the locks, in pages.
    /// Clients use it to find deadlock cycles.
    pub struct ListWaits {
        /// Return only waits of owners behind this one. Zero starts at the beginning.
        pub after: LockParty,
    }
}

record! {
    /// A wait for a POSIX lock.
    pub struct ListedWait {
        /// The waiting owner.
        pub waiter: LockParty,
        /// Number of the wait. The session's client never uses it again.
        pub wait: u64,
        /// The holders of conflicting locks, up to a limit.
        pub holders: Vec<LockParty>,
    }
}

record! {
    /// Reply to [`ListWaits`].
    pub struct WaitList {
        /// The waits by rising waiter, without waits that the target has woken.
        pub waits: Vec<ListedWait>,
        /// `after` of the next page. `None` means that this is the last page.
        pub next: Option<LockParty>,
    }
}

record! {
    /// Lists the opens, locks and waits of sessions, for one file or for all files of the target,
    /// in pages.
    pub struct ListLocks {
        /// The file. Zero stands for all files.
        pub inode: InodeId,
        /// Return only entries behind this session and inode. Zero starts at the beginning.
        pub after_session: SessionId,
        /// Together with `after_session`: the last inode of the page before.
        pub after_inode: InodeId,
        /// Return only files with a lock or a wait.
        pub only_locked: bool,
    }
}

record! {
    /// The opens, locks and waits of one session at one file.
    pub struct FileUse {
        /// The session.
        pub session: SessionId,
        /// The client of the session.
        pub client: NodeId,
        /// The file.
        pub inode: InodeId,
        /// Number of opens for reading only.
        pub readers: u32,
        /// Number of opens for writing.
        pub writers: u32,
        /// The locks that the session holds, up to a limit.
        pub held: Vec<HeldLock>,
        /// Number of ranges that the session has locked.
        pub held_count: u32,
        /// The locks for which the session waits, up to a limit, in the order of the queue.
        pub waiting: Vec<HeldLock>,
        /// Number of waits of the session.
        pub waiting_count: u32,
    }
}

record! {
    /// Reply to [`ListLocks`].
    pub struct LockList {
        /// The entries by rising session and inode. May be empty although more pages follow.
        pub uses: Vec<FileUse>,
        /// `after_session` and `after_inode` of the next page. `None` means that this is the last
        /// page.
        pub next: Option<(SessionId, InodeId)>,
    }
}
