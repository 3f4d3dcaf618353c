//! From kernel requests to client calls: both FUSE transports and the protocol layer.
//!
//! Owns the kernel's binary interface (`abi`), the two transports (`transport`), the worker threads
//! (`worker`), the translation of each operation (`request`, `ops`, `reply`, `errno`), mounting and
//! unmounting (`mount`, `session`), and the mount of a cluster (`cluster_mount`). Does not own the
//! logic of a file system: that is behind [`FileSystem`], which `skep_client::Client` implements.
//!
//! The way of a request: a port of the transport receives its bytes, `request` parses them, `ops`
//! performs the operation, and `reply` encodes the result. The port's next exchange sends the reply
//! and receives the next request. All of this happens on one thread, which also owns the sockets of
//! the operation: no step is handed to another thread.
//!
//! A new operation is written in five places: its family's file in `request` (struct and parsing)
//! and in `ops`, the trait of the file system, its implementation in the client, and the file
//! system in memory of the tests. The table of opcodes has all operations of the kernel already.
//!
//! `unsafe` is in `transport` only.

mod abi;
mod checked_files;
mod cluster_mount;
mod context;
mod errno;
mod file_system;
mod init;
mod invalidation;
mod limits;
mod mount;
mod mount_flags;
mod mount_point;
mod ops;
mod reply;
mod request;
mod session;
mod transport;
mod waits;
mod worker;

pub use cluster_mount::{ClusterOptions, mount};
pub use context::RequestOptions;
pub use errno::errno;
pub use file_system::FileSystem;
pub use limits::VALIDITY;
pub use mount::{ServeOptions, remount, serve};
pub use mount_flags::MountFlags;
pub use mount_point::check_mount_point;
pub use ops::xattrs::{MAP_XATTR, PATTERN_XATTR, TIMEOUT_XATTR, TRANSPORT_XATTR};
pub use request::is_request;
pub use transport::{TransportChoice, TransportKind};
