//! All file operations of Skep, for the mount and for programs that use the library: sessions,
//! striping, checksums, sizes of files that are being written.
//!
//! The threads of a process share a [`Mount`]. Each thread has a [`Client`] of its own, with its
//! own connections and its own range of session slots, so that the path of an operation crosses no
//! thread. `docs/semantics.md` lists the guarantees for applications.
//!
//! # Where requests are retried
//! `skep-rpc`'s router repeats requests over other connections. The client retries only where the
//! router lacks the facts:
//! - `session::request` and `session::renewal`: in a new session, after the old one was lost;
//!   `files::sync` likewise for the sync of a whole group, once;
//! - `data::read`, `data::write`, `data::inline`: once more, when a checksum doesn't match;
//! - `mount::eviction`: reads from storage after this client joined the cluster anew, and joining;
//! - `mount::register` and `mount::background`: requests to management, with a pause;
//! - `sharing::follow`: waiting for notifications, with a pause.

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
pub use data::allocate::{Allocates, Allocation, SeekTarget};
pub use data::copy::Copies;
pub use data::read::Reads;
pub use data::write::Writes;
pub use file_system::FileSystem;
pub use files::close::Closes;
pub use files::handles::HandleId;
pub use files::open::{Created, OpenedFile, Opens};
pub use files::sync::Syncs;
pub use locks::file_locks::{FileLock, LockOutcome, Locks};
pub use mount::Mount;
pub use mount::options::{ClusterAccess, Forget, GAVE_UP, LogControl, MountOptions, has_given_up};
pub use names::directory::{Directories, StatFs};
pub use names::entries::Names;
pub use skep_wire::file_locks::{HeldLock, LockKind, LockMode};
pub use skep_wire::limits::LOCK_END;
pub use skep_wire::metadata::{
    Create as CreateRequest, DirectoryEntries, DirectoryEntry, EntryInfo, EntryReply, NewInode,
    OpenMode, SetAttributes, SetTime, XattrMode,
};
