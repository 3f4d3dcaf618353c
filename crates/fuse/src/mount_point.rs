//! The directory of a mount: checks whether a file system is mounted on it already, and finds the
//! mount in the kernel's list of mounts.

use crate::transport::kernel::{self, Unmount};
use skep_types::{Error, ErrorCode, Result};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor` of the mount's device.
    pub(crate) device: String,
    pub(crate) mount_point: PathBuf,
    /// Type of the file system with its subtype, such as `fuse.skep`.
    pub(crate) kind: String,
}

/// Replaces the octal escapes that mountinfo writes for blanks in paths.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = bytes
            .get(at + 1..at + 4)
            .filter(|_| bytes[at] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

fn parse_line(line: &str) -> Option<MountEntry> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let device = fields.nth(2)?.to_owned();
    let mount_point = unescape(fields.nth(1)?);
    let kind = after.split(' ').next()?.to_owned();
    Some(MountEntry { device, mount_point, kind })
}

/// Returns the topmost mount on a path. `None` means that the path is not a mount point.
pub(crate) fn find(path: &Path) -> Option<MountEntry> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().filter_map(parse_line).rfind(|entry| entry.mount_point == path)
}

/// Returns the absolute path without links and dots. If the last component is a dead mount, whose
/// client was killed, only its parent is resolved, since any access to a dead mount fails.
pub(crate) fn absolute(path: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    Ok(parent.canonicalize()?.join(path.file_name().unwrap_or_default()))
}

/// Checks that a directory is a valid mount point. The dead mount of a killed client does not make
/// the directory invalid.
///
/// # Errors
/// - `NotFound` or `NotDirectory`: there is no such directory.
/// - `InUse`: a file system is mounted on the directory already.
pub fn check_mount_point(path: &Path) -> Result<()> {
    examine(path).map(drop)
}

/// Checks that a directory is a valid mount point, and unmounts the dead mount of a killed client.
///
/// # Errors
/// Returns the errors of [`check_mount_point`].
pub(crate) fn prepare(path: &Path) -> Result<PathBuf> {
    let (absolute, was_left) = examine(path)?;
    if was_left {
        tracing::info!(
            "this process unmounts {}, because the process of the previous mount was killed",
            absolute.display()
        );
        let cleaned = match kernel::is_root() {
            true => kernel::unmount(&absolute, Unmount::Detach),
            false => kernel::unmount_by_helper(&absolute, Unmount::Detach),
        };
        cleaned.map_err(|error| named(path, &error))?;
        check_directory(&absolute)?;
    }
    Ok(absolute)
}

/// Checks that a directory is a valid mount point. Returns the path without links, and whether the
/// dead mount of a killed client is on it.
fn examine(path: &Path) -> Result<(PathBuf, bool)> {
    let absolute = absolute(path).map_err(|error| named(path, &error))?;
    let entry = find(&absolute).filter(|entry| entry.kind == "fuse.skep");
    match entry {
        Some(_) if is_dead(&absolute) => return Ok((absolute, true)),
        Some(entry) => {
            let what = format!(
                "cannot mount: {} is mounted already; unmount it first (umount {0})",
                entry.mount_point.display()
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        None => {}
    }
    check_directory(&absolute)?;
    Ok((absolute, false))
}

fn check_directory(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(|error| named(path, &error))?;
    if !metadata.is_dir() {
        let what = format!("cannot mount on {}: it is not a directory", path.display());
        return Err(Error::new(ErrorCode::NotDirectory, what));
    }
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::NotADirectory => ErrorCode::NotDirectory,
        io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        _ => ErrorCode::Io,
    };
    let way_out = match code {
        ErrorCode::NotFound => format!("; create it: mkdir -p {}", path.display()),
        _ => String::new(),
    };
    Error::new(code, format!("cannot use the mount point {}: {error}{way_out}", path.display()))
}

/// Whether the daemon of a mount has ended. The kernel may reply to `stat` from its cached
/// attributes of the root directory, without the daemon. So this function also requests `statfs`,
/// whose result the kernel never caches.
fn is_dead(mount_point: &Path) -> bool {
    let dead = |error: io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
    std::fs::metadata(mount_point).is_err_and(dead) || kernel::stat_fs(mount_point).is_err_and(dead)
}

/// Unmounts a mount that this process serves. Root uses `umount(8)`, other users use `fusermount3`.
/// Also succeeds if another process has already unmounted the file system.
pub(crate) fn unmount(mount_point: &Path, how: Unmount) -> io::Result<()> {
    let result = match kernel::is_root() {
        true => kernel::unmount_by_program(mount_point, how),
        false => kernel::unmount_by_helper(mount_point, how),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound && kernel::is_root() => {
            tracing::debug!("cannot run umount(8), using umount2(2): {error:#}");
            kernel::unmount(mount_point, how)
        }
        Err(_) if find(mount_point).is_none() => Ok(()),
        other => other,
    }
}

/// Sets the read-ahead of the mount on an absolute path to `bytes`, rounded up to whole KiB. The
/// kernel limits the read-ahead to 128 KiB unless root raises this setting. This function sends no
/// request to the mount, so the mount's own process may call it before it serves requests.
///
/// # Errors
/// `PermissionDenied` for users other than root. Other errors mean that the path is not a mount
/// point, or that the kernel refused the value.
pub(crate) fn set_read_ahead(mount_point: &Path, bytes: u32) -> Result<()> {
    let failed = |error: io::Error| {
        let what = format!("cannot set the read-ahead of {}: {error}", mount_point.display());
        Error::new(Error::from(error).code(), what)
    };
    let entry = find(mount_point).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
    std::fs::write(setting, bytes.div_ceil(1024).to_string()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_a_missing_mount_point_names_the_mkdir_command() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("missing");
        let refused = check_mount_point(&missing).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotFound);
        let way_out = format!("; create it: mkdir -p {}", missing.display());
        assert!(refused.context().ends_with(&way_out), "{refused}");
    }

    #[test]
    fn parsed_mountinfo_line_has_the_path_type_and_device() {
        let line = "36 35 0:45 / /mnt/a\\040b rw,relatime shared:1 - fuse.skep /data rw,user_id=0";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.device, "0:45");
        assert_eq!(entry.mount_point, Path::new("/mnt/a b"));
        assert_eq!(entry.kind, "fuse.skep");
        assert_eq!(parse_line("nonsense"), None);
        assert_eq!(unescape("a\\"), Path::new("a\\"));
    }

    #[test]
    fn a_mount_point_that_is_not_a_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = prepare(file.path()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotDirectory);
        let missing = file.path().with_extension("missing");
        let error = prepare(&missing).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert!(error.context().contains(&missing.display().to_string()));
    }
}
