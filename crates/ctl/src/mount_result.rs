//! The result of a mount that has ended before metadata has confirmed all its changes. The process
//! of the mount writes this result to a file for `skep umount`. The log of the mount has the same
//! text, but `skep umount` cannot read a log that is not a file, such as the journal.
//!
//! The file is in the directory of the sockets of mounts, which only the user of the mount can
//! write to. The name of the file contains the id of the process. `skep umount` removes the file.

use skep_client::UNCONFIRMED;
use skep_types::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum length of a result in bytes. A result names at most ten files.
const MOST_BYTES: u64 = 64 << 10;
/// Time after which a result counts as abandoned: another program than `skep umount` has unmounted
/// the cluster. A `skep umount` reads the result within a minute.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the directory for the sockets and the results of mounts. The directory of root belongs
/// to the host, and the directory of another user belongs to the login session of this user.
pub(crate) fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/skep".into());
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|directory| PathBuf::from(directory).join("skep"))
}

/// Removes the result of an earlier process with the id of this process, and abandoned results. A
/// mount calls this function at its start.
pub(crate) fn remove_old() {
    if let Some(directory) = directory() {
        remove_old_in(&directory, std::process::id());
    }
}

/// Stores the error of the mount of this process, if metadata has not confirmed all its changes. A
/// mount calls this function at its end.
pub(crate) fn store(error: &Error) {
    if let Some(directory) = directory() {
        // If this write fails, the log of the mount still has the text.
        let _ = store_in(&directory, std::process::id(), error.context());
    }
}

/// Returns and removes the result of a process that has ended. Empty if the process has stored no
/// result.
pub(crate) fn take(process: u32) -> Vec<u8> {
    directory().and_then(|it| take_in(&it, process).ok()).unwrap_or_default()
}

fn path_in(directory: &Path, process: u32) -> PathBuf {
    directory.join(format!("mount-{process}.result"))
}

fn remove_old_in(directory: &Path, own: u32) {
    // A missing result is the usual case.
    let _ = fs::remove_file(path_in(directory, own));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_result =
            name.to_str().is_some_and(|it| it.starts_with("mount-") && it.ends_with(".result"));
        let age = entry.metadata().and_then(|it| it.modified()).ok();
        let age = age.and_then(|it| it.elapsed().ok());
        if is_result && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn store_in(directory: &Path, process: u32, text: &str) -> std::io::Result<()> {
    let Some(start) = text.find(UNCONFIRMED) else { return Ok(()) };
    fs::create_dir_all(directory)?;
    let path = path_in(directory, process);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&text.as_bytes()[start..])
}

fn take_in(directory: &Path, process: u32) -> std::io::Result<Vec<u8>> {
    let path = path_in(directory, process);
    let mut bytes = Vec::new();
    File::open(&path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    fs::remove_file(&path)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_of_a_mount_is_read_once_by_its_umount() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("skep");
        let take = |process| take_in(&directory, process).unwrap_or_default();
        store_in(&directory, 7, "cannot reach management").unwrap();
        assert!(take(7).is_empty(), "another error");
        let text = format!("{UNCONFIRMED}7 changes");
        store_in(&directory, 7, &format!("a hint: {text}")).unwrap();
        assert!(take(8).is_empty());
        assert_eq!(String::from_utf8(take(7)).unwrap(), text);
        assert!(take(7).is_empty());
        // In this case, a later process has the id of an earlier process.
        store_in(&directory, 7, &text).unwrap();
        store_in(&directory, 8, &text).unwrap();
        remove_old_in(&directory, 7);
        assert!(take(7).is_empty() && !take(8).is_empty());
    }
}
