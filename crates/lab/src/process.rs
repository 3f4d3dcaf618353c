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
    /// Its role: `storage`, `mount`, ...
    pub name: String,
    /// The host that it runs on.
    pub host: String,
    /// Its id.
    pub pid: u32,
    /// Start time in ticks of the kernel's clock since boot. It differs for a later process with
    /// the same id.
    pub start_time: u64,
}

/// Fields of `/proc/<pid>/stat` after the name, which may contain any character.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Indexes of fields, counted from the first one after the name.
const STATE_FIELD: usize = 0;
const PARENT_FIELD: usize = 1;
const START_FIELD: usize = 19;

/// Start time of a process. `None` means that no such process runs.
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
    /// The process with an id that was just started.
    pub(crate) fn of(name: &str, host: &str, pid: u32) -> Option<Self> {
        let start_time = start_time(pid)?;
        Some(Self { name: name.into(), host: host.into(), pid, start_time })
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// Ids of all processes.
fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The identity of a namespace behind a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Whether a process was started for a lab, directly or by another process of the lab.
fn is_marked(pid: u32, lab: &str) -> bool {
    let mark = format!("{PROCESS_VARIABLE}={lab}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// All processes but this one that run in these namespaces, or carry the lab's mark.
pub(crate) fn of_lab(lab: &str, namespaces: &[String]) -> Vec<u32> {
    let inside: BTreeSet<_> =
        namespaces.iter().filter_map(|name| identity(&Path::new(NAMESPACES).join(name))).collect();
    // The file of an incomplete namespace is a plain file, or refers to the namespace of this
    // machine.
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

/// The children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let mut found = all();
    found.retain(|pid| {
        stat_fields(*pid).is_some_and(|fields| fields.get(PARENT_FIELD) == Some(&parent))
    });
    found
}

/// Kills all processes that `find` returns, until it returns none twice in a row: a starting
/// process gets its mark a moment later. Returns the number of killed processes.
///
/// # Errors
/// `TimedOut` with the processes that do not end.
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
            // It may have ended a moment ago.
            let _ = skep_env::send_signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Ended whatever becomes of the test.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            // It has ended already, in a test that passed.
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
        // The kernel shows its environment a moment after the start.
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
