//! Copies trees of files in parallel (`skep copy`): from and to any mounted file system.
//!
//! Owns, from the lowest layer to the highest:
//! - [`plan`]: names and pieces: which name a copy gets, which pieces a large file has, which of
//!   them an interrupted copy has finished
//! - [`shares`]: the split of a copy over several hosts
//! - [`outcome`]: counts, problems, progress
//! - [`context`]: the options of a copy and its counters
//! - `failure`, `pace`: failed operations, the rate limit
//! - `version`: the identity and the version of an open file
//! - `attributes`: owners, modes, times, extended attributes
//! - `data`, `verification`: the bytes of a range, and their comparison
//! - `tree`: directories and the entries in them
//! - `publish`, `partial`: incomplete copies, and the step that gives them their names
//! - `special`, `file`, `large`, `links`: one entry of each kind
//! - `walk`, [`run`]: the work of each entry, the threads and their queue
//! - [`hosts`]: the processes of a copy by several hosts
//!
//! `plan`, `shares` and `outcome` are pure. The crate uses system calls only, so it works on any
//! file system, and needs no cluster. It does not decide how results are shown.
//!
//! # Invariants
//! - Every decision about an entry follows from one open descriptor, never from two lookups of a
//!   path. The version of a file is compared before and after its bytes are read.
//! - A name at the destination leads to the old entry or to a complete copy, at each moment.
//! - No symbolic link is followed below the paths that the user has named.
//!
//! `docs/design/0020-copy.md` lists the hazards, and the tests against each.

mod attributes;
pub mod context;
mod data;
mod failure;
mod file;
pub mod hosts;
mod large;
mod links;
pub mod outcome;
mod pace;
mod partial;
pub mod plan;
mod publish;
pub mod run;
pub mod shares;
mod special;
mod tree;
mod verification;
mod version;
mod walk;
