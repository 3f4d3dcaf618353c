//! What a job asks for by its environment: `SKEP_PATTERN` is the stripe pattern of the files that
//! its programs make. Only in mounts that were told so, since it costs a look into `/proc` for each
//! file that is made.

use crate::file_system::FileSystem;
use crate::protocol::Context;
use crate::reply::Failure;
use skep_types::{FileKind, PatternRequest};

/// Name of the variable.
const PATTERN_VARIABLE: &str = "SKEP_PATTERN";

/// The pattern for a file of a process, if its job asks for one. It is what stood in the
/// environment when the program was started.
///
/// # Errors
/// `EINVAL` if it can't be read as a pattern: the job doesn't get what it asks for, and has to be
/// told.
pub(crate) fn pattern<F: FileSystem>(
    context: &Context<F>,
    pid: u32,
    kind: FileKind,
) -> Result<Option<PatternRequest>, Failure> {
    if !context.has_job_patterns || kind != FileKind::Regular {
        return Ok(None);
    }
    // Processes of other namespaces have no number here, and who may not be looked at asks for
    // nothing that can be known.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let Some(text) = variable(&environment) else { return Ok(None) };
    match context.file_system.read_pattern(text) {
        Ok(pattern) => Ok(Some(pattern)),
        Err(error) => {
            let shown = text.escape_ascii();
            tracing::debug!("process {pid}: {PATTERN_VARIABLE}={shown}: {error}");
            Err(Failure::Errno(libc::EINVAL))
        }
    }
}

/// The variable's value, if it isn't empty.
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
    fn the_variable_is_found_by_its_whole_name() {
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
