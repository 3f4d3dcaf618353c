//! Keys and records of a metadata target's key-value store.
//!
//! Owns layout and order of keys, and the layout of the records. `docs/format/metadata-keys.md`
//! explains each key. Does not own the log in which batches are stored ([`crate::log`]).

mod cursors;
mod keys;
mod records;

pub use cursors::{ORDINALS, name_cursor};
pub use keys::{
    Key, LockOwner, directory_of_dentry, inline_of, inode_of, is_work_item, last_u64,
    lock_owner_of, removal, session_open_of, transaction_of, xattr_of,
};
pub use records::{
    Batch, DecisionRecord, DentryRecord, FileLocksRecord, InlineRecord, InodeRecord, LockedRange,
    Mutation, OpenCounts, PreparedRecord, SessionRecord, SlotRecord, decode_value,
};
