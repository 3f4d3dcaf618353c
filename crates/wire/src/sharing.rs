//! Messages by which a metadata target tells clients what they may not rely on any longer. What
//! they do together is in `docs/design/0008-shared-files.md`.

use skep_types::InodeId;
use skep_types::codec::record;

record! {
    /// A file that a client has open is about to be shared: others have it open too, and one of all
    /// of them may write.
    #[derive(Copy)]
    pub struct Notification {
        /// Number of the notification, never used again.
        pub number: u64,
        /// The file.
        pub inode: InodeId,
    }
}

record! {
    /// Waits until there is something that the session has to know, for some seconds at most.
    pub struct WaitNotifications {
        /// Notifications that the client is at: it doesn't have to be told of them again.
        pub known: Vec<u64>,
    }
}

record! {
    /// Answer to [`WaitNotifications`].
    pub struct Notifications {
        /// What the session has to know; nothing: ask again.
        pub notifications: Vec<Notification>,
    }
}

record! {
    /// The client knows that files are shared, and acts accordingly from now on.
    pub struct AcknowledgeNotifications {
        /// Numbers of the notifications.
        pub numbers: Vec<u64>,
    }
}
