//! Looks up the paths in the arguments of commands in the mounts of this host. The servers of a
//! mount may be absent, so a lookup has a time limit.

use crate::in_time::{LOOKUP_PATIENCE, within};
use crate::mounts::{mount_of, mounted_at};
use skep_types::{Error, ErrorCode, InodeId, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the inode at a path in a mount, and the path of a file or directory on the same mount.
/// Does not follow a symbolic link at the end of `path`.
///
/// # Errors
/// - The error of the system, with the path as context.
/// - `InvalidArgument` if the path is not in a mount of Skep.
/// - `TimedOut` if the mount does not reply in time, because its servers do not answer.
pub(crate) fn entry_at(path: &Path) -> Result<(InodeId, PathBuf)> {
    let named = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorCode::NotFound, error.to_string()),
        std::io::ErrorKind::PermissionDenied => {
            Error::new(ErrorCode::PermissionDenied, error.to_string())
        }
        _ => Error::from(error),
    };
    let asked = path.to_owned();
    let metadata = in_mount(path, move || std::fs::symlink_metadata(asked))?
        .map_err(|it| named(it).within(format_args!("cannot look up {}", path.display())))?;
    // The kernel does not pass requests for extended attributes of symbolic links and special files
    // to the mount. So ask for the attributes of the parent directory.
    let place = match metadata.is_file() || metadata.is_dir() {
        true => path,
        false => path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    };
    if mounted_at(place).is_none() {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot use {}: this path is not in a mount of Skep; `findmnt -t fuse.skep` lists \
                 the mounts of this host, and `skep client list` lists the mounts of a cluster",
                path.display()
            ),
        ));
    }
    Ok((InodeId::new(metadata.ino()), place.to_owned()))
}

/// Runs `work`, which sends requests to the mount of `path`, and returns its result.
///
/// # Errors
/// `TimedOut` if the mount does not reply in time.
pub(crate) fn in_mount<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    within(LOOKUP_PATIENCE, work).ok_or_else(|| no_lookup(path))
}

fn no_lookup(path: &Path) -> Error {
    let place = std::path::absolute(path).ok().and_then(|path| mount_of(&path));
    let mount = place.map_or_else(|| "its mount".into(), |(point, _)| point.display().to_string());
    let what = format!(
        "cannot look up {}: the file system has not replied for {} s; `skep why {mount}` shows the \
         requests that wait, and the server for which they wait",
        path.display(),
        LOOKUP_PATIENCE.as_secs()
    );
    Error::new(ErrorCode::TimedOut, what)
}
