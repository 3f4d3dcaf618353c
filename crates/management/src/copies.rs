//! Backups of management's directory, and their restoration. Management may run during a backup.
//!
//! A copy is a complete directory of management with a snapshot of the state and an empty command
//! log. It is marked as a copy, so its first start continues with higher ids. Does not own the
//! format of the files (`skep_format`, `command_log`).

use crate::command_log::{self, CommandLog};
use skep_format::identity::DirectoryKind;
use skep_service::directory::{TOKEN_FILE, read_token};
use skep_service::former_secrets::FORMER_FILE;
use skep_service::listen::ADDRESS_FILE;

use skep_store::atomic::{replace_secret, sync_directory};
use skep_store::identity::{IDENTITY_FILE, read_identity};
use skep_store::restored::{self, RESTORED_MARK};
use skep_types::{ClusterId, Error, ErrorCode, Lsn, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// A finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryCopy {
    /// The cluster of the directory.
    pub cluster: ClusterId,
    /// The last command whose effect the copy contains.
    pub last_command: Lsn,
}

/// Copies the directory of management. Reads all of it and checks it first.
///
/// # Errors
/// - `Configuration` if `from` is not a directory of management, or if `to` is not empty.
/// - `Corrupt` with file and offset if `from` is damaged.
/// - Errors of the file system.
pub fn copy_directory(from: &Path, to: &Path) -> Result<DirectoryCopy> {
    let wrong = |what: String| Err(Error::new(ErrorCode::Configuration, what));
    let identity = read_identity(from)?;
    if identity.is_none_or(|identity| identity.kind != DirectoryKind::Management) {
        return wrong(format!(
            "cannot copy {}: it is not a directory of management; name the one of the option \
             --directory of `skep management`",
            from.display()
        ));
    }
    let token = read_token(&from.join(TOKEN_FILE))?;
    let (state, last_command) = command_log::read(from, token.cluster)?;
    create_empty(to)?;
    restored::mark(to, RESTORED_MARK)?;
    CommandLog::create_at(to, &state, last_command)?;
    // The identity is copied last, so that an interrupted copy is not mistaken for a complete one.
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

/// Whether a directory of management may lack a file.
fn is_optional(name: &str) -> bool {
    name == ADDRESS_FILE || name == FORMER_FILE
}

/// Creates a directory that only its owner can read, or accepts an empty one.
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
        "cannot write a copy to {}: the directory is not empty; name a new one, or move it away",
        directory.display()
    );
    Err(Error::new(ErrorCode::Configuration, what))
}
