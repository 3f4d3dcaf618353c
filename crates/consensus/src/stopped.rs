//! Reads the state from the files of a member that does not run, or that runs in another process.
//!
//! Only [`replace_member`] changes files. This module is not responsible for the formats of the
//! files.

use crate::log_file::{LOG_FILE, LogContents, LogFile};
use crate::member::{Member, MemberSettings};
use crate::state_store::{SNAPSHOT_FILE, StateMachine, read_snapshot, write_snapshot};
use skep_format::consensus::{EntryContent, LogPosition, MembersRecord};
use skep_store::atomic::sync_directory;
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::path::Path;

/// The state in the directory of a member.
#[derive(Debug)]
pub struct StoredState<S> {
    /// The state after all entries of the log.
    pub machine: S,
    /// The last entry whose effect `machine` contains. Index zero means that the member has no
    /// entries.
    pub last: LogPosition,
    /// Number of log entries after the snapshot. The newest entries of the log are possibly not
    /// committed.
    pub entries: usize,
    /// The voters after the newest change of the members, in ascending order.
    pub voters: Vec<u64>,
}

/// Whether a directory contains the log of a member.
pub fn has_log(directory: &Path) -> bool {
    directory.join(LOG_FILE).exists()
}

/// Whether a directory contains the snapshot of a member.
pub fn has_snapshot(directory: &Path) -> bool {
    directory.join(SNAPSHOT_FILE).exists()
}

/// Reads the state in the directory of a member: the snapshot, and the effects of all entries in
/// the log. `machine` is the state before the first entry. For a directory without a log, the
/// result is the state of the snapshot.
///
/// # Errors
/// - `Corrupt` if a file is damaged, or if entries between snapshot and log are missing.
/// - `Configuration` if the log belongs to another cluster.
/// - Errors of the file system.
pub fn read_state<S: StateMachine>(
    directory: &Path,
    cluster: ClusterId,
    mut machine: S,
) -> Result<StoredState<S>> {
    // Read the log before the snapshot, because a running member replaces the snapshot before it
    // removes entries from the log. So the snapshot that this function reads never ends before the
    // log begins.
    let log = match has_log(directory) {
        true => LogFile::read(directory, cluster)?,
        false => LogContents { member: 0, removed: None, entries: Vec::new() },
    };
    let mut last = LogPosition { term: 0, leader: 0, index: 0 };
    let mut voters = Vec::new();
    let mut has_any = false;
    if let Some(snapshot) = read_snapshot(directory, cluster)? {
        machine.restore(&snapshot.state.0)?;
        voters = voters_of(&snapshot.members.voters);
        has_any = snapshot.last.is_some();
        last = snapshot.last.unwrap_or(last);
    }
    if let Some(removed) = log.removed
        && (!has_any || removed.index > last.index)
    {
        let what = format!(
            "cannot read the state in {}: log entries are missing; the log of member {} begins \
             after entry {}, and the snapshot ends at entry {}; restore a copy of the directory",
            directory.display(),
            log.member,
            removed.index,
            last.index
        );
        return Err(Error::new(ErrorCode::Corrupt, what));
    }
    let mut entries = 0;
    for entry in &log.entries {
        if has_any && entry.position.index <= last.index {
            continue;
        }
        match &entry.content {
            EntryContent::Blank => {}
            EntryContent::Command { command } => {
                machine.apply(entry.position, &command.0)?;
            }
            EntryContent::Members { members } => voters = voters_of(&members.voters),
        }
        (last, has_any) = (entry.position, true);
        entries += 1;
    }
    Ok(StoredState { machine, last, entries, voters })
}

/// Returns the ids that are in any of `sets`, in ascending order.
fn voters_of(sets: &[Vec<u64>]) -> Vec<u64> {
    let mut voters: Vec<u64> = sets.iter().flatten().copied().collect();
    voters.sort_unstable();
    voters.dedup();
    voters
}

/// Replaces the member of a directory by the only member of a new log, whose first state is
/// `machine`. After this call, the previous member never takes part in the replicated log.
/// `machine` must contain the state of the previous member. A crash during this call loses nothing,
/// because the new snapshot is durable before the old log is removed. [`read_state`] accepts a
/// directory that has only a snapshot.
///
/// # Errors
/// - `TooLarge` if the state is too long for a snapshot.
/// - Errors of the file system.
pub fn replace_member<S: StateMachine>(
    settings: &MemberSettings,
    addresses: Vec<String>,
    machine: &S,
) -> Result<()> {
    let MemberSettings { directory, cluster, .. } = settings;
    // The snapshot gets the last position of the old log. If a crash leaves the new snapshot next
    // to the old log, the snapshot therefore replaces all entries of that log.
    let former = read_last(directory, *cluster)?;
    let nobody = MembersRecord { voters: Vec::new(), members: Vec::new() };
    write_snapshot(directory, (*cluster, former), nobody, machine)?;
    remove_log(directory)?;
    Member::found(settings, addresses, (former.index, machine))
}

/// Returns the position of the last entry in a directory.
fn read_last(directory: &Path, cluster: ClusterId) -> Result<LogPosition> {
    let snapshot = read_snapshot(directory, cluster)?.and_then(|snapshot| snapshot.last);
    let log = match has_log(directory) {
        true => LogFile::read(directory, cluster)?.entries.last().map(|entry| entry.position),
        false => None,
    };
    let last = snapshot.into_iter().chain(log).max_by_key(|position| position.index);
    Ok(last.unwrap_or(LogPosition { term: 0, leader: 0, index: 0 }))
}

fn remove_log(directory: &Path) -> Result<()> {
    let path = directory.join(LOG_FILE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(|error| Error::from(error).within(path.display()))?,
    }
    sync_directory(directory)
}
