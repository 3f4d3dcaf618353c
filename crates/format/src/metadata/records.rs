//! The values in the key-value store of a metadata target, and the payload of its log records.
//!
//! `docs/format/metadata-keys.md` explains which key has which kind of record. The module `keys`
//! owns the keys.

use skep_types::codec::{Bytes, Codec, Reader, Writer, crc32c, record};
use skep_types::{
    Attributes, ChunkFileKey, ChunkFileSet, Epoch, FileKind, GroupId, HostIncarnation, InodeId,
    Lsn, NodeId, Result, SessionId, StripePattern, Timestamp,
};
use skep_wire::file_locks::LockMode;
use skep_wire::metadata::Step;
use std::ops::Range;

/// Number of file bytes in one part of the inline bytes. A write logs all bytes of each part that
/// it changes, and a read looks up each part that it needs.
pub const INLINE_PART_BYTES: u64 = 1 << 10;

record! {
    /// An inode.
    pub struct InodeRecord {
        /// Attributes of the inode.
        pub attributes: Attributes,
        /// Parent of a directory. For other kinds, the directory in which the inode was created or
        /// to which it was last moved.
        pub parent: InodeId,
        /// Pattern of a file, or default pattern of a directory. A default pattern is encoded like
        /// a `PatternRequest`.
        pub pattern: Option<StripePattern>,
        /// Target path of a symbolic link. Empty for other kinds of inodes.
        pub link_target: Bytes,
        /// Whether the inode may have extended attributes.
        pub has_xattrs: bool,
        /// High-water mark of the size: the largest size that writers have ever reported, or the
        /// end of the furthest inline write. No chunk file and no inline part has a byte beyond
        /// this size.
        pub high_water: u64,
        /// Whether the inode was created without a name and still has none. As long as this field
        /// is set, a client may still link the inode.
        pub may_be_named: bool,
        /// Chunk files that clients have reported as synced. These chunk files exist on the devices
        /// of their targets until the inode is removed.
        pub synced_chunk_files: ChunkFileSet,
    }
}

record! {
    /// A part of the inline bytes of a file.
    pub struct InlineRecord {
        /// CRC-32C of `bytes`.
        pub checksum: u32,
        /// The bytes of the part up to the last byte that is not zero: at least one byte, at most
        /// [`INLINE_PART_BYTES`]. A record of part 0 with more bytes was written by an earlier
        /// version of the program. Such a record has the bytes of all parts, and the file has no
        /// records of other parts.
        pub bytes: Bytes,
    }
}

impl InlineRecord {
    /// Creates the record of `bytes`. Returns `None` if all bytes are zeros.
    pub fn new(mut bytes: Vec<u8>) -> Option<Self> {
        let end = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        bytes.truncate(end);
        Some(Self { checksum: crc32c(&bytes), bytes: Bytes(bytes) })
    }

    /// Returns the bytes, or `None` if the checksum does not match.
    pub fn checked(self) -> Option<Vec<u8>> {
        (crc32c(&self.bytes) == self.checksum).then_some(self.bytes.0)
    }

    /// Whether this record of part 0 has the bytes of all parts.
    pub fn has_all_parts(&self) -> bool {
        self.bytes.len() as u64 > INLINE_PART_BYTES
    }
}

/// Splits a range of inline bytes at the borders of the parts. For each part in ascending order,
/// returns its index and the file offsets of the bytes of `range` that the part contains.
pub fn inline_parts(range: Range<u64>) -> impl Iterator<Item = (u16, Range<u64>)> {
    let end = if range.is_empty() { 0 } else { range.end.div_ceil(INLINE_PART_BYTES) };
    (range.start / INLINE_PART_BYTES..end).map(move |part| {
        let start = part * INLINE_PART_BYTES;
        let piece = range.start.max(start)..range.end.min(start + INLINE_PART_BYTES);
        // The index fits, because a stripe pattern has at most 64 KiB of inline bytes.
        (part as u16, piece)
    })
}

record! {
    /// An entry of a directory.
    pub struct DentryRecord {
        /// Name of the entry.
        pub name: Bytes,
        /// The inode to which the entry points.
        pub inode: InodeId,
        /// Kind of the inode.
        pub kind: FileKind,
    }
}

record! {
    /// Counts of the opens of an inode, by mode.
    #[derive(Copy, Default)]
    pub struct OpenCounts {
        /// Number of opens for reading only.
        pub readers: u32,
        /// Number of opens for writing.
        pub writers: u32,
    }
}

