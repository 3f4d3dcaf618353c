//! Copies trees of files in parallel (`skep copy`): from and to any mounted file system.
//!
//! Owns:
//! - [`plan`]: names and pieces: which name a copy gets, which pieces a large file has, which of
//!   them an interrupted copy has finished
//! - [`run`]: the threads and their queue of work
//! - [`outcome`]: counts, problems, progress
//! - `tree`: directories and the entries in them
//! - [`context`]: the options of a copy and its counters
//! - `file`, `large`, `completion`: regular files, in one go and in pieces, and their end
//! - `data`: the bytes of a range
//! - `attributes`: owners, modes, times, extended attributes
//! - `links`: hard links, and attributes of directories, after all files
//! - `pace`: the limit of the rate
//!
//! `plan` and `outcome` are pure. The crate uses system calls only, so it works on any file system,
//! and needs no cluster. It does not decide how results are shown.
//!
//! # Safety against links
//! Every entry is opened by its name in an open directory and with `O_NOFOLLOW`, and every path
//! below the destination with `RESOLVE_BENEATH`. So a program that replaces a directory by a
//! symbolic link during the copy cannot lead it out of the tree.

mod attributes;
mod completion;
pub mod context;
mod data;
mod file;
mod large;
mod links;
pub mod outcome;
mod pace;
pub mod plan;
pub mod run;
mod tree;
