//! Directories for tests. A directory is removed at the end of its test, even if the test fails.

use crate::{process, program, wait::eventually};
use rustix::process::Signal;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A new directory. Dropping this value (also during a panic) kills the Skep processes that use the
/// directory, unmounts all mounts below the directory, and removes the directory. If the
/// environment variable `SKEP_TEST_KEEP` is set, the directory is not removed.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory in the directory that the environment variable `SKEP_TEST_DIRECTORY`
    /// names. If the variable is not set, creates the new directory in the system's directory for
    /// temporary files.
    ///
    /// # Panics
    /// Panics if the directory cannot be created.
    pub fn new() -> Self {
        let parent =
            std::env::var_os("SKEP_TEST_DIRECTORY").map_or_else(std::env::temp_dir, PathBuf::from);
        fs::create_dir_all(&parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
        let path = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("skep-test-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // An earlier process with the same process id created this directory and was
                // killed. So try the next name.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        };
        Self(path.canonicalize().expect("just made"))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the subdirectory `name` if this subdirectory does not exist, and returns its path.
    ///
    /// # Panics
    /// Panics if the subdirectory cannot be created.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Returns the path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns all mount points at or below `directory`, the innermost mount points first.
pub fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut found: Vec<_> = points.filter(|point| point.starts_with(directory)).collect();
    found.reverse();
    found
}

/// Kills all Skep processes that use `directory`, and waits until these processes have ended.
pub fn kill_processes(directory: &Path) {
    // Kill the supervisor first, because the supervisor would restart the other processes.
    let (supervisors, others): (Vec<_>, Vec<_>) =
        process::below(directory).into_iter().partition(|process| process.role() == "up");
    for process in supervisors.iter().chain(&others) {
        process.signal(Signal::KILL);
    }
    eventually(Duration::from_secs(10), || {
        let left = process::below(directory);
        left.iter().for_each(|process| process.signal(Signal::KILL));
        left.is_empty().then_some(())
    });
}

/// Kills all Skep processes that use `directory`, and unmounts all mounts at or below this
/// directory.
pub fn clear(directory: &Path) {
    kill_processes(directory);
    for point in mounts_below(directory) {
        let mut command = Command::new("umount");
        program::clean_up(command.arg("--lazy").arg(&point));
    }
}

/// Prints the last lines of all logs below `directory`, so that the output of CI shows the cause of
/// a failure.
fn print_logs(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        // Skip mount points. A stat of a mount point may block forever, and no logs are below a
        // mount point.
        if path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("mnt")) {
            continue;
        }
        if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir()) {
            print_logs(&path);
        } else if path.extension().is_some_and(|it| it == "log") {
            let bytes = fs::read(&path).unwrap_or_default();
            // The transaction log of a metadata target is binary.
            if bytes.contains(&0) {
                continue;
            }
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<_> = text.lines().collect();
            eprintln!("--- {}", path.display());
            lines[lines.len().saturating_sub(25)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Print the logs before unmounting, because the logs may be on a mounted disk.
            print_logs(&self.0);
        }
        clear(&self.0);
        if std::env::var_os("SKEP_TEST_KEEP").is_some() {
            eprintln!("SKEP_TEST_KEEP is set, so {} is not removed", self.0.display());
        } else if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove the directory {}: {error}", self.0.display());
        }
    }
}
