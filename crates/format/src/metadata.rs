//! Keys and records of the key-value store of a metadata target.
//!
//! This module is responsible for the layout and order of the keys, and the layout of the records.
//! `docs/format/metadata-keys.md` explains each key. This module is not responsible for the log
//! that stores batches of changes ([`crate::log`]).

mod cursors;
mod keys;
mod records;

pub use cursors::{ORDINALS, name_cursor};
pub use keys::{
    Key, LockOwner, directory_of_dentry, expect_parsed, inline_of, inode_of, is_work_item,
    last_u64, lock_owner_of, removal, session_open_of, slot_of, transaction_of, truncation_of,
    xattr_of,
};
pub use records::{
    Batch, DecisionRecord, DentryRecord, FileLocksRecord, INLINE_PART_BYTES, InlineRecord,
    InodeRecord, LockedRange, Mutation, OpenCounts, PreparedRecord, SessionRecord, SlotRecord,
    StagedEntry, StagedRecord, StoreCopyRecord, TruncatedChunkFile, TruncationRecord, decode_value,
    inline_parts,
};
