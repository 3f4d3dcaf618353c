//! The default log file of a mount in the background.
//!
//! - For a cluster in a local directory, the file is in the same directory as the logs of the
//!   services.
//! - If systemd started the mount, the file is in the log directory that systemd passes in an
//!   environment variable.
//! - Otherwise, the file is in `/var/log/skep` for root. For other users, the log is in their state
//!   directory by the XDG base directory specification.
//!
//! The name of the file contains the mount point, so later mounts on the same mount point use the
//! same file.
//!
//! # Hazard: files of other users
//! Root opens these files, and their names are easy to guess. If other users can create files in
//! the directory, another user could create a symbolic link with the name of a log. Root would then
//! append to the file to which the link leads. So an existing log must be a regular file that
//! belongs to the user of the mount. A log in the directory for temporary files is in a
//! subdirectory that only this user can write to.

use super::absolute;
use crate::access::Access;
use crate::local::children::open_log;
use rustix::process::{Uid, geteuid};
use skep_types::{Error, ErrorCode, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum number of bytes of the mount point that the name of its log contains. With this maximum,
/// the whole name is shorter than 255 bytes, the limit of file systems.
const LONGEST_LOG_NAME: usize = 150;
/// Environment variable that systemd sets for a unit with `LogsDirectory=`. If the variable lists
/// several directories, the mount uses the first directory.
const LOGS_VARIABLE: &str = "LOGS_DIRECTORY";
/// The directory of the logs of mounts that root has started.
pub(crate) const LOGS_OF_ROOT: &str = "/var/log/skep";

/// Opens the log of a mount for appending, and returns the open file with its path.
///
/// # Errors
/// The error of the system for the path that was tried last.
pub(super) fn open(
    requested: Option<&Path>,
    access: &Access,
    mount_point: &Path,
) -> Result<(PathBuf, File)> {
    if let Some(path) = requested {
        return Ok((absolute(path)?, open_log(path)?));
    }
    let name = file_name(mount_point);
    // The name of the cluster may be an address, and an address is no path below the working
    // directory.
    let of_cluster = Path::new(&access.name).join("logs");
    if of_cluster.is_absolute() && of_cluster.is_dir() {
        let path = of_cluster.join(&name);
        let file = open_own(&path).map_err(|error| {
            Error::from(error).within(format_args!("cannot open the log file {}", path.display()))
        })?;
        return Ok((path, file));
    }
    if let Some(path) = usual_directory().map(|directory| directory.join(&name))
        && let Ok(file) = open_own(&path)
    {
        return Ok((path, file));
    }
    let path = temporary_directory()?.join(&name);
    let file = open_own(&path).map_err(|error| {
        Error::from(error).within(format_args!("cannot open the log file {}", path.display()))
    })?;
    Ok((path, file))
}

/// Returns the name of the log file: the mount point with dashes instead of slashes. If the mount
/// point is too long, the name contains its end and a hash of the whole mount point. The name
/// contains the end because mount points differ more at their ends than at their beginnings.
fn file_name(mount_point: &Path) -> String {
    let mut name = mount_point.display().to_string().replace('/', "-");
    if name.len() > LONGEST_LOG_NAME {
        let mut start = name.len() - LONGEST_LOG_NAME;
        while !name.is_char_boundary(start) {
            start += 1;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        name = format!("-{:016x}{}", hasher.finish(), &name[start..]);
    }
    format!("mount{name}.log")
}

fn usual_directory() -> Option<PathBuf> {
    let state = match std::env::var(LOGS_VARIABLE) {
        Ok(directories) => {
            let first = directories.split(':').next().map(PathBuf::from);
            return first.filter(|path| path.is_absolute());
        }
        Err(_) if geteuid().is_root() => return Some(LOGS_OF_ROOT.into()),
        Err(_) => std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
    };
    // The XDG base directory specification requires programs to ignore a relative path.
    let state = state.filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(std::env::home_dir()?.join(".local/state")))?;
    state.is_absolute().then(|| state.join("skep"))
}

/// Opens a log file for appending, and checks that the file is a regular file of this user. Creates
/// the file and its directory if missing. Does not follow a symbolic link.
fn open_own(path: &Path) -> io::Result<File> {
    let user = geteuid();
    if let Some(parent) = path.parent() {
        let mode = if user.is_root() { 0o755 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(parent)?;
    }
    let file = skep_env::open_output(path, OpenOptions::new().append(true))?;
    match file.metadata()?.uid() == user.as_raw() {
        true => Ok(file),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// Returns this user's directory for logs below the directory for temporary files. If another user
/// has created a directory with the usual name, creates a directory with a new name.
fn temporary_directory() -> Result<PathBuf> {
    let (parent, user) = (std::env::temp_dir(), geteuid());
    let usual = parent.join(format!("skep-{}", user.as_raw()));
    if make_private(&usual, user).is_ok() {
        return Ok(usual);
    }
    let path = parent.join(format!("skep-{}-{:032x}", user.as_raw(), skep_env::random_u128()));
    make_private(&path, user).map_err(|error| {
        let what = format!(
            "cannot create a directory for the log of the mount; the last attempt was {}: {error}",
            path.display()
        );
        Error::new(
            ErrorCode::Io,
            format!("{what}; name a log file with --log-file or the mount option log_file"),
        )
    })?;
    Ok(path)
}

/// Creates a directory that only this user can write to. If the directory exists, checks that this
/// user owns the directory and that no other user can write to it.
fn make_private(path: &Path, user: Uid) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The check is about the directory itself, so this call must not follow a symbolic link.
    let found = std::fs::symlink_metadata(path)?;
    let is_private = found.is_dir() && found.uid() == user.as_raw() && found.mode() & 0o022 == 0;
    if is_private { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn mount_points_have_stable_and_short_log_names() {
        assert_eq!(file_name(Path::new("/mnt/skep")), "mount-mnt-skep.log");
        let long = PathBuf::from(format!("/{}/end", "x".repeat(300)));
        let name = file_name(&long);
        assert!(name.len() < 200 && name.ends_with("x-end.log"), "{name}");
        assert_eq!(name, file_name(&long));
        assert_ne!(name, file_name(Path::new(&format!("/{}/end", "x".repeat(301)))));
    }

    #[test]
    fn log_at_a_symlink_or_in_a_shared_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (log, secret) = (place.path().join("new/a.log"), place.path().join("secret"));
        open_own(&log).unwrap();
        open_own(&log).unwrap();
        std::fs::write(&secret, "").unwrap();
        let link = place.path().join("link");
        symlink(&secret, &link).unwrap();
        assert_eq!(open_own(&link).unwrap_err().kind(), ErrorKind::InvalidInput);
        let user = geteuid();
        let private = place.path().join("private");
        make_private(&private, user).unwrap();
        make_private(&private, user).unwrap();
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_private(&private, user).is_err());
        symlink(place.path().join("new"), place.path().join("link-to-new")).unwrap();
        assert!(make_private(&place.path().join("link-to-new"), user).is_err());
        assert!(make_private(&secret, user).is_err());
    }
}
