//! How commands report a failure: the message as text or JSON, and the exit code.
//!
//! Scripts rely on the exit codes, which docs/operations/output.md lists.

use crate::near_misses;
use crate::output::{is_for_people, say_aside, warn};
use clap::Command;
use serde::Serialize;
use skep_types::{Error, ErrorCode};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code: the command failed.
const FAILED: u8 = 1;
/// Exit code: the command line or a settings file is wrong.
const WRONG_USE: u8 = 2;
/// Exit code: the cluster, or the service that receives the request, is unreachable.
const UNREACHABLE: u8 = 3;
/// Exit code: the node, target, file or directory does not exist.
const NOT_FOUND: u8 = 4;
/// Exit code: the token is wrong, or the user has no permission.
const REFUSED: u8 = 5;
/// Exit code: the command succeeded in part, on some hosts or for some values. The user can repeat
/// the command for the hosts or values that failed.
pub(crate) const PARTIAL: u8 = 6;
/// Exit code: the object that the command would make exists already. For example, the cluster is
/// formatted, or the directory of a service is initialised.
const EXISTS: u8 = 7;

/// The JSON that a failed command prints with `--output json`.
#[derive(Debug, Serialize)]
struct Failure<'a> {
    error: Details<'a>,
}

#[derive(Debug, Serialize)]
struct Details<'a> {
    /// Name of the error code from docs/protocol/errors.md, or `Usage`.
    code: &'a str,
    /// Names the object, the problem, and how to fix the problem.
    message: &'a str,
    exit_code: u8,
}

/// Error number of the kernel (ENOTCONN) for a path in a mount whose process has ended.
const ENDED_MOUNT: &str = "(os error 107)";

/// Returns the message for people. The context of the error already contains the object, and a hint
/// on how to fix the problem.
pub(crate) fn describe(error: &Error) -> String {
    match error.context() {
        "" => error.code().to_string(),
        context if context.ends_with(ENDED_MOUNT) => format!(
            "{context}: the process of this mount has ended; an administrator can mount the \
             cluster again on the same directory with `skep mount`"
        ),
        context => context.to_owned(),
    }
}

/// Removes the numbers of errors, as in `No such file or directory (os error 2)`. The words before
/// the number already name the error. JSON output and logs contain the numbers.
pub(crate) fn without_errno(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|it| it.is_ascii_digit()) => shown += rest,
            _ => shown = format!("{shown} (os error {part}"),
        }
    }
    shown
}

/// Whether this process is a running service or mount, and so writes a log.
static KEEPS_LOG: AtomicBool = AtomicBool::new(false);

/// Makes [`report`] write the failure of this process to the log, with time and priority. If
/// standard error is a terminal, [`report`] still prints the failure.
pub(crate) fn log_failures() {
    KEEPS_LOG.store(true, Ordering::Relaxed);
}

/// Prints or logs why a command failed, and returns its exit code.
pub(crate) fn report(error: &Error) -> ExitCode {
    let exit_code = exit_code(error.code());
    let logs = KEEPS_LOG.load(Ordering::Relaxed)
        && tracing::enabled!(tracing::Level::ERROR)
        && !std::io::stderr().is_terminal();
    match is_for_people() {
        true if logs => tracing::error!("{}", describe(error)),
        true => warn(&without_errno(&describe(error))),
        false => print(&error.code().to_string(), &describe(error), exit_code),
    }
    ExitCode::from(exit_code)
}

/// Prints an error in the command line, or the help that the user requested, and returns the exit
/// code. `all` is the definition of the whole command line.
pub(crate) fn report_usage(error: &clap::Error, all: &Command) -> ExitCode {
    let answer = near_misses::answer(error, all);
    match (wants_json(), answer) {
        (true, Some(answer)) => print("Usage", &answer, WRONG_USE),
        (true, None) if error.use_stderr() => {
            print("Usage", error.to_string().trim_end(), WRONG_USE);
        }
        (false, Some(answer)) => warn(&format!("{answer} (`skep --help` lists all commands)")),
        (_, None) => error.exit(),
    }
    ExitCode::from(WRONG_USE)
}

/// Whether a command line that the parser has rejected requests a format for programs. Errors are
/// JSON in all these formats.
fn wants_json() -> bool {
    let arguments: Vec<_> = std::env::args_os().collect();
    let is_json = |text: &str| ["json", "ndjson", "csv", "xml"].contains(&text);
    let apart =
        arguments.windows(2).any(|it| it[0] == "--output" && it[1].to_str().is_some_and(is_json));
    let joined = |it: &std::ffi::OsString| it.to_str()?.strip_prefix("--output=").map(is_json);
    apart || arguments.iter().any(|it| joined(it) == Some(true))
}

fn print(code: &str, message: &str, exit_code: u8) {
    let failure = Failure { error: Details { code, message, exit_code } };
    say_aside(&serde_json::to_string(&failure).expect("text and numbers fit into JSON"));
}

fn exit_code(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::Configuration | ErrorCode::InvalidArgument => WRONG_USE,
        ErrorCode::Disconnected
        | ErrorCode::TimedOut
        | ErrorCode::NotReady
        | ErrorCode::NotLeader => UNREACHABLE,
        ErrorCode::NotFound => NOT_FOUND,
        ErrorCode::AuthenticationFailed
        | ErrorCode::PermissionDenied
        | ErrorCode::NotPermitted
        | ErrorCode::VersionMismatch => REFUSED,
        ErrorCode::Exists => EXISTS,
        _ => FAILED,
    }
}

/// Returns an error code for which [`report`] returns the exit code `exit_code`. A command uses
/// this function to report the failure of another process of Skep.
pub(crate) fn code_of_exit(exit_code: i32) -> ErrorCode {
    match u8::try_from(exit_code) {
        Ok(WRONG_USE) => ErrorCode::Configuration,
        Ok(UNREACHABLE) => ErrorCode::NotReady,
        Ok(NOT_FOUND) => ErrorCode::NotFound,
        Ok(REFUSED) => ErrorCode::PermissionDenied,
        Ok(EXISTS) => ErrorCode::Exists,
        _ => ErrorCode::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_an_ended_mount_advises_a_new_mount() {
        let error = std::io::Error::from_raw_os_error(107);
        let message = describe(&Error::from(error).within("/mnt/skep/file"));
        assert!(message.starts_with("/mnt/skep/file: ") && message.contains("`skep mount`"));
    }

    #[test]
    fn exit_code_survives_conversion_to_an_error_code_and_back() {
        for (code, ..) in ErrorCode::ALL {
            let exit = exit_code(*code);
            assert_eq!(exit_code(code_of_exit(exit.into())), exit, "{code}");
        }
        assert_eq!(exit_code(ErrorCode::Exists), EXISTS);
    }

    #[test]
    fn message_for_people_has_no_error_numbers() {
        let text = "a: Not a directory (os error 20); b: No such file (os error 2)";
        assert_eq!(without_errno(text), "a: Not a directory; b: No such file");
        for text in ["plain", "a (os error x) b", "a (os error 2"] {
            assert_eq!(without_errno(text), text);
        }
    }
}
