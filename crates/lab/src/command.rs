//! Runs the programs of the operating system that a lab needs.

use crate::names::PROCESS_VARIABLE;
use skep_types::{Error, ErrorCode, Result};
use std::io::Write;
use std::process::{Command, Stdio};

/// The programs that a lab needs, each with the Debian package that contains it.
pub(crate) const NEEDED: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("umount", "mount"),
];

/// Returns a command with the environment variable [`PROCESS_VARIABLE`], which marks its process as
/// a process of the lab. Later, `down` finds the process by this variable.
pub(crate) fn marked(lab: &str, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env(PROCESS_VARIABLE, lab);
    command
}

/// Runs a command until it exits. Returns the standard output of the command.
///
/// # Errors
/// Returns `Io` if the command fails. The error contains the command and its standard error.
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

/// Runs `ip`. `line` contains the arguments, separated by blanks.
pub(crate) fn ip(lab: &str, line: &str) -> Result<String> {
    call(marked(lab, "ip").args(line.split(' ')))
}

/// Runs several lines of `ip` in a network namespace, in one process.
///
/// # Errors
/// Returns `Io` if a line fails. The error contains the standard error of `ip`.
pub(crate) fn ip_lines(lab: &str, namespace: &str, lines: &str) -> Result<()> {
    let failed = |what: &str| {
        let what = format!("cannot run `ip -n {namespace} -batch -`: {}", what.trim());
        Error::new(ErrorCode::Io, what)
    };
    let mut command = marked(lab, "ip");
    command.args(["-n", namespace, "-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
    let mut input = child.stdin.take().expect("the standard input is a pipe");
    // If `ip` ends before it has read all lines, the standard error of `ip` has the reason.
    let written = input.write_all(lines.as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    written.map_err(|error| failed(&error.to_string()))
}

/// Runs `tc`. `line` contains the arguments, separated by blanks.
pub(crate) fn tc(lab: &str, line: &str) -> Result<String> {
    call(marked(lab, "tc").args(line.split(' ')))
}
