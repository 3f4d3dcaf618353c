//! Copies trees of files in parallel (`skep copy`): between mounted file systems of any kind, and
//! from and to object stores. Removes the old files of a tree in parallel (`skep purge`).
//!
//! Owns, from the lowest layer to the highest:
//! - [`plan`]: which name a copy gets, which pieces a large file has, and which of them an
//!   interrupted copy has finished
//! - [`shares`]: the distribution of a copy among several hosts
//! - [`outcome`]: counts, problems and progress of a copy
//! - [`context`]: the options of a copy and its counters
//! - `failure`, `pace`: failed operations, the rate limit
//! - `version`: the identity and the version of a file, from its descriptor
//! - `attributes`: owners, modes, times, extended attributes
//! - `data`, `verification`: copy and compare the bytes of a range
//! - `tree`: directories of the source and the destination, and the entries in them
//! - `publish`, `partial`: incomplete copies, and the rename of a complete copy to its final name
//! - `special`, `file`, `large`, `links`: copy one entry of each kind
//! - `threads`: the threads of a walk and their queue
//! - `walk`, [`run`]: the work for each entry, and a copy by one process
//! - [`objects`]: copies trees of files to a bucket, and objects of a bucket to files
//! - [`hosts`]: the processes of a copy by several hosts
//! - [`purge`]: removes old files
//!
//! `plan`, `shares` and `outcome` do no I/O. Copies between file systems use system calls only, so
//! they work on any file system and need no cluster. This crate does not decide how results are
//! shown.
//!
//! # Invariants
//! - Every decision about an entry is based on one open descriptor, never on two lookups of a path.
//!   The version of a file is compared before and after its bytes are read.
//! - At each moment, a name at the destination leads either to the old entry or to a complete copy.
//! - No symbolic link is followed below the paths that the user has named.
//!
//! The invariants concern file systems that other programs change, so no function can check them.
//!
//! Held by the tests `copy_does_not_read_a_file_that_replaced_the_listed_file`,
//! `source_that_changes_during_the_copy_is_reported`,
//! `killed_copy_continues_with_the_missing_pieces` and
//! `symlinks_at_the_destination_are_not_followed`.
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
pub mod objects;
pub mod outcome;
mod pace;
mod partial;
pub mod plan;
mod publish;
pub mod purge;
pub mod run;
pub mod shares;
mod special;
mod threads;
mod tree;
mod verification;
mod version;
mod walk;
