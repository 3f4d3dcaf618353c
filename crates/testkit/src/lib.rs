//! Starts real clusters for black-box tests: real daemons, real sockets, real mounts.
//!
//! Owns what such tests share: places to work in that vanish whatever happens ([`Scratch`]), the
//! cluster ([`Cluster`]) and its mounts, its processes and their violent ends ([`process`]), loop
//! devices whose power can be cut ([`power`]), network namespaces ([`network`]), labs ([`lab`]),
//! trees to compare ([`tree`]), a runner for many short tests on one cluster ([`suite`]). It uses
//! Skep only as users do: by the program `skep` and by its mounts. The only crate of Skep that it
//! links is `skep-types`, for random numbers.
//!
//! # Running
//! `cargo xtask ci --only black-box` builds `skep` and runs all of it, as root, one test at a time.
//! To run one file: `cargo build -p skep-ctl && cargo test -p skep-testkit --test posix`. The
//! program is looked for beside the tests, in the target directory of the same profile; nothing
//! here builds it.
//!
//! # Panics
//! Everything here is for tests: what goes wrong panics with a sentence that says what was
//! expected.

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
