//! Messages about the session of a client at a metadata target.

use skep_types::codec::record;
use skep_types::{NodeId, SessionId};

record! {
    /// A client opens the session in the header, or confirms it. The target returns `StaleSession`
    /// to any other request of a session that it does not have.
    pub struct OpenSession {
        /// The client.
        pub client: NodeId,
        /// Number of slots that the client asks for.
        pub slots: u32,
    }
}

record! {
    /// Reply to [`OpenSession`].
    pub struct OpenSessionReply {
        /// Number of slots granted. The client uses the slots 0 to `slots` - 1.
        pub slots: u32,
        /// The lease: the target ends a session from which it gets no request for so many
        /// milliseconds.
        pub lease_ms: u32,
    }
}

record! {
    /// A client renews the lease of its session.
    pub struct KeepAlive {
        /// The lease by which the client renews, in milliseconds. The target keeps the session at
        /// least for this lease, even if the cluster's lease became shorter in the meantime.
        pub lease_ms: u32,
    }
}

record! {
    /// Reply to [`KeepAlive`].
    pub struct KeepAliveReply {
        /// The lease by which the client renews from now on, in milliseconds.
        pub lease_ms: u32,
    }
}

record! {
    /// A client ends the session in the header. The target closes the session's open files and
    /// releases its locks.
    pub struct CloseSession {}
}

record! {
    /// A client asks the target to persist everything that it has acknowledged (`fsync` of a
    /// directory). The target replies when it is on the device.
    pub struct SyncAll {}
}

record! {
    /// Lists the sessions of a target, in pages.
    pub struct ListSessions {
        /// Return only sessions with higher ids. Zero starts at the beginning.
        pub after: SessionId,
    }
}

record! {
    /// A client's session at one target.
    pub struct SessionEntry {
        /// The session.
        pub session: SessionId,
        /// The client that opened it.
        pub client: NodeId,
        /// Number of slots granted.
        pub slots: u32,
        /// The session's lease, in milliseconds.
        pub lease_ms: u32,
        /// Time since the target got the last request of the session, in milliseconds.
        pub silent_ms: u64,
        /// Number of files that the session has open at this target, counted up to a limit.
        pub open_files: u32,
    }
}

record! {
    /// Reply to [`ListSessions`].
    pub struct SessionList {
        /// The sessions, by rising id.
        pub sessions: Vec<SessionEntry>,
        /// `after` of the next page. `None` means that this is the last page.
        pub next: Option<SessionId>,
    }
}
