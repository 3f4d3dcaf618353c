//! Finds the mount that contains a path, and unmounts directories.

use crate::in_time;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the cluster that is mounted at `path` or at a directory above `path`. `None` if the path
/// is not in a mount of Skep.
pub(crate) fn mounted_at(path: &Path) -> Option<String> {
    mount_of(&in_time::canonical(path).ok()?).map(|(_, source)| source)
}

/// Returns the mount point above an absolute path, and the cluster that is mounted on this mount
/// point. Reads only the mount table. `None` if the path is not in a mount of Skep.
pub(crate) fn mount_of(path: &Path) -> Option<(PathBuf, String)> {
    // Of several mount points that contain the path, take the longest mount point. Of several
    // mounts on one mount point, take the last mount.
    let above = mounts_of("self")
        .into_iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())?;
    above.is_of_skep().then_some((above.point, above.source))
}

/// Whether a mount of Skep is on exactly this directory. Reads only the mount table, because access
/// to a dead mount would fail or hang.
pub(crate) fn is_mount_point(directory: &Path) -> bool {
    mount_on(directory).is_some_and(|mount| mount.is_of_skep())
}

/// Returns the mount points of Skep on this host, beginning with the mount of the working
/// directory. Reads only the mount table.
pub(crate) fn mount_points() -> Vec<PathBuf> {
    let mounts = mounts_of("self").into_iter();
    let mut points: Vec<_> =
        mounts.filter(MountEntry::is_of_skep).map(|mount| mount.point).collect();
    let here = std::env::current_dir().unwrap_or_default();
    points.sort_by_key(|point| !here.starts_with(point));
    points
}

/// Type of Skep's mounts in the mount table.
const SKEP: &str = "fuse.skep";

/// One line of a mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor` of the device of the file system.
    pub(crate) device: String,
    pub(crate) point: PathBuf,
    /// Type of the file system with its subtype, such as `fuse.skep`.
    kind: String,
    source: String,
}

impl MountEntry {
    /// Whether the file system is Skep.
    pub(crate) fn is_of_skep(&self) -> bool {
        self.kind == SKEP
    }
}

/// Returns the mount table of a process: `self` or a process id. The result is empty if this
/// process may not read the table.
pub(crate) fn mounts_of(process: &str) -> Vec<MountEntry> {
    let mounts = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    mounts.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

/// Returns the uppermost mount whose mount point is exactly this directory. `None` if nothing is
/// mounted on the directory.
fn mount_on(directory: &Path) -> Option<MountEntry> {
    mounts_of("self").into_iter().rfind(|mount| mount.point == directory)
}

/// Returns the path of a directory in the form of the mount table. The function does not access the
/// directory itself, because a dead mount may be on the directory.
fn in_mount_table(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Maximum number of symbolic links that [`resolved`] follows, as in the kernel.
const MAX_LINKS: usize = 40;

/// Returns the path of a directory in the form of the mount table, and follows symbolic links to
/// the directory. The function does not access the directory itself, because a dead mount may be on
/// the directory.
pub(crate) fn resolved(directory: &Path) -> PathBuf {
    let mut path = in_mount_table(directory);
    for _ in 0..MAX_LINKS {
        // For the root directory of a mount, this call fails without a request to the mount.
        let Ok(link) = std::fs::read_link(&path) else { break };
        path = in_mount_table(&path.parent().unwrap_or(&path).join(link));
    }
    path
}

/// Returns the mount of Skep on a directory. Refuses mounts of other file systems.
///
/// # Errors
/// - `NotFound` if nothing is mounted on the directory.
/// - `InvalidArgument` if another file system is mounted on the directory.
pub(crate) fn mount_of_skep(directory: &Path) -> Result<MountEntry> {
    // The user may have named a symbolic link that points to a mount point.
    let linked = || mount_on(&directory.canonicalize().ok()?);
    let mount = mount_on(&in_mount_table(directory)).or_else(linked);
    let shown = directory.display();
    match mount {
        Some(mount) if mount.is_of_skep() => Ok(mount),
        Some(MountEntry { kind, .. }) => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot unmount {shown}: the mounted file system has the type {kind}, and this \
                 command unmounts only Skep; use `umount {shown}`"
            ),
        )),
        None => Err(Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot unmount {shown}: no file system is mounted on this directory; `findmnt -t \
                 {SKEP}` lists the mounts of Skep on this host"
            ),
        )),
    }
}

/// Parses a line of `mountinfo`.
fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8(unescape(field)).ok();
    let device = text(fields.nth(2)?)?;
    let point = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    Some(MountEntry {
        device,
        point: PathBuf::from(std::ffi::OsString::from_vec(point)),
        kind: text(rest.next()?)?,
        source: text(rest.next()?)?,
    })
}

/// Decodes the octal escapes (`\040`) in `mountinfo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = OsStr::from_bytes(tail.get(..3).unwrap_or_default()).to_str();
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

/// Unmounts a directory with `fusermount3`, or with `umount` if `fusermount3` fails.
pub(crate) fn unmount(directory: &Path, is_lazy: bool) -> Result<()> {
    // An unprivileged user must unmount with `fusermount3`. `-i` makes `umount` run no helper,
    // because the helper of Skep would call this function again.
    let mut by_system = Command::new("umount");
    by_system.arg("-i").args(is_lazy.then_some("-l")).arg(directory);
    let mut by_helper = Command::new("fusermount3");
    by_helper.arg("-u").args(is_lazy.then_some("-z")).arg(directory);
    let mut errors = Vec::new();
    for mut command in [by_helper, by_system] {
        // The messages must be in English, because this function searches the messages for English
        // words.
        match command.env("LC_ALL", "C").output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => errors.push(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(_) => {}
        }
    }
    let why = match errors.last() {
        Some(text) if !text.is_empty() => text.clone(),
        _ => "neither umount nor fusermount3 can be run".into(),
    };
    let shown = directory.display();
    let what = if why.contains("busy") {
        format!(
            "programs use this mount; `fuser -vm {shown}` lists the programs, and `skep umount \
             --lazy {shown}` detaches the mount nevertheless"
        )
    } else {
        // Each of the two programs repeats the path in its message, and ends the message with a
        // period.
        why.trim_start_matches("umount: ").trim_end_matches('.').to_owned()
    };
    Err(Error::new(ErrorCode::InUse, format!("cannot unmount {shown}: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_parsed() {
        let line = b"36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - fuse.skep /data/x\\040y rw";
        let expected = MountEntry {
            device: "98:0".into(),
            point: "/mnt/a b".into(),
            kind: "fuse.skep".into(),
            source: "/data/x y".into(),
        };
        assert_eq!(parse_mount(line), Some(expected));
        assert_eq!(parse_mount(b""), None);
    }
    #[test]
    fn symbolic_links_to_a_mount_point_are_resolved() {
        let scratch = tempfile::tempdir().unwrap();
        let place = scratch.path().canonicalize().unwrap();
        std::fs::create_dir(place.join("mnt")).unwrap();
        std::os::unix::fs::symlink("mnt", place.join("first")).unwrap();
        std::os::unix::fs::symlink(place.join("first"), place.join("second")).unwrap();
        std::os::unix::fs::symlink("loop", place.join("loop")).unwrap();
        assert_eq!(resolved(&place.join("mnt")), place.join("mnt"));
        assert_eq!(resolved(&place.join("second")), place.join("mnt"));
        assert_eq!(resolved(&place.join("loop")), place.join("loop"));
        assert_eq!(resolved(&place.join("absent")), place.join("absent"));
    }
}
