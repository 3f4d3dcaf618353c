//! The command log and the snapshot in management's directory.
//!
//! Owns the durability and order of commands: a command takes effect only after its record in the
//! log is synced. A record contains a [`Proposal`]: the command and the id of its request.
//!
//! # Crash rule
//! Each command is appended and synced before the next one is written. So a crash can tear only the
//! last record, which management has not acknowledged: the next start truncates it. Damage before
//! the last record is an error. A start writes the last record again: if its sync failed, the page
//! cache may have it although the disk does not.
//!
//! A new snapshot first replaces the old snapshot atomically, and then an empty log replaces the
//! old log. After a crash between these two steps, the log contains commands whose effects are
//! already in the snapshot; the next start skips them.

use crate::limits::COMMANDS_PER_SNAPSHOT;
use skep_cluster::{ClusterState, Proposal};
use skep_format::log::{LogOwner, RECORD_HEADER_BYTES, encode_record, scan};
use skep_format::management::{LOG_HEAD_BYTES, LogHead, Snapshot};
use skep_store::atomic::replace_atomically;
use skep_store::failed_sync;
use skep_types::codec::{Bytes, Codec};
use skep_types::{ClusterId, Epoch, Error, ErrorCode, Lsn, Result, TargetId};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the file that contains the commands.
pub(crate) const LOG_FILE: &str = "log";
/// Name of the file that contains the state before the first command of the log.
pub(crate) const SNAPSHOT_FILE: &str = "snapshot";

/// Returns the owner of the records: target 0, since the commands belong to no target.
fn owner(cluster: ClusterId) -> LogOwner {
    LogOwner { cluster, target: TargetId::new(0) }
}

/// The open command log.
#[derive(Debug)]
pub(crate) struct CommandLog {
    directory: PathBuf,
    cluster: ClusterId,
    log: File,
    end: u64,
    last: Lsn,
    since_snapshot: usize,
    /// Whether a write or sync has failed. The contents of the disk are unknown then.
    has_failed: bool,
}

fn next(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw() + 1)
}

impl CommandLog {
    /// Creates the snapshot and an empty log in the directory of a new cluster.
    pub(crate) fn create(directory: &Path, state: &ClusterState) -> Result<()> {
        Self::create_at(directory, state, Lsn::new(0))
    }

    /// Creates a snapshot with the effects of all commands up to `last`, and an empty log.
    pub(crate) fn create_at(directory: &Path, state: &ClusterState, last: Lsn) -> Result<()> {
        let cluster = state.map().cluster;
        write_snapshot(directory, state, last)?;
        let head = LogHead { cluster, first: next(last) };
        replace_atomically(&directory.join(LOG_FILE), &head.to_file())
    }

    /// Opens the log, and restores the state from the snapshot and the log.
    ///
    /// # Errors
    /// - `Corrupt` with file and offset if synced bytes are damaged, or if a file belongs to
    ///   another cluster.
    /// - Errors of the file system.
    pub(crate) fn open(directory: &Path, cluster: ClusterId) -> Result<(Self, ClusterState)> {
        let path = directory.join(LOG_FILE);
        let Replayed { state, records, last, end, len, last_record } = replay(directory, cluster)?;
        let log = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| cannot_open(&path, error))?;
        if end < len {
            tracing::warn!(
                "{}: truncated {} bytes of an unfinished command at byte {end}, which a crash left \
                 and management never acknowledged",
                path.display(),
                len - end
            );
            log.set_len(end)?;
        }
        // The sync of the last command may have failed. The kernel then considers the command
        // written although the disk lacks it, so it is written again.
        let start = end - last_record.len() as u64;
        log.try_clone()
            .and_then(|log| failed_sync::write_again(&log.into(), start, &last_record))
            .map_err(|error| {
                let what = format!("cannot write the last command in {} again", path.display());
                Error::from(error).within(what)
            })?;
        let command_log = Self {
            directory: directory.to_owned(),
            cluster,
            log,
            end,
            last,
            since_snapshot: records,
            has_failed: false,
        };
        Ok((command_log, state))
    }

    /// Appends a command to the log and syncs it. The command takes effect when this returns.
    ///
    /// # Errors
    /// - `NoSpace` if the disk is full. The log is as before, and a later command can succeed.
    /// - `DeviceFailed` if this write or an earlier one failed in another way. Management then
    ///   accepts no command until it is restarted and has read the log from the disk again.
    pub(crate) fn append(&mut self, proposal: &Proposal) -> Result<()> {
        let failed = |problem: String| {
            Error::new(
                ErrorCode::DeviceFailed,
                format!(
                    "{}: {problem}; management accepts no changes until it is restarted",
                    self.directory.join(LOG_FILE).display()
                ),
            )
        };
        if self.has_failed {
            return Err(failed("a write failed before".into()));
        }
        // The epoch stays zero: commands belong to no group.
        let (epoch, lsn, synced) = (Epoch::default(), next(self.last), self.last);
        let record = encode_record(owner(self.cluster), epoch, lsn, synced, &proposal.to_bytes())?;
        let written = self.log.write_all_at(&record, self.end).and_then(|()| self.log.sync_data());
        if let Err(error) = written {
            if is_full(&error) && self.truncate().is_ok() {
                let context = format!(
                    "{}: the disk is full; management accepts no changes until there is free space",
                    self.directory.join(LOG_FILE).display()
                );
                return Err(Error::new(ErrorCode::NoSpace, context));
            }
            let error = failed(error.to_string());
            self.has_failed = true;
            return Err(error);
        }
        self.end += record.len() as u64;
        self.last = next(self.last);
        self.since_snapshot += 1;
        Ok(())
    }

    /// Removes the incomplete record of a command that did not fit on a full disk.
    fn truncate(&self) -> std::io::Result<()> {
        self.log.set_len(self.end)?;
        self.log.sync_all()
    }

    /// If the log has at least `COMMANDS_PER_SNAPSHOT` commands, replaces it by a snapshot of
    /// `state` and an empty log. `state` must contain the effects of all logged commands.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn fold(&mut self, state: &ClusterState) -> Result<()> {
        if self.since_snapshot < COMMANDS_PER_SNAPSHOT || self.has_failed {
            return Ok(());
        }
        self.since_snapshot = 0;
        write_snapshot(&self.directory, state, self.last)?;
        let path = self.directory.join(LOG_FILE);
        let head = LogHead { cluster: self.cluster, first: next(self.last) }.to_file();
        let opened = replace_atomically(&path, &head).and_then(|()| {
            OpenOptions::new().write(true).open(&path).map_err(|error| cannot_open(&path, error))
        });
        match opened {
            Ok(log) => {
                self.log = log;
                self.end = head.len() as u64;
                Ok(())
            }
            Err(error) => {
                // The name may lead to the new file already. Commands in the old file would be lost
                // at the next start.
                self.has_failed = true;
                Err(error)
            }
        }
    }
}

