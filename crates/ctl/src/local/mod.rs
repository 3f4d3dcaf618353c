//! A complete cluster on one host, which `skep up` starts, supervises and stops.
//!
//! - [`layout`] reads and writes the files of the data directory.
//! - [`shape`] defines the numbers of services and targets.
//! - [`children`] starts, watches and ends processes.
//! - [`former`] waits for the processes of a killed supervisor.
//! - [`resources`] checks this host before the start.
//! - [`ownership`] sets the owner of the root directory.
//! - [`supervisor`] runs a cluster from `up` to `down`.
//! - [`summary`] describes a running cluster.
//!
//! Services are separate processes that run this program, with real sockets and directories.

pub(crate) mod children;
mod former;
pub(crate) mod layout;
mod ownership;
pub(crate) mod plan;
pub(crate) mod readiness;
mod resources;
pub(crate) mod shape;
pub(crate) mod summary;
pub(crate) mod supervisor;
