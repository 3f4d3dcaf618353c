//! Messages about client sessions at a metadata target.

use super::OpenMode;
use skep_types::codec::{Bytes, choice, record};
use skep_types::{InodeId, NodeId, SessionId, StripePattern};

record! {
    /// Opens the session whose id is in the frame header, or confirms that the session is open. If
    /// the target does not have a session, the target returns `StaleSession` to all other requests
    /// in this session.
    pub struct OpenSession {
        /// Node id of the client.
        pub client: NodeId,
        /// Number of slots that the client requests.
        pub slots: u32,
    }
}

record! {
    /// Reply to [`OpenSession`].
    pub struct OpenSessionReply {
        /// Number of slots granted. The client may use the slots 0 to `slots` - 1.
        pub slots: u32,
        /// Lease in milliseconds. The target ends the session if it receives no request of the
        /// session for this time.
        pub lease_ms: u32,
        /// Start number of the target. If this number differs from the number that the client has
        /// stored, the client sends `CompareOpens`, because a power loss of the target may have
        /// reverted opens of the session. Zero means that the number is not durable yet.
        pub start: u64,
    }
}

record! {
    /// Renews the lease of a session.
    pub struct KeepAlive {
        /// The lease that the client assumes, in milliseconds. The target keeps the session for at
        /// least this time, even if the cluster's lease is now shorter than this time.
        pub lease_ms: u32,
    }
}

record! {
    /// Reply to [`KeepAlive`].
    pub struct KeepAliveReply {
        /// The lease that the client must assume from now on, in milliseconds.
        pub lease_ms: u32,
        /// Start number of the target, as in [`OpenSessionReply`].
        pub start: u64,
    }
}

record! {
    /// Ends the session whose id is in the frame header. The target closes the opens of the session
    /// and releases its locks.
    pub struct CloseSession {}
}

record! {
    /// An open file in a [`CompareOpens`].
    #[derive(Copy)]
    pub struct OpenedFile {
        /// The inode.
        pub inode: InodeId,
        /// The mode in which the file is open.
        pub open: OpenMode,
    }
}

record! {
    /// Asks how many opens the session has of some files. A client sends this request after a new
    /// start of the target, because a power loss may have reverted opens that the target had
    /// acknowledged. The client then reopens the missing files.
    pub struct CompareOpens {
        /// The files, at most `MAX_CLOSES`.
        pub files: Vec<OpenedFile>,
    }
}

record! {
    /// Reply to [`CompareOpens`].
    pub struct CompareOpensReply {
        /// For each file and mode of the request, in order: the number of opens that the session
        /// has of this file in this mode. Zero if the file does not exist.
        pub counts: Vec<u32>,
    }
}

record! {
    /// Asks for the last request that the target has executed in each slot of the session. Each
    /// change that a client requests contains a start number of the target: the number of the start
    /// in which the client opened its session or last compared its acknowledged changes. After its
    /// next start, the target refuses a change with an earlier start number, and returns
    /// `StaleStart`, because a power loss may have reverted changes on which this change depends.
    /// So the client first compares its acknowledged changes with the reply to this request. After
    /// this comparison, the client's changes contain the new start number.
    pub struct CompareSlots {}
}

record! {
    /// The last request that a target has executed in a slot.
    #[derive(Copy)]
    pub struct SlotSequence {
        /// The slot.
        pub slot: u32,
        /// Sequence number of the request.
        pub sequence: u64,
    }
}

record! {
    /// Reply to [`CompareSlots`].
    pub struct CompareSlotsReply {
        /// Start number of the target.
        pub start: u64,
        /// The slots in which the target has executed requests. Requests with higher sequence
        /// numbers are not in the target's log.
        pub slots: Vec<SlotSequence>,
    }
}

