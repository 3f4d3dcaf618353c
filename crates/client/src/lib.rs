//! All file operations of Skep, for the mount and for programs that use the library: sessions,
//! striping, checksums, sizes of files that are being written.
//!
//! A [`Mount`] is what the threads of a process share; each thread has a [`Client`] of its own,
//! with its own connections and its own range of session slots, so that the path of an operation
//! crosses no thread. What applications may rely on is in `docs/semantics.md`.
//!
//! Architecture invariant: retries live in `skep-rpc`'s router and nowhere here. What is here is
//! only what the router can't know: a session that was lost (`session`), and data that doesn't
//! match its checksum, which is read once more (`data_read`).

mod attributes;
mod background;
mod chunk_stats;
mod client;
mod data_allocate;
mod data_copy;
mod data_read;
mod data_write;
mod deadlock;
mod deferred_close;
mod directory;
mod driven;
mod eviction;
mod file_locks;
mod granules;
mod inline;
mod inode_state;
mod kept_caches;
mod limits;
mod mount;
mod namespace;
mod notifications;
mod open;
mod pattern;
mod plan;
mod recent;
mod session;
mod sync;
mod tables;
mod xattr;

pub use attributes::Stat;
pub use client::Client;
pub use data_allocate::{Allocation, Sought};
pub use directory::StatFs;
pub use file_locks::{FileLock, Locked};
pub use mount::{ClusterAccess, Forget, LogControl, Mount, MountOptions};
pub use open::{Created, OpenedFile};
pub use skep_wire::file_locks::{HeldLock, LockKind, LockMode};
pub use skep_wire::limits::LOCK_END;
pub use skep_wire::metadata::{
    Create as CreateRequest, DirectoryEntries, DirectoryEntry, EntryInfo, EntryReply, NewInode,
    OpenMode, SetAttributes, SetTime, XattrMode,
};
pub use tables::HandleId;
