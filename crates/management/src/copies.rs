//! Backups of management's directory, and the recovery of a member after the loss of the other
//! members. Management may run during a backup.
//!
//! A backup is a complete directory of management with a snapshot of the state and an empty log. A
//! mark in the directory shows that the directory is a backup. Therefore, at the first start of the
//! backup, management continues with higher ids and as another member (module `directory`).
//! `skep_consensus` defines the format of the files.

use crate::directory::{member_settings, read};
use crate::former_log;
use crate::machine::Machine;
use skep_consensus::{Member, StoredState, has_log};
use skep_format::identity::DirectoryKind;
use skep_service::directory::{TOKEN_FILE, read_token};
use skep_service::former_secrets::FORMER_FILE;
use skep_service::listen::ADDRESS_FILE;

use skep_store::atomic::{replace_secret, sync_directory};
use skep_store::identity::{Directory, IDENTITY_FILE, read_identity};
use skep_store::restored::{self, RESTORED_MARK};
use skep_types::{ClusterId, Error, ErrorCode, Lsn, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// A finished backup of management's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryCopy {
    /// The cluster to which the directory belongs.
    pub cluster: ClusterId,
    /// Index of the last log entry whose effect the backup contains.
    pub last_command: Lsn,
}

/// Copies the directory of management to the backup `to`. Reads and checks all files first.
///
/// # Errors
/// - `Configuration` if `from` is not a directory of management, or if `to` is not empty.
/// - `Corrupt` with file and offset if `from` is damaged.
/// - Errors of the file system.
pub fn copy_directory(from: &Path, to: &Path) -> Result<DirectoryCopy> {
    let wrong = |what: String| Err(Error::new(ErrorCode::Configuration, what));
    let identity = read_identity(from)?;
    let Some(identity) = identity.filter(|it| it.kind == DirectoryKind::Management) else {
        return wrong(format!(
            "cannot copy {}: this is not a directory of management; name the directory of the \
             option --directory of `skep management`",
            from.display()
        ));
    };
    let token = read_token(&from.join(TOKEN_FILE))?;
    let (machine, last_command) = match former_log::exists(from) && !has_log(from) {
        true => (Machine::new(former_log::read(from, token.cluster)?), Lsn::new(0)),
        false => {
            let stored = read_member(from, token.cluster)?;
            (stored.machine, Lsn::new(stored.last.index))
        }
    };
    create_empty(to)?;
    restored::mark(to, RESTORED_MARK)?;
    // The log of a backup has one member, with the id of the original. A restored directory must
    // not vote under this id. So at its first start, the mark `restored` makes management create a
    // new log, whose only member has a new id.
    let member = member_settings(to, token.cluster, identity.node);
    Member::found(&member, token.addresses.clone(), (last_command.raw(), &machine))?;
    // Copy the identity last, so that an interrupted backup cannot be used like a complete backup.
    for name in [TOKEN_FILE, FORMER_FILE, ADDRESS_FILE, IDENTITY_FILE] {
        let source = from.join(name);
        match std::fs::read(&source) {
            Ok(bytes) => replace_secret(&to.join(name), &bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_optional(name) => {}
            Err(error) => return Err(Error::from(error).within(source.display())),
        }
    }
    sync_directory(to)?;
    Ok(DirectoryCopy { cluster: token.cluster, last_command })
}

/// Reads the state of a directory, and refuses a directory that has no log yet.
fn read_member(directory: &Path, cluster: ClusterId) -> Result<StoredState<Machine>> {
    let stored = read(directory, cluster)?;
    if !stored.voters.is_empty() {
        return Ok(stored);
    }
    let what = format!(
        "cannot use {}: the management node of this directory has not received the log yet; use \
         the directory of another management node",
        directory.display()
    );
    Err(Error::new(ErrorCode::Configuration, what))
}

/// Information about a directory whose member [`recover`] makes the only member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The cluster to which the directory belongs.
    pub cluster: ClusterId,
    /// Index of the last entry of the directory's log.
    pub last: u64,
    /// Term of this entry. Of two members, the member with the higher term has all committed
    /// changes of the other member. The index decides only if the terms are equal, because a former
    /// leader may have many entries of an earlier term that no majority has stored.
    pub term: u64,
    /// The ids of the voting members, according to the directory.
    pub members: Vec<u64>,
}

/// Makes the stopped member in `directory` the only member, after the majority of the members is
/// lost for ever. The next start of the member continues as after a restore from a backup, because
/// the lost members may have acknowledged changes that this member does not have. Without
/// `is_confirmed`, the function returns the information and changes nothing.
///
/// # Errors
/// - `Configuration` if `directory` is not a directory of management, or if management runs in this
///   directory.
/// - `Corrupt` with the file if a file is damaged.
/// - Errors of the file system.
pub fn recover(directory: &Path, is_confirmed: bool) -> Result<Recovery> {
    let opened = Directory::open(directory, DirectoryKind::Management, None)?;
    let cluster = opened.identity().cluster;
    let stored = read_member(directory, cluster)?;
    if is_confirmed {
        restored::mark(directory, RESTORED_MARK)?;
    }
    let (last, term) = (stored.last.index, stored.last.term);
    Ok(Recovery { cluster, last, term, members: stored.voters })
}

/// Whether a file may be missing from a directory of management.
fn is_optional(name: &str) -> bool {
    name == ADDRESS_FILE || name == FORMER_FILE
}

/// Creates a directory that only its owner can read, or accepts an empty directory.
fn create_empty(directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        created => return created.map_err(failed),
    }
    if std::fs::read_dir(directory).map_err(failed)?.next().is_none() {
        return Ok(());
    }
    let what = format!(
        "cannot write a copy to {}: the directory is not empty; name a new directory, or move this \
         directory away",
        directory.display()
    );
    Err(Error::new(ErrorCode::Configuration, what))
}