record! {
    /// Repeats an acknowledged change that a power loss of the target has reverted. A client sends
    /// this request after `CompareSlots`, once for each lost change, and always in the slot
    /// `REPLAY_SLOT` of its session. The target executes the lost changes of all clients in the
    /// order of `start` and `change`. So the target replies only when each other client has
    /// announced its next lost change or has sent `EndReplay`. The target refuses the request with
    /// `Stale` if the session takes no part in a replay, or if the change would have another
    /// outcome than before.
    pub struct Replay {
        /// Start number of the target when it executed the change for the first time.
        pub start: u64,
        /// Number of the change in that start: the field `sequence` in the header of the original
        /// reply.
        pub change: u64,
        /// Message number of the original request.
        pub message: u16,
        /// Encoded body of the original request.
        pub request: Bytes,
        /// The inode in the original reply. Zero if the reply has no inode.
        pub inode: InodeId,
        /// Whether the original request created this inode. The target then recreates the inode
        /// with the same id.
        pub created: bool,
        /// Stripe pattern of the created file, from the original reply.
        pub pattern: Option<StripePattern>,
        /// Truncate generation in the original reply, if the original request was an open that
        /// truncated the file. Zero for all other changes. The target does not truncate the file
        /// again. If the file is empty, the target sets the file's truncate generation to this
        /// value, because later changes of all clients contain this value. In this case, the lost
        /// truncation had removed nothing.
        pub truncate_generation: u64,
    }
}

record! {
    /// Reply to [`Replay`].
    pub struct ReplayReply {
        /// Encoded body of the reply to the change, as it is stored in a slot.
        pub reply: Bytes,
    }
}

record! {
    /// States that the client has no further change to replay in this session (`Replay`). The
    /// target accepts new changes when all clients that had a session before its start have sent
    /// this request. The header names the start of the target. If the header names another start,
    /// the target refuses the request with `StaleStart`.
    pub struct EndReplay {}
}

record! {
    /// Asks for the outcome of a request that the client sent in a session that has ended. The
    /// client sends this question if it received no reply to that request. The target returns
    /// `Busy` until the session has ended, because the target may execute the request as long as
    /// the session exists.
    pub struct AskOutcome {
        /// The session that has ended.
        pub session: SessionId,
        /// Slot of the request.
        pub slot: u32,
        /// Sequence number of the request.
        pub sequence: u64,
    }
}

choice! {
    /// The outcome of a request whose session has ended.
    pub enum Outcome {
        /// The target executed the request.
        Executed = 1 {
            /// Encoded body of the reply.
            reply: Bytes,
        },
        /// The target did not execute the request, and will never execute it.
        NotExecuted = 2,
        /// The target has no information about the session any more.
        Unknown = 3,
    }
}

record! {
    /// Reply to [`AskOutcome`].
    pub struct OutcomeReply {
        /// The outcome.
        pub outcome: Outcome,
    }
}

record! {
    /// Asks the target to make its acknowledged changes durable (`fsync` of a directory). The
    /// target replies as soon as these changes are on the device.
    pub struct SyncAll {}
}

record! {
    /// Lists the sessions at a target in pages.
    pub struct ListSessions {
        /// Return only sessions with higher ids. Zero starts at the beginning.
        pub after: SessionId,
    }
}

record! {
    /// A client session at one target.
    pub struct SessionEntry {
        /// The session.
        pub session: SessionId,
        /// Node id of the client that opened the session.
        pub client: NodeId,
        /// Number of slots granted.
        pub slots: u32,
        /// Lease of the session, in milliseconds.
        pub lease_ms: u32,
        /// Time since the target received the last request of the session, in milliseconds.
        pub silent_ms: u64,
        /// Number of files of this target that the session has open. The target counts up to
        /// `MAX_COUNTED_OPENS`.
        pub open_files: u32,
    }
}

record! {
    /// Reply to [`ListSessions`].
    pub struct SessionList {
        /// The sessions in ascending order of their ids.
        pub sessions: Vec<SessionEntry>,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<SessionId>,
    }
}
