//! Stripe patterns by environment variable. If a program's environment has the variable
//! `SKEP_PATTERN`, new files of the program get the stripe pattern in this variable. Only mounts
//! with the option `job_patterns` read the variable, since with this option each new file costs a
//! read of a file in `/proc`.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::Failure;
use skep_types::{FileKind, PatternRequest};
use std::sync::atomic::{AtomicU32, Ordering};

/// Name of the environment variable that contains a stripe pattern.
const PATTERN_VARIABLE: &str = "SKEP_PATTERN";

/// The process that the last log line about an invalid pattern names. For a process that tries to
/// create many files, the mount logs one line, unless other processes with invalid patterns come
/// between.
static LAST_LOGGED: AtomicU32 = AtomicU32::new(0);

/// Returns the stripe pattern that the environment of a process requests for the new files of the
/// process. `/proc` shows only the environment that the program had at its start.
///
/// # Errors
/// Fails with `EINVAL` if the variable's value is not a valid pattern, so that the job notices the
/// mistake.
pub(crate) fn pattern<F: FileSystem>(
    context: &Context<F>,
    pid: u32,
    kind: FileKind,
) -> Result<Option<PatternRequest>, Failure> {
    if !context.options.has_job_patterns || kind != FileKind::Regular {
        return Ok(None);
    }
    // The process may have no number in this PID namespace, or its environment may be unreadable.
    // Both cases count as an environment without the variable.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let Some(text) = variable(&environment) else { return Ok(None) };
    match context.file_system.read_pattern(text) {
        Ok(pattern) => Ok(Some(pattern)),
        Err(error) => {
            if LAST_LOGGED.swap(pid, Ordering::Relaxed) != pid {
                let shown = text.escape_ascii();
                tracing::warn!(
                    "process {pid} cannot create files: its environment variable \
                     {PATTERN_VARIABLE} is '{shown}': {error}"
                );
            }
            Err(Failure::Errno(libc::EINVAL))
        }
    }
}

/// Returns the variable's value. `None` means that the variable is empty or missing.
fn variable(environment: &[u8]) -> Option<&[u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables
        .find_map(|variable| variable.strip_prefix(PATTERN_VARIABLE.as_bytes())?.strip_prefix(b"="))
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variable_is_found_only_by_its_full_name() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"", None),
            (b"A=b\0SKEP_PATTERN=count=2\0C=d\0", Some(b"count=2")),
            (b"SKEP_PATTERN=\0", None),
            (b"MY_SKEP_PATTERN=count=2\0SKEP_PATTERNS=count=3\0", None),
            (b"A=SKEP_PATTERN=count=2\0", None),
        ];
        for (environment, value) in cases {
            assert_eq!(variable(environment), value, "{}", environment.escape_ascii());
        }
    }
}
