//! The state in the files of a member that does not run, or that another process runs.
//!
//! Changes nothing, except for [`replace_member`]. Does not own the formats of the files.

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
    /// The last entry whose effect `machine` has. Zero means that the member has no entries.
    pub last: LogPosition,
    /// Number of entries after the snapshot. The last ones may not be committed.
    pub entries: usize,
    /// The voters in the newest change of members, in ascending order.
    pub voters: Vec<u64>,
}

/// Whether a directory has the log of a member.
pub fn has_log(directory: &Path) -> bool {
    directory.join(LOG_FILE).exists()
}

/// Whether a directory has the snapshot of a member.
pub fn has_snapshot(directory: &Path) -> bool {
    directory.join(SNAPSHOT_FILE).exists()
}

/// Reads the state in the directory of a member: the snapshot, and the effects of all entries in
/// the log. `machine` is the state before the first entry. A directory without a log has the state
/// of its snapshot.
///
/// # Errors
/// - `Corrupt` if a file is damaged, or if entries between snapshot and log are missing.
/// - `Configuration` if the log is of another cluster.
/// - Errors of the file system.
pub fn read_state<S: StateMachine>(
    directory: &Path,
    cluster: ClusterId,
    mut machine: S,
) -> Result<StoredState<S>> {
    // The log is read first: a running member replaces the snapshot before the log, so this
    // snapshot is never older than the beginning of the log.
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
            "{}: entries are missing: the log of member {} begins after entry {}, and the snapshot \
             ends at {}; put back a copy of the directory",
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

/// Returns the members that are in any of the sets.
fn voters_of(sets: &[Vec<u64>]) -> Vec<u64> {
    let mut voters: Vec<u64> = sets.iter().flatten().copied().collect();
    voters.sort_unstable();
    voters.dedup();
    voters
}

/// Replaces the member of a directory by the only member of a new log, which begins with `machine`.
/// The former member never takes part again. `machine` has the state of the former member, so a
/// crash between two steps loses nothing: the new snapshot has all of it before the old log goes,
/// and a directory with a snapshot alone can be read.
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
    // The position is that of the former log, so that a crash leaves a snapshot that replaces all
    // of this log.
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
