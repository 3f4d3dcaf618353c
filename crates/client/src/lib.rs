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
mod cache;
mod client;
mod data;
mod driven;
mod file_system;
mod files;
mod inode_state;
mod limits;
mod locks;
mod mount;
mod names;
mod session;
mod sharing;

pub use attributes::pattern::Patterns;
pub use attributes::stat::{InodeAttributes, Stat};
pub use attributes::xattr::Xattrs;
pub use client::Client;
pub use data::allocate::{Allocates, Allocation, Sought};
pub use data::copy::Copies;
pub use data::read::Reads;
pub use data::write::Writes;
pub use file_system::FileSystem;
pub use files::close::Closes;
pub use files::handles::HandleId;
pub use files::open::{Created, OpenedFile, Opens};
pub use files::sync::Syncs;
pub use locks::file_locks::{FileLock, Locked, Locks};
pub use mount::Mount;
pub use mount::options::{ClusterAccess, Forget, LogControl, MountOptions};
pub use names::directory::{Directories, StatFs};
pub use names::entries::Names;
pub use skep_wire::file_locks::{HeldLock, LockKind, LockMode};
pub use skep_wire::limits::LOCK_END;
pub use skep_wire::metadata::{
    Create as CreateRequest, DirectoryEntries, DirectoryEntry, EntryInfo, EntryReply, NewInode,
    OpenMode, SetAttributes, SetTime, XattrMode,
};
