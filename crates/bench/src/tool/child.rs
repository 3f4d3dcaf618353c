//! Runs an external program as a child process of a worker.

use crate::launcher::{Control, STOPPED};
use crate::limits::{KEPT_ERRORS_BYTES, MAX_OUTPUT_BYTES, TOOL_END_PATIENCE, TOOL_LOOK};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// The output of a program, and the time at which it ended, in seconds since boot.
pub(super) struct Printed {
    pub(super) text: String,
    pub(super) end_s: f64,
}

/// Reads a stream until it ends, and returns its first bytes, at most `keep`.
fn drain(mut from: impl Read, keep: usize) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let free = keep.saturating_sub(kept.len()).min(len);
        kept.extend_from_slice(&buffer[..free]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// A child process in its own process group. The drop of this value ends all processes of the
/// group.
struct Group(Child);

impl Group {
    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // Ignores an error, because the processes may already have exited.
        let _ = group.map(|group| kill_process_group(group, signal));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // On SIGTERM, `mpirun` also ends the processes that it has started on other hosts. On
        // SIGKILL, `mpirun` leaves these processes running.
        self.signal(Signal::TERM);
        let deadline = skep_env::now() + TOOL_END_PATIENCE;
        while skep_env::now() < deadline && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::park_timeout(TOOL_LOOK);
        }
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs a command until it exits or the phase is aborted.
///
/// # Errors
/// A text for users. The error contains the reason why the command could not be started, or its
/// exit status and the end of its output.
pub(super) fn run(command: &[String], control: &Control) -> Result<Printed, String> {
    let [program, arguments @ ..] = command else {
        return Err("cannot run the program: the command is empty".into());
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn();
    let mut child = Group(child.map_err(|error| format!("cannot start {program}: {error}"))?);
    let (Some(output), Some(errors)) = (child.0.stdout.take(), child.0.stderr.take()) else {
        return Err(format!("cannot read the output of {program}: the program has no pipes"));
    };
    let (finished, waits) = sync_channel::<(String, f64)>(1);
    let read = move || {
        let text = drain(output, MAX_OUTPUT_BYTES);
        // The end of the output counts as the time at which the command ended.
        let _ = finished.send((text, skep_env::now().as_secs_f64()));
    };
    let failed = |error: std::io::Error| error.to_string();
    drop(skep_env::spawn_thread("output".into(), None, read).map_err(failed)?);
    let complaints =
        skep_env::spawn_thread("errors".into(), None, || drain(errors, KEPT_ERRORS_BYTES as usize))
            .map_err(failed)?;
    let (text, end_s) = loop {
        match waits.recv_timeout(TOOL_LOOK) {
            Ok(printed) => break printed,
            Err(RecvTimeoutError::Timeout) if !control.is_aborted() => {}
            Err(RecvTimeoutError::Timeout) => return Err(STOPPED.into()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("cannot read the output of {program}"));
            }
        }
    };
    let status = child.0.wait().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(Printed { text, end_s });
    }
    let said = complaints.join().unwrap_or_default();
    let said = if said.trim().is_empty() { last_lines(&text) } else { said };
    Err(format!("{program} ended with {status}: {}", said.trim()))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn sh(script: &str, control: &Control) -> Result<Printed, String> {
        run(&["sh", "-c", script].map(str::to_owned), control)
    }

    #[test]
    fn output_and_failure_of_a_program_are_returned() {
        let control = Control::default();
        let before = skep_env::now().as_secs_f64();
        let printed = sh("echo one; echo two", &control).ok().unwrap();
        assert_eq!(printed.text, "one\ntwo\n");
        assert!(printed.end_s > before);
        let failed = sh("echo out; echo why >&2; exit 3", &control).err().unwrap();
        assert!(failed.contains("why") && failed.contains('3'), "{failed}");
        let failed = sh("echo out; exit 3", &control).err().unwrap();
        assert!(failed.contains("out"), "{failed}");
        let failed = run(&["/no/such/program".into()], &control).err().unwrap();
        assert!(failed.contains("/no/such/program"), "{failed}");
    }

    #[test]
    fn an_aborted_phase_ends_the_program_and_its_children() {
        let control = Arc::new(Control::default());
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pid");
        let script = format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", file.display());
        let seen = Arc::clone(&control);
        let run = move || sh(&script, &seen).err();
        let running = skep_env::spawn_thread("run".into(), None, run).unwrap();
        let deadline = skep_env::now() + Duration::from_secs(30);
        while !file.exists() && skep_env::now() < deadline {
            std::thread::park_timeout(TOOL_LOOK);
        }
        let pid = std::fs::read_to_string(&file).unwrap();
        control.abort();
        assert!(
            running
                .join()
                .unwrap()
                .unwrap()
                .contains("another process of the benchmark has failed")
        );
        // A process that has inherited the pipe from the command may not have exited yet.
        let has_ended = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.map_or(true, |it| it.contains(") Z"))
        };
        while !has_ended() && skep_env::now() < deadline {
            std::thread::park_timeout(TOOL_LOOK);
        }
        assert!(has_ended());
    }
}
