//! Messages about shared files: a metadata target notifies clients that a file becomes shared.
//! `docs/design/0008-shared-files.md` specifies the protocol.

use skep_types::InodeId;
use skep_types::codec::record;

record! {
    /// Notifies a client that a file is about to be shared. The client has the file open, another
    /// client is opening it, and at least one of the two may write. The client must no longer rely
    /// on its cached pages and its known file size.
    #[derive(Copy)]
    pub struct Notification {
        /// Id of the notification. Ids are never reused.
        pub number: u64,
        /// The file.
        pub inode: InodeId,
    }
}

record! {
    /// Waits for notifications of the session. The target replies as soon as there is a
    /// notification, or with an empty list after five seconds.
    pub struct WaitNotifications {
        /// Ids of the notifications that the client is processing. The target does not repeat these
        /// notifications.
        pub known: Vec<u64>,
    }
}

record! {
    /// Reply to [`WaitNotifications`].
    pub struct Notifications {
        /// The notifications. If the list is empty, the client sends [`WaitNotifications`] again.
        pub notifications: Vec<Notification>,
    }
}

record! {
    /// Acknowledges notifications. From now on the client treats the files of these notifications
    /// as shared. Idempotent.
    pub struct AcknowledgeNotifications {
        /// Ids of the notifications.
        pub numbers: Vec<u64>,
    }
}
