//! File system calls that a test expects to succeed.
//!
//! If a call fails, the function panics. The message contains the call, the path (which shows the
//! mount), and the error with its number. The panic reports the source line of the test. The
//! functions have the same names as in `std::fs` and `std::fs::File`. For calls that a test expects
//! to fail, the test uses the standard library.
//!
//! # Panics
//! Every function in this module panics if its call fails.

use rustix::fs::{FallocateFlags, OFlags};
use std::fs::{self, File, Metadata, OpenOptions, Permissions, ReadDir};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, chown as change_owner, symlink as make_symlink};
use std::path::{Path, PathBuf};

/// `O_DSYNC`. In rustix 1, `OFlags::DSYNC` has the bits of `O_SYNC`.
pub const DSYNC: OFlags = OFlags::from_bits_retain(0o10_000);

/// Unwraps the result of a call on a path.
pub trait OrFail<T> {
    /// Returns the value, or panics with `call`, `path` and the error.
    fn or_fail(self, call: &str, path: impl AsRef<Path>) -> T;
}

impl<T, E: Into<io::Error>> OrFail<T> for Result<T, E> {
    #[track_caller]
    fn or_fail(self, call: &str, path: impl AsRef<Path>) -> T {
        match self {
            Ok(value) => value,
            Err(error) => {
                let error: io::Error = error.into();
                panic!("{call} {}: {error}", path.as_ref().display())
            }
        }
    }
}

/// Unwraps the result of a call on an open file. The failure message contains the path from
/// /proc/self/fd.
#[track_caller]
fn of_file<T>(result: io::Result<T>, call: &str, file: &File) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            let descriptor = file.as_raw_fd();
            let path = fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap_or_default();
            panic!("{call} {} (descriptor {descriptor}): {error}", path.display())
        }
    }
}

/// Creates a file with the contents `bytes`, or replaces the contents of an existing file.
#[track_caller]
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::write(path, bytes).or_fail("write", path)
}

/// Writes a secret to a file like [`write()`]. Only the owner may read the file.
#[track_caller]
pub fn write_secret(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt;
    let path = path.as_ref();
    write(path, "");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).or_fail("close", path);
    write(path, bytes);
}

/// Reads a whole file.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    fs::read(path).or_fail("read", path)
}

/// Reads a whole file of UTF-8 text.
#[track_caller]
pub fn read_to_string(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).or_fail("read_to_string", path)
}

/// Opens a file for reading.
#[track_caller]
pub fn open(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    File::open(path).or_fail("open", path)
}

/// Opens a file for writing. Creates a missing file, and truncates an existing file to zero bytes.
#[track_caller]
pub fn create(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    File::create(path).or_fail("create", path)
}

/// Creates a file that must not exist yet, and opens it for reading and writing.
#[track_caller]
pub fn create_new(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    File::create_new(path).or_fail("create_new", path)
}

/// Opens a file with `options`.
#[track_caller]
pub fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    options.open(path).or_fail("open", path)
}

/// Removes a file.
#[track_caller]
pub fn remove_file(path: impl AsRef<Path>) {
    let path = path.as_ref();
    fs::remove_file(path).or_fail("remove_file", path)
}

/// Creates a directory.
#[track_caller]
pub fn create_dir(path: impl AsRef<Path>) {
    let path = path.as_ref();
    fs::create_dir(path).or_fail("create_dir", path)
}

/// Creates a directory and its missing parents.
#[track_caller]
pub fn create_dir_all(path: impl AsRef<Path>) {
    let path = path.as_ref();
    fs::create_dir_all(path).or_fail("create_dir_all", path)
}

/// Removes an empty directory.
#[track_caller]
pub fn remove_dir(path: impl AsRef<Path>) {
    let path = path.as_ref();
    fs::remove_dir(path).or_fail("remove_dir", path)
}

/// Removes a directory and all its contents.
#[track_caller]
pub fn remove_dir_all(path: impl AsRef<Path>) {
    let path = path.as_ref();
    fs::remove_dir_all(path).or_fail("remove_dir_all", path)
}

/// Lists a directory.
#[track_caller]
pub fn read_dir(path: impl AsRef<Path>) -> ReadDir {
    let path = path.as_ref();
    fs::read_dir(path).or_fail("read_dir", path)
}

/// Returns the attributes of a path. Follows symbolic links.
#[track_caller]
pub fn metadata(path: impl AsRef<Path>) -> Metadata {
    let path = path.as_ref();
    fs::metadata(path).or_fail("metadata", path)
}

