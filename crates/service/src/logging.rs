//! Logging: compact lines on stderr, where the journal or a file takes them.

use crate::ByteSize;
use crate::log_file::LogOutput;
use skep_types::{Error, ErrorCode, Result};
use std::io::IsTerminal;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;

/// Starts logging for the process. Call it once. If standard error is a file, a new one is begun
/// when it has grown to `limit`; with a limit of zero it is left alone.
///
/// # Errors
/// `Configuration` if `filter` is none; `InvalidArgument` if logging was started before.
pub fn start(filter: &str, limit: ByteSize) -> Result<()> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Error::new(ErrorCode::Configuration, format!("log filter: {error}")))?;
    // The journal adds the time itself.
    let with_time = std::env::var_os("JOURNAL_STREAM").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Mutex::new(LogOutput::new(limit.0)))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .compact();
    let started = match with_time {
        true => builder.try_init(),
        false => builder.without_time().try_init(),
    };
    started.map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("logging: {error}")))
}

/// Whether a text is a filter.
pub(crate) fn check(filter: &str) -> std::result::Result<(), String> {
    if filter.is_empty() {
        return Err("is empty; write `error`, `warn`, `info`, `debug` or `trace`".into());
    }
    EnvFilter::try_new(filter).map(|_| ()).map_err(|error| format!("'{filter}': {error}"))
}
