//! Messages of transactions between metadata groups (two-phase commit). The coordinator sends
//! [`Prepare`] and [`Decide`]; a participant that gets no decision sends [`AskDecision`]. All are
//! idempotent by their transaction id.

use super::NewInode;
use skep_types::codec::{Bytes, choice, record};
use skep_types::{Attributes, FileKind, GroupId, InodeId, StripePattern, byte_enum};

record! {
    /// A transaction between metadata groups.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct TransactionId {
        /// The group that coordinates and decides.
        pub coordinator: GroupId,
        /// Number of the transaction. That group never uses it again.
        pub number: u64,
    }
}

choice! {
    /// One change of a transaction. The participant checks it and takes its locks when it prepares,
    /// and applies it when it commits.
    pub enum Step {
        /// Creates a directory inode, to which no entry points yet. Returns its attributes.
        MakeDirectoryInode = 1 {
            /// The parent directory.
            parent: InodeId,
            /// Permissions and owner.
            new: NewInode,
            /// Its default pattern (the bytes of a `PatternRequest`). `None` means that the
            /// cluster's settings apply.
            pattern: Option<StripePattern>,
            /// Its project.
            project: u32,
            /// Whether new entries inherit that project.
            hands_down_project: bool,
            /// Its access control list. Empty if it has none.
            access_acl: Bytes,
            /// Its default access control list, for new entries. Empty if it has none.
            default_acl: Bytes,
        },
        /// Counts another name of an inode that is not a directory. Returns its new attributes.
        AddLink = 2 {
            /// The inode.
            inode: InodeId,
        },
        /// Counts one name less of an inode that is not a directory.
        DropLink = 3 {
            /// The inode.
            inode: InodeId,
        },
        /// Removes a directory inode, which must be empty.
        RemoveDirectoryInode = 4 {
            /// The inode.
            inode: InodeId,
        },
        /// Moves an inode: sets the parent of a directory, and the change time of any inode.
        SetParent = 5 {
            /// The inode.
            inode: InodeId,
            /// The new parent.
            parent: InodeId,
            /// The project that the inode must have. `None` allows any.
            project: Option<u32>,
        },
        /// Removes an entry, which must point to `inode`.
        RemoveEntry = 6 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// The inode to which it must point.
            inode: InodeId,
            /// Its kind.
            kind: FileKind,
        },
        /// Takes the cluster's single lock under which directories move between parents.
        LockRename = 7,
        /// Changes the inode of an entry, which must point to `inode`.
        ReplaceEntry = 8 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// The inode to which it must point.
            inode: InodeId,
            /// The inode to which it will point.
            new_inode: InodeId,
            /// The kind of that inode.
            new_kind: FileKind,
        },
    }
}

record! {
    /// The coordinator asks a participant to prepare steps. The participant replies when the
    /// prepared transaction is on its device. A repeated request returns the same reply.
    pub struct Prepare {
        /// The transaction.
        pub transaction: TransactionId,
        /// The steps, in order.
        pub steps: Vec<Step>,
    }
}

record! {
    /// Reply to [`Prepare`]. Unless `busy`, the participant can commit or abort from now on, also
    /// after a crash, and keeps its locks until it learns the decision.
    pub struct PrepareReply {
        /// Nothing was prepared: another transaction holds a lock. The coordinator retries later.
        pub busy: bool,
        /// The attributes that steps return, in the order of the steps.
        pub attributes: Vec<Attributes>,
    }
}

record! {
    /// The coordinator sends the decision to a participant. The participant replies when the
    /// decision is applied and on its device. A repeated request changes nothing.
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
        /// Aborted, or unknown to the coordinator, which is the same (presumed abort).
        Aborted = 0,
        /// Committed.
        Committed = 1,
        /// Not decided yet.
        Pending = 2,
    }
}

record! {
    /// A participant with a prepared transaction asks the coordinator for the decision.
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
