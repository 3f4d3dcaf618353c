//! Messages by which a metadata target notifies clients that a file becomes shared.
//! `docs/design/0008-shared-files.md` describes the protocol.

use skep_types::InodeId;
use skep_types::codec::record;

record! {
    /// A file that the client has open is about to be shared: another client opens it, and at least
    /// one of them may write. The client stops relying on cached pages and its known end of file.
    #[derive(Copy)]
    pub struct Notification {
        /// Number of the notification, never used again.
        pub number: u64,
        /// The file.
        pub inode: InodeId,
    }
}

record! {
    /// A client waits for notifications of its session. The target replies when there is one, or
    /// after some seconds.
    pub struct WaitNotifications {
        /// Notifications that the client is processing. The target does not send them again.
        pub known: Vec<u64>,
    }
}

record! {
    /// Reply to [`WaitNotifications`].
    pub struct Notifications {
        /// The notifications. If there are none, the client waits again.
        pub notifications: Vec<Notification>,
    }
}

record! {
    /// A client acknowledges notifications: from now on it treats these files as shared. Repeating
    /// it changes nothing.
    pub struct AcknowledgeNotifications {
        /// Numbers of the notifications.
        pub numbers: Vec<u64>,
    }
}
