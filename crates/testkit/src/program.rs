//! Runs external programs with a deadline.

use crate::wait::eventually;
use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// The result of a program that has exited.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for failure messages.
    pub line: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the program's standard output, and checks that the program succeeded.
    ///
    /// # Panics
    /// Panics if the program failed. The message contains the program's output.
    pub fn expect_success(self) -> String {
        assert!(
            self.status.success(),
            "{}: {}\n{}{}",
            self.line,
            self.status,
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    /// Returns standard output followed by standard error, and checks that the program failed.
    ///
    /// # Panics
    /// Panics if the program succeeded or was killed by a signal.
    pub fn expect_failure(self) -> String {
        let code = self.status.code();
        assert!(
            code.is_some_and(|code| code != 0),
            "{} should have failed: {}\n{}{}",
            self.line,
            self.status,
            self.stdout,
            self.stderr
        );
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            from.read_to_end(&mut bytes).ok();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs a command, and waits until its program exits.
///
/// # Panics
/// Panics if the program cannot be started, or if the program still runs after `patience`. In the
/// second case, kills the program before the panic.
pub fn finish(command: &mut Command, patience: Duration) -> Finished {
    try_finish(command, patience).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a command like [`finish`], but returns an error instead of panicking. Destructors use this
/// function. A destructor must continue after a failed command, and a panic in a destructor would
/// end the whole test program.
///
/// # Errors
/// Returns a description of the failure if the program cannot be started, or if the program still
/// runs after `patience`. In the second case, also kills the program.
pub fn try_finish(command: &mut Command, patience: Duration) -> Result<Finished, String> {
    let line = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {line}: {error}"))?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let ended = eventually(patience, || child.try_wait().transpose());
    let status = match ended {
        Some((status, _)) => status.map_err(|error| format!("cannot wait for {line}: {error}"))?,
        None => {
            // Do not join the reader threads. These threads may never end, because a grandchild
            // process may have the pipes open.
            child.kill().ok();
            return Err(format!("{line} still runs after {patience:?}"));
        }
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(Finished { line, status, stdout: text(stdout), stderr: text(stderr) })
}

/// Runs a command in a destructor. If the command cannot be run, prints the error instead of
/// panicking.
pub fn clean_up(command: &mut Command) -> Option<Finished> {
    let ended = try_finish(command, Duration::from_secs(20));
    ended.inspect_err(|error| eprintln!("cannot clean up after the test: {error}")).ok()
}

/// Runs a system program in `directory`, and returns its standard output.
///
/// # Panics
/// Panics if the program fails or runs longer than five minutes.
pub fn run_in(
    directory: &Path,
    program: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> String {
    let mut command = Command::new(program);
    command.current_dir(directory).args(arguments);
    finish(&mut command, Duration::from_secs(300)).expect_success()
}

/// Runs a system program, and returns its standard output.
///
/// # Panics
/// Panics like [`run_in`].
pub fn run(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    run_in(Path::new("/"), program, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_and_missing_programs_are_reported_without_a_panic() {
        let mut command = Command::new("sleep");
        let error =
            try_finish(command.arg("1000"), Duration::ZERO).expect_err("the program never ends");
        assert!(error.contains("still runs after 0ns"), "{error}");
        assert!(clean_up(&mut Command::new("/no such program")).is_none());
    }
}