impl OpenCounts {
    /// Whether the inode is not open at all.
    pub fn is_zero(&self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

record! {
    /// A range of a file that an application has locked.
    #[derive(Copy)]
    pub struct LockedRange {
        /// First byte of the range.
        pub start: u64,
        /// End of the range (exclusive).
        pub end: u64,
        /// Mode of the lock.
        pub mode: LockMode,
    }
}

record! {
    /// All locks of one kind that an owner holds on a file.
    pub struct FileLocksRecord {
        /// Process id of the owner's last request, on the client's host.
        pub pid: u32,
        /// The locked ranges in ascending order of their start. Never empty.
        pub ranges: Vec<LockedRange>,
    }
}

record! {
    /// A chunk file that a truncation shortens.
    #[derive(Copy)]
    pub struct TruncatedChunkFile {
        /// Storage group of the chunk file.
        pub group: GroupId,
        /// Key of the chunk file.
        pub key: ChunkFileKey,
        /// Upper bound of the chunk file's size after the truncation, in bytes.
        pub size: u64,
        /// Incarnation of the host that truncated the chunk file. Zero while the truncation is
        /// pending.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// A truncation that storage has not yet durably applied to all chunk files. The inode has the
    /// new size already.
    pub struct TruncationRecord {
        /// Truncate generation of the file after the truncation.
        pub generation: u64,
        /// Whether a client had the file open for writing before the truncation.
        pub had_writers: bool,
        /// Whether storage has truncated all chunk files. If `is_applied` is set, only the syncs of
        /// these chunk files are missing.
        pub is_applied: bool,
        /// The chunk files that may reach beyond the new size.
        pub chunk_files: Vec<TruncatedChunkFile>,
    }
}

record! {
    /// A client session.
    pub struct SessionRecord {
        /// The client that opened the session.
        pub client: NodeId,
        /// Number of slots granted.
        pub slots: u32,
    }
}

record! {
    /// The last modifying request of a slot and its reply.
    pub struct SlotRecord {
        /// Sequence number of the request.
        pub sequence: u64,
        /// LSN of the log record that contains the request's changes. Zero means that the target
        /// has undone the request.
        pub lsn: Lsn,
        /// Body of the stored reply.
        pub reply: Bytes,
    }
}

impl SlotRecord {
    /// Creates the record of a request that the target has undone after its transaction. The target
    /// executes a retry of such a request a second time.
    pub fn undone(sequence: u64) -> Self {
        Self { sequence, lsn: Lsn::default(), reply: Bytes(Vec::new()) }
    }

    /// Whether the target has undone the request.
    pub fn is_undone(&self) -> bool {
        self.lsn == Lsn::default()
    }
}

record! {
    /// A prepared transaction. The target applies the steps if the coordinator commits.
    pub struct PreparedRecord {
        /// The steps, in the order of the request. Empty if the target has already applied them,
        /// and keeps the record only until it receives the decision.
        pub steps: Vec<Step>,
        /// The attributes that the reply to the prepare request contains.
        pub attributes: Vec<Attributes>,
        /// Time at which the transaction was prepared.
        pub since: Timestamp,
    }
}

record! {
    /// A committed transaction whose commit the coordinator must still send to some participants.
    pub struct DecisionRecord {
        /// The groups that have not confirmed the commit yet.
        pub participants: Vec<GroupId>,
    }
}

record! {
    /// The entry that a staged transaction has added to a directory of its coordinator, or has
    /// removed from it.
    pub struct StagedEntry {
        /// The directory that contains, or contained, the entry.
        pub directory: InodeId,
        /// The name of the entry.
        pub name: Bytes,
        /// The inode to which the entry points.
        pub inode: InodeId,
        /// Kind of the inode.
        pub kind: FileKind,
        /// Whether the transaction has added the entry. If not set, the transaction has removed it.
        pub is_added: bool,
    }
}

record! {
    /// A staged transaction. It is committed when this record is *safe* and the participant has
    /// durably prepared its steps.
    pub struct StagedRecord {
        /// The group that has prepared steps.
        pub participant: GroupId,
        /// The time at which the participant has prepared the steps, from its reply. The
        /// participant confirms its prepared transaction only if this transaction has the same
        /// time.
        pub since: Timestamp,
        /// The entry that the coordinator changes.
        pub entry: StagedEntry,
        /// Session of the request.
        pub session: SessionId,
        /// Slot of the request.
        pub slot: u32,
        /// Sequence number of the request.
        pub sequence: u64,
    }
}

record! {
    /// The progress of an incomplete copy of another member's store.
    pub struct StoreCopyRecord {
        /// The last copied key. The copy has all keys of the other store up to this key, and no
        /// later key.
        pub after: Bytes,
        /// Epoch of the group when the last part of the copy arrived.
        pub epoch: Epoch,
        /// Epoch of the last log record whose changes the copy has. Zero means that the epoch is
        /// not known.
        pub applied_epoch: Epoch,
        /// Number of key-value pairs received so far.
        pub pair_count: u64,
        /// Bytes of the keys and values received so far.
        pub pair_bytes: u64,
        /// Checksum of the parts received so far, as in the message `CopyStore`.
        pub checksum: u32,
    }
}

record! {
    /// One change of the key-value store.
    pub struct Mutation {
        /// The key to change.
        pub key: Bytes,
        /// The new value. `None` removes the key.
        pub value: Option<Bytes>,
    }
}

record! {
    /// The payload of a log record: all changes of one or more operations.
    pub struct Batch {
        /// The changes in ascending order of the keys.
        pub mutations: Vec<Mutation>,
    }
}

impl Batch {
    /// Returns the encoded batch of `changes`, without a copy of each key and value. `changes` are
    /// the keys in ascending order, each with its new value. `bytes` is the expected length of the
    /// encoded changes. A wrong expectation only costs time.
    pub fn encode_changes<'a>(
        changes: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        bytes: usize,
    ) -> Vec<u8> {
        let mut w = Writer::over(Vec::with_capacity(size_of::<u32>() + bytes));
        (changes.len() as u32).encode(&mut w);
        for (key, value) in changes {
            Bytes::encode_borrowed(key, &mut w);
            value.is_some().encode(&mut w);
            if let Some(value) = value {
                Bytes::encode_borrowed(value, &mut w);
            }
        }
        w.finish()
    }
}

/// Decodes a value of the key-value store.
///
/// # Errors
/// Returns `Corrupt`, which names the key, if the value is not a valid record of this type.
pub fn decode_value<T: Codec>(key: &[u8], value: &[u8]) -> Result<T> {
    let mut r = Reader::new(value);
    let decoded = T::decode(&mut r).and_then(|decoded| r.finish().map(|()| decoded));
    decoded.map_err(|error| {
        error.within(format_args!("cannot decode metadata record {}", key.escape_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_record_omits_trailing_zeros_and_detects_damage() {
        let record = InlineRecord::new(vec![0, 7, 0, 0]).unwrap();
        assert_eq!(record.bytes.0, [0, 7]);
        assert_eq!(InlineRecord::new(vec![0; 100]), None);
        assert_eq!(InlineRecord::new(Vec::new()), None);
        let damaged = InlineRecord { bytes: Bytes(vec![0, 8]), ..record.clone() };
        assert_eq!(damaged.checked(), None);
        assert_eq!(record.checked(), Some(vec![0, 7]));
    }

    #[test]
    fn borrowed_changes_are_encoded_like_an_owned_batch() {
        let changes = [(vec![1], Some(vec![7; 300])), (vec![1, 2], None), (vec![3], Some(vec![]))];
        let mutation = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| Mutation {
            key: Bytes(key.clone()),
            value: value.clone().map(Bytes),
        };
        let batch = Batch { mutations: changes.iter().map(mutation).collect() };
        let borrowed = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
        assert_eq!(Batch::encode_changes(borrowed, 10), batch.to_bytes());
    }

    #[test]
    fn inline_parts_cover_a_range_without_overlap() {
        let of = |range| inline_parts(range).collect::<Vec<_>>();
        assert_eq!(of(0..1), [(0, 0..1)]);
        assert_eq!(of(0..1024), [(0, 0..1024)]);
        assert_eq!(of(1024..1025), [(1, 1024..1025)]);
        assert_eq!(of(1000..3000), [(0, 1000..1024), (1, 1024..2048), (2, 2048..3000)]);
        assert_eq!(of(65_535..65_536), [(63, 65_535..65_536)]);
        assert_eq!((of(0..0), of(1024..1024), of(1500..1500)), (vec![], vec![], vec![]));
    }
}
