//! Starts real clusters for black-box tests: real daemons, real sockets, real mounts.
//!
//! Owns the tools that such tests share: directories that are removed even when a test fails
//! ([`Scratch`]), the cluster ([`Cluster`]) and its mounts, its processes and how to kill them
//! ([`process`]), disks that can lose their power ([`power`]), network namespaces ([`network`]),
//! labs ([`lab`]), file system calls that must succeed ([`files`]), typed views of printed JSON
//! ([`view`]), trees to compare ([`tree`]), random workloads whose results can be checked
//! ([`workload`]), a runner for many short tests on one cluster ([`suite`]). It uses
//! Skep only as users do: by the program `skep` and by its mounts. The only crate of Skep that it
//! links is `skep-types`, for random numbers.
//!
//! # Running
//! `cargo xtask ci --only black-box` builds `skep` and runs all of it, as root, one test at a time.
//! To run one file: `cargo build -p skep-ctl && cargo test -p skep-testkit --test posix`. Tests
//! look for the program in the target directory of their own profile, and do not build it.
//!
//! # Panics
//! Every function panics if it fails, with a message that names the expected result.

pub mod cluster;
pub mod files;
pub mod lab;
pub mod network;
pub mod power;
pub mod process;
pub mod program;
pub mod random;
pub mod schema;
pub mod scratch;
pub mod suite;
pub mod tree;
pub mod view;
pub mod wait;
pub mod workload;

pub use cluster::{Cluster, Mounted, Shape, Transport};
pub use random::Random;
pub use scratch::Scratch;
pub use wait::{PATIENCE, eventually, seen_within, wait_for};
