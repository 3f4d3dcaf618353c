//! Finds and kills the processes of a lab. A process is identified by its id and its start time, by
//! its network namespace, or by the environment variable of the lab.

use crate::limits::{END_PATIENCE, TICK};
use crate::names::{NAMESPACES, PROCESS_VARIABLE};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process of a lab, identified by its id and its start time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Name of the process, such as `storage` or `mount`.
    pub name: String,
    /// Name of the host on which the process runs.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in ticks of the kernel's clock since boot. A later process with
    /// the same id has a different start time.
    pub start_time: u64,
}

impl Process {
    /// Returns the process with the id `pid`, which has just been started. `None` means that the
    /// process has already ended.
    pub(crate) fn of(name: &str, host: &str, pid: u32) -> Option<Self> {
        let start_time = skep_env::process_start_time(pid)?;
        Some(Self { name: name.into(), host: host.into(), pid, start_time })
    }

    /// Whether the process is still running.
    pub fn runs(&self) -> bool {
        skep_env::process_start_time(self.pid) == Some(self.start_time)
    }
}

/// Returns the ids of all processes on this machine.
fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the identity of the namespace that a file represents: the device and the inode number of
/// the file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Whether a process has the environment variable of the lab. `up` sets the variable for the
/// processes that it starts, and their child processes inherit it.
fn is_marked(pid: u32, lab: &str) -> bool {
    let mark = format!("{PROCESS_VARIABLE}={lab}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// Returns the ids of all processes that run in one of these network namespaces, or that have the
/// environment variable of the lab. Omits this process.
pub(crate) fn of_lab(lab: &str, namespaces: &[String]) -> Vec<u32> {
    let inside: BTreeSet<_> =
        namespaces.iter().filter_map(|name| identity(&Path::new(NAMESPACES).join(name))).collect();
    // While a network namespace is being created, its file may be an ordinary file, or may
    // represent the network namespace of this machine. Skip such a file, because processes in the
    // namespace of this machine must not be found.
    let own = identity(Path::new("/proc/self/ns/net"));
    let is_inside = |pid: u32| {
        let identity = identity(Path::new(&format!("/proc/{pid}/ns/net")));
        identity.is_some_and(|it| inside.contains(&it) && Some(it) != own)
    };
    let mut found = all();
    found.retain(|pid| {
        *pid != std::process::id()
            && (is_inside(*pid) || is_marked(*pid, lab))
            && skep_env::process_start_time(*pid).is_some()
    });
    found
}

/// Returns the ids of the child processes of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let mut found = all();
    found.retain(|pid| skep_env::process_parent(*pid) == Some(parent));
    found
}

/// Kills all processes that `find` returns, and repeats the call of `find`. Ends when `find` has
/// returned no process two times in a row. One empty result is not enough, because a process gets
/// its environment variable a short time after its start. Returns the number of killed processes.
///
/// # Errors
/// Returns `TimedOut` with the ids of the processes that did not end in time.
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
                "cannot end the processes {left:?} of the lab: these processes still run after \
                 SIGKILL"
            );
            return Err(Error::new(ErrorCode::TimedOut, what));
        }
        for pid in left {
            killed.insert(pid);
            // Ignore the error, because the process may have ended in the meantime.
            let _ = skep_env::send_signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A child process that is killed at the end of the test, even if the test fails.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            // If the test has passed, the process has already ended, so this error is ignored.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn lab_processes_are_found_by_start_time_and_environment() {
        let lab = format!("t{}", std::process::id());
        let mut command = Command::new("sleep");
        let child = Ended(command.arg("1000").env(PROCESS_VARIABLE, &lab).spawn().unwrap());
        let pid = child.0.id();
        let process = Process::of("sleep", "c1", pid).unwrap();
        assert!(process.runs());
        let other = Process { start_time: process.start_time + 1, ..process.clone() };
        assert!(!other.runs());
        // The environment of a process becomes visible only a short time after the start of the
        // process.
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
