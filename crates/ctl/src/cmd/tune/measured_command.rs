//! Runs the command that `skep tune measure` measures, and ends this command at a signal.
//!
//! Ctrl-C must not end `skep` while changed settings are in effect. So `skep` passes SIGINT,
//! SIGTERM and SIGHUP on to the command, restores the settings, and then ends.

use crate::ending_signals::EndingSignals;
use skep_types::{Error, ErrorCode, Result};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether a signal has interrupted the measurement.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Id of the running command, which leads a process group. Zero means that no command runs.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Starts a thread that waits for signals, and that sends each signal to the command too. A second
/// signal kills the command. The caller must call this function before any other thread starts.
///
/// # Errors
/// Returns an error if the process is out of file descriptors or threads.
pub(super) fn follow_signals() -> Result<()> {
    EndingSignals::block()?.follow(|number| {
        let is_second = IS_INTERRUPTED.swap(true, Ordering::SeqCst);
        send(if is_second { libc::SIGKILL } else { number });
    })
}

/// Sends a signal to the command and to the processes that the command has started.
fn send(number: i32) {
    // An error means that no command runs.
    skep_env::send_group_signal(RUNNING.load(Ordering::SeqCst), number).ok();
}

/// Returns an error if a signal has interrupted the measurement.
///
/// # Errors
/// `Interrupted`.
pub(super) fn check_signals() -> Result<()> {
    if !IS_INTERRUPTED.load(Ordering::SeqCst) {
        return Ok(());
    }
    let what = "cannot measure settings: a signal interrupted the measurement; all settings have \
                their former values, so repeat the command";
    Err(Error::new(ErrorCode::Interrupted, what))
}

/// Runs a command to its end, and returns its output.
///
/// # Errors
/// The error of the kernel that refuses to start the command.
pub(super) fn run(command: &mut Command) -> std::io::Result<Output> {
    let child = skep_env::spawn_child(command)?;
    RUNNING.store(child.id(), Ordering::SeqCst);
    // If a signal arrived before `RUNNING` had the id of the command, the command has not received
    // this signal.
    if IS_INTERRUPTED.load(Ordering::SeqCst) {
        send(libc::SIGTERM);
    }
    let output = child.wait_with_output();
    RUNNING.store(0, Ordering::SeqCst);
    output
}
