//! Finds the mount that contains a path, and unmounts directories.

use crate::in_time;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the cluster that is mounted at `path` or above it. `None` if the path is not in a mount
/// of Skep.
pub(crate) fn mounted_at(path: &Path) -> Option<String> {
    mount_of(&in_time::canonical(path).ok()?).map(|(_, source)| source)
}

/// Returns the mount point above an absolute path, and the cluster that is mounted there. Reads
/// only the mount table. `None` if the path is not in a mount of Skep.
pub(crate) fn mount_of(path: &Path) -> Option<(PathBuf, String)> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let lines = mounts.split(|byte| *byte == b'\n').filter_map(parse_mount);
    // If several mount points contain the path, the longest one is taken. If several mounts are on
    // one mount point, the last one is taken.
    let (point, kind, source) = lines
        .filter(|(point, ..)| path.starts_with(point))
        .max_by_key(|(point, ..)| point.as_os_str().len())?;
    if kind != SKEP {
        return None;
    }
    Some((point, source))
}

/// Whether a mount of Skep is on exactly this directory. Reads only the mount table, since access
/// to a dead mount would fail or hang.
pub(crate) fn is_mount_point(directory: &Path) -> bool {
    kind_at(directory).is_some_and(|kind| kind == SKEP)
}

/// Returns the mount points of Skep on this host, beginning with the mount of the working
/// directory. Reads only the mount table.
pub(crate) fn mount_points() -> Vec<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|byte| *byte == b'\n').filter_map(parse_mount);
    let of_skep = lines.filter(|(_, kind, _)| kind == SKEP).map(|(point, ..)| point);
    let mut points: Vec<_> = of_skep.collect();
    let here = std::env::current_dir().unwrap_or_default();
    points.sort_by_key(|point| !here.starts_with(point));
    points
}

/// Type of Skep's mounts in the mount table.
const SKEP: &str = "fuse.skep";

/// Returns the type of the uppermost mount whose mount point is exactly this directory. `None` if
/// nothing is mounted there.
fn kind_at(directory: &Path) -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(parse_mount).rev();
    lines.find(|(point, ..)| point == directory).map(|(_, kind, _)| kind)
}

/// Returns the path of a directory in the form in which the mount table contains it. Does not
/// access the directory itself, because a dead mount may be on it.
fn in_mount_table(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Unmounts a mount of Skep. Refuses mounts of other file systems.
///
/// # Errors
/// - `NotFound` if nothing is mounted on the directory.
/// - `InvalidArgument` if another file system is mounted there.
/// - Errors of [`unmount`].
pub(crate) fn unmount_skep(directory: &Path, is_lazy: bool) -> Result<()> {
    let mut point = in_mount_table(directory);
    let mut kind = kind_at(&point);
    // The user may have named a symbolic link that points to a mount point.
    if kind.is_none()
        && let Ok(path) = directory.canonicalize()
    {
        kind = kind_at(&path);
        point = path;
    }
    let shown = directory.display();
    match kind.as_deref() {
        Some(SKEP) => unmount(&point, is_lazy),
        Some(other) => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot unmount {shown}: its file system has the type {other}, and this command \
                 unmounts only Skep; use `umount {shown}`"
            ),
        )),
        None => Err(Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot unmount {shown}: nothing is mounted on it; `findmnt -t {SKEP}` lists the \
                 mounts of Skep on this host"
            ),
        )),
    }
}

/// Returns the mount point, type and source from a line of `mountinfo`.
fn parse_mount(line: &[u8]) -> Option<(PathBuf, String, String)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescape(fields.nth(4)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| String::from_utf8(unescape(field)).ok();
    Some((
        PathBuf::from(std::ffi::OsString::from_vec(point)),
        text(rest.next()?)?,
        text(rest.next()?)?,
    ))
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
    // An unprivileged user must unmount with `fusermount3`. As root, `umount` checks the
    // permissions itself.
    let mut by_system = Command::new("umount");
    by_system.args(is_lazy.then_some("-l")).arg(directory);
    let mut by_helper = Command::new("fusermount3");
    by_helper.arg("-u").args(is_lazy.then_some("-z")).arg(directory);
    let mut errors = Vec::new();
    for mut command in [by_helper, by_system] {
        match command.output() {
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
            "programs use it; `fuser -vm {shown}` lists them, and `skep umount --lazy {shown}` \
             detaches it anyway"
        )
    } else {
        // Both programs print the path again in their message, and end the message with a period.
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
        assert_eq!(
            parse_mount(line),
            Some(("/mnt/a b".into(), "fuse.skep".into(), "/data/x y".into()))
        );
        assert_eq!(parse_mount(b""), None);
    }
}
