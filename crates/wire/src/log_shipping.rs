//! Messages from the primary of a metadata group to the other members: the records of the group's
//! log, and copies of the store. `docs/design/0014-metadata-groups.md` specifies the protocol.
//!
//! Requests and replies can be lost, and can arrive twice, late and in any order.

use skep_types::codec::{Bytes, record};
use skep_types::{Epoch, Lsn, TargetId, byte_enum};

record! {
    /// A record of the group's log. The records in one request have consecutive LSNs.
    pub struct ShippedRecord {
        /// Epoch of the group in which its primary created the record.
        pub epoch: Epoch,
        /// Contents of the record.
        pub payload: Bytes,
    }
}

record! {
    /// Ships records of the group's log to a member that is not the primary. The member appends the
    /// records that follow its last record, and replies before it has synced these records. If the
    /// member has different records with the same LSNs, from an earlier primary, the member removes
    /// its own records first. A request without records sends only `held`, `safe` and
    /// `syncs_at_once`.
    ///
    /// The member returns `StaleMap` if `epoch` is not the group's epoch in the member's cluster
    /// map. The member returns `NotReady` if its service stops, and `DeviceFailed` if its disk
    /// hangs. The primary then asks management to drop the member from the serving members.
    pub struct ShipLog {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// LSN of the first record in `records`. If `records` is empty, LSN of the record that the
        /// primary sends next.
        pub first: Lsn,
        /// Epoch of the record before `first`. Zero means that the primary does not have this
        /// record in its memory. A member whose record before `first` has another epoch does not
        /// append.
        pub previous_epoch: Epoch,
        /// LSN of the primary's last record. In each epoch, a member that may lack records
        /// remembers this value from the first request that has the id of the member's process
        /// in `process`. The member lacks no records any more when it has all records up to this
        /// value.
        pub last: Lsn,
        /// The id in the field `process` of the member's newest reply in this epoch. Zero means
        /// that the primary has no reply yet. From this id, the member learns that the primary sent
        /// the request after the start of the member's process, and not before a power loss.
        pub process: u64,
        /// The records.
        pub records: Vec<ShippedRecord>,
        /// LSN of the last record that every serving member has appended.
        pub held: Lsn,
        /// LSN of the last record that every serving member has synced. The member may write the
        /// records up to `safe` to its store.
        pub safe: Lsn,
        /// Whether the member must sync its log immediately. The primary sets this field if a reply
        /// waits for the sync.
        pub syncs_at_once: bool,
        /// Time in milliseconds for which the primary still waits before it replies to clients,
        /// because an earlier primary may have a lease. Zero means that all earlier leases have
        /// ended. A member that becomes the next primary also waits until these leases have ended.
        pub wait_ms: u32,
    }
}

record! {
    /// Waits until a member that is not the primary has synced a record with a higher LSN than
    /// `synced`, but for at most a quarter of a second.
    ///
    /// The member returns `StaleMap` if `epoch` is not the group's epoch in the member's cluster
    /// map.
    pub struct AwaitLogSync {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// LSN of the last record that the member has reported as synced.
        pub synced: Lsn,
    }
}

record! {
    /// Reply to [`ShipLog`] and [`AwaitLogSync`]: how much of the group's log the member has.
    #[derive(Copy, Default)]
    pub struct LogHeld {
        /// Epoch of the group in the member's cluster map.
        pub epoch: Epoch,
        /// LSN of the last record that the member has appended in this epoch, or has found to be
        /// equal to the primary's record. The member has all records up to this LSN.
        pub appended: Lsn,
        /// LSN of the last record that the member has synced, at most `appended`.
        pub synced: Lsn,
        /// If `is_behind` is set, LSN of the record after which the primary continues to ship. This
        /// record is the last record of the member's log, or an earlier record if the last records
        /// come from an earlier primary.
        pub ship_after: Lsn,
        /// Whether the member lacks the record before `first`, so that it appended none of the
        /// records of the request.
        pub is_behind: bool,
        /// Whether the member's store is incomplete. Records cannot bring such a store up to date.
        pub needs_copy: bool,
        /// An id that the member's process has chosen at its start. Another process has another id.
        pub process: u64,
        /// The lease that the member grants, in milliseconds. The primary may rely on this reply
        /// until this time has passed since the primary sent the request. Zero means that the
        /// member grants no lease.
        pub lease_ms: u32,
    }
}

byte_enum! {
    /// The action that a [`CopyStore`] request asks of the member.
    pub enum CopyStep {
        /// Only reply how much of the store the member has received.
        Ask = 1,
        /// Remove store and log durably, and begin a copy. A serving member ignores this step.
        Begin = 2,
        /// Add a part to the copy.
        Extend = 3,
    }
}

record! {
    /// A key of the store with its value.
    pub struct StoredPair {
        /// The key.
        pub key: Bytes,
        /// The value.
        pub value: Bytes,
    }
}

