//! The check of a stopped cluster's stores (`skep fsck`).
//!
//! The check reads the directories of metadata and storage targets, and compares their records:
//! entries with inodes, counts with the records that they count, chunk files with the inodes that
//! own them. `docs/operations/fsck.md` lists all findings. The crate owns the rules and the
//! findings. It does not repair anything, does not read file data, and does not check a cluster
//! that runs.
//!
//! - [`directories`] finds and locks the directories.
//! - [`records`] reads the metadata targets: store and log together.
//! - [`namespace`], [`opens`] and [`chunk_files`] have the rules.
//!
//! # Transactions without a decision
//! The check can find a transaction between metadata targets prepared on one of them and decided on
//! another. The counts of its inodes match only after the next start. So the rules skip the inodes
//! that the steps of a prepared transaction name.
//!
//! # Memory
//! The check holds the records of all inodes, entries and opens in memory, without attributes and
//! inline bytes: about 1 KiB for a file.

mod chunk_files;
mod directories;
mod finding;
mod namespace;
mod opens;
mod records;
#[cfg(test)]
mod tests;

pub use finding::{Counts, Finding, Findings, MAX_FINDINGS, Report};

use directories::Directories;
use records::Records;
use skep_types::Result;
use std::path::PathBuf;

/// Checks all targets below `roots`. A root may be the data directory of `skep up`, the directory
/// of a service, or the directory of a target. Locks the directories during the check. Blocks the
/// calling thread.
///
/// # Errors
/// - `Configuration` if a target is in use, the metadata targets are not complete, or the
///   directories belong to several clusters. The error names the directory and a remedy.
/// - Errors of the file system.
pub fn check(roots: &[PathBuf]) -> Result<Report> {
    let directories = Directories::open(roots)?;
    let mut findings = Findings::default();
    let records = Records::read(&directories, &mut findings)?;
    namespace::check(&records, &directories.map, &mut findings);
    opens::check(&records, &mut findings);
    let chunk_files = chunk_files::ChunkFiles::read(&directories)?;
    chunk_files::check(&records, &chunk_files, &directories.map, &mut findings);
    let mut skipped = directories.members_without_check();
    skipped.extend(chunk_files.missing_targets(&directories.map));
    skipped.extend(chunk_files.unknown_groups(&directories.map));
    let mut counts = records.counts();
    counts.chunk_files = chunk_files.count();
    Ok(Report { counts, findings, skipped })
}
