//! Serves the kernel's FUSE requests by calls to a client. Contains both FUSE transports and the
//! protocol layer.
//!
//! Owns the kernel's binary interface (`abi`), the two transports (`transport`), the worker threads
//! (`worker`), the translation of each operation (`request`, `ops`, `reply`, `errno`), mounting and
//! unmounting (`mount`, `session`), and the mount of a cluster (`cluster_mount`). The logic of the
//! file system is behind the trait [`FileSystem`], which `skep_client::Client` implements.
//!
//! A request takes this path: a port of the transport receives its bytes, `request` parses them,
//! `ops` performs the operation, and `reply` encodes the result. The port's next exchange sends the
//! reply and receives the next request. All these steps run on one thread, which also owns the
//! sockets that the operation uses. No step is passed to another thread.
//!
//! A new operation needs code in five places: its family's file in `request` (struct and parsing),
//! its family's file in `ops`, the trait [`FileSystem`], the implementation of the trait in the
//! client, and the in-memory file system of the tests. The table of opcodes already has all
//! operations of the kernel.
//!
//! Only `transport` and `callers` have `unsafe` code.

mod abi;
mod callers;
mod checked_files;
mod cluster_mount;
mod context;
mod errno;
mod failure_lines;
mod file_system;
mod following;
mod init;
mod invalidation;
mod job_reader;
mod job_variables;
mod limits;
mod meter;
mod metrics_socket;
mod mount;
mod mount_flags;
mod mount_point;
mod ops;
mod origin;
mod repeated_opens;
mod reply;
mod request;
mod session;
mod trace_reports;
mod transport;
mod user_load;
mod waiting;
mod waits;
mod worker;

pub use cluster_mount::{ClusterOptions, mount};
pub use context::RequestOptions;
pub use errno::errno;
pub use file_system::FileSystem;
pub use following::{EntryNames, FollowedOperation, FollowedOperations};
pub use job_variables::JobVariables;
pub use limits::{MAX_READ_AHEAD_BYTES, READ_AHEAD_BYTES, VALIDITY};
pub use mount::{ServeOptions, remount, serve};
pub use mount_flags::MountFlags;
pub use mount_point::check_mount_point;
pub use ops::xattrs::{
    ANCESTORS_XATTR, CLUSTER_MAP_XATTR, DIRECT_IO_XATTR, INFO_XATTR, LOAD_XATTR, MAP_XATTR,
    OPERATIONS_XATTR, PATTERN_XATTR, SLOW_OPERATIONS, TIMEOUT_XATTR, TRANSPORT_XATTR, USERS_XATTR,
    WAITING_XATTR,
};
pub use request::is_request;
pub use transport::kernel::check_helper;
pub use transport::{TransportChoice, TransportKind};
pub use user_load::{MERGED_LOAD, UserLoad, UserLoadRow};
pub use waiting::{WaitingRequest, WaitingRequests};