/// The state after all commands of a directory.
struct Replayed {
    state: ClusterState,
    /// Number of commands in the log.
    records: usize,
    /// The last command.
    last: Lsn,
    /// End of the last whole command in the log, in bytes.
    end: u64,
    /// Length of the log in bytes.
    len: u64,
    /// The bytes of the last command in the log. Empty if the log has none.
    last_record: Vec<u8>,
}

/// Restores the state from the log and the snapshot. Reads the log first: while management runs, it
/// replaces the snapshot before the log, so this snapshot is never older than the log's beginning.
fn replay(directory: &Path, cluster: ClusterId) -> Result<Replayed> {
    let path = directory.join(LOG_FILE);
    let bytes = std::fs::read(&path).map_err(|error| cannot_open(&path, error))?;
    let (mut state, applied) = read_snapshot(&directory.join(SNAPSHOT_FILE), cluster)?;
    let within = |error: Error| error.within(path.display());
    let head = bytes.get(..LOG_HEAD_BYTES).unwrap_or(&bytes);
    let head = LogHead::from_file(head).map_err(within)?;
    if head.cluster != cluster {
        return Err(corrupt(&path, format!("belongs to cluster {}", head.cluster)));
    }
    if head.first > next(applied) {
        let missing = format!(
            "commands are missing: the log starts at command {}, and the snapshot ends at \
             {applied}; put back a copy of the directory",
            head.first
        );
        return Err(corrupt(&path, missing));
    }
    let scanned = scan(owner(cluster), head.first, &bytes[LOG_HEAD_BYTES..])
        .map_err(|error| error.within(format_args!("{} (after its head)", path.display())))?;
    for record in scanned.records.iter().filter(|record| record.lsn > applied) {
        let replayed =
            Proposal::from_bytes(&record.payload).and_then(|proposal| state.execute(&proposal));
        replayed.map_err(|error| {
            let context = format!("command {} cannot be applied: {error}", record.lsn);
            corrupt(&path, context)
        })?;
    }
    let last = scanned.records.last().map_or(Lsn::new(head.first.raw() - 1), |it| it.lsn);
    let end = LOG_HEAD_BYTES + scanned.end;
    let length = scanned.records.last().map_or(0, |it| RECORD_HEADER_BYTES + it.payload.len());
    Ok(Replayed {
        state,
        records: scanned.records.len(),
        last: last.max(applied),
        end: end as u64,
        len: bytes.len() as u64,
        last_record: bytes[end - length..end].to_vec(),
    })
}

/// Returns the state in a directory of management, and the last command that has changed it.
/// Changes nothing, and management may run meanwhile.
///
/// # Errors
/// The errors of [`CommandLog::open`].
pub(crate) fn read(directory: &Path, cluster: ClusterId) -> Result<(ClusterState, Lsn)> {
    replay(directory, cluster).map(|it| (it.state, it.last))
}

/// Whether a write failed because the disk, or a quota on it, is full.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn write_snapshot(directory: &Path, state: &ClusterState, applied: Lsn) -> Result<()> {
    let snapshot =
        Snapshot { cluster: state.map().cluster, applied, state: Bytes(state.snapshot()) };
    replace_atomically(&directory.join(SNAPSHOT_FILE), &snapshot.to_file())
}

fn read_snapshot(path: &Path, cluster: ClusterId) -> Result<(ClusterState, Lsn)> {
    let bytes = std::fs::read(path).map_err(|error| cannot_open(path, error))?;
    let within = |error: Error| error.within(path.display());
    let snapshot = Snapshot::from_file(&bytes).map_err(within)?;
    if snapshot.cluster != cluster {
        return Err(corrupt(path, format!("belongs to cluster {}", snapshot.cluster)));
    }
    Ok((ClusterState::from_snapshot(&snapshot.state).map_err(within)?, snapshot.applied))
}

fn corrupt(path: &Path, problem: String) -> Error {
    Error::new(ErrorCode::Corrupt, format!("{}: {problem}", path.display()))
}

/// Returns the error for a file of management that cannot be opened or read.
fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!(
        "cannot open {}; if the file is gone, put back a copy of the directory",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
