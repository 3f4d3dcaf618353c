//! The journal of a study, which is an append-only file with one record per line.
//!
//! # An interrupted study
//! A record is valid when its line is complete. Each record is synced before the next run begins,
//! so a power loss costs at most the current run. A process that opens the journal again removes an
//! incomplete line at its end.
//!
//! # A full disk
//! Before a run begins, the study allocates disk space for the record of the run
//! ([`Journal::reserve`]). For this reason, no result is lost if the disk becomes full during the
//! run. If the file system does not support allocation, the write of a record may fail. The study
//! then removes the incomplete record, and the earlier records stay.

use crate::plan::Plan;
use crate::record::{Record, StudyRecord};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use skep_types::{Error, ErrorCode, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// File name of the journal in the directory of a study.
pub const FILE: &str = "journal.ndjson";
/// Version of the record format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// An open journal. The process holds a lock on the file, so that no other process runs the same
/// study.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    len: u64,
}

/// The content of a journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// The first record. This record contains the plan, the lab or mount on which the study runs,
    /// and the version of Skep.
    pub study: StudyRecord,
    /// The plan, parsed from the first record.
    pub plan: Plan,
    /// All other records, in the order of their lines.
    pub records: Vec<Record>,
    /// Total length of all complete lines, in bytes.
    whole_bytes: u64,
}

impl Journal {
    /// Creates the directory of a new study, and a journal that contains only the record `study`.
    ///
    /// # Errors
    /// `Exists` if the directory already contains a study.
    pub fn create(directory: &Path, study: &StudyRecord) -> Result<Self> {
        let within = |error: std::io::Error| {
            Error::from(error)
                .within(format_args!("cannot use the directory {}", directory.display()))
        };
        std::fs::create_dir_all(directory).map_err(within)?;
        let path = directory.join(FILE);
        let opened = File::options().read(true).append(true).create_new(true).open(&path);
        let file = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::new(
                    ErrorCode::Exists,
                    format!(
                        "cannot create a study in {}: this directory has the results of a study \
                         already; continue this study with --resume, or name another --directory",
                        directory.display()
                    ),
                ));
            }
            opened => opened.map_err(within)?,
        };
        let mut journal = Self { path, file, len: 0 };
        journal.lock()?;
        if let Err(error) = journal.append(&Record::Study(study.clone())) {
            // Remove the incomplete journal, which has no result yet. If the file stayed, the next
            // attempt would fail with `Exists`.
            let _ = std::fs::remove_file(&journal.path);
            return Err(error);
        }
        // Sync the directory, because the entry of the new file must also survive a power loss.
        File::open(directory).and_then(|it| it.sync_all()).map_err(within)?;
        Ok(journal)
    }

    /// Opens the journal of an interrupted study for writing, and removes an incomplete line at its
    /// end.
    ///
    /// # Errors
    /// - `NotFound` if there is no journal.
    /// - `Configuration` if the journal belongs to another plan.
    /// - The errors of [`read`].
    pub fn resume(directory: &Path, plan: &Plan) -> Result<(Self, Contents)> {
        let contents = read(directory)?;
        if contents.plan != *plan {
            return Err(Error::new(
                ErrorCode::Configuration,
                format!(
                    "cannot use {}: the directory has the results of another plan (\"{}\"), and \
                     results of different plans cannot be combined; resume with the plan in the \
                     first line of its journal, or name another --directory",
                    directory.display(),
                    contents.plan.name
                ),
            ));
        }
        let path = directory.join(FILE);
        let file = File::options().read(true).append(true).open(&path);
        let file = file.map_err(|error| {
            Error::from(error).within(format_args!("cannot open {}", path.display()))
        })?;
        let journal = Self { path, file, len: contents.whole_bytes };
        journal.lock()?;
        journal.cut()?;
        Ok((journal, contents))
    }

    /// Allocates disk space for a record, so that its write cannot fail because the disk is full.
    ///
    /// # Errors
    /// `NoSpace` if the disk does not have enough space.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, bytes) {
            // If the file system does not support allocation, a full disk is reported when the
            // record is written.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(()),
            Err(errno) => Err(self.unwritable(&errno.into())),
        }
    }

    /// Writes and syncs a record.
    ///
    /// # Errors
    /// - `NoSpace` if the record does not fit on the disk.
    /// - `Io` if writing fails for another reason.
    ///
    /// After an error, the journal is unchanged.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_string(record)
            .map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let failed = self.unwritable(&error);
            // If the truncation also fails, the next process that opens the journal removes the
            // incomplete line.
            let _ = self.cut();
            return Err(failed);
        }
        self.len += line.len() as u64;
        Ok(())
    }

    /// Truncates the journal after its last complete line. The truncation also frees allocated
    /// space.
    fn cut(&self) -> Result<()> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_data());
        cut.map_err(|error| {
            Error::from(error).within(format_args!("cannot truncate {}", self.path.display()))
        })
    }

    fn lock(&self) -> Result<()> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(Error::new(
                ErrorCode::InUse,
                format!(
                    "cannot use {}: another process runs this study; wait for its end",
                    self.path.display()
                ),
            )),
            Err(errno) => Err(Error::from(std::io::Error::from(errno))
                .within(format_args!("cannot lock {}", self.path.display()))),
        }
    }

    fn unwritable(&self, error: &std::io::Error) -> Error {
        let way_out = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; no result is lost: free space on this file system, and continue with --resume"
            }
            _ => "; solve this problem, and continue with --resume",
        };
        let code = Error::from(std::io::Error::from(error.kind())).code();
        Error::new(
            code,
            format!("cannot write the results to {}: {error}{way_out}", self.path.display()),
        )
    }
}