/// Returns the attributes of a path. Does not follow a symbolic link at its end.
#[track_caller]
pub fn symlink_metadata(path: impl AsRef<Path>) -> Metadata {
    let path = path.as_ref();
    fs::symlink_metadata(path).or_fail("symlink_metadata", path)
}

/// Changes the permissions of a path.
#[track_caller]
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) {
    let path = path.as_ref();
    fs::set_permissions(path, permissions).or_fail("set_permissions", path)
}

/// Returns the target of a symbolic link.
#[track_caller]
pub fn read_link(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    fs::read_link(path).or_fail("read_link", path)
}

/// Returns the absolute path of `path` without symbolic links.
#[track_caller]
pub fn canonicalize(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    fs::canonicalize(path).or_fail("canonicalize", path)
}

/// Changes the owning user and group of a path. `None` does not change the user or group.
#[track_caller]
pub fn chown(path: impl AsRef<Path>, user: Option<u32>, group: Option<u32>) {
    let path = path.as_ref();
    change_owner(path, user, group).or_fail("chown", path)
}

/// Renames `from` to `to`.
#[track_caller]
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    fs::rename(from, to).or_fail(&format!("rename {} to", from.display()), to)
}

/// Creates the hard link `to` to the file `from`.
#[track_caller]
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    fs::hard_link(from, to).or_fail(&format!("hard_link {} to", from.display()), to)
}

/// Copies the contents and permissions of a file. Returns the number of copied bytes.
#[track_caller]
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> u64 {
    let (from, to) = (from.as_ref(), to.as_ref());
    fs::copy(from, to).or_fail(&format!("copy {} to", from.display()), to)
}

/// Creates the symbolic link `to` with the target `from`.
#[track_caller]
pub fn symlink(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    make_symlink(from, to).or_fail(&format!("symlink {} to", from.display()), to)
}

/// Writes all of `bytes` at `offset`.
#[track_caller]
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) {
    of_file(file.write_all_at(bytes, offset), "write_all_at", file)
}

/// Fills `buffer` with the file's bytes from `offset` on.
#[track_caller]
pub fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) {
    of_file(file.read_exact_at(buffer, offset), "read_exact_at", file)
}

/// Calls pread(2) once at `offset`. Returns the number of bytes that this call read.
#[track_caller]
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    of_file(file.read_at(buffer, offset), "read_at", file)
}

/// Writes all of `bytes` at the file's current position.
#[track_caller]
pub fn write_all(mut file: &File, bytes: &[u8]) {
    of_file(file.write_all(bytes), "write_all", file)
}

/// Fills `buffer` with the file's bytes from its current position on.
#[track_caller]
pub fn read_exact(mut file: &File, buffer: &mut [u8]) {
    of_file(file.read_exact(buffer), "read_exact", file)
}

/// Waits until the file's data and attributes are on stable storage.
#[track_caller]
pub fn sync_all(file: &File) {
    of_file(file.sync_all(), "sync_all", file)
}

/// Waits until the file's data is on stable storage.
#[track_caller]
pub fn sync_data(file: &File) {
    of_file(file.sync_data(), "sync_data", file)
}

/// Truncates or extends a file to `len` bytes.
#[track_caller]
pub fn set_len(file: &File, len: u64) {
    of_file(file.set_len(len), "set_len", file)
}

/// Allocates, zeroes or removes a range of a file, depending on `flags`.
#[track_caller]
pub fn fallocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) {
    of_file(rustix::fs::fallocate(file, flags, offset, len).map_err(Into::into), "fallocate", file)
}

/// Waits until all data and attributes of the file system at `path` are on stable storage.
#[track_caller]
pub fn syncfs(path: impl AsRef<Path>) {
    let path = path.as_ref();
    rustix::fs::syncfs(open(path)).or_fail("syncfs", path)
}

/// Returns the attributes of an open file.
#[track_caller]
pub fn metadata_of(file: &File) -> Metadata {
    of_file(file.metadata(), "metadata_of", file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "read /missing/file: No such file or directory (os error 2)")]
    fn panic_message_names_call_path_and_errno() {
        read("/missing/file");
    }

    #[test]
    #[should_panic(expected = "set_len /proc/version (descriptor")]
    fn panic_message_for_an_open_file_names_its_path() {
        set_len(&open("/proc/version"), 1);
    }
}
