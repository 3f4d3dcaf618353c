//! Finds the process that serves a mount, by the mount point on its command line, and detects the
//! end of this process.
//!
//! The module never accesses the mount itself. A request to a mount without servers may wait, and
//! an open path would keep the mount in use.

use crate::in_time::{LOOKUP_PATIENCE, within};
use crate::log_end::RestOfLog;
use crate::mounts::{MountEntry, mounts_of, resolved};
use crate::program::MOUNT_PROCESS;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A process that serves a mount, identified by its id and its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountProcess {
    pub(crate) id: u32,
    start: u64,
}

impl MountProcess {
    /// Returns the process that serves the mount on `mount_point`, which is a path of the mount
    /// table. `None` if no such process is visible: the process was killed, or the process runs in
    /// another container.
    pub(crate) fn of(mount_point: &Path) -> Option<Self> {
        let point = mount_point.to_owned();
        // The command line of a mount may contain paths in a file system that does not reply.
        within(LOOKUP_PATIENCE, move || newest(&point)).flatten()
    }

    /// Opens the log of the process, to read the lines that the process logs after this call.
    /// `None` if the log is not a regular file, or if this process may not read it.
    pub(crate) fn rest_of_log(&self) -> Option<RestOfLog> {
        let path = format!("/proc/{}/fd/2", self.id);
        // The file system of the log may not reply.
        let open = move || {
            // A read from a terminal or a pipe would take input from other programs.
            fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
            RestOfLog::from_now(File::open(&path).ok()?, &fs::read_link(&path).ok()?)
        };
        within(LOOKUP_PATIENCE, open).flatten()
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        skep_env::process_start_time(self.id) != Some(self.start)
    }
}

/// Returns the newest process that serves a mount on `point`. A mount that was detached lazily from
/// the same directory has an older process, which still serves the programs with open files.
fn newest(point: &Path) -> Option<MountProcess> {
    let serving = processes().filter(|id| serves(*id, point));
    let serving = serving
        .filter_map(|id| Some(MountProcess { id, start: skep_env::process_start_time(id)? }));
    serving.max_by_key(|process| (process.start, process.id))
}

/// Returns the ids of all processes.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether a process serves a mount on `point`.
fn serves(process: u32, point: &Path) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    if read("comm").trim_ascii_end() != MOUNT_PROCESS.as_bytes() || !shares_mounts(process) {
        return false;
    }
    let working = fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_else(|_| "/".into());
    let is_point = |argument: &[u8]| {
        let path = working.join(OsStr::from_bytes(argument));
        // A lookup of a path inside the mount could wait, and would keep the mount in use.
        path == point || (!path.starts_with(point) && resolved(&path) == point)
    };
    let line = read("cmdline");
    let arguments = line.split(|byte| *byte == 0).skip(1);
    arguments.filter(|text| !text.is_empty() && !text.starts_with(b"-")).any(is_point)
}

/// Whether a process has the same mount table as this process. Returns true if this process may not
/// read the mount table of the other process.
fn shares_mounts(process: u32) -> bool {
    let (own, other) = (mount_namespace("self"), mount_namespace(&process.to_string()));
    own.is_none() || other.is_none() || own == other
}

/// Returns the identity of the mount table of a process: `self` or a process id. `None` if this
/// process may not read the namespace.
fn mount_namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Another mount point on which an unmounted file system is still mounted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OtherPlace {
    /// A process whose mount table contains `point`. `None` means the mount table of this process.
    pub(crate) process: Option<u32>,
    pub(crate) point: PathBuf,
}

/// Returns a mount point on which the file system of the removed mount `unmounted` is still
/// mounted. Bind mounts and containers can cause such mount points. `None` if no mount table that
/// this process can read has such a mount point.
pub(crate) fn still_mounted(unmounted: &MountEntry) -> Option<OtherPlace> {
    let mut examined = BTreeSet::new();
    std::iter::once(None).chain(processes().map(Some)).find_map(|process| {
        let name = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
        if mount_namespace(&name).is_some_and(|namespace| !examined.insert(namespace)) {
            return None;
        }
        let is_same = |mount: &MountEntry| mount.is_of_skep() && mount.device == unmounted.device;
        let found = mounts_of(&name).into_iter().find(is_same)?;
        Some(OtherPlace { process, point: found.point })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A shell that has the name of a mount process, and waits for input. The shell is killed at
    /// the end of the test, even if the test fails.
    struct Server(Child);

    impl Server {
        fn start(directory: &Path, mount_point: &str) -> Self {
            let mut command = Command::new(directory.join(MOUNT_PROCESS));
            command.args(["-c", "read line", "mount", "--quiet", mount_point]);
            Self(command.current_dir(directory).stdin(Stdio::piped()).spawn().unwrap())
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            // If the test has ended the process, these errors are ignored.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Waits for the process that serves a mount, and returns this process. The kernel sets the
    /// name of a process a moment after the call that starts the process has returned.
    fn found_in_time(point: &Path) -> MountProcess {
        let began = std::time::Instant::now();
        loop {
            if let Some(found) = MountProcess::of(point) {
                return found;
            }
            assert!(began.elapsed().as_secs() < 10, "no process serves {}", point.display());
            std::thread::yield_now();
        }
    }

    #[test]
    fn process_of_a_mount_is_found_until_it_ends() {
        let scratch = tempfile::tempdir().unwrap();
        let place = scratch.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/bin/sh", place.join(MOUNT_PROCESS)).unwrap();
        std::os::unix::fs::symlink("mnt", place.join("link")).unwrap();
        let (point, other) = (place.join("mnt"), place.join("other"));
        fs::create_dir(&point).unwrap();
        assert_eq!(MountProcess::of(&point), None);
        for shown in [point.to_str().unwrap(), "mnt", "link"] {
            let mut server = Server::start(&place, shown);
            let found = found_in_time(&point);
            assert_eq!(found.id, server.0.id(), "{shown}");
            assert!(!found.has_ended());
            assert_eq!(MountProcess::of(&other), None);
            server.0.kill().unwrap();
            server.0.wait().unwrap();
            assert!(found.has_ended());
            assert_eq!(MountProcess::of(&point), None);
        }
    }
}
