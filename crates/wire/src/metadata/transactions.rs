//! Messages of transactions between metadata groups (two-phase commit). The coordinator sends
//! [`Prepare`] and [`Decide`]. A participant that receives no decision sends [`AskDecision`]. The
//! transaction id makes all these messages idempotent. Administrators send [`ListTransactions`],
//! [`ListCoordinated`] and [`ResolveTransaction`].
//!
//! If both groups must sync their logs at the same time, the coordinator sends [`BeginPrepare`],
//! [`ConfirmPrepared`], [`ApplyPrepared`] and then [`Decide`]
//! (`docs/design/0028-staged-transactions.md`).

use super::NewInode;
use skep_types::codec::{Bytes, choice, record};
use skep_types::{Attributes, FileKind, GroupId, InodeId, StripePattern, Timestamp, byte_enum};

record! {
    /// Identifies a transaction between metadata groups.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct TransactionId {
        /// The group that coordinates the transaction.
        pub coordinator: GroupId,
        /// Id of the transaction. The coordinator never uses an id twice.
        pub number: u64,
    }
}

choice! {
    /// One change of a transaction. In the prepare phase the participant checks the step and takes
    /// the locks that the step needs. In the commit phase the participant applies the step.
    pub enum Step {
        /// Creates a directory inode, to which no entry points yet. Returns the attributes of the
        /// inode.
        MakeDirectoryInode = 1 {
            /// The parent directory.
            parent: InodeId,
            /// Permissions and owner of the directory.
            new: NewInode,
            /// Default pattern of the directory, encoded like a `PatternRequest`. `None` means that
            /// the cluster's settings apply.
            pattern: Option<StripePattern>,
            /// Project of the directory.
            project: u32,
            /// Whether new entries of the directory inherit its project.
            hands_down_project: bool,
            /// Access control list of the directory. Empty if the directory has none.
            access_acl: Bytes,
            /// Default access control list for new entries. Empty if the directory has none.
            default_acl: Bytes,
        },
        /// Increments the link count of an inode that is not a directory. Returns the new
        /// attributes of the inode.
        AddLink = 2 {
            /// The inode.
            inode: InodeId,
        },
        /// Decrements the link count of an inode that is not a directory.
        DropLink = 3 {
            /// The inode.
            inode: InodeId,
        },
        /// Removes the inode of a directory, which must be empty.
        RemoveDirectoryInode = 4 {
            /// The directory's inode.
            inode: InodeId,
        },
        /// Updates an inode that has moved: sets the parent of a directory, and the change time of
        /// any inode.
        SetParent = 5 {
            /// The inode.
            inode: InodeId,
            /// The new parent.
            parent: InodeId,
            /// The project that the inode must have. `None` allows any project.
            project: Option<u32>,
        },
        /// Removes an entry, which must point to `inode`.
        RemoveEntry = 6 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// The inode to which the entry must point.
            inode: InodeId,
            /// Kind of the inode.
            kind: FileKind,
        },
        /// Takes the cluster's single rename lock. A move of a directory to a different parent
        /// needs this lock.
        LockRename = 7,
        /// Changes an entry, which must point to `inode`, so that it points to `new_inode`.
        ReplaceEntry = 8 {
            /// The directory.
            directory: InodeId,
            /// The name.
            name: Bytes,
            /// The inode to which the entry must point before the change.
            inode: InodeId,
            /// The inode to which the entry points after the change.
            new_inode: InodeId,
            /// Kind of the new inode.
            new_kind: FileKind,
        },
    }
}

record! {
    /// Asks a participant to prepare steps. The participant replies after the prepared transaction
    /// is durable. Idempotent: a retry returns the same reply.
    pub struct Prepare {
        /// The transaction.
        pub transaction: TransactionId,
        /// The steps. The participant applies them in this order.
        pub steps: Vec<Step>,
    }
}

record! {
    /// Reply to [`Prepare`]. Unless `busy` is set, the participant can commit or abort after this
    /// reply, even after a crash. The participant keeps its locks until it receives the decision.
    pub struct PrepareReply {
        /// Whether nothing was prepared because another transaction has a lock that a step needs.
        /// The coordinator retries after a pause.
        pub busy: bool,
        /// The attributes that the steps return, in the order of the steps.
        pub attributes: Vec<Attributes>,
    }
}

record! {
    /// Asks a participant to prepare steps, like [`Prepare`]. But the participant replies before
    /// the prepared transaction is durable, and a power loss of the participant may then remove the
    /// prepared transaction. Idempotent.
    pub struct BeginPrepare {
        /// The transaction.
        pub transaction: TransactionId,
        /// The steps. The participant applies them in this order.
        pub steps: Vec<Step>,
    }
}

record! {
    /// Reply to [`BeginPrepare`]. Unless `busy` is set, the participant has the locks of the steps.
    pub struct BeginPrepareReply {
        /// Whether nothing was prepared because another transaction has a lock that a step needs.
        /// The coordinator retries later.
        pub busy: bool,
        /// The attributes that the steps return, in the order of the steps.
        pub attributes: Vec<Attributes>,
        /// Time of day at which the participant prepared the transaction. With this time, the
        /// coordinator can later ask whether the participant still has this prepared transaction.
        pub since: Timestamp,
    }
}

