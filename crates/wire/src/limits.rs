//! Limits of the protocol, with the reasons for them.

/// Maximum length of a body. A cluster map of 1,000 servers with 12 targets each takes about 3 MiB.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Maximum bulk data in one frame. One request reads or writes at most this number of bytes of a
/// chunk file.
pub const MAX_DATA_BYTES: usize = 4 << 20;
/// Maximum length of the target path of a symbolic link: `PATH_MAX` without the terminating zero
/// byte.
pub const MAX_SYMLINK_BYTES: usize = 4095;
/// Maximum length of the value of an extended attribute: the kernel's `XATTR_SIZE_MAX`.
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
/// Maximum length of the name of an extended attribute: the kernel's `XATTR_NAME_MAX`.
pub const MAX_XATTR_NAME_BYTES: usize = 255;
/// Maximum total length of the names of an inode's extended attributes (`XATTR_LIST_MAX`).
pub const MAX_XATTR_LIST_BYTES: usize = 64 << 10;
/// Maximum number of hard links of an inode. Because of this limit, the count of links never
/// overflows.
pub const MAX_LINKS: u32 = 1 << 31;
/// Maximum number of bytes of entries in one reply to `ReadDirectory`.
pub const MAX_DIRECTORY_BYTES: u32 = 1 << 20;
/// Requests of a node may wait for groups. A heartbeat of the node reports at most this number of
/// such groups.
pub const MAX_REPORTED_WAITS: usize = 16;
/// Maximum length of the error text of a `RequestWait`, in characters.
pub const MAX_WAIT_ERROR_CHARS: usize = 240;
/// Maximum number of entries in one `RequestWaitList`. A person does not read a longer list.
pub const MAX_LISTED_REQUEST_WAITS: usize = 1000;
/// Maximum number of slots of a session at one metadata target. The target stores the last reply of
/// each slot, so this limit bounds the stored replies.
pub const MAX_SLOTS: u32 = 1024;
/// Slot in which the client of a session replays lost changes. Each session has this slot in
/// addition to its granted slots.
pub const REPLAY_SLOT: u32 = MAX_SLOTS;
/// Maximum number of opens in one `CloseMany`. The limit keeps the transaction short, so that it
/// does not delay other requests.
pub const MAX_CLOSES: usize = 256;
/// Maximum number of inodes in one `WhichExist`.
pub const MAX_INODES_ASKED: usize = 4096;
/// Maximum number of starts that a metadata target remembers. Also the maximum number of marks in
/// one `SyncInline`. An unsynced write from an older start counts as lost.
pub const MAX_STARTS: usize = 64;
/// Maximum number of locked ranges of one owner in one file. Each change of a lock rewrites all
/// ranges of the owner.
pub const MAX_LOCK_RANGES: usize = 1024;
/// End of the lockable range (exclusive). A file of maximum size ends before this offset.
pub const LOCK_END: u64 = 1 << 63;
/// Maximum number of entries in one `LockList`.
pub const MAX_LISTED_USES: usize = 256;
/// An entry of a `LockList` has at most this number of ranges, and at most this number of waits.
pub const MAX_LISTED_LOCKS: usize = 256;
/// Approximate maximum number of waits in one `WaitList`. All waits of one owner must be in the
/// same `WaitList`, so a list may exceed this number.
pub const MAX_LISTED_WAITS: usize = 256;
/// In a `WaitList`, an owner has at most this number of waits, and a wait has at most this number
/// of holders.
pub const MAX_LISTED_HOLDERS: usize = 64;
/// Maximum number of clients in one `ClientList`.
pub const MAX_LISTED_CLIENTS: usize = 1024;
/// Maximum number of sessions in one `SessionList`.
pub const MAX_LISTED_SESSIONS: usize = 256;
/// Maximum number of transactions in one `TransactionList` or `CoordinatedList`.
pub const MAX_LISTED_TRANSACTIONS: usize = 256;
/// Maximum number of open files of a session that a metadata target counts for a `SessionList`.
pub const MAX_COUNTED_OPENS: usize = 4096;
/// Maximum number of notifications in one `Notifications`. A client also processes at most this
/// number of notifications at a time.
pub const MAX_NOTIFICATIONS: usize = 1024;
/// Maximum time that a requester may set in `time_left_ms`.
pub const MAX_TIME_LEFT_MS: u32 = 3_600_000;
/// Maximum length of a message between members of management. The replicated log has the same
/// limit.
pub const MAX_MEMBER_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum number of the leader's addresses in the text of the error `NotLeader`.
pub const MAX_LEADER_ADDRESSES: usize = 16;
/// Maximum length, in bytes, of the text of the error `NotLeader`. A receiver shortens longer error
/// texts.
pub const MAX_LEADER_TEXT: usize = 900;
/// Maximum number of records in one `TraceList`. A list of this length, in which each record has
/// the maximum number of requests, takes 1.8 MB.
pub const MAX_LISTED_TRACES: usize = 500;
/// Maximum number of requests in one `TraceRecord`.
pub const MAX_TRACE_CALLS: usize = 64;
/// Maximum number of waits for groups in one `TraceRecord`.
pub const MAX_TRACE_WAITS: usize = 4;
/// Maximum length of the error in a `TraceWait`. An error of this length has space for the names of
/// the target and of its node, an address, and the error of the system.
pub const MAX_TRACE_ERROR_BYTES: usize = 160;
/// Maximum number of records in one `ReportTraces`.
pub const MAX_REPORTED_TRACES: usize = 64;
/// Maximum length of the names in a `TraceRecord`. Names of messages and services are shorter than
/// this limit.
pub const MAX_TRACE_NAME_BYTES: usize = 64;
