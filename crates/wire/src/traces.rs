//! Messages about records of single operations: a service returns its records on request. A mount
//! sends its records to management, because no program can connect to a mount. See
//! docs/design/0023-traces.md.

use skep_types::codec::record;
use skep_types::{GroupId, InodeId, NodeId, TargetId};

record! {
    /// Requests records of slow and sampled operations.
    pub struct ListTraces {
        /// Return only records with this trace id. `None` means all records.
        pub trace: Option<u128>,
        /// Return only records after this position, which is `next` of the previous reply. Zero
        /// means all records.
        pub after: u64,
        /// Maximum number of records in the reply, at most 500.
        pub limit: u32,
    }
}

record! {
    /// Reply to [`ListTraces`]: a page of records.
    #[derive(Default)]
    pub struct TraceList {
        /// The records, the oldest first.
        pub records: Vec<TraceRecord>,
        /// Value of `after` for the next request. The reply has all records up to this position
        /// that still exist.
        pub next: u64,
        /// Random id of the process. If the id has changed, positions begin again at zero.
        pub incarnation: u64,
        /// Number of records that the process could not store since its start.
        pub lost: u64,
    }
}

record! {
    /// Time of a request or an operation by stage, in microseconds. A time that does not fit into
    /// 32 bits is replaced by the largest 32-bit number.
    #[derive(Default, Copy)]
    pub struct StageTimes {
        /// Time in queues.
        pub waiting_us: u32,
        /// Time in which a thread processed the request.
        pub processing_us: u32,
        /// Time at the disk.
        pub disk_us: u32,
        /// Time until the log was synced.
        pub log_sync_us: u32,
        /// Time in which the request waited for other targets, clients or requests.
        pub others_us: u32,
        /// Time while data of the request or of the reply was transferred.
        pub network_us: u32,
        /// Time in which the reply waited for the other members of the target's group.
        pub copies_us: u32,
    }
}

record! {
    /// The record of one operation of a mount, or of one request at a service.
    #[derive(Default)]
    pub struct TraceRecord {
        /// Trace id. Zero means that the operation has no trace id.
        pub trace: u128,
        /// The service that created the record: `mount`, `metadata`, `storage` or `management`.
        pub service: String,
        /// The target that recorded the operation. Zero means that a mount or management recorded
        /// it.
        pub target: TargetId,
        /// The client that caused the operation. Zero means that no client caused the operation.
        pub client: NodeId,
        /// User id of the program. `None` means that no program caused the operation.
        pub user: Option<u32>,
        /// Kind of the operation or request, as in the label `operation` of metrics.
        pub operation: String,
        /// The inode of the operation. Zero means that the operation has no inode or several
        /// inodes.
        pub inode: InodeId,
        /// Time of day at the end of the operation, in microseconds since 1970, by the clock of the
        /// process's host.
        pub ended_us: u64,
        /// Duration of the operation in microseconds.
        pub duration_us: u64,
        /// Time of the operation in each stage.
        pub stages: StageTimes,
        /// Bytes of file data that the operation read or wrote.
        pub bytes: u64,
        /// Whether the operation failed.
        pub is_failed: bool,
        /// Whether the operation was slow. If this field is not set, the operation was sampled.
        pub is_slow: bool,
        /// The requests of the operation, if the process is a mount: at most 64.
        pub calls: Vec<TraceCall>,
        /// Number of further requests of the operation that the record omits.
        pub calls_left_out: u32,
        /// The waits for groups that did not answer, if the process is a mount: at most the 4
        /// longest waits. In the record of a metadata target: one wait, without an error, for the
        /// storage group that truncated chunk files for the request.
        pub waits: Vec<TraceWait>,
    }
}

record! {
    /// A period in which an operation waited for a group, because the mount sent its request
    /// repeatedly without a final reply.
    pub struct TraceWait {
        /// The group that did not answer.
        pub group: GroupId,
        /// The primary of the group in the sender's cluster map when the first attempt failed. Zero
        /// means that no member served the group.
        pub target: TargetId,
        /// The target that served the group at the end of the wait. Zero means that the mount has
        /// given up.
        pub served_by: TargetId,
        /// Time from the beginning of the operation to the first failed attempt, in microseconds.
        pub begin_us: u32,
        /// Time from the first failed attempt to the last attempt, in microseconds.
        pub duration_us: u32,
        /// The last error for `target`, at most 160 bytes.
        pub error: String,
    }
}

record! {
    /// One request of an operation.
    #[derive(Copy)]
    pub struct TraceCall {
        /// Message number of the request.
        pub message: u16,
        /// The target to which the request was sent. Zero means the node itself.
        pub target: TargetId,
        /// Time from the beginning of the operation to the request, in microseconds.
        pub begin_us: u32,
        /// Time from the request to its reply, in microseconds.
        pub duration_us: u32,
        /// Whether the target refused the request or did not reply.
        pub is_failed: bool,
        /// Time of the request in each stage at the target. `None` if the reply did not contain the
        /// times.
        pub stages: Option<StageTimes>,
    }
}

record! {
    /// Reports records of the sending mount. Management keeps the newest records of all mounts in
    /// memory.
    pub struct ReportTraces {
        /// The records, at most 64. Management sets `client` to the sender.
        pub records: Vec<TraceRecord>,
    }
}

impl StageTimes {
    /// Creates the value from an array of times in the order of the fields.
    pub fn from_array(times: [u32; crate::frame::TIMES]) -> Self {
        let [waiting_us, processing_us, disk_us, log_sync_us, others_us, network_us, copies_us] =
            times;
        Self { waiting_us, processing_us, disk_us, log_sync_us, others_us, network_us, copies_us }
    }

    /// Returns the times as an array in the order of the fields.
    pub fn to_array(self) -> [u32; crate::frame::TIMES] {
        let Self { waiting_us, processing_us, disk_us, log_sync_us, .. } = self;
        let Self { others_us, network_us, copies_us, .. } = self;
        [waiting_us, processing_us, disk_us, log_sync_us, others_us, network_us, copies_us]
    }
}
