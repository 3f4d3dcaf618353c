//! The processes of a cluster that `skep up` runs. Starts and ends the processes, and detects their
//! exits.

use super::layout::Layout;
use crate::log_end::end_of;
use crate::program::program;
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Size at which a background process renames its log file to `FILE.old` and begins a new log file.
pub(crate) const LOG_LIMIT: ByteSize = ByteSize(16 << 20);
/// The pause between the first exit of a process and its restart. The pause doubles with each
/// further exit.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time for which a restarted process must run to count as recovered. After the exit of a recovered
/// process, the pause is [`FIRST_PAUSE`] again.
const RECOVERED: Duration = Duration::from_secs(30);

/// The role of a process. The processes of a cluster start in the order of the roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Management,
    Metadata,
    Storage,
    Mount,
    Monitor,
}

/// One process of the cluster.
#[derive(Debug)]
pub(crate) struct Service {
    /// Name of the process, such as `storage-1`, in messages and as the name of its directory.
    pub(crate) name: String,
    pub(crate) role: Role,
    arguments: Vec<String>,
    log: PathBuf,
    /// Length of the log file when the process was last started.
    log_start: u64,
    child: Option<Child>,
    started: Duration,
    pause: Duration,
    start_at: Option<Duration>,
    deaths: u32,
    /// Whether the process exited with code 0 without a request of the supervisor. The supervisor
    /// does not restart such a process.
    pub(crate) is_done: bool,
}

impl Service {
    /// Creates the record of a process that will run this program with `arguments`. Does not start
    /// the process.
    pub(crate) fn new(layout: &Layout, role: Role, name: &str, arguments: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            role,
            arguments,
            log: layout.log(name),
            log_start: 0,
            child: None,
            started: Duration::ZERO,
            pause: FIRST_PAUSE,
            start_at: None,
            deaths: 0,
            is_done: false,
        }
    }

    /// Starts the process, and appends its output to its log. `prepare` can change the command
    /// first.
    pub(crate) fn start(&mut self, prepare: impl FnOnce(&mut Command)) -> Result<()> {
        let mut command = program();
        command.args(&self.arguments).stdin(Stdio::null());
        let log = open_log(&self.log)?;
        self.log_start = log.metadata()?.len();
        command.stdout(log.try_clone()?).stderr(log);
        prepare(&mut command);
        let child = skep_env::spawn_child(&mut command).map_err(|error| {
            Error::from(error).within(format_args!("cannot start {}", self.name))
        })?;
        self.child = Some(child);
        self.started = skep_env::now();
        self.start_at = None;
        Ok(())
    }

    /// Returns the process id, or `None` while the process does not run.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the exit status if the process has exited since the last call.
    pub(crate) fn take_end(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Records that the process has exited, and schedules its restart. Returns a message for people
    /// about the exit status and the pause before the restart.
    pub(crate) fn note_death(&mut self, status: ExitStatus) -> String {
        let now = skep_env::now();
        if now - self.started > RECOVERED {
            self.pause = FIRST_PAUSE;
        }
        self.deaths += 1;
        self.start_at = Some(now + self.pause);
        let line = format!(
            "{} exited unexpectedly ({}); the supervisor restarts this process in {:.1} s (restart \
             {}; log: {})",
            self.name,
            describe(status),
            self.pause.as_secs_f64(),
            self.deaths,
            self.log.display()
        );
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        line
    }

    /// Whether the time of a scheduled restart has come.
    pub(crate) fn is_due(&self) -> bool {
        self.start_at.is_some_and(|due| skep_env::now() >= due)
    }

    /// Postpones the next restart after an attempt to start the process failed.
    pub(crate) fn put_off(&mut self) {
        self.start_at = Some(skep_env::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Sends a signal to the process if it runs.
    pub(crate) fn signal(&mut self, signal: i32) {
        self.start_at = None;
        if let Some(process) = self.process() {
            // An error means that the process has just exited, so the signal is no longer needed.
            let _ = skep_env::send_signal(process, signal);
        }
    }

    /// Returns the last lines that the process has logged since its start.
    pub(crate) fn tail(&self) -> String {
        tail(&self.log, self.log_start, 5)
    }

    /// Returns the error for a cluster that cannot start because this process has exited.
    /// The error contains the last lines of the log.
    pub(crate) fn failed(&self, status: ExitStatus) -> Error {
        let tail = self.tail();
        Error::new(
            ErrorCode::NotReady,
            format!(
                "cannot start the cluster: {} ended ({}):\n{tail}\nFull log: {}",
                self.name,
                describe(status),
                self.log.display()
            ),
        )
    }
}

/// Opens a log file for appending. Creates the file and its directory if missing.
pub(crate) fn open_log(path: &Path) -> Result<std::fs::File> {
    let named = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot open the log file {}", path.display()))
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(named)?;
    }
    OpenOptions::new().create(true).append(true).open(path).map_err(named)
}

/// Describes for people how a process ended.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), _) => format!("exit code {code}"),
        (None, None) => "unknown reason".into(),
    }
}

/// Returns the last error message that a process of this program has printed before its end. The
/// message is the text after the last `skep: ` that begins a line of the log after the byte `from`.
/// `None` means that no such line exists.
pub(crate) fn last_error(path: &Path, from: u64) -> Option<String> {
    error_in(&String::from_utf8_lossy(&end_of(path, from)))
}

fn error_in(log: &str) -> Option<String> {
    const BEGIN: &str = "skep: ";
    let at = match log.rfind(&format!("\n{BEGIN}")) {
        Some(at) => at + 1,
        None => log.starts_with(BEGIN).then_some(0)?,
    };
    Some(log[at + BEGIN.len()..].trim_end().to_owned())
}

/// Returns the last lines that a text file contains after the byte `from`, indented. A file that is
/// shorter than `from` is a new log, so the function uses the whole content of this file.
pub(crate) fn tail(path: &Path, from: u64, lines: usize) -> String {
    let bytes = end_of(path, from);
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let last = &all[all.len().saturating_sub(lines)..];
    last.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_an_ended_process_is_read_from_its_log() {
        let log = "Starting.\nskep: a warning\nskep: cannot start the cluster: mount ended:\n  \
                   no disk\n";
        let expected = "cannot start the cluster: mount ended:\n  no disk";
        assert_eq!(error_in(log).as_deref(), Some(expected));
        assert_eq!(error_in("skep: no\n").as_deref(), Some("no"));
        assert_eq!(error_in("WARN skep: no\n"), None);
    }
}
