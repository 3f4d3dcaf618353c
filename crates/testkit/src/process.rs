//! Finds the processes of a cluster by a directory on their command lines, and sends signals to
//! these processes.

use crate::files;
use crate::wait::wait_for;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Returns SIGINT, the signal of Ctrl-C. Returns SIGTERM if the test process ignores SIGINT,
/// because programs that this process starts inherit the ignored signal.
pub fn ctrl_c() -> Signal {
    let status = files::read_to_string("/proc/self/status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    // Bit 0 stands for the signal with the number 1.
    match (ignored.unwrap_or_default() >> (Signal::INT.as_raw() - 1)) & 1 {
        0 => Signal::INT,
        _ => Signal::TERM,
    }
}

/// A process of the cluster under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The command line.
    pub arguments: Vec<String>,
}

impl Process {
    /// Returns the first argument after the program's name, such as `metadata` or `mount`.
    pub fn role(&self) -> &str {
        self.arguments.get(1).map_or("", String::as_str)
    }

    /// Whether the process or one of its threads still runs. A zombie (an ended process whose
    /// parent has not yet reaped the process) counts as not running.
    pub fn runs(&self) -> bool {
        let alive = pid(self.pid).is_some_and(|pid| test_kill_process(pid).is_ok());
        let arguments = read_arguments(self.pid);
        let is_ending = || arguments.is_none() && threads(self.pid) > 1;
        alive && (arguments.as_ref() == Some(&self.arguments) || is_ending())
    }

    /// Returns a size in bytes from the status of the process in `/proc`, for example `VmRSS`.
    ///
    /// # Panics
    /// Panics if the process has ended, or if the kernel reports no such size.
    pub fn memory(&self, key: &str) -> u64 {
        let status = files::read_to_string(format!("/proc/{}/status", self.pid));
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let kib = value.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_else(|| panic!("no {key} of process {}:\n{status}", self.pid)) << 10
    }

    /// Sends a signal to the process if it is still running.
    pub fn signal(&self, signal: Signal) {
        if self.runs()
            && let Some(pid) = pid(self.pid)
        {
            kill_process(pid, signal).ok();
        }
    }

    /// Kills the process with SIGKILL, and waits until the process has exited.
    ///
    /// # Panics
    /// Panics if the process still runs after 20 seconds.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        wait_for("a killed process ends", Duration::from_secs(20), || (!self.runs()).then_some(()));
    }
}

/// Suspended processes. Dropping this value resumes the processes, even if a test fails. Without
/// this step, programs that wait for these processes would never end.
#[derive(Debug)]
pub struct Suspended(Vec<Process>);

impl Suspended {
    /// Suspends the processes.
    ///
    /// # Panics
    /// Panics if the list is empty.
    pub fn of(processes: Vec<Process>) -> Self {
        assert!(!processes.is_empty(), "a process to suspend");
        processes.iter().for_each(|process| process.signal(Signal::STOP));
        Self(processes)
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| process.signal(Signal::CONT));
    }
}

fn pid(raw: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(raw).ok()?)
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Returns the command line of a process. Returns `None` if the process has no command line,
/// because the process has exited or is a kernel thread.
fn read_arguments(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let arguments: Vec<_> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!text.is_empty()).then_some(arguments)
}

/// Whether `text` contains `path` or a path below `path`. For example, the text `/a/b-10` does not
/// contain the path `/a/b-1`.
fn names(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(start, _)| {
        let next = text[start + path.len()..].chars().next();
        !next.is_some_and(|it| it.is_alphanumeric() || matches!(it, '-' | '_' | '.'))
    })
}

/// Returns all processes of the program `skep` whose command lines contain `directory` or a path
/// below this directory, in ascending order of process ids.
///
/// # Panics
/// Panics if /proc cannot be read.
pub fn below(directory: &Path) -> Vec<Process> {
    let place = directory.to_string_lossy();
    let mut found: Vec<Process> = files::read_dir("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some(Process { pid, arguments: read_arguments(pid)? }))
        .filter(|process| {
            let is_skep = process.arguments.first().is_some_and(|name| name.ends_with("skep"));
            is_skep && process.arguments.iter().any(|argument| names(argument, &place))
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_path_with_the_same_prefix_selects_no_process() {
        assert!(names("/tmp/a-1", "/tmp/a-1"));
        assert!(names("--data=/tmp/a-1/data", "/tmp/a-1"));
        assert!(names("/tmp/a-10,/tmp/a-1,x", "/tmp/a-1"));
        assert!(!names("/tmp/a-10/data", "/tmp/a-1"));
        assert!(!names("/tmp/a-1.log", "/tmp/a-1"));
    }
}
