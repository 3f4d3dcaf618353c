//! Checks the stores of a stopped cluster (`skep fsck`).
//!
//! The check reads the directories of metadata and storage targets, and compares their records. It
//! compares directory entries with inodes, stored counts with the counted records, and chunk files
//! with their inodes. `docs/operations/fsck.md` lists all findings. The crate owns the rules and
//! the findings. The crate does not repair damage, does not read the data of files, and does not
//! check a running cluster.
//!
//! - [`directories`] finds and locks the directories of the targets.
//! - [`records`] reads the store and the log of each metadata target.
//! - [`members`] compares the stores of the members of each metadata group.
//! - [`namespace`], [`opens`] and [`chunk_files`] have the other rules.
//!
//! # Transactions without a decision
//! A cluster may stop in the middle of a transaction between metadata targets. In this case, one
//! target has only prepared the transaction, while another target already has the decision. The
//! counts in the inodes of such a transaction are right only after the next start of the cluster.
//! So the rules about counts and entries skip the inodes that the steps of a prepared transaction
//! name, and the inodes that a staged transaction names.
//!
//! # Memory
//! The check keeps the records of all inodes, entries and opens in memory, but no inline bytes and
//! few attributes. These records take about 1 KiB for each file.

mod chunk_files;
mod directories;
mod finding;
mod members;
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

/// Checks all targets that are found below `roots`. A root may be the data directory of `skep up`,
/// the directory of a service, or the directory of a target. Locks the directories of the targets
/// during the check. Blocks the calling thread.
///
/// # Errors
/// - `Configuration` if a service uses a target, a metadata target is missing, or the directories
///   belong to several clusters. The error names the directory or the target, and a remedy.
/// - The errors of the file system that contains the directories.
pub fn check(roots: &[PathBuf]) -> Result<Report> {
    let directories = Directories::open(roots)?;
    let mut findings = Findings::default();
    let records = Records::read(&directories, &mut findings)?;
    let not_compared = members::check(&directories, &mut findings)?;
    namespace::check(&records, &directories.map, &mut findings);
    opens::check(&records, &mut findings);
    let chunk_files = chunk_files::ChunkFiles::read(&directories)?;
    chunk_files::check(&records, &chunk_files, &directories.map, &mut findings);
    let mut skipped = directories.targets_without_group();
    skipped.extend(not_compared);
    skipped.extend(chunk_files.missing_targets(&directories.map));
    skipped.extend(chunk_files.unknown_groups(&directories.map));
    let mut counts = records.counts();
    counts.chunk_files = chunk_files.count();
    Ok(Report { counts, findings, skipped })
}
