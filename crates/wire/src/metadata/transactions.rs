//! Transactions between metadata groups: promises, decisions and questions about them.

use super::NewInode;
use skep_types::codec::{Bytes, choice, record};
use skep_types::{Attributes, FileKind, GroupId, InodeId, StripePattern, byte_enum};

record! {
    /// A transaction between metadata groups.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct TransactionId {
        /// The group that decides.
        pub coordinator: GroupId,
        /// Never used again by that group.
        pub number: u64,
    }
}

choice! {
    /// One thing that a participant checks and locks when it prepares, and does when it commits.
    pub enum Step {
        /// Makes a directory inode that no entry points to yet; answers with its attributes.
        MakeDirectoryInode = 1 {
            /// The directory that will have its entry.
            parent: InodeId,
            /// Permissions and owner.
            new: NewInode,
            /// The pattern that it hands down; none: the cluster's.
            pattern: Option<StripePattern>,
            /// Its project.
            project: u32,
            /// Whether it hands that down.
            hands_down_project: bool,
            /// Its access control list; empty: none.
            access_acl: Bytes,
            /// The one that it hands down; empty: none.
            default_acl: Bytes,
        },
        /// Adds a name to an inode that is no directory; answers with its new attributes.
        AddLink = 2 {
            /// The inode.
            inode: InodeId,
        },
        /// Takes a name from an inode that is no directory.
        DropLink = 3 {
            /// The inode.
            inode: InodeId,
        },
        /// Removes a directory inode, which must be empty.
        RemoveDirectoryInode = 4 {
            /// The inode.
            inode: InodeId,
        },
        /// Notes that an inode has moved: its parent changes (directories), its change time moves.
        SetParent = 5 {
            /// The inode.
            inode: InodeId,
            /// The new parent.
            parent: InodeId,
            /// The project that it must be of; none: any.
            project: Option<u32>,
        },
        /// Removes an entry, which must point to `inode`.
        RemoveEntry = 6 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// Where it must point.
            inode: InodeId,
            /// Its kind.
            kind: FileKind,
        },
        /// Holds the one lock under which directories move between parents.
        LockRename = 7,
        /// Points an entry, which must point to `inode`, to another inode.
        ReplaceEntry = 8 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// Where it must point.
            inode: InodeId,
            /// Where it will point.
            new_inode: InodeId,
            /// The kind of that inode.
            new_kind: FileKind,
        },
    }
}

record! {
    /// Asks a participant to promise steps. The answer comes when the promise is on its device.
    pub struct Prepare {
        /// The transaction.
        pub transaction: TransactionId,
        /// The steps, in order.
        pub steps: Vec<Step>,
    }
}

record! {
    /// A promise: the participant commits or aborts as it is told, whatever happens.
    pub struct PrepareReply {
        /// Nothing was promised: another transaction holds what is needed. Try again later.
        pub busy: bool,
        /// Attributes that steps answered with, in their order.
        pub attributes: Vec<Attributes>,
    }
}

record! {
    /// Tells a participant how a transaction ended. Answered when that is on its device.
    pub struct Decide {
        /// The transaction.
        pub transaction: TransactionId,
        /// Commit, or abort.
        pub commit: bool,
    }
}

byte_enum! {
    /// How a transaction ended.
    pub enum Decision {
        /// Aborted, or never heard of: the same thing.
        Aborted = 0,
        /// Committed.
        Committed = 1,
        /// Not decided yet.
        Pending = 2,
    }
}

record! {
    /// A participant that waits asks the coordinator.
    pub struct AskDecision {
        /// The transaction.
        pub transaction: TransactionId,
    }
}

record! {
    /// Answer to [`AskDecision`].
    pub struct DecisionReply {
        /// How it ended.
        pub decision: Decision,
    }
}