/// Reads the journal of a study.
///
/// # Errors
/// - `NotFound` if there is no journal.
/// - `Corrupt` if a line other than the last is malformed. The error contains the line number.
/// - `VersionMismatch` if the records have another version than [`FORMAT`].
pub fn read(directory: &Path) -> Result<Contents> {
    let path = directory.join(FILE);
    let mut text = Vec::new();
    match File::open(&path).and_then(|mut file| file.read_to_end(&mut text)) {
        Ok(_) => parse(&text)
            .map_err(|error| error.within(format_args!("cannot read {}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::new(
            ErrorCode::NotFound,
            format!("{} has no study: the file {FILE} is missing", directory.display()),
        )),
        Err(error) => {
            Err(Error::from(error).within(format_args!("cannot read {}", path.display())))
        }
    }
}

fn parse(text: &[u8]) -> Result<Contents> {
    let mut records = Vec::new();
    let mut whole_bytes = 0;
    for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        // A line without a newline comes from an interrupted write that was never synced. Ignore
        // the incomplete last line, even if it can be parsed. The resumed study repeats the run of
        // this line.
        let Some(line) = line.strip_suffix(b"\n") else { break };
        let record = serde_json::from_slice(line).map_err(|error| {
            Error::new(
                ErrorCode::Corrupt,
                format!(
                    "cannot read line {} ({error}): correct or remove the line; a study repeats \
                    the run of a removed line",
                    index + 1
                ),
            )
        })?;
        whole_bytes += line.len() as u64 + 1;
        records.push(record);
    }
    let mut records = records.into_iter();
    let Some(Record::Study(study)) = records.next() else {
        return Err(Error::new(ErrorCode::Corrupt, "the first line is not the record of a study"));
    };
    if study.format != FORMAT {
        return Err(Error::new(
            ErrorCode::VersionMismatch,
            format!(
                "the records have version {}; this program reads version {FORMAT}",
                study.format
            ),
        ));
    }
    let plan = Plan::parse(&study.plan).map_err(|error| error.within("the plan in line 1"))?;
    Ok(Contents { study, plan, records: records.collect(), whole_bytes })
}

/// Replaces a file in the directory of a study atomically. A reader finds either the old file or
/// the complete new file.
///
/// # Errors
/// The error of the file system.
pub fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    let within = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot write {}", path.display()))
    };
    let beside = path.with_extension("part");
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(contents)?;
        std::fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(within)
}

#[cfg(test)]
mod tests;
