//! Workloads that resemble daily work: small files, databases, archives and trees.
//!
//! Databases and trees are processed by the programs that users have: `python3` with its module for
//! SQLite, `tar` and `rm`.

use crate::repository::Outcome;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of small files, in bytes. The benchmark `mdtest-hard` of IO500 uses the same size.
const SMALL_BYTES: usize = 3901;
/// Number of files in each directory of the tree.
const FILES_OF_DIRECTORY: u64 = 100;

pub(super) fn create_small(path: &Path) -> io::Result<()> {
    File::create_new(path)?.write_all(&[0x5a; SMALL_BYTES])
}

pub(super) fn read_small(path: &Path) -> io::Result<()> {
    let is_right = fs::read(path)? == [0x5a; SMALL_BYTES];
    is_right.then_some(()).ok_or_else(|| io::Error::other(format!("{path:?} has wrong contents")))
}

/// Runs a program in a directory, and checks that it succeeds.
fn run(command: &mut Command, directory: &Path) -> io::Result<()> {
    let status = command.current_dir(directory).stdin(Stdio::null()).status()?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| io::Error::other(format!("the command {command:?} failed: {status}")))
}

/// Commits transactions that each insert one row, and then checks the number of rows.
pub(super) fn commit_transactions(directory: &Path, count: u64) -> io::Result<()> {
    let text = "\
import sqlite3, sys
base = sqlite3.connect('base.sqlite', isolation_level=None)
base.execute('create table if not exists t (a integer primary key, b text)')
base.execute('delete from t')
for i in range(int(sys.argv[1])):
    base.execute('insert into t values (?, ?)', (i, 'x' * 100))
assert base.execute('select count(*) from t').fetchone()[0] == int(sys.argv[1])
";
    run(Command::new("python3").args(["-c", text, &count.to_string()]), directory)
}

/// Creates an archive of `files` files of up to 12 KiB each, in directories of 100 files.
///
/// # Errors
/// Describes a failed system call, or a failure of `tar`.
pub(crate) fn make_archive(directory: &Path, files: u64) -> Outcome {
    let make = || -> io::Result<()> {
        let tree = directory.join("tree");
        for index in 0..files {
            let parent = tree.join(format!("directory-{}", index / FILES_OF_DIRECTORY));
            if index % FILES_OF_DIRECTORY == 0 {
                fs::create_dir_all(&parent)?;
            }
            let bytes = (index * 37 % 12_289) as usize;
            fs::write(parent.join(format!("file-{index}")), vec![0x5a; bytes])?;
        }
        run(Command::new("tar").args(["-cf", "tree.tar", "tree"]), directory)?;
        fs::remove_dir_all(tree)
    };
    make().map_err(|error| format!("cannot create the archive in {}: {error}", directory.display()))
}

pub(super) fn unpack(directory: &Path, archive: &Path) -> io::Result<()> {
    run(Command::new("tar").arg("-xf").arg(archive), directory)
}

/// Packs the tree. The archive goes through a pipe, because `tar` does not read any file data if
/// the archive is `/dev/null`.
pub(super) fn pack(directory: &Path) -> io::Result<()> {
    run(Command::new("sh").args(["-c", "tar -cf - tree | cat >/dev/null"]), directory)
}

pub(super) fn remove(directory: &Path) -> io::Result<()> {
    run(Command::new("rm").args(["-r", "tree"]), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_archive_has_the_last_file_of_its_tree() {
        let directory = tempfile::tempdir().expect("a directory");
        make_archive(directory.path(), 250).expect("an archive");
        unpack(directory.path(), &directory.path().join("tree.tar")).expect("tar unpacks it");
        let tree = directory.path().join("tree");
        let last = fs::metadata(tree.join("directory-2/file-249")).expect("the last file");
        assert_eq!(last.len(), 249 * 37);
        pack(directory.path()).expect("tar packs it");
        remove(directory.path()).expect("rm removes it");
        assert!(!tree.exists());
    }

    #[test]
    fn a_small_file_with_wrong_contents_is_detected() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("small");
        create_small(&path).expect("a small file");
        read_small(&path).expect("the right contents");
        fs::write(&path, [0x5b; SMALL_BYTES]).expect("wrong contents");
        assert!(read_small(&path).is_err());
    }

    #[test]
    fn sqlite_workload_commits_all_transactions() {
        let directory = tempfile::tempdir().expect("a directory");
        commit_transactions(directory.path(), 3).expect("three transactions");
    }
}
