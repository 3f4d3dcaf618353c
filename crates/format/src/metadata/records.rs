//! The values in a metadata target's key-value store, and the payload of its log.
//!
//! `docs/format/metadata-keys.md` explains which key has which record. Does not own the keys
//! (`keys`).

use skep_types::codec::{Bytes, Codec, Reader, crc32c, record};
use skep_types::{
    Attributes, FileKind, GroupId, InodeId, Lsn, NodeId, Result, StripePattern, Timestamp,
};
use skep_wire::file_locks::LockMode;
use skep_wire::metadata::Step;

record! {
    /// A stored inode.
    pub struct InodeRecord {
        /// Its attributes.
        pub attributes: Attributes,
        /// A directory's parent. For other kinds the directory in which the inode was created or to
        /// which it was last moved.
        pub parent: InodeId,
        /// A file's pattern, or the default pattern of a directory (the bytes of a
        /// `PatternRequest`).
        pub pattern: Option<StripePattern>,
        /// The path in a symbolic link.
        pub link_target: Bytes,
        /// Whether it may have extended attributes.
        pub has_xattrs: bool,
        /// The largest size that writers ever reported. No chunk file has a byte beyond it.
        pub high_water: u64,
        /// Whether it was created without a name and still has none: a client may name it.
        pub may_be_named: bool,
    }
}

record! {
    /// The stored first bytes of a file.
    pub struct InlineRecord {
        /// CRC-32C of the bytes.
        pub checksum: u32,
        /// The bytes up to the last non-zero one: at least one, at most 64 KiB.
        pub bytes: Bytes,
    }
}

impl InlineRecord {
    /// Returns the record of `bytes`. `None` means that all bytes are zeros.
    pub fn new(mut bytes: Vec<u8>) -> Option<Self> {
        let end = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        bytes.truncate(end);
        Some(Self { checksum: crc32c(&bytes), bytes: Bytes(bytes) })
    }

    /// Returns the bytes. `None` means that the checksum does not match.
    pub fn checked(self) -> Option<Vec<u8>> {
        (crc32c(&self.bytes) == self.checksum).then_some(self.bytes.0)
    }
}

record! {
    /// A stored entry.
    pub struct DentryRecord {
        /// Its name.
        pub name: Bytes,
        /// The inode to which it points.
        pub inode: InodeId,
        /// The kind of that inode.
        pub kind: FileKind,
    }
}

record! {
    /// Open counts of an inode.
    #[derive(Copy, Default)]
    pub struct OpenCounts {
        /// Number of opens for reading only.
        pub readers: u32,
        /// Number of opens for writing.
        pub writers: u32,
    }
}

impl OpenCounts {
    /// Whether it is open at all.
    pub fn is_zero(&self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

record! {
    /// A stored locked range.
    #[derive(Copy)]
    pub struct LockedRange {
        /// First byte.
        pub start: u64,
        /// The byte behind the last one.
        pub end: u64,
        /// Mode of the lock.
        pub mode: LockMode,
    }
}

record! {
    /// The locks of an owner on a file.
    pub struct FileLocksRecord {
        /// Process id on the client's host of the last request.
        pub pid: u32,
        /// The ranges, by rising start; not none.
        pub ranges: Vec<LockedRange>,
    }
}

record! {
    /// A session as it is stored.
    pub struct SessionRecord {
        /// The client.
        pub client: NodeId,
        /// Slots granted.
        pub slots: u32,
    }
}

record! {
    /// The last modifying request of a slot, and its answer.
    pub struct SlotRecord {
        /// Its sequence.
        pub sequence: u64,
        /// The record in which it was logged.
        pub lsn: Lsn,
        /// Body of the reply.
        pub reply: Bytes,
    }
}

record! {
    /// A prepared transaction. The target applies its steps when the coordinator commits.
    pub struct PreparedRecord {
        /// The steps.
        pub steps: Vec<Step>,
        /// Attributes that were answered.
        pub attributes: Vec<Attributes>,
        /// When it was made.
        pub since: Timestamp,
    }
}

record! {
    /// The participants to which the coordinator must still send the commit.
    pub struct DecisionRecord {
        /// Groups that have not confirmed it.
        pub participants: Vec<GroupId>,
    }
}

record! {
    /// One change of the store.
    pub struct Mutation {
        /// The key.
        pub key: Bytes,
        /// The new value. `None` removes the key.
        pub value: Option<Bytes>,
    }
}

record! {
    /// The payload of a log record: the changes of some whole operations.
    pub struct Batch {
        /// The changes, by rising key.
        pub mutations: Vec<Mutation>,
    }
}

/// Decodes a stored value.
///
/// # Errors
/// `Corrupt` naming the key.
pub fn decode_value<T: Codec>(key: &[u8], value: &[u8]) -> Result<T> {
    let mut r = Reader::new(value);
    let decoded = T::decode(&mut r).and_then(|decoded| r.finish().map(|()| decoded));
    decoded.map_err(|error| error.within(format_args!("metadata record {}", key.escape_ascii())))
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
}
