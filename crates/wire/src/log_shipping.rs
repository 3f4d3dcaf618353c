//! Messages from the primary of a metadata group to the other members: the records of the group's
//! log. `docs/design/0014-metadata-groups.md` specifies the protocol.
//!
//! Requests and replies can be lost, and can arrive twice, late and in any order.

use skep_types::codec::{Bytes, record};
use skep_types::{Epoch, Lsn, TargetId};

record! {
    /// A log record. The records in one request have consecutive numbers.
    pub struct ShippedRecord {
        /// Epoch of the group in which its primary made the record.
        pub epoch: Epoch,
        /// Contents of the record.
        pub payload: Bytes,
    }
}

record! {
    /// Ships records of the group's log to a member that is not the primary. The member appends
    /// the records that follow its last one, and replies. It replies before it has synced them. If
    /// it has other records with the same numbers, from an earlier primary, it removes them first.
    /// Without records, the request carries `held`, `safe` and `syncs_at_once`.
    ///
    /// The member returns `StaleMap` if the group has another epoch in the member's cluster map.
    pub struct ShipLog {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// Number of the first record of `records`, or of the next one if there are no records.
        pub first: Lsn,
        /// Epoch of the record before `first`. Zero means that the primary does not have this
        /// record in its memory. A member that has a record of another epoch there does not append.
        pub previous_epoch: Epoch,
        /// Last record of the primary. A member that may lack records has all of them again when it
        /// has every record up to the first value of this field that it receives in an epoch.
        pub last: Lsn,
        /// The records.
        pub records: Vec<ShippedRecord>,
        /// Last record that every serving member has appended.
        pub held: Lsn,
        /// Last record that every serving member has synced. The member may write it to its store.
        pub safe: Lsn,
        /// Whether the member syncs its log at once, because a reply waits for that.
        pub syncs_at_once: bool,
    }
}

record! {
    /// Waits until a member that is not the primary has synced a record after `synced`, for a
    /// quarter of a second at most.
    ///
    /// The member returns `StaleMap` if the group has another epoch in the member's cluster map.
    pub struct AwaitLogSync {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// Last record that the member has reported as synced.
        pub synced: Lsn,
    }
}

record! {
    /// Reply to [`ShipLog`] and [`AwaitLogSync`]: the progress of the member with the group's log.
    #[derive(Copy, Default)]
    pub struct LogHeld {
        /// Epoch of the group in the member's cluster map.
        pub epoch: Epoch,
        /// Last record that the member has appended in this epoch, or has found equal to the
        /// primary's record. The member has this record and all records before it.
        pub appended: Lsn,
        /// Last one of these records that the member has synced.
        pub synced: Lsn,
        /// If the member is behind, the primary ships the records after this one: the last record
        /// of the member's log, or an earlier one if the last ones come from an earlier primary.
        pub ship_after: Lsn,
        /// Whether the member did not append the records of the request, because it does not have
        /// the record before `first`.
        pub is_behind: bool,
    }
}

record! {
    /// Asks the primary of a group for the progress of its members.
    pub struct AskGroup {}
}

record! {
    /// The progress of a member that is not the primary, as the primary knows it.
    #[derive(Copy)]
    pub struct MemberProgress {
        /// The member.
        pub target: TargetId,
        /// Last record that the member has confirmed in this epoch.
        pub appended: Lsn,
        /// Last record that the member has synced.
        pub synced: Lsn,
        /// Milliseconds since the primary sent the newest request that the member has acknowledged.
        /// `None` means that the member has acknowledged none in this epoch.
        pub silent_ms: Option<u64>,
        /// Whether replies wait for the member.
        pub is_counted: bool,
        /// Whether the member lacks records that the primary does not keep.
        pub needs_copy: bool,
    }
}

record! {
    /// Reply to [`AskGroup`].
    pub struct GroupProgress {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// The primary.
        pub primary: TargetId,
        /// Last record of the primary.
        pub last: Lsn,
        /// Last record that the primary has synced.
        pub synced: Lsn,
        /// Last record that every serving member has appended.
        pub held: Lsn,
        /// Last record that every serving member has synced.
        pub safe: Lsn,
        /// Whether the primary may answer: every serving member has acknowledged a recent request.
        pub may_answer: bool,
        /// Bytes of the records that the primary keeps for other members.
        pub kept_bytes: u64,
        /// The other members.
        pub members: Vec<MemberProgress>,
    }
}
