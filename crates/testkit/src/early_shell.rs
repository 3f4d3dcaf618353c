//! A shell for commands that a test runs while a mount waits for an unreachable service. The shell
//! starts before the test opens files on mounts.
//!
//! While a test has files open on such a mount, the test must not start a process. Between `fork`
//! and the first instruction of the program, the kernel closes the inherited files in the child.
//! For each close, the kernel sends FLUSH to the mount, and waits for the reply. So a command that
//! makes the service reachable again would wait forever. The shell inherits no open file of a
//! mount.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Maximum run time of a command, in seconds.
const LONGEST_SECONDS: u32 = 60;
/// Prefix of the line in which the shell prints the exit status of a command.
const STATUS: &str = "exit status ";

/// A running shell. Dropping this value ends the shell.
#[derive(Debug)]
pub(crate) struct EarlyShell(Mutex<Pipes>);

#[derive(Debug)]
struct Pipes {
    child: Child,
    /// The shell's standard input. This field is `None` after `drop` has closed the standard input.
    commands: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl EarlyShell {
    /// Starts the shell.
    ///
    /// # Panics
    /// Panics if the program `sh` cannot be started.
    pub(crate) fn new() -> Self {
        let mut command = Command::new("sh");
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let commands = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self(Mutex::new(Pipes { child, commands, output }))
    }

    /// Runs a program with its arguments, waits until it ends, and returns its output.
    ///
    /// # Panics
    /// Panics like [`Self::try_run`], or if the program fails.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Runs a program with its arguments, waits until it ends, and returns its output. Each word
    /// must consist of ASCII letters, digits and the characters `-._/:`.
    ///
    /// # Errors
    /// Returns the command line and its output if the program fails or does not end within a
    /// minute.
    ///
    /// # Panics
    /// Panics if the shell has ended, or if a word contains another character.
    pub(crate) fn try_run(&self, words: &[&str]) -> Result<String, String> {
        let line = words.join(" ");
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-._/: ".contains(it);
        assert!(line.chars().all(is_plain), "the shell would interpret a character of `{line}`");
        let mut pipes = self.0.lock().expect("no panic");
        let script =
            format!("timeout {LONGEST_SECONDS} {line} </dev/null 2>&1; echo \"{STATUS}$?\"\n");
        let commands = pipes.commands.as_mut().expect("the shell runs");
        commands.write_all(script.as_bytes()).expect("the shell runs");
        let mut printed = String::new();
        let status = loop {
            let mut next = String::new();
            let length = pipes.output.read_line(&mut next).expect("the shell runs");
            assert!(length > 0, "the shell ended while it ran `{line}`: {printed}");
            match next.strip_prefix(STATUS) {
                Some(status) => break status.trim().to_owned(),
                None => printed += &next,
            }
        };
        if status == "0" { Ok(printed) } else { Err(format!("`{line}` failed: {printed}")) }
    }
}

impl Drop for EarlyShell {
    fn drop(&mut self) {
        let pipes = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The shell ends at the end of its input.
        pipes.commands = None;
        pipes.child.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_runs_several_commands_in_order() {
        let shell = EarlyShell::new();
        shell.run(&["true"]);
        shell.run(&["test", "-d", "/"]);
    }

    #[test]
    #[should_panic(expected = "`test -d /there-is-no-such-directory` failed")]
    fn panic_for_a_failed_command_names_its_command_line() {
        EarlyShell::new().run(&["test", "-d", "/there-is-no-such-directory"]);
    }
}
