//! Starts child processes of a supervisor, sends signals to processes, and detects the end of
//! processes. Children start with all signals unblocked. Most kinds of children are terminated when
//! the supervisor ends.

use crate::signals::Signals;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a child process in a new process group, so that Ctrl-C on the terminal reaches only the
/// parent of the child. When the calling thread ends, for any reason, the kernel sends `SIGTERM` to
/// the child.
///
/// # Errors
/// Returns the errors of `Command::spawn`.
pub fn spawn_child(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions are called, and no memory is
    // allocated.
    unsafe {
        command.pre_exec(move || {
            Signals::unblock_all();
            end_with_parent(parent)
        })
    };
    command.spawn()
}

/// Asks the kernel to send `SIGTERM` to this process when the thread that started it ends. For use
/// in `pre_exec`.
fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: the call takes no pointers and is async-signal-safe.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // If the parent ended before the call above, the kernel sends no signal. So check the parent.
    // SAFETY: the call takes no pointers and is async-signal-safe.
    if unsafe { libc::getppid() } as u32 == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Starts a process that continues when its parent ends. The process gets a new session without a
/// terminal.
///
/// # Errors
/// Returns the errors of `Command::spawn`.
pub fn spawn_detached(command: &mut Command) -> io::Result<Child> {
    // SAFETY: between fork and exec only async-signal-safe functions are called, and no memory is
    // allocated.
    unsafe {
        command.pre_exec(|| {
            Signals::unblock_all();
            begin_session()
        })
    };
    command.spawn()
}

/// Like [`spawn_detached`], with one difference: when the calling thread ends, for any reason, the
/// kernel sends `SIGTERM` to the process. The kernel no longer sends this signal after the process
/// has called [`outlive_parent`].
///
/// # Errors
/// Returns the errors of `Command::spawn`.
pub fn spawn_detaching(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe functions are called, and no memory is
    // allocated.
    unsafe {
        command.pre_exec(move || {
            Signals::unblock_all();
            begin_session()?;
            end_with_parent(parent)
        })
    };
    command.spawn()
}

/// Lets this process continue when its parent ends, although the process was started so that it
/// ends with its parent. The caller must run on the process's first thread, because the kernel
/// stores the signal for that thread.
pub fn outlive_parent() {
    // SAFETY: the call takes no pointers. The value zero means no signal, and the kernel never
    // refuses this value.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

/// Detaches this process from its terminal by starting a new session. For use in `pre_exec`.
fn begin_session() -> io::Result<()> {
    // SAFETY: the call takes no pointers and is async-signal-safe.
    if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets only the owner access the files and directories that this process, or a child of this
/// process, creates after this call.
pub fn restrict_new_files() {
    // SAFETY: the call takes no pointers and never fails.
    unsafe { libc::umask(0o077) };
}

/// Redirects standard error to a file. If `both` is set, redirects standard output too.
///
/// # Errors
/// Returns the errors of `dup2(2)`.
pub fn replace_output(file: &std::fs::File, both: bool) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let from = file.as_raw_fd();
    let replace = |to| {
        // SAFETY: the call takes no pointers. The descriptors `from` and `to` are open, and `to`
        // stays open during the whole call.
        if unsafe { libc::dup2(from, to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    replace(libc::STDERR_FILENO)?;
    if both { replace(libc::STDOUT_FILENO) } else { Ok(()) }
}

/// Sends a signal to a process.
///
/// # Errors
/// - `ESRCH`: there is no such process.
/// - `EPERM`: the process belongs to a different user.
pub fn send_signal(process: u32, signal: i32) -> io::Result<()> {
    let process = i32::try_from(process).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // For `kill(2)`, zero and negative numbers mean process groups.
    if process < 1 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the call takes no pointers.
    if unsafe { libc::kill(process, signal) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends a signal to the process group of `leader`: a child of [`spawn_child`] and all processes
/// that this child has started.
///
/// # Errors
/// Returns the errors of [`send_signal`].
pub fn send_group_signal(leader: u32, signal: i32) -> io::Result<()> {
    let group = i32::try_from(leader).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // For `kill(2)`, 0 means the caller's own group, and -1 means all processes.
    if group <= 1 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the call takes no pointers.
    if unsafe { libc::kill(-group, signal) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the fields in `/proc/PID/stat` after the name of the process. The name itself may
/// contain any characters, including blanks and parentheses.
fn stat_fields(process: u32) -> Option<Vec<String>> {
    let bytes = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Index of the field with the state of the process, in the fields after the name. The other
/// indexes below are counted in the same way.
const STATE_FIELD: usize = 0;
const PARENT_FIELD: usize = 1;
const START_FIELD: usize = 19;

/// Returns the start time of a process, in ticks of the kernel's clock since boot. A later process
/// with the same id has a different start time. `None` means that no process with this id is
/// running. A process that has ended does not count as running, even if its parent has not
/// collected its exit status yet.
pub fn process_start_time(process: u32) -> Option<u64> {
    let fields = stat_fields(process)?;
    let has_ended = matches!(fields.get(STATE_FIELD)?.as_str(), "Z" | "X");
    // A process whose main thread has ended may still have other threads, so it is still running.
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    if has_ended && threads() < 2 {
        return None;
    }
    fields.get(START_FIELD)?.parse().ok()
}

/// Returns the id of the parent of a process. `None` means that there is no process with this id.
pub fn process_parent(process: u32) -> Option<u32> {
    stat_fields(process)?.get(PARENT_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn process_has_a_start_time_until_it_ends() {
        let mut child = spawn_child(Command::new("sleep").arg("1000")).unwrap();
        let start = process_start_time(child.id());
        assert!(start.is_some() && process_start_time(child.id()) == start);
        assert_eq!(process_parent(child.id()), Some(std::process::id()));
        send_signal(child.id(), libc::SIGKILL).unwrap();
        child.wait().unwrap();
        assert_eq!(process_start_time(child.id()), None);
        assert_eq!(process_parent(child.id()), None);
    }

    #[test]
    fn child_receives_signals_that_its_parent_blocks() {
        let _taken = Signals::take(&[libc::SIGUSR1]).unwrap();
        let mut child = spawn_child(Command::new("sleep").arg("1000")).unwrap();
        send_signal(child.id(), libc::SIGUSR1).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGUSR1));
        let gone = send_signal(child.id(), 0);
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn signal_to_a_process_group_reaches_all_its_processes() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]).stdout(std::process::Stdio::piped());
        let mut child = spawn_child(&mut command).unwrap();
        send_group_signal(child.id(), libc::SIGTERM).unwrap();
        // The pipe ends only when no process of the group has it open.
        let mut rest = Vec::new();
        let mut stdout = child.stdout.take().unwrap();
        std::io::Read::read_to_end(&mut stdout, &mut rest).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(send_group_signal(1, libc::SIGTERM).is_err());
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        for start in [spawn_child, spawn_detaching] {
            let body = move || start(Command::new("sleep").arg("1000")).unwrap();
            let mut child = std::thread::spawn(body).join().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        }
    }
}
