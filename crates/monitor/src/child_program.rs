//! Runs programs of the host with a time limit. The event loop does not wait for these programs.

use rustix::process::{Pid, Signal, kill_process_group};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Interval at which the monitor checks whether a program has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs a program, and waits for its end. After `patience`, kills the program and the processes
/// that it has started. The caller sets the input and the output of the program.
///
/// # Errors
/// A description of the problem: the program cannot be started, or was killed.
pub(crate) async fn run_limited(
    command: &mut Command,
    patience: Duration,
) -> Result<ExitStatus, String> {
    let mut child = skep_env::spawn_child(command).map_err(|error| error.to_string())?;
    let deadline = skep_env::now() + patience;
    let mut is_killed = false;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(_) if is_killed => {
                return Err(format!("the program ran longer than {patience:?} and was killed"));
            }
            Some(status) => return Ok(status),
            None if !is_killed && skep_env::now() > deadline => {
                // The program has its own process group, so the signal reaches the children of the
                // program, too.
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                is_killed = true;
            }
            // A killed program does not end while it waits for a file system that hangs. Only the
            // calling task waits for the end, and not the whole thread.
            None => skep_env::sleep(PAUSE).await,
        }
    }
}
