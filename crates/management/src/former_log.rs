//! The command log of versions in which management ran on a single node: the files `log` and
//! `snapshot`. Management converts these files at its start.
//!
//! This module owns the conversion. `skep_consensus` defines the format of the new files.
//!
//! # Crash rule
//! The new files are complete before management removes the old files. A start that finds old and
//! new files removes the old files, so the old state never replaces a newer state.

use crate::machine::decode_state;
use skep_cluster::{ClusterState, Proposal};
use skep_format::log::{LogOwner, scan};
use skep_format::management::{LOG_HEAD_BYTES, LogHead, Snapshot};
use skep_store::atomic::sync_directory;
use skep_types::codec::Codec;
use skep_types::{ClusterId, Error, ErrorCode, Lsn, Result, TargetId};
use std::path::Path;

/// Name of the file that contains the commands.
const LOG_FILE: &str = "log";
/// Name of the file that contains the state before the first command of the log.
const SNAPSHOT_FILE: &str = "snapshot";

/// Whether a directory has a command log of an older version.
pub(crate) fn exists(directory: &Path) -> bool {
    directory.join(LOG_FILE).exists()
}

/// Returns the state after all commands in the log and the snapshot. Reads the log before the
/// snapshot, because a running management process of an older version replaces the snapshot before
/// the log.
///
/// # Errors
/// - `Corrupt` with the file if synced bytes are damaged, or if a file belongs to another cluster.
/// - Errors of the file system.
pub(crate) fn read(directory: &Path, cluster: ClusterId) -> Result<ClusterState> {
    let path = directory.join(LOG_FILE);
    let bytes = std::fs::read(&path).map_err(|error| cannot_open(&path, error))?;
    let (mut state, applied) = read_snapshot(&directory.join(SNAPSHOT_FILE), cluster)?;
    let within = |error: Error| error.within(path.display());
    let head = bytes.get(..LOG_HEAD_BYTES).unwrap_or(&bytes);
    let head = LogHead::from_file(head).map_err(within)?;
    if head.cluster != cluster {
        return Err(of_other_cluster(&path, head.cluster, cluster));
    }
    if head.first.raw() > applied.raw() + 1 {
        let missing = format!(
            "commands are missing in the log: the log starts at command {}, and the snapshot ends \
             at {applied}; restore the directory from a backup",
            head.first
        );
        return Err(corrupt(&path, missing));
    }
    let owner = LogOwner { cluster, target: TargetId::new(0) };
    let scanned = scan(owner, head.first, &bytes[LOG_HEAD_BYTES..]).map_err(|error| {
        error.within(format_args!("cannot read the commands in {}", path.display()))
    })?;
    for record in scanned.records.iter().filter(|record| record.lsn > applied) {
        let replayed =
            Proposal::from_bytes(&record.payload).and_then(|proposal| state.execute(&proposal));
        replayed.map_err(|error| {
            let context = format!("cannot execute command {}: {error}", record.lsn);
            corrupt(&path, context)
        })?;
    }
    Ok(state)
}

/// Removes the old files. The caller must have completed the new files.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    for name in [LOG_FILE, SNAPSHOT_FILE] {
        let path = directory.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(|error| Error::from(error).within(path.display()))?,
        }
    }
    sync_directory(directory)
}

fn read_snapshot(path: &Path, cluster: ClusterId) -> Result<(ClusterState, Lsn)> {
    let bytes = std::fs::read(path).map_err(|error| cannot_open(path, error))?;
    let within = |error: Error| error.within(path.display());
    let snapshot = Snapshot::from_file(&bytes).map_err(within)?;
    if snapshot.cluster != cluster {
        return Err(of_other_cluster(path, snapshot.cluster, cluster));
    }
    Ok((decode_state(&snapshot.state).map_err(within)?, snapshot.applied))
}

/// Returns the error for a file that belongs to the cluster `found` instead of the cluster `own`.
fn of_other_cluster(path: &Path, found: ClusterId, own: ClusterId) -> Error {
    let problem = format!(
        "the file belongs to cluster {found}, and this management node belongs to cluster {own}"
    );
    corrupt(path, problem)
}

fn corrupt(path: &Path, problem: String) -> Error {
    Error::new(ErrorCode::Corrupt, format!("cannot read {}: {problem}", path.display()))
}

/// Returns the error for a management file that cannot be opened or read.
fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!(
        "cannot open {}; if the file is lost, restore the directory from a backup",
        path.display()
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use skep_cluster::Command;
    use skep_cluster::command::ClientRegistration;
    use skep_format::log::encode_record;
    use skep_types::Epoch;
    use skep_types::codec::Bytes;

    const CLUSTER: ClusterId = ClusterId::new([9; 16]);

    pub(crate) fn client(number: usize) -> Proposal {
        let host = format!("c{number}");
        Command::RegisterClient(ClientRegistration { host, ..Default::default() }).into()
    }

    /// Writes the files of an older version: a snapshot with `state`, and a log with `proposals`.
    pub(crate) fn write(directory: &Path, state: &ClusterState, proposals: &[Proposal]) {
        let (cluster, applied) = (state.map().cluster, Lsn::new(4));
        let snapshot = Snapshot { cluster, applied, state: Bytes(state.snapshot()) };
        std::fs::write(directory.join(SNAPSHOT_FILE), snapshot.to_file()).unwrap();
        let mut log = LogHead { cluster, first: Lsn::new(5) }.to_file();
        for (lsn, proposal) in (5..).map(Lsn::new).zip(proposals) {
            let owner = LogOwner { cluster, target: TargetId::new(0) };
            let synced = Lsn::new(lsn.raw() - 1);
            let payload = proposal.to_bytes();
            log.extend(encode_record(owner, Epoch::default(), lsn, synced, &payload).unwrap());
        }
        std::fs::write(directory.join(LOG_FILE), log).unwrap();
    }

    #[test]
    fn converted_state_has_all_complete_commands_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut state = ClusterState::new(CLUSTER);
        let proposals: Vec<_> = (0..3).map(client).collect();
        write(path, &state, &proposals);
        proposals.iter().for_each(|it| drop(state.execute(it).unwrap()));
        assert_eq!(read(path, CLUSTER).unwrap(), state);
        // Damage the last command, as if a crash had torn the command before management
        // acknowledged it.
        let log = std::fs::read(path.join(LOG_FILE)).unwrap();
        std::fs::write(path.join(LOG_FILE), &log[..log.len() - 1]).unwrap();
        assert_eq!(read(path, CLUSTER).unwrap().map().nodes.len(), 2);
    }

    #[test]
    fn error_names_a_damaged_or_foreign_log_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let proposals: Vec<_> = (0..3).map(client).collect();
        write(path, &ClusterState::new(CLUSTER), &proposals);
        let refused = read(path, ClusterId::new([1; 16])).unwrap_err();
        assert!(refused.context().contains("belongs to cluster"), "{refused}");
        let log = path.join(LOG_FILE);
        let mut bytes = std::fs::read(&log).unwrap();
        bytes[LOG_HEAD_BYTES + 100] ^= 1;
        std::fs::write(&log, bytes).unwrap();
        let damaged = read(path, CLUSTER).unwrap_err();
        assert_eq!(damaged.code(), ErrorCode::Corrupt);
        assert!(damaged.context().contains(&log.display().to_string()), "{damaged}");
    }
}