record! {
    /// Asks a participant whether it still has a prepared transaction. The participant replies
    /// after the prepared transaction is durable. If the participant does not have the prepared
    /// transaction, it durably refuses to prepare the transaction later. Idempotent.
    pub struct ConfirmPrepared {
        /// The transaction.
        pub transaction: TransactionId,
        /// The time in the reply to [`BeginPrepare`].
        pub since: Timestamp,
    }
}

record! {
    /// Reply to [`ConfirmPrepared`].
    pub struct ConfirmPreparedReply {
        /// Whether the participant has the transaction. If this field is set, the participant can
        /// commit from now on, even after a crash. If this field is not set, the participant will
        /// never prepare the transaction again.
        pub is_prepared: bool,
    }
}

record! {
    /// Makes a participant apply the steps of a prepared transaction, and release its locks. The
    /// outcome of the transaction is a commit, but the coordinator may have to ask again with
    /// [`ConfirmPrepared`]. So the participant keeps the transaction until it receives [`Decide`].
    /// Idempotent.
    pub struct ApplyPrepared {
        /// The transaction.
        pub transaction: TransactionId,
    }
}

record! {
    /// Sends the coordinator's decision to a participant. The participant replies after the
    /// decision is applied and durable. Idempotent.
    pub struct Decide {
        /// The transaction.
        pub transaction: TransactionId,
        /// Whether the participant commits. If this field is not set, the participant aborts.
        pub commit: bool,
    }
}

byte_enum! {
    /// Outcome of a transaction.
    pub enum Decision {
        /// The coordinator aborted the transaction, or has no record of the transaction, which also
        /// means an abort (presumed abort).
        Aborted = 0,
        /// The coordinator committed the transaction.
        Committed = 1,
        /// The coordinator has not decided yet.
        Pending = 2,
    }
}

record! {
    /// Asks the coordinator for the decision. A participant with a prepared transaction sends this
    /// request.
    pub struct AskDecision {
        /// The transaction.
        pub transaction: TransactionId,
    }
}

record! {
    /// Reply to [`AskDecision`].
    pub struct DecisionReply {
        /// The decision.
        pub decision: Decision,
    }
}

record! {
    /// Lists the transactions of other groups that are prepared on a target, in pages.
    pub struct ListTransactions {
        /// Return only transactions with higher ids. All zeros start at the beginning.
        pub after: TransactionId,
    }
}

record! {
    /// A transaction that is prepared on a target and waits for its coordinator's decision.
    pub struct TransactionEntry {
        /// The transaction.
        pub transaction: TransactionId,
        /// Time of day at which the target prepared the transaction.
        pub since: Timestamp,
        /// Number of prepared steps. Zero means that the target has already applied them.
        pub steps: u32,
        /// Time since the target sent a request for the decision to which the coordinator has not
        /// replied, in milliseconds. Zero means that no such request waits for a reply.
        pub silent_ms: u64,
        /// The reason why the target could not carry out the coordinator's decision. Empty if the
        /// target has not tried yet, or has succeeded.
        pub problem: String,
    }
}

record! {
    /// Reply to [`ListTransactions`].
    pub struct TransactionList {
        /// The transactions in ascending order of their ids.
        pub transactions: Vec<TransactionEntry>,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<TransactionId>,
    }
}

record! {
    /// Lists the transactions of a coordinator that wait for the confirmation of another group, in
    /// pages. These are the staged transactions, and the committed transactions whose participants
    /// have not all confirmed the commit.
    pub struct ListCoordinated {
        /// Return only transactions with higher numbers. Zero starts at the beginning.
        pub after: u64,
    }
}

record! {
    /// A transaction of a coordinator that waits for the confirmation of another group.
    pub struct CoordinatedEntry {
        /// The transaction.
        pub transaction: TransactionId,
        /// The groups that have not confirmed the transaction.
        pub participants: Vec<GroupId>,
        /// Time since the coordinator staged or committed the transaction, in milliseconds. If the
        /// target has started later, the time since this start.
        pub waits_ms: u64,
        /// The directory of the name that the transaction locks. `None` means that the transaction
        /// is committed, so it locks no name at the coordinator.
        pub directory: Option<InodeId>,
        /// The name that the transaction locks. Empty if the transaction is committed.
        pub name: Bytes,
    }
}

record! {
    /// Reply to [`ListCoordinated`].
    pub struct CoordinatedList {
        /// The transactions in ascending order of their numbers.
        pub transactions: Vec<CoordinatedEntry>,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<u64>,
    }
}

record! {
    /// An administrator's decision on a transaction. An administrator sends this request if the
    /// coordinator will never run again, or if the target cannot carry out the coordinator's
    /// decision. The target refuses this request with `InUse` while it can still expect a decision
    /// from the coordinator. The target replies after the decision is applied and durable.
    pub struct ResolveTransaction {
        /// The transaction.
        pub transaction: TransactionId,
        /// Whether the target commits. If this field is not set, the target aborts.
        pub commit: bool,
    }
}
