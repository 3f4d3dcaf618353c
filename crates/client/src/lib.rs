//! All file operations of Skep, for the mount and for programs that use this library: names,
//! attributes, data, locks, and the sessions that make each change happen exactly once.
//!
//! The threads of a process share a [`Mount`]. Each thread has its own [`Client`], with its own
//! connections and its own range of session slots, so that no operation needs another thread.
//! `docs/semantics.md` lists the guarantees for applications. [`InodeState`] is public for the
//! simulator (`crates/sim`), which checks the sizes that a mount returns from its memory.
//!
//! # Where requests are retried
//! The router of `skep-rpc` repeats a request if its connection is lost. The client repeats
//! requests only in these other cases:
//! - `session::request` and `session::renewal` send a request again in a new session after the old
//!   session was lost. `files::sync` does the same, but only once, for a request that syncs a whole
//!   metadata group.
//! - `data::read`, `data::write_piece` and `data::inline` send a request once more if a checksum
//!   does not match.
//! - `mount::eviction` joins the cluster again after an eviction, and then repeats reads from
//!   storage.
//! - `skep_rpc::ClientMembership` repeats requests to management, with a pause between two
//!   attempts.
//! - `sharing::follow` repeats the wait for notifications, with a pause after an error.

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
mod meter;
mod mount;
mod names;
mod session;
mod sharing;

pub use attributes::pattern::Patterns;
pub use attributes::queries::{FileUsers, Queries};
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
pub use inode_state::InodeState;
pub use inode_state::guards::{TruncationClaim, WriteGuard};
pub use inode_state::size::{FileEnd, SizeReport};
pub use locks::file_locks::{FileLock, LockOutcome, Locks};
pub use mount::Mount;
pub use mount::options::{
    ClusterAccess, Forget, LogControl, MapObserver, MountOptions, has_given_up,
};
pub use mount::shutdown::UNCONFIRMED;
pub use names::directory::{Directories, StatFs};
pub use names::entries::Names;
pub use skep_rpc::origin::{Origin, job_number, with_origin};
pub use skep_rpc::{
    GAVE_UP, RequestCause, RequestCounts, RequestLoad, SilentTarget, Unanswered, UnansweredReport,
    calls_of, failing_groups, silent_targets,
};
pub use skep_wire::file_locks::{HeldLock, LockKind, LockMode};
pub use skep_wire::limits::LOCK_END;
pub use skep_wire::metadata::{
    Create as CreateRequest, DirectoryEntries, DirectoryEntry, EntryInfo, EntryReply, NewInode,
    OpenMode, SetAttributes, SetTime, XattrMode,
};

#[cfg(test)]
mod wake_ups;
