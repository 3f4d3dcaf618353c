//! Runs the system programs that a lab needs.

use crate::names::PROCESS_VARIABLE;
use skep_types::{Error, ErrorCode, Result};
use std::process::{Command, Stdio};

/// The required programs, each with its Debian package.
pub(crate) const NEEDED: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("umount", "mount"),
];

/// Returns a command that has a lab's mark in its environment. `down` finds the process of the
/// command by this mark.
pub(crate) fn marked(lab: &str, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env(PROCESS_VARIABLE, lab);
    command
}

/// Runs a system command until it exits. Returns its standard output.
///
/// # Errors
/// Returns `Io` with the command and its standard error if the command fails.
pub(crate) fn call(command: &mut Command) -> Result<String> {
    let error_text = match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let what = format!("cannot run `{}`: {}", words.join(" "), error_text.trim());
    Err(Error::new(ErrorCode::Io, what))
}

/// Runs `ip` with the arguments in `line`, which are separated by blanks.
pub(crate) fn ip(lab: &str, line: &str) -> Result<String> {
    call(marked(lab, "ip").args(line.split(' ')))
}

/// Runs `tc` with the arguments in `line`, which are separated by blanks.
pub(crate) fn tc(lab: &str, line: &str) -> Result<String> {
    call(marked(lab, "tc").args(line.split(' ')))
}
