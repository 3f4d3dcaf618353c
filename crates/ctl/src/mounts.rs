//! The mounts of this host: which mount a path is in, and how to unmount a directory.

use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the cluster that is mounted at `path` or above it. `None` if the path is not in a mount
/// of Skep.
pub(crate) fn mounted_at(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let lines = mounts.split(|byte| *byte == b'\n').filter_map(parse_mount);
    // The longest mount point wins. If several mounts are on one mount point, the last one wins.
    let (_, kind, source) = lines
        .filter(|(point, ..)| path.starts_with(point))
        .max_by_key(|(point, ..)| point.as_os_str().len())?;
    if kind != "fuse.skep" {
        return None;
    }
    Some(source)
}

/// Whether a mount of Skep is on exactly this directory. Reads only the mount table, since access
/// to a dead mount would fail or hang.
pub(crate) fn is_mount_point(directory: &Path) -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(parse_mount);
    lines.any(|(point, kind, _)| point == directory && kind == "fuse.skep")
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

/// Unmounts a directory with `fusermount3` or `umount`, whichever this user may use.
pub(crate) fn unmount(directory: &Path, is_lazy: bool) -> Result<()> {
    // `umount` checks permissions itself. A user who mounted with `fusermount3` must unmount with
    // it.
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
    let hint = if why.contains("busy") {
        "; `fuser -m` lists the processes that use it, and `skep umount --lazy` detaches it anyway"
    } else if why.contains("not mounted") || why.contains("no mount point") {
        "; `findmnt -t fuse.skep` lists the mounts of this host"
    } else {
        ""
    };
    Err(Error::new(
        ErrorCode::InUse,
        format!("cannot unmount {}: {why}{hint}", directory.display()),
    ))
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