record! {
    /// Sends a part of the primary's store to a member that does not serve. The part has the next
    /// pairs in ascending order of their keys, and the records that the primary has stored since it
    /// sent the previous part.
    ///
    /// The member first applies the records, but only to keys up to `after`. Then the member adds
    /// the pairs. The records and the pairs change the store in one atomic step. So, for all keys
    /// that are copied already, the member's store always equals the primary's store after a
    /// certain record. A part that does not continue the member's copy changes nothing.
    ///
    /// The member returns `StaleMap` if `epoch` is not the group's epoch in the member's cluster
    /// map, and `NoSpace` if the member's disk is full.
    pub struct CopyStore {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// The action that the primary asks of the member.
        pub step: CopyStep,
        /// Last key of the previous part. Empty for the first part.
        pub after: Bytes,
        /// LSN of the first record in `records`. If `records` is empty, LSN of the record that the
        /// primary sends next. In the first part, LSN of the record after the last record whose
        /// effect the pairs contain. With `Begin`, LSN of the first record that the primary can
        /// still send: a member that has all earlier records does not begin a copy.
        pub first: Lsn,
        /// Epoch of the record before `first`. Zero means that the primary does not have this
        /// record in its memory. If the copy ends with a record of the same LSN and another epoch,
        /// the group lacks changes of the copy. In this case, the member removes the copy and
        /// begins anew.
        pub previous_epoch: Epoch,
        /// The records.
        pub records: Vec<ShippedRecord>,
        /// The pairs. Their values include the effects of all `records`.
        pub pairs: Vec<StoredPair>,
        /// After this part, the copy has all pairs with keys up to this key.
        pub through: Bytes,
        /// Whether the store has no key above `through`.
        pub is_last: bool,
        /// Number of pairs in all parts so far, including this part.
        pub pair_count: u64,
        /// Bytes of keys and values in all parts so far, including this part.
        pub pair_bytes: u64,
        /// Checksum of all parts so far, including this part: the CRC-32C of the checksum of the
        /// previous parts (four bytes, zero for the first part), followed by `pairs` in the
        /// encoding of this message.
        pub checksum: u32,
    }
}

record! {
    /// Reply to [`CopyStore`]: how much of the store the member has received.
    pub struct StoreCopied {
        /// Epoch of the group in the member's cluster map.
        pub epoch: Epoch,
        /// Whether the member's store is incomplete. If this field is not set, the member appends
        /// records, and only `applied` has a meaning.
        pub is_copying: bool,
        /// Whether the copy has all pairs, and the member is making the copy durable.
        pub is_whole: bool,
        /// LSN of the last record whose effect the copy has. If `is_copying` is not set, LSN of the
        /// last record that the member has.
        pub applied: Lsn,
        /// Last key that the member has received. Empty before the first part.
        pub after: Bytes,
        /// Number of pairs that the member has received.
        pub pair_count: u64,
        /// Bytes of keys and values that the member has received.
        pub pair_bytes: u64,
        /// Checksum of the parts that the member has received, as in [`CopyStore`].
        pub checksum: u32,
    }
}

record! {
    /// The progress of a copy of the store, in the state of the primary.
    pub struct CopyProgress {
        /// Number of pairs that the member has confirmed.
        pub pair_count: u64,
        /// Estimated number of pairs in the primary's store, which may include removed pairs.
        pub total_pairs: u64,
        /// Bytes of keys and values that the member has confirmed.
        pub pair_bytes: u64,
        /// Bytes per second since this primary began to send the copy. `None` means that the
        /// primary has not received a confirmation yet.
        pub bytes_per_second: Option<u64>,
        /// The reason why the copy does not continue. Empty if the copy continues.
        pub problem: String,
    }
}

impl CopyProgress {
    /// Estimates the number of bytes of keys and values that the member has not received. The
    /// estimate assumes the mean size of the copied pairs for the missing pairs. `None` means that
    /// the member has not received a pair yet.
    pub fn missing_bytes(&self) -> Option<u64> {
        let missing = u128::from(self.total_pairs.saturating_sub(self.pair_count));
        let bytes = u128::from(self.pair_bytes) * missing;
        u64::try_from(bytes.checked_div(u128::from(self.pair_count))?).ok()
    }

    /// Estimates the number of seconds until the member has received all pairs. `None` means that
    /// the rate or [`CopyProgress::missing_bytes`] is not known yet.
    pub fn seconds_left(&self) -> Option<u64> {
        self.missing_bytes()?.checked_div(self.bytes_per_second?)
    }
}

record! {
    /// Asks the primary of a group for the progress of its members.
    pub struct AskGroup {}
}

record! {
    /// The progress of a member that is not the primary, in the state of the primary.
    pub struct MemberProgress {
        /// The member.
        pub target: TargetId,
        /// LSN of the last record that the member has confirmed in this epoch.
        pub appended: Lsn,
        /// LSN of the last record that the member has synced.
        pub synced: Lsn,
        /// Milliseconds since the primary sent the newest request that the member has acknowledged.
        /// `None` means that the member has acknowledged no request in this epoch.
        pub silent_ms: Option<u64>,
        /// Whether the primary's replies wait for confirmations of the member.
        pub is_counted: bool,
        /// Whether the member lacks records that the primary does not have any more, neither in
        /// memory nor in its log on disk.
        pub needs_copy: bool,
        /// Bytes of the log records that the member lacks. `None` means that the member has not
        /// replied in this epoch, or that the member receives a copy of the store.
        pub missing_bytes: Option<u64>,
        /// Progress of the copy of the store that the primary is sending to the member.
        pub copy: Option<CopyProgress>,
    }
}

record! {
    /// Reply to [`AskGroup`].
    pub struct GroupProgress {
        /// Epoch of the group in the primary's cluster map.
        pub epoch: Epoch,
        /// The primary.
        pub primary: TargetId,
        /// LSN of the primary's last record.
        pub last: Lsn,
        /// LSN of the last record that the primary has synced.
        pub synced: Lsn,
        /// LSN of the last record that every serving member has appended.
        pub held: Lsn,
        /// LSN of the last record that every serving member has synced.
        pub safe: Lsn,
        /// Whether the primary may reply to requests. The field is set only if every serving member
        /// has acknowledged a recent message.
        pub may_answer: bool,
        /// Bytes of the records that the primary keeps in memory for other members.
        pub kept_bytes: u64,
        /// The other members.
        pub members: Vec<MemberProgress>,
    }
}
