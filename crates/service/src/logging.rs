//! Logging: compact lines on standard error, for systemd's journal or a file. The log level can
//! change while the process runs.

mod journal;
mod panics;

use crate::ByteSize;
use crate::log_file::LogOutput;
use skep_types::{Error, ErrorCode, Result};
use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::EnvFilter;

/// Controls the log of this process. There is one log per process.
static CONTROL: OnceLock<Control> = OnceLock::new();

/// Part of each filter that switches off the log lines of the Raft library. The lines of the
/// library describe each step of an election and each lost message. Management itself logs which
/// node is the leader, and failures of its log.
const QUIET: &str = "openraft=off";

type Apply = Box<dyn Fn(EnvFilter) -> std::result::Result<(), String> + Send + Sync>;

struct Control {
    /// Function that replaces the filter of the log.
    apply: Apply,
    /// The log level that the service's settings contain.
    configured: String,
    /// The current log level. The mutex protects only this text.
    current: Mutex<String>,
}

/// The log level of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The current log level.
    pub current: String,
    /// The log level in the settings. The process uses this level after its next start.
    pub configured: String,
}

/// Starts logging for the process. The caller must call this function only once. If standard error
/// is a file, logging starts a new file when the file has grown to `limit` bytes. Zero means no
/// limit.
///
/// # Errors
/// - `Configuration` if `filter` is invalid.
/// - `InvalidArgument` if logging has been started before.
pub fn start(filter: &str, limit: ByteSize) -> Result<()> {
    let wrong =
        |why: String| Error::new(ErrorCode::Configuration, format!("invalid log level: {why}"));
    check(filter).map_err(wrong)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter)?)
        .with_writer(Mutex::new(LogOutput::new(limit.0)))
        // After a failed write, the library would report the failure with `eprintln!`. This macro
        // panics if standard error is a full disk or a closed pipe, and the process would end.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .compact();
    // This code occurs twice because the two builders have different types.
    let (apply, started): (Apply, _) = match journal::is_standard_error() {
        false => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
        true => {
            let builder = builder.event_format(journal::Lines::new()).with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
    };
    started.map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("logging: {error}")))?;
    let current = Mutex::new(filter.to_owned());
    let control = Control { apply, configured: filter.to_owned(), current };
    // Setting `CONTROL` cannot fail. If logging had been started before, the function would have
    // returned an error above.
    let _ = CONTROL.set(control);
    panics::log_panics();
    if skep_metrics::is_off() {
        tracing::warn!(
            "the statistics of this process are off, so that metrics, `skep stats` and `skep why` \
             lack the operations of this process; unset {} to turn the statistics on",
            skep_metrics::STATISTICS_VARIABLE
        );
    }
    Ok(())
}

/// Returns the log level. `None` means that [`start`] has not been called yet.
pub fn level() -> Option<Level> {
    let control = CONTROL.get()?;
    let current = control.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Some(Level { current, configured: control.configured.clone() })
}

/// Changes the log level until the process ends. An empty `filter` restores the level in the
/// settings.
///
/// # Errors
/// - `InvalidArgument` if `filter` is invalid.
/// - `NotReady` if logging has not been started.
pub fn change(filter: &str) -> Result<Level> {
    let not_started = || {
        Error::new(
            ErrorCode::NotReady,
            "cannot read or change the log level: this process writes no log",
        )
    };
    let control = CONTROL.get().ok_or_else(not_started)?;
    let filter = if filter.is_empty() { &control.configured } else { filter };
    let wrong = |problem: String| {
        Error::new(ErrorCode::InvalidArgument, format!("invalid log level: {problem}"))
    };
    check(filter).map_err(wrong)?;
    let parsed = parse(filter)?;
    // A reader of the log must see why the level of detail changes. So this function logs the
    // change while the more detailed of the two levels is in effect.
    let is_logged_before = tracing::enabled!(tracing::Level::INFO);
    let log_change = |before: &str| {
        if before != filter {
            tracing::info!("this process changes its log level from {before} to {filter}");
        }
    };
    if is_logged_before {
        log_change(&control.current.lock().unwrap_or_else(PoisonError::into_inner));
    }
    (control.apply)(parsed).map_err(wrong)?;
    let mut current = control.current.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *current, filter.to_owned());
    drop(current);
    if !is_logged_before {
        log_change(&before);
    }
    level().ok_or_else(not_started)
}

fn text(done: std::result::Result<(), impl std::fmt::Display>) -> std::result::Result<(), String> {
    done.map_err(|error| error.to_string())
}

fn parse(filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| {
        Error::new(ErrorCode::Configuration, format!("invalid log filter: {error}"))
    })
}

/// Checks that a text is a valid log filter.
///
/// # Errors
/// Returns the problem as text.
pub fn check(filter: &str) -> std::result::Result<(), String> {
    if filter.is_empty() {
        return Err(
            "the log level is empty; write `error`, `warn`, `info`, `debug` or `trace`".into()
        );
    }
    filter.split(',').try_for_each(check_directive).map_err(|why| format!("'{filter}': {why}"))?;
    EnvFilter::try_new(filter).map(|_| ()).map_err(|error| format!("'{filter}': {error}"))
}

/// The log levels, in ascending order of detail.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks one part of a filter, which is a level, or the name of a module with a level.
///
/// The parser of filters treats any word that is not a level as a module name. So a misspelt level
/// would switch off the whole log.
fn check_directive(directive: &str) -> std::result::Result<(), String> {
    let (module, level) = match directive.split_once('=') {
        Some((module, level)) => (Some(module), level),
        None => (None, directive),
    };
    if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
        return Err(format!("unknown level '{level}': expected one of {}", LEVELS.join(", ")));
    }
    let is_name = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        name.starts_with("skep") && name.chars().all(is_plain)
    };
    match module {
        Some(name) if !is_name(name) => Err(format!(
            "unknown module '{name}': names of modules begin with `skep_`, as in skep_rpc"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_existing_log_levels_are_accepted() {
        for right in ["info", "WARN", "off", "info,skep_rpc=debug", "warn,skep_client::mount=trace"]
        {
            check(right).unwrap();
        }
        for wrong in ["", "inof", "loud", "info,debgu", "info,skep_rpc=loud", "rpc=debug", "info,"]
        {
            let why = check(wrong).unwrap_err();
            assert!(why.contains("error, warn, info") || why.contains("`"), "{wrong}: {why}");
        }
    }
}
