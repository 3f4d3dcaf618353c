//! Creates and removes the data directory of a lab. The directory contains a marker file with the
//! name of the lab. `down` removes a directory without this marker only if the directory is empty.

use crate::command::{call, marked};
use crate::names::{MARKER_FILE, memory_name};
use crate::state::State;
use skep_types::{Error, ErrorCode, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An entry of the kernel's mount table.
pub(crate) struct Mount {
    pub(crate) source: String,
    pub(crate) point: PathBuf,
}

/// Returns all mounts on a directory or below it. The innermost mounts come first.
///
/// # Errors
/// Returns `Io` if the mount table cannot be read. After an error, the caller must not remove the
/// directory, because the directory may contain mounted file systems.
pub(crate) fn mounts_below(directory: &Path) -> Result<Vec<Mount>> {
    let table = fs::read_to_string("/proc/self/mounts")?;
    let mut found: Vec<Mount> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').map(unescape);
            Some(Mount { source: words.next()?, point: words.next()?.into() })
        })
        .filter(|mount| mount.point.starts_with(directory))
        .collect();
    found.reverse();
    Ok(found)
}

/// Decodes the octal escapes in a word of the mount table, such as `\040` for a blank.
fn unescape(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text + rest
}

/// Whether a file system is mounted on the directory itself.
pub(crate) fn is_mount_point(directory: &Path) -> Result<bool> {
    Ok(mounts_below(directory)?.iter().any(|mount| mount.point == directory))
}

/// Returns the reason why a directory cannot become the data directory of a lab. `None` means that
/// the directory is suitable.
pub(crate) fn objection(directory: &Path) -> Option<String> {
    let shown = directory.display();
    match fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => None,
        Ok(false) => Some(match lab_of(directory) {
            Some(lab) => format!(
                "cannot use {shown}: this directory has the data of lab '{lab}'; remove the lab \
                 with `skep lab down --name {lab}`, or name another directory"
            ),
            None => format!(
                "cannot use {shown}: the directory is not empty; name a new or empty directory \
                 with --directory"
            ),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(format!("cannot read {shown}: {error}")),
    }
}

/// Returns the name of the lab in the marker file of a directory. `None` means that the directory
/// has no marker file.
fn lab_of(directory: &Path) -> Option<String> {
    let text = fs::read_to_string(directory.join(MARKER_FILE)).ok()?;
    Some(text.trim().to_owned())
}

/// Creates the data directory of a lab. If the lab's targets are in memory, mounts an in-memory
/// file system with a capacity of `memory_bytes` on the directory.
pub(crate) fn make(state: &State, memory_bytes: u64) -> Result<()> {
    let directory = &state.directory;
    let named = |error: std::io::Error| Error::from(error).within(directory.display());
    fs::create_dir_all(directory).map_err(named)?;
    // Write the marker before any other file, so that `down` can always remove the directory.
    fs::write(directory.join(MARKER_FILE), format!("{}\n", state.name)).map_err(named)?;
    if state.description.in_memory {
        let name = memory_name(&state.name);
        let options = format!("size={memory_bytes},mode=755");
        let mut mount = marked(&state.name, "mount");
        call(mount.args(["-t", "tmpfs", "-o", &options, &name]).arg(directory))?;
    }
    Ok(())
}

/// Removes the data directory of a lab. Returns whether the directory existed.
///
/// # Errors
/// - `InUse`: a file system that does not belong to the lab is mounted on the directory or below
///   the directory.
/// - `Exists`: the directory is not empty and does not have the marker of the lab.
pub(crate) fn remove(lab: &str, directory: &Path) -> Result<bool> {
    let own = memory_name(lab);
    for mount in mounts_below(directory)? {
        if mount.point != directory || mount.source != own {
            let what = format!(
                "cannot remove the data of the lab: {} of {} is mounted at {}; unmount this file \
                 system first",
                mount.source,
                lab,
                mount.point.display()
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        // Unmount lazily, because a program of a user may still have files of the file system open.
        call(marked(lab, "umount").arg("--lazy").arg(directory))?;
    }
    let named = |error: std::io::Error| Error::from(error).within(directory.display());
    // If `up` was killed before it wrote the marker, the directory is still empty. So first try to
    // remove an empty directory.
    match fs::remove_dir(directory) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(_) => {}
    }
    if lab_of(directory).as_deref() != Some(lab) {
        let what = format!(
            "cannot remove {}: this directory is not marked as the data of lab '{lab}'; check the \
             contents of this directory, and remove the directory by hand",
            directory.display()
        );
        return Err(Error::new(ErrorCode::Exists, what));
    }
    // Remove the marker after all other files, so that an interrupted removal can be repeated.
    for entry in fs::read_dir(directory).map_err(named)? {
        let path = entry.map_err(named)?.path();
        if path.ends_with(MARKER_FILE) {
            continue;
        }
        let is_directory = fs::symlink_metadata(&path).map_err(named)?.is_dir();
        if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
            .map_err(named)?;
    }
    fs::remove_file(directory.join(MARKER_FILE)).map_err(named)?;
    fs::remove_dir(directory).map_err(named)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_of_a_lab_deletes_only_marked_or_empty_directories() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("data");
        assert_eq!(objection(&directory), None);
        assert!(!remove("x", &directory).unwrap());
        fs::create_dir(&directory).unwrap();
        assert_eq!(objection(&directory), None);
        assert!(remove("x", &directory).unwrap());
        fs::create_dir_all(directory.join("s1/t1")).unwrap();
        fs::write(directory.join("s1/t1/chunk"), "data").unwrap();
        assert!(objection(&directory).unwrap().contains("the directory is not empty"));
        assert!(
            remove("x", &directory)
                .unwrap_err()
                .context()
                .contains("not marked as the data of lab 'x'")
        );
        fs::write(directory.join(MARKER_FILE), "y\n").unwrap();
        assert!(objection(&directory).unwrap().contains("skep lab down --name y"));
        assert!(remove("x", &directory).is_err());
        assert!(directory.join("s1/t1/chunk").exists());
        assert!(remove("y", &directory).unwrap());
        assert!(!directory.exists());
    }

    #[test]
    fn escaped_names_in_the_mount_table_are_decoded() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescape("/a\\x"), "/a\\x");
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/self")).unwrap());
    }
}
