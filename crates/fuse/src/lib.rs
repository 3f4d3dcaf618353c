//! From kernel requests to client calls: both FUSE transports and the protocol layer.
//!
//! Owns: the kernel's binary interface (`abi`), the two transports (`transport`), what one worker
//! does between a request and its reply (`worker`), the translation of each operation (`request`,
//! `ops`, `reply`, `errno`), mounting and unmounting (`mount`, `session`), a cluster in particular
//! (`cluster_mount`). Does not own: what a file system does. That is behind [`FileSystem`], which
//! `skep_client::Client` is.
//!
//! A request's way: a port of the transport gives bytes, [`request`] makes a call of them,
//! `protocol` performs it by one of `ops`, `reply` makes bytes of the answer, and the port's next
//! exchange sends them and fetches the next request. All of it happens on one thread, which also
//! owns the sockets that the call needs: nothing is handed to another thread on the way.
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
