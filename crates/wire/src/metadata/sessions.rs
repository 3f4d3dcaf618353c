//! Messages about the session of a client at a metadata target.

use skep_types::codec::record;
use skep_types::{NodeId, SessionId};

record! {
    /// Opens the session in the header, or confirms it. Other requests of an unknown session get
    /// `StaleSession`.
    pub struct OpenSession {
        /// The client.
        pub client: NodeId,
        /// Slots wanted.
        pub slots: u32,
    }
}

record! {
    /// Answer to [`OpenSession`].
    pub struct OpenSessionReply {
        /// Slots granted: numbers 0 to `slots` - 1 may be used.
        pub slots: u32,
        /// The session ends when nothing was heard of it for so long.
        pub lease_ms: u32,
    }
}

record! {
    /// Renews the session's lease.
    pub struct KeepAlive {
        /// The lease by which the sender renews: the session doesn't end before it, even if the
        /// cluster's leases have become shorter and the sender doesn't know yet.
        pub lease_ms: u32,
    }
}

record! {
    /// Answer to [`KeepAlive`].
    pub struct KeepAliveReply {
        /// The lease by which to renew from now on.
        pub lease_ms: u32,
    }
}

record! {
    /// Ends the session in the header: its open files are closed.
    pub struct CloseSession {}
}

record! {
    /// Waits until all that was acknowledged is on the device (`fsync` of a directory).
    pub struct SyncAll {}
}

record! {
    /// Lists the sessions that a target keeps.
    pub struct ListSessions {
        /// Only what comes after this session; zero: from the beginning.
        pub after: SessionId,
    }
}

record! {
    /// A client's session at one target.
    pub struct SessionEntry {
        /// The session.
        pub session: SessionId,
        /// The client that it belongs to.
        pub client: NodeId,
        /// Slots granted.
        pub slots: u32,
        /// It ends when nothing was heard of it for so long.
        pub lease_ms: u32,
        /// For how long it was silent.
        pub silent_ms: u64,
        /// How many files it has open here; counted up to a limit.
        pub open_files: u32,
    }
}

record! {
    /// Answer to [`ListSessions`].
    pub struct SessionList {
        /// By rising session.
        pub sessions: Vec<SessionEntry>,
        /// The next page's `after`; none: all is told.
        pub next: Option<SessionId>,
    }
}
