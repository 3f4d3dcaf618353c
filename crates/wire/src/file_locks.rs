//! Messages to metadata targets about the locks of applications (`flock`, `fcntl`), and about who
//! uses a file. What they do together is in `docs/design/0005-locks.md`.

use skep_types::codec::record;
use skep_types::{Attributes, InodeId, NodeId, SessionId, byte_enum};

byte_enum! {
    /// Which locks see each other.
    pub enum LockKind {
        /// Those of `fcntl`, of processes and of open file descriptions.
        Posix = 0,
        /// Those of `flock`.
        Flock = 1,
        /// Of who appends to a file that several clients have open: no program sees them.
        Append = 2,
    }
}

impl LockKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Posix, Self::Flock, Self::Append];
}

byte_enum! {
    /// How a range is locked.
    pub enum LockMode {
        /// Others may lock it shared too.
        Shared = 0,
        /// By one owner alone.
        Exclusive = 1,
    }
}

record! {
    /// What somebody wants to lock, or has locked.
    #[derive(Copy)]
    pub struct LockRequest {
        /// The file.
        pub inode: InodeId,
        /// Which locks it sees.
        pub kind: LockKind,
        /// Number of the owner within the session.
        pub owner: u64,
        /// How; none: it is to be unlocked.
        pub mode: Option<LockMode>,
        /// First byte.
        pub start: u64,
        /// The byte behind the last, at most 2^63: to the end of the file, however long it gets.
        pub end: u64,
        /// The process on the client's host, for people.
        pub pid: u32,
    }
}

record! {
    /// A locked range.
    #[derive(Copy)]
    pub struct HeldLock {
        /// Whose: the session.
        pub session: SessionId,
        /// Which locks it sees.
        pub kind: LockKind,
        /// Number of the owner within the session.
        pub owner: u64,
        /// How.
        pub mode: LockMode,
        /// First byte.
        pub start: u64,
        /// The byte behind the last.
        pub end: u64,
        /// The process on that client's host.
        pub pid: u32,
    }
}

record! {
    /// Locks or unlocks a range, or answers who is in the way. Never waits. A `flock` that changes
    /// its mode is given up when it can't have the new one.
    pub struct SetLock {
        /// What is wanted.
        pub lock: LockRequest,
        /// The wait for it that has ended; zero: none.
        pub wait: u64,
    }
}

record! {
    /// Answer to [`SetLock`].
    pub struct SetLockReply {
        /// Who is in the way; none: it is done.
        pub conflict: Option<HeldLock>,
        /// The file's attributes, so that who has the lock knows whether his pages are right.
        pub attributes: Attributes,
    }
}

record! {
    /// Asks who would be in the way of a lock.
    pub struct TestLock {
        /// What would be wanted.
        pub lock: LockRequest,
    }
}

record! {
    /// Answer to [`TestLock`].
    pub struct TestLockReply {
        /// A lock that is in the way; none: there is none.
        pub conflict: Option<HeldLock>,
    }
}

record! {
    /// Waits until a lock may be set, for some seconds at most. Refused with `Deadlock` if its
    /// owner would wait for itself in the end.
    pub struct WaitLock {
        /// What is wanted.
        pub lock: LockRequest,
        /// Number of the wait within the session, not zero. Who asks again with the same number
        /// keeps his place.
        pub wait: u64,
    }
}

record! {
    /// Answer to [`WaitLock`].
    pub struct WaitLockReply {
        /// Whether `SetLock` has good prospects now, for a moment; otherwise wait again.
        pub is_called: bool,
    }
}

record! {
    /// Gives up waiting.
    pub struct EndWait {
        /// The file.
        pub inode: InodeId,
        /// Number of the wait within the session.
        pub wait: u64,
    }
}

record! {
    /// Who holds or waits.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct LockParty {
        /// The session.
        pub session: SessionId,
        /// Number of the owner within the session's client.
        pub owner: u64,
    }
}

record! {
    /// Asks a target who waits there for POSIX locks, and for whom. Pages follow each other by
    /// `after`.
    pub struct ListWaits {
        /// Only waits of those behind it; zero at the beginning.
        pub after: LockParty,
    }
}

record! {
    /// A wait for a POSIX lock.
    pub struct ListedWait {
        /// Who waits.
        pub waiter: LockParty,
        /// Number of the wait, given once by the session's client.
        pub wait: u64,
        /// Who holds what is in its way, up to a limit.
        pub holders: Vec<LockParty>,
    }
}

record! {
    /// Answer to [`ListWaits`].
    pub struct WaitList {
        /// By rising waiter. Who is told to try now is left out.
        pub waits: Vec<ListedWait>,
        /// `after` of the next page; none: all is told.
        pub next: Option<LockParty>,
    }
}

record! {
    /// Lists who has files open, and who has locked them or waits for that: of one file, or of all
    /// that this target has. Pages follow each other by `after_session` and `after_inode`.
    pub struct ListLocks {
        /// The file; zero: all.
        pub inode: InodeId,
        /// Only what comes after this session and inode; zero at the beginning.
        pub after_session: SessionId,
        /// See `after_session`.
        pub after_inode: InodeId,
        /// Only files on which somebody has a lock or waits for one.
        pub only_locked: bool,
    }
}

record! {
    /// What one session has to do with one file.
    pub struct FileUse {
        /// The session.
        pub session: SessionId,
        /// The client that it belongs to.
        pub client: NodeId,
        /// The file.
        pub inode: InodeId,
        /// How often it is open for reading only.
        pub readers: u32,
        /// How often it is open for writing.
        pub writers: u32,
        /// What the session has locked, up to a limit.
        pub held: Vec<HeldLock>,
        /// How many ranges it has locked.
        pub held_count: u32,
        /// What it waits for, up to a limit, in the order of the queue.
        pub waiting: Vec<HeldLock>,
        /// How many waits it has.
        pub waiting_count: u32,
    }
}

record! {
    /// Answer to [`ListLocks`].
    pub struct LockList {
        /// By rising session and inode. May be empty though more follow.
        pub uses: Vec<FileUse>,
        /// Where the next page begins: its `after_session` and `after_inode`; none: all is told.
        pub next: Option<(SessionId, InodeId)>,
    }
}
