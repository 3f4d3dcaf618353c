//! Starts real clusters for black-box tests: real daemons, real sockets, real mounts.
//!
//! This crate provides the tools that such tests share:
//! - [`Scratch`]: directories that are removed even if a test fails
//! - [`Cluster`]: a cluster and its mounts
//! - [`process`]: the processes of a cluster, and signals to these processes
//! - [`power`]: disks that simulate power losses
//! - [`network`]: hosts in network namespaces
//! - [`object_store`]: an object store with the interface of S3, in which tests can cause failures
//! - [`connections`]: breaks TCP connections of a process without ending the process
//! - [`proxy`]: drops the reply to a chosen request
//! - [`page`]: the commands on a page of the documentation, and hosts that run these commands
//! - [`ssh_site`]: hosts that each run an `sshd`
//! - [`deploy_site`]: hosts to which `skep deploy` deploys clusters
//! - [`lab`]: labs of `skep lab`
//! - [`linearizable`]: checks whether recorded operations are linearizable
//! - [`files`]: file system calls that must succeed
//! - [`feature_level`]: clusters that stage changes of two metadata groups
//! - [`http_request`]: the requests that programs send to servers of a test
//! - [`loop_device`]: loop devices, which play the role of disks
//! - [`metrics_page`]: the metrics of a service
//! - [`shape`]: the size and the options of a cluster
//! - [`spread`]: directories on different metadata groups
//! - [`target_disk`]: a separate disk for one target. A test can cause failures of this disk
//! - [`view`]: typed views of JSON output
//! - [`health_watch`]: a running `skep health check --watch`
//! - [`terminal`]: programs on a terminal, and the screen that a user sees
//! - [`tree`]: directory trees to compare
//! - [`workload`]: random workloads whose results can be checked
//! - [`suite`]: a runner for many short tests on one cluster
//!
//! The crate uses Skep only as users do: through the program `skep` and through mounts. The testkit
//! links only one crate of Skep, `skep-types`, for random numbers and checksums.
//!
//! # Running
//! `cargo xtask ci --only black-box` builds `skep` and runs all tests as root, several files at a
//! time. To run one file: `cargo build -p skep-ctl && cargo test -p skep-testkit --test posix`.
//! Tests use the `skep` program in the target directory of their own build profile, and do not
//! build this program.
//!
//! # Panics
//! Every function of this crate panics if it fails. The message of the panic names the expected
//! result.

pub mod cluster;
pub mod connections;
pub mod deploy_site;
mod early_shell;
pub mod feature_level;
pub mod files;
pub mod health_watch;
pub mod http_request;
pub mod inline_bytes;
pub mod lab;
pub mod linearizable;
pub mod loop_device;
pub mod metrics_page;
pub mod network;
pub mod object_store;
pub mod page;
pub mod power;
pub mod process;
pub mod program;
pub mod proxy;
pub mod random;
pub mod schema;
pub mod scratch;
pub mod shape;
pub mod spread;
pub mod ssh_site;
pub mod suite;
pub mod target_disk;
pub mod terminal;
pub mod thin;
pub mod tree;
pub mod view;
pub mod wait;
pub mod workload;

pub use cluster::{Cluster, Mounted};
pub use random::Random;
pub use scratch::Scratch;
pub use shape::{Shape, Transport};
pub use wait::{EndGuard, PATIENCE, eventually, seen_within, wait_for};
