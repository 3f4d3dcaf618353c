//! The processes of a lab, identified by process id and start time, by namespace, and by a mark in
//! their environment.

use crate::limits::{END_PATIENCE, TICK};
use crate::names::{NAMESPACES, PROCESS_VARIABLE};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process that was started for a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Role of the process, such as `storage` or `mount`.
    pub name: String,
    /// Name of the host on which the process runs.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Start time in ticks of the kernel's clock since boot. A later process with the same id has a
    /// different start time.
    pub start_time: u64,
}

/// Returns the fields of `/proc/<pid>/stat` after the process name. The name may contain any
/// character.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Indexes of fields in `/proc/<pid>/stat`, counted from zero at the first field after the name.
const STATE_FIELD: usize = 0;
const PARENT_FIELD: usize = 1;
const START_FIELD: usize = 19;

/// Returns the start time of a process. `None` means that no such process runs.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    let has_ended = matches!(fields.get(STATE_FIELD)?.as_str(), "Z" | "X");
    // A process whose first thread has ended may still have other threads.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if has_ended && threads() < 2 {
        return None;
    }
    fields.get(START_FIELD)?.parse().ok()
}

impl Process {
    /// Returns the process with the id `pid`, which was just started. `None` means that the process
    /// has exited.
    pub(crate) fn of(name: &str, host: &str, pid: u32) -> Option<Self> {
        let start_time = start_time(pid)?;
        Some(Self { name: name.into(), host: host.into(), pid, start_time })
    }

    /// Whether the process still runs.
    pub fn runs(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// Returns the ids of all processes of this machine.
fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the identity of the namespace to which a file refers: device and inode number.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Whether a process has a lab's mark. A process gets the mark if `up` or another process of the
/// lab starts it.
fn is_marked(pid: u32, lab: &str) -> bool {
    let mark = format!("{PROCESS_VARIABLE}={lab}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// Returns the ids of all processes but this one that run in one of these namespaces or have the
/// lab's mark.
pub(crate) fn of_lab(lab: &str, namespaces: &[String]) -> Vec<u32> {
    let inside: BTreeSet<_> =
        namespaces.iter().filter_map(|name| identity(&Path::new(NAMESPACES).join(name))).collect();
    // While a namespace is being created, its file is a plain file or refers to this machine's own
    // namespace. The result must not contain processes in this machine's own namespace.
    let own = identity(Path::new("/proc/self/ns/net"));
    let is_inside = |pid: u32| {
        let identity = identity(Path::new(&format!("/proc/{pid}/ns/net")));
        identity.is_some_and(|it| inside.contains(&it) && Some(it) != own)
    };
    let mut found = all();
    found.retain(|pid| {
        *pid != std::process::id()
            && (is_inside(*pid) || is_marked(*pid, lab))
            && start_time(*pid).is_some()
    });
    found
}

/// Returns the ids of the children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let mut found = all();
    found.retain(|pid| {
        stat_fields(*pid).is_some_and(|fields| fields.get(PARENT_FIELD) == Some(&parent))
    });
    found
}

/// Kills all processes that `find` returns, until `find` returns none twice in a row. One empty
/// result is not enough, since a starting process gets its mark a short time after its start.
/// Returns the number of killed processes.
///
/// # Errors
/// Returns `TimedOut` with the processes that do not exit in time.
pub(crate) fn kill_all(find: impl Fn() -> Vec<u32>) -> Result<usize> {
    let deadline = skep_env::now() + END_PATIENCE;
    let mut killed = BTreeSet::new();
    let mut was_empty = false;
    loop {
        let left = find();
        if left.is_empty() && was_empty {
            return Ok(killed.len());
        }
        was_empty = left.is_empty();
        if skep_env::now() > deadline {
            let what = format!(
                "cannot end the processes {left:?} of the lab: they are still \
                                running after SIGKILL"
            );
            return Err(Error::new(ErrorCode::TimedOut, what));
        }
        for pid in left {
            killed.insert(pid);
            // An error is ignored, since the process may have just exited.
            let _ = skep_env::send_signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A child process that is killed even if the test fails.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            // If the test passed, the process has exited already.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn processes_are_identified_by_start_time_and_mark() {
        let lab = format!("t{}", std::process::id());
        let mut command = Command::new("sleep");
        let child = Ended(command.arg("1000").env(PROCESS_VARIABLE, &lab).spawn().unwrap());
        let pid = child.0.id();
        let process = Process::of("sleep", "c1", pid).unwrap();
        assert!(process.runs());
        let other = Process { start_time: process.start_time + 1, ..process.clone() };
        assert!(!other.runs());
        // The kernel shows the environment of a process only a short time after the start.
        let deadline = skep_env::now() + END_PATIENCE;
        while of_lab(&lab, &[]).is_empty() {
            assert!(skep_env::now() < deadline);
        }
        assert_eq!(of_lab(&lab, &[]), [pid]);
        assert_eq!(of_lab(&lab[..lab.len() - 1], &[]), Vec::<u32>::new());
        assert!(children(std::process::id()).contains(&pid));
        assert_eq!(kill_all(|| of_lab(&lab, &[])).unwrap(), 1);
        assert!(!process.runs());
    }
}
